//! Columns that are encrypted as a whole, and the keys with which rows are written and read.

use std::ops::Deref;

use dstack_system::{Random, Secret};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::Encryption;
use crate::entity::{ColumnError, RowColumn};
use crate::{Column, Json, Result};

/// The keys of a database's sealed columns. Whoever writes or reads rows is handed them; later changes of the keys count
/// ([`Encryption::replace`]).
#[derive(Debug, Clone, Default)]
pub struct RowKeys(Option<Encryption>);

impl From<&Encryption> for RowKeys {
    fn from(encryption: &Encryption) -> Self {
        Self(Some(encryption.clone()))
    }
}

impl RowKeys {
    /// No keys: sealed columns are written as clear text, and only clear text can be read. For tools, the simulation, and
    /// rows without sealed columns.
    pub const fn none() -> Self {
        Self(None)
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

/// As [`Json`], encrypted as a whole: for what users, or clouds, put secrets into (environment variables, credentials of
/// registries, keys). Clear text, which was written before the column was sealed, is read as well.
#[derive(Debug)]
pub struct Sealed<T>(Json<T>);

impl<T> Sealed<T> {
    /// Wraps a value.
    pub fn new(value: T) -> Self {
        Self(Json::new(value))
    }
}

impl<T: PartialEq> PartialEq for Sealed<T> {
    fn eq(&self, other: &Self) -> bool {
        self.0 == other.0
    }
}

impl<T> Clone for Sealed<T> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<T> Deref for Sealed<T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T: Serialize + DeserializeOwned> RowColumn for Sealed<T> {
    type Stored = String;
    const SEALED: bool = true;
    fn to_stored(&self, keys: &RowKeys) -> String {
        keys.seal(self.0.to_raw())
    }
    fn from_stored(stored: String, keys: &RowKeys) -> Result<Self, ColumnError> {
        // JSON never begins so.
        let text = match stored.starts_with("enc:") {
            true => Json::from_raw(keys.open(&stored)?.expose().to_owned()),
            false => Json::from_raw(stored),
        };
        Ok(Self(text?))
    }
    fn is_unchanged(&self) -> bool {
        self.0.is_as_read()
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
mod tests {
    use super::*;
    use crate::encryption::Key;

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
}
