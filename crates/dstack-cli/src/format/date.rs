//! Dates and times.

use dstack_units::Time;
use jiff::tz::TimeZone;

const DAY: i64 = 86_400;

/// How long ago, in one unit. Empty for the future.
pub fn ago(now: Time, time: Time) -> String {
    let micros = now.as_micros() - time.as_micros();
    if micros < 0 {
        return String::new();
    }
    let seconds = micros / 1_000_000;
    match seconds {
        0..10 => "now".to_owned(),
        10..60 => format!("{seconds} sec ago"),
        60..120 => "1 min ago".to_owned(),
        120..3600 => format!("{} mins ago", rounded(seconds, 60)),
        3600..7200 => "1 hour ago".to_owned(),
        7200..DAY => format!("{} hours ago", rounded(seconds, 3600)),
        _ => days_ago(seconds / DAY),
    }
}

fn days_ago(days: i64) -> String {
    match days {
        1 => "yesterday".to_owned(),
        2..7 => format!("{days} days ago"),
        7..31 => counted(rounded(days, 7), "week"),
        31..365 => counted(rounded(days, 30), "month"),
        _ => counted(rounded(days, 365), "year"),
    }
}

fn counted(count: i64, unit: &str) -> String {
    if count == 1 {
        format!("1 {unit} ago")
    } else {
        format!("{count} {unit}s ago")
    }
}

/// `value / unit`, halves to the even neighbour.
const fn rounded(value: i64, unit: i64) -> i64 {
    let (quotient, rest) = (value / unit, value % unit);
    quotient + (rest * 2 > unit || (rest * 2 == unit && quotient % 2 == 1)) as i64
}

/// `HH:MM` in the local time zone.
pub fn clock(time: Time) -> String {
    local(time, "%H:%M")
}

/// `YYYY-MM-DD HH:MM:SS` in the local time zone.
pub fn full(time: Time) -> String {
    local(time, "%Y-%m-%d %H:%M:%S")
}

/// `YYYY-MM-DD HH:MM TZ` in the local time zone.
pub fn with_zone(time: Time) -> String {
    local(time, "%Y-%m-%d %H:%M %Z")
}

/// In a `strftime` format, in the local time zone.
pub fn local(time: Time, format: &str) -> String {
    time.to_jiff()
        .to_zoned(TimeZone::system())
        .strftime(format)
        .to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units() {
        let now = Time::from_millis(1_800_000_000_000);
        for (seconds, shown) in [
            (0, "now"),
            (9, "now"),
            (10, "10 sec ago"),
            (59, "59 sec ago"),
            (60, "1 min ago"),
            (150, "2 mins ago"),
            (200, "3 mins ago"),
            (3600, "1 hour ago"),
            (7200, "2 hours ago"),
            (86_399, "24 hours ago"),
            (86_400, "yesterday"),
            (3 * 86_400, "3 days ago"),
            (7 * 86_400, "1 week ago"),
            (25 * 86_400, "4 weeks ago"),
            (31 * 86_400, "1 month ago"),
            (200 * 86_400, "7 months ago"),
            (365 * 86_400, "1 year ago"),
            (1000 * 86_400, "3 years ago"),
        ] {
            let then = Time::from_millis(1_800_000_000_000 - seconds * 1000);
            assert_eq!(ago(now, then), shown, "{seconds}");
        }
        assert_eq!(ago(Time::EPOCH, Time::from_millis(1)), "");
    }
}
