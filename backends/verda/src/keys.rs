//! SSH keys: each public key that may log in is a record of its own, which belongs to one machine.

use dstack_backend::{Made, compute_error};
use dstack_compute::{Call, ComputeError, LISTED_WITHIN, Owned, OwnedKind, OwnedMark, Removal};
use serde_json::Value;

use crate::Verda;
use crate::client::SshKey;
use crate::machines::{ENDS_INTERVAL, not_made};

/// How the pieces are called that are noted, each with its number.
const PIECE: &str = "SSH key ";

fn piece(number: usize) -> String {
    format!("{PIECE}{number}")
}

/// As dstack 0.22.5 calls them.
fn record_name(machine: &str, number: usize) -> String {
    format!("{machine}-{number}.key")
}

/// The name of the machine that a key is of.
fn machine_of(record: &str) -> Option<&str> {
    let (machine, _) = record.strip_suffix(".key")?.rsplit_once('-')?;
    Some(machine)
}

impl Verda {
    /// The records.
    pub(crate) async fn make_keys(
        &self,
        machine: &str,
        keys: &[String],
        call: &Call<'_>,
    ) -> Result<Vec<Made>, ComputeError> {
        let mut all = Vec::new();
        for (number, key) in keys.iter().enumerate() {
            let name = record_name(machine, number);
            let create = async || {
                let id = self.client.create_ssh_key(&name, key).await;
                Ok(Made::now(id.map_err(|error| not_made(&error))?, call))
            };
            let find = || self.find_key(&name, call);
            let made: Made = call.make(&piece(number), LISTED_WITHIN, create, find).await?;
            all.push(made);
        }
        Ok(all)
    }

    /// Those that are noted, and the `known` ones of a machine of which nothing was noted.
    pub(crate) async fn unmake_keys(
        &self,
        machine: &str,
        known: &[String],
        call: &Call<'_>,
    ) -> Result<Removal, ComputeError> {
        for number in 0..known.len().max(count(&call.notes())) {
            let (piece, name) = (piece(number), record_name(machine, number));
            let known = known.get(number).map(|id| Made::long_ago(id.clone()));
            let find = || self.find_key(&name, call);
            let delete = async |key: Made| {
                let told = match self.is_listed(&key.id).await? {
                    true => return self.delete_key(&key.id).await,
                    false => Removal::Gone,
                };
                Ok(key.removal(call, told, ENDS_INTERVAL))
            };
            let removal = call.unmake(&piece, known, LISTED_WITHIN, find, delete);
            match removal.await? {
                Removal::Gone => {}
                underway => return Ok(underway),
            }
        }
        Ok(Removal::Gone)
    }

    /// The vendor says that it is done also where it does not know the key.
    pub(crate) async fn delete_key(&self, id: &str) -> Result<Removal, ComputeError> {
        let deleted = self.client.delete_ssh_key(id).await;
        deleted.map_err(|error| compute_error(&error))?;
        Ok(Removal::Gone)
    }

    pub(crate) async fn owned_keys(&self) -> Result<Vec<Owned>, ComputeError> {
        let owned = |key: SshKey| {
            Some(Owned {
                kind: OwnedKind::Piece("SSH key"),
                mark: OwnedMark::of_name(machine_of(&key.name)?)?,
                id: key.id,
                name: key.name,
                region: String::new(),
                price: None,
                made_at: None,
            })
        };
        Ok(self.keys().await?.into_iter().filter_map(owned).collect())
    }

    async fn keys(&self) -> Result<Vec<SshKey>, ComputeError> {
        let all = self.client.ssh_keys().await;
        all.map_err(|error| compute_error(&error))
    }

    async fn is_listed(&self, id: &str) -> Result<bool, ComputeError> {
        Ok(self.keys().await?.iter().any(|key| key.id == id))
    }

    async fn find_key(&self, name: &str, call: &Call<'_>) -> Result<Option<Made>, ComputeError> {
        let all = self.keys().await?;
        let found = all.into_iter().find(|key| key.name == name);
        Ok(found.map(|key| Made::now(key.id, call)))
    }
}

/// How many keys are noted.
fn count(notes: &Value) -> usize {
    let names = notes.as_object().into_iter().flat_map(|notes| notes.keys());
    names.filter(|name| name.starts_with(PIECE)).count()
}
