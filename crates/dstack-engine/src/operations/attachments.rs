//! Durable calls to clouds: volumes are attached to machines, and detached.
//!
//! As with all that clouds make, what a backend is about to do it notes before. What is not wanted any more is undone by the same
//! operation, so that a volume is free for another machine only when the cloud says so.

use std::sync::Arc;

use async_trait::async_trait;
use dstack_compute::{Attachment, AttachmentSite, Backend, ComputeError, Known, Lifecycle, Marks};
use dstack_model::volumes::VolumeAttachmentData;
use dstack_plan::lifecycle::attachment::AttachmentStatus;
use dstack_store::AttachmentSnapshot;
use dstack_store::rows::{OperationKind, OperationRow};
use serde_json::Value;

use super::clouds::{backend, done, not_yet, refused, remove};
use super::creation::{self, Creation};
use super::{Step, Subject, last_of};
use crate::Result;
use crate::context::Context;
use crate::job_volumes::NOT_ATTACHED_BY_CALL;

const NOT_WANTED: &str = "it is not wanted any more";

#[async_trait]
impl Subject for AttachmentSnapshot {
    fn operations(&self) -> &[OperationRow] {
        &self.operations
    }

    async fn call(&self, ctx: &Arc<Context>, operation: OperationRow) -> Result<Step> {
        match operation.kind {
            OperationKind::Create => attach(ctx, self, operation).await,
            OperationKind::Remove => detach(ctx, self, operation).await,
            _ => refused(ctx, operation, "nothing that a cloud does".to_owned()).await,
        }
    }
}

async fn attach(ctx: &Context, snapshot: &AttachmentSnapshot, operation: OperationRow) -> Result<Step> {
    let is_wanted = snapshot.attachment.status() == AttachmentStatus::Attaching && snapshot.has_job();
    let (begun, is_readable) = match Creation::read(&operation) {
        Some(begun) => (begun, true),
        // It may be attached: a later version may take over in time.
        None if is_wanted => return creation::unreadable(ctx, operation).await,
        None => (Creation::unwanted(&operation, NOT_WANTED.to_owned()), false),
    };
    let failure = begun.failure.clone();
    let failure = failure.or_else(|| (!is_wanted).then(|| NOT_WANTED.to_owned()));
    let is_begun = begun.pieces.is_some();
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
        Some(failure) => {
            let known = known(ctx, snapshot, site, is_readable);
            creation::clear(ctx, operation, begun, attachments, &known, failure).await
        }
        None => {
            let account = (snapshot.attachment.project_id, cloud.kind());
            creation::ensure(ctx, operation, begun, account, attachments, &site).await
        }
    }
}

async fn detach(ctx: &Context, snapshot: &AttachmentSnapshot, operation: OperationRow) -> Result<Step> {
    let Some(site) = site(ctx, snapshot) else {
        return done(ctx, operation, Value::Null).await;
    };
    let noted = creation::noted(last_of(&snapshot.operations, OperationKind::Create));
    let known = known(ctx, snapshot, site, noted.is_some());
    let cloud = cloud_of(ctx, snapshot).await;
    remove::<Attachment>(
        ctx,
        operation,
        noted.unwrap_or_default(),
        &known,
        cloud,
        attachments_of,
    )
    .await
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

/// `is_noted`: what the backend has noted of it can be read. If not, the cloud is asked for the volume at the machine all the same.
fn known(
    ctx: &Context,
    snapshot: &AttachmentSnapshot,
    site: AttachmentSite,
    is_noted: bool,
) -> Known<Attachment> {
    let row = &snapshot.attachment;
    let anyhow = || VolumeAttachmentData { device_name: None };
    let place = row.data.as_deref().cloned();
    Known {
        marks: Marks {
            installation: ctx.deps.settings.installation,
            key: row.id.uuid(),
            name: row.name.clone(),
            project: row.project_id,
        },
        site,
        place: place.or_else(|| (!is_noted).then(anyhow)),
    }
}

async fn cloud_of(ctx: &Context, snapshot: &AttachmentSnapshot) -> Result<Arc<dyn Backend>, ComputeError> {
    let made = snapshot.attachment.volume.backend;
    let kind = made.unwrap_or(snapshot.volume.configuration.backend());
    backend(ctx, snapshot.attachment.project_id, kind, "volumes", |_| true).await
}
