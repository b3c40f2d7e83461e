//! Why a host is not reached: the hop, the cause, and what to do about it.

use std::fmt;
use std::io;

use dstack_model::reach::{Hop, Reach};
use dstack_ssh::{Refusal, SshError};
use dstack_system::chain;

/// Why a host is not reached. The text names the hop, the cause and the remedy.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ReachError {
    /// Keys cannot be read now.
    #[error("the private keys for {host} cannot be read: {problem}")]
    Keyring {
        /// Name or address of the hop.
        host: String,
        /// What the keyring said.
        problem: String,
    },
    /// None of the hop's keys exists.
    #[error(
        "there is no private key for {user}@{host}: name one as `identity_file` in the fleet's `ssh_config`"
    )]
    NoKey {
        /// Name of the user of the login.
        user: String,
        /// Name or address of the hop.
        host: String,
    },
    /// A key cannot be used, and never will be.
    #[error(
        "{key} cannot be used for {host}: {problem}. An RSA, ECDSA or Ed25519 key in OpenSSH, PKCS#1 or PKCS#8 format, without a passphrase, is needed"
    )]
    UnusableKey {
        /// Which key, in words.
        key: String,
        /// Name or address of the hop.
        host: String,
        /// What is wrong with it.
        problem: KeyProblem,
    },
    /// A host key that is to be shown is no public key.
    #[error("{line:?} is no host key of {host}: a line `type base64` is needed")]
    KnownKey {
        /// Name or address of the hop.
        host: String,
        /// What stands for the key.
        line: String,
    },
    /// The name of the hop has no address.
    #[error(
        "{host}: no address is known for this name ({problem}). Check the name, and that the server's resolver knows it"
    )]
    Unresolved {
        /// Name of the hop.
        host: String,
        /// What the resolver said.
        problem: String,
    },
    /// Nothing listens there.
    #[error(
        "{host}:{port}: connection refused. Check that the host is up, that its SSH server runs, and the port"
    )]
    Refused {
        /// Name or address of the hop.
        host: String,
        /// TCP port of its SSH server.
        port: u16,
    },
    /// No way there.
    #[error("{host}:{port}: {problem}. Check that the host is up and that this server's network reaches it")]
    Unconnected {
        /// Name or address of the hop.
        host: String,
        /// TCP port of its SSH server.
        port: u16,
        /// What the network said.
        problem: String,
    },
    /// Nothing was heard within the time limit of a hop.
    #[error(
        "{host}:{port}: no answer within {seconds} s. Check that the host is up, and that no firewall on the way drops connections \
         to that port"
    )]
    TimedOut {
        /// Name or address of the hop.
        host: String,
        /// TCP port of its SSH server.
        port: u16,
        /// The time limit.
        seconds: u64,
    },
    /// No key was accepted.
    #[error(
        "{user}@{host}:{port}: permission denied (publickey). Check that the user is right, and that the public key is in \
         ~{user}/.ssh/authorized_keys on {host}"
    )]
    Denied {
        /// Name of the user of the login.
        user: String,
        /// Name or address of the hop.
        host: String,
        /// TCP port of its SSH server.
        port: u16,
    },
    /// The host shows another key than before.
    #[error(
        "{host}:{port}: the host key is {found}, and was {expected}. If the host was installed anew, accept it with `dstack fleet \
         trust FLEET -i INSTANCE_NUM {found}`; if not, somebody may be in between"
    )]
    HostKeyChanged {
        /// Name or address of the hop.
        host: String,
        /// TCP port of its SSH server.
        port: u16,
        /// Fingerprint of the key that was to be shown (`SHA256:...`; several are separated by ` or `).
        expected: String,
        /// Fingerprint of the key that was shown.
        found: String,
    },
    /// The jump host does not forward.
    #[error(
        "the jump host {jump} does not forward connections to {host}:{port}. Set `AllowTcpForwarding yes` in its sshd_config, and \
         check that `PermitOpen` does not leave that out"
    )]
    JumpForbids {
        /// Name or address of the jump host.
        jump: String,
        /// Name or address of the hop behind it.
        host: String,
        /// TCP port of its SSH server.
        port: u16,
    },
    /// The jump host does not get further.
    #[error(
        "the jump host {jump} cannot connect to {host}:{port}. Check that the host is up, that its SSH server runs, and that {host} \
         is a name that {jump} knows"
    )]
    JumpFailed {
        /// Name or address of the jump host.
        jump: String,
        /// Name or address of the hop behind it.
        host: String,
        /// TCP port of its SSH server.
        port: u16,
    },
    /// Something answers, but no SSH connection comes of it.
    #[error(
        "{host}:{port}: the SSH handshake failed ({problem}). Check that the port is that of an SSH server, and its log"
    )]
    Handshake {
        /// Name or address of the hop.
        host: String,
        /// TCP port of its SSH server.
        port: u16,
        /// What the protocol said.
        problem: String,
    },
    /// The connection broke.
    #[error("the SSH connection to {host} broke: {problem}")]
    Broken {
        /// Name or address of the host.
        host: String,
        /// What was being done.
        problem: String,
    },
    /// The attempt ended by an error of this program, which is in the log.
    #[error("the attempt to connect was interrupted; it is made again")]
    Interrupted,
}

/// What is wrong with a private key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum KeyProblem {
    /// It is protected.
    Passphrase,
    /// Not of a known kind; the text, which may be empty, says more.
    Format(String),
}

impl fmt::Display for KeyProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Passphrase => f.write_str("it is protected by a passphrase"),
            Self::Format(problem) if problem.is_empty() => f.write_str("its format is not known"),
            Self::Format(problem) => write!(f, "its format is not known ({problem})"),
        }
    }
}

impl ReachError {
    /// Whether trying again may help, as things are.
    pub const fn is_final(&self) -> bool {
        matches!(self, Self::UnusableKey { .. })
    }

    fn kind(&self) -> io::ErrorKind {
        match self {
            Self::Refused { .. } | Self::JumpFailed { .. } => io::ErrorKind::HostUnreachable,
            Self::TimedOut { .. } => io::ErrorKind::TimedOut,
            Self::Denied { .. } | Self::HostKeyChanged { .. } | Self::JumpForbids { .. } => {
                io::ErrorKind::PermissionDenied
            }
            _ => io::ErrorKind::NotConnected,
        }
    }
}

impl From<ReachError> for io::Error {
    fn from(error: ReachError) -> Self {
        io::Error::new(error.kind(), error)
    }
}

/// What the SSH client says, for people.
pub(super) fn explain(error: SshError, reach: &Reach) -> ReachError {
    let refusal = error.refusal();
    match error {
        SshError::Resolve { host, source } => ReachError::Unresolved {
            host,
            problem: source.to_string(),
        },
        SshError::Connect { host, port, source } if source.kind() == io::ErrorKind::ConnectionRefused => {
            ReachError::Refused { host, port }
        }
        SshError::Connect { host, port, source } => ReachError::Unconnected {
            host,
            port,
            problem: source.to_string(),
        },
        SshError::Timeout { host, port, limit } => ReachError::TimedOut {
            host,
            port,
            seconds: limit.as_secs(),
        },
        SshError::Denied { user, host, port } => ReachError::Denied { user, host, port },
        SshError::HostKey {
            host,
            port,
            expected,
            found,
        } => ReachError::HostKeyChanged {
            host,
            port,
            expected,
            found,
        },
        SshError::Handshake { host, port, source } => ReachError::Handshake {
            host,
            port,
            problem: chain(&source).to_string(),
        },
        SshError::ChannelRefused { ref target, .. } => match (jump_before(target, reach), refusal) {
            (Some((jump, hop)), Some(Refusal::Forbidden)) => ReachError::JumpForbids {
                jump: jump.host.clone(),
                host: hop.host.clone(),
                port: hop.port,
            },
            (Some((jump, hop)), _) => ReachError::JumpFailed {
                jump: jump.host.clone(),
                host: hop.host.clone(),
                port: hop.port,
            },
            (None, _) => broken(&error, reach),
        },
        other @ (SshError::ExecRefused { .. } | SshError::OutputTooLong { .. } | SshError::Closed) => {
            broken(&other, reach)
        }
    }
}

fn broken(error: &SshError, reach: &Reach) -> ReachError {
    ReachError::Broken {
        host: reach.host.host.clone(),
        problem: chain(error).to_string(),
    }
}

/// The jump host that was to connect to `target`, and the hop that this is.
fn jump_before<'a>(target: &str, reach: &'a Reach) -> Option<(&'a Hop, &'a Hop)> {
    let mut pairs = reach.jumps.iter().zip(reach.hops().skip(1));
    pairs.find(|(_, hop)| format!("{}:{}", hop.host, hop.port) == target)
}
