//! CPU requirements: `4`, `2..8`, `arm:4..`.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::error::ParseError;
use crate::number::quote;
use crate::range::{Range, parse_count};

/// The instruction set of a CPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CpuArchitecture {
    /// x86-64.
    X86,
    /// AArch64.
    Arm,
}

impl CpuArchitecture {
    /// All of them, in the reference's order.
    pub const ALL: [Self; 2] = [Self::X86, Self::Arm];

    /// The wire value.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::X86 => "x86",
            Self::Arm => "arm",
        }
    }
}

impl fmt::Display for CpuArchitecture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Case does not matter.
impl FromStr for CpuArchitecture {
    type Err = ParseError;
    fn from_str(text: &str) -> Result<Self, ParseError> {
        let lower = text.to_lowercase();
        Self::ALL
            .into_iter()
            .find(|arch| arch.as_str() == lower)
            .ok_or_else(|| ParseError::new(format!("{} is not a valid CPUArchitecture", quote(&lower))))
    }
}

/// How many CPUs of which kind are asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
pub struct CpuSpec {
    /// Any when `None`.
    pub arch: Option<CpuArchitecture>,
    /// How many; `2..` unless said otherwise.
    pub count: Range<i64>,
}

impl Default for CpuSpec {
    fn default() -> Self {
        Self {
            arch: None,
            count: Range::at_least(2),
        }
    }
}

/// A CPU text taken apart, its count not yet parsed.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct CpuTokens {
    /// Instruction set, when one is given.
    pub arch: Option<CpuArchitecture>,
    /// Given count, as text.
    pub count: Option<String>,
}

/// Takes a CPU text apart at its colons.
///
/// # Errors
/// Empty tokens, two counts, two architectures, an unknown architecture.
pub fn tokens(text: &str) -> Result<CpuTokens, ParseError> {
    let mut tokens = CpuTokens::default();
    for token in text.replace(' ', "").split(':') {
        if token.is_empty() {
            return Err(ParseError::new(format!("CPU spec contains empty token: {text}")));
        }
        if token.contains("..") || token.chars().all(char::is_numeric) {
            if tokens.count.is_some() {
                return Err(ParseError::new(format!("CPU spec count conflict: {text}")));
            }
            tokens.count = Some(token.to_owned());
            continue;
        }
        let arch = token
            .parse()
            .map_err(|_| ParseError::new(format!("Invalid CPU architecture: {text}")))?;
        if tokens.arch.replace(arch).is_some() {
            return Err(ParseError::new(format!("CPU spec arch conflict: {text}")));
        }
    }
    Ok(tokens)
}

impl FromStr for CpuSpec {
    type Err = ParseError;
    fn from_str(text: &str) -> Result<Self, ParseError> {
        let CpuTokens { arch, count } = tokens(text)?;
        let count = count.map_or(Ok(Self::default().count), |count| parse_count(&count))?;
        Ok(Self { arch, count })
    }
}

/// Prints `arm:4..`, `2..8`.
impl fmt::Display for CpuSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.arch {
            Some(arch) => write!(f, "{arch}:{}", self.count),
            None => write!(f, "{}", self.count),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn forms() {
        let spec: CpuSpec = "ARM:4..".parse().unwrap();
        assert_eq!(
            (spec.arch, spec.count),
            (Some(CpuArchitecture::Arm), Range::at_least(4))
        );
        assert_eq!("8 : x86".parse::<CpuSpec>().unwrap().to_string(), "x86:8");
        assert_eq!("arm".parse::<CpuSpec>().unwrap().count, Range::at_least(2));
        for (text, message) in [
            ("arm:", "CPU spec contains empty token: arm:"),
            ("1:2", "CPU spec count conflict: 1:2"),
            ("arm:x86", "CPU spec arch conflict: arm:x86"),
            ("many", "Invalid CPU architecture: many"),
        ] {
            assert_eq!(text.parse::<CpuSpec>().unwrap_err().message(), message);
        }
    }

    proptest! {
        #[test]
        fn prints_and_parses_back(arch in 0usize..3, min in 0i64..500, more in 0i64..500) {
            let spec = CpuSpec { arch: CpuArchitecture::ALL.get(arch).copied(), count: Range::between(min, min + more) };
            prop_assert_eq!(spec.to_string().parse::<CpuSpec>().unwrap(), spec);
        }

        #[test]
        fn never_panics(text in ".*") {
            let _ = text.parse::<CpuSpec>();
        }
    }
}
