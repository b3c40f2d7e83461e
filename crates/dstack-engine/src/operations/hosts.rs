//! Durable calls to hosts of SSH fleets, and to machines of clouds: their agents are set up step by step, and taken off again.
//!
//! What a step brought is written down before the next one is made, so that a server that takes over goes on where the one
//! before it was.

use std::time::Duration;

use dstack_plan::hosts::HostKey;
use dstack_plan::lifecycle::instance::{RELEASE_TIMEOUT, next_preparation_at};
use dstack_plan::lifecycle::job::Progress;
use dstack_store::rows::{InstanceRow, OperationKind, OperationRow, OperationState};
use dstack_store::{Changes, EntityRef, EventMaker, InstanceSnapshot, Sealed, events};
use dstack_units::{InstanceId, Time};
use serde_json::Value;

use super::clouds::{done, keep, refused};
use super::preparation::{LastStep, Notes, Underway};
use super::{Step, last_of, needs_of, note_error, progress, record, write};
use crate::Result;
use crate::context::Context;
use crate::hosts::{HostError, HostRef, Preparation, ReadyHost};

/// The longest that a step may take, whatever limits it has of its own.
pub(super) const STEP_LIMIT: Duration = Duration::from_secs(6 * 60);

/// A host that is in use is set up from the beginning when one step fails for so long.
const STANDSTILL_LIMIT: Duration = Duration::from_secs(5 * 60);

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
    let needs = needs_of(ctx, row.job_provisioning_data.as_deref());
    let last = Underway::read(&operation).last;
    let progress = last.as_ref().map(|last| &last.progress);
    ctx.before_effect("host.prepare.before", EntityRef::Instance(row.id))?;
    let prepared = in_time(STEP_LIMIT, ctx.deps.hosts.prepare(host, needs, progress)).await;
    ctx.reached("host.prepare.after")?;
    match prepared {
        Ok(Preparation::Underway { progress, done }) => {
            stepped(ctx, snapshot, operation, progress, &done).await
        }
        Ok(Preparation::Ready(ready)) => {
            let notes = Some(Notes::Host(ready).sealed());
            end(ctx, operation, OperationState::Done, None, notes).await
        }
        Err(HostError::Refused(error)) => given_up(ctx, operation, error).await,
        Err(HostError::Taken { error, disturbed }) => taken(ctx, operation, error, disturbed).await,
        Err(HostError::Transient(error)) => again(ctx, snapshot, operation, error).await,
    }
}

/// A step has succeeded, and the next one follows.
pub(super) async fn stepped(
    ctx: &Context,
    snapshot: &InstanceSnapshot,
    operation: OperationRow,
    progress: Value,
    done: &str,
) -> Result<Step> {
    let mut underway = Underway::read(&operation);
    let at = ctx.now();
    underway.last = Some(LastStep { progress, at });
    let is_told = underway.tells(done);
    let notes = serde_json::to_value(Notes::Underway(underway)).unwrap_or_default();
    keep(ctx, operation, notes).await?;
    if is_told {
        tell(ctx, snapshot, done).await?;
    }
    Ok(Step::Next)
}

/// The machine is another instance's. Without notes nothing is released: what stands there is the other's, which is set up again
/// where its agent may have been replaced.
async fn taken(
    ctx: &Context,
    operation: OperationRow,
    error: String,
    disturbed: Option<InstanceId>,
) -> Result<Step> {
    let again = match disturbed {
        Some(other) => prepared_anew(ctx, other).await?,
        None => None,
    };
    let attempt = operation.attempt + 1;
    let mut changes = Changes::new(EventMaker::system(ctx.now(), ctx.deps.random.clone()));
    changes.intend(left_alone(
        OperationRow { attempt, ..operation },
        error,
        ctx.now(),
    ));
    if let Some(anew) = again {
        changes.intend(anew);
    }
    ctx.commit(
        ("operation.record.before", "operation.record.after"),
        changes.into_commit(),
    )
    .await?;
    Ok(Step::Ended)
}

/// The preparation of a host whose machine is another's, as it ends: nothing is released.
pub fn left_alone(operation: OperationRow, error: String, now: Time) -> OperationRow {
    OperationRow {
        state: OperationState::Failed,
        error: Some(error),
        notes: None,
        next_attempt_at: Some(next_preparation_at(now, operation.attempt)),
        ..operation
    }
}

/// That a host turned out to be the machine of another one, for people. Names of other projects are nobody's business.
pub fn is_machine_of(own: &InstanceRow, other: &InstanceRow) -> String {
    let key = |row: &InstanceRow| {
        let host = row.job_provisioning_data.as_deref().and_then(HostKey::of_place);
        host.map_or_else(|| row.name.clone(), |host| host.to_string())
    };
    let (host, other_host) = (key(own), key(other));
    match (own.project_id == other.project_id, own.fleet_id == other.fleet_id) {
        (false, _) => {
            format!("{host} is a machine that a fleet of another project has: take it out of one of the two")
        }
        (true, is_same_fleet) => format!(
            "{host} is the machine of {}, which is reached as {other_host}: take one of them out of {}",
            other.name,
            if is_same_fleet { "the fleet" } else { "its fleet" }
        ),
    }
}

/// The preparation of another instance from its beginning, if it has been made or is under way: where its agent runs as it should,
/// nothing happens to that.
pub async fn prepared_anew(ctx: &Context, instance: InstanceId) -> Result<Option<OperationRow>> {
    let found = ctx.deps.store.instance(instance).await?;
    let last = found
        .as_ref()
        .and_then(|found| last_of(&found.operations, OperationKind::Prepare));
    Ok(last.map(|last| last.clone().anew(ctx.now())))
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
        Err(error) => failed(ctx, operation, error).await,
    }
}

/// Something was not done at a host: for good, or until it is tried again.
pub(super) async fn failed(ctx: &Context, operation: OperationRow, error: HostError) -> Result<Step> {
    match error {
        HostError::Refused(error) | HostError::Taken { error, .. } => refused(ctx, operation, error).await,
        HostError::Transient(error) => {
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
    match Notes::read(operation) {
        Some(Notes::Underway(underway)) => underway.last.map(|last| last.progress),
        Some(Notes::Host(ready)) => serde_json::to_value(ready).ok(),
        Some(Notes::Container(ready)) => serde_json::to_value(ready).ok(),
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
    Underway::read(operation).last.map(|last| last.at)
}

/// What the preparation of a host has brought.
pub fn ready_host(snapshot: &InstanceSnapshot) -> Option<ReadyHost> {
    let operation = last_of(&snapshot.operations, OperationKind::Prepare)?;
    let done = Some(operation).filter(|operation| operation.state == OperationState::Done)?;
    match Notes::read(done) {
        Some(Notes::Host(ready)) => Some(*ready),
        _ => None,
    }
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
    let mut underway = Underway::read(&operation);
    let is_told = underway.tells(&error);
    let is_in_use = snapshot.instance.status().is_available();
    let stands = |last: &LastStep| ctx.now() >= last.at + STANDSTILL_LIMIT;
    if is_in_use && underway.last.as_ref().is_some_and(stands) {
        // Nobody ends it, and what the steps before have done may be gone again.
        underway.last = None;
        let notes = serde_json::to_value(Notes::Underway(underway)).ok();
        record(
            ctx,
            operation,
            OperationState::Intended,
            Some(error.clone()),
            notes,
        )
        .await?;
    } else {
        let notes = Some(Notes::Underway(underway).sealed());
        note_error(ctx, OperationRow { notes, ..operation }, error.clone()).await?;
    }
    if is_told {
        tell(ctx, snapshot, &format!("Host is not set up yet: {error}")).await?;
    }
    Ok(Step::Again)
}

/// Adds an event to the story of the host.
async fn tell(ctx: &Context, snapshot: &InstanceSnapshot, text: &str) -> Result<()> {
    let mut changes = Changes::new(EventMaker::system(ctx.now(), ctx.deps.random.clone()));
    changes.note(text, vec![events::instance(&snapshot.instance)]);
    ctx.commit(("host.event.before", "host.event.after"), changes.into_commit())
        .await
}
