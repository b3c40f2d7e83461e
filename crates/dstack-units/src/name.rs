//! Which names are allowed. Each check answers yes or no; the messages are those of dstack 0.22.5.
//!
//! Python's `$` also matches before one last newline, so dstack 0.22.5 lets `name\n` pass; we refuse it: a newline in
//! a name breaks file names and configuration lines.

use crate::error::ParseError;

/// Refusal of a resource name.
pub const RESOURCE_NAME_MESSAGE: &str = "Resource name should match regex '^[a-z][a-z0-9-]{1,40}$'";

/// Names of runs, fleets, volumes, gateways and exports: `^[a-z][a-z0-9-]{1,40}$`.
pub fn is_resource_name(name: &str) -> bool {
    name.starts_with(|c: char| c.is_ascii_lowercase())
        && (2..=41).contains(&name.len())
        && name
            .bytes()
            .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
}

/// Checks a resource name.
///
/// # Errors
/// [`RESOURCE_NAME_MESSAGE`].
pub fn check_resource_name(name: &str) -> Result<(), ParseError> {
    if is_resource_name(name) {
        Ok(())
    } else {
        Err(ParseError::new(RESOURCE_NAME_MESSAGE))
    }
}

/// Names of replica and node groups: `^[a-z0-9][a-z0-9-]{0,39}$`.
pub fn is_group_name(name: &str) -> bool {
    name.starts_with(|c: char| c.is_ascii_lowercase() || c.is_ascii_digit())
        && (1..=40).contains(&name.len())
        && name
            .bytes()
            .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
}

/// User names: `^[a-zA-Z0-9-_]{1,60}$`.
pub fn is_user_name(name: &str) -> bool {
    is_word(name, 60)
}

/// Project names: `^[a-zA-Z0-9-_]{1,50}$`.
pub fn is_project_name(name: &str) -> bool {
    is_word(name, 50)
}

/// Secret names: `^[A-Za-z0-9-_]{1,200}$`.
pub fn is_secret_name(name: &str) -> bool {
    is_word(name, 200)
}

/// A part of a name to search for: `^[a-zA-Z0-9-_]*$`.
pub fn is_name_pattern(text: &str) -> bool {
    text.bytes().all(is_word_byte)
}

/// Environment variable names: `^[a-zA-Z_][a-zA-Z0-9_]*$`.
pub fn is_env_name(name: &str) -> bool {
    name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
        && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_')
}

fn is_word(name: &str, longest: usize) -> bool {
    (1..=longest).contains(&name.len()) && name.bytes().all(is_word_byte)
}

fn is_word_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_'
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resource_names() {
        assert!(is_resource_name("my-run-1"));
        for name in ["", "a", "1a", "-a", "My", "a_b", "a\n", &"a".repeat(42)] {
            assert!(!is_resource_name(name), "{name:?}");
        }
        assert!(is_resource_name(&"a".repeat(41)));
    }

    #[test]
    fn other_names() {
        assert!(is_group_name("0") && !is_group_name("-") && !is_group_name(&"a".repeat(41)));
        assert!(is_user_name("Jo_e-1") && !is_user_name("") && !is_user_name("a b"));
        assert!(is_project_name(&"p".repeat(50)) && !is_project_name(&"p".repeat(51)));
        assert!(is_secret_name("A-b_1") && !is_secret_name("a.b"));
        assert!(is_env_name("_A1") && !is_env_name("1A") && !is_env_name(""));
        assert!(is_name_pattern("") && !is_name_pattern("*"));
    }
}
