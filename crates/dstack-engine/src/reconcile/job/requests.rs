//! Whether a job of a service gets requests: its probes say when it can, and it ends when they are finished.

use dstack_model::configurations::RouterType;
use dstack_model::runs::JobStatus;
use dstack_plan::lifecycle::WaitReason;
use dstack_plan::lifecycle::job::requests_timeout;
use dstack_plan::probes::ProbeStates;
use dstack_plan::services::routers::worker_of;
use dstack_store::rows::{JobRow, RunRow};
use dstack_units::Time;

use crate::context::Context;
use crate::observations::JobSeen;
use crate::services::Worker;

/// Takes over what its probes said.
pub(super) fn observe(job: &mut JobRow, run: &RunRow, seen: &JobSeen) {
    if job.status() != JobStatus::Running || run.run_spec.configuration.service().is_none() {
        return;
    }
    // It has run under a version that asked no probes, and served: it goes on until its probes say otherwise.
    let states = job.probes.take();
    let mut states = states.unwrap_or_else(|| ProbeStates::assumed(&job.job_spec.probes));
    for (index, state) in &seen.probes {
        states.set(*index, state.clone());
    }
    job.probes = Some(states);
}

/// What a running job waits for so that it gets requests, or goes on getting them.
pub(super) fn awaited(ctx: &Context, job: &JobRow, run: &RunRow) -> Option<WaitReason> {
    let probes = job.probes.as_ref();
    let awaited = probes.and_then(|probes| probes.awaited(&job.job_spec.probes));
    awaited.or_else(|| router_awaited(ctx, job, run))
}

/// What keeps the router of its service from having it as a worker.
fn router_awaited(ctx: &Context, job: &JobRow, run: &RunRow) -> Option<WaitReason> {
    if job.status() != JobStatus::Running || !is_told_to_router(run, job) {
        return None;
    }
    match ctx.deps.services.worker(run.id, job.id) {
        // What was known before stands.
        Worker::Unasked => job
            .waiting_for()
            .filter(|reason| matches!(reason, WaitReason::WorkerAdded { .. }))
            .cloned(),
        Worker::Added | Worker::Unknown(None) => None,
        Worker::Missing(error) | Worker::Unknown(error) => Some(WaitReason::WorkerAdded { error }),
    }
}

/// Whether the server tells a router of this job.
pub(crate) fn is_told_to_router(run: &RunRow, job: &JobRow) -> bool {
    let service = run.run_spec.configuration.service();
    let router = service.and_then(|service| worker_of(service, &job.job_spec.replica_group));
    router == Some(RouterType::Smg) && job.job_num == 0
}

/// A job that runs, and all of whose probes have succeeded, gets requests. That others take them from it is decided for the run.
pub(super) fn register(job: &mut JobRow, run: &RunRow) {
    if job.status() != JobStatus::Running || run.run_spec.configuration.service().is_none() {
        return;
    }
    let specs = &job.job_spec.probes;
    let states = job.probes.get_or_insert_with(|| ProbeStates::unasked(specs));
    if states.are_reached(specs) {
        job.ready = true;
        job.registered = job.standing(run).is_some();
    }
}

/// Whether requests go to other jobs of the service now, or the pace of its deployment changes: its run is to look.
pub(super) fn concerns_run(before: &JobRow, after: &JobRow) -> bool {
    let of = |job: &JobRow| {
        let failing = job.probes.as_ref().is_some_and(ProbeStates::are_failing);
        (job.ready, job.registered, failing)
    };
    of(before) != of(after)
}

/// A job that ends gets no requests through this server either: another one may have made the commit with which it began to end.
pub(super) fn withdraw(ctx: &Context, job: &JobRow) {
    if job.status() != JobStatus::Terminating {
        return;
    }
    let done = |seen: &mut JobSeen| std::mem::replace(&mut seen.requests_withdrawn, true);
    if !ctx.seen.update_job(job.id, done) {
        ctx.deps.services.unregistered(job.id, job.run_id);
    }
}

/// Until when the requests may go on that a job which is to end may still get, or has; `None`: there are none.
pub(super) fn until(ctx: &Context, job: &JobRow, run: &RunRow) -> Option<Time> {
    let limit = requests_timeout(job.termination_reason()?)?;
    let since = job.ending_since?;
    ctx.deps
        .services
        .serves(job.id, run.gateway_id)
        .then(|| since + limit)
}
