//! The life of an attachment: a disk that an instance has.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use dstack_backend::{look_by_place, not_asked};
use dstack_compute::{
    Attachment, AttachmentSite, CALL_LIMIT, Call, ComputeError, Known, LISTED_WITHIN, Lifecycle, Removal,
    Sign, Step,
};
use dstack_model::volumes::VolumeAttachmentData;
use dstack_units::Time;
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::Gcp;
use crate::client::{Instance, Outcome, last, plain, relative};
use crate::errors::GcpError;
use crate::instance::takes_persistent_disks;
use crate::machines::{Site, site_of};
use crate::tpu::{Node, disks};

const ATTACHMENT: &str = "attachment";

/// Pause while a disk is attached or detached, which takes seconds.
const INTERVAL: Duration = Duration::from_secs(3);

/// What is noted of an attachment.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Attached {
    device: String,
    /// What tells whether it came to something; `None`: it did.
    operation: Option<String>,
    /// When that became known.
    at: Time,
}

/// TPUs whose disks this process is about to change, by their paths, and until when a request for it may take effect. Google itself lists
/// what it was asked for; not what is on its way there.
#[derive(Debug, Default)]
pub(crate) struct DiskChanges(Mutex<HashMap<String, Time>>);

impl DiskChanges {
    fn lock(&self) -> MutexGuard<'_, HashMap<String, Time>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether nobody else is at it: then others are not until [`Self::end`], or until the request was lost.
    fn begin(&self, path: &str, now: Time) -> bool {
        let mut all = self.lock();
        all.retain(|_, until| now < *until);
        let is_free = !all.contains_key(path);
        if is_free {
            all.insert(path.to_owned(), now + CALL_LIMIT);
        }
        is_free
    }

    fn end(&self, path: &str) {
        self.lock().remove(path);
    }
}

#[async_trait]
impl Lifecycle<Attachment> for Gcp {
    async fn ensure(
        &self,
        want: &AttachmentSite,
        call: &Call<'_>,
    ) -> Result<Step<VolumeAttachmentData>, ComputeError> {
        let find = async || self.find_attached(want, call).await;
        let attach = async || self.attach(want, call).await;
        let made: Attached = call.make(ATTACHMENT, LISTED_WITHIN, attach, find).await?;
        let instance = self.instance_of(want).await?;
        if let Some(device) = instance.as_ref().and_then(|instance| self.device(instance, want)) {
            return Ok(Step::Ready(VolumeAttachmentData {
                device_name: Some(device),
            }));
        }
        let outcome = match &made.operation {
            Some(operation) => {
                let scope = site_of(&want.machine).scope();
                self.client.failure(&scope, operation).await?
            }
            None => Outcome::Over,
        };
        match outcome {
            Outcome::Failed(told) => Err(told.over()),
            Outcome::Over if call.now() >= made.at + LISTED_WITHIN => Err(ComputeError::Broken(
                "the disk is not attached any more: somebody else has detached it".to_owned(),
            )),
            _ => Ok(Step::Underway {
                seen: None,
                doing: "the disk is attached".to_owned(),
                again: INTERVAL,
            }),
        }
    }

    async fn look(
        &self,
        known: &[Known<Attachment>],
    ) -> Result<Vec<Option<Sign<VolumeAttachmentData>>>, ComputeError> {
        let site = |known: &Known<Attachment>| Some(site_of(&known.site.machine));
        look_by_place(known, site, |site, known| self.attachment_signs(site, known)).await
    }

    async fn remove(&self, known: &Known<Attachment>, call: &Call<'_>) -> Result<Removal, ComputeError> {
        let site = &known.site;
        let find = async || self.find_attached(site, call).await;
        let made = known.place.as_ref().map(|place| Attached {
            device: place.device_name.clone().unwrap_or_default(),
            operation: None,
            at: Time::from_millis(0),
        });
        let detach = async |made: Attached| self.detach(site, &made, call).await;
        call.unmake(ATTACHMENT, made, LISTED_WITHIN, find, detach).await
    }
}

impl Gcp {
    async fn instance_of(&self, site: &AttachmentSite) -> Result<Option<Instance>, ComputeError> {
        self.instance(&site_of(&site.machine), &site.machine.instance_id)
            .await
    }

    /// The path of the disk in links.
    fn source(&self, site: &AttachmentSite) -> String {
        let zone = site
            .volume
            .availability_zone
            .clone()
            .unwrap_or_else(|| site_of(&site.machine).zone);
        format!(
            "projects/{}/zones/{zone}/disks/{}",
            self.client.project, site.volume.volume_id
        )
    }

    /// By which name an instance has the disk; `None`: it does not.
    fn device(&self, instance: &Instance, site: &AttachmentSite) -> Option<String> {
        let source = self.source(site);
        let mut disks = instance.disks.iter();
        let found = disks.find(|disk| relative(&disk.source) == source);
        found.map(|disk| disk.device_name.clone())
    }

    async fn find_attached(
        &self,
        site: &AttachmentSite,
        call: &Call<'_>,
    ) -> Result<Option<Attached>, ComputeError> {
        let instance = self.instance_of(site).await?;
        let device = instance.as_ref().and_then(|instance| self.device(instance, site));
        Ok(device.map(|device| Attached {
            device,
            operation: None,
            at: call.now(),
        }))
    }

    async fn attach(&self, site: &AttachmentSite, call: &Call<'_>) -> Result<Attached, ComputeError> {
        let machine_type = &site.machine.instance_type.name;
        if !takes_persistent_disks(machine_type) {
            return Err(ComputeError::Refused(format!(
                "{machine_type} takes no persistent disks: volumes cannot be attached to it"
            )));
        }
        let found = self.find_attached(site, call).await.map_err(not_asked)?;
        if let Some(found) = found {
            return Ok(found);
        }
        let at = site_of(&site.machine);
        if at.is_tpu {
            return self.change_disks(site, true, call).await;
        }
        // dstack 0.22.5 has disks with longer names.
        let device: String = format!("pd-{}", site.volume.volume_id).chars().take(63).collect();
        let device = device.trim_end_matches('-').to_owned();
        let body = json!({"source": self.source(site), "deviceName": device, "autoDelete": false});
        let path = format!("{}/attachDisk", at.path(&site.machine.instance_id)?);
        let operation = self.client.act(&path, &[], Some(&body)).await;
        let operation = operation.map_err(GcpError::compute_error)?;
        Ok(Attached {
            device,
            operation: Some(operation.name),
            at: call.now(),
        })
    }

    /// Disks of TPUs are set all at once, one change after the other.
    async fn change_disks(
        &self,
        site: &AttachmentSite,
        attach: bool,
        call: &Call<'_>,
    ) -> Result<Attached, ComputeError> {
        let path = site_of(&site.machine).path(&site.machine.instance_id)?;
        if !self.disk_changes.begin(&path, call.now()) {
            return Err(is_changed());
        }
        let asked = self.set_disks(site, attach, &path, call).await;
        if asked.as_ref().err().is_none_or(ComputeError::is_definite) {
            self.disk_changes.end(&path);
        }
        asked
    }

    async fn set_disks(
        &self,
        site: &AttachmentSite,
        attach: bool,
        path: &str,
        call: &Call<'_>,
    ) -> Result<Attached, ComputeError> {
        // Until a change is done, also one of another server, the old disks are told of.
        let is_busy = self
            .client
            .is_changed(plain(&site_of(&site.machine).zone)?, path)
            .await;
        if is_busy.map_err(|error| not_asked(error.compute_error()))? {
            return Err(is_changed());
        }
        let node = self.client.get::<Node>(path).await;
        let node = node.map_err(|error| not_asked(error.compute_error()))?;
        let source = self.source(site);
        let body = match attach {
            true => disks(&node, Some(&source), None),
            false => disks(&node, None, Some(&source)),
        };
        let operation = self.client.set_disks(path, &body).await;
        let operation = operation.map_err(GcpError::compute_error)?;
        Ok(Attached {
            device: format!("persistent-disk-{}", node.data_disks.len() + 1),
            operation: Some(last(&operation.name).to_owned()),
            at: call.now(),
        })
    }

    /// Detached is what the instance does not have any more, or what has none.
    async fn detach(
        &self,
        site: &AttachmentSite,
        made: &Attached,
        call: &Call<'_>,
    ) -> Result<Removal, ComputeError> {
        let again = Removal::Underway { again: INTERVAL };
        let Some(instance) = self.instance_of(site).await? else {
            return Ok(Removal::Gone);
        };
        let Some(device) = self.device(&instance, site) else {
            // What was asked for just now shows only when it is done.
            return Ok(if call.now() < made.at + LISTED_WITHIN {
                again
            } else {
                Removal::Gone
            });
        };
        let at = site_of(&site.machine);
        if at.is_tpu {
            return match self.change_disks(site, false, call).await {
                // It, or another one, is on its way.
                Ok(_) | Err(ComputeError::NotReady(_)) => Ok(again),
                Err(error) => Err(error),
            };
        }
        let path = format!("{}/detachDisk", at.path(&instance.name)?);
        match self.client.act(&path, &[("deviceName", &device)], None).await {
            // It was detached meanwhile, or is: the next look shows it.
            Err(error) if error.is_missing() || error.is_not_ready() || error.is_invalid() => Ok(again),
            Err(error) => Err(error.compute_error()),
            Ok(_) => Ok(again),
        }
    }

    async fn attachment_signs(
        &self,
        site: Site,
        known: Vec<&Known<Attachment>>,
    ) -> Result<Vec<Sign<VolumeAttachmentData>>, ComputeError> {
        let names: Vec<String> = known
            .iter()
            .map(|known| known.site.machine.instance_id.clone())
            .collect();
        let found = self.instances_of(&site, names).await?;
        let signs = known.iter().zip(&found).map(|(known, instance)| {
            let device = instance
                .as_ref()
                .and_then(|instance| self.device(instance, &known.site));
            match device {
                Some(_) => Sign::Well,
                None => Sign::Lost("the disk is not attached any more".to_owned()),
            }
        });
        Ok(signs.collect())
    }
}

fn is_changed() -> ComputeError {
    ComputeError::NotReady("another disk of the TPU is attached or detached".to_owned())
}
