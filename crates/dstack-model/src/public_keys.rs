//! SSH keys of users.

use dstack_units::{PublicKeyId, Time};
use serde::Serialize;

use crate::Decode;

/// A user's public key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Decode)]
pub struct PublicKeyInfo {
    /// Id of the key.
    pub id: PublicKeyId,
    /// When it was added.
    pub added_at: Time,
    /// Name that the user gave it, or else the comment of the key.
    pub name: String,
    /// Its type, e.g. `ssh-ed25519`.
    #[serde(rename = "type")]
    pub kind: String,
    /// SHA-256 of the key: `SHA256:<Base64 without padding>`.
    pub fingerprint: String,
}
