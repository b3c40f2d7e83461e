//! What a run is made from.

use serde::Serialize;

use crate::Decode;
use crate::configurations::{AnyRunConfiguration, RouterType};
use crate::files::FileArchiveMapping;
use crate::profiles::{CreationPolicy, Profile};
use crate::repos::AnyRunRepoData;

/// What a run is made from.
#[derive(Debug, Clone, PartialEq, Serialize, Decode)]
#[decode(hide("merged_profile"), after = check)]
pub struct RunSpec {
    /// The run name. If not set, the run name is generated automatically.
    pub run_name: Option<String>,
    /// The repo's id. If not specified, a default virtual repo is used.
    pub repo_id: Option<String>,
    /// The repo data such as the current branch and commit.
    pub repo_data: Option<AnyRunRepoData>,
    /// The hash of the repo diff. Can be omitted if there is no repo diff.
    pub repo_code_hash: Option<String>,
    /// The repo path inside the container. Relative paths are resolved relative to the working directory.
    pub repo_dir: Option<String>,
    /// The list of file archive ID to container path mappings.
    #[decode(default)]
    pub file_archives: Vec<FileArchiveMapping>,
    /// Ignored; clients before 0.19.27 send it.
    pub working_dir: Option<String>,
    /// The path to the run configuration YAML file.
    pub configuration_path: Option<String>,
    /// The run's configuration, as the user wrote it.
    pub configuration: AnyRunConfiguration,
    /// The chosen profile.
    pub profile: Option<Profile>,
    /// The SSH public key that will be used to connect to the run.
    pub ssh_key_pub: Option<String>,
}

impl RunSpec {
    /// With only a configuration.
    pub const fn new(configuration: AnyRunConfiguration) -> Self {
        Self {
            run_name: None,
            repo_id: None,
            repo_data: None,
            repo_code_hash: None,
            repo_dir: None,
            file_archives: Vec::new(),
            working_dir: None,
            configuration_path: None,
            configuration,
            profile: None,
            ssh_key_pub: None,
        }
    }

    /// The profile overlaid with what the configuration sets, creation policy defaulted.
    pub fn merged_profile(&self) -> Profile {
        let mut merged = self.profile.clone().unwrap_or_else(|| Profile {
            name: "default".to_owned(),
            ..Profile::default()
        });
        merged.params = merged.params.overlaid(self.configuration.params());
        merged
            .params
            .creation_policy
            .get_or_insert(CreationPolicy::ReuseOrCreate);
        merged
    }
}

/// Dynamo's workers keep the router's address, so the router must not be replaced.
fn check(spec: RunSpec) -> Result<RunSpec, String> {
    let Some(groups) = spec
        .configuration
        .service()
        .and_then(|service| service.groups.as_ref())
    else {
        return Ok(spec);
    };
    let dynamo = groups.iter().any(|group| {
        group
            .router
            .as_ref()
            .is_some_and(|router| router.kind == RouterType::Dynamo)
    });
    let from_profile = || {
        spec.profile
            .as_ref()
            .and_then(|profile| profile.params.retry.as_ref())
    };
    if dynamo
        && spec
            .configuration
            .params()
            .retry
            .as_ref()
            .or_else(from_profile)
            .is_some()
    {
        return Err("Retry cannot be configured for services with a Dynamo router replica group. The router's \
                    address must remain stable for the life of the run; allowing retry would leave workers bound \
                    to a router that no longer exists. Remove `retry` from the profile/configuration and re-apply."
            .to_owned());
    }
    Ok(spec)
}
