//! Which status may follow which. The engine checks every commit against these tables.

use dstack_model::instances::InstanceStatus;
use dstack_model::runs::{JobStatus, RunStatus};

/// Whether a run may go from one status to the other.
pub const fn run_allowed(from: RunStatus, to: RunStatus) -> bool {
    use RunStatus::{Done, Failed, Pending, Provisioning, Running, Submitted, Terminated, Terminating};
    match from {
        Pending => matches!(to, Submitted | Terminating),
        // A retry gives the run new submissions, so that it may go back to every earlier status.
        Submitted | Provisioning | Running => {
            matches!(to, Submitted | Provisioning | Running | Pending | Terminating)
        }
        Terminating => matches!(to, Terminated | Failed | Done | Pending),
        Terminated | Failed | Done => false,
    }
}

/// Whether a job submission may go from one status to the other.
pub const fn job_allowed(from: JobStatus, to: JobStatus) -> bool {
    use JobStatus::{
        Aborted, Done, Failed, Provisioning, Pulling, Running, Submitted, Terminated, Terminating,
    };
    match from {
        Submitted => matches!(to, Provisioning | Terminating),
        Provisioning => matches!(to, Pulling | Running | Terminating),
        Pulling => matches!(to, Running | Terminating),
        Running => matches!(to, Terminating),
        Terminating => matches!(to, Terminated | Aborted | Failed | Done),
        Terminated | Aborted | Failed | Done => false,
    }
}

/// Whether an instance may go from one status to the other.
pub const fn instance_allowed(from: InstanceStatus, to: InstanceStatus) -> bool {
    use InstanceStatus::{Busy, Idle, Pending, Provisioning, Terminated, Terminating};
    match from {
        Pending => matches!(to, Provisioning | Idle | Busy | Terminating | Terminated),
        Provisioning => matches!(to, Idle | Busy | Terminating | Terminated),
        Idle => matches!(to, Busy | Terminating),
        Busy => matches!(to, Idle | Terminating),
        Terminating => matches!(to, Terminated),
        Terminated => false,
    }
}
