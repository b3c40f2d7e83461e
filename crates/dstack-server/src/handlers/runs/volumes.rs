//! Network volumes of a run.

use dstack_api::ErrorCode;
use dstack_model::runs::RunSpec;
use dstack_model::volumes::Volume;
use dstack_plan::jobs::volume_names;
use dstack_plan::volumes::Location;
use dstack_units::ProjectId;
use dstack_units::number::quote_list;

use crate::error::{ApiError, Result};
use crate::state::AppState;

/// Where the first node's volumes of the first mount point are.
///
/// # Errors
/// A volume that does not exist or is about to be deleted.
pub(in crate::handlers) async fn locations(
    state: &AppState,
    project: ProjectId,
    run: &RunSpec,
) -> Result<Vec<Location>> {
    let mut first = None;
    for names in volume_names(&run.configuration.base().volumes, 0)? {
        let mut found = Vec::new();
        for name in &names {
            let volume = volume(state, project, name).await?;
            found.push(volume.ok_or_else(|| not_found(&names))?);
        }
        first.get_or_insert(found);
    }
    Ok(first.iter().flatten().map(Location::of).collect())
}

fn not_found(names: &[String]) -> ApiError {
    ApiError::with_code(
        ErrorCode::ResourceNotExists,
        format!("Volume {} not found", quote_list(names)),
    )
}

/// This version has no network volumes, so that none has the name.
async fn volume(_state: &AppState, _project: ProjectId, _name: &str) -> Result<Option<Volume>> {
    Ok(None)
}
