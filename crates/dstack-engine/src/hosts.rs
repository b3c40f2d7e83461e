//! Hosts of SSH fleets, behind a trait: real ones are reached over SSH, simulated ones live in the same process.

use std::fmt::Debug;

use async_trait::async_trait;
use dstack_agent_api::shim::HostReport;
use dstack_compute::JobNeeds;
use dstack_model::reach::Reach;
use dstack_store::rows::{FleetRow, GatewayReplicaRow, GatewayRow, InstanceRow};
use dstack_system::Secret;
use dstack_units::InstanceId;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// A host of a fleet.
#[derive(Debug, Clone, Copy)]
pub struct HostRef<'a> {
    /// Row of the host's instance.
    pub instance: &'a InstanceRow,
    /// The fleet, whose configuration says how the host is reached.
    pub fleet: &'a FleetRow,
}

/// A container of a cloud, whose first script waits for the agent.
#[derive(Debug, Clone)]
pub struct ContainerRef<'a> {
    /// Row of the container's instance.
    pub instance: &'a InstanceRow,
    /// TCP port on the loopback interface that the script gives to the runner.
    pub runner_port: u16,
    /// What calls to the runner must bring.
    pub token: Secret,
}

/// A replica of a gateway that is to be set up, or taken off.
#[derive(Debug, Clone, Copy)]
pub struct GatewayRef<'a> {
    /// Row of the replica.
    pub replica: &'a GatewayReplicaRow,
    /// Row of the gateway that the replica belongs to.
    pub gateway: &'a GatewayRow,
    /// What it runs on.
    pub site: GatewaySite<'a>,
}

/// What a replica of a gateway runs on.
#[derive(Debug, Clone, Copy)]
pub enum GatewaySite<'a> {
    /// A host of an SSH fleet, whose agent is set up.
    Host {
        /// The host.
        host: HostRef<'a>,
        /// Which build of the agent stands there: see [`Hosts::build`]. `None`: it is not known.
        build: Option<&'a str>,
        /// The way there, with the host keys that were seen.
        reach: &'a Reach,
    },
    /// A machine of its own, to which the agent is brought as well.
    Machine {
        /// The way there, with the host key that was seen, once it was reached.
        reach: &'a Reach,
    },
}

impl<'a> GatewaySite<'a> {
    /// The way there.
    pub const fn reach(&self) -> &'a Reach {
        match self {
            Self::Host { reach, .. } | Self::Machine { reach } => reach,
        }
    }
}

/// A replica of a gateway that answers.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ReadyGateway {
    /// Which build of the agent it is.
    pub build: Option<String>,
    /// Architecture of its own machine, as [`Hosts::build`] takes it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub arch: Option<String>,
    /// The way to its own machine, with the host key that was seen.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reach: Option<Reach>,
}

/// What came of a step of setting up a host, or whatever else gets an agent.
#[derive(Debug, Clone)]
pub enum Preparation<T = ReadyHost> {
    /// The next step follows.
    Underway {
        /// How far it is: handed over again at the next step.
        progress: Value,
        /// What was done, for people; empty: nothing worth telling.
        done: String,
    },
    /// The agent answers.
    Ready(Box<T>),
}

/// A host that is set up.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ReadyHost {
    /// The way there, with the host keys that were seen.
    pub reach: Reach,
    /// TCP port of the shim on the host's loopback interface.
    pub shim_port: u16,
    /// What the host has.
    pub report: HostReport,
    /// Which build of the agent stands there: see [`Hosts::build`]. `None`: written down by a version that did not know.
    #[serde(default)]
    pub build: Option<String>,
    /// What tells the machine from all others that run now; `None`: it does not tell, or a version wrote it down that did not ask.
    #[serde(default)]
    pub machine: Option<String>,
}

/// Why a host was not set up, or the agent not taken off it. The texts are for users: cause and remedy.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum HostError {
    /// As things are now: it is tried again, as somebody may mend it meanwhile.
    #[error("{0}")]
    Transient(String),
    /// As long as the fleet is what it is.
    #[error("{0}")]
    Refused(String),
    /// The machine is another instance's already: it is left as it is.
    #[error("{error}")]
    Taken {
        /// Cause and remedy.
        error: String,
        /// Whose machine it is, where the agent of that instance may have been replaced.
        disturbed: Option<InstanceId>,
    },
}

/// Sets up the agents of hosts, and takes them off again.
#[async_trait]
pub trait Hosts: Send + Sync + Debug {
    /// Makes the next step of setting up a host. Every step may be cut off anywhere, and is then made again; each has a time
    /// limit of its own. `progress` is what the step before brought; `None`: there was none. `needs` are those of the host's type.
    async fn prepare(
        &self,
        host: HostRef<'_>,
        needs: JobNeeds,
        progress: Option<&Value>,
    ) -> Result<Preparation, HostError>;

    /// Makes the next step of bringing the job's agent into a container, by the rules of [`Hosts::prepare`]; the way there, with
    /// the host keys that were seen, once the runner answers.
    async fn prepare_container(
        &self,
        _container: ContainerRef<'_>,
        _progress: Option<&Value>,
    ) -> Result<Preparation<Reach>, HostError> {
        Err(HostError::Refused(
            "this server does not connect to containers of clouds".to_owned(),
        ))
    }

    /// Connects to a machine for the first time: the way there, with the host keys that were seen.
    async fn greet_machine(&self, _reach: &Reach) -> Result<Reach, HostError> {
        Err(HostError::Refused(
            "this server does not set up gateways".to_owned(),
        ))
    }

    /// Sets up a replica of a gateway, and waits until it answers. It may be cut off anywhere, and is made again then. One
    /// that runs with another build of the agent is replaced without a connection being refused.
    async fn prepare_gateway(&self, _gateway: GatewayRef<'_>) -> Result<ReadyGateway, HostError> {
        Err(HostError::Refused(
            "this server does not set up gateways".to_owned(),
        ))
    }

    /// Takes a replica of a gateway off a host, with all that it has stored there.
    async fn release_gateway(&self, _gateway: GatewayRef<'_>) -> Result<(), HostError> {
        Ok(())
    }

    /// Takes the agent, and keys that were added for it, off the host. What is not there any more is none of its business.
    /// `preparation` is what the last step of setting it up brought: the fleet may not name the host any more.
    async fn release(&self, host: HostRef<'_>, preparation: Option<&Value>) -> Result<(), HostError>;

    /// Whether the agent that stands on the host is the one that was set up for this instance: by what only root can write there.
    /// Asked where what answers in its place does not show that it is.
    async fn has_own_agent(&self, _host: HostRef<'_>) -> Result<bool, HostError> {
        Ok(false)
    }

    /// What tells the machine of a host that was set up from all others that run now; `None`: it does not tell. It is another once
    /// the machine was started again.
    async fn machine(&self, _host: HostRef<'_>) -> Result<Option<String>, HostError> {
        Ok(None)
    }

    /// Which build of the agent hosts of an architecture (`amd64` or `arm64`) get from this server; `None`: none, or it is
    /// not known yet. Asked often: it must not take time.
    fn build(&self, _arch: &str) -> Option<String> {
        None
    }

    /// Nothing is to be done at the host any more: what is kept for reaching it may go.
    fn forget(&self, _host: HostRef<'_>, _preparation: Option<&Value>) {}
}

/// There are no hosts of SSH fleets.
#[derive(Debug, Clone, Copy)]
pub struct NoHosts;

#[async_trait]
impl Hosts for NoHosts {
    async fn prepare(
        &self,
        _host: HostRef<'_>,
        _needs: JobNeeds,
        _progress: Option<&Value>,
    ) -> Result<Preparation, HostError> {
        Err(HostError::Refused(
            "this server does not connect to hosts".to_owned(),
        ))
    }

    async fn release(&self, _host: HostRef<'_>, _preparation: Option<&Value>) -> Result<(), HostError> {
        Ok(())
    }
}
