//! Secrets of projects.

use std::collections::BTreeSet;

use dstack_model::ErrorCode;
use dstack_store::events;
use dstack_store::queries::secrets::SecretRow;
use dstack_store::writes::Change;
use dstack_units::ProjectId;
use dstack_units::name::is_secret_name;

use crate::core::{Actor, retry_on_conflict};
use crate::directory::Directory;
use crate::error::{ControlError, Result};

/// Characters of a value.
const MAX_LENGTH: usize = 5000;

const BUSY: &str = "The secret is being changed by others. Try again";

/// The verbs of secrets.
#[derive(Debug, Clone)]
pub struct Secrets(Directory);

impl Secrets {
    /// On this database.
    pub fn new(directory: Directory) -> Self {
        Self(directory)
    }

    /// Creates a secret, or replaces its value.
    ///
    /// # Errors
    /// The name cannot be one, or the value is too long.
    pub async fn put(&self, actor: Actor, project: ProjectId, name: &str, value: &str) -> Result<SecretRow> {
        if !is_secret_name(name) {
            // The quote is missing in the reference, too.
            return Err(ControlError::refused(
                "Secret name should match regex '^[A-Za-z0-9-_]{1,200}$",
            ));
        }
        if value.chars().count() > MAX_LENGTH {
            return Err(ControlError::refused(format!(
                "Secret value length must not exceed {MAX_LENGTH}"
            )));
        }
        retry_on_conflict(BUSY, || self.try_put(actor, project, name, value)).await
    }

    async fn try_put(&self, actor: Actor, project: ProjectId, name: &str, value: &str) -> Result<SecretRow> {
        let now = self.0.now();
        let old = self.0.database.secrets().by_name(project, name).await?;
        let is_same = |old: &SecretRow| {
            let stored = self.0.encryption.decrypt(&old.value);
            stored.is_ok_and(|stored| stored.expose() == value)
        };
        if let Some(old) = old.as_ref().filter(|old| is_same(old)) {
            return Ok(old.clone());
        }
        let encrypted = self.0.encryption.encrypt(value)?;
        let (row, message) = match old {
            Some(old) => {
                let row = SecretRow {
                    value: encrypted,
                    updated_at: now,
                    ..old
                };
                (row, "Secret updated")
            }
            None => {
                let row = SecretRow {
                    id: self.0.random.uuid().into(),
                    project_id: project,
                    created_at: now,
                    updated_at: now,
                    name: name.to_owned(),
                    value: encrypted,
                };
                (row, "Secret created")
            }
        };
        let mut work = self.0.work(actor);
        work.change(Change::PutSecret(row.clone()));
        work.event(message, vec![events::secret(&row)]);
        self.0.finish(work).await?;
        Ok(row)
    }

    /// Deletes the secrets of these names.
    ///
    /// # Errors
    /// One of them is not there: none is deleted.
    pub async fn delete(&self, actor: Actor, project: ProjectId, names: &[String]) -> Result<()> {
        let mut work = self.0.work(actor);
        let mut unknown = Vec::new();
        let names: BTreeSet<&String> = names.iter().collect();
        for name in names {
            match self.0.database.secrets().by_name(project, name).await? {
                None => unknown.push(name.as_str()),
                Some(row) => {
                    work.event("Secret deleted", vec![events::secret(&row)]);
                    work.change(Change::DeleteSecret(row.id));
                }
            }
        }
        if !unknown.is_empty() {
            let text = format!("Secrets not found: {}", unknown.join(", "));
            return Err(ControlError::with_code(ErrorCode::ResourceNotExists, text));
        }
        self.0.finish(work).await
    }
}
