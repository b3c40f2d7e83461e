//! Values of OpenSSH's configuration (ssh_config(5)).
//!
//! A value ends at the end of its line. Quotes hold whitespace together; inside of them there is no escape that all versions
//! know, so what would need one is refused. `%` and `${` begin what is replaced by something else.

use super::Unquotable;
use crate::login::{HostName, LoginName};

const FORMAT: &str = "an OpenSSH configuration";

fn unquotable(value: &str) -> Unquotable {
    Unquotable {
        value: value.to_owned(),
        format: FORMAT,
    }
}

/// Returns a name of a `Host` entry that is no pattern.
///
/// # Errors
/// It has other characters than ASCII letters, digits, `-`, `_` and `.`, or begins with `-`.
pub fn ssh_config_alias(alias: &str) -> Result<&str, Unquotable> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    if alias.is_empty() || alias.starts_with('-') || !alias.chars().all(is_plain) {
        return Err(unquotable(alias));
    }
    Ok(alias)
}

/// Returns the value of `HostName`.
///
/// # Errors
/// It cannot be written.
pub fn ssh_config_host(host: &HostName) -> Result<String, Unquotable> {
    word(&host.as_str().replace('%', "%%"))
}

/// Returns the value of `User`.
///
/// # Errors
/// It has a `%`, which versions before 10.0 take for itself and later ones do not.
pub fn ssh_config_user(user: &LoginName) -> Result<String, Unquotable> {
    if user.as_str().contains('%') {
        return Err(unquotable(user.as_str()));
    }
    word(user.as_str())
}

/// Returns the value of an option that is the path of a file, such as `IdentityFile`.
///
/// # Errors
/// It cannot be written.
pub fn ssh_config_path(path: &str) -> Result<String, Unquotable> {
    word(&path.replace('%', "%%"))
}

fn word(text: &str) -> Result<String, Unquotable> {
    let needs_escape = text.contains(|c: char| c == '"' || c.is_control())
        || text.contains("${")
        || text.contains("\\\\")
        || text.contains("\\'")
        || text.contains("\\ ")
        || text.ends_with('\\');
    // OpenSSH strips them from the ends of lines.
    let is_trimmed = text.trim_matches(|c: char| c.is_ascii_whitespace()) != text;
    if text.is_empty() || needs_escape || is_trimmed {
        return Err(unquotable(text));
    }
    if text.contains(|c: char| c.is_whitespace() || matches!(c, '\'' | '#' | '=' | ',')) {
        return Ok(format!("\"{text}\""));
    }
    Ok(text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_values_stay_and_others_are_quoted_or_refused() {
        for (path, written) in [
            ("~/.dstack/ssh/ab", Some("~/.dstack/ssh/ab")),
            ("/home/me you/id", Some("\"/home/me you/id\"")),
            ("/home/o'neil/id", Some("\"/home/o'neil/id\"")),
            ("/100%/id", Some("/100%%/id")),
            ("/a\"b", None),
            ("/a\nHost *", None),
            ("/${HOME}/id", None),
            ("/a\\", None),
            (" /a", None),
            ("", None),
        ] {
            assert_eq!(ssh_config_path(path).ok().as_deref(), written, "{path:?}");
        }
    }

    #[test]
    fn aliases_are_no_patterns() {
        assert_eq!(ssh_config_alias("my-run-0-1"), Ok("my-run-0-1"));
        for alias in ["", "*", "a b", "a?", "!a", "-a", "a\n", "a,b", "ä"] {
            assert!(ssh_config_alias(alias).is_err(), "{alias:?}");
        }
    }

    #[test]
    fn users_and_hosts() {
        let user = |text: &str| ssh_config_user(&text.parse().unwrap()).ok();
        assert_eq!(user("me@corp").as_deref(), Some("me@corp"));
        assert_eq!(user("CORP\\me").as_deref(), Some("CORP\\me"));
        assert_eq!(user("%h"), None);
        let host = |text: &str| ssh_config_host(&text.parse().unwrap()).ok();
        assert_eq!(host("fe80::1%eth0").as_deref(), Some("fe80::1%%eth0"));
        assert_eq!(
            ssh_config_user(&"%h".parse().unwrap()).unwrap_err().to_string(),
            "\"%h\" cannot be written to an OpenSSH configuration"
        );
    }
}
