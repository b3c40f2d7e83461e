//! Durable calls to clouds: volumes are attached to machines, and detached.
//!
//! As with all that clouds make, what a backend is about to do it notes before. What is not wanted any more is undone by the same
//! operation, so that a volume is free for another machine only when the cloud says so.

use std::sync::Arc;

use async_trait::async_trait;
use dstack_compute::{
    Attachment, AttachmentSite, Backend, ComputeError, Known, Lifecycle, Marks, Removal, Step as Progress,
};
use dstack_model::Decode;
use dstack_model::decode::decode_strict;
use dstack_model::volumes::VolumeAttachmentData;
use dstack_plan::lifecycle::attachment::AttachmentStatus;
use dstack_store::rows::{OperationKind, OperationRow};
use dstack_store::{AttachmentSnapshot, EntityRef};
use serde::Serialize;
use serde_json::Value;

use super::clouds::{OperationJournal, backend, done, keep, keep_changed, not_yet, refused, remove};
use super::{Step, Subject, last_of, note_error};
use crate::Result;
use crate::context::Context;
use crate::job_volumes::NOT_ATTACHED_BY_CALL;

/// How far it is to attach a volume.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Decode)]
pub struct Attempt {
    /// What the backend has noted.
    pieces: Option<Value>,
    /// Why it is not attached: what was noted is being undone.
    failure: Option<String>,
    /// What the cloud said when it was attached.
    attached: Option<VolumeAttachmentData>,
}

impl Attempt {
    fn read(operation: &OperationRow) -> Option<Self> {
        match operation.notes.as_deref() {
            None => Some(Self::default()),
            Some(notes) => decode_strict(notes).ok(),
        }
    }

    fn pieces(&self) -> Value {
        self.pieces.clone().unwrap_or_default()
    }

    /// With these notes of the backend.
    fn with_pieces(&self, pieces: &Value) -> Self {
        Self {
            pieces: Some(pieces.clone()).filter(|pieces| !pieces.is_null()),
            ..self.clone()
        }
    }

    fn to_json(&self) -> Value {
        serde_json::to_value(self).unwrap_or_default()
    }

    /// What the cloud said, by an operation that is done.
    pub fn attached(operation: &OperationRow) -> Option<VolumeAttachmentData> {
        Self::read(operation)?.attached
    }
}

#[async_trait]
impl Subject for AttachmentSnapshot {
    fn operations(&self) -> &[OperationRow] {
        &self.operations
    }

    async fn call(&self, ctx: &Context, operation: OperationRow) -> Result<Step> {
        match operation.kind {
            OperationKind::Create => attach(ctx, self, operation).await,
            OperationKind::Remove => detach(ctx, self, operation).await,
            _ => refused(ctx, operation, "nothing that a cloud does".to_owned()).await,
        }
    }
}

async fn attach(ctx: &Context, snapshot: &AttachmentSnapshot, operation: OperationRow) -> Result<Step> {
    let Some(attempt) = Attempt::read(&operation) else {
        // It may be attached: not given up.
        let error = "what was to be attached is stored in a form that this version cannot read";
        note_error(ctx, operation, error.to_owned()).await?;
        return Ok(Step::Again);
    };
    let is_wanted = snapshot.attachment.status() == AttachmentStatus::Attaching;
    let unwanted = || "it is not wanted any more".to_owned();
    let failure = attempt.failure.clone().or_else(|| (!is_wanted).then(unwanted));
    let is_begun = attempt.pieces.is_some();
    if let Some(failure) = &failure
        && !is_begun
    {
        return refused(ctx, operation, failure.clone()).await;
    }
    let Some(site) = site(ctx, snapshot) else {
        return refused(ctx, operation, "there is no machine".to_owned()).await;
    };
    let cloud = match cloud_of(ctx, snapshot).await {
        Ok(cloud) => cloud,
        // Nothing was asked.
        Err(error @ ComputeError::Configuration(_)) if !is_begun => {
            return refused(ctx, operation, error.details()).await;
        }
        Err(error) => return not_yet(ctx, operation, &error).await,
    };
    let Some(attachments) = attachments_of(cloud.as_ref()) else {
        if !is_begun {
            return refused(ctx, operation, NOT_ATTACHED_BY_CALL.details()).await;
        }
        return not_yet(ctx, operation, &NOT_ATTACHED_BY_CALL).await;
    };
    match failure {
        Some(failure) => undo(ctx, snapshot, operation, attempt, (attachments, site, failure)).await,
        None => {
            ensure(
                ctx,
                snapshot,
                operation,
                attempt,
                (cloud.as_ref(), attachments, site),
            )
            .await
        }
    }
}

/// The backend makes the next step.
async fn ensure(
    ctx: &Context,
    snapshot: &AttachmentSnapshot,
    operation: OperationRow,
    attempt: Attempt,
    (cloud, attachments, site): (&dyn Backend, &dyn Lifecycle<Attachment>, AttachmentSite),
) -> Result<Step> {
    let row = &snapshot.attachment;
    let embed = |pieces: &Value| attempt.with_pieces(pieces).to_json();
    let journal = OperationJournal::new(ctx, operation, attempt.pieces(), "cloud.create.before", embed)
        .expecting(row.project_id, cloud.kind());
    let made = journal.ensure(attachments, &site).await;
    ctx.reached("cloud.create.after")?;
    let (operation, pieces) = journal.end()?;
    let attempt = attempt.with_pieces(&pieces);
    match made {
        Ok(Progress::Ready(data)) => {
            let attached = Attempt {
                attached: Some(data),
                ..attempt
            };
            done(ctx, operation, attached.to_json()).await
        }
        Ok(Progress::Underway { again, .. }) => {
            keep_changed(ctx, operation, attempt.to_json()).await?;
            Ok(Step::After(again))
        }
        Err(error) if error.is_transient() => {
            tracing::warn!(volume.name = row.name, instance.name = row.instance_name, %error,
                "a cloud does not say whether it attached a volume");
            not_yet(ctx, operation, &error).await
        }
        Err(error) if attempt.pieces.is_none() => refused(ctx, operation, error.details()).await,
        Err(error) => {
            let failed = Attempt {
                failure: Some(error.details()),
                ..attempt
            };
            keep(ctx, operation, failed.to_json()).await?;
            Ok(Step::Next)
        }
    }
}

/// Detaches what may have been attached although it is not to be.
async fn undo(
    ctx: &Context,
    snapshot: &AttachmentSnapshot,
    operation: OperationRow,
    attempt: Attempt,
    (attachments, site, failure): (&dyn Lifecycle<Attachment>, AttachmentSite, String),
) -> Result<Step> {
    let attempt = Attempt {
        failure: Some(failure.clone()),
        ..attempt
    };
    let embed = |pieces: &Value| attempt.with_pieces(pieces).to_json();
    let journal = OperationJournal::new(ctx, operation, attempt.pieces(), "cloud.remove.noted", embed);
    let entity = EntityRef::Attachment(snapshot.attachment.id);
    ctx.before_effect("cloud.clear.before", entity)?;
    let removed = journal.remove(attachments, &known(ctx, snapshot, site)).await;
    ctx.reached("cloud.clear.after")?;
    let (operation, _) = journal.end()?;
    match removed {
        Ok(Removal::Gone) => refused(ctx, operation, failure).await,
        Ok(Removal::Underway { again }) => Ok(Step::After(again)),
        Err(error) => not_yet(ctx, operation, &error).await,
    }
}

async fn detach(ctx: &Context, snapshot: &AttachmentSnapshot, operation: OperationRow) -> Result<Step> {
    let Some(site) = site(ctx, snapshot) else {
        return done(ctx, operation, Value::Null).await;
    };
    let attached = last_of(&snapshot.operations, OperationKind::Create).and_then(Attempt::read);
    let pieces = attached.map(|attempt| attempt.pieces()).unwrap_or_default();
    let cloud = cloud_of(ctx, snapshot).await;
    let known = known(ctx, snapshot, site);
    remove::<Attachment>(ctx, operation, pieces, &known, cloud, attachments_of).await
}

fn attachments_of(backend: &dyn Backend) -> Option<&dyn Lifecycle<Attachment>> {
    backend.volumes()?.attachments()
}

fn site(ctx: &Context, snapshot: &AttachmentSnapshot) -> Option<AttachmentSite> {
    let row = &snapshot.attachment;
    let machine = snapshot.instance.as_ref()?.job_provisioning_data.as_deref()?;
    Some(AttachmentSite {
        volume: (*row.volume).clone(),
        machine: machine.clone(),
        force: row.forced_from.is_some_and(|at| ctx.now() >= at),
    })
}

fn known(ctx: &Context, snapshot: &AttachmentSnapshot, site: AttachmentSite) -> Known<Attachment> {
    let row = &snapshot.attachment;
    Known {
        marks: Marks {
            installation: ctx.deps.settings.installation,
            key: row.id.uuid(),
            name: row.name.clone(),
            project: row.project_id,
        },
        site,
        place: row.data.as_deref().cloned(),
    }
}

async fn cloud_of(ctx: &Context, snapshot: &AttachmentSnapshot) -> Result<Arc<dyn Backend>, ComputeError> {
    let made = snapshot.attachment.volume.backend;
    let kind = made.unwrap_or(snapshot.volume.configuration.backend());
    backend(ctx, snapshot.attachment.project_id, kind, "volumes", |_| true).await
}
