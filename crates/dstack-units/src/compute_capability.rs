//! CUDA compute capability, `7.5`.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::error::ParseError;
use crate::number::{parse_int, quote, quote_list};

/// Major and minor version; on the wire `[7, 5]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ComputeCapability(pub i64, pub i64);

impl ComputeCapability {
    /// From its two parts as text.
    ///
    /// # Errors
    /// Not two parts, or a part that is no integer.
    pub fn from_parts(parts: &[&str]) -> Result<Self, ParseError> {
        let &[major, minor] = parts else {
            return Err(ParseError::new(format!(
                "Invalid compute capability: {}",
                quote_list(parts)
            )));
        };
        let int = |text: &str| {
            parse_int(text, false).ok_or_else(|| {
                ParseError::new(format!("invalid literal for int() with base 10: {}", quote(text)))
            })
        };
        Ok(Self(int(major)?, int(minor)?))
    }
}

impl FromStr for ComputeCapability {
    type Err = ParseError;
    fn from_str(text: &str) -> Result<Self, ParseError> {
        let parts: Vec<&str> = text.trim().split('.').collect();
        Self::from_parts(&parts)
    }
}

impl fmt::Display for ComputeCapability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.0, self.1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn forms() {
        assert_eq!(
            "7.5".parse::<ComputeCapability>().unwrap(),
            ComputeCapability(7, 5)
        );
        assert_eq!(
            "7".parse::<ComputeCapability>().unwrap_err().message(),
            "Invalid compute capability: ['7']"
        );
    }

    proptest! {
        #[test]
        fn prints_and_parses_back(major in 0i64..100, minor in 0i64..100) {
            let capability = ComputeCapability(major, minor);
            prop_assert_eq!(capability.to_string().parse::<ComputeCapability>().unwrap(), capability);
        }

        #[test]
        fn never_panics(text in ".*") {
            let _ = text.parse::<ComputeCapability>();
        }
    }
}
