//! What a cloud makes step by step, as the operation of its making tells of it. When it comes to nothing, or is not wanted any
//! more, all that was noted is removed: nothing is made twice, and nothing is forgotten.

use std::sync::Arc;

use dstack_compute::{Backend, Call, ComputeError, Known, Lifecycle, Removal, Resource, Step as Progress};
use dstack_model::Decode;
use dstack_model::backends::BackendType;
use dstack_model::decode::decode_strict;
use dstack_store::rows::{OperationRow, OperationState};
use dstack_system::chain;
use dstack_units::ProjectId;
use serde::Serialize;
use serde_json::Value;

use super::clouds::{OperationJournal, done, keep, keep_changed, not_yet, refused};
use super::{Step, note_error};
use crate::Result;
use crate::context::Context;
use crate::inputs::InputsError;

/// How far the making of something is.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Decode)]
pub(super) struct Creation {
    /// What the backend has noted; unset: it was not asked for anything yet.
    pub(super) pieces: Option<Value>,
    /// Why it is not made: what was noted is being removed.
    pub(super) failure: Option<String>,
    /// What was made.
    made: Option<Value>,
}

impl Creation {
    /// `None`: this version cannot read it, or not what the backend has noted.
    pub(super) fn read(operation: &OperationRow) -> Option<Self> {
        Self::decode(operation).filter(|creation| Call::can_read(&creation.pieces()))
    }

    fn decode(operation: &OperationRow) -> Option<Self> {
        match operation.notes.as_deref() {
            None => Some(Self::default()),
            Some(notes) => decode_strict(&as_now(notes.clone())).ok(),
        }
    }

    /// Of something that is not to be made, and of which this version can read at most what the backend has noted.
    pub(super) fn unwanted(operation: &OperationRow, failure: String) -> Self {
        Self {
            pieces: Some(noted(Some(operation)).unwrap_or_default()),
            failure: Some(failure),
            made: None,
        }
    }

    /// What the backend has noted, as it takes it.
    pub(super) fn pieces(&self) -> Value {
        self.pieces.clone().unwrap_or_default()
    }

    fn with_pieces(&self, pieces: &Value) -> Self {
        Self {
            pieces: Some(pieces.clone()).filter(|pieces| !pieces.is_null()),
            ..self.clone()
        }
    }

    fn to_json(&self) -> Value {
        serde_json::to_value(self).unwrap_or_default()
    }
}

/// Notes as they are written now: what was attached had a name of its own once.
fn as_now(mut notes: Value) -> Value {
    if let Some(fields) = notes.as_object_mut()
        && let Some(attached) = fields.remove("attached")
    {
        fields.insert("made".to_owned(), attached);
    }
    notes
}

/// What the backend has noted of what was made, also where this version can read nothing else of the creation; `None`: it cannot
/// read that either, and something may be there.
pub(super) fn noted(creation: Option<&OperationRow>) -> Option<Value> {
    let Some(operation) = creation else {
        return Some(Value::Null);
    };
    match Creation::read(operation) {
        Some(creation) => Some(creation.pieces()),
        None => {
            let pieces = operation.notes.as_deref()?.get("pieces")?;
            Some(pieces.clone()).filter(|pieces| !pieces.is_null() && Call::can_read(pieces))
        }
    }
}

/// Whether this version can read what a creation has brought, once it is done.
pub fn is_readable<P: Decode>(creation: Option<&OperationRow>) -> bool {
    creation.is_none_or(|operation| operation.state != OperationState::Done || made::<P>(operation).is_some())
}

/// What a cloud made, by a creation that is done.
pub fn made<P: Decode>(operation: &OperationRow) -> Option<P> {
    decode_strict(&Creation::decode(operation)?.made?).ok()
}

/// Something may have been made that this version cannot read: it is not given up.
pub(super) async fn unreadable(ctx: &Context, operation: OperationRow) -> Result<Step> {
    let error = "what was to be made is stored in a form that this version cannot read: start the version that made it";
    note_error(ctx, operation, error.to_owned()).await?;
    Ok(Step::Again)
}

/// What is made for a row as long as that wants it.
pub(super) struct Making<R: Resource> {
    /// What it is, for people, such as `a gateway`.
    pub(super) what: &'static str,
    /// The project and the type of its backend that makes it.
    pub(super) account: (ProjectId, BackendType),
    /// Whether the row still wants it: otherwise what was made of it is removed.
    pub(super) is_wanted: bool,
    /// What is known of it, for its removal.
    pub(super) known: Known<R>,
    /// What of the backend makes such things.
    pub(super) lifecycle_of: fn(&dyn Backend) -> Option<&dyn Lifecycle<R>>,
}

/// Takes the making a step further. The backend and what is asked for are looked up only once they are needed.
pub(super) async fn make<R: Resource>(
    ctx: &Context,
    operation: OperationRow,
    making: Making<R>,
    cloud: impl Future<Output = Result<Arc<dyn Backend>, ComputeError>> + Send,
    request: impl Future<Output = Result<R::Want, InputsError>> + Send,
) -> Result<Step>
where
    R::Place: Serialize,
{
    let Some(begun) = Creation::read(&operation) else {
        return unreadable(ctx, operation).await;
    };
    let not_wanted = || "not wanted any more".to_owned();
    let failure = begun.failure.clone();
    let failure = failure.or_else(|| (!making.is_wanted).then(not_wanted));
    let is_begun = begun.pieces.is_some();
    if let Some(failure) = &failure
        && !is_begun
    {
        return refused(ctx, operation, failure.clone()).await;
    }
    let cloud = match cloud.await {
        Ok(cloud) => cloud,
        // Nothing was asked.
        Err(error) if !is_begun && !error.is_transient() => {
            return refused(ctx, operation, error.details()).await;
        }
        Err(error) => return not_yet(ctx, operation, &error).await,
    };
    let Some(lifecycle) = (making.lifecycle_of)(cloud.as_ref()) else {
        return not_yet(ctx, operation, &ComputeError::Unsupported(making.what)).await;
    };
    if let Some(failure) = failure {
        return clear(ctx, operation, begun, lifecycle, &making.known, failure).await;
    }
    match request.await {
        Ok(request) => ensure(ctx, operation, begun, making.account, lifecycle, &request).await,
        Err(InputsError::Transient(error)) => {
            let error = ComputeError::Unclear(chain(error.as_ref()).to_string());
            not_yet(ctx, operation, &error).await
        }
        Err(InputsError::Refused(error)) => fail(ctx, operation, begun, error).await,
    }
}

/// Has the backend make the next piece; nothing is made once the backend is deleted.
pub(super) async fn ensure<R: Resource>(
    ctx: &Context,
    operation: OperationRow,
    creation: Creation,
    (project, kind): (ProjectId, BackendType),
    lifecycle: &dyn Lifecycle<R>,
    want: &R::Want,
) -> Result<Step>
where
    R::Place: Serialize,
{
    let embed = |pieces: &Value| creation.with_pieces(pieces).to_json();
    let journal = OperationJournal::new(ctx, operation, creation.pieces(), "cloud.create.before", embed)
        .expecting(project, kind);
    let made = journal.ensure(lifecycle, want).await;
    ctx.reached("cloud.create.after")?;
    let (operation, pieces) = journal.end()?;
    let creation = creation.with_pieces(&pieces);
    match made {
        Ok(Progress::Ready(place)) => is_made(ctx, operation, creation, &place).await,
        Ok(Progress::Underway { again, .. }) => {
            keep_changed(ctx, operation, creation.to_json()).await?;
            Ok(Step::After(again))
        }
        Err(error) if error.is_transient() => {
            let subject = operation.subject;
            tracing::warn!(%subject, %error, "a cloud does not say whether it made something");
            not_yet(ctx, operation, &error).await
        }
        Err(error) => fail(ctx, operation, creation, error.to_string()).await,
    }
}

/// It is made, at this place.
pub(super) async fn is_made(
    ctx: &Context,
    operation: OperationRow,
    creation: Creation,
    place: &(impl Serialize + Sync),
) -> Result<Step> {
    let made = Creation {
        made: serde_json::to_value(place).ok(),
        ..creation
    };
    done(ctx, operation, made.to_json()).await
}

/// It is not to be made: whatever was is removed next.
pub(super) async fn fail(
    ctx: &Context,
    operation: OperationRow,
    creation: Creation,
    error: String,
) -> Result<Step> {
    if creation.pieces.is_none() {
        return refused(ctx, operation, error).await;
    }
    let failed = Creation {
        failure: Some(error),
        ..creation
    };
    keep(ctx, operation, failed.to_json()).await?;
    Ok(Step::Next)
}

/// Removes what was made of something that is not to be, which then ends with `failure`.
pub(super) async fn clear<R: Resource>(
    ctx: &Context,
    operation: OperationRow,
    creation: Creation,
    lifecycle: &dyn Lifecycle<R>,
    known: &Known<R>,
    failure: String,
) -> Result<Step> {
    let subject = operation.subject;
    let creation = Creation {
        failure: Some(failure.clone()),
        ..creation
    };
    let embed = |pieces: &Value| creation.with_pieces(pieces).to_json();
    let journal = OperationJournal::new(ctx, operation, creation.pieces(), "cloud.remove.noted", embed);
    ctx.before_effect("cloud.clear.before", subject)?;
    let removed = journal.remove(lifecycle, known).await;
    ctx.reached("cloud.clear.after")?;
    let (operation, _) = journal.end()?;
    match removed {
        Ok(Removal::Gone) => refused(ctx, operation, failure).await,
        Ok(Removal::Underway { again }) => Ok(Step::After(again)),
        Err(error) => not_yet(ctx, operation, &error).await,
    }
}

#[cfg(test)]
mod tests {
    use dstack_model::volumes::VolumeAttachmentData;
    use dstack_store::rows::OperationKind;
    use dstack_store::{EntityRef, Sealed};
    use dstack_units::Time;
    use serde_json::json;

    use super::*;

    fn creation(notes: Value) -> OperationRow {
        let subject = EntityRef::Volume(uuid::Uuid::nil().into());
        OperationRow {
            state: OperationState::Done,
            notes: Some(Sealed::new(notes)),
            ..OperationRow::intended(
                uuid::Uuid::nil().into(),
                subject,
                OperationKind::Create,
                Time::EPOCH,
            )
        }
    }

    #[test]
    fn what_is_to_be_removed_is_known_although_nothing_else_can_be_read() {
        let disk = json!({"disk": {"state": "made", "made": null}});
        let known = json!({"pieces": disk, "failure": null, "made": null});
        let later = json!({"pieces": disk, "failure": null, "made": null, "of_a_later_version": 1});
        for notes in [known, later] {
            assert_eq!(noted(Some(&creation(notes))), Some(disk.clone()));
        }
        assert_eq!(noted(None), Some(Value::Null), "nothing was asked for");
        let attached = json!({"pieces": disk, "failure": null, "attached": {"device_name": "/dev/sdf"}});
        let device: Option<VolumeAttachmentData> = made(&creation(attached));
        assert_eq!(device.unwrap().device_name.as_deref(), Some("/dev/sdf"));
        for notes in [
            json!({"parts": disk}),
            json!({"pieces": null, "parts": disk}),
            json!(7),
        ] {
            assert_eq!(noted(Some(&creation(notes))), None, "something may be there");
        }
    }
}
