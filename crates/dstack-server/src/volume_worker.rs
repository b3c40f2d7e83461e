//! Takes volumes to their clouds: creates what was submitted, deletes what was marked.
//!
//! A volume's id is the key of the request: after a crash, the same request finds what the earlier one made. A cloud that
//! does not answer is asked again; a volume is deleted only when its cloud said so.

use std::sync::Arc;
use std::time::Duration;

use dstack_compute::{Backend, ComputeError, VolumeRequest, Volumes};
use dstack_control::Actor;
use dstack_model::volumes::{VolumeProvisioningData, VolumeStatus};
use dstack_store::queries::volumes::{self, ListedVolume, VolumeRow};
use dstack_store::writes::Change;
use dstack_store::{Json, events};
use dstack_system::{observe, task_span};
use futures_util::StreamExt;
use tokio_util::sync::CancellationToken;

use crate::cloud_worker::{self, Left};
use crate::state::AppState;

/// How many clouds are asked at once.
const AT_ONCE: usize = 16;
/// How long a cloud may take to answer; what it did then is found by the repetition, which has the same key.
const DEADLINE: Duration = Duration::from_secs(120);

/// Runs until the server stops.
pub(crate) fn start(state: &Arc<AppState>, stop: CancellationToken) {
    let changed = Arc::clone(&state.control.verbs.volumes_changed);
    let state = Arc::clone(state);
    cloud_worker::start("volumes", changed, stop, move || {
        let state = Arc::clone(&state);
        async move {
            let span = task_span!("pipeline_tasks.VolumeWorker.process");
            observe::task(span, pass(&state)).await
        }
    });
}

/// Looks once at every volume that waits for its cloud; a slow cloud holds up only its own.
async fn pass(state: &AppState) -> dstack_control::Result<Left> {
    let waiting = volumes::waiting(state.data.database.reads()).await?;
    let done: Vec<dstack_control::Result<Left>> = futures_util::stream::iter(waiting)
        .map(|listed| process(state, listed))
        .buffer_unordered(AT_ONCE)
        .collect()
        .await;
    let left: Vec<Left> = done.into_iter().collect::<Result<_, _>>()?;
    Ok(match left.contains(&Left::Unanswered) {
        true => Left::Unanswered,
        false => Left::Nothing,
    })
}

async fn process(state: &AppState, listed: ListedVolume) -> dstack_control::Result<Left> {
    let row = listed.row.clone();
    let step = match tokio::time::timeout(DEADLINE, step(state, listed)).await {
        Ok(step) => step,
        Err(_) => {
            tracing::warn!(
                volume.name = row.name,
                "A volume's cloud took longer than {} s: asked again",
                DEADLINE.as_secs()
            );
            None
        }
    };
    let Some((new, message)) = step else {
        return Ok(Left::Unanswered);
    };
    let directory = &state.control.verbs.directory;
    let mut work = directory.work(Actor::System);
    work.event(message, vec![events::volume(&row)]);
    work.change(Change::PutVolume(Box::new(new)));
    match directory.finish(work).await {
        Ok(()) => Ok(Left::Nothing),
        Err(error) if error.is_conflict() => Ok(Left::Unanswered),
        Err(error) => Err(error),
    }
}

/// What becomes of a volume, and the event that says so; `None`: nothing yet.
async fn step(state: &AppState, listed: ListedVolume) -> Option<(VolumeRow, String)> {
    let request = request(&listed);
    let row = listed.row;
    let backend = backend(state, &row)
        .await
        .inspect_err(|error| {
            tracing::warn!(volume.name = row.name, %error, "the backends of a project are not known now: asked again");
        })
        .ok()?;
    let now = state.data.clock.now();
    if row.to_be_deleted {
        if let (Some(data), false) = (&row.provisioning_data, row.configuration.is_external()) {
            delete(backend.as_deref(), &request, data).await?;
        }
        let row = VolumeRow {
            deleted: true,
            deleted_at: Some(now),
            last_processed_at: now,
            ..row
        };
        return Some((row, "Volume deleted".to_owned()));
    }
    let made = match make(backend.as_deref(), &request).await {
        Ok(data) => Ok(data),
        Err(ComputeError::Unavailable(reason)) => {
            tracing::warn!(
                volume.name = row.name,
                reason,
                "A volume's cloud does not answer: asked again"
            );
            return None;
        }
        Err(ComputeError::Configuration(text)) => Err(text),
        Err(error) => Err(error.to_string()),
    };
    let (status, status_message, data) = match made {
        Ok(data) => (VolumeStatus::Active, None, Some(Json::new(data))),
        Err(text) => (VolumeStatus::Failed, Some(text), None),
    };
    let mut message = format!(
        "Volume status changed SUBMITTED -> {}",
        status.as_str().to_uppercase()
    );
    if let Some(text) = &status_message {
        message.push_str(&format!(" ({text})"));
    }
    let row = VolumeRow {
        status,
        status_message,
        provisioning_data: data,
        last_processed_at: now,
        ..row
    };
    Some((row, message))
}

fn request(listed: &ListedVolume) -> VolumeRequest {
    VolumeRequest {
        id: listed.row.id,
        name: listed.row.name.clone(),
        project_name: listed.project_name.clone(),
        user: listed.user_name.clone(),
        configuration: (*listed.row.configuration).clone(),
    }
}

/// `None`: it is not configured.
async fn backend(state: &AppState, row: &VolumeRow) -> Result<Option<Arc<dyn Backend>>, ComputeError> {
    let data = row.provisioning_data.as_ref();
    let kind = data
        .and_then(|data| data.backend)
        .unwrap_or(row.configuration.backend());
    let backends = state.control.backends.of_project(row.project_id).await?;
    Ok(backends.into_iter().find(|backend| backend.kind() == kind))
}

async fn make(
    backend: Option<&dyn Backend>,
    request: &VolumeRequest,
) -> Result<VolumeProvisioningData, ComputeError> {
    let backend = backend.ok_or_else(|| ComputeError::Configuration("Backend not available".to_owned()))?;
    let volumes = backend
        .volumes()
        .ok_or_else(|| ComputeError::Configuration("Volumes are not supported by this backend".to_owned()))?;
    made_by(volumes, request).await
}

/// Creates the volume, or looks up the one that is there already: that one is paid for elsewhere, and has no price here.
async fn made_by(
    volumes: &dyn Volumes,
    request: &VolumeRequest,
) -> Result<VolumeProvisioningData, ComputeError> {
    match request.configuration.is_external() {
        true => Ok(VolumeProvisioningData {
            price: None,
            ..volumes.register(request).await?
        }),
        false => volumes.create(request).await,
    }
}

/// `Some` once the cloud has confirmed it.
async fn delete(
    backend: Option<&dyn Backend>,
    request: &VolumeRequest,
    data: &VolumeProvisioningData,
) -> Option<()> {
    let Some(volumes) = backend.and_then(Backend::volumes) else {
        tracing::warn!(
            volume.name = request.name,
            "A volume cannot be deleted: its backend is not configured any more. Configure it again."
        );
        return None;
    };
    volumes
        .delete(request, data)
        .await
        .inspect_err(|error| {
            tracing::warn!(volume.name = request.name, %error, "A volume is not deleted yet: tried again");
        })
        .ok()
}

#[cfg(test)]
mod tests {
    use async_trait::async_trait;
    use serde_json::{Value, json};

    use super::*;

    /// A cloud that tells a price of every volume.
    struct Cloud;

    fn data() -> VolumeProvisioningData {
        serde_json::from_value(json!({"volume_id": "vol-1", "size_gb": 10, "price": 8.0})).unwrap()
    }

    #[async_trait]
    impl Volumes for Cloud {
        async fn create(&self, _: &VolumeRequest) -> Result<VolumeProvisioningData, ComputeError> {
            Ok(data())
        }
        async fn register(&self, _: &VolumeRequest) -> Result<VolumeProvisioningData, ComputeError> {
            Ok(data())
        }
        async fn delete(&self, _: &VolumeRequest, _: &VolumeProvisioningData) -> Result<(), ComputeError> {
            Ok(())
        }
    }

    async fn price(more: Value) -> Option<f64> {
        let mut configuration = json!({"type": "volume", "backend": "aws", "name": "data", "region": "eu"});
        let all = configuration.as_object_mut().unwrap();
        all.extend(more.as_object().unwrap().clone());
        let request = VolumeRequest {
            id: uuid::Uuid::nil().into(),
            name: "data".to_owned(),
            project_name: "main".to_owned(),
            user: "admin".to_owned(),
            configuration: serde_json::from_value(configuration).unwrap(),
        };
        made_by(&Cloud, &request).await.unwrap().price
    }

    #[tokio::test]
    async fn volumes_that_are_there_already_have_no_price() {
        assert_eq!(price(json!({"size": 10})).await, Some(8.0));
        assert_eq!(price(json!({"volume_id": "vol-1"})).await, None);
    }
}
