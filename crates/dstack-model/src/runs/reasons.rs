//! Why runs and jobs end, and what follows from it.

use super::{JobStatus, RunStatus};
use crate::profiles::RetryEvent;
use crate::string_enum;

string_enum! {
    /// Why a run ends.
    pub enum RunTerminationReason {
        /// All jobs ended well.
        AllJobsDone = "all_jobs_done",
        /// A job failed.
        JobFailed = "job_failed",
        /// It was retried for too long.
        RetryLimitExceeded = "retry_limit_exceeded",
        /// A user stopped it.
        StoppedByUser = "stopped_by_user",
        /// A user stopped it at once.
        AbortedByUser = "aborted_by_user",
        /// The server failed.
        ServerError = "server_error",
        /// The gateway failed.
        GatewayError = "gateway_error",
    }
}

impl RunTerminationReason {
    /// The reason of jobs that still are active then.
    pub const fn job_reason(self) -> JobTerminationReason {
        match self {
            Self::AllJobsDone => JobTerminationReason::DoneByRunner,
            Self::StoppedByUser => JobTerminationReason::TerminatedByUser,
            Self::AbortedByUser => JobTerminationReason::AbortedByUser,
            Self::JobFailed | Self::RetryLimitExceeded | Self::ServerError | Self::GatewayError => {
                JobTerminationReason::TerminatedByServer
            }
        }
    }

    /// The run's last status.
    pub const fn status(self) -> RunStatus {
        match self {
            Self::AllJobsDone => RunStatus::Done,
            Self::StoppedByUser | Self::AbortedByUser => RunStatus::Terminated,
            Self::JobFailed | Self::RetryLimitExceeded | Self::ServerError | Self::GatewayError => {
                RunStatus::Failed
            }
        }
    }

    /// What users are told as the run's error.
    pub const fn error(self) -> Option<&'static str> {
        match self {
            Self::RetryLimitExceeded => Some("retry limit exceeded"),
            Self::ServerError => Some("server error"),
            Self::GatewayError => Some("gateway error"),
            _ => None,
        }
    }
}

string_enum! {
    /// Why a job ends.
    pub enum JobTerminationReason {
        /// No instance could be had.
        FailedToStartDueToNoCapacity = "failed_to_start_due_to_no_capacity",
        /// Its spot instance was taken away.
        InterruptedByNoCapacity = "interrupted_by_no_capacity",
        /// Its instance does not answer.
        InstanceUnreachable = "instance_unreachable",
        /// Its instance may no longer be used by the project.
        InstanceAccessRevoked = "instance_access_revoked",
        /// Its instance did not come up in time.
        WaitingInstanceLimitExceeded = "waiting_instance_limit_exceeded",
        /// Its runner did not come up in time.
        WaitingRunnerLimitExceeded = "waiting_runner_limit_exceeded",
        /// A user stopped it.
        TerminatedByUser = "terminated_by_user",
        /// A volume could not be used.
        VolumeError = "volume_error",
        /// The gateway failed.
        GatewayError = "gateway_error",
        /// The service needs fewer replicas.
        ScaledDown = "scaled_down",
        /// It ended well.
        DoneByRunner = "done_by_runner",
        /// A user stopped it at once.
        AbortedByUser = "aborted_by_user",
        /// The run ends.
        TerminatedByServer = "terminated_by_server",
        /// Nobody used the development environment.
        InactivityDurationExceeded = "inactivity_duration_exceeded",
        /// It left its GPUs idle.
        TerminatedDueToUtilizationPolicy = "terminated_due_to_utilization_policy",
        /// Its command failed.
        ContainerExitedWithError = "container_exited_with_error",
        /// A port is taken.
        PortsBindingFailed = "ports_binding_failed",
        /// Its container could not be made.
        CreatingContainerError = "creating_container_error",
        /// The runner failed.
        ExecutorError = "executor_error",
        /// It ran for too long.
        MaxDurationExceeded = "max_duration_exceeded",
        /// It logged too much.
        LogQuotaExceeded = "log_quota_exceeded",
    }
}

impl JobTerminationReason {
    /// The job's last status.
    pub const fn status(self) -> JobStatus {
        match self {
            Self::TerminatedByUser
            | Self::ScaledDown
            | Self::TerminatedByServer
            | Self::InactivityDurationExceeded
            | Self::TerminatedDueToUtilizationPolicy
            | Self::MaxDurationExceeded => JobStatus::Terminated,
            Self::DoneByRunner => JobStatus::Done,
            Self::AbortedByUser => JobStatus::Aborted,
            Self::FailedToStartDueToNoCapacity
            | Self::InterruptedByNoCapacity
            | Self::InstanceUnreachable
            | Self::InstanceAccessRevoked
            | Self::WaitingInstanceLimitExceeded
            | Self::WaitingRunnerLimitExceeded
            | Self::VolumeError
            | Self::GatewayError
            | Self::ContainerExitedWithError
            | Self::PortsBindingFailed
            | Self::CreatingContainerError
            | Self::ExecutorError
            | Self::LogQuotaExceeded => JobStatus::Failed,
        }
    }

    /// Which retry event it is; `None`: never retried.
    pub const fn retry_event(self) -> Option<RetryEvent> {
        match (self, self.status()) {
            (Self::FailedToStartDueToNoCapacity, _) => Some(RetryEvent::NoCapacity),
            (Self::InterruptedByNoCapacity, _) => Some(RetryEvent::Interruption),
            (_, JobStatus::Failed) => Some(RetryEvent::Error),
            _ => None,
        }
    }

    /// What users are told as the job's error; `None` where the status message says it already.
    pub const fn error(self) -> Option<&'static str> {
        match self {
            Self::InstanceUnreachable => Some("instance unreachable"),
            Self::InstanceAccessRevoked => Some("instance access revoked"),
            Self::WaitingInstanceLimitExceeded => Some("waiting instance limit exceeded"),
            Self::WaitingRunnerLimitExceeded => Some("waiting runner limit exceeded"),
            Self::VolumeError => Some("volume error"),
            Self::GatewayError => Some("gateway error"),
            Self::ScaledDown => Some("scaled down"),
            Self::InactivityDurationExceeded => Some("inactivity duration exceeded"),
            Self::TerminatedDueToUtilizationPolicy => Some("utilization policy"),
            Self::PortsBindingFailed => Some("ports binding failed"),
            Self::CreatingContainerError => Some("runner error"),
            Self::ExecutorError => Some("executor error"),
            Self::MaxDurationExceeded => Some("max duration exceeded"),
            Self::LogQuotaExceeded => Some("log quota exceeded"),
            _ => None,
        }
    }
}
