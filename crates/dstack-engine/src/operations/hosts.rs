//! Durable calls to hosts of SSH fleets, and to machines of clouds: their agents are set up step by step, and taken off again.
//!
//! What a step brought is written down before the next one is made, so that a server that takes over goes on where the one
//! before it was.

use std::time::Duration;

use dstack_plan::lifecycle::instance::{RELEASE_TIMEOUT, next_preparation_at};
use dstack_plan::lifecycle::job::Progress;
use dstack_store::rows::{OperationKind, OperationRow, OperationState};
use dstack_store::{Changes, EntityRef, EventMaker, InstanceSnapshot, Sealed, events};
use dstack_units::Time;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::clouds::{done, keep, refused};
use super::{Step, last_of, note_error, progress, record, write};
use crate::Result;
use crate::context::Context;
use crate::hosts::{HostError, HostRef, Preparation, ReadyHost};

/// The longest that a step may take, whatever limits it has of its own.
pub(super) const STEP_LIMIT: Duration = Duration::from_secs(6 * 60);

/// A host that is in use is set up from the beginning when one step fails for so long.
const STANDSTILL_LIMIT: Duration = Duration::from_secs(5 * 60);

/// What stands in the notes of a preparation that is under way.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Underway {
    /// What the last step brought.
    pub(super) progress: Value,
    /// When that was.
    pub(super) at: Time,
}

impl Underway {
    /// `None`: no step has succeeded, or another version wrote down what came of it. Then it begins anew.
    pub(super) fn read(operation: &OperationRow) -> Option<Self> {
        serde_json::from_value(operation.notes.as_deref()?.clone()).ok()
    }
}

/// One step on the way to a host whose agent answers.
pub(super) async fn prepare(
    ctx: &Context,
    snapshot: &InstanceSnapshot,
    operation: OperationRow,
) -> Result<Step> {
    let row = &snapshot.instance;
    if !row.status().is_active() {
        return given_up(ctx, operation, NOT_WANTED.to_owned()).await;
    }
    let Some(host) = host_of(snapshot) else {
        return given_up(ctx, operation, "the fleet of the host is gone".to_owned()).await;
    };
    let progress = Underway::read(&operation).map(|noted| noted.progress);
    ctx.before_effect("host.prepare.before", EntityRef::Instance(row.id))?;
    let prepared = in_time(STEP_LIMIT, ctx.deps.hosts.prepare(host, progress.as_ref())).await;
    ctx.reached("host.prepare.after")?;
    match prepared {
        Ok(Preparation::Underway { progress, done }) => {
            let at = ctx.now();
            let notes = serde_json::to_value(Underway { progress, at }).unwrap_or_default();
            keep(ctx, operation, notes).await?;
            tell(ctx, snapshot, &done).await?;
            Ok(Step::Next)
        }
        Ok(Preparation::Ready(ready)) => {
            let notes = serde_json::to_value(&ready).unwrap_or_default();
            end(
                ctx,
                operation,
                OperationState::Done,
                None,
                Some(Sealed::new(notes)),
            )
            .await
        }
        Err(HostError::Refused(error)) => given_up(ctx, operation, error).await,
        // Without notes nothing is released: what stands there is the other's.
        Err(HostError::Taken(error)) => end(ctx, operation, OperationState::Failed, Some(error), None).await,
        Err(HostError::Transient(error)) => again(ctx, snapshot, operation, error).await,
    }
}

/// Why a preparation ends that nobody waits for.
const NOT_WANTED: &str = "no longer wanted";

/// An operation that ends although its call, which may hang, has not. What was done before stands in the notes of a
/// preparation, for the release; those of a release are of no use any more.
pub fn given_up_as_it_is(operation: &OperationRow) -> OperationRow {
    let is_preparation = operation.kind == OperationKind::Prepare;
    OperationRow {
        state: OperationState::Failed,
        error: Some(NOT_WANTED.to_owned()),
        next_attempt_at: None,
        notes: operation.notes.clone().filter(|_| is_preparation),
        ..operation.clone()
    }
}

/// It is not set up any further. What was done stands in the notes, for the release.
pub(super) async fn given_up(ctx: &Context, operation: OperationRow, error: String) -> Result<Step> {
    let notes = operation.notes.clone();
    end(ctx, operation, OperationState::Failed, Some(error), notes).await
}

/// The preparation ends, and another may follow only after a while.
pub(super) async fn end(
    ctx: &Context,
    operation: OperationRow,
    state: OperationState,
    error: Option<String>,
    notes: Option<Sealed<Value>>,
) -> Result<Step> {
    let attempt = operation.attempt + 1;
    let ended = OperationRow {
        state,
        attempt,
        next_attempt_at: Some(next_preparation_at(ctx.now(), attempt)),
        error,
        notes,
        ..operation
    };
    write(ctx, ended, None).await?;
    Ok(Step::Ended)
}

/// Takes the agent off a host, once it is not being set up any more.
pub(super) async fn release(
    ctx: &Context,
    snapshot: &InstanceSnapshot,
    operation: OperationRow,
) -> Result<Step> {
    let row = &snapshot.instance;
    let Some(host) = host_of(snapshot) else {
        return refused(ctx, operation, "the fleet of the host is gone".to_owned()).await;
    };
    if matches!(
        progress(&snapshot.operations, OperationKind::Prepare),
        Progress::Intended(_)
    ) {
        return Ok(Step::Again);
    }
    if !has_agent(snapshot) {
        return done(ctx, operation, Value::Null).await;
    }
    let prepared = preparation(snapshot);
    ctx.before_effect("host.release.before", EntityRef::Instance(row.id))?;
    let released = in_time(RELEASE_TIMEOUT, ctx.deps.hosts.release(host, prepared.as_ref())).await;
    ctx.reached("host.release.after")?;
    match released {
        Ok(()) => done(ctx, operation, Value::Null).await,
        Err(HostError::Refused(error) | HostError::Taken(error)) => refused(ctx, operation, error).await,
        Err(HostError::Transient(error)) => {
            note_error(ctx, operation, error).await?;
            Ok(Step::Again)
        }
    }
}

/// Whether the host was reached over SSH, and setting it up has begun: something of us may be there.
pub fn has_agent(snapshot: &InstanceSnapshot) -> bool {
    let agent = snapshot.instance.agent.as_deref();
    agent.is_some_and(|agent| agent.reach().is_some()) || preparation(snapshot).is_some()
}

/// What the last step of the preparation of a host brought; `None`: none has succeeded.
pub fn preparation(snapshot: &InstanceSnapshot) -> Option<Value> {
    let operation = last_of(&snapshot.operations, OperationKind::Prepare)?;
    match Underway::read(operation) {
        Some(noted) => Some(noted.progress),
        None => operation
            .notes
            .as_deref()
            .filter(|notes| !notes.is_null())
            .cloned(),
    }
}

/// When the last step of a preparation that is under way succeeded.
pub fn last_step_at(snapshot: &InstanceSnapshot) -> Option<Time> {
    let operation = last_of(&snapshot.operations, OperationKind::Prepare)?;
    Underway::read(operation).map(|noted| noted.at)
}

/// What the preparation of a host has brought.
pub fn ready_host(snapshot: &InstanceSnapshot) -> Option<ReadyHost> {
    let operation = last_of(&snapshot.operations, OperationKind::Prepare)?;
    let done = Some(operation).filter(|operation| operation.state == OperationState::Done)?;
    serde_json::from_value(done.notes.as_deref()?.clone()).ok()
}

/// A host that is to be reached as its fleet says; `None`: its fleet is gone.
pub fn host_of(snapshot: &InstanceSnapshot) -> Option<HostRef<'_>> {
    Some(HostRef {
        instance: &snapshot.instance,
        fleet: snapshot.fleet.as_ref()?,
    })
}

pub(super) async fn in_time<T>(
    limit: Duration,
    step: impl Future<Output = Result<T, HostError>>,
) -> Result<T, HostError> {
    let late = || HostError::Transient(format!("no end within {} minutes", limit.as_secs() / 60));
    tokio::time::timeout(limit, step)
        .await
        .unwrap_or_else(|_| Err(late()))
}

/// The step is made again later. What is in its way is told once, and shown as long as it is.
pub(super) async fn again(
    ctx: &Context,
    snapshot: &InstanceSnapshot,
    operation: OperationRow,
    error: String,
) -> Result<Step> {
    let is_new = operation.error.as_ref() != Some(&error);
    let is_in_use = snapshot.instance.status().is_available();
    let stands = Underway::read(&operation).is_some_and(|noted| ctx.now() >= noted.at + STANDSTILL_LIMIT);
    if is_in_use && stands {
        // Nobody ends it, and what the steps before have done may be gone again.
        record(
            ctx,
            operation,
            OperationState::Intended,
            Some(error.clone()),
            None,
        )
        .await?;
    } else if is_new {
        note_error(ctx, operation, error.clone()).await?;
    }
    if is_new {
        tell(ctx, snapshot, &format!("Host is not set up yet: {error}")).await?;
    }
    Ok(Step::Again)
}

/// Adds an event to the story of the host.
pub(super) async fn tell(ctx: &Context, snapshot: &InstanceSnapshot, text: &str) -> Result<()> {
    if text.is_empty() {
        return Ok(());
    }
    let mut changes = Changes::new(EventMaker::system(ctx.now(), ctx.deps.random.clone()));
    changes.note(text, vec![events::instance(&snapshot.instance)]);
    ctx.commit(("host.event.before", "host.event.after"), changes.into_commit())
        .await
}
