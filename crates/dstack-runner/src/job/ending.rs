//! How a job ended.

use std::fmt;
use std::io;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;

use dstack_agent_api::runner::{JobState, JobStateEvent};

/// The last state of a job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ending {
    state: JobState,
    reason: &'static str,
    message: String,
    exit_status: Option<i32>,
}

impl Ending {
    fn new(state: JobState, reason: &'static str, message: impl Into<String>) -> Self {
        Self {
            state,
            reason,
            message: message.into(),
            exit_status: None,
        }
    }

    /// Failed by the runner's own fault; the server shows it as a container error.
    pub(super) fn failed() -> Self {
        Self::new(JobState::Failed, "", "")
    }

    /// User, working directory or files cannot be had.
    pub(super) fn executor_error(message: impl Into<String>) -> Self {
        Self::new(JobState::Failed, "executor_error", message)
    }

    /// The repo cannot be prepared.
    pub(super) fn repo_error(message: impl Into<String>) -> Self {
        Self::new(JobState::Failed, "container_exited_with_error", message)
    }

    /// The program cannot be started: in words a person can act upon.
    pub(super) fn not_started(program: &str, error: &io::Error) -> Self {
        let why = match error.kind() {
            io::ErrorKind::NotFound => "not found in the image".to_owned(),
            io::ErrorKind::PermissionDenied => "permission denied".to_owned(),
            _ => error.to_string(),
        };
        Self::new(JobState::Failed, "", format!("Failed to start {program}: {why}"))
    }

    /// Stopped by the server or a signal.
    pub(super) fn stopped() -> Self {
        Self::new(JobState::Terminated, "", "")
    }

    /// `max_duration` is over.
    pub(super) fn max_duration() -> Self {
        Self::new(
            JobState::Terminated,
            "max_duration_exceeded",
            "Max duration exceeded",
        )
    }

    /// Too much log.
    pub(super) fn quota(limit: u64) -> Self {
        let message = format!("Job log output exceeded the hourly quota of {limit} bytes");
        Self::new(JobState::Failed, "log_quota_exceeded", message)
    }

    /// The commands ended by themselves. Killed by a signal: exit status -1.
    pub(super) fn exited(status: ExitStatus) -> Self {
        let code = status.code().unwrap_or(-1);
        let state = if code == 0 {
            JobState::Done
        } else {
            JobState::Failed
        };
        let mut ending = Self::new(state, "", "");
        ending.exit_status = Some(code);
        if let Some(signal) = status.signal() {
            ending.message = format!("Killed by signal {signal}");
        }
        ending
    }
}

impl From<Ending> for JobStateEvent {
    fn from(ending: Ending) -> Self {
        Self {
            state: ending.state,
            timestamp: 0,
            termination_reason: ending.reason.to_owned(),
            termination_message: ending.message,
            exit_status: ending.exit_status,
            watched: false,
        }
    }
}

impl fmt::Display for Ending {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.state)?;
        if let Some(status) = self.exit_status {
            write!(f, ", exit status {status}")?;
        }
        if !self.reason.is_empty() {
            write!(f, ", {}", self.reason)?;
        }
        if !self.message.is_empty() {
            write!(f, ": {}", self.message)?;
        }
        Ok(())
    }
}
