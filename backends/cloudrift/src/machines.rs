use std::time::Duration;

use async_trait::async_trait;
use dstack_backend::{Made, compute_error, machine_place};
use dstack_compute::{
    Call, ComputeError, Known, LISTED_WITHIN, Lifecycle, Machine, MachineRequest, Owned, OwnedKind,
    OwnedMark, Removal, Sign, Step,
};
use dstack_http::ApiError;
use dstack_model::offers::InstanceOfferWithAvailability;
use dstack_model::runs::JobProvisioningData;

use crate::CloudRift;
use crate::client::{ImageGroup, Instance, Rental, Status};

/// Longest name of a machine.
const NAME_LENGTH: usize = 60;

/// The user that the vendor's images have.
const USER: &str = "riftuser";

const MACHINE_MODE: &str = "VirtualMachine";

const SSH_PORT: i64 = 22;

/// Pause while a machine starts: its image is downloaded, which takes minutes.
const STARTS_INTERVAL: Duration = Duration::from_secs(10);

/// Pause while a machine is being taken away.
const ENDS_INTERVAL: Duration = Duration::from_secs(5);

/// The clock of a new machine is set back once by NTP, which containers do not survive: waits for that, a minute at most.
const WAIT_FOR_CLOCK: &str = "for i in $(seq 60); do \
    [ \"$(timedatectl show -p NTPSynchronized --value)\" = yes ] && break; sleep 1; done";

#[async_trait]
impl Lifecycle<Machine> for CloudRift {
    async fn ensure(
        &self,
        want: &MachineRequest,
        call: &Call<'_>,
    ) -> Result<Step<JobProvisioningData>, ComputeError> {
        let name = want.marks.name(NAME_LENGTH);
        let made: Made = call
            .make(
                "machine",
                LISTED_WITHIN,
                async || Ok(Made::now(self.rent(want, &name).await?, call)),
                || self.find(&name, call),
            )
            .await?;
        let instance = self.instance(&made.id).await?;
        let starting = |doing: &str| Step::Underway {
            seen: None,
            doing: doing.to_owned(),
            again: STARTS_INTERVAL,
        };
        let Some(instance) = instance else {
            return Ok(starting("the machine is listed"));
        };
        if let Some(end) = end_of(&instance) {
            return Err(ComputeError::Broken(end));
        }
        Ok(match address(&instance) {
            Some((hostname, port)) => Step::Ready(machine_place(&want.offer, made.id, hostname, USER, port)),
            None => starting("the machine starts"),
        })
    }

    async fn look(
        &self,
        known: &[Known<Machine>],
    ) -> Result<Vec<Option<Sign<JobProvisioningData>>>, ComputeError> {
        let id_of = |known: &Known<Machine>| known.place.as_ref().map(|place| place.instance_id.clone());
        let ids: Vec<String> = known.iter().filter_map(id_of).collect();
        let texts: Vec<&str> = ids.iter().map(String::as_str).collect();
        let found = self
            .client
            .instances(&texts)
            .await
            .map_err(|error| compute_error(&error))?;
        let sign = |known: &Known<Machine>| {
            let id = id_of(known)?;
            Some(match found.iter().find(|instance| instance.id == id) {
                None => Sign::Lost("CloudRift does not have the machine any more".to_owned()),
                Some(instance) => end_of(instance).map_or(Sign::Well, Sign::Lost),
            })
        };
        Ok(known.iter().map(sign).collect())
    }

    async fn remove(&self, known: &Known<Machine>, call: &Call<'_>) -> Result<Removal, ComputeError> {
        let name = known.marks.name(NAME_LENGTH);
        let place = known.place.as_ref();
        let machine = place.map(|place| Made::long_ago(place.instance_id.clone()));
        let find = || self.find(&name, call);
        let delete = async |machine: Made| {
            let told = self.terminate(&machine.id).await?;
            Ok(machine.removal(call, told, ENDS_INTERVAL))
        };
        call.unmake("machine", machine, LISTED_WITHIN, find, delete).await
    }
}

impl CloudRift {
    async fn rent(&self, want: &MachineRequest, name: &str) -> Result<String, ComputeError> {
        let fetch = async || {
            self.client
                .image_groups()
                .await
                .map_err(|error| compute_error(&error))
        };
        let images = self.images.get(fetch).await?;
        let image_url = image_for(&images, &want.offer).ok_or_else(|| {
            ComputeError::Refused(
                "CloudRift lists no image of Ubuntu with drivers for this machine".to_owned(),
            )
        })?;
        let rental = Rental {
            name,
            region: &want.offer.region,
            instance_type: &want.offer.instance.name,
            image_url,
            authorized_keys: &want.authorized_keys,
            commands: WAIT_FOR_CLOCK,
        };
        let id = self
            .client
            .rent(&rental)
            .await
            .map_err(|error| not_rented(&error))?;
        // It says that it rented something: that is looked for.
        id.ok_or_else(|| ComputeError::Unclear("CloudRift names no machine that it rented".to_owned()))
    }

    async fn find(&self, name: &str, call: &Call<'_>) -> Result<Option<Made>, ComputeError> {
        let all = self
            .client
            .all_instances()
            .await
            .map_err(|error| compute_error(&error))?;
        let found = all
            .into_iter()
            .find(|instance| instance.instance_name.as_deref() == Some(name));
        Ok(found.map(|instance| Made::now(instance.id, call)))
    }

    async fn instance(&self, id: &str) -> Result<Option<Instance>, ComputeError> {
        let found = self
            .client
            .instances(&[id])
            .await
            .map_err(|error| compute_error(&error))?;
        Ok(found.into_iter().find(|instance| instance.id == id))
    }

    pub(crate) async fn terminate(&self, id: &str) -> Result<Removal, ComputeError> {
        self.client
            .terminate(id)
            .await
            .map_err(|error| compute_error(&error))?;
        let is_over = |instance: &Instance| matches!(instance.status, Status::Inactive | Status::Failed);
        Ok(match self.instance(id).await? {
            Some(instance) if !is_over(&instance) => Removal::Underway { again: ENDS_INTERVAL },
            _ => Removal::Gone,
        })
    }

    pub(crate) async fn list_owned(&self) -> Result<Vec<Owned>, ComputeError> {
        let all = self
            .client
            .all_instances()
            .await
            .map_err(|error| compute_error(&error))?;
        let owned = |instance: Instance| {
            let name = instance.instance_name?;
            Some(Owned {
                kind: OwnedKind::Machine,
                id: instance.id,
                mark: OwnedMark::of_name(&name)?,
                name,
                region: String::new(),
                price: None,
                made_at: None,
            })
        };
        Ok(all.into_iter().filter_map(owned).collect())
    }
}

/// The vendor tells in words that nothing is free.
fn not_rented(error: &ApiError) -> ComputeError {
    let text = error.body().to_ascii_lowercase();
    let tells = text.contains("no nodes") || text.contains("not available");
    match tells && error.is_definite() {
        true => ComputeError::NoCapacity(error.body().trim_matches(['"', '\n', ' ']).to_owned()),
        false => compute_error(error),
    }
}

/// Why an instance will never work (again).
fn end_of(instance: &Instance) -> Option<String> {
    let told = instance
        .failure
        .as_ref()
        .and_then(|failure| failure.user_message.clone());
    match instance.status {
        Status::Failed => Some(told.unwrap_or_else(|| "CloudRift could not start the machine".to_owned())),
        Status::Inactive | Status::Deactivating => Some("CloudRift has ended the machine".to_owned()),
        Status::Initializing | Status::Active | Status::Other => None,
    }
}

/// Where the machine is reached by SSH; `None`: not yet.
fn address(instance: &Instance) -> Option<(String, i64)> {
    let machine = instance.virtual_machines.first()?;
    if instance.node_mode != MACHINE_MODE || !machine.ready {
        return None;
    }
    Some((instance.host_address.clone()?, ssh_port(instance)?))
}

/// By the mapping of ports, or else by what users are told; 22 where there is neither.
fn ssh_port(instance: &Instance) -> Option<i64> {
    let is_port = |port: &i64| (1..=65_535).contains(port);
    let mapped = instance.port_mappings.as_ref().and_then(|pairs| {
        let ports = pairs
            .iter()
            .filter(|(inner, _)| *inner == SSH_PORT)
            .map(|(_, outer)| *outer);
        ports.into_iter().find(is_port)
    });
    if mapped.is_some() {
        return mapped;
    }
    let values = instance
        .instructions
        .as_ref()
        .map(|instructions| &instructions.placeholder_values);
    let told = values.and_then(|values| values.iter().find(|(name, _)| name == "SSH_PORT"));
    match told {
        Some((_, text)) if text.trim().is_empty() => Some(SSH_PORT),
        Some((_, text)) => text
            .trim()
            .strip_prefix("-p")?
            .trim()
            .parse()
            .ok()
            .filter(is_port),
        // Ports are mapped here, and this one is not yet.
        None if instance.port_mappings.is_some() => None,
        None => Some(SSH_PORT),
    }
}

/// Of the images with the drivers that the machine needs, that of the latest Ubuntu.
fn image_for<'a>(groups: &'a [ImageGroup], offer: &InstanceOfferWithAvailability) -> Option<&'a str> {
    let is_amd = offer
        .instance
        .resources
        .gpus
        .iter()
        .any(|gpu| gpu.vendor == Some(dstack_units::AcceleratorVendor::Amd));
    let driver = if is_amd { "amd-driver" } else { "nvidia-driver" };
    let has = |tags: &[String], wanted: &str| tags.iter().any(|tag| tag == wanted);
    let groups = groups
        .iter()
        .filter(|group| group.name.eq_ignore_ascii_case("linux") && has(&group.tags, "vm"));
    let images = groups
        .flat_map(|group| &group.recipes)
        .filter(|image| has(&image.tags, driver));
    let usable = images.filter_map(|image| {
        let machine = image.details.machine.as_ref()?;
        Some((ubuntu_version(&image.name)?, machine.image_url.as_str()))
    });
    usable.max_by_key(|(version, _)| *version).map(|(_, url)| url)
}

/// `24.04` of `Ubuntu 24.04 Server (NVidia)`.
fn ubuntu_version(name: &str) -> Option<(u32, u32)> {
    let rest = name.split_once("Ubuntu")?.1;
    let mut versions = rest.split_whitespace().filter_map(|word| {
        let (major, minor) = word.split_once('.')?;
        Some((major.parse().ok()?, minor.parse().ok()?))
    });
    versions.next()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn instance(more: &Value) -> Instance {
        let mut value = json!({"id": "i", "status": "Active", "node_mode": "VirtualMachine",
            "host_address": "192.0.2.7", "virtual_machines": [{"ready": true}]});
        for (name, field) in more.as_object().unwrap() {
            value[name] = field.clone();
        }
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn a_machine_is_reached_where_its_ports_lead() {
        let told = |text: &str| json!({"instructions": {"placeholder_values": [["SSH_PORT", text]]}});
        for (more, port) in [
            (json!({}), Some(22)),
            (
                json!({"port_mappings": [[8080, 48_080], [22, 40_022]]}),
                Some(40_022),
            ),
            (json!({"port_mappings": []}), None),
            (json!({"port_mappings": [[22, 0]]}), None),
            (told("-p 2222"), Some(2222)),
            (told(""), Some(22)),
            (told("soon"), None),
            (json!({"virtual_machines": [{"ready": false}]}), None),
            (json!({"virtual_machines": []}), None),
            (json!({"host_address": null}), None),
            (json!({"node_mode": "BareMetal"}), None),
        ] {
            let reached = address(&instance(&more));
            assert_eq!(reached, port.map(|port| ("192.0.2.7".to_owned(), port)), "{more}");
        }
    }

    #[test]
    fn what_is_over_is_told_with_its_reason() {
        let failed = json!({"status": "Failed", "failure": {"user_message": "the node has no power"}});
        assert_eq!(end_of(&instance(&failed)).unwrap(), "the node has no power");
        assert!(end_of(&instance(&json!({"status": "Inactive"}))).is_some());
        assert_eq!(end_of(&instance(&json!({"status": "Migrating"}))), None);
    }
}
