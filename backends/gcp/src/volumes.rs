//! The life of a persistent disk.

use std::collections::HashMap;
use std::time::Duration;

use async_trait::async_trait;
use dstack_backend::{Made, look_by_place};
use dstack_compute::{
    Attachment, Call, ComputeError, Known, LISTED_WITHIN, Lifecycle, Removal, Sign, Step, Volume,
    VolumeRequest, Volumes,
};
use dstack_model::backends::BackendType;
use dstack_model::volumes::{AnyVolumeConfiguration, GcpVolumeConfiguration, VolumeProvisioningData};
use futures_util::StreamExt as _;
use futures_util::stream;
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::Gcp;
use crate::client::{Disk, Outcome, Region, last, plain};
use crate::errors::{GcpError, known};
use crate::labels::{OURS, labels};
use crate::machines::{ENDS_INTERVAL, Launched, PARALLEL, mark};

const VOLUME: &str = "disk";

/// What is noted before a disk is asked for. It is no piece of Google's.
const CHOICE: &str = "choice of the disk";

/// Longest name of a disk: that of its device is longer, and has the bound of all names.
const NAME_LENGTH: usize = 60;

const CREATES_INTERVAL: Duration = Duration::from_secs(3);

/// Dollars a month for a GB of `pd-balanced`, the most of all regions (dstack 0.22.5).
const PRICE: f64 = 0.12;

/// Sizes of `pd-balanced`, in GB ("Persistent Disk").
const SIZES: std::ops::RangeInclusive<i64> = 10..=65_536;

/// Makes the call one that is carried out once.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Choice {
    request: String,
    zone: String,
}

#[async_trait]
impl Lifecycle<Volume> for Gcp {
    async fn ensure(
        &self,
        want: &VolumeRequest,
        call: &Call<'_>,
    ) -> Result<Step<VolumeProvisioningData>, ComputeError> {
        let choice = self.choose_zone(want, call).await?;
        let made: Launched = call
            .make_once(VOLUME, || self.insert_disk(want, &choice, call))
            .await?;
        let underway = Step::Underway {
            seen: None,
            doing: "the disk is made".to_owned(),
            again: CREATES_INTERVAL,
        };
        if let Some(disk) = self.disk(&choice.zone, &made.made.id).await? {
            return match disk.status.as_str() {
                "READY" => Ok(Step::Ready(place(&disk, &choice.zone, true))),
                "FAILED" | "DELETING" | "UNAVAILABLE" => {
                    Err(ComputeError::Broken(format!("the disk is {}", disk.status)))
                }
                // `CREATING`, and what comes after this version.
                _ => Ok(underway),
            };
        }
        let outcome = match &made.operation {
            Some(operation) => {
                self.client
                    .failure(&format!("zones/{}", choice.zone), operation)
                    .await?
            }
            None => Outcome::Over,
        };
        match outcome {
            Outcome::Failed(told) => Err(told.over()),
            Outcome::Over if !made.made.is_new(call) => {
                let text = format!("Google does not have the disk {} any more", made.made.id);
                Err(ComputeError::Broken(text))
            }
            _ => Ok(underway),
        }
    }

    async fn look(
        &self,
        known: &[Known<Volume>],
    ) -> Result<Vec<Option<Sign<VolumeProvisioningData>>>, ComputeError> {
        let zone = |known: &Known<Volume>| known.place.as_ref()?.availability_zone.clone();
        look_by_place(known, zone, |zone, known| self.volume_signs(zone, known)).await
    }

    async fn remove(&self, known: &Known<Volume>, call: &Call<'_>) -> Result<Removal, ComputeError> {
        let choice: Option<Choice> = call.made(CHOICE)?;
        let place = known.place.as_ref();
        let zone = place.and_then(|place| place.availability_zone.clone());
        let zone = zone
            .or_else(|| choice.map(|choice| choice.zone))
            .unwrap_or_default();
        let made = place.map(|place| Launched {
            operation: None,
            made: Made::long_ago(place.volume_id.clone()),
        });
        let find = async || {
            let name = known.marks.name(NAME_LENGTH);
            let found = self.disk(&zone, &name).await?;
            let is_it = |disk: &Disk| mark(&disk.labels).is_some_and(|mark| mark.is_for(&known.marks));
            Ok(found.filter(is_it).map(|_| Launched {
                operation: None,
                made: Made::now(name, call),
            }))
        };
        let delete = async |launched: Launched| {
            let told = self.delete_disk(&zone, &launched.made.id).await?;
            Ok(launched.made.removal(call, told, ENDS_INTERVAL))
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
impl Volumes for Gcp {
    async fn register(&self, volume: &VolumeRequest) -> Result<VolumeProvisioningData, ComputeError> {
        let configuration = of_gcp(&volume.configuration)?;
        let name = configuration.volume_id.as_deref().unwrap_or_default();
        for zone in self.zones_of(configuration).await? {
            if let Some(disk) = self.disk(&zone, name).await? {
                return Ok(place(&disk, &zone, false));
            }
        }
        let region = &configuration.region;
        Err(ComputeError::Refused(format!(
            "Google has no disk {name} in {region}: check `volume_id` and `region`"
        )))
    }

    fn attachments(&self) -> Option<&dyn Lifecycle<Attachment>> {
        Some(self)
    }
}

impl Gcp {
    /// Zones of a volume: that of its configuration, or all of its region.
    async fn zones_of(&self, configuration: &GcpVolumeConfiguration) -> Result<Vec<String>, ComputeError> {
        let name = &configuration.region;
        let mut zones = self.zones_in(name).await?;
        if let Some(wanted) = &configuration.availability_zone {
            zones.retain(|zone| zone == wanted);
        }
        match zones.is_empty() {
            true => Err(ComputeError::Refused(format!(
                "Google has no such zone in {name}: check `region` and `availability_zone`"
            ))),
            false => Ok(zones),
        }
    }

    /// All zones of a region; empty: Google has no such region.
    pub(crate) async fn zones_in(&self, region: &str) -> Result<Vec<String>, ComputeError> {
        let region = plain(region)?;
        let region: Option<Region> = known(self.client.get(&format!("regions/{region}")).await)?;
        let zones = region.map(|region| region.zones).unwrap_or_default();
        Ok(zones.iter().map(|zone| last(zone).to_owned()).collect())
    }

    async fn choose_zone(&self, want: &VolumeRequest, call: &Call<'_>) -> Result<Choice, ComputeError> {
        if let Some(choice) = call.made(CHOICE)? {
            return Ok(choice);
        }
        let zones = self.zones_of(of_gcp(&want.configuration)?).await;
        let zones = zones.map_err(dstack_backend::not_asked)?;
        let choice = Choice {
            request: self.kind.env.random.uuid().to_string(),
            zone: zones.first().cloned().unwrap_or_default(),
        };
        call.choose(CHOICE, choice).await
    }

    async fn insert_disk(
        &self,
        want: &VolumeRequest,
        choice: &Choice,
        call: &Call<'_>,
    ) -> Result<Launched, ComputeError> {
        let configuration = of_gcp(&want.configuration)?;
        let name = want.marks.name(NAME_LENGTH);
        let mut owner = want.owner.clone();
        for (key, value) in configuration.tags.iter().flatten() {
            owner.tags.insert(key.clone(), value.clone());
        }
        let zone = &choice.zone;
        let body = json!({
            "name": name,
            "sizeGb": size_gb(configuration)?.to_string(),
            "type": format!("zones/{zone}/diskTypes/pd-balanced"),
            "labels": labels(&want.marks, &owner, self.config.tags.as_ref()),
        });
        let made = Made::now(name.clone(), call);
        let path = format!("zones/{zone}/disks");
        match self.client.insert(&path, Some(&choice.request), &body).await {
            Ok(operation) => Ok(Launched {
                operation: Some(operation.name),
                made,
            }),
            // An earlier call has made it.
            Err(error) if error.is_conflict() => match self.disk(zone, &name).await? {
                Some(disk) if mark(&disk.labels).is_some_and(|mark| mark.is_for(&want.marks)) => {
                    Ok(Launched {
                        operation: None,
                        made,
                    })
                }
                Some(_) => Err(error.compute_error()),
                None => Err(ComputeError::Unclear(format!(
                    "Google does not list the disk {name} yet"
                ))),
            },
            Err(error) => Err(error.compute_error()),
        }
    }

    /// `None`: Google says that it does not have it.
    pub(crate) async fn disk(&self, zone: &str, name: &str) -> Result<Option<Disk>, ComputeError> {
        let path = format!("zones/{}/disks/{}", plain(zone)?, plain(name)?);
        known(self.client.get(&path).await)
    }

    /// Deletes a disk, and tells how far that is.
    pub(crate) async fn delete_disk(&self, zone: &str, name: &str) -> Result<Removal, ComputeError> {
        let path = format!("zones/{}/disks/{}", plain(zone)?, plain(name)?);
        self.client.remove(&path).await
    }

    /// How disks of a zone are.
    async fn volume_signs(
        &self,
        zone: String,
        known: Vec<&Known<Volume>>,
    ) -> Result<Vec<Sign<VolumeProvisioningData>>, ComputeError> {
        let path = format!("zones/{}/disks", plain(&zone)?);
        let listed = self.client.list::<Disk>(None, &path, Some(OURS)).await;
        let listed = listed.map_err(GcpError::compute_error)?;
        let listed: HashMap<String, Disk> = listed.into_iter().map(|one| (one.name.clone(), one)).collect();
        let name = |known: &&Known<Volume>| known.place.as_ref().map(|place| place.volume_id.clone());
        let names: Vec<String> = known
            .iter()
            .map(|known| name(known).unwrap_or_default())
            .collect();
        let signs = stream::iter(names)
            .map(|name| {
                let (listed, zone) = (listed.get(&name).cloned(), zone.as_str());
                async move {
                    // Registered ones have no labels of ours.
                    let found = match listed {
                        Some(listed) => Some(listed),
                        None => self.disk(zone, &name).await?,
                    };
                    Ok::<_, ComputeError>(match found.as_ref().map(|disk| disk.status.as_str()) {
                        None | Some("DELETING") => {
                            Sign::Lost("Google does not have the disk any more".to_owned())
                        }
                        Some("FAILED") => Sign::Lost("the disk has failed".to_owned()),
                        Some(_) => Sign::Well,
                    })
                }
            })
            .buffered(PARALLEL)
            .collect::<Vec<_>>();
        signs.await.into_iter().collect()
    }
}

fn of_gcp(configuration: &AnyVolumeConfiguration) -> Result<&GcpVolumeConfiguration, ComputeError> {
    match configuration {
        AnyVolumeConfiguration::Gcp(configuration) => Ok(configuration),
        _ => Err(ComputeError::Configuration(
            "the volume is not one of GCP".to_owned(),
        )),
    }
}

#[allow(clippy::cast_possible_truncation)] // sizes of disks
fn size_gb(configuration: &GcpVolumeConfiguration) -> Result<i64, ComputeError> {
    let size = configuration.size.map(|size| size.gb().ceil() as i64);
    size.filter(|size| SIZES.contains(size)).ok_or_else(|| {
        let (least, most) = (SIZES.start(), SIZES.end());
        ComputeError::Configuration(format!("`size` of a GCP volume is from {least} to {most} GB"))
    })
}

/// As dstack 0.22.5 notes it: without a price where it belongs to somebody else.
fn place(disk: &Disk, zone: &str, is_ours: bool) -> VolumeProvisioningData {
    let size: Option<i64> = disk.size_gb.parse().ok();
    #[allow(clippy::cast_precision_loss)] // sizes of disks
    let price = size.filter(|_| is_ours).map(|size| size as f64 * PRICE);
    VolumeProvisioningData {
        backend: Some(BackendType::Gcp),
        volume_id: disk.name.clone(),
        size_gb: size,
        availability_zone: Some(zone.to_owned()),
        price,
        attachable: true,
        detachable: true,
        backend_data: Some(json!({"type": "disk", "disk_type": last(&disk.kind)}).to_string()),
    }
}
