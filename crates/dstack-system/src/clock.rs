//! What time it is.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use dstack_units::Time;

/// Tells the time. Waiting is `tokio::time`'s: under simulation tokio's time is paused and this clock follows it.
pub trait Clock: Send + Sync + fmt::Debug {
    /// The time now.
    fn now(&self) -> Time;
}

/// A shared clock.
pub type SharedClock = Arc<dyn Clock>;

/// The machine's clock.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    #[allow(clippy::disallowed_methods)] // the one place
    fn now(&self) -> Time {
        jiff::Timestamp::now().into()
    }
}

/// A clock that starts at a fixed time and follows tokio's (paused) time: one simulated second costs nothing.
#[derive(Debug, Clone, Copy)]
pub struct VirtualClock {
    epoch: Time,
    started: tokio::time::Instant,
}

impl VirtualClock {
    /// A clock that shows `epoch` now. Must be called inside a tokio runtime.
    pub fn starting_at(epoch: Time) -> Self {
        Self {
            epoch,
            started: tokio::time::Instant::now(),
        }
    }
}

impl Clock for VirtualClock {
    fn now(&self) -> Time {
        self.epoch + self.started.elapsed()
    }
}

/// Waits until the clock shows `deadline`; returns at once when it has passed.
pub async fn sleep_until(clock: &dyn Clock, deadline: Time) {
    // A wall clock may be set back while we wait: look again instead of trusting one computed delay.
    loop {
        let left = deadline.since(clock.now());
        if left.is_zero() {
            return;
        }
        tokio::time::sleep(left.min(Duration::from_secs(60))).await;
    }
}

/// The machine's time zone.
pub fn local_zone() -> jiff::tz::TimeZone {
    jiff::tz::TimeZone::system()
}
