//! Values with variables in them: volume names, credentials, the environment.

use std::collections::HashMap;

use dstack_model::common::RegistryAuth;
use dstack_model::configurations::{BaseRunConfiguration, MountPoint, VolumeMountPoint, VolumeNames};
use dstack_model::interpolate::Interpolator;
use indexmap::IndexMap;

use crate::PlanError;

/// Where jobs with `dstack: true` reach the server: a socket that the agent in the container listens on.
const SERVER_URL: &str = "http+unix://%2Frun%2Fdstack%2Fserver.sock";

/// The environment as the configuration gives it. A variable without a value is an error: clients fill them in.
pub(super) fn env(base: &BaseRunConfiguration) -> Result<IndexMap<String, String>, PlanError> {
    let mut env = base.env.to_map().map_err(PlanError::new)?;
    if base.dstack {
        env.entry("DSTACK_SERVER_URL".to_owned())
            .or_insert_with(|| SERVER_URL.to_owned());
    }
    Ok(env)
}

/// Mount points of the job with this number: names of volumes filled in.
pub(super) fn volumes(mounts: &[MountPoint], job_num: usize) -> Result<Vec<MountPoint>, PlanError> {
    mounts
        .iter()
        .map(|mount| match mount {
            MountPoint::Instance(_) => Ok(mount.clone()),
            MountPoint::Volume(volume) => Ok(MountPoint::Volume(VolumeMountPoint {
                name: VolumeNames::AnyOf(filled_in(&volume.name, job_num)?),
                path: volume.path.clone(),
            })),
        })
        .collect()
}

/// For each mount point of a network volume, the volumes that the job with this number may use.
///
/// # Errors
/// A variable other than `dstack.job_num` and `dstack.node_rank`.
pub fn volume_names(mounts: &[MountPoint], job_num: usize) -> Result<Vec<Vec<String>>, PlanError> {
    mounts
        .iter()
        .filter_map(|mount| match mount {
            MountPoint::Instance(_) => None,
            MountPoint::Volume(volume) => Some(filled_in(&volume.name, job_num)),
        })
        .collect()
}

fn filled_in(names: &VolumeNames, job_num: usize) -> Result<Vec<String>, PlanError> {
    let number = job_num.to_string();
    let variables =
        Interpolator::new().namespace("dstack", [("job_num", number.clone()), ("node_rank", number)]);
    names
        .as_slice()
        .iter()
        .map(|name| {
            variables
                .interpolate(name)
                .map_err(|error| PlanError::new(error.to_string()))
        })
        .collect()
}

/// The credentials of a registry, with secrets put in: user name and password.
///
/// # Errors
/// A secret that does not exist, or a broken reference.
pub fn registry_auth(
    auth: &RegistryAuth,
    secrets: &HashMap<String, String>,
) -> Result<(String, String), PlanError> {
    Ok((
        with_secrets(&auth.username, secrets)?,
        with_secrets(&auth.password, secrets)?,
    ))
}

/// A text with `${{ secrets.NAME }}` replaced.
///
/// # Errors
/// A secret that does not exist, or a broken reference.
pub fn with_secrets(text: &str, secrets: &HashMap<String, String>) -> Result<String, PlanError> {
    Interpolator::new()
        .namespace("secrets", secrets)
        .interpolate(text)
        .map_err(|error| PlanError::new(error.to_string()))
}
