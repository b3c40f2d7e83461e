//! Log events of jobs, and pages of them.

use dstack_units::Time;
use serde::Serialize;

use crate::{Decode, string_enum};

string_enum! {
    /// Who writes a log.
    pub enum LogProducer {
        /// The runner, about its own work.
        Runner = "runner",
        /// The job's commands.
        Job = "job",
    }
}

string_enum! {
    /// Where a line was written.
    pub enum LogEventSource {
        /// Written to the standard output.
        Stdout = "stdout",
        /// Written to the standard error.
        Stderr = "stderr",
    }
}

/// A piece of a log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Decode)]
pub struct LogEvent {
    /// When it was written.
    pub timestamp: Time,
    /// Where it was written to.
    pub log_source: LogEventSource,
    /// The bytes that were written, in Base64.
    pub message: String,
}

/// A page of a log.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Decode)]
pub struct JobSubmissionLogs {
    /// The pieces, in the order that was asked for.
    pub logs: Vec<LogEvent>,
    /// Where the log can be seen in a browser.
    pub external_url: Option<String>,
    /// What to ask for the next page with.
    pub next_token: Option<String>,
}
