use std::time::Duration;

use async_trait::async_trait;
use dstack_backend::{Made, compute_error, machine_place, one_line};
use dstack_compute::{
    Call, ComputeError, Known, LISTED_WITHIN, Lifecycle, Machine, MachineRequest, Owned, OwnedKind,
    OwnedMark, Removal, Sign, Step,
};
use dstack_http::ApiError;
use dstack_model::offers::InstanceOfferWithAvailability;
use dstack_model::runs::JobProvisioningData;
use serde::{Deserialize, Serialize};

use crate::Verda;
use crate::client::{Deletion, Instance, NewInstance, OsVolume, Status, told};

/// Longest name of a machine.
const NAME_LENGTH: usize = 60;

/// Ubuntu 24.04 with CUDA 13.0 (open drivers) and Docker.
const IMAGE: &str = "2404f580-1300-1111-82b3-f199fb9b701b";

/// Ubuntu 22.04 with CUDA 12.0 and Docker: older GPUs are refused the newer one.
const OLDER_IMAGE: &str = "2088da25-bb0d-41cc-a191-dccae45d96fd";

const OLDER_GPUS: [&str; 2] = ["V100", "A6000"];

const STARTS_INTERVAL: Duration = Duration::from_secs(10);

/// Pause while a machine is being taken away.
pub(crate) const ENDS_INTERVAL: Duration = Duration::from_secs(5);

/// What is kept with a machine, as dstack 0.22.5 has it. That one makes a startup script too; here the agent is brought over SSH.
#[derive(Debug, Default, Serialize, Deserialize)]
struct BackendData {
    #[serde(default)]
    startup_script_id: Option<String>,
    #[serde(default)]
    ssh_key_ids: Option<Vec<String>>,
}

impl BackendData {
    fn of(place: Option<&JobProvisioningData>) -> Self {
        let text = place.and_then(|place| place.backend_data.as_deref());
        text.and_then(|text| serde_json::from_str(text).ok())
            .unwrap_or_default()
    }
}

#[async_trait]
impl Lifecycle<Machine> for Verda {
    async fn ensure(
        &self,
        want: &MachineRequest,
        call: &Call<'_>,
    ) -> Result<Step<JobProvisioningData>, ComputeError> {
        let name = want.marks.name(NAME_LENGTH);
        let keys = self.make_keys(&name, &want.authorized_keys, call).await?;
        let is_new = keys.iter().any(|key| key.is_new(call));
        let keys: Vec<String> = keys.into_iter().map(|key| key.id).collect();
        let made: Made = call
            .make(
                "machine",
                LISTED_WITHIN,
                async || {
                    let id = self.create(want, &name, &keys).await;
                    Ok(Made::now(id.map_err(|error| not_created(&error, is_new))?, call))
                },
                || self.find(&name, call),
            )
            .await?;
        let waiting = |doing: &str| {
            Ok(Step::Underway {
                seen: None,
                doing: doing.to_owned(),
                again: STARTS_INTERVAL,
            })
        };
        let Some(instance) = self.instance(&made.id).await? else {
            return match made.is_new(call) {
                true => waiting("the machine is listed"),
                false => Err(ComputeError::Broken(GONE.to_owned())),
            };
        };
        if instance.status == Status::NoCapacity {
            let text = "Verda has no such machine after all";
            return Err(ComputeError::NoCapacity(text.to_owned()));
        }
        if let Some(end) = end_of(&instance) {
            return Err(ComputeError::Broken(end.to_owned()));
        }
        let address = instance.ip.filter(|_| instance.status == Status::Running);
        match address.filter(|address| !address.is_empty()) {
            Some(hostname) => Ok(Step::Ready(place(&want.offer, made.id, hostname, keys))),
            None => waiting("the machine starts"),
        }
    }

    async fn look(
        &self,
        known: &[Known<Machine>],
    ) -> Result<Vec<Option<Sign<JobProvisioningData>>>, ComputeError> {
        let all = self.instances().await?;
        let mut signs = Vec::with_capacity(known.len());
        for known in known {
            signs.push(match &known.place {
                None => None,
                Some(place) => self.sign(&place.instance_id, &all).await,
            });
        }
        Ok(signs)
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
        let removal = call.unmake("machine", machine, LISTED_WITHIN, find, delete);
        if let underway @ Removal::Underway { .. } = removal.await? {
            return Ok(underway);
        }
        let data = BackendData::of(place);
        let delete = async |script: String| {
            let deleted = self.client.delete_script(&script).await;
            deleted.map_err(|error| compute_error(&error))?;
            Ok(Removal::Gone)
        };
        let script = data.startup_script_id;
        let removal = call.unmake("startup script", script, LISTED_WITHIN, async || Ok(None), delete);
        removal.await?;
        let keys = data.ssh_key_ids.unwrap_or_default();
        self.unmake_keys(&name, &keys, call).await
    }
}

impl Verda {
    async fn create(&self, want: &MachineRequest, name: &str, keys: &[String]) -> Result<String, ApiError> {
        let resources = &want.offer.instance.resources;
        let is_older = |gpu: &str| OLDER_GPUS.contains(&gpu);
        let ask = NewInstance {
            instance_type: &want.offer.instance.name,
            image: match resources.gpus.iter().any(|gpu| is_older(&gpu.name)) {
                true => OLDER_IMAGE,
                false => IMAGE,
            },
            ssh_key_ids: keys,
            hostname: name,
            description: name,
            location_code: &want.offer.region,
            os_volume: OsVolume {
                name: "OS volume",
                size: (resources.disk.size_mib + 1023) / 1024,
                on_spot_discontinue: resources.spot.then_some("delete_permanently"),
            },
            is_spot: resources.spot,
            pricing: "FIXED_PRICE",
        };
        self.client.create_instance(&ask).await
    }

    /// What is over does not count.
    async fn find(&self, name: &str, call: &Call<'_>) -> Result<Option<Made>, ComputeError> {
        let all = self.instances().await?;
        let is_it = |instance: &Instance| instance.description.as_deref() == Some(name) && !is_gone(instance);
        Ok(all
            .into_iter()
            .find(is_it)
            .map(|instance| Made::now(instance.id, call)))
    }

    /// What is new may not be listed yet; `None`: it could not be asked.
    async fn sign(&self, id: &str, all: &[Instance]) -> Option<Sign<JobProvisioningData>> {
        let listed = all.iter().find(|instance| instance.id == id).cloned();
        let instance = match listed {
            Some(listed) => Some(listed),
            None => self.client.instance(id).await.ok()?,
        };
        let end = instance.as_ref().map_or(Some(GONE), end_of);
        Some(end.map_or(Sign::Well, |end| Sign::Lost(end.to_owned())))
    }

    async fn instances(&self) -> Result<Vec<Instance>, ComputeError> {
        let all = self.client.instances().await;
        all.map_err(|error| compute_error(&error))
    }

    async fn instance(&self, id: &str) -> Result<Option<Instance>, ComputeError> {
        let found = self.client.instance(id).await;
        found.map_err(|error| compute_error(&error))
    }

    pub(crate) async fn terminate(&self, id: &str) -> Result<Removal, ComputeError> {
        let underway = Ok(Removal::Underway { again: ENDS_INTERVAL });
        let Some(instance) = self.instance(id).await? else {
            return Ok(Removal::Gone);
        };
        if is_gone(&instance) {
            return Ok(Removal::Gone);
        }
        if instance.status == Status::Deleting {
            return underway;
        }
        let deleted = self
            .client
            .delete_instance(id, instance.os_volume_id.as_deref())
            .await;
        match deleted.map_err(|error| compute_error(&error))? {
            Deletion::Begun => underway,
            Deletion::NotYet => Ok(Removal::Underway {
                again: STARTS_INTERVAL,
            }),
        }
    }

    pub(crate) async fn owned_machines(&self) -> Result<Vec<Owned>, ComputeError> {
        let all = self.instances().await?;
        let owned = |instance: Instance| {
            let name = instance.description?;
            Some(Owned {
                kind: OwnedKind::Machine,
                mark: OwnedMark::of_name(&name)?,
                id: instance.id,
                name,
                region: instance.location.unwrap_or_default(),
                price: instance.price_per_hour,
                made_at: instance.created_at.and_then(|at| at.parse().ok()),
            })
        };
        let there = all.into_iter().filter(|instance| !is_gone(instance));
        Ok(there.filter_map(owned).collect())
    }
}

const GONE: &str = "Verda does not have the machine any more";

fn is_gone(instance: &Instance) -> bool {
    matches!(instance.status, Status::Discontinued | Status::NotFound)
}

/// Why a machine will never work (again). One that is only switched off may be switched on again.
const fn end_of(instance: &Instance) -> Option<&'static str> {
    match instance.status {
        Status::Error | Status::NoCapacity => Some("Verda could not start the machine"),
        Status::Deleting | Status::Discontinued | Status::NotFound => Some("Verda has ended the machine"),
        Status::Running | Status::Other => None,
    }
}

/// As [`not_made`]; a key that is new may not be known everywhere yet.
fn not_created(error: &ApiError, has_new_key: bool) -> ComputeError {
    let is_about_key = told(error).message.to_ascii_lowercase().contains("ssh");
    match not_made(error) {
        ComputeError::Refused(text) if has_new_key && is_about_key => ComputeError::NotReady(text),
        other => other,
    }
}

/// The vendor's codes tell why. Only its own words are believed: gateways answer 503 too.
pub(crate) fn not_made(error: &ApiError) -> ComputeError {
    let answer = told(error);
    let text = one_line(&format!("{} ({})", answer.message, answer.code));
    match answer.code.as_str() {
        "insufficient_funds" => ComputeError::NoQuota(text),
        "service_unavailable" if answer.message.contains("Not enough resources") => {
            ComputeError::NoCapacity(text)
        }
        "invalid_request" | "forbidden_action" if is_limit(&answer.message) => ComputeError::NoQuota(text),
        "forbidden_action" => ComputeError::Refused(text),
        _ => compute_error(error),
    }
}

fn is_limit(message: &str) -> bool {
    let message = message.to_ascii_lowercase();
    ["limit", "quota", "maximum"]
        .iter()
        .any(|word| message.contains(word))
}

fn place(
    offer: &InstanceOfferWithAvailability,
    id: String,
    hostname: String,
    keys: Vec<String>,
) -> JobProvisioningData {
    let data = BackendData {
        startup_script_id: None,
        ssh_key_ids: Some(keys),
    };
    JobProvisioningData {
        backend_data: serde_json::to_string(&data).ok(),
        ..machine_place(offer, id, hostname, "root", 22)
    }
}

#[cfg(test)]
mod tests {
    use http::StatusCode;

    use super::*;

    #[test]
    fn refusals_are_told_apart() {
        let told = |status: u16, body: &str| {
            not_made(&ApiError::Status {
                api: "api.verda.com".to_owned(),
                status: StatusCode::from_u16(status).unwrap(),
                body: body.to_owned(),
                retry_after: None,
            })
        };
        let error = |code: &str, message: &str| format!(r#"{{"code":"{code}","message":"{message}"}}"#);
        let full = error(
            "service_unavailable",
            "Not enough resources, please try again later",
        );
        assert!(matches!(told(503, &full), ComputeError::NoCapacity(_)));
        let away = error("service_unavailable", "The service is down for maintenance");
        assert!(!told(503, &away).is_definite());
        assert!(
            !told(503, "Not enough resources").is_definite(),
            "not the vendor's"
        );
        let poor = error("insufficient_funds", "Not enough balance");
        assert!(matches!(told(402, &poor), ComputeError::NoQuota(_)));
        let limit = error("forbidden_action", "Instance limit reached");
        assert!(matches!(told(403, &limit), ComputeError::NoQuota(_)));
        let forbidden = error("forbidden_action", "Project is suspended");
        assert!(matches!(told(403, &forbidden), ComputeError::Refused(_)));
        let image = error(
            "invalid_request",
            "Operating system is not valid for this instance type",
        );
        assert!(matches!(told(400, &image), ComputeError::Refused(_)));
        let long = error("insufficient_funds", &"Not enough balance\\n".repeat(1000));
        let shown = told(402, &long).details();
        assert!(shown.len() <= 600 && !shown.contains('\n'), "{shown}");
        let unauthorized = error("unauthorized_request", "Access token is invalid");
        assert!(matches!(told(401, &unauthorized), ComputeError::Credentials(_)));
    }
}
