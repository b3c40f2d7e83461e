//! Points in time, in whole microseconds since the Unix epoch, as the API prints them.

use std::fmt;
use std::ops::{Add, Sub};
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A point in time: microseconds since 1970-01-01 UTC.
///
/// Prints as RFC 3339 in UTC with a `Z`; six fraction digits, or none at all when they are zero (dstack 0.22.5's form).
/// Parses any RFC 3339 time; without a zone it is taken as UTC.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Time(i64);

impl Time {
    /// The Unix epoch.
    pub const EPOCH: Self = Self(0);

    /// From microseconds since the epoch.
    pub const fn from_micros(micros: i64) -> Self {
        Self(micros)
    }

    /// From milliseconds since the epoch.
    pub const fn from_millis(millis: i64) -> Self {
        Self(millis.saturating_mul(1000))
    }

    /// Microseconds since the epoch.
    pub const fn as_micros(self) -> i64 {
        self.0
    }

    /// Whole milliseconds since the epoch, rounded down.
    pub const fn as_millis(self) -> i64 {
        self.0.div_euclid(1000)
    }

    /// Time passed since `earlier`; zero when `earlier` is later.
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_micros(u64::try_from(self.0.saturating_sub(earlier.0)).unwrap_or(0))
    }

    /// As a calendar value, for printing in a local zone.
    pub fn to_jiff(self) -> jiff::Timestamp {
        jiff::Timestamp::from_microsecond(self.0).unwrap_or(jiff::Timestamp::MAX)
    }
}

impl Add<Duration> for Time {
    type Output = Self;
    fn add(self, duration: Duration) -> Self {
        Self(
            self.0
                .saturating_add(i64::try_from(duration.as_micros()).unwrap_or(i64::MAX)),
        )
    }
}

impl Sub<Duration> for Time {
    type Output = Self;
    fn sub(self, duration: Duration) -> Self {
        Self(
            self.0
                .saturating_sub(i64::try_from(duration.as_micros()).unwrap_or(i64::MAX)),
        )
    }
}

impl From<jiff::Timestamp> for Time {
    fn from(timestamp: jiff::Timestamp) -> Self {
        Self(timestamp.as_microsecond())
    }
}

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let timestamp = self.to_jiff();
        if self.0.rem_euclid(1_000_000) == 0 {
            write!(f, "{timestamp:.0}")
        } else {
            write!(f, "{timestamp:.6}")
        }
    }
}

impl fmt::Debug for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A text that is no point in time.
#[derive(Debug, Clone, thiserror::Error)]
#[error("`{0}` is not a date and time: expected a form like 2026-01-31T12:00:00Z")]
pub struct TimeError(String);

impl FromStr for Time {
    type Err = TimeError;
    fn from_str(text: &str) -> Result<Self, TimeError> {
        let trimmed = text.trim();
        if let Ok(timestamp) = trimmed.parse::<jiff::Timestamp>() {
            return Ok(timestamp.into());
        }
        let civil = trimmed
            .parse::<jiff::civil::DateTime>()
            .map_err(|_| TimeError(text.to_owned()))?;
        let zoned = civil
            .to_zoned(jiff::tz::TimeZone::UTC)
            .map_err(|_| TimeError(text.to_owned()))?;
        Ok(zoned.timestamp().into())
    }
}

impl Serialize for Time {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Time {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?
            .parse()
            .map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prints_six_digits_or_none() {
        assert_eq!(
            Time::from_micros(1_795_245_473_000_000).to_string(),
            "2026-11-21T07:17:53Z"
        );
        assert_eq!(
            Time::from_micros(1_795_245_473_010_000).to_string(),
            "2026-11-21T07:17:53.010000Z"
        );
    }

    #[test]
    fn a_time_without_zone_is_utc() {
        let with: Time = "2026-11-21T06:37:53.01Z".parse().unwrap();
        assert_eq!("2026-11-21T06:37:53.01".parse::<Time>().unwrap(), with);
        assert_eq!("2026-11-21T07:37:53.01+01:00".parse::<Time>().unwrap(), with);
        assert!("yesterday".parse::<Time>().is_err());
    }

    #[test]
    fn since_never_is_negative() {
        assert_eq!(Time::EPOCH.since(Time::from_millis(5)), Duration::ZERO);
    }
}
