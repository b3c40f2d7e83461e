//! GPU requirements: `A100:80GB:1..8`, `amd:2`, `tpu`, `24GB..`.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::compute_capability::ComputeCapability;
use crate::error::ParseError;
use crate::memory::Memory;
use crate::number::quote;
use crate::range::{Range, parse_count};

/// Who makes an accelerator.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum AcceleratorVendor {
    /// NVIDIA.
    Nvidia,
    /// AMD.
    Amd,
    /// Google (TPU).
    Google,
    /// Intel (Gaudi).
    Intel,
    /// Tenstorrent.
    Tenstorrent,
}

impl AcceleratorVendor {
    /// All of them, in the reference's order.
    pub const ALL: [Self; 5] = [
        Self::Nvidia,
        Self::Amd,
        Self::Google,
        Self::Intel,
        Self::Tenstorrent,
    ];

    /// The wire value.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Nvidia => "nvidia",
            Self::Amd => "amd",
            Self::Google => "google",
            Self::Intel => "intel",
            Self::Tenstorrent => "tenstorrent",
        }
    }

    /// From its own name only (no aliases); case does not matter.
    ///
    /// # Errors
    /// No such vendor.
    pub fn from_name(text: &str) -> Result<Self, ParseError> {
        let lower = text.to_lowercase();
        Self::ALL
            .into_iter()
            .find(|vendor| vendor.as_str() == lower)
            .ok_or_else(|| ParseError::new(format!("{} is not a valid AcceleratorVendor", quote(&lower))))
    }
}

impl fmt::Display for AcceleratorVendor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// With the aliases of GPU specs: `tpu` and `tt`; case does not matter.
impl FromStr for AcceleratorVendor {
    type Err = ParseError;
    fn from_str(text: &str) -> Result<Self, ParseError> {
        match text.to_lowercase().as_str() {
            "tpu" => Ok(Self::Google),
            "tt" => Ok(Self::Tenstorrent),
            _ => Self::from_name(text),
        }
    }
}

/// Which GPUs are asked for, and how many per node.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct GpuSpec {
    /// Any when `None`.
    pub vendor: Option<AcceleratorVendor>,
    /// Names to choose from, any when `None`.
    pub name: Option<Vec<String>>,
    /// How many; `1..` unless said otherwise.
    pub count: Range<i64>,
    /// Memory of one GPU.
    pub memory: Option<Range<Memory>>,
    /// Memory of all GPUs together.
    pub total_memory: Option<Range<Memory>>,
    /// The least compute capability.
    pub compute_capability: Option<ComputeCapability>,
}

impl Default for GpuSpec {
    fn default() -> Self {
        Self {
            vendor: None,
            name: None,
            count: Range::at_least(1),
            memory: None,
            total_memory: None,
            compute_capability: None,
        }
    }
}

impl GpuSpec {
    /// `0..`: any GPUs or none, which is what resources ask for when they say nothing about GPUs.
    pub fn any_or_none() -> Self {
        Self {
            count: Range::at_least(0),
            ..Self::default()
        }
    }
}

/// A GPU text taken apart, its numbers not yet parsed.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct GpuTokens {
    /// Vendor, when one is given.
    pub vendor: Option<AcceleratorVendor>,
    /// Names, when some are given.
    pub name: Option<Vec<String>>,
    /// Given memory, as text.
    pub memory: Option<String>,
    /// Given count, as text.
    pub count: Option<String>,
}

/// Takes a GPU text apart at its colons. Each token is a vendor, else names (it starts with a letter), else a
/// memory (it contains a letter), else a count.
///
/// # Errors
/// Empty tokens, two tokens of one class, an empty name.
pub fn tokens(text: &str) -> Result<GpuTokens, ParseError> {
    let mut tokens = GpuTokens::default();
    let conflict = |class: &str| Err(ParseError::new(format!("GPU spec {class} conflict: {text}")));
    for token in text.replace(' ', "").split(':') {
        let Some(first) = token.chars().next() else {
            return Err(ParseError::new(format!("GPU spec contains empty token: {text}")));
        };
        if let Ok(vendor) = token.parse() {
            if tokens.vendor.replace(vendor).is_some() {
                return conflict("vendor");
            }
        } else if first.is_alphabetic() {
            let names: Vec<String> = token.split(',').map(str::to_owned).collect();
            if tokens.name.is_some() {
                return conflict("name");
            }
            if names.iter().any(String::is_empty) {
                return Err(ParseError::new(format!("GPU name can not be empty: {text}")));
            }
            tokens.name = Some(names);
        } else if token.chars().any(char::is_alphabetic) {
            if tokens.memory.replace(token.to_owned()).is_some() {
                return conflict("memory");
            }
        } else if tokens.count.replace(token.to_owned()).is_some() {
            return conflict("count");
        }
    }
    Ok(tokens)
}

impl FromStr for GpuSpec {
    type Err = ParseError;
    fn from_str(text: &str) -> Result<Self, ParseError> {
        let GpuTokens {
            vendor,
            name,
            memory,
            count,
        } = tokens(text)?;
        Ok(Self {
            vendor,
            name: name
                .map(|names| names.iter().map(|name| plain_name(name, text)).collect())
                .transpose()?,
            memory: memory.map(|memory| memory.parse()).transpose()?,
            count: count.map_or(Ok(Range::at_least(1)), |count| parse_count(&count))?,
            ..Self::default()
        })
    }
}

/// A GPU name without the deprecated `tpu-` in front.
pub fn strip_tpu(name: &str) -> &str {
    name.trim_start_matches("tpu-")
}

/// dstack 0.22.5 takes `tpu-`, `tpu-8` and `tpu-amd` as well, as names that no GPU has: refused here, since without the
/// prefix they are no names.
fn plain_name(name: &str, text: &str) -> Result<String, ParseError> {
    let plain = strip_tpu(name);
    if plain.is_empty() {
        return Err(ParseError::new(format!("GPU name can not be empty: {text}")));
    }
    let is_name = plain.starts_with(char::is_alphabetic) && plain.parse::<AcceleratorVendor>().is_err();
    if plain != name && !is_name {
        return Err(ParseError::new(format!("`{name}` is no GPU name: {text}")));
    }
    Ok(plain.to_owned())
}

/// Prints `nvidia:A100,H100:80GB:1..8` (total memory and compute capability have no text form and are left out).
impl fmt::Display for GpuSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(vendor) = self.vendor {
            write!(f, "{vendor}:")?;
        }
        if let Some(names) = &self.name {
            write!(f, "{}:", names.join(","))?;
        }
        if let Some(memory) = &self.memory {
            write!(f, "{memory}:")?;
        }
        write!(f, "{}", self.count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn tokens_in_any_order() {
        let expected = GpuSpec {
            vendor: Some(AcceleratorVendor::Nvidia),
            name: Some(vec!["A100".to_owned(), "H100".to_owned()]),
            count: Range::between(1, 8),
            memory: Some(Range::exactly(Memory::from_gb(80.0))),
            ..GpuSpec::default()
        };
        for text in [
            "nvidia:A100,H100:80GB:1..8",
            "1..8:80GB:NVIDIA:A100,H100",
            "A100, H100 : 1..8 : 80GB : nvidia",
        ] {
            assert_eq!(text.parse::<GpuSpec>().unwrap(), expected, "{text}");
        }
    }

    #[test]
    fn aliases() {
        assert_eq!(
            "tpu:v5litepod-8".parse::<GpuSpec>().unwrap().vendor,
            Some(AcceleratorVendor::Google)
        );
        assert_eq!(
            "TT".parse::<GpuSpec>().unwrap().vendor,
            Some(AcceleratorVendor::Tenstorrent)
        );
        assert_eq!(
            "tpu-v4-8".parse::<GpuSpec>().unwrap().name,
            Some(vec!["v4-8".to_owned()])
        );
    }

    #[test]
    fn refusals() {
        for (text, message) in [
            ("A100::1", "GPU spec contains empty token: A100::1"),
            ("A100:x:y", "GPU spec name conflict: A100:x:y"),
            ("A100,:1", "GPU name can not be empty: A100,:1"),
            ("amd:nvidia", "GPU spec vendor conflict: amd:nvidia"),
            ("1GB:2GB", "GPU spec memory conflict: 1GB:2GB"),
            ("1:2", "GPU spec count conflict: 1:2"),
            ("tpu-", "GPU name can not be empty: tpu-"),
            ("tpu-8", "`tpu-8` is no GPU name: tpu-8"),
            ("tpu-tpu", "`tpu-tpu` is no GPU name: tpu-tpu"),
        ] {
            assert_eq!(text.parse::<GpuSpec>().unwrap_err().message(), message);
        }
    }

    proptest! {
        #[test]
        fn prints_and_parses_back(
            vendor in 0usize..6,
            name in proptest::option::of(proptest::collection::vec("[A-Z][0-9]{2,4}", 1..3)),
            memory in proptest::option::of(1u32..1000),
            min in 0i64..16, more in 0i64..16,
        ) {
            let spec = GpuSpec {
                vendor: AcceleratorVendor::ALL.get(vendor).copied(),
                name,
                count: Range::between(min, min + more),
                memory: memory.map(|gb| Range::at_least(Memory::from_gb(f64::from(gb)))),
                ..GpuSpec::default()
            };
            prop_assert_eq!(spec.to_string().parse::<GpuSpec>().unwrap(), spec);
        }

        #[test]
        fn never_panics(text in ".*") {
            let _ = text.parse::<GpuSpec>();
        }
    }
}
