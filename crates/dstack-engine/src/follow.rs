//! Streams of the agents, and what is asked of agents and jobs now and then. A broken stream is opened again where it broke.

mod health;
mod machine;
mod metrics;
pub mod probes;
pub mod runner;
pub mod shim;

use std::time::Duration;

/// Pause before a broken stream is opened again; doubles up to the longest.
const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);
/// Pause before a stream is followed again that ended because the store refused.
const FOLLOW_AGAIN: Duration = Duration::from_secs(1);

/// The pause after this one.
fn longer(pause: Duration) -> Duration {
    (pause * 2).min(LONGEST_PAUSE)
}
