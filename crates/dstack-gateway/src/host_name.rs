//! Host names of services.

use crate::registry::Refusal;

/// Characters of a host name, and of a part of it.
const MOST: usize = 253;
const MOST_OF_LABEL: usize = 63;

/// A host name (RFC 1123), in small letters. Without a port: that is no part of a name. Files are named by it.
///
/// # Errors
/// It is none.
pub(crate) fn host_name(text: &str) -> Result<String, Refusal> {
    match text.len() <= MOST && text.split('.').all(is_label) {
        true => Ok(text.to_ascii_lowercase()),
        false => Err(Refusal::bad(format!("{text:?} is no host name"))),
    }
}

fn is_label(label: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
    (1..=MOST_OF_LABEL).contains(&label.len())
        && label.bytes().all(is_plain)
        && !label.starts_with('-')
        && !label.ends_with('-')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn host_names_are_those_of_rfc_1123() {
        assert_eq!(host_name("Web-1.Example.com").unwrap(), "web-1.example.com");
        assert_eq!(host_name("1").unwrap(), "1");
        let (long_label, long) = ("a".repeat(64), "a.".repeat(126) + "bc");
        for none in [
            "",
            ".",
            "a.",
            "-a.b",
            "a-.b",
            "a_b",
            "a b",
            "a:443",
            "*.a",
            "../a",
            "a/b",
            "ä.b",
            &long_label,
            &long,
        ] {
            assert!(host_name(none).is_err(), "{none}");
        }
        assert!(host_name(&long[1..]).is_err());
        assert!(host_name(&long[2..]).is_ok());
    }
}
