use std::collections::BTreeMap;
use std::time::Duration;

use async_trait::async_trait;
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use dstack_backend::{Made, cloud_config, listed_signs, look_by_place, machine_place, not_asked};
use dstack_compute::{
    Call, ComputeError, Known, LISTED_WITHIN, Lifecycle, Machine, MachineRequest, Marks, OwnedMark, Owner,
    Removal, Sign, Step,
};
use dstack_model::offers::InstanceOfferWithAvailability;
use dstack_model::runs::JobProvisioningData;
use http::StatusCode;
use serde::Deserialize;
use serde_json::json;

use crate::Oci;
use crate::client::{Instance, Service, Thing, known, told};
use crate::images::listing_for;
use crate::network::CIDR;

/// Longest name of a machine (255 are allowed).
const NAME_LENGTH: usize = 60;

/// The user that the images have.
const USER: &str = "ubuntu";

const MACHINE: &str = "machine";

/// Pause while a machine starts.
const STARTS_INTERVAL: Duration = Duration::from_secs(10);

/// Pause while a machine is being taken away.
const ENDS_INTERVAL: Duration = Duration::from_secs(10);

/// Longest keys and values of tags, and how many there may be on a thing ("Free-form tags", OCI documentation).
const TAG_KEY_LENGTH: usize = 100;
const TAG_VALUE_LENGTH: usize = 256;
const MOST_TAGS: usize = 10;

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Attachment {
    lifecycle_state: String,
    #[serde(default)]
    vnic_id: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Vnic {
    #[serde(default)]
    public_ip: Option<String>,
    #[serde(default)]
    private_ip: Option<String>,
}

#[async_trait]
impl Lifecycle<Machine> for Oci {
    async fn ensure(
        &self,
        want: &MachineRequest,
        call: &Call<'_>,
    ) -> Result<Step<JobProvisioningData>, ComputeError> {
        let region = &*want.offer.region;
        let ask = async || Ok(Made::now(self.launch(want).await?, call));
        let find = || self.find_machine(region, &want.marks, call);
        let made: Made = call.make(MACHINE, LISTED_WITHIN, ask, find).await?;
        let starting = |doing: &str| Step::Underway {
            seen: None,
            doing: doing.to_owned(),
            again: STARTS_INTERVAL,
        };
        let Some(instance) = self.instance(region, &made.id).await? else {
            return match made.is_new(call) {
                true => Ok(starting("the machine is listed")),
                false => Err(ComputeError::Broken("OCI does not have the machine".to_owned())),
            };
        };
        if let Some(end) = end_of(&instance) {
            return Err(ComputeError::Broken(end));
        }
        if instance.lifecycle_state != "RUNNING" {
            return Ok(starting("the machine starts"));
        }
        let Some(Vnic {
            public_ip: Some(hostname),
            private_ip,
        }) = self.vnic(region, &made.id).await?
        else {
            return Ok(starting("the machine gets an address"));
        };
        Ok(Step::Ready(place(&want.offer, instance, hostname, private_ip)))
    }

    async fn look(
        &self,
        known: &[Known<Machine>],
    ) -> Result<Vec<Option<Sign<JobProvisioningData>>>, ComputeError> {
        let region = |known: &Known<Machine>| known.place.as_ref().map(|place| place.region.clone());
        look_by_place(known, region, |region, machines| async move {
            let found = told(self.client.instances(&region, &self.compartment).await)?;
            let region = region.as_str();
            let signs = listed_signs(
                machines,
                |known| found.iter().find(|instance| instance.id == id_of(known)).cloned(),
                |known| self.instance(region, id_of(known)),
                |_, instance| match instance {
                    None => Sign::Lost("OCI does not have the machine any more".to_owned()),
                    Some(instance) => end_of(&instance).map_or(Sign::Well, Sign::Lost),
                },
            )
            .await;
            Ok(signs)
        })
        .await
    }

    async fn remove(&self, known: &Known<Machine>, call: &Call<'_>) -> Result<Removal, ComputeError> {
        let region = known.site.as_str();
        let machine = known
            .place
            .as_ref()
            .map(|place| Made::long_ago(place.instance_id.clone()));
        let find = || self.find_machine(region, &known.marks, call);
        let delete = async |made: Made| {
            let told = self.terminate(region, &made.id).await?;
            Ok(made.removal(call, told, ENDS_INTERVAL))
        };
        call.unmake(MACHINE, machine, LISTED_WITHIN, find, delete).await
    }
}

impl Oci {
    /// In the first availability domain that has room.
    async fn launch(&self, want: &MachineRequest) -> Result<String, ComputeError> {
        let offer = &want.offer;
        let region = &*offer.region;
        let zones = offer.availability_zones.as_deref().unwrap_or_default();
        let none = "the shape is free in no availability domain";
        let mut refusal = ComputeError::NoCapacity(none.to_owned());
        let image = self
            .image(region, listing_for(&offer.instance.resources)?)
            .await
            .map_err(not_asked)?;
        let network = self.network(region, &want.owner.project).await;
        let network = network.map_err(not_asked)?;
        // The images' own firewall lets in SSH only, and has its rules from a file when the machine is started again.
        let open = format!("iptables -I INPUT -s {CIDR} -j ACCEPT; netfilter-persistent save || true");
        let user_data = cloud_config(&want.authorized_keys, &[open]);
        let gb = (offer.instance.resources.disk.size_mib + 1023) / 1024;
        let mut ask = json!({
            "compartmentId": self.compartment,
            "displayName": want.marks.name(NAME_LENGTH),
            "shape": offer.instance.name,
            "freeformTags": tags(&want.marks, &want.owner),
            "createVnicDetails": {"subnetId": network.subnet, "nsgIds": [network.security_group]},
            "metadata": {"user_data": BASE64_STANDARD.encode(user_data)},
            "instanceOptions": {"areLegacyImdsEndpointsDisabled": true},
            "sourceDetails": {"sourceType": "image", "imageId": image, "bootVolumeSizeInGBs": gb},
        });
        let Some(fields) = ask.as_object_mut() else {
            return Err(refusal);
        };
        if offer.instance.resources.spot {
            let action = json!({"type": "TERMINATE", "preserveBootVolume": false});
            fields.insert(
                "preemptibleInstanceConfig".to_owned(),
                json!({"preemptionAction": action}),
            );
        }
        for zone in zones {
            if let Some(fields) = ask.as_object_mut() {
                fields.insert("availabilityDomain".to_owned(), zone.as_str().into());
            }
            let made = told(
                self.client
                    .post::<Thing>(Service::Core, region, "instances", &ask)
                    .await,
            );
            match made {
                Ok(instance) => return Ok(instance.id),
                Err(error @ (ComputeError::NoCapacity(_) | ComputeError::NoQuota(_))) => refusal = error,
                Err(error) => {
                    // The network or the image may have been removed by somebody.
                    if matches!(error, ComputeError::Refused(_)) {
                        self.forget_lookups().await;
                    }
                    return Err(error);
                }
            }
        }
        Err(refusal)
    }

    async fn instance(&self, region: &str, id: &str) -> Result<Option<Instance>, ComputeError> {
        let path = format!("instances/{id}");
        let instance = self.client.get::<Instance>(Service::Core, region, &path, &[]);
        told(known(instance.await))
    }

    async fn find_machine(
        &self,
        region: &str,
        marks: &Marks,
        call: &Call<'_>,
    ) -> Result<Option<Made>, ComputeError> {
        let all = told(self.client.instances(region, &self.compartment).await)?;
        let is_it = |one: &Instance| !is_ending(one) && mark(one).is_some_and(|mark| mark.is_for(marks));
        Ok(all
            .into_iter()
            .find(is_it)
            .map(|instance| Made::now(instance.id, call)))
    }

    async fn vnic(&self, region: &str, instance: &str) -> Result<Option<Vnic>, ComputeError> {
        let query = [
            ("compartmentId", self.compartment.as_str()),
            ("instanceId", instance),
        ];
        let attachments = self
            .client
            .list::<Attachment>(Service::Core, region, "vnicAttachments", &query);
        let attachments = told(attachments.await)?;
        let attached = attachments
            .into_iter()
            .find(|one| one.lifecycle_state == "ATTACHED");
        let Some(id) = attached.and_then(|one| one.vnic_id) else {
            return Ok(None);
        };
        told(known(
            self.client
                .get(Service::Core, region, &format!("vnics/{id}"), &[])
                .await,
        ))
    }

    /// OCI says "not found" also of what the user may not see any more: only its list tells that a machine is gone.
    pub(crate) async fn terminate(&self, region: &str, id: &str) -> Result<Removal, ComputeError> {
        let asked = self.client.terminate(region, id).await;
        if let Err(error) = &asked
            && !matches!(error.status(), Some(StatusCode::NOT_FOUND | StatusCode::CONFLICT))
        {
            told(asked)?;
        }
        let all = told(self.client.instances(region, &self.compartment).await)?;
        let left = match all.into_iter().find(|instance| instance.id == id) {
            // It may be in a compartment that was configured before, and while others end, a page may begin one entry later.
            None => self.instance(region, id).await?,
            listed => listed,
        };
        Ok(
            match left.is_some_and(|instance| instance.lifecycle_state != "TERMINATED") {
                true => Removal::Underway { again: ENDS_INTERVAL },
                false => Removal::Gone,
            },
        )
    }
}

pub(crate) fn mark(instance: &Instance) -> Option<OwnedMark> {
    OwnedMark::of_tags(|name| instance.freeform_tags.get(name).map(String::as_str))
}

/// The marks, and of what users want what OCI takes.
fn tags(marks: &Marks, owner: &Owner) -> BTreeMap<String, String> {
    let own = marks.tags().map(|(key, value)| (key.to_owned(), value));
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_-".contains(&byte);
    let is_taken = |(key, value): &(&String, &String)| {
        let is_key = !key.is_empty() && key.len() <= TAG_KEY_LENGTH && key.bytes().all(is_plain);
        is_key && value.len() <= TAG_VALUE_LENGTH
    };
    let wanted = owner.tags.iter().filter(is_taken).take(MOST_TAGS - own.len());
    let mut tags: BTreeMap<_, _> = wanted.map(|(key, value)| (key.clone(), value.clone())).collect();
    tags.extend(own);
    tags
}

fn is_ending(instance: &Instance) -> bool {
    matches!(instance.lifecycle_state.as_str(), "TERMINATING" | "TERMINATED")
}

/// Why a machine will never work (again). Preemptible ones are terminated when OCI needs them.
fn end_of(instance: &Instance) -> Option<String> {
    let state = instance.lifecycle_state.as_str();
    let is_over = is_ending(instance) || matches!(state, "STOPPING" | "STOPPED");
    is_over.then(|| format!("OCI has ended the machine (its state is {state})"))
}

fn place(
    offer: &InstanceOfferWithAvailability,
    instance: Instance,
    hostname: String,
    internal_ip: Option<String>,
) -> JobProvisioningData {
    JobProvisioningData {
        internal_ip,
        availability_zone: Some(instance.availability_domain),
        ..machine_place(offer, instance.id, hostname, USER, 22)
    }
}

/// Empty: it has no place.
fn id_of(known: &Known<Machine>) -> &str {
    known.place.as_ref().map_or("", |place| &place.instance_id)
}
