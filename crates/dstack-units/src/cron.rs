//! Cron expressions: five fields, in UTC, Monday = 0.
//!
//! The rules are those of dstack 0.22.5 (APScheduler 3): **all** fields must match, also day of month together with
//! day of week; names of months and weekdays; `last` for the last day of a month.

use std::fmt;
use std::str::FromStr;

use jiff::ToSpan;
use jiff::civil::{Date, DateTime};
use jiff::tz::TimeZone;

use crate::error::ParseError;
use crate::number::quote;
use crate::time::Time;

const MONTHS: [&str; 12] = [
    "jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec",
];
const WEEKDAYS: [&str; 7] = ["mon", "tue", "wed", "thu", "fri", "sat", "sun"];
/// The rarest date that exists, 29 February on a given weekday, comes within 40 years.
const SEARCHED_DAYS: u32 = 366 * 41;

/// A parsed expression; prints as it was written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cron {
    text: String,
    minute: Field,
    hour: Field,
    day: Field,
    month: Field,
    weekday: Field,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Field(Vec<Step>);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    /// Every `step`-th value from `first` to `last`, both included.
    Range {
        first: u32,
        last: u32,
        step: u32,
    },
    LastDay,
}

#[derive(Debug, Clone, Copy)]
struct Kind {
    name: &'static str,
    min: u32,
    max: u32,
    names: &'static [&'static str],
    /// What the names are called in messages.
    called: &'static str,
}

const MINUTE: Kind = Kind {
    name: "minute",
    min: 0,
    max: 59,
    names: &[],
    called: "",
};
const HOUR: Kind = Kind {
    name: "hour",
    min: 0,
    max: 23,
    names: &[],
    called: "",
};
const DAY: Kind = Kind {
    name: "day",
    min: 1,
    max: 31,
    names: &[],
    called: "",
};
const MONTH: Kind = Kind {
    name: "month",
    min: 1,
    max: 12,
    names: &MONTHS,
    called: "month",
};
const WEEKDAY: Kind = Kind {
    name: "day_of_week",
    min: 0,
    max: 6,
    names: &WEEKDAYS,
    called: "weekday",
};

impl FromStr for Cron {
    type Err = ParseError;
    fn from_str(text: &str) -> Result<Self, ParseError> {
        let fields: Vec<&str> = text.split_whitespace().collect();
        let &[minute, hour, day, month, weekday] = fields.as_slice() else {
            let message = format!("Wrong number of fields; got {}, expected 5", fields.len());
            return Err(ParseError::new(message));
        };
        Ok(Self {
            text: text.to_owned(),
            // The order in which dstack 0.22.5 finds errors.
            month: Field::parse(month, &MONTH)?,
            day: Field::parse(day, &DAY)?,
            weekday: Field::parse(weekday, &WEEKDAY)?,
            hour: Field::parse(hour, &HOUR)?,
            minute: Field::parse(minute, &MINUTE)?,
        })
    }
}

impl fmt::Display for Cron {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl Cron {
    /// The first full minute at or after `time` that matches; `None` when no date ever does (30 February).
    pub fn next_at_or_after(&self, time: Time) -> Option<Time> {
        let start = ceil_to_minute(time)?;
        let mut date = start.date();
        let mut earliest = (
            u32::from(start.hour().unsigned_abs()),
            u32::from(start.minute().unsigned_abs()),
        );
        for _ in 0..SEARCHED_DAYS {
            if self.matches_day(date)
                && let Some((hour, minute)) = self.first_time_of_day(earliest)
            {
                return to_time(date, hour, minute);
            }
            date = date.checked_add(1.day()).ok()?;
            earliest = (0, 0);
        }
        None
    }

    fn matches_day(&self, date: Date) -> bool {
        let last_day = u32::from(date.days_in_month().unsigned_abs());
        let weekday = u32::from(date.weekday().to_monday_zero_offset().unsigned_abs());
        self.month.contains(u32::from(date.month().unsigned_abs()), 12)
            && self.day.contains(u32::from(date.day().unsigned_abs()), last_day)
            && self.weekday.contains(weekday, 6)
    }

    fn first_time_of_day(&self, (hour, minute): (u32, u32)) -> Option<(u32, u32)> {
        for candidate in hour..=23 {
            if !self.hour.contains(candidate, 23) {
                continue;
            }
            let from = if candidate == hour { minute } else { 0 };
            if let Some(found) = (from..=59).find(|minute| self.minute.contains(*minute, 59)) {
                return Some((candidate, found));
            }
        }
        None
    }
}

fn ceil_to_minute(time: Time) -> Option<DateTime> {
    const MINUTE: i64 = 60_000_000;
    let micros = time.as_micros();
    let full = micros
        .div_euclid(MINUTE)
        .checked_add(i64::from(micros.rem_euclid(MINUTE) != 0))?;
    let timestamp = jiff::Timestamp::from_microsecond(full.checked_mul(MINUTE)?).ok()?;
    Some(timestamp.to_zoned(TimeZone::UTC).datetime())
}

fn to_time(date: Date, hour: u32, minute: u32) -> Option<Time> {
    let datetime = date.at(i8::try_from(hour).ok()?, i8::try_from(minute).ok()?, 0, 0);
    Some(datetime.to_zoned(TimeZone::UTC).ok()?.timestamp().into())
}

impl Field {
    fn parse(text: &str, kind: &Kind) -> Result<Self, ParseError> {
        text.split(',')
            .map(|part| Step::parse(part, kind))
            .collect::<Result<_, _>>()
            .map(Self)
    }

    /// `largest`: the greatest value that exists here (days of this month).
    fn contains(&self, value: u32, largest: u32) -> bool {
        self.0.iter().any(|step| match *step {
            Step::LastDay => value == largest,
            Step::Range { first, last, step } => {
                value >= first
                    && value <= last.min(largest)
                    && value.saturating_sub(first).checked_rem(step) == Some(0)
            }
        })
    }
}

impl Step {
    fn parse(text: &str, kind: &Kind) -> Result<Self, ParseError> {
        if let Some(numbers) = Numbers::parse(text) {
            return numbers.check(text, kind);
        }
        if kind.name == DAY.name
            && text
                .get(..4)
                .is_some_and(|head| head.eq_ignore_ascii_case("last"))
        {
            return Ok(Self::LastDay);
        }
        if !kind.names.is_empty() && text.starts_with(|c: char| c.is_ascii_alphabetic()) {
            return named(text, kind);
        }
        Err(ParseError::new(format!(
            "Unrecognized expression \"{text}\" for field \"{}\"",
            kind.name
        )))
    }
}

/// `*`, `*/5`, `3`, `3/5`, `3-9`, `3-9/2`.
struct Numbers {
    /// `None` for `*`.
    first: Option<u64>,
    last: Option<u64>,
    step: Option<u64>,
}

impl Numbers {
    fn parse(text: &str) -> Option<Self> {
        let (range, step) = match text.split_once('/') {
            Some((range, step)) => (range, Some(digits(step)?)),
            None => (text, None),
        };
        let (first, last) = match range.split_once('-') {
            _ if range == "*" => (None, None),
            Some((first, last)) => (Some(digits(first)?), Some(digits(last)?)),
            None => (Some(digits(range)?), None),
        };
        Some(Self { first, last, step })
    }

    fn check(&self, text: &str, kind: &Kind) -> Result<Step, ParseError> {
        if self.step == Some(0) {
            return Err(ParseError::new("Increment must be higher than 0"));
        }
        let (min, max) = (u64::from(kind.min), u64::from(kind.max));
        let last = match (self.first, self.last, self.step) {
            (Some(first), None, None) => Some(first),
            (_, last, _) => last,
        };
        let first = self.first.unwrap_or(min);
        if last.is_some_and(|last| first > last) {
            let message = "The minimum value in a range must not be higher than the maximum";
            return Err(ParseError::new(message));
        }
        let wrong = |why: String| {
            Err(ParseError::new(format!(
                "Error validating expression {}: {why}",
                quote(text)
            )))
        };
        let too_far = |step: u64, range: i128| {
            wrong(format!(
                "the step value ({step}) is higher than the total range of the expression ({range})"
            ))
        };
        let step = self.step.unwrap_or(1);
        if self.step.is_some() && step > max.saturating_sub(min) {
            return too_far(step, i128::from(max.saturating_sub(min)));
        }
        if first < min {
            return wrong(format!(
                "the first value ({first}) is lower than the minimum value ({min})"
            ));
        }
        if let Some(last) = last.filter(|last| *last > max) {
            return wrong(format!(
                "the last value ({last}) is higher than the maximum value ({max})"
            ));
        }
        let range = i128::from(last.filter(|last| *last != 0).unwrap_or(max)) - i128::from(first);
        if self.step.is_some() && i128::from(step) > range {
            return too_far(step, range);
        }
        let small = |value: u64| u32::try_from(value).unwrap_or(u32::MAX);
        Ok(Step::Range {
            first: small(first),
            last: small(last.unwrap_or(max)),
            step: small(step),
        })
    }
}

fn digits(text: &str) -> Option<u64> {
    if text.is_empty() || !text.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    Some(text.parse().unwrap_or(u64::MAX))
}

/// `mon`, `Mon-fri`; what follows is ignored, as in dstack 0.22.5.
fn named(text: &str, kind: &Kind) -> Result<Step, ParseError> {
    let (first, rest) = letters(text);
    let last = rest
        .strip_prefix('-')
        .map(|rest| letters(rest).0)
        .filter(|last| !last.is_empty());
    let number = |name: &str| {
        let lower = name.to_lowercase();
        let at = kind.names.iter().position(|known| *known == lower);
        at.and_then(|at| u32::try_from(at).ok())
            .map(|at| at.saturating_add(kind.min))
            .ok_or_else(|| ParseError::new(format!("Invalid {} name \"{name}\"", kind.called)))
    };
    let first = number(first)?;
    let last = last.map_or(Ok(first), number)?;
    if first > last {
        return Err(ParseError::new(
            "The minimum value in a range must not be higher than the maximum",
        ));
    }
    Ok(Step::Range { first, last, step: 1 })
}

fn letters(text: &str) -> (&str, &str) {
    let end = text
        .find(|c: char| !c.is_ascii_alphabetic())
        .unwrap_or(text.len());
    text.split_at(end)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn next(cron: &str, after: &str) -> String {
        let cron: Cron = cron.parse().unwrap();
        cron.next_at_or_after(after.parse().unwrap())
            .map_or("never".to_owned(), |time| time.to_string())
    }

    #[test]
    fn next_fire_times() {
        // Expected values computed with APScheduler 3.
        let from = "2026-11-21T10:22:48Z"; // a Saturday
        assert_eq!(next("* * * * *", from), "2026-11-21T10:23:00Z");
        assert_eq!(next("* * * * *", "2026-11-21T10:22:00Z"), "2026-11-21T10:22:00Z");
        assert_eq!(next("*/15 * * * *", from), "2026-11-21T10:30:00Z");
        assert_eq!(next("0 8 * * 0-4", from), "2026-11-23T08:00:00Z");
        assert_eq!(next("0 8 * * mon-fri", from), "2026-11-23T08:00:00Z");
        assert_eq!(next("0 0 1 1 *", from), "2027-01-01T00:00:00Z");
        assert_eq!(next("30 23 last * *", from), "2026-11-30T23:30:00Z");
        assert_eq!(next("0 0 29 feb *", from), "2028-02-29T00:00:00Z");
        assert_eq!(next("5/10 3-5 * * *", from), "2026-11-22T03:05:00Z");
        assert_eq!(next("0 0 31 * *", from), "2026-12-31T00:00:00Z");
        assert_eq!(next("0 0 13 * 4", from), "2027-08-13T00:00:00Z");
        assert_eq!(next("0 0 30 2 *", from), "never");
    }

    #[test]
    fn refusals() {
        for (text, message) in [
            ("* *", "Wrong number of fields; got 2, expected 5"),
            ("", "Wrong number of fields; got 0, expected 5"),
            (
                "60 * * * *",
                "Error validating expression '60': the last value (60) is higher than the maximum value (59)",
            ),
            (
                "* * 0 * *",
                "Error validating expression '0': the first value (0) is lower than the minimum value (1)",
            ),
            ("*/0 * * * *", "Increment must be higher than 0"),
            (
                "*/60 * * * *",
                "Error validating expression '*/60': the step value (60) is higher than the total range of the expression (59)",
            ),
            (
                "5-1 * * * *",
                "The minimum value in a range must not be higher than the maximum",
            ),
            ("x * * * *", "Unrecognized expression \"x\" for field \"minute\""),
            ("* * * foo *", "Invalid month name \"foo\""),
            ("* * * * funday", "Invalid weekday name \"funday\""),
            (
                "* * * * 7",
                "Error validating expression '7': the last value (7) is higher than the maximum value (6)",
            ),
        ] {
            assert_eq!(text.parse::<Cron>().unwrap_err().message(), message, "{text}");
        }
    }

    proptest! {
        #[test]
        fn never_panics(text in ".*", fields in "([-*/,0-9a-z]{1,6} ){4}[-*/,0-9a-z]{1,6}") {
            let _ = text.parse::<Cron>();
            if let Ok(cron) = fields.parse::<Cron>() {
                prop_assert_eq!(cron.to_string(), fields);
                let _ = cron.next_at_or_after(Time::EPOCH);
            }
        }

        #[test]
        fn a_match_is_never_early(minute in 0u32..60, hour in 0u32..24, now in 0i64..4_000_000_000) {
            let cron: Cron = format!("{minute} {hour} * * *").parse().unwrap();
            let now = Time::from_millis(now * 1000);
            let found = cron.next_at_or_after(now).unwrap();
            prop_assert!(found >= now);
            prop_assert!(found.since(now) <= std::time::Duration::from_secs(86_400));
        }
    }
}
