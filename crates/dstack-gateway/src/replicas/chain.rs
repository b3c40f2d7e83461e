//! The SSH servers on the way to a replica, with their keys.

use std::sync::Arc;

use dstack_ssh::keys::{KeyError, parse_private};
use dstack_ssh::{ConnectOptions, Connection, Endpoint, SshError};
use dstack_system::{Secret, task};

use crate::state::{ReplicaRecord, SshHop};

/// Logs in where a destination names nobody.
const DEFAULT_USER: &str = "root";

/// Why there is no way to a replica.
#[derive(Debug, thiserror::Error)]
pub enum ChainError {
    /// A key cannot be used.
    #[error("the private key for {host} cannot be used")]
    Key {
        /// Of which SSH server.
        host: String,
        /// What is wrong with it.
        #[source]
        source: KeyError,
    },
    /// No key at all.
    #[error("there is no private key for {0}")]
    NoKey(String),
    /// The key could not be read.
    #[error(transparent)]
    Panicked(#[from] task::Panicked),
}

/// The SSH servers on the way, the replica's own last.
#[derive(Debug, Clone)]
pub struct Chain {
    jumps: Vec<Endpoint>,
    host: Endpoint,
}

impl Chain {
    /// The way to a replica of a project with this key. The first server on the way has a key of its own, the second may have. Blocks: a
    /// key takes as long as a few handshakes when it is large.
    ///
    /// # Errors
    /// A key cannot be used.
    pub fn read(replica: &ReplicaRecord, project_key: &Secret) -> Result<Self, ChainError> {
        let mut jumps = Vec::new();
        if let Some(hop) = &replica.ssh_head_proxy {
            let own = replica.ssh_head_proxy_private_key.as_ref();
            jumps.push(jump(hop, own, project_key)?);
        }
        if let Some(hop) = &replica.ssh_proxy {
            let own = replica.ssh_proxy_private_key.as_ref();
            jumps.push(jump(hop, own, project_key)?);
        }
        let (user, host) = destination(&replica.ssh_host);
        let host = endpoint(host, replica.ssh_port, user, project_key)?;
        Ok(Self { jumps, host })
    }

    /// As [`Self::read`], off the threads that serve.
    ///
    /// # Errors
    /// As there.
    pub async fn of(replica: &ReplicaRecord, project_key: &Secret) -> Result<Self, ChainError> {
        let (replica, key) = (replica.clone(), project_key.clone());
        task::blocking("ssh-keys", move || Self::read(&replica, &key)).await?
    }

    /// Host and port of the first server.
    pub fn first_host(&self) -> String {
        let first = self.jumps.first().unwrap_or(&self.host);
        format!("{}:{}", first.host, first.port)
    }

    /// Connects and logs in at all of them.
    ///
    /// # Errors
    /// One of them cannot be reached, or lets nobody in.
    pub async fn open(&self, options: &ConnectOptions) -> Result<Connection, SshError> {
        Connection::open(&self.host, &self.jumps, options).await
    }
}

fn jump(hop: &SshHop, own: Option<&Secret>, project_key: &Secret) -> Result<Endpoint, ChainError> {
    let key = own.unwrap_or(project_key);
    endpoint(&hop.hostname, hop.port, &hop.username, key)
}

fn endpoint(host: &str, port: u16, user: &str, key: &Secret) -> Result<Endpoint, ChainError> {
    if key.expose().trim().is_empty() {
        return Err(ChainError::NoKey(host.to_owned()));
    }
    let key = parse_private(key.expose()).map_err(|source| ChainError::Key {
        host: host.to_owned(),
        source,
    })?;
    Ok(Endpoint {
        host: host.to_owned(),
        port,
        user: user.to_owned(),
        keys: vec![Arc::new(key)],
        host_key: None,
        known_keys: Vec::new(),
    })
}

/// User and host of `user@host`.
fn destination(text: &str) -> (&str, &str) {
    text.rsplit_once('@').unwrap_or((DEFAULT_USER, text))
}

#[cfg(test)]
mod tests {
    use dstack_ssh::keys::generate_ed25519;
    use dstack_system::Random;

    use super::*;

    fn key() -> Secret {
        generate_ed25519(&Random::system(), "test").unwrap().private
    }

    fn hop(hostname: &str) -> SshHop {
        SshHop {
            hostname: hostname.to_owned(),
            username: "ubuntu".to_owned(),
            port: 2222,
        }
    }

    fn replica() -> ReplicaRecord {
        ReplicaRecord {
            job_id: "a".to_owned(),
            app_port: 80,
            ssh_host: "me@localhost".to_owned(),
            ssh_port: 10022,
            ssh_proxy: None,
            ssh_proxy_private_key: None,
            ssh_head_proxy: None,
            ssh_head_proxy_private_key: None,
            internal_ip: None,
        }
    }

    /// User, host, port and whether the key is this one, of each server on the way.
    fn hops(chain: &Chain, key: &Secret) -> Vec<(String, bool)> {
        let key = parse_private(key.expose()).unwrap();
        let all = chain.jumps.iter().chain([&chain.host]);
        let is_this = |endpoint: &Endpoint| endpoint.keys[0].public_key() == key.public_key();
        all.map(|endpoint| {
            let name = format!("{}@{}:{}", endpoint.user, endpoint.host, endpoint.port);
            (name, is_this(endpoint))
        })
        .collect()
    }

    #[test]
    fn each_server_on_the_way_is_opened_by_its_key() {
        let (ours, head) = (key(), key());
        let record = ReplicaRecord {
            ssh_proxy: Some(hop("instance")),
            ssh_head_proxy: Some(hop("head")),
            ssh_head_proxy_private_key: Some(head.clone()),
            ..replica()
        };
        let chain = Chain::read(&record, &ours).unwrap();
        let expected = [
            ("ubuntu@head:2222".to_owned(), false),
            ("ubuntu@instance:2222".to_owned(), true),
            ("me@localhost:10022".to_owned(), true),
        ];
        assert_eq!(hops(&chain, &ours), expected);
        let record = ReplicaRecord {
            ssh_proxy: Some(hop("instance")),
            ssh_proxy_private_key: Some(head),
            ssh_host: "bare".to_owned(),
            ..replica()
        };
        let chain = Chain::read(&record, &ours).unwrap();
        let expected = [
            ("ubuntu@instance:2222".to_owned(), false),
            ("root@bare:10022".to_owned(), true),
        ];
        assert_eq!(hops(&chain, &ours), expected);
    }

    #[test]
    fn keys_that_cannot_be_used_are_told() {
        let error = Chain::read(&replica(), &Secret::new("nonsense")).unwrap_err();
        assert!(matches!(error, ChainError::Key { .. }), "{error:?}");
        let error = Chain::read(&replica(), &Secret::default()).unwrap_err();
        assert!(matches!(error, ChainError::NoKey(_)), "{error:?}");
    }
}
