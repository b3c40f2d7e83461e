//! Termination reasons as agents write them.

use dstack_model::runs::JobTerminationReason;
use dstack_store::Column;

/// The reason of an agent's text (any case); `None` when it is empty or unknown.
pub fn from_agent(text: &str) -> Option<JobTerminationReason> {
    JobTerminationReason::from_raw(text.to_lowercase()).ok()
}
