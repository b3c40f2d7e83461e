//! Jobs that get no place, and what follows for their runs.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use dstack_model::runs::JobTerminationReason;
use dstack_store::rows::JobRow;
use dstack_store::{Changes, EntityRef, EventMaker, RunSnapshot};
use dstack_units::RunId;
use futures_util::future::join_all;

use super::run;
use crate::context::Context;
use crate::{EngineError, Result};

/// A job that gets no place, in the two steps of its end.
pub(super) struct RefusedJob {
    before: JobRow,
    ending: JobRow,
    ended: JobRow,
}

/// Jobs that get no place, by run.
pub(super) type Refused = BTreeMap<RunId, Vec<RefusedJob>>;

/// There is no place for the job.
pub(super) fn refuse(ctx: &Context, before: &JobRow, message: String) -> Result<RefusedJob> {
    refuse_for(
        ctx,
        before,
        JobTerminationReason::FailedToStartDueToNoCapacity,
        message,
    )
}

/// The job ends without having had a place: nothing of it is anywhere, so that both steps are taken at once.
pub(super) fn refuse_for(
    ctx: &Context,
    before: &JobRow,
    reason: JobTerminationReason,
    message: String,
) -> Result<RefusedJob> {
    let now = ctx.now();
    let mut ending = before.clone();
    ending.terminate(reason, Some(message), now)?;
    // Events are listed by time.
    let ended_at = now + Duration::from_micros(1);
    let mut ended = ending.clone();
    ended.finish(reason.status(), ended_at)?;
    ended.last_processed_at = ended_at;
    Ok(RefusedJob {
        before: before.clone(),
        ending,
        ended,
    })
}

/// The ends of jobs and, in the same commit, what follows for their runs.
pub(super) async fn ends(
    ctx: &Context,
    refused: Refused,
    mut runs: BTreeMap<RunId, RunSnapshot>,
) -> Result<Changes> {
    let mut all = Changes::new(EventMaker::system(ctx.now(), ctx.deps.random.clone()));
    for (run, jobs) in refused {
        let ours = ctx.leases.contains(EntityRef::Run(run));
        let snapshot = runs.remove(&run);
        let snapshot = snapshot.filter(|snapshot| ours && !snapshot.run.status().is_finished());
        let after = snapshot.map(|snapshot| RunSnapshot {
            jobs: replaced(snapshot.jobs, &jobs),
            ..snapshot
        });
        for job in jobs {
            all.update(&job.before, job.ending.clone());
            all.update(&job.ending, job.ended);
        }
        if let Some(after) = after {
            match run::advance(ctx, &after).await {
                Ok(changes) => all.extend(changes.into_commit()),
                Err(error @ (EngineError::Killed(_) | EngineError::LeaseLost)) => return Err(error),
                // The ends of its jobs wake the run, which then holds up nobody else.
                Err(error) => ctx.report("end a run", &error),
            }
        }
    }
    Ok(all)
}

/// The jobs with those that have ended as they are then.
fn replaced(mut jobs: Vec<JobRow>, refused: &[RefusedJob]) -> Vec<JobRow> {
    for job in &mut jobs {
        if let Some(refused) = refused.iter().find(|refused| refused.ended.id == job.id) {
            job.clone_from(&refused.ended);
        }
    }
    jobs
}

/// The runs with their jobs, each read once.
pub(super) async fn snapshots(
    ctx: &Context,
    runs: impl Iterator<Item = RunId>,
) -> Result<BTreeMap<RunId, RunSnapshot>> {
    let runs: BTreeSet<RunId> = runs.collect();
    let mut found = BTreeMap::new();
    for snapshot in join_all(runs.into_iter().map(|run| ctx.deps.store.run(run))).await {
        found.extend(snapshot?.map(|snapshot| (snapshot.run.id, snapshot)));
    }
    Ok(found)
}
