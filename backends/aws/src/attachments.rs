//! The life of an attachment: a volume that an instance has.

use std::time::Duration;

use async_trait::async_trait;
use dstack_backend::look_by_place;
use dstack_compute::{
    Attachment, AttachmentSite, Call, ComputeError, Known, LISTED_WITHIN, Lifecycle, Removal, Sign, Step,
};
use dstack_model::volumes::VolumeAttachmentData;
use dstack_units::Time;
use serde::{Deserialize, Serialize};

use crate::Aws;
use crate::client::{Form, Service};
use crate::ec2::{Done, Volume, VolumeAttachment};
use crate::machines::ENDS_INTERVAL;

const ATTACHMENT: &str = "attachment";

/// Pause while a volume is being attached, which takes seconds.
const ATTACHES_INTERVAL: Duration = Duration::from_secs(3);

/// Names of devices that are free for volumes ("Device names for volumes on Amazon EC2 instances").
const DEVICES: std::ops::RangeInclusive<char> = 'f'..='n';

/// What is noted of an attachment.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Attached {
    device: String,
    /// When that became known.
    at: Time,
}

#[async_trait]
impl Lifecycle<Attachment> for Aws {
    async fn ensure(
        &self,
        want: &AttachmentSite,
        call: &Call<'_>,
    ) -> Result<Step<VolumeAttachmentData>, ComputeError> {
        let attach = async || {
            let device = self.attach(want).await?;
            Ok(Attached {
                device,
                at: call.now(),
            })
        };
        let find = async || {
            let volume = self.volume_of(want).await?;
            let found = volume.as_ref().and_then(|volume| attachment_of(volume, want));
            Ok(found.map(|found| Attached {
                device: found.device.clone(),
                at: call.now(),
            }))
        };
        let made: Attached = call.make(ATTACHMENT, LISTED_WITHIN, attach, find).await?;
        let volume = self.volume_of(want).await?;
        let found = volume.as_ref().and_then(|volume| attachment_of(volume, want));
        match found {
            Some(found) if matches!(found.status.as_str(), "attached" | "busy") => {
                Ok(Step::Ready(VolumeAttachmentData {
                    device_name: Some(found.device.clone()),
                }))
            }
            None if call.now() >= made.at + LISTED_WITHIN => Err(ComputeError::Broken(
                "the volume is not attached any more: somebody else has detached it".to_owned(),
            )),
            _ => Ok(Step::Underway {
                seen: None,
                doing: "the volume is attached".to_owned(),
                again: ATTACHES_INTERVAL,
            }),
        }
    }

    async fn look(
        &self,
        known: &[Known<Attachment>],
    ) -> Result<Vec<Option<Sign<VolumeAttachmentData>>>, ComputeError> {
        let region = |known: &Known<Attachment>| Some(known.site.machine.region.clone());
        look_by_place(known, region, |_, known| self.attachment_signs(known)).await
    }

    async fn remove(&self, known: &Known<Attachment>, call: &Call<'_>) -> Result<Removal, ComputeError> {
        let site = &known.site;
        let find = async || {
            let volume = self.volume_of(site).await?;
            let found = volume.as_ref().and_then(|volume| attachment_of(volume, site));
            Ok(found.map(|found| Attached {
                device: found.device.clone(),
                at: call.now(),
            }))
        };
        let made = known.place.as_ref().map(|place| Attached {
            device: place.device_name.clone().unwrap_or_default(),
            at: Time::from_millis(0),
        });
        let detach = async |_: Attached| self.detach(site).await;
        call.unmake(ATTACHMENT, made, LISTED_WITHIN, find, detach).await
    }
}

impl Aws {
    async fn attachment_signs(
        &self,
        known: Vec<&Known<Attachment>>,
    ) -> Result<Vec<Sign<VolumeAttachmentData>>, ComputeError> {
        let mut signs = Vec::with_capacity(known.len());
        for known in known {
            let volume = self.volume_of(&known.site).await?;
            let found = volume
                .as_ref()
                .and_then(|volume| attachment_of(volume, &known.site));
            signs.push(match found {
                Some(_) => Sign::Well,
                None => Sign::Lost("the volume is not attached any more".to_owned()),
            });
        }
        Ok(signs)
    }

    async fn volume_of(&self, site: &AttachmentSite) -> Result<Option<Volume>, ComputeError> {
        let found = self
            .client
            .volumes_by_id(&site.machine.region, &[site.volume.volume_id.as_str()])
            .await;
        let found = found.map_err(|error| error.compute_error())?;
        Ok(found.into_iter().next())
    }

    /// Attaches a volume by the first device that is free; its name.
    async fn attach(&self, site: &AttachmentSite) -> Result<String, ComputeError> {
        let (region, id) = (site.machine.region.as_str(), site.machine.instance_id.as_str());
        let volume = self.volume_of(site).await?;
        if let Some(found) = volume.as_ref().and_then(|volume| attachment_of(volume, site)) {
            return Ok(found.device.clone());
        }
        let found = self.client.instances_by_id(region, &[id]).await;
        let found = found.map_err(|error| error.compute_error())?;
        let used: Vec<&str> = found
            .iter()
            .flat_map(|instance| &instance.block_device_mapping.item)
            .map(|device| device.device_name.as_str())
            .collect();
        for device in free_devices(&used) {
            let form = Form::new("AttachVolume")
                .with("VolumeId", &site.volume.volume_id)
                .with("InstanceId", id)
                .with("Device", &device);
            match self.client.change::<Done>(region, form).await {
                Ok(_) => return Ok(device),
                // It is taken by what the instance does not list yet.
                Err(error) if error.is(&["InvalidParameterValue"]) && error.message().contains(&device) => {}
                Err(error) => return Err(error.compute_error()),
            }
        }
        Err(ComputeError::Refused(format!(
            "the instance {id} has no device name left for another volume: it takes {} volumes",
            DEVICES.count()
        )))
    }

    /// Detached is what AWS says to be free again, or with another instance.
    async fn detach(&self, site: &AttachmentSite) -> Result<Removal, ComputeError> {
        let Some(volume) = self.volume_of(site).await? else {
            return Ok(Removal::Gone);
        };
        let again = Removal::Underway { again: ENDS_INTERVAL };
        let Some(attachment) = attachment_of(&volume, site) else {
            let is_free = volume.status != "in-use" || !volume.attachment_set.item.is_empty();
            return Ok(if is_free { Removal::Gone } else { again });
        };
        if attachment.status == "detaching" && !site.force {
            return Ok(again);
        }
        let form = Form::new("DetachVolume")
            .with("VolumeId", &site.volume.volume_id)
            .with("InstanceId", &site.machine.instance_id)
            .with("Device", &attachment.device)
            .with("Force", site.force.to_string());
        let region = &site.machine.region;
        match self.client.read::<Done>(Service::Ec2, region, form).await {
            Ok(_) => Ok(again),
            // It was detached meanwhile: the next look shows it.
            Err(error) if error.is(&["IncorrectState", "InvalidAttachment.NotFound"]) => Ok(again),
            Err(error) if error.is(&["InvalidVolume.NotFound"]) => Ok(Removal::Gone),
            Err(error) => Err(error.compute_error()),
        }
    }
}

/// How a volume is attached to the instance; `None`: it is not.
fn attachment_of<'a>(volume: &'a Volume, site: &AttachmentSite) -> Option<&'a VolumeAttachment> {
    let mut all = volume.attachment_set.item.iter();
    all.find(|one| one.instance_id == site.machine.instance_id && one.status != "detached")
}

fn free_devices(used: &[&str]) -> Vec<String> {
    let names = DEVICES.map(|letter| format!("/dev/sd{letter}"));
    names.filter(|name| !used.contains(&name.as_str())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_that_are_used_are_not_tried() {
        let free = free_devices(&["/dev/sda1", "/dev/sdf", "/dev/sdh"]);
        assert_eq!(free[..3], ["/dev/sdg", "/dev/sdi", "/dev/sdj"]);
        assert_eq!(free.len(), 7);
    }
}
