//! Times that are reckoned from durations which somebody else has set.

use std::time::Duration;

use tokio::time::Instant;

/// Longer than anything runs.
const YEAR: Duration = Duration::from_secs(365 * 24 * 3600);

/// This much later, a year at most: what is beyond the clock's range would panic.
pub(crate) fn later(time: Instant, by: Duration) -> Instant {
    time + by.min(YEAR)
}
