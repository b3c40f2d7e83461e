//! How an agent is reached over SSH, as data: the hops on the way, and for each of them the user, which keys open it, and
//! which host key it must show. No secret stands here: keys are named, and looked up when a connection is made.

use dstack_units::{FleetId, ProjectId};
use serde::{Deserialize, Serialize};

/// The way to a host.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Reach {
    /// SSH servers that are passed on the way, nearest first; empty for a host that is reached directly.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub jumps: Vec<Hop>,
    /// The host itself.
    pub host: Hop,
}

/// One SSH server.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Hop {
    /// Host name or address, as seen from the hop before it.
    pub host: String,
    /// TCP port of the SSH server.
    pub port: u16,
    /// Name of the user to log in as.
    pub user: String,
    /// Keys that are offered, in this order.
    pub keys: Vec<KeyRef>,
    /// Public keys of which the server must show one, each a line `type base64`; or the fingerprint (`SHA256:...`) of the one that
    /// somebody has accepted. Empty: not known yet, the first one that is seen is taken.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub host_keys: Vec<String>,
}

/// Names a private key.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(tag = "of", rename_all = "kebab-case")]
pub enum KeyRef {
    /// The key pair of a project.
    Project {
        /// Id of the project.
        project: ProjectId,
    },
    /// The key that a fleet's `ssh_config` gives for a host.
    Host {
        /// Id of the fleet.
        fleet: FleetId,
        /// The host, as `ssh_config` names it.
        hostname: String,
    },
    /// The key that a fleet's `ssh_config` gives for the jump host of a host; that of the host where it gives none.
    JumpHost {
        /// Id of the fleet.
        fleet: FleetId,
        /// The host behind the jump host, as `ssh_config` names it.
        hostname: String,
    },
}

impl Reach {
    /// All SSH servers on the way, the host last.
    pub fn hops(&self) -> impl Iterator<Item = &Hop> {
        self.jumps.iter().chain(std::iter::once(&self.host))
    }

    /// As [`Reach::hops`], for pinning host keys.
    pub fn hops_mut(&mut self) -> impl Iterator<Item = &mut Hop> {
        self.jumps.iter_mut().chain(std::iter::once(&mut self.host))
    }
}
