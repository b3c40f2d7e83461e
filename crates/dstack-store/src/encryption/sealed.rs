//! Columns that are encrypted as a whole, and the keys with which rows are written and read.

use std::ops::Deref;
use std::sync::Arc;

use dstack_system::{Random, Secret};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::{Encryption, Key};
use crate::entity::{ColumnError, RowColumn};
use crate::{Column, Json, Result};

/// The keys of a database's sealed columns. Whoever writes or reads rows is handed them; later changes of the keys count
/// ([`Encryption::replace`]).
#[derive(Debug, Clone)]
pub struct RowKeys(Option<Encryption>);

impl From<&Encryption> for RowKeys {
    fn from(encryption: &Encryption) -> Self {
        Self(Some(encryption.clone()))
    }
}

impl RowKeys {
    /// No keys: sealed columns are written as clear text, and only clear text can be read. For tests and the simulation
    /// alone: `clippy.toml` keeps everybody else away.
    pub const fn none() -> Self {
        Self(None)
    }

    /// The keys in force; `None` where there are none.
    fn in_force(&self) -> Option<Arc<[Key]>> {
        self.0.as_ref().map(Encryption::keys)
    }

    /// The text as it is stored.
    fn seal(&self, text: String) -> String {
        match self.0.as_ref().map(|encryption| encryption.encrypt_json(&text)) {
            None => text,
            Some(Ok(sealed)) => sealed,
            Some(Err(error)) => {
                // Only texts of more than 64 GB cannot be encrypted.
                tracing::error!(%error, "a row cannot be encrypted");
                String::new()
            }
        }
    }

    /// What [`Self::seal`] has made.
    fn open(&self, stored: &str) -> Result<Secret> {
        match &self.0 {
            Some(encryption) => encryption.decrypt_json(stored),
            // What was written by a server whose key is `identity` needs none.
            None => Encryption::new(Vec::new(), Random::seeded(0)).decrypt_json(stored),
        }
    }
}

/// A text as it was read, and the keys that were in force then.
#[derive(Clone)]
struct StoredText {
    text: Arc<str>,
    keys: Arc<[Key]>,
}

impl StoredText {
    /// Of a text that would be encrypted with the same key now; `None` where it would be stored in another way.
    fn reusable(text: String, keys: &RowKeys) -> Option<Self> {
        let keys = keys.in_force()?;
        let Some(first @ Key::Aes { name, .. }) = keys.first() else {
            return None;
        };
        let sealed_with = text.strip_prefix("enc:aes:")?.split(':').next()?;
        // The text names its key, and not which of several of that name.
        let is_known = keys.iter().all(|key| key.name() != name || key == first);
        (sealed_with == name && is_known).then(|| Self {
            text: text.into(),
            keys,
        })
    }

    /// The text, as long as the keys are those with which it was read.
    fn under(&self, keys: &RowKeys) -> Option<String> {
        let same = Arc::ptr_eq(&self.keys, &keys.in_force()?);
        same.then(|| (*self.text).to_owned())
    }
}

/// As [`Json`], encrypted as a whole: for what users, or clouds, put secrets into (environment variables, credentials of
/// registries, keys). Clear text, which was written before the column was sealed, is read as well.
///
/// A value that was read keeps its encrypted text, so that a row whose other columns change is written without encrypting it
/// again. `Debug` shows nothing of it.
pub struct Sealed<T> {
    value: Json<T>,
    stored: Option<StoredText>,
}

impl<T> Sealed<T> {
    /// Wraps a value.
    pub fn new(value: T) -> Self {
        Self {
            value: Json::new(value),
            stored: None,
        }
    }
}

impl<T> std::fmt::Debug for Sealed<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Sealed(..)")
    }
}

impl<T: PartialEq> PartialEq for Sealed<T> {
    fn eq(&self, other: &Self) -> bool {
        self.value == other.value
    }
}

impl<T> Clone for Sealed<T> {
    fn clone(&self) -> Self {
        Self {
            value: self.value.clone(),
            stored: self.stored.clone(),
        }
    }
}

impl<T> Deref for Sealed<T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.value
    }
}

impl<T: Serialize + DeserializeOwned> RowColumn for Sealed<T> {
    type Stored = String;
    const SEALED: bool = true;
    fn to_stored(&self, keys: &RowKeys) -> String {
        let as_read = self.stored.as_ref().and_then(|stored| stored.under(keys));
        as_read.unwrap_or_else(|| keys.seal(self.value.to_raw()))
    }
    fn from_stored(stored: String, keys: &RowKeys) -> Result<Self, ColumnError> {
        // JSON never begins so.
        if !stored.starts_with("enc:") {
            let value = Json::from_raw(stored)?;
            return Ok(Self { value, stored: None });
        }
        Ok(Self {
            value: Json::from_raw(keys.open(&stored)?.expose().to_owned())?,
            stored: StoredText::reusable(stored, keys),
        })
    }
    fn is_unchanged(&self) -> bool {
        self.value.is_as_read()
    }
}

impl<T: Serialize + DeserializeOwned> RowColumn for Option<Sealed<T>> {
    type Stored = Option<String>;
    const SEALED: bool = true;
    fn to_stored(&self, keys: &RowKeys) -> Option<String> {
        self.as_ref().map(|value| value.to_stored(keys))
    }
    fn from_stored(stored: Option<String>, keys: &RowKeys) -> Result<Self, ColumnError> {
        stored.map(|stored| Sealed::from_stored(stored, keys)).transpose()
    }
}

#[cfg(test)]
#[allow(clippy::disallowed_methods)] // databases without keys
mod tests {
    use super::*;

    fn keys(byte: u8) -> RowKeys {
        let key = Key::Aes {
            name: "k".into(),
            secret: [byte; 32],
        };
        RowKeys::from(&Encryption::new(vec![key], Random::seeded(u64::from(byte))))
    }

    fn read(stored: &str, keys: &RowKeys) -> Result<Sealed<Vec<String>>, ColumnError> {
        Sealed::from_stored(stored.to_owned(), keys)
    }

    #[test]
    fn what_is_written_with_a_key_is_read_with_it_alone() {
        let value = Sealed::new(vec!["s3cret".to_owned()]);
        let stored = value.to_stored(&keys(1));
        assert!(stored.starts_with("enc:aes:k:"), "{stored}");
        assert_eq!(read(&stored, &keys(1)).unwrap(), value);
        assert!(read(&stored, &keys(2)).is_err() && read(&stored, &RowKeys::none()).is_err());
    }

    #[test]
    fn clear_text_is_read_with_and_without_keys() {
        for keys in [keys(1), RowKeys::none()] {
            for stored in [r#"["s3cret"]"#, r#"enc:identity:noname:["s3cret"]"#] {
                assert_eq!(*read(stored, &keys).unwrap(), ["s3cret"], "{stored}");
            }
        }
        assert_eq!(Sealed::new(1).to_stored(&RowKeys::none()), "1");
    }

    #[test]
    fn what_is_as_read_is_written_as_it_was_until_the_keys_change() {
        let aes = |name: &str, byte: u8| Key::Aes {
            name: name.to_owned(),
            secret: [byte; 32],
        };
        let encryption = Encryption::new(vec![aes("k", 1)], Random::seeded(1));
        let (other, keys) = (keys(2), RowKeys::from(&encryption));
        let stored = Sealed::new(vec!["s3cret".to_owned()]).to_stored(&keys);
        let value = read(&stored, &keys).unwrap();
        assert_eq!(value.clone().to_stored(&keys), stored);

        // Another database may have another key of the same name.
        assert_ne!(value.to_stored(&other), stored);
        assert_eq!(read(&value.to_stored(&other), &other).unwrap(), value);
        assert_eq!(value.to_stored(&RowKeys::none()), r#"["s3cret"]"#);

        encryption.replace(vec![aes("new", 2), aes("k", 1)]);
        assert!(value.to_stored(&keys).starts_with("enc:aes:new:"));
        let read_after = read(&stored, &keys).unwrap();
        assert!(read_after.to_stored(&keys).starts_with("enc:aes:new:"));

        let clear = read(r#"["s3cret"]"#, &keys).unwrap();
        assert!(clear.to_stored(&keys).starts_with("enc:aes:new:"));
    }

    #[test]
    fn what_another_key_of_the_same_name_has_made_is_encrypted_anew() {
        let aes = |byte: u8| Key::Aes {
            name: "k".to_owned(),
            secret: [byte; 32],
        };
        let encryption = Encryption::new(vec![aes(1)], Random::seeded(1));
        let keys = RowKeys::from(&encryption);
        let stored = Sealed::new(vec!["s3cret".to_owned()]).to_stored(&keys);
        encryption.replace(vec![aes(2), aes(1)]);
        let anew = read(&stored, &keys).unwrap().to_stored(&keys);
        encryption.replace(vec![aes(2)]);
        assert_eq!(*read(&anew, &keys).unwrap(), ["s3cret"]);
    }

    #[test]
    fn nothing_of_it_is_printed() {
        let value = Sealed::new(vec!["s3cret".to_owned()]);
        assert_eq!(format!("{value:?}"), "Sealed(..)");
    }
}
