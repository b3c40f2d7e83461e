//! The life of a volume: in no region and of no size. Sandboxes are made with volumes: there is nothing to attach.

use async_trait::async_trait;
use dstack_backend::Made;
use dstack_compute::{
    Call, ComputeError, Known, LISTED_WITHIN, Lifecycle, Removal, Sign, Step, Volume, VolumeRequest, Volumes,
};
use dstack_model::backends::BackendType;
use dstack_model::volumes::{AnyVolumeConfiguration, VolumeProvisioningData};
use http::StatusCode;

use crate::Daytona;
use crate::client::VolumeRecord;
use crate::requests::{not_made, refused, told};
use crate::sandboxes::{ENDS_INTERVAL, NAME_LENGTH};

const VOLUME: &str = "volume";

#[async_trait]
impl Lifecycle<Volume> for Daytona {
    async fn ensure(
        &self,
        want: &VolumeRequest,
        call: &Call<'_>,
    ) -> Result<Step<VolumeProvisioningData>, ComputeError> {
        let name = want.marks.name(NAME_LENGTH);
        let create = async || {
            let made = self.client.create_volume(&name).await;
            Ok(Made::now(made.map_err(|error| not_made(&error))?, call))
        };
        let find = || self.find_volume(&name, call);
        let made: Made = call.make(VOLUME, LISTED_WITHIN, create, find).await?;
        let found = told(self.client.volume(&made.id).await)?;
        match found.as_ref().map(state_of) {
            Some(State::Ready) => Ok(Step::Ready(place(made.id))),
            Some(State::Over(why)) => Err(ComputeError::Broken(why)),
            None if !made.is_new(call) => Err(ComputeError::Broken(
                "Daytona does not have the volume any more".to_owned(),
            )),
            Some(State::Underway) | None => Ok(Step::Underway {
                seen: None,
                doing: "the volume is made".to_owned(),
                again: ENDS_INTERVAL,
            }),
        }
    }

    async fn look(
        &self,
        known: &[Known<Volume>],
    ) -> Result<Vec<Option<Sign<VolumeProvisioningData>>>, ComputeError> {
        let listed = told(self.client.volumes().await)?;
        let mut signs = Vec::with_capacity(known.len());
        for known in known {
            let Some(place) = &known.place else {
                signs.push(None);
                continue;
            };
            let listed = listed.iter().find(|volume| volume.id == place.volume_id);
            let found = match listed {
                Some(found) => Some(found.clone()),
                None => match self.client.volume(&place.volume_id).await {
                    Ok(found) => found,
                    // It was not told.
                    Err(_) => {
                        signs.push(None);
                        continue;
                    }
                },
            };
            signs.push(Some(match found.as_ref().map(state_of) {
                Some(State::Ready | State::Underway) => Sign::Well,
                Some(State::Over(why)) => Sign::Lost(why),
                None => Sign::Lost("Daytona does not have the volume any more".to_owned()),
            }));
        }
        Ok(signs)
    }

    async fn remove(&self, known: &Known<Volume>, call: &Call<'_>) -> Result<Removal, ComputeError> {
        let name = known.marks.name(NAME_LENGTH);
        let place = known.place.as_ref();
        let volume = place.map(|place| Made::long_ago(place.volume_id.clone()));
        let find = || self.find_volume(&name, call);
        let delete = async |volume: Made| {
            let told = self.delete_volume(&volume.id).await?;
            Ok(volume.removal(call, told, ENDS_INTERVAL))
        };
        call.unmake(VOLUME, volume, LISTED_WITHIN, find, delete).await
    }
}

#[async_trait]
impl Volumes for Daytona {
    async fn register(&self, volume: &VolumeRequest) -> Result<VolumeProvisioningData, ComputeError> {
        let AnyVolumeConfiguration::Daytona(configuration) = &volume.configuration else {
            return Err(ComputeError::Configuration(
                "the volume is not one of Daytona".to_owned(),
            ));
        };
        let id = configuration.volume_id.as_deref().unwrap_or_default();
        // It becomes a part of a path.
        let of_id = |byte: u8| byte.is_ascii_alphanumeric() || b"-_".contains(&byte);
        let found = match !id.is_empty() && id.bytes().all(of_id) {
            true => told(self.client.volume(id).await)?,
            false => None,
        };
        match found.as_ref().map(state_of) {
            Some(State::Ready) => Ok(place(id.to_owned())),
            Some(State::Underway) => Err(ComputeError::NotReady(format!("Daytona makes volume {id}"))),
            Some(State::Over(why)) => Err(refused(why)),
            None => Err(refused(format!(
                "Daytona has no volume {id}: check `volume_id`, and whose account the API key is of"
            ))),
        }
    }
}

impl Daytona {
    async fn find_volume(&self, name: &str, call: &Call<'_>) -> Result<Option<Made>, ComputeError> {
        let found = told(self.client.volume_by_name(name).await)?;
        let found = found.filter(|volume| volume.name == name && !is_deleted(volume));
        Ok(found.map(|volume| Made::now(volume.id, call)))
    }

    pub(crate) async fn delete_volume(&self, id: &str) -> Result<Removal, ComputeError> {
        match self.client.delete_volume(id).await {
            Err(error) if error.status() == Some(StatusCode::CONFLICT) => {
                let found = told(self.client.volume(id).await)?;
                let is_ending = found.as_ref().is_none_or(|volume| volume.state.contains("delet"));
                if !is_ending {
                    return Err(ComputeError::InUse(error.body().to_owned()));
                }
            }
            answer => told(answer)?,
        }
        let left = told(self.client.volume(id).await)?;
        Ok(match left.is_some_and(|volume| !is_deleted(&volume)) {
            true => Removal::Underway { again: ENDS_INTERVAL },
            false => Removal::Gone,
        })
    }
}

/// How far a volume is.
enum State {
    Ready,
    Underway,
    /// It will never work (again); why.
    Over(String),
}

fn state_of(volume: &VolumeRecord) -> State {
    match volume.state.as_str() {
        "ready" => State::Ready,
        "error" | "pending_delete" | "deleting" | "deleted" => {
            let why = volume.error_reason.as_deref().unwrap_or_default();
            let text = format!("Daytona has the volume in state {}: {why}", volume.state);
            State::Over(text.trim_end_matches([':', ' ']).to_owned())
        }
        _ => State::Underway,
    }
}

pub(crate) fn is_deleted(volume: &VolumeRecord) -> bool {
    volume.state == "deleted"
}

fn place(id: String) -> VolumeProvisioningData {
    VolumeProvisioningData {
        backend: Some(BackendType::Daytona),
        volume_id: id,
        size_gb: None,
        availability_zone: None,
        price: Some(0.0),
        attachable: false,
        detachable: false,
        backend_data: None,
    }
}
