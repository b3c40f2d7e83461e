//! Logs.

use dstack_units::Time;
use serde::Serialize;

use crate::{Decode, string_enum};

string_enum! {
    /// Who writes a log.
    pub enum LogProducer {
        /// The runner.
        Runner = "runner",
        /// The job.
        Job = "job",
    }
}

string_enum! {
    /// Where a line was written.
    pub enum LogEventSource {
        /// Standard output.
        Stdout = "stdout",
        /// Standard error.
        Stderr = "stderr",
    }
}

/// A piece of a log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Decode)]
pub struct LogEvent {
    /// When.
    pub timestamp: Time,
    /// Where.
    pub log_source: LogEventSource,
    /// Base64.
    pub message: String,
}

/// A page of a log.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Decode)]
pub struct JobSubmissionLogs {
    /// The pieces.
    pub logs: Vec<LogEvent>,
    /// Where the log can be seen in a browser.
    pub external_url: Option<String>,
    /// What to ask for the next page with.
    pub next_token: Option<String>,
}
