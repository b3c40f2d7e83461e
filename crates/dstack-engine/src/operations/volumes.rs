//! Durable calls to clouds: network volumes are made, registered and deleted.
//!
//! Before a cloud is asked to make a volume, it is written down that it is asked. Whatever happens then, the cloud is asked what
//! became of it before it is asked again: nothing is made twice, and nothing is forgotten.

use std::sync::Arc;

use async_trait::async_trait;
use dstack_compute::{Backend, ComputeError, LISTED_WITHIN, VolumeRequest, Volumes};
use dstack_model::Decode;
use dstack_model::backends::BackendType;
use dstack_model::decode::decode_strict;
use dstack_model::volumes::VolumeProvisioningData;
use dstack_store::rows::{OperationKind, OperationRow};
use dstack_store::{EntityRef, VolumeSnapshot};
use dstack_units::Time;
use serde::Serialize;
use serde_json::Value;

use super::clouds::{
    backend, done, in_time, keep, keep_with_backend, not_configured, refused, remove, settled_at,
};
use super::{Step, Subject, note_error};
use crate::Result;
use crate::context::Context;

/// Calls to make a volume that may come to nothing, before the user is told.
const MAX_LOST_CALLS: u64 = 2;

/// How far the making of a volume is.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Decode)]
pub struct Creation {
    /// When the cloud was asked for it; unset: it is not asked now.
    asked_at: Option<Time>,
    /// How often the cloud was asked, and nothing came of it.
    #[decode(default = 0)]
    lost_calls: u64,
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
    if snapshot.volume.to_be_deleted && creation.asked_at.is_none() {
        return refused(
            ctx,
            operation,
            "The volume was deleted before it was made".to_owned(),
        )
        .await;
    }
    let cloud = match cloud_of(ctx, snapshot).await {
        Ok(cloud) => cloud,
        // Nothing was asked.
        Err(error @ ComputeError::Configuration(_)) if creation.asked_at.is_none() => {
            tracing::info!(volume.name = snapshot.volume.name, %error, "a volume is not made");
            return refused(ctx, operation, "Backend not available".to_owned()).await;
        }
        Err(error) => {
            note_error(ctx, operation, error.details()).await?;
            return Ok(Step::Again);
        }
    };
    let Some(volumes) = cloud.volumes() else {
        let text = "Volumes are not supported by this backend".to_owned();
        if creation.asked_at.is_none() {
            return refused(ctx, operation, text).await;
        }
        // It was asked when it supported them: something may have been made.
        note_error(ctx, operation, text).await?;
        return Ok(Step::Again);
    };
    let request = request(snapshot);
    if snapshot.volume.configuration.is_external() {
        return register(ctx, operation, volumes, &request).await;
    }
    match creation.asked_at {
        Some(asked_at) => find(ctx, snapshot, operation, creation, volumes, asked_at).await,
        None => ask(ctx, snapshot, operation, creation, (cloud.kind(), volumes)).await,
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
        Err(error @ ComputeError::Unavailable(_)) => {
            note_error(ctx, operation, error.details()).await?;
            Ok(Step::Again)
        }
        Err(error) => refused(ctx, operation, error.to_string()).await,
    }
}

/// Asks the cloud for the volume.
async fn ask(
    ctx: &Context,
    snapshot: &VolumeSnapshot,
    operation: OperationRow,
    creation: Creation,
    (kind, volumes): (BackendType, &dyn Volumes),
) -> Result<Step> {
    if creation.lost_calls > MAX_LOST_CALLS {
        let error = operation.error.clone();
        let text = error.unwrap_or_else(|| "the cloud did not answer".to_owned());
        return refused(ctx, operation, text).await;
    }
    let creation = Creation {
        asked_at: Some(ctx.now()),
        ..creation
    };
    let project = snapshot.volume.project_id;
    let operation = keep_with_backend(ctx, operation, creation.to_json(), project, kind).await?;
    ctx.before_effect("cloud.create.before", EntityRef::Volume(snapshot.volume.id))?;
    let made = in_time(volumes.create(&request(snapshot))).await;
    ctx.reached("cloud.create.after")?;
    match made {
        Ok(data) => is_made(ctx, operation, creation, data).await,
        Err(error @ ComputeError::Unavailable(_)) => {
            tracing::warn!(volume.name = snapshot.volume.name, %error, "a cloud does not say whether it made a volume");
            note_error(ctx, operation, error.details()).await?;
            Ok(Step::Next)
        }
        Err(error) => refused(ctx, operation, error.to_string()).await,
    }
}

/// A call may have made something: the cloud is asked.
async fn find(
    ctx: &Context,
    snapshot: &VolumeSnapshot,
    operation: OperationRow,
    creation: Creation,
    volumes: &dyn Volumes,
    asked_at: Time,
) -> Result<Step> {
    let found = in_time(volumes.find(&request(snapshot))).await;
    ctx.reached("cloud.find.after")?;
    match found {
        Ok(Some(data)) => is_made(ctx, operation, creation, data).await,
        Ok(None) if ctx.now() >= settled_at(asked_at, LISTED_WITHIN) => {
            let lost = Creation {
                asked_at: None,
                lost_calls: creation.lost_calls + 1,
                ..creation
            };
            keep(ctx, operation, lost.to_json()).await?;
            Ok(Step::Next)
        }
        // The call may still be on its way, or what it made not be listed yet.
        Ok(None) => Ok(Step::Again),
        Err(error) => {
            note_error(ctx, operation, error.details()).await?;
            Ok(Step::Again)
        }
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
    let Some(data) = snapshot.volume.provisioning_data.as_deref() else {
        return done(ctx, operation, Value::Null).await;
    };
    let request = request(snapshot);
    let subject = EntityRef::Volume(snapshot.volume.id);
    let cloud = cloud_of(ctx, snapshot).await;
    remove(ctx, subject, operation, cloud, |cloud| async move {
        match cloud.volumes() {
            Some(volumes) => volumes.delete(&request, data).await,
            None => Err(not_configured(cloud.kind(), "volumes")),
        }
    })
    .await
}

async fn cloud_of(ctx: &Context, snapshot: &VolumeSnapshot) -> Result<Arc<dyn Backend>, ComputeError> {
    let row = &snapshot.volume;
    let made = row.provisioning_data.as_ref().and_then(|data| data.backend);
    let kind = made.unwrap_or(row.configuration.backend());
    backend(ctx, row.project_id, kind, "volumes", |_| true).await
}

fn request(snapshot: &VolumeSnapshot) -> VolumeRequest {
    VolumeRequest {
        id: snapshot.volume.id,
        name: snapshot.volume.name.clone(),
        project_name: snapshot.project_name.clone(),
        user: snapshot.user_name.clone(),
        configuration: (*snapshot.volume.configuration).clone(),
    }
}
