//! Secrets at rest: `enc:<type>:<key name>:<payload>`, as dstack 0.22.5 writes them.

mod packed;
mod sealed;

use std::sync::{Arc, PoisonError, RwLock};

use aes_gcm::aead::Aead;
use aes_gcm::{Aes256Gcm, KeyInit};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use dstack_system::{Random, Secret};

use crate::{Result, StoreError};

pub use sealed::{RowKeys, Sealed};

/// One configured key.
#[derive(Clone, PartialEq, Eq)]
pub enum Key {
    /// Stores clear text, marked as `enc:identity`.
    Identity,
    /// Encrypts with AES-256-GCM and a fresh nonce.
    Aes {
        /// Name in `encryption.keys`, letters and digits: stored with each value.
        name: String,
        /// The key itself.
        secret: [u8; 32],
    },
}

impl Key {
    /// The name of the key, for people.
    pub fn name(&self) -> &str {
        match self {
            Self::Identity => "identity",
            Self::Aes { name, .. } => name,
        }
    }
}

impl std::fmt::Debug for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Key({})", self.name())
    }
}

/// Encrypts with the first key, decrypts with whichever fits. Clones share the keys.
#[derive(Clone)]
pub struct Encryption {
    keys: Arc<RwLock<Arc<[Key]>>>,
    random: Random,
}

impl std::fmt::Debug for Encryption {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Encryption({:?})", self.keys())
    }
}

impl Encryption {
    /// With these keys, first the one to encrypt with; none = clear text.
    pub fn new(keys: Vec<Key>, random: Random) -> Self {
        Self {
            keys: Arc::new(RwLock::new(keys.into())),
            random,
        }
    }

    /// The keys in force.
    pub fn keys(&self) -> Arc<[Key]> {
        Arc::clone(&self.keys.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Other keys from now on, for all clones.
    pub fn replace(&self, keys: Vec<Key>) {
        *self.keys.write().unwrap_or_else(PoisonError::into_inner) = keys.into();
    }

    /// Encrypts a text for storing.
    pub fn encrypt(&self, text: &str) -> Result<String> {
        self.seal(text, || text.as_bytes().to_vec())
    }

    /// The same for JSON, made short first.
    fn encrypt_json(&self, json: &str) -> Result<String> {
        self.seal(json, || packed::pack(json))
    }

    /// `bytes` is what is encrypted where there is a key.
    fn seal(&self, text: &str, bytes: impl FnOnce() -> Vec<u8>) -> Result<String> {
        match self.keys().first() {
            None | Some(Key::Identity) => Ok(format!("enc:identity:noname:{text}")),
            Some(Key::Aes { name, secret }) => {
                let cipher = Aes256Gcm::new(secret.into());
                let nonce: [u8; 12] = self.random.bytes();
                let sealed = cipher
                    .encrypt(&nonce.into(), bytes().as_slice())
                    .map_err(|_| StoreError::Undecryptable)?;
                let payload = [nonce.as_slice(), &sealed].concat();
                Ok(format!("enc:aes:{name}:{}", STANDARD.encode(payload)))
            }
        }
    }

    /// Reads a stored text back. Clear text can always be read.
    pub fn decrypt(&self, stored: &str) -> Result<Secret> {
        self.unseal(stored, |bytes| String::from_utf8(bytes).ok())
    }

    /// What [`Self::encrypt_json`] has made, or [`Self::encrypt`] in rows of before.
    pub(crate) fn decrypt_json(&self, stored: &str) -> Result<Secret> {
        self.unseal(stored, packed::unpack)
    }

    fn unseal(&self, stored: &str, text: impl Fn(Vec<u8>) -> Option<String>) -> Result<Secret> {
        let mut parts = stored.splitn(4, ':');
        match (parts.next(), parts.next(), parts.next(), parts.next()) {
            (Some("enc"), Some("identity"), Some(_), Some(text)) => Ok(Secret::new(text)),
            (Some("enc"), Some("aes"), Some(_), Some(payload)) => self.open(payload, text),
            _ => Err(StoreError::Undecryptable),
        }
    }

    fn open(&self, payload: &str, text: impl Fn(Vec<u8>) -> Option<String>) -> Result<Secret> {
        let bytes = STANDARD.decode(payload).map_err(|_| StoreError::Undecryptable)?;
        let (nonce, sealed) = bytes.split_first_chunk::<12>().ok_or(StoreError::Undecryptable)?;
        self.keys()
            .iter()
            .filter_map(|key| match key {
                Key::Aes { secret, .. } => Some(Aes256Gcm::new(secret.into())),
                Key::Identity => None,
            })
            .find_map(|cipher| cipher.decrypt(&(*nonce).into(), sealed).ok())
            .and_then(text)
            .map(Secret::new)
            .ok_or(StoreError::Undecryptable)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn aes(byte: u8) -> Key {
        Key::Aes {
            name: "k".into(),
            secret: [byte; 32],
        }
    }

    #[test]
    fn a_rotated_key_still_decrypts() {
        let old = Encryption::new(vec![aes(1)], Random::seeded(1));
        let stored = old.encrypt("s3cret").unwrap();
        assert!(stored.starts_with("enc:aes:k:") && !stored.contains("s3cret"));
        let new = Encryption::new(vec![aes(2), aes(1), Key::Identity], Random::seeded(2));
        assert_eq!(new.decrypt(&stored).unwrap().expose(), "s3cret");
        let lost = Encryption::new(vec![aes(2)], Random::seeded(2));
        assert!(matches!(lost.decrypt(&stored), Err(StoreError::Undecryptable)));
    }

    #[test]
    fn clones_share_the_keys_and_none_prints_them() {
        let keys = Encryption::new(vec![aes(1)], Random::seeded(1));
        let (clone, old) = (keys.clone(), keys.encrypt("s3cret").unwrap());
        keys.replace(vec![Key::Identity, aes(1)]);
        assert_eq!(clone.encrypt("x").unwrap(), "enc:identity:noname:x");
        assert_eq!(clone.decrypt(&old).unwrap().expose(), "s3cret");
        assert_eq!(format!("{clone:?}"), "Encryption([Key(identity), Key(k)])");
    }

    #[test]
    fn clear_text_may_contain_colons() {
        let none = Encryption::new(vec![], Random::seeded(1));
        assert_eq!(
            none.decrypt(&none.encrypt("a:b:c").unwrap()).unwrap().expose(),
            "a:b:c"
        );
        assert!(none.decrypt("plain").is_err());
    }
}
