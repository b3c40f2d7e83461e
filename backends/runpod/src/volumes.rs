//! The life of a network volume. Pods are made with volumes, and free them when they end: there is nothing to attach.

use async_trait::async_trait;
use dstack_compute::{
    Call, ComputeError, Known, LISTED_WITHIN, Lifecycle, Removal, Sign, Step, Volume, VolumeRequest, Volumes,
};
use dstack_model::backends::BackendType;
use dstack_model::volumes::{AnyVolumeConfiguration, RunpodVolumeConfiguration, VolumeProvisioningData};
use serde_json::json;

use crate::Runpod;
use crate::errors::{is_in_use, not_made};
use crate::pieces::{ENDS_INTERVAL, NAME_LENGTH, told};

const VOLUME: &str = "network volume";

/// Sizes that a volume may have, in GB (`CreateNetworkVolumeRequest`).
const SIZES: std::ops::RangeInclusive<i64> = 10..=4096;

/// From this size on, in GB, a GB costs less.
const LARGE_GB: i64 = 1000;

/// Dollars for a GB and month, of volumes that are not large, and of those that are.
const PRICES: (f64, f64) = (0.07, 0.05);

#[async_trait]
impl Lifecycle<Volume> for Runpod {
    async fn ensure(
        &self,
        want: &VolumeRequest,
        call: &Call<'_>,
    ) -> Result<Step<VolumeProvisioningData>, ComputeError> {
        let configuration = of_runpod(&want.configuration)?;
        let size = size_gb(configuration)?;
        let name = want.marks.name(NAME_LENGTH);
        // The API takes lower case as well, and no pod finds such a volume.
        let body =
            json!({"name": name, "dataCenter": configuration.region.to_ascii_uppercase(), "size": size});
        let create = async || {
            let made = self.client.create_network_volume(&body).await;
            made.map_err(|error| not_made(&error))
        };
        let id = call
            .make(VOLUME, LISTED_WITHIN, create, || self.find_volume(&name))
            .await?;
        Ok(Step::Ready(place(id, size)))
    }

    async fn look(
        &self,
        known: &[Known<Volume>],
    ) -> Result<Vec<Option<Sign<VolumeProvisioningData>>>, ComputeError> {
        let listed = told(self.client.network_volumes().await)?;
        let mut signs = Vec::with_capacity(known.len());
        for known in known {
            let Some(place) = &known.place else {
                signs.push(None);
                continue;
            };
            let is_listed = listed.iter().any(|volume| volume.id == place.volume_id);
            let exists = is_listed || told(self.client.network_volume(&place.volume_id).await)?.is_some();
            signs.push(Some(match exists {
                true => Sign::Well,
                false => Sign::Lost("Runpod does not have the volume any more".to_owned()),
            }));
        }
        Ok(signs)
    }

    async fn remove(&self, known: &Known<Volume>, call: &Call<'_>) -> Result<Removal, ComputeError> {
        let name = known.marks.name(NAME_LENGTH);
        let id = known.place.as_ref().map(|place| place.volume_id.clone());
        let delete = async |id: String| self.delete_volume(&id).await;
        call.unmake(VOLUME, id, LISTED_WITHIN, || self.find_volume(&name), delete)
            .await
    }
}

#[async_trait]
impl Volumes for Runpod {
    async fn register(&self, volume: &VolumeRequest) -> Result<VolumeProvisioningData, ComputeError> {
        let configuration = of_runpod(&volume.configuration)?;
        let id = configuration.volume_id.as_deref().unwrap_or_default();
        let missing = || {
            let text = format!(
                "Runpod has no network volume {id}: check `volume_id`, and whose account the API key is of"
            );
            ComputeError::Refused(text)
        };
        // It becomes a part of a path.
        let is_id = !id.is_empty()
            && id
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte));
        if !is_id {
            return Err(missing());
        }
        let found = told(self.client.network_volume(id).await)?.ok_or_else(missing)?;
        if !found.data_center.eq_ignore_ascii_case(&configuration.region) {
            return Err(ComputeError::Refused(format!(
                "the network volume {id} is in {} and not in {}: correct `region`",
                found.data_center, configuration.region
            )));
        }
        Ok(place(found.id, found.size))
    }
}

impl Runpod {
    async fn find_volume(&self, name: &str) -> Result<Option<String>, ComputeError> {
        let volumes = told(self.client.network_volumes().await)?;
        let found = volumes.into_iter().find(|volume| volume.name == name);
        Ok(found.map(|volume| volume.id))
    }

    pub(crate) async fn delete_volume(&self, id: &str) -> Result<Removal, ComputeError> {
        match self.client.delete_network_volume(id).await {
            Ok(false) => return Ok(Removal::Gone),
            Ok(true) => {}
            Err(error) if is_in_use(&error) => return Err(ComputeError::InUse(error.body().to_owned())),
            Err(error) => return told(Err(error)),
        }
        Ok(match told(self.client.network_volume(id).await)? {
            Some(_) => Removal::Underway { again: ENDS_INTERVAL },
            None => Removal::Gone,
        })
    }
}

fn of_runpod(configuration: &AnyVolumeConfiguration) -> Result<&RunpodVolumeConfiguration, ComputeError> {
    match configuration {
        AnyVolumeConfiguration::Runpod(configuration) => Ok(configuration),
        _ => Err(ComputeError::Configuration(
            "the volume is not one of Runpod".to_owned(),
        )),
    }
}

#[allow(clippy::cast_possible_truncation)] // sizes of disks
fn size_gb(configuration: &RunpodVolumeConfiguration) -> Result<i64, ComputeError> {
    let size = configuration.size.map(|size| size.gb().ceil() as i64);
    size.filter(|size| SIZES.contains(size)).ok_or_else(|| {
        ComputeError::Configuration(format!(
            "`size` of a Runpod volume is from {} to {} GB",
            SIZES.start(),
            SIZES.end()
        ))
    })
}

fn place(id: String, size: i64) -> VolumeProvisioningData {
    VolumeProvisioningData {
        backend: Some(BackendType::Runpod),
        volume_id: id,
        size_gb: Some(size),
        availability_zone: None,
        price: Some(monthly_price(size)),
        attachable: false,
        detachable: false,
        backend_data: None,
    }
}

/// What a volume of `size` GB costs a month, in dollars.
#[allow(clippy::cast_precision_loss)] // sizes of disks
fn monthly_price(size: i64) -> f64 {
    let (small, large) = PRICES;
    let of_gb = if size < LARGE_GB { small } else { large };
    of_gb * size as f64
}

#[cfg(test)]
mod tests {
    use dstack_model::decode::decode_strict;

    use super::*;

    #[test]
    fn large_volumes_cost_less_by_the_gb() {
        assert_eq!(monthly_price(100), 0.07 * 100.0);
        assert_eq!(monthly_price(999), 0.07 * 999.0);
        assert_eq!(monthly_price(1000), 0.05 * 1000.0);
    }

    #[test]
    fn sizes_are_those_that_runpod_has() {
        let of = |size: serde_json::Value| {
            let configuration =
                json!({"type": "volume", "backend": "runpod", "region": "EU-RO-1", "size": size});
            let configuration: RunpodVolumeConfiguration = decode_strict(&configuration).unwrap();
            size_gb(&configuration)
        };
        for (size, gb) in [
            (json!("100GB"), Some(100)),
            (json!(10), Some(10)),
            (json!("10.5GB"), Some(11)),
            (json!("4TB"), Some(4096)),
            (json!("9GB"), None),
            (json!("5TB"), None),
            (json!(null), None),
        ] {
            assert_eq!(of(size.clone()).ok(), gb, "{size}");
        }
    }
}
