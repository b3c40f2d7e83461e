//! The life of a network volume: storage by use, in no region and of no size. Pods are made with one: there is nothing to attach.

use async_trait::async_trait;
use dstack_backend::Made;
use dstack_compute::{
    Call, ComputeError, Known, LISTED_WITHIN, Lifecycle, Removal, Sign, Step, Volume, VolumeRequest, Volumes,
};
use dstack_model::backends::BackendType;
use dstack_model::volumes::{AnyVolumeConfiguration, VolumeProvisioningData};
use http::StatusCode;

use crate::Lium;
use crate::pods::{ENDS_INTERVAL, NAME_LENGTH};
use crate::requests::{is_id, not_made, refused, told};

const VOLUME: &str = "volume";

#[async_trait]
impl Lifecycle<Volume> for Lium {
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
        Ok(Step::Ready(place(made.id)))
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
            if listed.iter().any(|volume| volume.id == place.volume_id) {
                signs.push(Some(Sign::Well));
                continue;
            }
            signs.push(match self.client.volume(&place.volume_id).await {
                Ok(Some(_)) => Some(Sign::Well),
                Ok(None) => Some(Sign::Lost("Lium does not have the volume any more".to_owned())),
                // Of the others it is told how they are.
                Err(error) => {
                    tracing::debug!(volume.id = place.volume_id, %error, "Lium does not tell how a volume is");
                    None
                }
            });
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
impl Volumes for Lium {
    async fn register(&self, volume: &VolumeRequest) -> Result<VolumeProvisioningData, ComputeError> {
        let AnyVolumeConfiguration::Lium(configuration) = &volume.configuration else {
            return Err(ComputeError::Configuration(
                "the volume is not one of Lium".to_owned(),
            ));
        };
        let id = configuration.volume_id.as_deref().unwrap_or_default();
        let found = match is_id(id) {
            true => told(self.client.volume(id).await)?,
            false => None,
        };
        let missing = || {
            refused(format!(
                "Lium has no volume {id}: check `volume_id`, and whose account the API key is of"
            ))
        };
        found.map(|found| place(found.id)).ok_or_else(missing)
    }
}

impl Lium {
    async fn find_volume(&self, name: &str, call: &Call<'_>) -> Result<Option<Made>, ComputeError> {
        let volumes = told(self.client.volumes().await)?;
        let found = volumes.into_iter().find(|volume| volume.name == name);
        Ok(found.map(|volume| Made::now(volume.id, call)))
    }

    pub(crate) async fn delete_volume(&self, id: &str) -> Result<Removal, ComputeError> {
        match self.client.delete_volume(id).await {
            Err(error) if error.status() == Some(StatusCode::CONFLICT) => {
                return Err(ComputeError::InUse(format!(
                    "Lium answered 409: {}",
                    error.body()
                )));
            }
            answer => told(answer)?,
        }
        let is_there = told(self.client.volume(id).await)?.is_some()
            || told(self.client.volumes().await)?
                .iter()
                .any(|volume| volume.id == id);
        Ok(match is_there {
            true => Removal::Underway { again: ENDS_INTERVAL },
            false => Removal::Gone,
        })
    }
}

fn place(id: String) -> VolumeProvisioningData {
    VolumeProvisioningData {
        backend: Some(BackendType::Lium),
        volume_id: id,
        size_gb: None,
        availability_zone: None,
        // What is stored and read costs, and not the volume.
        price: None,
        attachable: false,
        detachable: false,
        backend_data: None,
    }
}
