//! Python versions that the default images offer.

use std::fmt;
use std::str::FromStr;

use serde::{Serialize, Serializer};

use crate::error::ParseError;
use crate::number::quote;

/// 3.9 to 3.15.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PythonVersion(u8);

impl PythonVersion {
    /// All of them, oldest first.
    pub const ALL: [Self; 7] = [
        Self(9),
        Self(10),
        Self(11),
        Self(12),
        Self(13),
        Self(14),
        Self(15),
    ];

    /// The second number of the version.
    pub const fn minor(self) -> u8 {
        self.0
    }
}

impl fmt::Display for PythonVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "3.{}", self.0)
    }
}

impl FromStr for PythonVersion {
    type Err = ParseError;
    fn from_str(text: &str) -> Result<Self, ParseError> {
        Self::ALL
            .into_iter()
            .find(|version| version.to_string() == text)
            .ok_or_else(|| ParseError::new(format!("{} is not a valid PythonVersion", quote(text))))
    }
}

impl Serialize for PythonVersion {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prints_and_parses_back() {
        for version in PythonVersion::ALL {
            assert_eq!(version.to_string().parse::<PythonVersion>().unwrap(), version);
        }
        assert_eq!(
            "2.7".parse::<PythonVersion>().unwrap_err().message(),
            "'2.7' is not a valid PythonVersion"
        );
    }
}
