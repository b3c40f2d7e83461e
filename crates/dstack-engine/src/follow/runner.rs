//! Follows output and states of a job's runner: each line is stored before it is acknowledged.

use std::sync::Arc;
use std::time::Duration;

use dstack_agent_api::runner::{JobState, JobStateEvent};
use dstack_agent_api::stream::StreamLine;
use dstack_model::runs::{JobStatus, JobTerminationReason};
use dstack_plan::lifecycle::job::Ended;
use dstack_store::rows::JobRow;
use dstack_store::{EntityRef, JobSnapshot};
use dstack_units::JobId;
use tokio::time::Instant;

use super::{FIRST_PAUSE, FOLLOW_AGAIN, longer, metrics};
use crate::context::Context;
use crate::reconcile::job::counts_inactivity;
use crate::running::{Begun, Work};
use crate::{Batch, EventSource, Piece, Result, Runner, operations};

/// Output is stored when this much has come…
const BATCH_BYTES: usize = 1024 * 1024;
/// …or nothing more comes at once.
const LINGER: Duration = Duration::from_millis(5);
/// How long those who read the output at the runner may take for the rest of it, and to disconnect.
const WATCHERS_LEAVE: Duration = Duration::from_secs(15);
/// The row follows the stored output this often; after a crash the rest is read again and recognised.
const CURSOR_EVERY: Duration = Duration::from_secs(2);

/// Makes sure that the runner of a job is followed.
pub fn ensure(ctx: &Arc<Context>, job: JobId) {
    let Some(begun) = Begun::new(ctx, Work::FollowRunner(job)) else {
        return;
    };
    let context = Arc::clone(ctx);
    ctx.spawn_under_lease("follow runner", EntityRef::Job(job), async move {
        tokio::select! {
            () = follow_again(&context, job) => {}
            () = metrics::sample(&context, job) => {}
        }
        drop(begun);
    });
}

/// Until there is nothing more to hear, also when the store fails meanwhile. A timer of the job would do only until the next look
/// at it.
async fn follow_again(ctx: &Arc<Context>, job: JobId) {
    while let Err(error) = follow(ctx, job).await {
        ctx.report("follow runner", &error);
        tokio::time::sleep(FOLLOW_AGAIN).await;
        if !ctx.leases.contains(EntityRef::Job(job)) {
            return ctx.seen.forget_job(job);
        }
    }
}

async fn follow(ctx: &Arc<Context>, id: JobId) -> Result<()> {
    let mut pause = FIRST_PAUSE;
    loop {
        let Some(snapshot) = ctx.deps.store.job(id).await? else {
            return Ok(());
        };
        if !ctx.leases.contains(EntityRef::Job(id)) {
            // Another server hears it with its own ears.
            ctx.seen.forget_job(id);
            return Ok(());
        }
        if !listening(&snapshot) || ctx.seen.job(id).drained {
            return Ok(());
        }
        let Some(address) = snapshot
            .instance
            .as_ref()
            .and_then(|instance| instance.agent.clone())
        else {
            return Ok(());
        };
        let Some(runner) = operations::runner_of(ctx, &snapshot, &address).await? else {
            return Ok(());
        };
        let heard = Listener {
            ctx,
            job: &snapshot.job,
            runner: runner.as_ref(),
            inactivity_counts: counts_inactivity(&snapshot.run.run_spec.configuration),
        }
        .listen()
        .await?;
        if ctx.seen.job(id).drained {
            return Ok(());
        }
        if heard {
            pause = FIRST_PAUSE;
        }
        let now = ctx.now();
        ctx.seen
            .update_job(id, |seen| seen.disconnected_at.get_or_insert(now).to_owned());
        ctx.wakes.wake(EntityRef::Job(id));
        tokio::time::sleep(pause).await;
        pause = longer(pause);
    }
}

fn listening(snapshot: &JobSnapshot) -> bool {
    matches!(snapshot.job.status(), JobStatus::Running | JobStatus::Terminating)
}

struct Listener<'a> {
    ctx: &'a Arc<Context>,
    job: &'a JobRow,
    runner: &'a dyn Runner,
    /// The job may end for want of connections.
    inactivity_counts: bool,
}

/// Output read but not stored yet.
#[derive(Default)]
struct Pending {
    batch: Batch,
    bytes: usize,
    cursor: i64,
}

impl Listener<'_> {
    /// Until the stream breaks or everything was said; says whether anything was heard.
    async fn listen(&self) -> Result<bool> {
        let cursor = self
            .ctx
            .seen
            .job(self.job.id)
            .cursor
            .max(self.job.runner_timestamp.unwrap_or(0));
        let mut stream = match self.runner.follow(cursor).await {
            Ok(stream) => stream,
            Err(error) => {
                tracing::debug!(job.id = %self.job.id, %error, "runner is out of reach");
                return Ok(false);
            }
        };
        self.connected();
        let mut pending = Pending {
            cursor,
            ..Pending::default()
        };
        let mut kept_at = Instant::now();
        loop {
            let line = self.next(stream.as_mut(), &mut pending).await?;
            // What another server drives by now, it reads itself.
            let line = line.filter(|_| self.ctx.leases.contains(EntityRef::Job(self.job.id)));
            let Some(line) = line else {
                self.store(&mut pending).await?;
                return Ok(true);
            };
            pending.cursor = line.event_timestamp().unwrap_or(pending.cursor);
            match line {
                StreamLine::Log(log) => pending.push(false, log.timestamp, log.message),
                StreamLine::RunnerLog(log) => pending.push(true, log.timestamp, log.message),
                StreamLine::Gap(gap) => pending.push(false, gap.timestamp, format!("{gap}\n").into_bytes()),
                StreamLine::State(state) => {
                    self.store(&mut pending).await?;
                    self.state(&state);
                }
                StreamLine::Tick(tick) => {
                    self.ctx.seen.update_job(self.job.id, |seen| {
                        seen.no_connections_secs = Some(tick.no_connections_secs);
                    });
                    if self.inactivity_counts {
                        self.ctx.wakes.wake(EntityRef::Job(self.job.id));
                    }
                }
                StreamLine::End(_) => {
                    self.store(&mut pending).await?;
                    self.drained();
                    self.clients_left(stream.as_mut()).await;
                    return Ok(true);
                }
                StreamLine::Unknown => {}
            }
            if pending.bytes >= BATCH_BYTES {
                self.store(&mut pending).await?;
            }
            if kept_at.elapsed() >= CURSOR_EVERY {
                self.store(&mut pending).await?;
                kept_at = Instant::now();
                self.acknowledge().await;
            }
        }
    }

    /// The next line; what is pending is stored as soon as the stream pauses.
    async fn next(&self, stream: &mut dyn EventSource, pending: &mut Pending) -> Result<Option<StreamLine>> {
        let next = stream.next();
        tokio::pin!(next);
        if pending.bytes > 0 {
            match tokio::time::timeout(LINGER, &mut next).await {
                Ok(line) => return Ok(line.unwrap_or_default()),
                Err(_) => self.store(pending).await?,
            }
        }
        match next.await {
            Ok(line) => Ok(line),
            Err(error) => {
                tracing::debug!(job.id = %self.job.id, %error, "runner's stream broke");
                Ok(None)
            }
        }
    }

    async fn store(&self, pending: &mut Pending) -> Result<()> {
        if pending.bytes > 0 {
            let batch = std::mem::take(&mut pending.batch);
            pending.bytes = 0;
            self.ctx
                .before_effect("output.append.before", EntityRef::Job(self.job.id))?;
            self.ctx.deps.output.append(self.job, batch).await?;
            self.ctx.reached("output.append.after")?;
        }
        self.ctx
            .seen
            .update_job(self.job.id, |seen| seen.cursor = seen.cursor.max(pending.cursor));
        Ok(())
    }

    fn connected(&self) {
        let was = self
            .ctx
            .seen
            .update_job(self.job.id, |seen| seen.disconnected_at.take());
        if was.is_some() || self.job.disconnected_at.is_some() {
            self.ctx.wakes.wake(EntityRef::Job(self.job.id));
        }
    }

    fn state(&self, event: &JobStateEvent) {
        let Some(ended) = ended(event) else { return };
        let watched_until = event.watched.then(|| self.ctx.now() + WATCHERS_LEAVE);
        self.ctx.seen.update_job(self.job.id, |seen| {
            seen.ended = Some(ended);
            seen.watched_until = watched_until;
        });
        self.ctx.wakes.wake(EntityRef::Job(self.job.id));
    }

    /// Lets the runner drop what the row has recorded as stored. The row is written by the job's reconciler alone.
    async fn acknowledge(&self) {
        self.ctx.wakes.wake(EntityRef::Job(self.job.id));
        if let Ok(Some(snapshot)) = self.ctx.deps.store.job(self.job.id).await
            && let Some(stored) = snapshot.job.runner_timestamp
            && self.ctx.leases.contains(EntityRef::Job(self.job.id))
        {
            self.runner.ack(stored).await.ok(); // repeated with the next one
        }
    }

    /// Everything was said and stored. It is acknowledged by the removal of the task, after the outcome is committed.
    fn drained(&self) {
        self.ctx.seen.update_job(self.job.id, |seen| seen.drained = true);
        self.ctx.wakes.wake(EntityRef::Job(self.job.id));
    }

    /// While the job is kept for clients: reads on, since the stream ends when they have left.
    async fn clients_left(&self, stream: &mut dyn EventSource) {
        let until = self.ctx.attended_until(self.job);
        let Some(left) = until.map(|until| until.since(self.ctx.now())) else {
            return;
        };
        let ended = async { while let Ok(Some(_)) = stream.next().await {} };
        tokio::time::timeout(left, ended).await.ok(); // then it is not kept any longer
        self.ctx.seen.update_job(self.job.id, |seen| seen.left = true);
        self.ctx.wakes.wake(EntityRef::Job(self.job.id));
    }
}

impl Pending {
    fn push(&mut self, runner: bool, timestamp: i64, bytes: Vec<u8>) {
        self.bytes += bytes.len().max(1);
        let pieces = if runner {
            &mut self.batch.runner
        } else {
            &mut self.batch.job
        };
        pieces.push(Piece { timestamp, bytes });
    }
}

/// What a state of the runner means for the job (dstack 0.22.5: runner §5).
fn ended(event: &JobStateEvent) -> Option<Ended> {
    let reason = match event.state {
        JobState::Running => return None,
        JobState::Done => JobTerminationReason::DoneByRunner,
        JobState::Failed | JobState::Terminated => crate::reasons::from_agent(&event.termination_reason)
            .unwrap_or(JobTerminationReason::ContainerExitedWithError),
    };
    let message = Some(event.termination_message.clone()).filter(|message| !message.is_empty());
    Some(Ended {
        reason,
        message,
        exit_status: event.exit_status.map(i64::from),
    })
}
