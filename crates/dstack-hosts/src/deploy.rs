//! Sets up the agent of a host over SSH, in steps that may be cut off anywhere and made again, and takes it off.

mod container;
mod docker;
mod gateway;
mod host;
mod install;
mod machine;
mod package;
mod paths;
mod places;
mod probe;
mod push;
mod release;
mod report;
mod script;
mod service;

use std::sync::Arc;

use dstack_agent_api::shim::HostReport;
use dstack_agent_api::shim_client::ShimClient;
use dstack_model::reach::Reach;
use dstack_system::clock::SharedClock;
use dstack_system::{Secret, SystemClock};
use serde::{Deserialize, Serialize};

use crate::pool::Pool;
pub use container::{ContainerDeployment, ContainerOutcome};
pub use gateway::{Delivered, GatewayDeployment};
use host::Host;
use install::Installed;
use package::Packages;
pub use paths::{GatewayPaths, HostPaths};
use push::Pushed;

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
    /// What calls to the agent must bring from now on.
    pub token: Secret,
    /// Device nodes by which jobs get the GPUs there. Empty: by the container engine, if there are GPUs.
    pub gpu_devices: Vec<String>,
    /// Docker is installed where it is missing.
    pub install_docker: bool,
}

/// How far a deployment is.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Progress {
    /// What comes next.
    pub next: Stage,
    /// Host keys that were seen, by hop, the host last.
    #[serde(default)]
    pub host_keys: Vec<String>,
    /// The host's architecture, as `uname -m` names it.
    #[serde(default)]
    pub machine: String,
}

/// A step of a deployment.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
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
        /// What was done, for people; empty: nothing worth telling.
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
        /// Which build of the agent was brought there: see [`Deployer::build`].
        build: String,
        /// Identity of the machine, as [`Deployer::machine`] reads it; unset: it has none.
        machine: Option<String>,
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
    paths: HostPaths,
    clock: SharedClock,
    packages: Arc<Packages>,
}

impl Deployer {
    /// Through this pool, with these agents.
    pub fn new(pool: Pool, agents: AgentFiles) -> Self {
        Self::with_paths(pool, agents, HostPaths::default())
    }

    /// As [`Deployer::new`], with other places on hosts.
    pub fn with_paths(pool: Pool, agents: AgentFiles, paths: HostPaths) -> Self {
        Self {
            pool,
            agents,
            paths,
            clock: Arc::new(SystemClock),
            packages: Arc::default(),
        }
    }

    /// Which build of the agent hosts of an architecture get, by the hash of its file; `None`: there is none, or it cannot be
    /// read. Takes a moment the first time, as the file is read.
    pub async fn build(&self, machine: &str) -> Option<String> {
        let package = self.packages.of(&self.agents, machine).await;
        package.ok().map(|package| package.name())
    }

    /// What tells the machine to which a way leads from all others that run now; `None`: it does not tell.
    ///
    /// # Errors
    /// It is not reached.
    pub async fn machine(&self, reach: &Reach) -> Result<Option<String>, DeployError> {
        let host = Host::open(self, reach).await?;
        machine::id(&host).await
    }

    /// Ends the connection to a host, if there is one.
    pub fn forget(&self, reach: &Reach) {
        self.pool.forget(reach);
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
        let progress = progress.unwrap_or_default();
        let reach = pinned(&deployment.reach, &progress.host_keys);
        let is_known = progress.host_keys.len() == reach.hops().count() && !progress.machine.is_empty();
        match progress.next {
            Stage::Probe => self.probe(deployment).await,
            // Written down by another version: every step may be made again.
            _ if !is_known => self.probe(deployment).await,
            Stage::Push => self.push(&reach, progress).await,
            Stage::Install => self.install(deployment, &reach, progress).await,
            Stage::Report => self.report(deployment, reach, &progress).await,
        }
    }

    /// Stops the agent and removes it, its state and the keys that were added.
    ///
    /// # Errors
    /// The host was not reached, or something is left there.
    pub async fn release(&self, deployment: &Deployment) -> Result<(), DeployError> {
        let reach = &deployment.reach;
        let connection = self
            .pool
            .connection(reach)
            .await
            .map_err(|error| host::unreached(&error))?;
        // Before the keys by which the host is reached. One may run there that was not asked to end.
        if self.has_token(deployment).await? {
            self.release_gateway(reach, None).await?;
        }
        release::release(self, deployment, reach).await?;
        self.pool.forget(reach);
        self.pool.forget(&pinned(reach, &connection.host_keys()));
        Ok(())
    }

    /// Whether the agent of the host is that of the deployment: by its token, which lies there for root.
    ///
    /// # Errors
    /// The host cannot be asked.
    pub async fn has_token(&self, deployment: &Deployment) -> Result<bool, DeployError> {
        let host = Host::open(self, &deployment.reach).await?;
        release::has_token(&host, deployment).await
    }

    /// The agent of the deployment.
    fn shim(&self, deployment: &Deployment, reach: &Reach) -> ShimClient {
        self.shim_without_token(reach)
            .with_token(deployment.token.clone())
    }

    /// Whatever listens on the agent's port of a host.
    fn shim_without_token(&self, reach: &Reach) -> ShimClient {
        ShimClient::new(self.pool.connector(reach.clone(), self.paths.port))
    }

    async fn probe(&self, deployment: &Deployment) -> Result<Outcome, DeployError> {
        let reach = &deployment.reach;
        let installed = match deployment.install_docker && probe::needs_docker(deployment) {
            true => docker::install_if_missing(&Host::open(self, reach).await?).await?,
            false => String::new(),
        };
        let found = probe::probe(self, deployment, reach).await?;
        let connection = self
            .pool
            .connection(reach)
            .await
            .map_err(|error| host::unreached(&error))?;
        let host_keys = connection.host_keys();
        // The connection goes on as that to a host whose keys are known.
        self.pool.pin(reach, &pinned(reach, &host_keys));
        let progress = Progress {
            next: Stage::Push,
            host_keys,
            machine: found.machine,
        };
        let done = match installed.is_empty() {
            true => format!("the host can be used: {}", found.told),
            false => format!("{installed}; the host can be used: {}", found.told),
        };
        Ok(underway(progress, done))
    }

    async fn push(&self, reach: &Reach, progress: Progress) -> Result<Outcome, DeployError> {
        let package = self.packages.of(&self.agents, &progress.machine).await?;
        let host = Host::open(self, reach).await?;
        Ok(match push::push(&host, &host.paths, &package).await? {
            Pushed::Whole(done) => underway(progress.then(Stage::Install), done),
            Pushed::Partly => underway(progress, ""),
        })
    }

    async fn install(
        &self,
        deployment: &Deployment,
        reach: &Reach,
        progress: Progress,
    ) -> Result<Outcome, DeployError> {
        let package = self.packages.of(&self.agents, &progress.machine).await?;
        let host = Host::open(self, reach).await?;
        Ok(match install::install(&host, deployment, &package).await? {
            Installed::Started => underway(progress.then(Stage::Report), "the agent was started"),
            Installed::Kept => underway(progress.then(Stage::Report), "the agent runs already"),
            Installed::FileMissing => underway(progress.then(Stage::Push), "the agent's file is missing"),
        })
    }

    async fn report(
        &self,
        deployment: &Deployment,
        reach: Reach,
        progress: &Progress,
    ) -> Result<Outcome, DeployError> {
        let shim = self.shim(deployment, &reach);
        let report = report::report(self, &shim, &reach, &progress.machine).await?;
        let package = self.packages.of(&self.agents, &progress.machine).await?;
        let host = Host::open(self, &reach).await?;
        let machine = machine::id(&host).await?;
        report::clean(&host, &package.name()).await;
        Ok(Outcome::Ready {
            reach,
            shim_port: self.paths.port,
            report: Box::new(report),
            build: package.name(),
            machine,
        })
    }
}

impl Progress {
    fn then(self, next: Stage) -> Self {
        Self { next, ..self }
    }
}

fn underway(progress: Progress, done: impl Into<String>) -> Outcome {
    Outcome::Underway {
        progress,
        done: done.into(),
    }
}

/// The same way, on which only these host keys are taken.
fn pinned(reach: &Reach, host_keys: &[String]) -> Reach {
    let mut reach = reach.clone();
    if reach.hops().count() == host_keys.len() {
        for (hop, key) in reach.hops_mut().zip(host_keys) {
            hop.host_keys = vec![key.clone()];
        }
    }
    reach
}
