//! SSH keys of users.

use dstack_units::{PublicKeyId, Time};
use serde::Serialize;

use crate::Decode;

/// A user's public key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Decode)]
pub struct PublicKeyInfo {
    /// Its id.
    pub id: PublicKeyId,
    /// Since when.
    pub added_at: Time,
    /// Its name.
    pub name: String,
    /// Its type, e.g. `ssh-ed25519`.
    #[serde(rename = "type")]
    pub kind: String,
    /// `SHA256:…`.
    pub fingerprint: String,
}
