//! When a run with a schedule starts (dstack 0.22.5: pipelines §3).

use dstack_model::runs::RunSpec;
use dstack_units::{Cron, Time};

/// The earliest time of the run's schedule that is not past; `None` without a schedule. Times that were missed, as while
/// the server was down, are skipped.
pub fn next_trigger(spec: &RunSpec, now: Time) -> Option<Time> {
    let schedule = spec.merged_profile().params.schedule?;
    let crons = schedule.cron.iter().filter_map(|text| text.parse::<Cron>().ok());
    crons.filter_map(|cron| cron.next_at_or_after(now)).min()
}
