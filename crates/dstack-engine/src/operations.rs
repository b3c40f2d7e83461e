//! Durable calls to agents and clouds: written down before they are made, repeated until the other side confirms or refuses.
//!
//! An operation belongs to an entity, its subject. The runner here is the same for all of them; what is called stands in a
//! module for each kind of subject, and [`load`] is the list of them.

pub mod attachments;
mod claims;
pub mod clouds;
pub mod compute_groups;
pub mod containers;
pub mod creation;
pub mod gateways;
pub mod hosts;
pub mod instances;
pub mod jobs;
mod late_offers;
pub mod load_balancers;
pub mod placement_groups;
pub mod preparation;
pub mod volumes;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use dstack_compute::JobNeeds;
use dstack_model::runs::JobProvisioningData;
use dstack_plan::lifecycle::job::Progress;
use dstack_store::rows::{OperationKind, OperationRow, OperationState};
use dstack_store::writes::Change;
use dstack_store::{Changes, Commit, EntityRef, EventMaker, Put, Sealed};
use dstack_system::{observe, task_span};
use dstack_units::Time;
use serde_json::Value;
use tracing::Span;

use crate::Result;
use crate::context::Context;
use crate::running::{Begun, Work};
use crate::wakes::Key;

pub use jobs::runner_of;

/// Pause before the first repetition; it doubles up to [`longest_pause`].
const FIRST_PAUSE: Duration = Duration::from_millis(10);

/// Pauses that are written down, so that a server that takes over keeps them.
const KEPT_PAUSE: Duration = Duration::from_secs(10);

/// A removal that a cloud refuses may fail for hours, and a host that is in use may not be mended for days; whatever else is
/// called is waited for by somebody.
fn longest_pause(operation: &OperationRow) -> Duration {
    match operation.kind {
        OperationKind::Remove => Duration::from_secs(60),
        // After some ten minutes it grows, where nobody waits for it: replicas that go do wait for the load balancer.
        OperationKind::Prepare if !matches!(operation.subject, EntityRef::Gateway(_)) => {
            let times = u32::try_from(operation.attempt / 40).unwrap_or_default();
            Duration::from_secs(15) * times.clamp(1, 20)
        }
        _ => Duration::from_secs(5),
    }
}

/// An entity for which calls are made, with all that they need to know.
#[async_trait]
pub trait Subject: Send + Sync {
    /// The operations intended for it, oldest first.
    fn operations(&self) -> &[OperationRow];

    /// Makes the next call of an operation, and writes down what came of it.
    async fn call(&self, ctx: &Arc<Context>, operation: OperationRow) -> Result<Step>;
}

/// What follows a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// The operation is done, or has failed for good.
    Ended,
    /// The next call, at once.
    Next,
    /// The same call, later.
    Again,
    /// The next call, after this pause.
    After(Duration),
    /// The next call, as soon as somebody wants the operation looked at ([`Running::look_again`](crate::running::Running::look_again)),
    /// and after this pause at the latest.
    Woken(Duration),
}

/// The subject of operations as it is now; `None`: it is gone, or nothing is ever called for its kind.
async fn load(ctx: &Context, entity: EntityRef) -> Result<Option<Box<dyn Subject>>> {
    let store = &ctx.deps.store;
    Ok(match entity {
        EntityRef::Job(id) => boxed(store.job(id).await?),
        EntityRef::Instance(id) => boxed(store.instance(id).await?),
        EntityRef::Volume(id) => boxed(store.volume(id).await?),
        EntityRef::Attachment(id) => boxed(store.attachment(id).await?),
        EntityRef::PlacementGroup(id) => boxed(store.placement_group(id).await?),
        EntityRef::ComputeGroup(id) => boxed(store.compute_group(id).await?),
        EntityRef::GatewayReplica(id) => boxed(store.gateway_replica(id).await?),
        EntityRef::Gateway(id) => boxed(store.gateway(id).await?),
        EntityRef::Run(_) | EntityRef::Fleet(_) => None,
    })
}

fn boxed(subject: Option<impl Subject + 'static>) -> Option<Box<dyn Subject>> {
    subject.map(|subject| Box::new(subject) as Box<dyn Subject>)
}

/// An operation that is about to be written down.
pub fn intend(ctx: &Context, subject: EntityRef, kind: OperationKind, now: Time) -> OperationRow {
    OperationRow::intended(ctx.deps.random.ordered_uuid(now).into(), subject, kind, now)
}

/// Kinds of operations that are to be carried out, of those that are stored and those that a commit adds.
pub fn intended<'a>(
    stored: &'a [OperationRow],
    commit: &'a Commit,
) -> impl Iterator<Item = OperationKind> + 'a {
    let new = || {
        commit.puts().iter().filter_map(|put| match put {
            Put::Operation(row) => Some(row),
            _ => None,
        })
    };
    let is_kept = move |row: &&OperationRow| new().all(|put| put.id != row.id);
    let all = stored.iter().filter(is_kept).chain(new());
    all.filter(|row| row.state == OperationState::Intended)
        .map(|row| row.kind)
}

/// Kinds of operations that a commit ends.
pub fn given_up(commit: &Commit) -> impl Iterator<Item = OperationKind> {
    let ended = |put: &Put| match put {
        Put::Operation(row) if row.state == OperationState::Failed => Some(row.kind),
        _ => None,
    };
    commit.puts().iter().filter_map(ended)
}

/// Makes sure that an intended operation is being carried out.
pub fn ensure(ctx: &Arc<Context>, subject: EntityRef, kind: OperationKind) {
    let work = Work::Operation(subject, kind);
    let Some(begun) = Begun::new(ctx, work) else {
        // It may have been intended anew during a pause.
        ctx.running.look_again(work);
        return;
    };
    let context = Arc::clone(ctx);
    ctx.spawn_under_lease("operation", subject, async move {
        let carried_out = carry_out(&context, subject, kind, &begun);
        if let Some(Err(error)) = begun.unless_cut_off(carried_out).await {
            context.report("operation", &error);
        }
        drop(begun);
        // Decides on the outcome, or starts again what failed to be recorded.
        context.wakes.wake(Key::Entity(subject));
    });
}

async fn carry_out(ctx: &Arc<Context>, subject: EntityRef, kind: OperationKind, begun: &Begun) -> Result<()> {
    let (mut pause, mut is_kept) = (FIRST_PAUSE, false);
    loop {
        if !ctx.leases.contains(subject) {
            // Whoever drives the subject carries it out.
            return Ok(());
        }
        let Some(loaded) = load(ctx, subject).await? else {
            return Ok(());
        };
        let Some(operation) = find_intended(loaded.operations(), kind) else {
            return Ok(());
        };
        let longest = longest_pause(&operation);
        match operation.next_attempt_at {
            Some(at) => {
                // It has been repeated for long, perhaps by a server before this one.
                (pause, is_kept) = (longest, true);
                if at > ctx.now() {
                    tokio::select! {
                        () = dstack_system::clock::sleep_until(ctx.deps.clock.as_ref(), at) => {}
                        () = begun.to_look_again() => {}
                    }
                    // What was read may have changed meanwhile.
                    continue;
                }
            }
            // Intended anew during a pause that was written down.
            None if is_kept => pause = FIRST_PAUSE,
            None => {}
        }
        is_kept = false;
        match observe::task(span(kind), loaded.call(ctx, operation)).await? {
            Step::Ended => return Ok(()),
            Step::Next => pause = FIRST_PAUSE,
            Step::Again => {
                wait_for_next(ctx, subject, kind, pause).await?;
                pause = (pause * 2).min(longest);
            }
            Step::After(after) => {
                wait_for_next(ctx, subject, kind, after).await?;
                pause = FIRST_PAUSE;
            }
            Step::Woken(at_latest) => {
                tokio::select! {
                    () = tokio::time::sleep(at_latest) => {}
                    () = begun.to_look_again() => {}
                }
                pause = FIRST_PAUSE;
            }
        }
    }
}

/// Waits before the next call is made.
async fn wait_for_next(
    ctx: &Context,
    subject: EntityRef,
    kind: OperationKind,
    pause: Duration,
) -> Result<()> {
    let jitter = ctx.deps.random.fraction() * 0.2 + 0.9;
    let jittered = pause.mul_f64(jitter);
    if pause < KEPT_PAUSE {
        tokio::time::sleep(jittered).await;
        Ok(())
    } else {
        keep_pause(ctx, subject, kind, ctx.now() + jittered).await
    }
}

/// Writes down when the next call may be made.
async fn keep_pause(ctx: &Context, subject: EntityRef, kind: OperationKind, at: Time) -> Result<()> {
    let Some(loaded) = load(ctx, subject).await? else {
        return Ok(());
    };
    let Some(operation) = find_intended(loaded.operations(), kind) else {
        return Ok(());
    };
    let operation = OperationRow {
        attempt: operation.attempt + 1,
        next_attempt_at: Some(at),
        ..operation
    };
    write(ctx, operation, None).await
}

/// Of one call.
fn span(kind: OperationKind) -> Span {
    match kind {
        OperationKind::SubmitTask => task_span!("pipeline_tasks.Operation.submit_task"),
        OperationKind::StartJob => task_span!("pipeline_tasks.Operation.start_job"),
        OperationKind::StopJob => task_span!("pipeline_tasks.Operation.stop_job"),
        OperationKind::RemoveTask => task_span!("pipeline_tasks.Operation.remove_task"),
        OperationKind::Create => task_span!("pipeline_tasks.Operation.create"),
        OperationKind::Remove => task_span!("pipeline_tasks.Operation.remove"),
        OperationKind::Prepare => task_span!("pipeline_tasks.Operation.prepare_host"),
        OperationKind::Release => task_span!("pipeline_tasks.Operation.release_host"),
    }
}

fn find_intended(operations: &[OperationRow], kind: OperationKind) -> Option<OperationRow> {
    let wanted = |row: &&OperationRow| row.kind == kind && row.state == OperationState::Intended;
    operations.iter().find(wanted).cloned()
}

/// What jobs on a machine need beside what they ask for, by its type.
fn needs_of(ctx: &Context, place: Option<&JobProvisioningData>) -> JobNeeds {
    place.map_or(JobNeeds::NONE, |place| {
        let instance_type = &place.instance_type.name;
        ctx.deps.backends.job_needs(place.base_backend(), instance_type)
    })
}

/// The last operation of a kind.
pub fn last_of(operations: &[OperationRow], kind: OperationKind) -> Option<&OperationRow> {
    operations.iter().rev().find(|row| row.kind == kind)
}

/// How far the last operation of a kind is.
pub fn progress(operations: &[OperationRow], kind: OperationKind) -> Progress {
    match last_of(operations, kind) {
        None => Progress::None,
        Some(row) => match row.state {
            OperationState::Intended => Progress::Intended(row.error.clone()),
            OperationState::Done => Progress::Done,
            OperationState::Failed => Progress::Refused(row.error.clone().unwrap_or_default()),
        },
    }
}

/// Writes down what came of a call.
async fn record(
    ctx: &Context,
    mut operation: OperationRow,
    state: OperationState,
    error: Option<String>,
    notes: Option<Value>,
) -> Result<()> {
    operation.state = state;
    operation.attempt += 1;
    operation.error = error;
    operation.notes = notes.map(Sealed::new);
    operation.next_attempt_at = None;
    write(ctx, operation, None).await
}

/// Writes the operation, with a change of what the engine does not drive.
async fn write(ctx: &Context, operation: OperationRow, with: Option<Change>) -> Result<()> {
    let mut changes = Changes::new(EventMaker::system(ctx.now(), ctx.deps.random.clone()));
    changes.intend(operation);
    if let Some(change) = with {
        changes.directory(change);
    }
    let commit = changes.into_commit();
    ctx.commit(("operation.record.before", "operation.record.after"), commit)
        .await
}

/// Writes an error down that was not there before, for users to see what is waited for.
async fn note_error(ctx: &Context, operation: OperationRow, error: String) -> Result<()> {
    if operation.error.as_ref() == Some(&error) {
        return Ok(());
    }
    let (subject, kind) = (operation.subject, operation.kind);
    match kind {
        OperationKind::Prepare if matches!(subject, EntityRef::Gateway(_)) => {
            tracing::info!(%subject, ?kind, error, "a load balancer does not have its machines yet");
        }
        OperationKind::Create | OperationKind::Remove => {
            tracing::warn!(%subject, ?kind, error, "a cloud does not do what it is asked for: it is asked again");
        }
        OperationKind::Prepare | OperationKind::Release => {
            tracing::warn!(%subject, ?kind, error, "a host is not as it has to be: it is tried again");
        }
        _ => {}
    }
    let notes = operation.notes.as_deref().cloned();
    record(ctx, operation, OperationState::Intended, Some(error), notes).await
}
