//! Durable calls to clouds: network volumes are made, registered and deleted.
//!
//! What a backend is about to make it notes before. When it comes to nothing, or is not wanted any more, all that was noted is
//! removed: nothing is made twice, and nothing is forgotten.

use std::sync::Arc;

use async_trait::async_trait;
use dstack_compute::{
    Backend, ComputeError, Known, Lifecycle, Marks, Owner, Removal, Step as Progress, Volume, VolumeRequest,
    Volumes,
};
use dstack_model::Decode;
use dstack_model::backends::BackendType;
use dstack_model::decode::decode_strict;
use dstack_model::volumes::VolumeProvisioningData;
use dstack_store::rows::{OperationKind, OperationRow};
use dstack_store::{EntityRef, VolumeSnapshot};
use serde::Serialize;
use serde_json::Value;

use super::clouds::{OperationJournal, backend, done, in_time, keep, keep_changed, not_yet, refused, remove};
use super::{Step, Subject, last_of, note_error};
use crate::Result;
use crate::context::Context;

/// How far the making of a volume is.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Decode)]
pub struct Creation {
    /// What the backend has noted.
    pieces: Option<Value>,
    /// Why it is not made: what was noted is being removed.
    failure: Option<String>,
    /// What was made.
    made: Option<VolumeProvisioningData>,
}

impl Creation {
    fn read(operation: &OperationRow) -> Option<Self> {
        match operation.notes.as_deref() {
            None => Some(Self::default()),
            Some(notes) => decode_strict(notes).ok(),
        }
    }

    /// What the backend has noted.
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

    /// What the cloud made, by a creation that is done.
    pub fn made(operation: &OperationRow) -> Option<VolumeProvisioningData> {
        Self::read(operation)?.made
    }
}

#[async_trait]
impl Subject for VolumeSnapshot {
    fn operations(&self) -> &[OperationRow] {
        &self.operations
    }

    async fn call(&self, ctx: &Context, operation: OperationRow) -> Result<Step> {
        match operation.kind {
            OperationKind::Create => create(ctx, self, operation).await,
            OperationKind::Remove => delete(ctx, self, operation).await,
            _ => refused(ctx, operation, "nothing that a cloud does".to_owned()).await,
        }
    }
}

async fn create(ctx: &Context, snapshot: &VolumeSnapshot, operation: OperationRow) -> Result<Step> {
    let Some(creation) = Creation::read(&operation) else {
        // Something may have been made: not given up.
        let error = "what was to be made is stored in a form that this version cannot read";
        note_error(ctx, operation, error.to_owned()).await?;
        return Ok(Step::Again);
    };
    let failure = creation.failure.clone();
    let not_wanted = || "The volume was deleted before it was made".to_owned();
    let failure = failure.or_else(|| snapshot.volume.to_be_deleted.then(not_wanted));
    let is_begun = creation.pieces.is_some();
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
    match failure {
        Some(failure) => clear(ctx, snapshot, operation, creation, (volumes, failure)).await,
        None => ensure(ctx, snapshot, operation, creation, (cloud.kind(), volumes)).await,
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
            is_made(ctx, operation, Creation::default(), made).await
        }
        Err(error) if error.is_transient() => not_yet(ctx, operation, &error).await,
        Err(error) => refused(ctx, operation, error.to_string()).await,
    }
}

/// The backend makes the next piece of the volume.
async fn ensure(
    ctx: &Context,
    snapshot: &VolumeSnapshot,
    operation: OperationRow,
    creation: Creation,
    (kind, volumes): (BackendType, &dyn Volumes),
) -> Result<Step> {
    let row = &snapshot.volume;
    let embed = |pieces: &Value| creation.with_pieces(pieces).to_json();
    let journal = OperationJournal::new(ctx, operation, creation.pieces(), "cloud.create.before", embed)
        .expecting(row.project_id, kind);
    let made = journal.ensure(volumes, &request(ctx, snapshot)).await;
    ctx.reached("cloud.create.after")?;
    let (operation, pieces) = journal.end()?;
    let creation = creation.with_pieces(&pieces);
    match made {
        Ok(Progress::Ready(data)) => is_made(ctx, operation, creation, data).await,
        Ok(Progress::Underway { again, .. }) => {
            keep_changed(ctx, operation, creation.to_json()).await?;
            Ok(Step::After(again))
        }
        Err(error) if error.is_transient() => {
            tracing::warn!(volume.name = row.name, %error, "a cloud does not say whether it made a volume");
            not_yet(ctx, operation, &error).await
        }
        Err(error) if creation.pieces.is_none() => refused(ctx, operation, error.to_string()).await,
        Err(error) => {
            let failed = Creation {
                failure: Some(error.to_string()),
                ..creation
            };
            keep(ctx, operation, failed.to_json()).await?;
            Ok(Step::Next)
        }
    }
}

/// Removes what was made of a volume that is not to be.
async fn clear(
    ctx: &Context,
    snapshot: &VolumeSnapshot,
    operation: OperationRow,
    creation: Creation,
    (volumes, failure): (&dyn Volumes, String),
) -> Result<Step> {
    let creation = Creation {
        failure: Some(failure.clone()),
        ..creation
    };
    let embed = |pieces: &Value| creation.with_pieces(pieces).to_json();
    let journal = OperationJournal::new(ctx, operation, creation.pieces(), "cloud.remove.noted", embed);
    ctx.before_effect("cloud.clear.before", EntityRef::Volume(snapshot.volume.id))?;
    let removed = journal.remove(volumes, &known(ctx, snapshot)).await;
    ctx.reached("cloud.clear.after")?;
    let (operation, _) = journal.end()?;
    match removed {
        Ok(Removal::Gone) => refused(ctx, operation, failure).await,
        Ok(Removal::Underway { again }) => Ok(Step::After(again)),
        Err(error) => not_yet(ctx, operation, &error).await,
    }
}

async fn is_made(
    ctx: &Context,
    operation: OperationRow,
    creation: Creation,
    data: VolumeProvisioningData,
) -> Result<Step> {
    let made = Creation {
        made: Some(data),
        ..creation
    };
    done(ctx, operation, made.to_json()).await
}

async fn delete(ctx: &Context, snapshot: &VolumeSnapshot, operation: OperationRow) -> Result<Step> {
    if snapshot.volume.provisioning_data.is_none() {
        return done(ctx, operation, Value::Null).await;
    }
    let created = last_of(&snapshot.operations, OperationKind::Create).and_then(Creation::read);
    let pieces = created.map(|creation| creation.pieces()).unwrap_or_default();
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
