//! Asks the jobs of services whether they can take requests, as their probes say. What comes of it is in the row of the job as far
//! as it changes something there: a service that is well writes nothing.

mod places;

use std::sync::Arc;
use std::time::Duration;

use dstack_model::runs::{JobStatus, ProbeSpec};
use dstack_plan::probes::{ProbeState, ProbeStates};
use dstack_store::rows::JobRow;
use dstack_store::{EntityRef, JobSnapshot};
use dstack_system::clock::sleep_until;
use dstack_units::JobId;
use futures_util::future::try_join_all;

pub use self::places::{MAX_PROBES, MAX_PROBES_OF_PROJECT, Places};
use super::FOLLOW_AGAIN;
use crate::Result;
use crate::context::Context;
use crate::running::{Begun, Work};

/// Makes sure that the probes of a running job are asked.
pub fn ensure(ctx: &Arc<Context>, job: &JobRow) {
    let specs = &job.job_spec.probes;
    let states = job.probes.as_ref();
    if states.is_none_or(|states| states.to_ask(specs).next().is_none()) {
        return;
    }
    let id = job.id;
    let Some(begun) = Begun::new(ctx, Work::Probe(id)) else {
        return;
    };
    let context = Arc::clone(ctx);
    ctx.spawn_under_lease("probe", EntityRef::Job(id), async move {
        begun.unless_cut_off(ask_again(&context, id)).await;
        drop(begun);
    });
}

/// The job does not run any more.
pub fn stop(ctx: &Context, job: JobId) {
    ctx.running.cut_off(Work::Probe(job));
}

/// Until no probe is to be asked any more, also when the store fails meanwhile.
async fn ask_again(ctx: &Context, job: JobId) {
    while let Err(error) = ask_all(ctx, job).await {
        ctx.report("probe", &error);
        tokio::time::sleep(FOLLOW_AGAIN).await;
    }
}

/// Side by side: one that takes long holds up no other. One that cannot go on ends all: they are begun again together.
async fn ask_all(ctx: &Context, id: JobId) -> Result<()> {
    let Some(job) = find(ctx, id).await? else {
        return Ok(());
    };
    let (specs, states) = (&job.job.job_spec.probes, states(&job.job));
    let of = |index: usize| {
        let asked = Asked {
            ctx,
            id,
            index,
            spec: specs.get(index)?,
            state: states.of(index),
        };
        Some(asked.until_over(Arc::clone(&job)))
    };
    try_join_all(states.to_ask(specs).filter_map(of)).await?;
    Ok(())
}

fn states(job: &JobRow) -> ProbeStates {
    job.probes.clone().unwrap_or_default()
}

/// The job, if it runs and this server drives it. It is read once, since that decrypts its specification, and again when it was
/// not well: it may be reached in another way by now.
async fn find(ctx: &Context, id: JobId) -> Result<Option<Arc<JobSnapshot>>> {
    let found = ctx.deps.store.job(id).await?;
    let is_ours = ctx.leases.contains(EntityRef::Job(id));
    let found = found.filter(|found| is_ours && found.job.status() == JobStatus::Running);
    Ok(found.map(Arc::new))
}

/// One probe of a job.
struct Asked<'a> {
    ctx: &'a Context,
    id: JobId,
    index: usize,
    spec: &'a ProbeSpec,
    state: ProbeState,
}

impl Asked<'_> {
    /// At once, and then with the pause of the probe, until it is not to be asked any more.
    async fn until_over(mut self, mut job: Arc<JobSnapshot>) -> Result<()> {
        loop {
            let answer = self.ask(&job).await;
            let is_well = answer.is_ok();
            self.take(answer);
            let next = self.ctx.now() + seconds(self.spec.interval);
            sleep_until(self.ctx.deps.clock.as_ref(), next).await;
            if is_well && !self.state.is_over(self.spec) && self.ctx.leases.contains(EntityRef::Job(self.id))
            {
                continue;
            }
            match find(self.ctx, self.id).await? {
                // What was seen may have been forgotten before it was written: it is over when the row says so.
                Some(read) if !states(&read.job).of(self.index).is_over(self.spec) => job = read,
                _ => return Ok(()),
            }
        }
    }

    async fn ask(&self, job: &JobSnapshot) -> Result<(), String> {
        let Some(_place) = self.ctx.probing.take(job.job.project_id).await else {
            return Err("the server ends".to_owned());
        };
        let timeout = seconds(self.spec.timeout);
        let answer = self.ctx.deps.services.probe(job, self.spec);
        let answer = tokio::time::timeout(timeout, answer).await;
        answer.unwrap_or_else(|_| Err(format!("no answer within {}s", timeout.as_secs())))
    }

    fn take(&mut self, answer: Result<(), String>) {
        if let Err(failure) = &answer {
            tracing::debug!(job.id = %self.id, probe = self.spec.url, failure, "a probe has failed");
        }
        self.state = self.state.after(self.spec, answer);
        let before = self
            .ctx
            .seen
            .update_job(self.id, |seen| seen.probes.insert(self.index, self.state.clone()));
        if before.as_ref() != Some(&self.state) {
            self.ctx.wakes.wake(EntityRef::Job(self.id));
        }
    }
}

fn seconds(number: i64) -> Duration {
    Duration::from_secs(u64::try_from(number).unwrap_or(0).max(1))
}
