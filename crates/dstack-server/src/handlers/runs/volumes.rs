//! Network volumes of a run.

use dstack_api::ErrorCode;
use dstack_control::ControlError;
use dstack_model::runs::RunSpec;
use dstack_model::volumes::VolumeStatus;
use dstack_plan::jobs::volume_names;
use dstack_plan::volumes::Location;
use dstack_store::Database;
use dstack_store::directory::volumes;
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
            let volume = volumes::by_name(state.database.pool(), project, name).await?;
            let row = volume.ok_or_else(|| missing(&names))?.row;
            if row.to_be_deleted {
                return Err(ApiError::client(format!(
                    "Volume {} is marked for deletion and cannot be attached",
                    quote_list(&names)
                )));
            }
            found.push(Location::of(&row.configuration, row.provisioning_data.as_deref()));
        }
        first.get_or_insert(found);
    }
    Ok(first.unwrap_or_default())
}

/// Refuses volumes that cannot be mounted now.
pub(crate) async fn check_active(
    database: &Database,
    project: ProjectId,
    run: &RunSpec,
) -> dstack_control::Result<()> {
    for names in volume_names(&run.configuration.base().volumes, 0)? {
        for name in &names {
            let volume = volumes::by_name(database.pool(), project, name).await?;
            let row = volume.ok_or_else(|| missing(&names))?.row;
            if row.status != VolumeStatus::Active {
                let text = format!("Cannot mount volumes that are not active: {name}");
                return Err(ControlError::refused(text));
            }
        }
    }
    Ok(())
}

fn missing(names: &[String]) -> ControlError {
    ControlError::with_code(
        ErrorCode::ResourceNotExists,
        format!("Volume {} not found", quote_list(names)),
    )
}
