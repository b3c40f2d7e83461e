//! Sets up the agent of a host over SSH, in steps that may be cut off anywhere and made again, and takes it off.

use dstack_agent_api::shim::HostReport;
use dstack_model::reach::Reach;
use serde::{Deserialize, Serialize};

use crate::pool::Pool;

/// Agents that hosts can be given.
#[derive(Debug, Clone, Default)]
pub struct AgentFiles {
    /// Executable for x86-64.
    pub amd64: Option<std::path::PathBuf>,
    /// Executable for AArch64.
    pub arm64: Option<std::path::PathBuf>,
}

/// How a host is to be set up.
#[derive(Debug, Clone)]
pub struct Deployment {
    /// The way there, with the host keys that are known beforehand.
    pub reach: Reach,
    /// Public keys that may log in to the host from now on, each a line `type base64 [comment]`.
    pub authorized_keys: Vec<String>,
    /// Variables for the agent, beside its own.
    pub env: Vec<(String, String)>,
}

/// How far a deployment is.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Progress {
    /// What comes next.
    pub next: Stage,
    /// Host keys that were seen, by hop, the host last.
    pub host_keys: Vec<String>,
}

/// A step of a deployment.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Stage {
    /// What the host is, and whether it can be used.
    #[default]
    Probe,
    /// The agent's file is brought there.
    Push,
    /// The agent is made a service, and started.
    Install,
    /// The agent tells what the host has.
    Report,
}

/// What a step came to.
#[derive(Debug, Clone)]
pub enum Outcome {
    /// The next step follows.
    Underway {
        /// How far it is.
        progress: Progress,
        /// What was done, for people.
        done: String,
    },
    /// The agent answers.
    Ready {
        /// The way there, with the host keys that were seen.
        reach: Reach,
        /// TCP port of the shim on the loopback interface.
        shim_port: u16,
        /// What the host has.
        report: Box<HostReport>,
    },
}

/// Why a step failed. The texts are for users: cause and remedy.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DeployError {
    /// To be tried again: somebody may mend it meanwhile.
    #[error("{0}")]
    Transient(String),
    /// Never, as things are: the key is of no use, there is no agent for the host's architecture.
    #[error("{0}")]
    Refused(String),
}

/// Sets up hosts.
#[derive(Debug, Clone)]
pub struct Deployer {
    pool: Pool,
    agents: AgentFiles,
}

impl Deployer {
    /// Through this pool, with these agents.
    pub const fn new(pool: Pool, agents: AgentFiles) -> Self {
        Self { pool, agents }
    }

    /// Makes the step that `progress` says is next; `None`: the first.
    ///
    /// # Errors
    /// The step failed, and nothing of it may be relied on.
    pub async fn step(
        &self,
        deployment: &Deployment,
        progress: Option<Progress>,
    ) -> Result<Outcome, DeployError> {
        let _ = (&self.pool, &self.agents, deployment, progress);
        Err(DeployError::Transient("not built yet".to_owned()))
    }

    /// Stops the agent and removes it, its state and the keys that were added.
    ///
    /// # Errors
    /// The host was not reached, or something is left there.
    pub async fn release(&self, deployment: &Deployment) -> Result<(), DeployError> {
        let _ = (&self.pool, deployment);
        Err(DeployError::Transient("not built yet".to_owned()))
    }
}
