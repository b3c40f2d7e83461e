//! The life of an EBS volume.

use std::collections::HashMap;
use std::time::Duration;

use async_trait::async_trait;
use dstack_backend::{Made, look_by_place};
use dstack_compute::{
    Attachment, Call, ComputeError, Known, LISTED_WITHIN, Lifecycle, Marks, Removal, Sign, Step, Volume,
    VolumeRequest, Volumes,
};
use dstack_model::backends::BackendType;
use dstack_model::volumes::{AnyVolumeConfiguration, AwsVolumeConfiguration, VolumeProvisioningData};
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::Aws;
use crate::client::{Form, Service};
use crate::ec2::{self, Done, VolumesPage};
use crate::machines::{ENDS_INTERVAL, region_of, with_marks};
use crate::tags::tags;

const VOLUME: &str = "volume";

/// What is noted before a volume is asked for. It is no piece of AWS.
const CHOICE: &str = "choice of the volume";

/// Pause while a volume is made, which takes seconds.
const CREATES_INTERVAL: Duration = Duration::from_secs(5);

/// Dollars a month for a GB of `gp3`, and for each operation a second beyond those that are included.
const PRICES: (f64, f64) = (0.08, 0.005);

/// Operations a second that are included.
const FREE_IOPS: i64 = 3000;

/// Sizes of `gp3` that are taken everywhere, in GB.
const SIZES: std::ops::RangeInclusive<i64> = 1..=16_384;

/// Makes the call one that is carried out once.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Choice {
    token: String,
    zone: String,
}

#[async_trait]
impl Lifecycle<Volume> for Aws {
    async fn ensure(
        &self,
        want: &VolumeRequest,
        call: &Call<'_>,
    ) -> Result<Step<VolumeProvisioningData>, ComputeError> {
        let configuration = of_aws(&want.configuration)?;
        let region = configuration.region.as_str();
        let made = match call.made::<Made>(VOLUME)? {
            Some(made) => made,
            None => {
                let choice = self.choose_zone(configuration, call).await?;
                let was_asked = call.asked_at(VOLUME).is_some();
                let create = async || {
                    // AWS forgets tokens after a day or so, and would make another one.
                    let found = match was_asked {
                        true => self.find_volume(region, &want.marks).await?,
                        false => None,
                    };
                    let id = match found {
                        Some(id) => id,
                        None => self.create_volume(want, configuration, &choice).await?,
                    };
                    Ok(Made::now(id, call))
                };
                call.make_once(VOLUME, create).await?
            }
        };
        let found = self.client.volumes_by_id(region, &[made.id.as_str()]).await;
        let found = found.map_err(|error| error.compute_error())?;
        match found.first() {
            Some(volume) => match volume.status.as_str() {
                "available" | "in-use" => return Ok(Step::Ready(place(volume, true))),
                "error" | "deleting" | "deleted" => {
                    return Err(ComputeError::Broken(format!("the volume is {}", volume.status)));
                }
                // `creating`, and what comes after this version.
                _ => {}
            },
            None if !made.is_new(call) => {
                let text = format!("AWS does not have the volume {} any more", made.id);
                return Err(ComputeError::Broken(text));
            }
            None => {}
        }
        Ok(Step::Underway {
            seen: None,
            doing: "the volume is made".to_owned(),
            again: CREATES_INTERVAL,
        })
    }

    async fn look(
        &self,
        known: &[Known<Volume>],
    ) -> Result<Vec<Option<Sign<VolumeProvisioningData>>>, ComputeError> {
        look_by_place(known, region_of, |region, known| self.volume_signs(region, known)).await
    }

    async fn remove(&self, known: &Known<Volume>, call: &Call<'_>) -> Result<Removal, ComputeError> {
        let region = known.site.as_str();
        let find = async || {
            let found = self.find_volume(region, &known.marks).await?;
            Ok(found.map(|id| Made::now(id, call)))
        };
        let place = known.place.as_ref();
        let made = place.map(|place| Made::long_ago(place.volume_id.clone()));
        let delete = async |made: Made| {
            let told = self.delete_volume(region, &made.id).await?;
            Ok(told.unwrap_or_else(|| made.removal(call, Removal::Gone, ENDS_INTERVAL)))
        };
        let removal = call.unmake(VOLUME, made, LISTED_WITHIN, find, delete).await?;
        if removal == Removal::Gone {
            let gone = async |_: Choice| Ok(Removal::Gone);
            call.unmake(CHOICE, None, Duration::ZERO, async || Ok(None), gone)
                .await?;
        }
        Ok(removal)
    }
}

#[async_trait]
impl Volumes for Aws {
    async fn register(&self, volume: &VolumeRequest) -> Result<VolumeProvisioningData, ComputeError> {
        let configuration = of_aws(&volume.configuration)?;
        let id = configuration.volume_id.as_deref().unwrap_or_default();
        let region = configuration.region.as_str();
        let found = self.client.volumes_by_id(region, &[id]).await;
        let found = found.map_err(|error| error.compute_error())?;
        let found = found.first().ok_or_else(|| {
            let text = format!("AWS has no volume {id} in {region}: check `volume_id` and `region`");
            ComputeError::Refused(text)
        })?;
        Ok(place(found, false))
    }

    fn attachments(&self) -> Option<&dyn Lifecycle<Attachment>> {
        Some(self)
    }
}

impl Aws {
    /// How volumes of a region are.
    async fn volume_signs(
        &self,
        region: &str,
        known: Vec<&Known<Volume>>,
    ) -> Result<Vec<Sign<VolumeProvisioningData>>, ComputeError> {
        let id = |known: &&'_ Known<Volume>| known.place.as_ref().map(|place| place.volume_id.clone());
        let ids: Vec<String> = known.iter().filter_map(id).collect();
        let texts: Vec<&str> = ids.iter().map(String::as_str).collect();
        let listed = self.client.volumes_by_id(region, &texts).await;
        let listed = listed.map_err(|error| error.compute_error())?;
        let states: HashMap<&str, &str> = listed
            .iter()
            .map(|volume| (volume.volume_id.as_str(), volume.status.as_str()))
            .collect();
        let sign = |id: &&str| match states.get(id) {
            None | Some(&("deleting" | "deleted")) => {
                Sign::Lost("AWS does not have the volume any more".to_owned())
            }
            Some(&"error") => Sign::Lost("the hardware of the volume has failed".to_owned()),
            Some(_) => Sign::Well,
        };
        Ok(texts.iter().map(sign).collect())
    }

    async fn choose_zone(
        &self,
        configuration: &AwsVolumeConfiguration,
        call: &Call<'_>,
    ) -> Result<Choice, ComputeError> {
        if let Some(choice) = call.made(CHOICE)? {
            return Ok(choice);
        }
        let region = configuration.region.as_str();
        let zone = match &configuration.availability_zone {
            Some(zone) => zone.clone(),
            None => {
                let zones = self.region_zones(region).await?;
                zones.first().cloned().ok_or_else(|| {
                    ComputeError::Refused(format!("AWS has no availability zone in {region}"))
                })?
            }
        };
        let token = self.kind.env.random.uuid().to_string();
        call.choose(CHOICE, Choice { token, zone }).await
    }

    async fn create_volume(
        &self,
        want: &VolumeRequest,
        configuration: &AwsVolumeConfiguration,
        choice: &Choice,
    ) -> Result<String, ComputeError> {
        let region = configuration.region.as_str();
        let size = size_gb(configuration)?;
        let mut tags = tags(&want.marks, &want.owner, self.config.tags.as_ref());
        for (key, value) in configuration.tags.iter().flatten() {
            if !tags.iter().any(|(known, _)| known == key) {
                tags.push((key.clone(), value.clone()));
            }
        }
        let form = Form::new("CreateVolume")
            .with("ClientToken", &choice.token)
            .with("AvailabilityZone", &choice.zone)
            .with("Size", size.to_string())
            .with("VolumeType", "gp3")
            .tagged("volume", &tags);
        match self.client.change::<ec2::Volume>(region, form).await {
            Ok(volume) => Ok(volume.volume_id),
            // An earlier call has made it, of tags that have changed since then.
            Err(error) if error.is(&["IdempotentParameterMismatch"]) => {
                let found = self.find_volume(region, &want.marks).await?;
                found.ok_or_else(|| {
                    ComputeError::Unclear("AWS does not list the volume yet that it has made".to_owned())
                })
            }
            Err(error) => Err(error.compute_error()),
        }
    }

    async fn find_volume(&self, region: &str, marks: &Marks) -> Result<Option<String>, ComputeError> {
        let form = with_marks(Form::new("DescribeVolumes"), marks);
        let found = self.client.list::<VolumesPage>(region, form).await;
        let found = found.map_err(|error| error.compute_error())?;
        Ok(found.into_iter().next().map(|volume| volume.volume_id))
    }

    /// Deletes a volume, and tells how far that is; `None`: AWS does not know it.
    pub(crate) async fn delete_volume(
        &self,
        region: &str,
        id: &str,
    ) -> Result<Option<Removal>, ComputeError> {
        let form = Form::new("DeleteVolume").with("VolumeId", id);
        match self.client.read::<Done>(Service::Ec2, region, form).await {
            Ok(_) => {}
            Err(error) if error.is(&["InvalidVolume.NotFound"]) => return Ok(None),
            Err(error) => return Err(error.compute_error()),
        }
        let left = self.client.volumes_by_id(region, &[id]).await;
        let left = left.map_err(|error| error.compute_error())?;
        let is_there = left.iter().any(|volume| volume.status != "deleted");
        Ok(Some(match is_there {
            true => Removal::Underway { again: ENDS_INTERVAL },
            false => Removal::Gone,
        }))
    }
}

fn of_aws(configuration: &AnyVolumeConfiguration) -> Result<&AwsVolumeConfiguration, ComputeError> {
    match configuration {
        AnyVolumeConfiguration::Aws(configuration) => Ok(configuration),
        _ => Err(ComputeError::Configuration(
            "the volume is not one of AWS".to_owned(),
        )),
    }
}

#[allow(clippy::cast_possible_truncation)] // sizes of disks
fn size_gb(configuration: &AwsVolumeConfiguration) -> Result<i64, ComputeError> {
    let size = configuration.size.map(|size| size.gb().ceil() as i64);
    size.filter(|size| SIZES.contains(size)).ok_or_else(|| {
        let (least, most) = (SIZES.start(), SIZES.end());
        ComputeError::Configuration(format!("`size` of an AWS volume is from {least} to {most} GB"))
    })
}

/// As dstack 0.22.5 notes it: without price and details where it belongs to somebody else.
fn place(volume: &ec2::Volume, is_ours: bool) -> VolumeProvisioningData {
    let (kind, iops) = (&volume.volume_type, volume.iops.unwrap_or(FREE_IOPS));
    VolumeProvisioningData {
        backend: Some(BackendType::Aws),
        volume_id: volume.volume_id.clone(),
        size_gb: Some(volume.size),
        availability_zone: Some(volume.availability_zone.clone()),
        price: is_ours.then(|| monthly_price(volume.size, iops)),
        attachable: true,
        detachable: true,
        backend_data: is_ours.then(|| json!({"volume_type": kind, "iops": iops}).to_string()),
    }
}

/// Price of a `gp3` volume in dollars a month: size in GB, IOPS beyond those that are free.
#[allow(clippy::cast_precision_loss)] // sizes of disks
fn monthly_price(size: i64, iops: i64) -> f64 {
    let (of_gb, of_operation) = PRICES;
    size as f64 * of_gb + (iops - FREE_IOPS).max(0) as f64 * of_operation
}

#[cfg(test)]
mod tests {
    use dstack_model::decode::decode_strict;

    use super::*;

    #[test]
    fn operations_beyond_those_that_are_included_cost_more() {
        assert_eq!(monthly_price(100, 3000), 8.0);
        assert_eq!(monthly_price(100, 4000), 13.0);
        assert_eq!(monthly_price(100, 100), 8.0);
    }

    #[test]
    fn sizes_are_those_that_aws_has() {
        let of = |size: serde_json::Value| {
            let configuration =
                json!({"type": "volume", "backend": "aws", "region": "us-east-1", "size": size});
            let configuration: AwsVolumeConfiguration = decode_strict(&configuration).unwrap();
            size_gb(&configuration)
        };
        for (size, gb) in [
            (json!("100GB"), Some(100)),
            (json!("10.5GB"), Some(11)),
            (json!("16TB"), Some(16_384)),
            (json!("17TB"), None),
            (json!(null), None),
        ] {
            assert_eq!(of(size.clone()).ok(), gb, "{size}");
        }
    }
}
