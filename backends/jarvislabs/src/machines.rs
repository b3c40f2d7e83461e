use std::time::Duration;

use async_trait::async_trait;
use dstack_backend::{bare_key, machine_place, not_asked, one_line};
use dstack_compute::{
    Call, ComputeError, Known, Lifecycle, Machine, MachineRequest, MachineSetup, Owned, OwnedKind, OwnedMark,
    Removal, Sign, Step,
};
use dstack_model::offers::InstanceOfferWithAvailability;
use dstack_model::runs::JobProvisioningData;
use dstack_units::Time;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use crate::JarvisLabs;
use crate::client::{Failure, Instance, Template, all_regions, is_region};
use crate::offers::SMALLEST_DISK;

/// Longest name of a machine.
const NAME_LENGTH: usize = 40;

/// The user of the images, where the API tells none.
const USUAL_USER: &str = "ubuntu";

const SSH_PORT: i64 = 22;

/// Until a machine is listed: none may be while it is created.
const LISTED_WITHIN: Duration = Duration::from_secs(10 * 60);

/// Pause while a machine starts.
const START_INTERVAL: Duration = Duration::from_secs(10);

/// Pause while a machine is being taken away.
const END_INTERVAL: Duration = Duration::from_secs(5);

/// Pause while a machine may be there that is not listed.
const UNLISTED_INTERVAL: Duration = Duration::from_secs(30);

/// What is noted of a machine that was made.
#[derive(Debug, Serialize, Deserialize)]
struct Made {
    id: String,
    /// When that became known.
    at: Time,
}

impl Made {
    fn now(id: String, call: &Call<'_>) -> Self {
        Self { id, at: call.now() }
    }

    fn is_new(&self, call: &Call<'_>) -> bool {
        call.now() < self.at + LISTED_WITHIN
    }
}

#[async_trait]
impl Lifecycle<Machine> for JarvisLabs {
    async fn ensure(
        &self,
        want: &MachineRequest,
        call: &Call<'_>,
    ) -> Result<Step<JobProvisioningData>, ComputeError> {
        let name = want.marks.name(NAME_LENGTH);
        if call.made::<Made>("machine")?.is_none() && call.asked_at("machine").is_none() {
            let key = want.authorized_keys.first().map_or("", String::as_str);
            self.register_key(key).await.map_err(not_asked)?;
        }
        let made: Made = call
            .make(
                "machine",
                LISTED_WITHIN,
                async || Ok(Made::now(self.create(want, &name).await?, call)),
                || self.find(&name, call),
            )
            .await
            .inspect_err(|error| {
                // What was free is not any more.
                if matches!(error, ComputeError::NoCapacity(_)) {
                    self.rows.forget();
                }
            })?;
        let underway = |doing: &str| {
            Ok(Step::Underway {
                seen: None,
                doing: doing.to_owned(),
                again: START_INTERVAL,
            })
        };
        let instance = self.client.instance(&made.id).await.map_err(read_error)?;
        let Some(instance) = instance else {
            let progress = self.client.progress(&want.offer.region, &made.id).await;
            let progress = progress.map_err(read_error)?;
            let has_failed = |status: &str| status.eq_ignore_ascii_case("failed");
            return match progress.filter(|progress| progress.status.as_deref().is_some_and(has_failed)) {
                Some(failed) => Err(ComputeError::Broken(failure_text(failed.error.as_deref()))),
                None => underway("the machine is created"),
            };
        };
        if let Some(end) = end_of(&instance) {
            return Err(ComputeError::Broken(end));
        }
        match instance.public_ip.clone().filter(|ip| !ip.is_empty()) {
            Some(ip) if instance.status() == "running" => {
                Ok(Step::Ready(place(&want.offer, made.id, ip, &instance)))
            }
            _ => underway("the machine starts"),
        }
    }

    async fn look(
        &self,
        known: &[Known<Machine>],
    ) -> Result<Vec<Option<Sign<JobProvisioningData>>>, ComputeError> {
        let all = self.client.instances().await.map_err(read_error)?;
        let sign = |instance: &Instance| end_of(instance).map_or(Sign::Well, Sign::Lost);
        let mut signs = Vec::new();
        for known in known {
            let Some(place) = &known.place else {
                signs.push(None);
                continue;
            };
            let id = &place.instance_id;
            signs.push(match all.iter().find(|instance| instance.id() == *id) {
                Some(instance) => Some(sign(instance)),
                // The list alone does not tell that it is gone.
                None => match self.client.instance(id).await {
                    Ok(Some(instance)) => Some(sign(&instance)),
                    Ok(None) => Some(Sign::Lost(
                        "JarvisLabs does not have the machine any more".to_owned(),
                    )),
                    Err(_) => None,
                },
            });
        }
        Ok(signs)
    }

    async fn remove(&self, known: &Known<Machine>, call: &Call<'_>) -> Result<Removal, ComputeError> {
        let name = known.marks.name(NAME_LENGTH);
        let place = known.place.as_ref();
        let machine = place.map(|place| Made {
            id: place.instance_id.clone(),
            at: Time::from_millis(0),
        });
        // One that has a place ran.
        let was_listed = place.is_some();
        let find = || self.find(&name, call);
        let delete = async |machine: Made| {
            let told = self.destroy(&machine.id, &known.site).await?;
            Ok(
                match told == Removal::Gone && !was_listed && machine.is_new(call) {
                    true => Removal::Underway {
                        again: UNLISTED_INTERVAL,
                    },
                    false => told,
                },
            )
        };
        let removal = call
            .unmake("machine", machine, LISTED_WITHIN, find, delete)
            .await?;
        if removal == Removal::Gone {
            self.delete_own_keys(place).await?;
        }
        Ok(removal)
    }
}

impl JarvisLabs {
    async fn create(&self, want: &MachineRequest, name: &str) -> Result<String, ComputeError> {
        let (template, body) = request_of(&want.offer, name);
        let id = self.client.create(template, &want.offer.region, &body).await;
        let id = id.map_err(|failure| failure.making_error())?;
        // It says that it made something: that is looked for.
        id.ok_or_else(|| ComputeError::Unclear("JarvisLabs names no machine that it made".to_owned()))
    }

    /// Machines take over all keys of the account, which may have ten. Only that of the project is added, once: keys of others could log
    /// in to all machines. It stays there, as other servers may use it as well.
    async fn register_key(&self, key: &str) -> Result<(), ComputeError> {
        let _registering = self.registering.lock().await;
        if self.has_key(key).await? {
            return Ok(());
        }
        let added = self.client.add_ssh_key(&key_name(key), key).await;
        self.keys.forget();
        match added {
            Ok(()) => Ok(()),
            // Another server may have registered it meanwhile.
            Err(failure) => match self.has_key(key).await? {
                true => Ok(()),
                false => Err(failure.compute_error()),
            },
        }
    }

    async fn has_key(&self, key: &str) -> Result<bool, ComputeError> {
        let fetch = async || {
            let keys = self.client.ssh_keys().await.map_err(read_error)?;
            let keys = keys.into_iter().filter_map(|key| key.ssh_key);
            Ok(keys.map(|key| bare_key(&key)).collect())
        };
        Ok(self.keys.get(fetch).await?.contains(&bare_key(key)))
    }

    /// One of this name that is not over.
    async fn find(&self, name: &str, call: &Call<'_>) -> Result<Option<Made>, ComputeError> {
        let mut all = self.client.instances().await.map_err(read_error)?.into_iter();
        let is_it = |instance: &Instance| instance.name() == Some(name) && !is_ending(&instance.status());
        Ok(all.find(is_it).map(|instance| Made::now(instance.id(), call)))
    }

    async fn instance(&self, id: &str) -> Result<Option<Instance>, ComputeError> {
        if let Some(instance) = self.client.instance(id).await.map_err(read_error)? {
            return Ok(Some(instance));
        }
        let mut all = self.client.instances().await.map_err(read_error)?.into_iter();
        Ok(all.find(|instance| instance.id() == id))
    }

    /// [`Removal::Gone`]: the API knows nothing of it, neither by its id nor in the list, which may be too early to tell of one that is new.
    pub(crate) async fn destroy(&self, id: &str, region: &str) -> Result<Removal, ComputeError> {
        let Some(instance) = self.instance(id).await? else {
            // One that is still created is not listed, and may be destroyed all the same. In which words an order is refused, or taken, for
            // one that is gone is not known: it would never be done with if they counted.
            for region in hosts([Some(region)]) {
                for template in [Template::GpuMachine, Template::CpuMachine] {
                    let _ = self.client.destroy(template, region, id).await;
                }
            }
            return Ok(Removal::Gone);
        };
        match instance.status().as_str() {
            "destroyed" => return Ok(Removal::Gone),
            "destroying" => {}
            _ => {
                let mut refused = Ok(());
                for region in hosts([instance.region.as_deref(), Some(region)]) {
                    match self.client.destroy(instance.template(), region, id).await {
                        Ok(true) => return Ok(Removal::Underway { again: END_INTERVAL }),
                        Ok(false) => {}
                        Err(failure) => refused = Err(failure.compute_error()),
                    }
                }
                refused?;
            }
        }
        Ok(Removal::Underway { again: END_INTERVAL })
    }

    /// Keys that dstack 0.22.5 has added for this machine alone.
    async fn delete_own_keys(&self, place: Option<&JobProvisioningData>) -> Result<(), ComputeError> {
        #[derive(Default, Deserialize)]
        struct Data {
            #[serde(default)]
            ssh_key_ids: Option<Vec<String>>,
        }
        let text = place
            .and_then(|place| place.backend_data.as_deref())
            .unwrap_or_default();
        let data: Data = serde_json::from_str(text).unwrap_or_default();
        for id in data.ssh_key_ids.into_iter().flatten() {
            let deleted = self.client.delete_ssh_key(&id).await;
            deleted.map_err(|failure| failure.compute_error())?;
        }
        Ok(())
    }

    pub(crate) async fn list_owned(&self) -> Result<Vec<Owned>, ComputeError> {
        let owned = |instance: Instance| {
            if instance.status() == "destroyed" {
                return None;
            }
            let name = instance.name()?.to_owned();
            Some(Owned {
                kind: OwnedKind::Machine,
                id: instance.id(),
                mark: OwnedMark::of_name(&name)?,
                name,
                region: instance.region.unwrap_or_default(),
                price: None,
                made_at: None,
            })
        };
        let all = self.client.instances().await.map_err(read_error)?;
        Ok(all.into_iter().filter_map(owned).collect())
    }
}

/// What is not told is not told; nothing is concluded from it.
fn read_error(failure: Failure) -> ComputeError {
    match failure {
        Failure::Told(text) => ComputeError::Unclear(format!("JarvisLabs does not tell it: {text}")),
        failure @ Failure::Api(_) => failure.compute_error(),
    }
}

/// The first of these that is a region; where none is, all regions are asked.
fn hosts<'a>(regions: impl IntoIterator<Item = Option<&'a str>>) -> Vec<&'a str> {
    let mut regions = regions.into_iter().flatten();
    let region = regions.find(|region| is_region(region));
    region.map_or_else(|| all_regions().collect(), |region| vec![region])
}

/// How a machine is asked for.
fn request_of(offer: &InstanceOfferWithAvailability, name: &str) -> (Template, Value) {
    let resources = &offer.instance.resources;
    let gib = |mib: i64| (mib + 512) / 1024;
    let disk = gib(resources.disk.size_mib).max(SMALLEST_DISK);
    let Some(gpu) = resources.gpus.first() else {
        let body = json!({"num_cpus": 1, "vcpus": resources.cpus, "ram_gb": gib(resources.memory_mib), "hdd": disk,
            "region": &*offer.region, "name": name, "duration": "hour", "disk_type": "ssd"});
        return (Template::CpuMachine, body);
    };
    // As the vendor calls it, where that is otherwise than the catalogue.
    let own_name = offer.backend_data.get("gpu_type").and_then(Value::as_str);
    let body = json!({"gpu_type": own_name.unwrap_or(&gpu.name), "num_gpus": resources.gpus.len(), "hdd": disk,
        "region": &*offer.region, "name": name, "is_spot": false, "duration": "hour", "disk_type": "ssd", "http_ports": "",
        "script_id": null, "script_args": "", "fs_id": null, "arguments": ""});
    (Template::GpuMachine, body)
}

fn is_ending(status: &str) -> bool {
    matches!(status, "destroying" | "destroyed")
}

/// Why an instance will never work (again).
fn end_of(instance: &Instance) -> Option<String> {
    match instance.status().as_str() {
        "failed" => Some(failure_text(instance.error.as_deref())),
        status if is_ending(status) => Some("the machine was destroyed at JarvisLabs".to_owned()),
        _ => None,
    }
}

fn failure_text(error: Option<&str>) -> String {
    let why = error.map_or_else(String::new, |text| format!(": {}", one_line(text)));
    format!("JarvisLabs could not create the machine{why}")
}

/// The name that a key gets, the same at each server.
fn key_name(key: &str) -> String {
    let digest = hex::encode(Sha256::digest(bare_key(key)));
    let digits: String = digest.chars().take(16).collect();
    format!("dstack-{digits}")
}

/// The user of the command by which people log in, such as `ssh -o X=no ubuntu@192.0.2.1`.
fn user(instance: &Instance) -> &str {
    let words = instance.ssh_command().split_whitespace().skip(1);
    let mut targets = words.filter(|word| !word.starts_with('-'));
    let user = targets.find_map(|word| Some(word.rsplit_once('@')?.0));
    user.filter(|user| !user.is_empty()).unwrap_or(USUAL_USER)
}

fn place(
    offer: &InstanceOfferWithAvailability,
    id: String,
    ip: String,
    instance: &Instance,
) -> JobProvisioningData {
    let is_set = |text: &String| !text.is_empty();
    // Outside of a network, machines do not reach each other by it.
    let has_network = instance.vpc_id.as_ref().is_some_and(is_set);
    let private_ip = instance.private_ip.clone().filter(|ip| has_network && is_set(ip));
    let place = JobProvisioningData {
        internal_ip: private_ip,
        ..machine_place(offer, id, ip, user(instance), SSH_PORT)
    };
    // Images do not always have it, and nothing can be run when they start.
    MachineSetup { install_docker: true }.noted_in(place)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn where_no_region_is_known_all_are_asked() {
        assert_eq!(hosts([None, Some("europe-01")]), ["europe-01"]);
        assert_eq!(hosts([Some("mars-01"), Some("india-01")]), ["india-01"]);
        assert_eq!(hosts([Some("")]).len(), 4);
    }

    #[test]
    fn the_user_is_that_of_the_command() {
        let of = |more: Value| -> String {
            let mut value = json!({"machine_id": 1, "status": "Running"});
            for (name, field) in more.as_object().unwrap() {
                value[name] = field.clone();
            }
            let instance: Instance = serde_json::from_value(value).unwrap();
            user(&instance).to_owned()
        };
        assert_eq!(
            of(json!({"ssh_str": "ssh -o StrictHostKeyChecking=no root@192.0.2.1"})),
            "root"
        );
        assert_eq!(
            of(json!({"ssh_command": "ssh -p 22 someone@192.0.2.1"})),
            "someone"
        );
        for none in [
            json!({}),
            json!({"ssh_str": null}),
            json!({"ssh_str": "ssh 192.0.2.1"}),
        ] {
            assert_eq!(of(none), "ubuntu");
        }
    }
}
