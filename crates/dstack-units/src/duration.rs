//! Durations of the configuration language: whole seconds, and two kinds that can be switched off.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize, Serializer};

use crate::error::ParseError;
use crate::number::parse_int;

/// A duration in whole seconds. May be negative where the reference lets it (the server refuses that later).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Seconds(pub i64);

impl Seconds {
    /// As a plain duration; zero when negative.
    pub fn to_duration(self) -> Duration {
        Duration::from_secs(u64::try_from(self.0).unwrap_or(0))
    }
}

/// `90`, `90s`, `2 h`, `1w`: units s, m, h, d, w.
impl FromStr for Seconds {
    type Err = ParseError;
    fn from_str(text: &str) -> Result<Self, ParseError> {
        if let Some(seconds) = parse_int(text, false) {
            return Ok(Self(seconds));
        }
        let refused = || ParseError::new(format!("Cannot parse the duration {text}"));
        let unit = text.chars().last().ok_or_else(refused)?;
        let factor = match unit {
            's' => 1,
            'm' => 60,
            'h' => 3600,
            'd' => 86_400,
            'w' => 604_800,
            _ => return Err(refused()),
        };
        let amount = text
            .get(..text.len().saturating_sub(1))
            .unwrap_or("")
            .trim_end_matches(' ');
        if amount.is_empty() || !amount.bytes().all(|b| b.is_ascii_digit()) {
            return Err(refused());
        }
        let amount: i64 = amount.parse().map_err(|_| refused())?;
        amount.checked_mul(factor).map(Self).ok_or_else(refused)
    }
}

/// Prints in the greatest unit that divides it: `2h`, `90s`.
impl fmt::Display for Seconds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 <= 0 {
            return write!(f, "{}", self.0);
        }
        for (factor, unit) in [(604_800, 'w'), (86_400, 'd'), (3600, 'h'), (60, 'm')] {
            if self.0 % factor == 0 {
                return write!(f, "{}{unit}", self.0 / factor);
            }
        }
        write!(f, "{}s", self.0)
    }
}

/// A duration that can be off, for `max_duration` and `stop_duration`: `"off"` or seconds on the wire.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum OffDuration {
    /// Switched off: no limit.
    Off,
    /// Number of seconds, not negative.
    Seconds(i64),
}

impl OffDuration {
    /// Seconds, or `None` when off.
    pub const fn seconds(self) -> Option<i64> {
        match self {
            Self::Off => None,
            Self::Seconds(seconds) => Some(seconds),
        }
    }
}

impl FromStr for OffDuration {
    type Err = ParseError;
    fn from_str(text: &str) -> Result<Self, ParseError> {
        if text == "off" {
            return Ok(Self::Off);
        }
        Self::try_from(text.parse::<Seconds>()?)
    }
}

impl TryFrom<Seconds> for OffDuration {
    type Error = ParseError;
    fn try_from(seconds: Seconds) -> Result<Self, ParseError> {
        if seconds.0 < 0 {
            return Err(ParseError::new("Duration cannot be negative"));
        }
        Ok(Self::Seconds(seconds.0))
    }
}

impl fmt::Display for OffDuration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Off => f.write_str("off"),
            Self::Seconds(seconds) => Seconds(*seconds).fmt(f),
        }
    }
}

impl Serialize for OffDuration {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Off => serializer.serialize_str("off"),
            Self::Seconds(seconds) => serializer.serialize_i64(*seconds),
        }
    }
}

/// A duration that is off when negative, for `idle_duration` and `auto_cleanup_duration`: seconds on the wire, -1 for off.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct IdleDuration(pub i64);

impl IdleDuration {
    /// Off: never.
    pub const OFF: Self = Self(-1);

    /// Whether it is off.
    pub const fn is_off(self) -> bool {
        self.0 < 0
    }

    /// Seconds, or `None` when off.
    pub const fn seconds(self) -> Option<i64> {
        if self.is_off() { None } else { Some(self.0) }
    }
}

impl FromStr for IdleDuration {
    type Err = ParseError;
    fn from_str(text: &str) -> Result<Self, ParseError> {
        if text == "off" {
            return Ok(Self::OFF);
        }
        text.parse::<Seconds>().map(|seconds| Self(seconds.0))
    }
}

impl fmt::Display for IdleDuration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_off() {
            f.write_str("off")
        } else {
            Seconds(self.0).fmt(f)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn units() {
        for (text, seconds) in [
            ("90", 90),
            ("90s", 90),
            ("2 h", 7200),
            ("1w", 604_800),
            ("1d", 86_400),
            ("-5", -5),
        ] {
            assert_eq!(text.parse::<Seconds>().unwrap().0, seconds, "{text}");
        }
        for text in ["", "soon", "1.5h", "-5m", "h", "1y", "99999999999999w", " 5m"] {
            let error = text.parse::<Seconds>().unwrap_err();
            assert_eq!(error.message(), format!("Cannot parse the duration {text}"));
        }
    }

    #[test]
    fn off() {
        assert_eq!("off".parse::<OffDuration>().unwrap(), OffDuration::Off);
        assert_eq!(
            "-1".parse::<OffDuration>().unwrap_err().message(),
            "Duration cannot be negative"
        );
        assert!("off".parse::<IdleDuration>().unwrap().is_off());
        assert_eq!("-7".parse::<IdleDuration>().unwrap(), IdleDuration(-7));
    }

    proptest! {
        #[test]
        fn prints_and_parses_back(seconds in any::<i64>()) {
            prop_assert_eq!(Seconds(seconds).to_string().parse::<Seconds>().unwrap(), Seconds(seconds));
        }

        #[test]
        fn never_panics(text in ".*") {
            let _ = text.parse::<Seconds>();
            let _ = text.parse::<OffDuration>();
            let _ = text.parse::<IdleDuration>();
        }
    }
}
