//! A host that is being set up: runs scripts there, as the login user or as root.

use std::sync::Arc;
use std::time::Duration;

use dstack_model::reach::Reach;
use dstack_ssh::{Connection, ExitStatus, SshError};
use dstack_system::chain;
use tokio::time::timeout;

use super::places::{self, PLACES};
use super::script::{Said, end_of, script};
use super::{DeployError, Deployer, HostPaths};
use crate::pool::ReachError;

/// Finding out who the login user is.
const WHO_LIMIT: Duration = Duration::from_secs(20);

const WHO: &str = r#"say uid "$(id -u)""#;

/// As whom something is run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum As {
    /// Whom the connection is logged in as.
    User,
    /// Root: by the login itself, or by sudo.
    Root,
}

/// A connection, and what is known of its user.
#[derive(Debug)]
pub(super) struct Host {
    pub(super) connection: Arc<Connection>,
    /// Name or address, for people.
    pub(super) name: String,
    /// Where things are there.
    pub(super) paths: HostPaths,
    is_root: bool,
}

impl Host {
    pub(super) async fn open(deployer: &Deployer, reach: &Reach) -> Result<Self, DeployError> {
        let connection = deployer.pool.connection(reach).await;
        let mut host = Self {
            connection: connection.map_err(|error| unreached(&error))?,
            name: reach.host.host.clone(),
            paths: deployer.paths.clone(),
            is_root: false,
        };
        let variables = places::variables(&host.paths);
        let variables = variables.each_ref().map(|(name, value)| (*name, value.as_str()));
        let who = script(&variables, &format!("{WHO}{PLACES}"));
        let who = host.run(As::User, WHO_LIMIT, "the first command", &who).await?;
        host.is_root = who.get("uid") == "0";
        host.paths = places::of_host(&host.paths, &who);
        Ok(host)
    }

    /// The command that runs `command`, which is plain words.
    pub(super) fn command(&self, who: As, command: &str) -> String {
        if who == As::Root && !self.is_root {
            format!("sudo -n {command}")
        } else {
            command.to_owned()
        }
    }

    /// Runs a script. `what` names it in errors.
    pub(super) async fn run(
        &self,
        who: As,
        limit: Duration,
        what: &str,
        script: &str,
    ) -> Result<Said, DeployError> {
        let name = &self.name;
        let command = self.command(who, "sh -s");
        let output = timeout(limit, self.connection.exec(&command, script.as_bytes())).await;
        let output = output
            .map_err(|_| self.transient(format!("{what} took longer than {} s", limit.as_secs())))?
            .map_err(|error| self.broken(what, &error))?;
        let said = Said::of(&output);
        if said.status.success() && said.is("began") {
            return Ok(said);
        }
        let error = said.all("error");
        if !error.is_empty() {
            return Err(self.transient(end_of(&error)));
        }
        if !said.is("began") && who == As::Root && !self.is_root {
            return Err(no_sudo(name, &said.rest));
        }
        Err(self.transient(format!("{what} failed ({}): {}", ended(&said.status), said.rest)))
    }

    /// An error of this host.
    pub(super) fn transient(&self, text: impl std::fmt::Display) -> DeployError {
        DeployError::Transient(format!("{}: {text}", self.name))
    }

    pub(super) fn broken(&self, what: &str, error: &SshError) -> DeployError {
        self.transient(format!("{what}: {}", chain(error)))
    }
}

pub(super) fn ended(status: &ExitStatus) -> String {
    match status {
        ExitStatus::Code(code) => format!("exit status {code}"),
        ExitStatus::Signal(signal) => format!("killed by {signal}"),
        ExitStatus::Unknown => "the connection ended before it did".to_owned(),
    }
}

/// Root's rights cannot be had.
pub(super) fn no_sudo(host: &str, said: &str) -> DeployError {
    DeployError::Transient(format!(
        "{host}: commands cannot be run as root: {said}. Log in as root, or let the user run commands without a password: \
         `echo \"$USER ALL=(ALL) NOPASSWD: ALL\" | sudo tee /etc/sudoers.d/dstack`"
    ))
}

/// A host that is not reached: a key that is of no use stays so.
pub(super) fn unreached(error: &ReachError) -> DeployError {
    if error.is_final() {
        DeployError::Refused(format!("Unsupported private SSH key type: {error}"))
    } else {
        DeployError::Transient(error.to_string())
    }
}
