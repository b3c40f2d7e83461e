//! Tables of what the server answers.

pub(crate) mod diagnosis;
pub(crate) mod explanations;
pub mod fleets;
pub mod gateways;
pub(crate) mod metrics;
pub mod offers;
pub(crate) mod requests;
pub(crate) mod rollouts;
pub mod runs;
pub(crate) mod sharing;
pub mod volumes;

use dstack_system::{Clock, SystemClock};
use dstack_units::Time;

use crate::format::date;

/// How times are shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dates {
    /// How long ago.
    Ago,
    /// Hour and minute.
    Clock,
}

impl Dates {
    fn show(self, time: Time) -> String {
        match self {
            Self::Ago => date::ago(SystemClock.now(), time),
            Self::Clock => date::clock(time),
        }
    }
}
