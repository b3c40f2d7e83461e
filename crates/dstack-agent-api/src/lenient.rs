//! Decoding in which `null` means the zero value, also inside lists and maps.

use std::collections::BTreeMap;

use dstack_units::LoginName;
use serde::{Deserialize, Deserializer};

/// A value, or its default when it is `null`.
pub(crate) fn zero<'de, D: Deserializer<'de>, T: Deserialize<'de> + Default>(from: D) -> Result<T, D::Error> {
    Ok(Option::<T>::deserialize(from)?.unwrap_or_default())
}

/// A list, empty when it is `null`; `null` elements become defaults.
pub(crate) fn list<'de, D: Deserializer<'de>, T: Deserialize<'de> + Default>(
    from: D,
) -> Result<Vec<T>, D::Error> {
    let list = Option::<Vec<Option<T>>>::deserialize(from)?.unwrap_or_default();
    Ok(list.into_iter().map(Option::unwrap_or_default).collect())
}

/// A map, empty when it is `null`; `null` values become defaults.
pub(crate) fn map<'de, D: Deserializer<'de>, T: Deserialize<'de> + Default>(
    from: D,
) -> Result<BTreeMap<String, T>, D::Error> {
    let map = Option::<BTreeMap<String, Option<T>>>::deserialize(from)?.unwrap_or_default();
    Ok(map
        .into_iter()
        .map(|(key, value)| (key, value.unwrap_or_default()))
        .collect())
}

/// The name of a user in a container, which may be anything. One that is no name becomes empty: the job goes on without.
pub(crate) fn login_name<'de, D: Deserializer<'de>>(from: D) -> Result<String, D::Error> {
    let name: String = zero(from)?;
    match name.parse::<LoginName>() {
        Ok(_) => Ok(name),
        Err(_) => Ok(String::new()),
    }
}
