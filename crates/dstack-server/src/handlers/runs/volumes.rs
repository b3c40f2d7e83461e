//! Network volumes of a run.

use std::collections::{BTreeSet, HashMap};

use dstack_api::ErrorCode;
use dstack_control::ControlError;
use dstack_model::configurations::{MountPoint, TaskConfiguration};
use dstack_model::runs::RunSpec;
use dstack_model::volumes::VolumeStatus;
use dstack_plan::jobs::volume_names;
use dstack_plan::volumes::Location;
use dstack_store::Database;
use dstack_store::rows::VolumeRow;
use dstack_units::ProjectId;
use dstack_units::number::quote_list;

use crate::error::{ApiError, Result};

/// Where the first node's volumes of the first mount point are.
///
/// # Errors
/// A volume that does not exist or is about to be deleted.
pub(in crate::handlers) async fn locations(
    database: &Database,
    project: ProjectId,
    run: &RunSpec,
) -> Result<Vec<Location>> {
    let mut first = None;
    for names in volume_names(&run.configuration.base().volumes, 0)? {
        let mut found = Vec::new();
        for name in &names {
            let volume = database.volumes().by_name(project, name).await?;
            let row = volume.ok_or_else(|| missing(&names))?.row;
            if row.to_be_deleted {
                return Err(ApiError::client(marked(&names)));
            }
            found.push(Location::of(&row.configuration, row.provisioning_data.as_deref()));
        }
        first.get_or_insert(found);
    }
    Ok(first.unwrap_or_default())
}

/// Refuses volumes that cannot be mounted now, by any node of the run.
pub(crate) async fn check_active(
    database: &Database,
    project: ProjectId,
    run: &RunSpec,
) -> dstack_control::Result<()> {
    let mounts = &run.configuration.base().volumes;
    if !mounts.iter().any(|mount| matches!(mount, MountPoint::Volume(_))) {
        return Ok(());
    }
    let nodes = run.configuration.task().map_or(1, TaskConfiguration::nodes_num);
    let nodes = usize::try_from(nodes).unwrap_or(0);
    let mut known: HashMap<String, VolumeRow> = HashMap::new();
    for node in 0..nodes {
        let mut mounted = Vec::new();
        for names in volume_names(mounts, node)? {
            let mut rows = Vec::new();
            for name in &names {
                if !known.contains_key(name) {
                    let found = database.volumes().by_name(project, name).await?;
                    let row = found.ok_or_else(|| missing(&names))?.row;
                    known.insert(name.clone(), row);
                }
                let row = known.get(name).ok_or_else(|| missing(&names))?.clone();
                if row.to_be_deleted {
                    return Err(ControlError::refused(marked(&names)));
                }
                rows.push(row);
            }
            mounted.push(rows);
        }
        check_mounts(&mounted)?;
    }
    Ok(())
}

/// Refuses volumes that cannot be on one machine together. One of each mount point's volumes is attached.
fn check_mounts(mounted: &[Vec<VolumeRow>]) -> dstack_control::Result<()> {
    let refused = |text: &str| Err(ControlError::refused(text));
    let expected = mounted.first().map(|rows| places(rows));
    for rows in mounted {
        if Some(places(rows)) != expected {
            return refused("Volumes from different locations specified for different mount points");
        }
        if let Some(row) = rows.iter().find(|row| row.status() != VolumeStatus::Active) {
            return refused(&format!("Cannot mount volumes that are not active: {}", row.name));
        }
    }
    let names: Vec<&str> = mounted.iter().flatten().map(|row| row.name.as_str()).collect();
    let distinct: BTreeSet<&str> = names.iter().copied().collect();
    if distinct.len() < names.len() {
        return refused("Cannot attach the same volume at different mount points");
    }
    Ok(())
}

/// Backends and regions.
fn places(rows: &[VolumeRow]) -> BTreeSet<(String, Option<String>)> {
    let place = |row: &VolumeRow| {
        let place = Location::of(&row.configuration, row.provisioning_data.as_deref());
        (place.backend.to_string(), place.region)
    };
    rows.iter().map(place).collect()
}

fn marked(names: &[String]) -> String {
    format!(
        "Volume {} is marked for deletion and cannot be attached",
        quote_list(names)
    )
}

fn missing(names: &[String]) -> ControlError {
    ControlError::with_code(
        ErrorCode::ResourceNotExists,
        format!("Volume {} not found", quote_list(names)),
    )
}
