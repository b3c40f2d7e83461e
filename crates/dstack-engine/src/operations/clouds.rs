//! What calls to clouds have in common: a deadline, and what is known of a call whose answer was lost.

use std::sync::Arc;
use std::time::Duration;

use dstack_compute::{Backend, ComputeError};
use dstack_model::backends::BackendType;
use dstack_store::rows::{OperationRow, OperationState};
use dstack_store::writes::Change;
use dstack_store::{EntityRef, Sealed};
use dstack_units::{ProjectId, Time};
use serde_json::Value;

use super::{Step, note_error, record, write};
use crate::Result;
use crate::context::Context;

/// How long a cloud may take to answer a call; what it did then is asked for.
pub(super) const DEADLINE: Duration = Duration::from_secs(120);

/// From when on nothing can come of a call that was made at a time, if the cloud lists what it has made within `listed_within`.
pub(super) fn settled_at(called_at: Time, listed_within: Duration) -> Time {
    called_at + DEADLINE + listed_within
}

/// The answer to a call, if it comes within [`DEADLINE`].
///
/// # Errors
/// Those of the call; `Unavailable` when it took too long.
pub(super) async fn in_time<T>(
    call: impl Future<Output = Result<T, ComputeError>>,
) -> Result<T, ComputeError> {
    let late = || ComputeError::Unavailable(format!("no answer within {} s", DEADLINE.as_secs()));
    tokio::time::timeout(DEADLINE, call)
        .await
        .unwrap_or_else(|_| Err(late()))
}

/// The project's backend of a type, if it makes what is wanted (`able`).
///
/// # Errors
/// `Unavailable`: it is not known now. `Configuration`: there is none that makes `what`.
pub(super) async fn backend(
    ctx: &Context,
    project: ProjectId,
    kind: BackendType,
    what: &str,
    able: fn(&dyn Backend) -> bool,
) -> Result<Arc<dyn Backend>, ComputeError> {
    let backends = ctx.deps.backends.of_project(project).await;
    let backends = backends.map_err(|error| ComputeError::Unavailable(error.details()))?;
    backends
        .into_iter()
        .find(|backend| backend.kind() == kind && able(backend.as_ref()))
        .ok_or_else(|| not_configured(kind, what))
}

/// `what` is plural, such as `instances`.
pub(super) fn not_configured(kind: BackendType, what: &str) -> ComputeError {
    ComputeError::Configuration(format!(
        "the backend {kind} is not configured for {what} any more: configure it again"
    ))
}

/// Has a cloud remove something, and writes down what it says: until it confirms, it is asked again.
///
/// To look the cloud up takes time: it is done before the lease is looked at, immediately before the call.
pub(super) async fn remove<F>(
    ctx: &Context,
    subject: EntityRef,
    operation: OperationRow,
    cloud: Result<Arc<dyn Backend>, ComputeError>,
    call: impl FnOnce(Arc<dyn Backend>) -> F,
) -> Result<Step>
where
    F: Future<Output = Result<(), ComputeError>>,
{
    let removed = match cloud {
        Ok(cloud) => {
            ctx.before_effect("cloud.remove.before", subject)?;
            let removed = in_time(call(cloud)).await;
            ctx.reached("cloud.remove.after")?;
            removed
        }
        Err(error) => Err(error),
    };
    match removed {
        Ok(()) => done(ctx, operation, Value::Null).await,
        Err(error) => {
            note_error(ctx, operation, error.details()).await?;
            Ok(Step::Again)
        }
    }
}

/// The operation is done, with this result.
pub(super) async fn done(ctx: &Context, operation: OperationRow, result: Value) -> Result<Step> {
    record(ctx, operation, OperationState::Done, None, Some(result)).await?;
    Ok(Step::Ended)
}

/// The operation is refused for good, and has had no effect.
pub(super) async fn refused(ctx: &Context, operation: OperationRow, error: String) -> Result<Step> {
    record(ctx, operation, OperationState::Failed, Some(error), None).await?;
    Ok(Step::Ended)
}

/// Writes down how far the operation is; the row as it is stored then.
pub(super) async fn keep(ctx: &Context, operation: OperationRow, notes: Value) -> Result<OperationRow> {
    let operation = so_far(operation, notes);
    write(ctx, operation.clone(), None).await?;
    Ok(stored(operation))
}

/// As [`keep`], before a cloud of the project is asked: refused when its backend was deleted meanwhile, which is then not
/// deleted while the operation tells of it.
pub(super) async fn keep_with_backend(
    ctx: &Context,
    operation: OperationRow,
    notes: Value,
    project: ProjectId,
    kind: BackendType,
) -> Result<OperationRow> {
    let operation = so_far(operation, notes);
    let backend = Change::ExpectBackend {
        project,
        kind: kind.to_string(),
    };
    write(ctx, operation.clone(), Some(backend)).await?;
    Ok(stored(operation))
}

/// The operation, still intended, with these notes.
fn so_far(operation: OperationRow, notes: Value) -> OperationRow {
    OperationRow {
        state: OperationState::Intended,
        attempt: operation.attempt + 1,
        next_attempt_at: None,
        notes: Some(Sealed::new(notes)),
        ..operation
    }
}

/// The row after it was written.
fn stored(operation: OperationRow) -> OperationRow {
    OperationRow {
        version: operation.version + 1,
        ..operation
    }
}
