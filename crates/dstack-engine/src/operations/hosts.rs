//! Durable calls to hosts of SSH fleets: their agents are set up step by step, and taken off again.
//!
//! What a step brought is written down before the next one is made, so that a server that takes over goes on where the one
//! before it was.

use std::time::Duration;

use dstack_model::instances::InstanceStatus;
use dstack_store::rows::{OperationKind, OperationRow, OperationState};
use dstack_store::{Changes, EntityRef, EventMaker, InstanceSnapshot, events};
use serde_json::Value;

use super::clouds::{done, keep, refused};
use super::{Step, last_of, note_error, record};
use crate::Result;
use crate::context::Context;
use crate::hosts::{HostError, HostRef, Preparation, ReadyHost};

/// The longest that a step may take, whatever limits it has of its own: a slow line may carry the agent's file.
const STEP_LIMIT: Duration = Duration::from_secs(20 * 60);

/// One step on the way to a host whose agent answers.
pub(super) async fn prepare(
    ctx: &Context,
    snapshot: &InstanceSnapshot,
    operation: OperationRow,
) -> Result<Step> {
    let row = &snapshot.instance;
    if row.status() != InstanceStatus::Pending {
        return given_up(ctx, operation, "no longer wanted".to_owned()).await;
    }
    let Some(host) = host_of(snapshot) else {
        return refused(ctx, operation, "the fleet of the host is gone".to_owned()).await;
    };
    ctx.before_effect("host.prepare.before", EntityRef::Instance(row.id))?;
    let prepared = in_time(ctx.deps.hosts.prepare(host, operation.notes.as_deref())).await;
    ctx.reached("host.prepare.after")?;
    match prepared {
        Ok(Preparation::Underway { progress, done }) => {
            keep(ctx, operation, progress).await?;
            tell(ctx, snapshot, &done).await?;
            Ok(Step::Next)
        }
        Ok(Preparation::Ready(ready)) => {
            let notes = serde_json::to_value(&ready).unwrap_or_default();
            done(ctx, operation, notes).await
        }
        Err(HostError::Refused(error)) => given_up(ctx, operation, error).await,
        Err(HostError::Transient(error)) => again(ctx, snapshot, operation, error).await,
    }
}

/// It is not set up any further. What was done stands in the notes, for the release.
async fn given_up(ctx: &Context, operation: OperationRow, error: String) -> Result<Step> {
    let notes = operation.notes.as_deref().cloned();
    record(ctx, operation, OperationState::Failed, Some(error), notes).await?;
    Ok(Step::Ended)
}

/// Takes the agent off a host.
pub(super) async fn release(
    ctx: &Context,
    snapshot: &InstanceSnapshot,
    operation: OperationRow,
) -> Result<Step> {
    let row = &snapshot.instance;
    let Some(host) = host_of(snapshot) else {
        return refused(ctx, operation, "the fleet of the host is gone".to_owned()).await;
    };
    ctx.before_effect("host.release.before", EntityRef::Instance(row.id))?;
    let released = in_time(ctx.deps.hosts.release(host, preparation(snapshot))).await;
    ctx.reached("host.release.after")?;
    match released {
        Ok(()) => done(ctx, operation, Value::Null).await,
        Err(HostError::Refused(error)) => refused(ctx, operation, error).await,
        Err(HostError::Transient(error)) => {
            note_error(ctx, operation, error).await?;
            Ok(Step::Again)
        }
    }
}

/// What the last step of the preparation of a host brought; `None`: none has succeeded.
pub fn preparation(snapshot: &InstanceSnapshot) -> Option<&Value> {
    let operation = last_of(&snapshot.operations, OperationKind::Prepare)?;
    operation.notes.as_deref().filter(|notes| !notes.is_null())
}

/// What the preparation of a host has brought.
pub fn ready_host(snapshot: &InstanceSnapshot) -> Option<ReadyHost> {
    serde_json::from_value(preparation(snapshot)?.clone()).ok()
}

fn host_of(snapshot: &InstanceSnapshot) -> Option<HostRef<'_>> {
    Some(HostRef {
        instance: &snapshot.instance,
        fleet: snapshot.fleet.as_ref()?,
    })
}

async fn in_time<T>(step: impl Future<Output = Result<T, HostError>>) -> Result<T, HostError> {
    let late = || HostError::Transient(format!("no end within {} minutes", STEP_LIMIT.as_secs() / 60));
    tokio::time::timeout(STEP_LIMIT, step)
        .await
        .unwrap_or_else(|_| Err(late()))
}

/// The step is made again later. What is in its way is told once, and shown as long as it is.
async fn again(
    ctx: &Context,
    snapshot: &InstanceSnapshot,
    operation: OperationRow,
    error: String,
) -> Result<Step> {
    if operation.error.as_ref() != Some(&error) {
        note_error(ctx, operation, error.clone()).await?;
        tell(ctx, snapshot, &format!("Host is not set up yet: {error}")).await?;
    }
    Ok(Step::Again)
}

/// Adds an event to the story of the host.
async fn tell(ctx: &Context, snapshot: &InstanceSnapshot, text: &str) -> Result<()> {
    if text.is_empty() {
        return Ok(());
    }
    let mut changes = Changes::new(EventMaker::system(ctx.now(), ctx.deps.random.clone()));
    changes.note(text, vec![events::instance(&snapshot.instance)]);
    ctx.commit(("host.event.before", "host.event.after"), changes.into_commit())
        .await
}
