use dstack_backend::bare_key;
use dstack_compute::ComputeError;
use serde_json::Value as Json;
use sha2::{Digest as _, Sha256};

use crate::backend::Machines;
use crate::manifest::SshKey;
use crate::template::Item;

impl Machines {
    /// By what the account knows a public key, which is registered if it has to be. All machines with this key share it, also those of
    /// other servers: it is never removed. Asked for once.
    ///
    /// # Errors
    /// It cannot be asked for, or not be registered.
    pub(crate) async fn known_key(&self, rules: &SshKey, key: &str) -> Result<Json, ComputeError> {
        let mut known = self.keys.lock().await;
        if let Some(id) = known.get(key) {
            return Ok(id.clone());
        }
        let id = self.registered_key(rules, key).await?;
        known.insert(key.to_owned(), id.clone());
        Ok(id)
    }

    async fn registered_key(&self, rules: &SshKey, key: &str) -> Result<Json, ComputeError> {
        if let Some(id) = self.id_of_key(rules, key).await? {
            return Ok(id);
        }
        let scope = self.scope.with("key", key).with("key_name", key_name(key));
        let added = self.client.send_for_any_answer(&rules.add, &scope).await;
        // Another server may have registered it meanwhile.
        match (self.id_of_key(rules, key).await?, added) {
            (Some(id), _) => Ok(id),
            (None, Err(failure)) => Err(failure.into()),
            (None, Ok(())) => Err(ComputeError::NotReady(format!(
                "{} does not list the public key yet that it has registered",
                self.title()
            ))),
        }
    }

    async fn id_of_key(&self, rules: &SshKey, key: &str) -> Result<Option<Json>, ComputeError> {
        let keys = self.client.list(&rules.list, &self.scope).await?;
        let is_same = |item: &Item<'_>| {
            rules
                .key
                .text(item)
                .is_some_and(|other| bare_key(&other) == bare_key(key))
        };
        let mut items = keys.iter().map(|entry| Item::new(entry, &self.scope));
        match items.find(is_same) {
            None => Ok(None),
            Some(item) => match rules.id.find(&item) {
                Some(id) => Ok(Some(id)),
                None => Err(self.unread("a public key", "machine.ssh_key.id", &rules.id)),
            },
        }
    }
}

/// The name that a key gets, the same at each server.
fn key_name(key: &str) -> String {
    let digest = hex::encode(Sha256::digest(bare_key(key)));
    let digits: String = digest.chars().take(16).collect();
    format!("dstack-{digits}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_has_one_name_whatever_its_comment_is() {
        let name = key_name("ssh-ed25519 AAAA somebody");
        assert_eq!(name, key_name("ssh-ed25519  AAAA"));
        assert_ne!(name, key_name("ssh-ed25519 AAAB"));
    }
}
