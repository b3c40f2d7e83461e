//! Streams to ports of a host, for the clients of agents.

use std::io;
use std::time::Duration;

use async_trait::async_trait;
use dstack_agent_api::http::{Connector, Wire};
use dstack_model::reach::Reach;
use dstack_ssh::{ChannelStream, Refusal, SshError};
use dstack_system::chain;
use tokio::time::timeout;

use super::{Pool, ReachError};

/// A channel is granted within a round trip.
const CHANNEL_LIMIT: Duration = Duration::from_secs(10);

/// Where agents listen.
const LOOPBACK: &str = "127.0.0.1";

/// Why a port of a host is not reached.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PortError {
    /// The host is not reached.
    #[error(transparent)]
    Reach(#[from] ReachError),
    /// Nothing listens there.
    #[error("nothing listens on port {port} of {host}")]
    NothingListens {
        /// Name or address of the host.
        host: String,
        /// TCP port on the loopback interface of the host.
        port: u16,
    },
    /// The SSH server does not forward.
    #[error(
        "the SSH server of {host} does not forward connections to its port {port}. Set `AllowTcpForwarding yes` in its sshd_config, \
         check that `PermitOpen` does not leave that out, and that the key has no `restrict` or `no-port-forwarding` in \
         authorized_keys; then reload sshd"
    )]
    Forbidden {
        /// Name or address of the host.
        host: String,
        /// TCP port on the loopback interface of the host.
        port: u16,
    },
    /// No channel, for another reason.
    #[error("the SSH server of {host} gives no channel to its port {port}: {problem}")]
    Channel {
        /// Name or address of the host.
        host: String,
        /// TCP port on the loopback interface of the host.
        port: u16,
        /// What went wrong.
        problem: String,
    },
}

impl From<PortError> for io::Error {
    fn from(error: PortError) -> Self {
        let kind = match &error {
            PortError::Reach(error) => return error.clone().into(),
            PortError::NothingListens { .. } => io::ErrorKind::ConnectionRefused,
            PortError::Forbidden { .. } => io::ErrorKind::PermissionDenied,
            PortError::Channel { .. } => io::ErrorKind::NotConnected,
        };
        io::Error::new(kind, error)
    }
}

/// Opens a channel for each connection.
#[derive(Debug)]
pub(super) struct PortConnector {
    pool: Pool,
    reach: Reach,
    port: u16,
}

impl PortConnector {
    pub(super) const fn new(pool: Pool, reach: Reach, port: u16) -> Self {
        Self { pool, reach, port }
    }
}

#[async_trait]
impl Connector for PortConnector {
    async fn connect(&self) -> io::Result<Box<dyn Wire>> {
        let stream = self.pool.open_port(&self.reach, self.port).await?;
        Ok(Box::new(stream))
    }
}

impl Pool {
    /// Opens a stream to a port of the host's loopback interface. A connection that turns out to be dead is made anew, once.
    ///
    /// # Errors
    /// The host is not reached, or nothing listens there, or its SSH server forbids it.
    pub async fn open_port(&self, reach: &Reach, port: u16) -> Result<ChannelStream, PortError> {
        match self.try_port(reach, port).await? {
            Ok(stream) => Ok(stream),
            Err(SshError::Closed) => {
                let again = self.try_port(reach, port).await?;
                again.map_err(|error| refused(&error, reach, port))
            }
            Err(error) => Err(refused(&error, reach, port)),
        }
    }

    async fn try_port(&self, reach: &Reach, port: u16) -> Result<Result<ChannelStream, SshError>, PortError> {
        let connection = self.connection(reach).await?;
        // By its number: `localhost` may be another address first, at which another program listens.
        let opened = timeout(CHANNEL_LIMIT, connection.direct_tcpip(LOOPBACK, port)).await;
        let opened = opened.map_err(|_| PortError::Channel {
            host: reach.host.host.clone(),
            port,
            problem: format!("no answer within {} s", CHANNEL_LIMIT.as_secs()),
        })?;
        if matches!(opened, Err(SshError::Closed)) {
            self.drop_dead(reach, &connection);
        }
        Ok(opened)
    }
}

fn refused(error: &SshError, reach: &Reach, port: u16) -> PortError {
    let host = reach.host.host.clone();
    match error.refusal() {
        Some(Refusal::NotConnected) => PortError::NothingListens { host, port },
        Some(Refusal::Forbidden) => PortError::Forbidden { host, port },
        _ => PortError::Channel {
            host,
            port,
            problem: chain(error).to_string(),
        },
    }
}
