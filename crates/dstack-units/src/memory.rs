//! Memory and disk sizes, in gigabytes.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::error::ParseError;
use crate::number::{float_or_error, float_repr, quote};

/// A size in gigabytes (1 GB = 1024 MB, 1 TB = 1024 GB), as the API sends it: a float.
#[derive(Debug, Clone, Copy, PartialEq, PartialOrd, Default)]
pub struct Memory(f64);

impl Memory {
    /// So many gigabytes.
    pub const fn from_gb(gb: f64) -> Self {
        Self(gb)
    }

    /// So many mebibytes (a 1024th of a gigabyte).
    pub fn from_mib(mib: f64) -> Self {
        Self(mib / 1024.0)
    }

    /// Returns the size in gigabytes (of 1024 mebibytes).
    pub const fn gb(self) -> f64 {
        self.0
    }

    /// Returns the size in mebibytes.
    pub fn mib(self) -> f64 {
        self.0 * 1024.0
    }

    /// In bytes, rounded down; zero for what is no size.
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
    pub fn bytes(self) -> u64 {
        (self.0 * 1024.0 * 1024.0 * 1024.0) as u64
    }
}

/// `8`, `8GB`, `512 mb`, `1.5TB`: blanks and case do not matter, no unit is gigabytes.
impl FromStr for Memory {
    type Err = ParseError;
    fn from_str(text: &str) -> Result<Self, ParseError> {
        let plain = text.replace(' ', "").to_lowercase();
        let gb = if let Some(terabytes) = plain.strip_suffix("tb") {
            float_or_error(terabytes)? * 1024.0
        } else if let Some(gigabytes) = plain.strip_suffix("gb") {
            float_or_error(gigabytes)?
        } else if let Some(megabytes) = plain.strip_suffix("mb") {
            float_or_error(megabytes)? / 1024.0
        } else {
            float_or_error(&plain)?
        };
        // dstack 0.22.5 takes infinity, and fails when it has to write it as JSON.
        if !gb.is_finite() {
            return Err(ParseError::new(format!(
                "the size must be a finite number: {}",
                quote(text)
            )));
        }
        Ok(Self(gb))
    }
}

/// Prints `8GB`, `0.5GB`.
impl fmt::Display for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let repr = float_repr(self.0);
        write!(f, "{}GB", repr.strip_suffix(".0").unwrap_or(&repr))
    }
}

impl Serialize for Memory {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Memory {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        f64::deserialize(deserializer).map(Self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn units() {
        for (text, gb) in [
            ("8", 8.0),
            ("8GB", 8.0),
            (" 512 MB", 0.5),
            ("1.5tb", 1536.0),
            ("0", 0.0),
            ("16 gb", 16.0),
        ] {
            assert_eq!(text.parse::<Memory>().unwrap().gb(), gb, "{text}");
        }
        assert_eq!(
            "lots".parse::<Memory>().unwrap_err().message(),
            "could not convert string to float: 'lots'"
        );
        for endless in ["inf", "42e424GB", "-inf MB", "nan"] {
            let refused = endless.parse::<Memory>().unwrap_err();
            assert!(refused.message().contains("finite"), "{endless}: {refused}");
        }
    }

    proptest! {
        #[test]
        fn prints_and_parses_back(gb in 0.0f64..1e9) {
            let memory = Memory::from_gb(gb);
            prop_assert_eq!(memory.to_string().parse::<Memory>().unwrap(), memory);
        }

        #[test]
        fn never_panics(text in ".*") {
            let _ = text.parse::<Memory>();
        }
    }
}
