//! A [`Reach`] with its keys, as the SSH client takes it.

use std::sync::Arc;
use std::time::Duration;

use dstack_model::reach::{Hop, KeyRef, Reach};
use dstack_ssh::Endpoint;
use dstack_ssh::keys::{KeyError, parse_private, parse_public};
use dstack_system::{causes_of, task};
use tokio::time::timeout;

use super::Keyring;
use super::error::{KeyProblem, ReachError};

/// The keyring may ask a database; one that does not answer must not hold everybody up.
const KEYRING_LIMIT: Duration = Duration::from_secs(10);

/// All servers on the way with their keys, the host last.
pub(super) async fn of(reach: &Reach, keyring: &dyn Keyring) -> Result<Vec<Endpoint>, ReachError> {
    let mut endpoints = Vec::new();
    for hop in reach.hops() {
        endpoints.push(endpoint(hop, keyring).await?);
    }
    Ok(endpoints)
}

async fn endpoint(hop: &Hop, keyring: &dyn Keyring) -> Result<Endpoint, ReachError> {
    let mut keys = Vec::new();
    for name in &hop.keys {
        let keyring_error = |problem| ReachError::Keyring {
            host: hop.host.clone(),
            problem,
        };
        let found = timeout(KEYRING_LIMIT, keyring.private_key(name)).await;
        let found = found.unwrap_or_else(|_| Err("they were not read in time".to_owned()));
        let Some(secret) = found.map_err(keyring_error)? else {
            continue;
        };
        // Parsing takes as long as a few handshakes when the key is large.
        let parsed = task::blocking("ssh-key", move || parse_private(secret.expose())).await;
        let parsed = parsed.map_err(|_| ReachError::Interrupted)?;
        keys.push(Arc::new(parsed.map_err(|error| unusable(hop, name, &error))?));
    }
    if keys.is_empty() {
        return Err(ReachError::NoKey {
            user: hop.user.clone(),
            host: hop.host.clone(),
        });
    }
    // A key that somebody has accepted is known by its fingerprint only.
    let accepted = hop.host_keys.iter().find(|text| text.starts_with("SHA256:"));
    let lines = hop.host_keys.iter().filter(|text| !text.starts_with("SHA256:"));
    let known = lines.map(|line| {
        parse_public(line).map_err(|_| ReachError::KnownKey {
            host: hop.host.clone(),
            line: line.clone(),
        })
    });
    Ok(Endpoint {
        host: hop.host.clone(),
        port: hop.port,
        user: hop.user.clone(),
        keys,
        host_key: accepted.cloned(),
        known_keys: known.collect::<Result<_, _>>()?,
    })
}

fn unusable(hop: &Hop, name: &KeyRef, error: &KeyError) -> ReachError {
    ReachError::UnusableKey {
        key: match name {
            KeyRef::Project { .. } => "the project's key".to_owned(),
            KeyRef::Host { hostname, .. } => format!("the key that `ssh_config` gives for {hostname}"),
            KeyRef::JumpHost { hostname, .. } => {
                format!("the key that `ssh_config` gives for the jump host of {hostname}")
            }
        },
        host: hop.host.clone(),
        problem: match error {
            KeyError::Passphrase => KeyProblem::Passphrase,
            other => KeyProblem::Format(causes_of(other).to_string()),
        },
    }
}
