//! What users write: tasks, services, development environments; and dispatch to the other kinds.

pub mod base;
pub mod dev_environment;
mod group_names;
pub mod preset;
pub mod service;
pub mod task;

use serde::Serialize;

use crate::Decode;
use crate::fleets::FleetConfiguration;
use crate::gateways::GatewayConfiguration;
use crate::profiles::ProfileParams;
use crate::volumes::AnyVolumeConfiguration;

pub use base::{
    BaseRunConfiguration, InstanceMountPoint, MountPoint, RepoExistsAction, RepoSpec, VolumeMountPoint,
    VolumeNames,
};
pub use dev_environment::{DevEnvironmentConfiguration, Ide};
pub use preset::PresetConfiguration;
pub use service::{
    AnyModel, GatewayChoice, HttpHeaderSpec, HttpMethod, HttpsSetting, ProbeConfig, RateLimit, ReplicaGroup,
    ReplicaGroupRouterConfig, RolloutHeader, RolloutSpec, RolloutStrategy, RolloutSwitch, RouterType,
    ScalingSpec, ServiceConfiguration,
};
pub use task::{NodeGroup, TaskConfiguration};

/// Name of the only group of a task or service without groups.
pub const DEFAULT_GROUP_NAME: &str = "0";
/// Where repos went before they had paths of their own.
pub const LEGACY_REPO_DIR: &str = "/workflow";

/// A run's configuration.
#[derive(Debug, Clone, PartialEq, Serialize, Decode)]
#[serde(untagged)]
#[decode(tag = "type")]
pub enum AnyRunConfiguration {
    /// An interactive run with an IDE (`type: dev-environment`).
    #[decode(rename = "dev-environment")]
    DevEnvironment(Box<DevEnvironmentConfiguration>),
    /// A run of commands (`type: task`).
    #[decode(rename = "task")]
    Task(Box<TaskConfiguration>),
    /// Replicas that answer requests (`type: service`).
    #[decode(rename = "service")]
    Service(Box<ServiceConfiguration>),
}

impl AnyRunConfiguration {
    /// Returns the value of `type`.
    pub const fn type_name(&self) -> &'static str {
        match self {
            Self::DevEnvironment(_) => "dev-environment",
            Self::Task(_) => "task",
            Self::Service(_) => "service",
        }
    }

    /// What all run configurations have.
    pub fn base(&self) -> &BaseRunConfiguration {
        match self {
            Self::DevEnvironment(configuration) => &configuration.base,
            Self::Task(configuration) => &configuration.base,
            Self::Service(configuration) => &configuration.base,
        }
    }

    /// What all run configurations have.
    pub fn base_mut(&mut self) -> &mut BaseRunConfiguration {
        match self {
            Self::DevEnvironment(configuration) => &mut configuration.base,
            Self::Task(configuration) => &mut configuration.base,
            Self::Service(configuration) => &mut configuration.base,
        }
    }

    /// The profile parameters that are set in the configuration itself.
    pub fn params(&self) -> &ProfileParams {
        match self {
            Self::DevEnvironment(configuration) => &configuration.params,
            Self::Task(configuration) => &configuration.params,
            Self::Service(configuration) => &configuration.params,
        }
    }

    /// The profile parameters that are set in the configuration itself.
    pub fn params_mut(&mut self) -> &mut ProfileParams {
        match self {
            Self::DevEnvironment(configuration) => &mut configuration.params,
            Self::Task(configuration) => &mut configuration.params,
            Self::Service(configuration) => &mut configuration.params,
        }
    }

    /// As a service.
    pub fn service(&self) -> Option<&ServiceConfiguration> {
        match self {
            Self::Service(service) => Some(service),
            _ => None,
        }
    }

    /// As a task.
    pub fn task(&self) -> Option<&TaskConfiguration> {
        match self {
            Self::Task(task) => Some(task),
            _ => None,
        }
    }

    /// As a development environment.
    pub fn dev_environment(&self) -> Option<&DevEnvironmentConfiguration> {
        match self {
            Self::DevEnvironment(environment) => Some(environment),
            _ => None,
        }
    }
}

/// Anything that can be applied from a file.
#[derive(Debug, Clone, PartialEq, Serialize, Decode)]
#[serde(untagged)]
#[decode(tag = "type")]
pub enum AnyConfiguration {
    /// An interactive run with an IDE (`type: dev-environment`).
    #[decode(rename = "dev-environment")]
    DevEnvironment(Box<DevEnvironmentConfiguration>),
    /// A run of commands (`type: task`).
    #[decode(rename = "task")]
    Task(Box<TaskConfiguration>),
    /// Replicas that answer requests (`type: service`).
    #[decode(rename = "service")]
    Service(Box<ServiceConfiguration>),
    /// A set of instances (`type: fleet`).
    #[decode(rename = "fleet")]
    Fleet(Box<FleetConfiguration>),
    /// An entry for requests to services (`type: gateway`).
    #[decode(rename = "gateway")]
    Gateway(Box<GatewayConfiguration>),
    /// A preset (`type: preset`).
    #[decode(rename = "preset")]
    Preset(Box<PresetConfiguration>),
    /// `type: volume`, told apart further by `backend`.
    #[decode(rename = "volume")]
    Volume(Box<AnyVolumeConfiguration>),
}

impl AnyConfiguration {
    /// Returns the value of `type`.
    pub const fn type_name(&self) -> &'static str {
        match self {
            Self::DevEnvironment(_) => "dev-environment",
            Self::Task(_) => "task",
            Self::Service(_) => "service",
            Self::Fleet(_) => "fleet",
            Self::Gateway(_) => "gateway",
            Self::Preset(_) => "preset",
            Self::Volume(_) => "volume",
        }
    }

    /// The name, where one is given.
    pub fn name(&self) -> Option<&str> {
        match self {
            Self::DevEnvironment(configuration) => configuration.base.name.as_deref(),
            Self::Task(configuration) => configuration.base.name.as_deref(),
            Self::Service(configuration) => configuration.base.name.as_deref(),
            Self::Fleet(configuration) => configuration.name.as_deref(),
            Self::Gateway(configuration) => configuration.name.as_deref(),
            Self::Preset(configuration) => configuration.name.as_deref(),
            Self::Volume(configuration) => configuration.name(),
        }
    }

    /// As a run's configuration; the other kinds come back unchanged.
    ///
    /// # Errors
    /// It is no run.
    pub fn into_run(self) -> Result<AnyRunConfiguration, Self> {
        match self {
            Self::DevEnvironment(configuration) => Ok(AnyRunConfiguration::DevEnvironment(configuration)),
            Self::Task(configuration) => Ok(AnyRunConfiguration::Task(configuration)),
            Self::Service(configuration) => Ok(AnyRunConfiguration::Service(configuration)),
            other => Err(other),
        }
    }
}
