//! Network volumes of a run.

use std::collections::HashMap;

use dstack_api::ErrorCode;
use dstack_control::ControlError;
use dstack_model::configurations::{MountPoint, TaskConfiguration};
use dstack_model::runs::RunSpec;
use dstack_plan::jobs::volume_names;
use dstack_plan::volumes::{
    Candidate, Location, check_mounts, locations as locations_of, marked_for_deletion, not_found,
};
use dstack_store::Database;
use dstack_store::rows::VolumeRow;
use dstack_units::ProjectId;

use crate::error::Result;

/// Where the first node's volumes are.
///
/// # Errors
/// A volume that does not exist or is about to be deleted.
pub(in crate::handlers) async fn locations(
    database: &Database,
    project: ProjectId,
    run: &RunSpec,
) -> Result<Vec<Location>> {
    let mounts = volume_names(&run.configuration.base().volumes, 0)?;
    let mut known = HashMap::new();
    for names in &mounts {
        read(database, project, names, &mut known).await?;
    }
    Ok(locations_of(&candidates(&mounts, &known)?))
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
        let mounts = volume_names(mounts, node)?;
        for names in &mounts {
            read(database, project, names, &mut known).await?;
        }
        check_mounts(&candidates(&mounts, &known)?)?;
    }
    Ok(())
}

/// Reads the volumes of a mount point that are not known yet.
async fn read(
    database: &Database,
    project: ProjectId,
    names: &[String],
    known: &mut HashMap<String, VolumeRow>,
) -> dstack_control::Result<()> {
    for name in names {
        if !known.contains_key(name) {
            let found = database.volumes().by_name(project, name).await?;
            let row = found.ok_or_else(|| missing(names))?.row;
            known.insert(name.clone(), row);
        }
    }
    Ok(())
}

fn candidates<'a>(
    mounts: &[Vec<String>],
    known: &'a HashMap<String, VolumeRow>,
) -> dstack_control::Result<Vec<Vec<Candidate<'a>>>> {
    let of_names = |names: &Vec<String>| {
        let of_name = |name: &String| {
            let row = known.get(name).ok_or_else(|| missing(names))?;
            match row.to_be_deleted {
                true => Err(ControlError::refused(marked_for_deletion(names))),
                false => Ok(row.candidate()),
            }
        };
        names.iter().map(of_name).collect()
    };
    mounts.iter().map(of_names).collect()
}

fn missing(names: &[String]) -> ControlError {
    ControlError::with_code(ErrorCode::ResourceNotExists, not_found(names))
}
