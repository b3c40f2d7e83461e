//! Bytes as standard base64 text; `null` is empty.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Deserializer, Serializer};

pub(crate) fn serialize<S: Serializer>(bytes: &[u8], to: S) -> Result<S::Ok, S::Error> {
    to.serialize_str(&STANDARD.encode(bytes))
}

pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<u8>, D::Error> {
    let text = Option::<std::borrow::Cow<'de, str>>::deserialize(from)?.unwrap_or_default();
    STANDARD.decode(text.as_bytes()).map_err(serde::de::Error::custom)
}
