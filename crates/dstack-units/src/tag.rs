//! Tags of cloud resources.

use crate::error::ParseError;

/// Checks one tag: key `^[_\-a-zA-Z0-9]{1,60}$`, value `^[a-zA-Z0-9 .:/=_\-+@]{0,256}$`.
///
/// # Errors
/// The key or the value does not match.
pub fn check(key: &str, value: &str) -> Result<(), ParseError> {
    if !is_key(key) {
        return Err(ParseError::new(format!(
            r"Invalid tag key {key}. The key must match regex '^[_\-a-zA-Z0-9]{{1,60}}$'"
        )));
    }
    if !is_value(value) {
        return Err(ParseError::new(format!(
            r"Invalid tag value {value}. The value must match regex '^[a-zA-Z0-9 .:/=_\-+@]{{0,256}}$'"
        )));
    }
    Ok(())
}

/// Whether it can be a tag's key.
pub fn is_key(key: &str) -> bool {
    (1..=60).contains(&key.len())
        && key
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'-')
}

/// Whether it can be a tag's value.
pub fn is_value(value: &str) -> bool {
    value.len() <= 256
        && value
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || b" .:/=_-+@".contains(&b))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages() {
        assert_eq!(check("team", "a b/c=1"), Ok(()));
        assert_eq!(
            check("bad key!", "").unwrap_err().message(),
            r"Invalid tag key bad key!. The key must match regex '^[_\-a-zA-Z0-9]{1,60}$'"
        );
        assert_eq!(
            check("k", "ü").unwrap_err().message(),
            r"Invalid tag value ü. The value must match regex '^[a-zA-Z0-9 .:/=_\-+@]{0,256}$'"
        );
    }
}
