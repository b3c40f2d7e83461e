//! The keys of rows: columns are written and read without anyone at hand who has keys, so the process has them.
//!
//! A process has one server, or several with databases of their own (tests). Each has put its keys here: the latest
//! encrypt, all of them decrypt. Without any, rows are clear text (tools, simulation).

use std::sync::{PoisonError, RwLock};

use dstack_system::Secret;

use super::Encryption;
use crate::{Result, StoreError};

static KEYS: RwLock<Vec<Encryption>> = RwLock::new(Vec::new());

/// From now on, rows are written with these keys. Later changes of them count ([`Encryption::replace`]).
pub fn install(encryption: &Encryption) {
    let mut all = KEYS.write().unwrap_or_else(PoisonError::into_inner);
    all.retain(|known| known.keys() != encryption.keys());
    all.push(encryption.clone());
}

/// Encrypts, if there are keys.
pub(crate) fn seal(text: String) -> String {
    let all = KEYS.read().unwrap_or_else(PoisonError::into_inner);
    match all.last().map(|encryption| encryption.encrypt_json(&text)) {
        None => text,
        Some(Ok(sealed)) => sealed,
        Some(Err(error)) => {
            // Only texts of more than 64 GB cannot be encrypted.
            tracing::error!(%error, "a row cannot be encrypted");
            String::new()
        }
    }
}

/// Decrypts.
pub(crate) fn open(sealed: &str) -> Result<Secret> {
    let all = KEYS.read().unwrap_or_else(PoisonError::into_inner);
    if all.is_empty() {
        // Clear text needs no key.
        return Encryption::new(Vec::new(), dstack_system::Random::seeded(0)).decrypt_json(sealed);
    }
    all.iter()
        .rev()
        .find_map(|encryption| encryption.decrypt_json(sealed).ok())
        .ok_or(StoreError::Undecryptable)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::encryption::Key;
    use dstack_system::Random;

    #[test]
    fn what_any_server_of_the_process_wrote_is_read() {
        let with = |byte: u8| {
            let key = Key::Aes {
                name: "k".into(),
                secret: [byte; 32],
            };
            Encryption::new(vec![key], Random::seeded(u64::from(byte)))
        };
        install(&with(1));
        let first = seal("{}".to_owned());
        assert!(first.starts_with("enc:aes:k:"));
        install(&with(2));
        let second = seal("{}".to_owned());
        assert_eq!(open(&first).unwrap().expose(), "{}");
        assert_eq!(open(&second).unwrap().expose(), "{}");
        assert!(with(2).decrypt_json(&second).is_ok());
    }
}
