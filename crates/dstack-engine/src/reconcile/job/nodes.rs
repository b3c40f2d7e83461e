//! What a job waits for of the other nodes of its run. Its run wakes it when it waits no more.

use dstack_agent_api::shim::{TaskInfo, TaskStatus};
use dstack_model::runs::JobStatus;
use dstack_plan::lifecycle::WaitReason;
use dstack_plan::nodes::{Impossible, needs_peers};
use dstack_store::JobSnapshot;
use dstack_store::rows::OperationKind;

use crate::Result;
use crate::context::Context;
use crate::peers::{Peers, peers_of};

/// What a job waits for of the other nodes of its run.
#[derive(Debug, Default)]
pub(super) struct Waits {
    /// Before its task is prepared.
    pub(super) task: Option<WaitReason>,
    /// Before its commands are started.
    pub(super) start: Option<WaitReason>,
    /// Why the commands can never be started.
    pub(super) impossible: Option<Impossible>,
}

/// Looks at the other nodes, if the next step of the job depends on them.
pub(super) async fn waits(
    ctx: &Context,
    snapshot: &JobSnapshot,
    task: &Option<Option<TaskInfo>>,
) -> Result<Waits> {
    if !needs_peers(&snapshot.run.run_spec, &snapshot.job.job_spec) {
        return Ok(Waits::default());
    }
    let intended = |kind| snapshot.operations.iter().any(|operation| operation.kind == kind);
    let is_up = matches!(task, Some(Some(info)) if info.status == TaskStatus::Running);
    let is_next = match snapshot.job.status() {
        JobStatus::Provisioning => !intended(OperationKind::SubmitTask),
        JobStatus::Pulling => is_up && !intended(OperationKind::StartJob),
        _ => false,
    };
    if !is_next {
        return Ok(Waits::default());
    }
    let jobs = peers_of(ctx, &snapshot.job).await?;
    let peers = jobs.peers();
    let peers = Peers::new(&snapshot.run.run_spec, &snapshot.job.job_spec, &peers);
    Ok(match snapshot.job.status() {
        JobStatus::Provisioning => Waits {
            task: peers.task_waits_for(),
            ..Waits::default()
        },
        _ => Waits {
            task: None,
            start: peers.start_waits_for(),
            impossible: peers.start_impossible(ctx.now().since(snapshot.job.submitted_at)),
        },
    })
}
