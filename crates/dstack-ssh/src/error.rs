//! Why a connection, a channel or a command over SSH failed.

use std::io;
use std::time::Duration;

use russh::ChannelOpenFailure;

/// A failure of the SSH client. `Display` names the host and the step; the cause is the source.
#[derive(Debug, thiserror::Error)]
pub enum SshError {
    /// The host's name has no address.
    #[error("no address is known for {host}")]
    Resolve {
        /// Host as given.
        host: String,
        /// What the resolver said.
        #[source]
        source: io::Error,
    },
    /// TCP connection (or the channel through the last jump host) could not be opened.
    #[error("cannot connect to {host}:{port}")]
    Connect {
        /// Host as given.
        host: String,
        /// TCP port of the SSH server.
        port: u16,
        /// What the network said.
        #[source]
        source: io::Error,
    },
    /// Connecting, the handshake and authentication together took too long.
    #[error("no SSH connection to {host}:{port} within {} s", limit.as_secs_f32())]
    Timeout {
        /// Host as given.
        host: String,
        /// TCP port of the SSH server.
        port: u16,
        /// The limit that passed.
        limit: Duration,
    },
    /// Every offered key was refused.
    #[error("{user}@{host}:{port}: permission denied (publickey)")]
    Denied {
        /// Name of the user who was to log in.
        user: String,
        /// Host as given.
        host: String,
        /// TCP port of the SSH server.
        port: u16,
    },
    /// The host presented another key than the expected one.
    #[error("{host}:{port}: host key {found} is not the expected {expected}")]
    HostKey {
        /// Host as given.
        host: String,
        /// TCP port of the SSH server.
        port: u16,
        /// Fingerprint that was expected.
        expected: String,
        /// Fingerprint that was presented.
        found: String,
    },
    /// The handshake failed or the connection broke during it.
    #[error("{host}:{port}: SSH handshake failed")]
    Handshake {
        /// Host as given.
        host: String,
        /// TCP port of the SSH server.
        port: u16,
        /// What the protocol said.
        #[source]
        source: russh::Error,
    },
    /// The remote side refused a channel (nothing listens there, forwarding is off, ...).
    #[error("the remote side refused a channel to {target}")]
    ChannelRefused {
        /// `host:port`, a socket path, or `session`.
        target: String,
        /// What the protocol said.
        #[source]
        source: russh::Error,
    },
    /// The remote side refused to run the command.
    #[error("the remote side refused to run `{command}`")]
    ExecRefused {
        /// The command that was to run.
        command: String,
    },
    /// The command printed more than is read into memory.
    #[error("the command printed more than {limit} bytes")]
    OutputTooLong {
        /// As many bytes are read into memory.
        limit: usize,
    },
    /// The connection is gone.
    #[error("the SSH connection is closed")]
    Closed,
}

/// Why a channel was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// The server's settings forbid it, as OpenSSH's `AllowTcpForwarding no` does.
    Forbidden,
    /// The target cannot be reached from there: nothing listens, or its name is not known.
    NotConnected,
    /// Anything else.
    Other,
}

impl SshError {
    /// Why a channel was refused; `None` for other errors.
    pub const fn refusal(&self) -> Option<Refusal> {
        let Self::ChannelRefused { source, .. } = self else {
            return None;
        };
        Some(match source {
            russh::Error::ChannelOpenFailure(ChannelOpenFailure::AdministrativelyProhibited) => {
                Refusal::Forbidden
            }
            russh::Error::ChannelOpenFailure(ChannelOpenFailure::ConnectFailed) => Refusal::NotConnected,
            _ => Refusal::Other,
        })
    }
}
