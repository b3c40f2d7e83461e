//! Ranges with one or two bounds: `8`, `2..8`, `16GB..`, `..4`.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::error::ParseError;

/// From `min` to `max`, both included; at least one is given, and `min` is not above `max`.
///
/// On the wire `{"min": …, "max": …}`, `null` for an open end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Range<T> {
    /// The least value.
    pub min: Option<T>,
    /// The greatest value.
    pub max: Option<T>,
}

impl<T: PartialOrd + Copy> Range<T> {
    /// Makes the range `value..`, without upper end.
    pub const fn at_least(value: T) -> Self {
        Self {
            min: Some(value),
            max: None,
        }
    }

    /// Makes the range with `value` only.
    pub const fn exactly(value: T) -> Self {
        Self {
            min: Some(value),
            max: Some(value),
        }
    }

    /// Makes the range `min..max`, both of which are in it.
    pub const fn between(min: T, max: T) -> Self {
        Self {
            min: Some(min),
            max: Some(max),
        }
    }

    /// Whether `value` lies inside.
    pub fn contains(&self, value: T) -> bool {
        self.min.is_none_or(|min| value >= min) && self.max.is_none_or(|max| value <= max)
    }

    /// What both ranges contain; `None` when that is nothing.
    pub fn intersect(&self, other: &Self) -> Option<Self> {
        let min = match (self.min, other.min) {
            (Some(a), Some(b)) => Some(if a >= b { a } else { b }),
            (a, b) => a.or(b),
        };
        let max = match (self.max, other.max) {
            (Some(a), Some(b)) => Some(if a <= b { a } else { b }),
            (a, b) => a.or(b),
        };
        match (min, max) {
            (Some(min), Some(max)) if min > max => None,
            _ => Some(Self { min, max }),
        }
    }
}

impl<T: PartialOrd + fmt::Display> Range<T> {
    /// Checks the bounds against each other.
    pub fn checked(min: Option<T>, max: Option<T>) -> Result<Self, ParseError> {
        match (&min, &max) {
            (None, None) => Err(ParseError::new("Invalid empty range: ..")),
            (Some(low), Some(high)) if low > high => {
                Err(ParseError::new(format!("Invalid range order: {low}..{high}")))
            }
            _ => Ok(Self { min, max }),
        }
    }
}

/// The two ends of a range's text, each empty when open: `("2", "8")`. `None` when it is a single value.
///
/// # Errors
/// More than one `..`.
pub fn split(text: &str) -> Result<Option<(String, String)>, ParseError> {
    if !text.contains("..") {
        return Ok(None);
    }
    let plain = text.replace(' ', "");
    let mut ends = plain.split("..");
    match (ends.next(), ends.next(), ends.next()) {
        (Some(min), Some(max), None) => Ok(Some((min.to_owned(), max.to_owned()))),
        _ => Err(ParseError::new("too many values to unpack (expected 2)")),
    }
}

impl<T: FromStr<Err = ParseError> + PartialOrd + Copy + fmt::Display> FromStr for Range<T> {
    type Err = ParseError;
    fn from_str(text: &str) -> Result<Self, ParseError> {
        match split(text)? {
            Some((min, max)) => Self::checked(optional(&min)?, optional(&max)?),
            None => Ok(Self::exactly(text.parse()?)),
        }
    }
}

fn optional<T: FromStr<Err = ParseError>>(text: &str) -> Result<Option<T>, ParseError> {
    if text.is_empty() {
        Ok(None)
    } else {
        text.parse().map(Some)
    }
}

/// Prints `8`, `2..8`, `16GB..`, `..4`.
impl<T: fmt::Display + PartialEq> fmt::Display for Range<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.min, &self.max) {
            (Some(min), Some(max)) if min == max => write!(f, "{min}"),
            (Some(min), Some(max)) => write!(f, "{min}..{max}"),
            (Some(min), None) => write!(f, "{min}.."),
            (None, Some(max)) => write!(f, "..{max}"),
            (None, None) => f.write_str(".."),
        }
    }
}

/// Parses a range of integers (counts).
pub fn parse_count(text: &str) -> Result<Range<i64>, ParseError> {
    let int = |text: &str| {
        crate::number::parse_int(text, true).ok_or_else(|| {
            ParseError::new("Input should be a valid integer, unable to parse string as an integer")
        })
    };
    let end = |text: &str| {
        if text.is_empty() {
            Ok(None)
        } else {
            int(text).map(Some)
        }
    };
    match split(text)? {
        Some((min, max)) => Range::checked(end(&min)?, end(&max)?),
        None => Ok(Range::exactly(int(text)?)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::Memory;
    use proptest::prelude::*;

    #[test]
    fn forms() {
        assert_eq!(parse_count("8").unwrap(), Range::exactly(8));
        assert_eq!(parse_count("2 .. 8").unwrap(), Range::between(2, 8));
        assert_eq!(parse_count("2..").unwrap(), Range::at_least(2));
        assert_eq!(parse_count("..2").unwrap().min, None);
        assert_eq!(
            parse_count("..").unwrap_err().message(),
            "Invalid empty range: .."
        );
        assert_eq!(
            parse_count("4..1").unwrap_err().message(),
            "Invalid range order: 4..1"
        );
        assert!(parse_count("1..2..3").is_err());
        assert_eq!(
            "16GB..80GB".parse::<Range<Memory>>().unwrap().to_string(),
            "16GB..80GB"
        );
    }

    #[test]
    fn intersection() {
        let low = Range::between(1, 4);
        assert_eq!(low.intersect(&Range::at_least(3)), Some(Range::between(3, 4)));
        assert_eq!(low.intersect(&Range::at_least(5)), None);
        assert!(low.contains(4) && !low.contains(5));
    }

    proptest! {
        #[test]
        fn prints_and_parses_back(a in any::<Option<i64>>(), b in any::<Option<i64>>()) {
            if let Ok(range) = Range::checked(a, b) {
                prop_assert_eq!(parse_count(&range.to_string()).unwrap(), range);
            }
        }

        #[test]
        fn never_panics(text in ".*") {
            let _ = parse_count(&text);
            let _ = text.parse::<Range<Memory>>();
        }
    }
}
