//! Secrets of projects.

use dstack_units::SecretId;
use serde::Serialize;

use crate::Decode;

/// A secret of a project.
#[derive(Clone, PartialEq, Eq, Serialize, Decode)]
pub struct Secret {
    /// Id of the secret.
    pub id: SecretId,
    /// Name, unique within the project: `^[A-Za-z0-9-_]{1,200}$`.
    pub name: String,
    /// Its value; unset in lists.
    pub value: Option<String>,
}

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Secret")
            .field("id", &self.id)
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}
