//! What calls to clouds have in common: a time limit, the notes that backends make, and removal.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use dstack_compute::{
    Backend, CALL_LIMIT, Call, ComputeError, Journal, Known, Lifecycle, Removal, Resource, Step as Progress,
};
use dstack_model::backends::BackendType;
use dstack_store::Sealed;
use dstack_store::rows::{OperationRow, OperationState};
use dstack_store::writes::Change;
use dstack_units::ProjectId;
use serde_json::Value;

use super::{Step, note_error, record, write};
use crate::context::Context;
use crate::{EngineError, Result};

/// The answer to a call, if it comes within [`CALL_LIMIT`].
///
/// # Errors
/// Those of the call; `Unclear` when it took too long.
pub async fn in_time<T>(call: impl Future<Output = Result<T, ComputeError>>) -> Result<T, ComputeError> {
    let late = || ComputeError::Unclear(format!("no answer within {} s", CALL_LIMIT.as_secs()));
    tokio::time::timeout(CALL_LIMIT, call)
        .await
        .unwrap_or_else(|_| Err(late()))
}

/// The project's backend of a type, if it makes what is wanted (`able`).
///
/// # Errors
/// `Unclear`: it is not known now. `Configuration`: there is none that makes `what`.
pub async fn backend(
    ctx: &Context,
    project: ProjectId,
    kind: BackendType,
    what: &str,
    able: fn(&dyn Backend) -> bool,
) -> Result<Arc<dyn Backend>, ComputeError> {
    let backends = ctx.deps.backends.of_project(project).await;
    let backends = backends.map_err(|error| ComputeError::Unclear(error.details()))?;
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

/// The notes that a backend makes in its calls, kept with the operation for which they are made.
pub(super) struct OperationJournal<'a> {
    ctx: &'a Context,
    row: tokio::sync::Mutex<OperationRow>,
    pieces: Mutex<Value>,
    /// The operation's notes, with these of the backend.
    embed: Box<dyn Fn(&Value) -> Value + Send + Sync + 'a>,
    /// The backend that is to be there still when something is noted.
    backend: Option<(ProjectId, BackendType)>,
    /// Reached when something is noted, immediately before the cloud is called.
    failpoint: &'static str,
    failure: Mutex<Option<EngineError>>,
}

impl<'a> OperationJournal<'a> {
    /// Of an operation with which `pieces` were noted so far.
    pub(super) fn new(
        ctx: &'a Context,
        row: OperationRow,
        pieces: Value,
        failpoint: &'static str,
        embed: impl Fn(&Value) -> Value + Send + Sync + 'a,
    ) -> Self {
        Self {
            ctx,
            row: tokio::sync::Mutex::new(row),
            pieces: Mutex::new(pieces),
            embed: Box::new(embed),
            backend: None,
            failpoint,
            failure: Mutex::new(None),
        }
    }

    /// Nothing is noted once the backend is deleted, which is then not deleted while the operation tells of it.
    pub(super) fn expecting(self, project: ProjectId, kind: BackendType) -> Self {
        Self {
            backend: Some((project, kind)),
            ..self
        }
    }

    /// Has a backend make the next step.
    pub(super) async fn ensure<R: Resource>(
        &self,
        lifecycle: &dyn Lifecycle<R>,
        want: &R::Want,
    ) -> Result<Progress<R::Place>, ComputeError> {
        let call = self.call()?;
        in_time(lifecycle.ensure(want, &call)).await
    }

    /// Has a backend remove what was made.
    pub(super) async fn remove<R: Resource>(
        &self,
        lifecycle: &dyn Lifecycle<R>,
        known: &Known<R>,
    ) -> Result<Removal, ComputeError> {
        let call = self.call()?;
        in_time(lifecycle.remove(known, &call)).await
    }

    fn call(&self) -> Result<Call<'_>, ComputeError> {
        let pieces = self.pieces.lock().unwrap_or_else(PoisonError::into_inner);
        Call::new(self.ctx.deps.clock.clone(), self, &pieces)
    }

    /// The operation as it is stored now, and the pieces that are noted.
    ///
    /// # Errors
    /// Why the backend could not note what it was about to do.
    pub(super) fn end(self) -> Result<(OperationRow, Value)> {
        match self.failure.into_inner().unwrap_or_else(PoisonError::into_inner) {
            Some(failure) => Err(failure),
            None => {
                let pieces = self.pieces.into_inner().unwrap_or_else(PoisonError::into_inner);
                Ok((self.row.into_inner(), pieces))
            }
        }
    }

    async fn write(&self, notes: &Value) -> Result<()> {
        let mut row = self.row.lock().await;
        let next = so_far(row.clone(), (self.embed)(notes));
        let backend = self.backend.map(|(project, kind)| Change::ExpectBackend {
            project,
            kind: kind.to_string(),
        });
        write(self.ctx, next.clone(), backend).await?;
        *row = stored(next);
        let mut pieces = self.pieces.lock().unwrap_or_else(PoisonError::into_inner);
        pieces.clone_from(notes);
        drop(pieces);
        self.ctx.before_effect(self.failpoint, row.subject)
    }
}

#[async_trait]
impl Journal for OperationJournal<'_> {
    async fn keep(&self, notes: &Value) -> Result<(), String> {
        let written = self.write(notes).await;
        written.map_err(|error| {
            let text = error.to_string();
            *self.failure.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
            text
        })
    }
}

/// Has a cloud remove something, and writes down what it says: until it confirms, it is asked again.
///
/// `pieces` are those that were noted when it was made. To look the cloud up takes time: it is done before the lease is looked
/// at, immediately before the call.
pub(super) async fn remove<R: Resource>(
    ctx: &Context,
    operation: OperationRow,
    pieces: Value,
    known: &Known<R>,
    cloud: Result<Arc<dyn Backend>, ComputeError>,
    lifecycle_of: fn(&dyn Backend) -> Option<&dyn Lifecycle<R>>,
) -> Result<Step> {
    let subject = operation.subject;
    // Those of an attempt before this one.
    let pieces = operation.notes.as_deref().cloned().unwrap_or(pieces);
    let journal = OperationJournal::new(ctx, operation, pieces, "cloud.remove.noted", Value::clone);
    let removed = match cloud {
        Ok(cloud) => match lifecycle_of(cloud.as_ref()) {
            Some(lifecycle) => {
                ctx.before_effect("cloud.remove.before", subject)?;
                let removed = journal.remove(lifecycle, known).await;
                ctx.reached("cloud.remove.after")?;
                removed
            }
            None => Err(ComputeError::Configuration(format!(
                "the backend {} does not remove this any more",
                cloud.kind()
            ))),
        },
        Err(error) => Err(error),
    };
    let (operation, _) = journal.end()?;
    match removed {
        Ok(Removal::Gone) => done(ctx, operation, Value::Null).await,
        Ok(Removal::Underway { again }) => Ok(Step::After(again)),
        Err(error) => not_yet(ctx, operation, &error).await,
    }
}

/// However long a cloud wants to be left alone: what is not wanted any more is not paid for longer than that.
const LONGEST_THROTTLE: Duration = Duration::from_secs(5 * 60);

/// What a cloud says is shown, and it is asked again.
pub(super) async fn not_yet(ctx: &Context, operation: OperationRow, error: &ComputeError) -> Result<Step> {
    note_error(ctx, operation, error.details()).await?;
    Ok(match error {
        ComputeError::Throttled { after, .. } => Step::After((*after).min(LONGEST_THROTTLE)),
        _ => Step::Again,
    })
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

/// As [`keep`], if the notes are others than those that are stored.
pub(super) async fn keep_changed(ctx: &Context, operation: OperationRow, notes: Value) -> Result<()> {
    if operation.notes.as_deref() != Some(&notes) {
        keep(ctx, operation, notes).await?;
    }
    Ok(())
}

/// The operation, still intended, with these notes.
pub(super) fn so_far(operation: OperationRow, notes: Value) -> OperationRow {
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
