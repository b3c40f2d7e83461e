//! Names of hosts and of their users, as other programs are given them: in configuration lines, on command lines.
//!
//! They come from far away: from a configuration, a cloud, a container. What could end a line, begin an option or mean
//! something to a shell is refused. The rules are those of OpenSSH 9.6, without whitespace.

use std::fmt;
use std::str::FromStr;

use serde::Serialize;

use crate::error::ParseError;

/// A host name or an address: not empty, without whitespace and control characters, quotes, `\`, `$` and what else shells know,
/// and not beginning with `-`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(transparent)]
pub struct HostName(String);

/// The name of a user of a machine: as [`HostName`], but `\` may stand between domain and user, and `$` anywhere.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(transparent)]
pub struct LoginName(String);

impl HostName {
    /// The text, as it was read.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl LoginName {
    /// The text, as it was read.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for HostName {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, ParseError> {
        if is_plain(text) && !text.contains(['\\', '$']) {
            return Ok(Self(text.to_owned()));
        }
        Err(ParseError::new(format!("invalid host name: {text:?}")))
    }
}

impl FromStr for LoginName {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, ParseError> {
        if is_plain(text) && !text.ends_with('\\') {
            return Ok(Self(text.to_owned()));
        }
        Err(ParseError::new(format!("invalid user name: {text:?}")))
    }
}

fn is_plain(text: &str) -> bool {
    let is_special = |c: char| c.is_whitespace() || c.is_control() || "'`\";&<>|(){}".contains(c);
    !text.is_empty() && !text.starts_with('-') && !text.contains(is_special)
}

impl fmt::Display for HostName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Display for LoginName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_could_mean_something_elsewhere_is_refused() {
        for text in [
            "",
            "-oProxyCommand=x",
            "a b",
            "a\nb",
            "a\tb",
            "a\0",
            "a\u{2028}b",
            "a\u{85}b",
            "\"a\"",
            "a'b",
            "`id`",
            "$(id)",
            "a;b",
            "a|b",
            "a{b,c}",
        ] {
            assert!(text.parse::<HostName>().is_err(), "{text:?}");
            assert!(text.parse::<LoginName>().is_err(), "{text:?}");
        }
        assert!("a$b".parse::<HostName>().is_err() && "a\\b".parse::<HostName>().is_err());
        assert!("a\\".parse::<LoginName>().is_err());
        assert_eq!(
            "x\n  ProxyCommand id".parse::<LoginName>().unwrap_err().message(),
            r#"invalid user name: "x\n  ProxyCommand id""#
        );
    }

    #[test]
    fn names_of_all_days_are_accepted() {
        for host in [
            "a",
            "ssh.example.com",
            "10.0.0.1",
            "fd00::1",
            "[fd00::1]",
            "fe80::1%eth0",
            "my_host",
            "bücher.example",
        ] {
            assert_eq!(host.parse::<HostName>().unwrap().as_str(), host);
        }
        for user in ["root", "me@corp.example", "CORP\\me", "svc$", "jürgen", "1000"] {
            assert_eq!(user.parse::<LoginName>().unwrap().as_str(), user);
        }
    }
}
