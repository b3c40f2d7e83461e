//! Durable calls to clouds: network volumes are made, registered and deleted.

use std::sync::Arc;

use async_trait::async_trait;
use dstack_compute::{Backend, ComputeError, Known, Lifecycle, Marks, Owner, Volume, VolumeRequest, Volumes};
use dstack_model::volumes::VolumeProvisioningData;
use dstack_store::VolumeSnapshot;
use dstack_store::rows::{OperationKind, OperationRow};

use super::clouds::{backend, in_time, not_yet, refused, remove};
use super::creation::{self, Creation};
use super::{Step, Subject, last_of, note_error};
use crate::Result;
use crate::context::Context;

#[async_trait]
impl Subject for VolumeSnapshot {
    fn operations(&self) -> &[OperationRow] {
        &self.operations
    }

    async fn call(&self, ctx: &Arc<Context>, operation: OperationRow) -> Result<Step> {
        match operation.kind {
            OperationKind::Create => create(ctx, self, operation).await,
            OperationKind::Remove => delete(ctx, self, operation).await,
            _ => refused(ctx, operation, "nothing that a cloud does".to_owned()).await,
        }
    }
}

async fn create(ctx: &Context, snapshot: &VolumeSnapshot, operation: OperationRow) -> Result<Step> {
    let Some(begun) = Creation::read(&operation) else {
        return creation::unreadable(ctx, operation).await;
    };
    let failure = begun.failure.clone();
    let not_wanted = || "The volume was deleted before it was made".to_owned();
    let failure = failure.or_else(|| snapshot.volume.to_be_deleted.then(not_wanted));
    let is_begun = begun.pieces.is_some();
    if let Some(failure) = &failure
        && !is_begun
    {
        return refused(ctx, operation, failure.clone()).await;
    }
    let cloud = match cloud_of(ctx, snapshot).await {
        Ok(cloud) => cloud,
        // Nothing was asked.
        Err(error @ ComputeError::Configuration(_)) if !is_begun => {
            tracing::info!(volume.name = snapshot.volume.name, %error, "a volume is not made");
            return refused(ctx, operation, "Backend not available".to_owned()).await;
        }
        Err(error) => return not_yet(ctx, operation, &error).await,
    };
    let Some(volumes) = cloud.volumes() else {
        let text = "Volumes are not supported by this backend".to_owned();
        if !is_begun {
            return refused(ctx, operation, text).await;
        }
        // It was asked when it supported them: something may have been made.
        note_error(ctx, operation, text).await?;
        return Ok(Step::Again);
    };
    if snapshot.volume.configuration.is_external() {
        return register(ctx, operation, volumes, &request(ctx, snapshot)).await;
    }
    let lifecycle: &dyn Lifecycle<Volume> = volumes;
    match failure {
        Some(failure) => {
            creation::clear(ctx, operation, begun, lifecycle, &known(ctx, snapshot), failure).await
        }
        None => {
            let account = (snapshot.volume.project_id, cloud.kind());
            let request = request(ctx, snapshot);
            creation::ensure(ctx, operation, begun, account, lifecycle, &request).await
        }
    }
}

/// Looks up a volume that is there already: it is paid for elsewhere, and has no price here.
async fn register(
    ctx: &Context,
    operation: OperationRow,
    volumes: &dyn Volumes,
    request: &VolumeRequest,
) -> Result<Step> {
    let found = in_time(volumes.register(request)).await;
    ctx.reached("cloud.register.after")?;
    match found {
        Ok(data) => {
            let made = VolumeProvisioningData { price: None, ..data };
            creation::is_made(ctx, operation, Creation::default(), &made).await
        }
        Err(error) if error.is_transient() => not_yet(ctx, operation, &error).await,
        Err(error) => refused(ctx, operation, error.to_string()).await,
    }
}

async fn delete(ctx: &Context, snapshot: &VolumeSnapshot, operation: OperationRow) -> Result<Step> {
    let Some(pieces) = creation::noted(last_of(&snapshot.operations, OperationKind::Create)) else {
        return creation::unreadable(ctx, operation).await;
    };
    let cloud = cloud_of(ctx, snapshot).await;
    remove::<Volume>(ctx, operation, pieces, &known(ctx, snapshot), cloud, volumes_of).await
}

fn volumes_of(backend: &dyn Backend) -> Option<&dyn Lifecycle<Volume>> {
    backend.volumes().map(|volumes| volumes as &dyn Lifecycle<Volume>)
}

fn known(ctx: &Context, snapshot: &VolumeSnapshot) -> Known<Volume> {
    let row = &snapshot.volume;
    Known {
        marks: marks(ctx, snapshot),
        site: row.configuration.region().unwrap_or_default().to_owned(),
        place: row.provisioning_data.as_deref().cloned(),
    }
}

fn marks(ctx: &Context, snapshot: &VolumeSnapshot) -> Marks {
    let row = &snapshot.volume;
    Marks {
        installation: ctx.deps.settings.installation,
        key: row.id.uuid(),
        name: row.name.clone(),
        project: row.project_id,
    }
}

async fn cloud_of(ctx: &Context, snapshot: &VolumeSnapshot) -> Result<Arc<dyn Backend>, ComputeError> {
    let row = &snapshot.volume;
    let made = row.provisioning_data.as_ref().and_then(|data| data.backend);
    let kind = made.unwrap_or(row.configuration.backend());
    backend(ctx, row.project_id, kind, "volumes", |_| true).await
}

fn request(ctx: &Context, snapshot: &VolumeSnapshot) -> VolumeRequest {
    VolumeRequest {
        marks: marks(ctx, snapshot),
        owner: Owner {
            project: snapshot.project_name.clone(),
            user: snapshot.user_name.clone(),
            tags: snapshot
                .volume
                .configuration
                .tags()
                .cloned()
                .map(|tags| tags.into_iter().collect())
                .unwrap_or_default(),
        },
        configuration: (*snapshot.volume.configuration).clone(),
    }
}
