use std::time::Duration;

use async_trait::async_trait;
use dstack_backend::{Made, compute_error, machine_place, not_asked};
use dstack_compute::{
    Call, ComputeError, Known, LISTED_WITHIN, Lifecycle, Machine, MachineRequest, Owned, OwnedKind,
    OwnedMark, Removal, Sign, Step,
};
use dstack_http::ApiError;
use dstack_model::offers::InstanceOfferWithAvailability;
use dstack_model::runs::JobProvisioningData;

use crate::Cudo;
use crate::client::{BootDisk, Image, NewVm, State, Vm, told};
use crate::images::start_script;

/// Longest id of a machine, which is chosen here and is its name.
const ID_LENGTH: usize = 30;

const STARTS_INTERVAL: Duration = Duration::from_secs(10);

/// Pause while a machine is being taken away.
const ENDS_INTERVAL: Duration = Duration::from_secs(5);

#[async_trait]
impl Lifecycle<Machine> for Cudo {
    async fn ensure(
        &self,
        want: &MachineRequest,
        call: &Call<'_>,
    ) -> Result<Step<JobProvisioningData>, ComputeError> {
        let id = want.marks.name(ID_LENGTH);
        let made = match call.made::<Made>("machine")? {
            Some(made) => made,
            None => {
                let image = self.image_for(want).await.map_err(not_asked)?;
                let create = async || {
                    self.create(want, &id, &image).await?;
                    Ok(Made::now(id.clone(), call))
                };
                let find = || self.find(&id, call);
                call.make("machine", LISTED_WITHIN, create, find).await?
            }
        };
        let waiting = |doing: &str| {
            Ok(Step::Underway {
                seen: None,
                doing: doing.to_owned(),
                again: STARTS_INTERVAL,
            })
        };
        let Some(vm) = self.vm(&made.id).await? else {
            return match made.is_new(call) {
                true => waiting("the machine is listed"),
                false => Err(ComputeError::Broken(GONE.to_owned())),
            };
        };
        if let Some(end) = end_of(&vm) {
            return Err(ComputeError::Broken(end.to_owned()));
        }
        match vm.state == State::Active && !vm.public_ip_address.is_empty() {
            true => Ok(Step::Ready(place(&want.offer, vm))),
            false => waiting("the machine starts"),
        }
    }

    async fn look(
        &self,
        known: &[Known<Machine>],
    ) -> Result<Vec<Option<Sign<JobProvisioningData>>>, ComputeError> {
        let all = self.vms().await?;
        let sign = |end: Option<&str>| end.map_or(Sign::Well, |end| Sign::Lost(end.to_owned()));
        let mut signs = Vec::new();
        for known in known {
            let Some(place) = &known.place else {
                signs.push(None);
                continue;
            };
            let id = &place.instance_id;
            signs.push(match all.iter().find(|vm| vm.id == *id) {
                Some(vm) => Some(sign(end_of(vm))),
                // The list alone does not tell that it is gone.
                None => match self.vm(id).await {
                    Ok(vm) => Some(sign(vm.as_ref().map_or(Some(GONE), end_of))),
                    Err(_) => None,
                },
            });
        }
        Ok(signs)
    }

    async fn remove(&self, known: &Known<Machine>, call: &Call<'_>) -> Result<Removal, ComputeError> {
        let id = known.marks.name(ID_LENGTH);
        let place = known.place.as_ref();
        let machine = place.map(|place| Made::long_ago(place.instance_id.clone()));
        let find = || self.find(&id, call);
        let delete = async |machine: Made| {
            let told = self.terminate(&machine.id).await?;
            Ok(machine.removal(call, told, ENDS_INTERVAL))
        };
        call.unmake("machine", machine, LISTED_WITHIN, find, delete).await
    }
}

impl Cudo {
    async fn image_for(&self, want: &MachineRequest) -> Result<Image, ComputeError> {
        let images = self.fetch_images().await?;
        let image = images.for_machine(!want.offer.instance.resources.gpus.is_empty());
        image.cloned().ok_or_else(|| {
            ComputeError::Refused("Cudo lists no image of Ubuntu that fits this machine".to_owned())
        })
    }

    async fn create(&self, want: &MachineRequest, id: &str, image: &Image) -> Result<(), ComputeError> {
        let resources = &want.offer.instance.resources;
        let ask = NewVm {
            vm_id: id,
            data_center_id: &want.offer.region,
            machine_type: &want.offer.instance.name,
            vcpus: resources.cpus,
            memory_gib: resources.memory_mib / 1024,
            gpus: resources.gpus.len(),
            boot_disk: BootDisk {
                id: format!("{id}_disk_id"),
                size_gib: (resources.disk.size_mib / 1024).max(image.size_gib),
                storage_class: "STORAGE_CLASS_NETWORK",
            },
            boot_disk_image_id: &image.id,
            custom_ssh_keys: &want.authorized_keys,
            start_script: start_script(image),
        };
        let made = self.client.create(&ask).await;
        made.map_err(|error| not_made(&error))
    }

    async fn find(&self, id: &str, call: &Call<'_>) -> Result<Option<Made>, ComputeError> {
        Ok(self.vm(id).await?.map(|vm| Made::now(vm.id, call)))
    }

    async fn vm(&self, id: &str) -> Result<Option<Vm>, ComputeError> {
        let found = self.client.vm(id).await;
        found.map_err(|error| compute_error(&error))
    }

    async fn vms(&self) -> Result<Vec<Vm>, ComputeError> {
        let all = self.client.vms().await;
        all.map_err(|error| compute_error(&error))
    }

    pub(crate) async fn terminate(&self, id: &str) -> Result<Removal, ComputeError> {
        let Some(vm) = self.vm(id).await? else {
            return Ok(Removal::Gone);
        };
        if vm.state != State::Deleting {
            let terminated = self.client.terminate(id).await;
            terminated.map_err(|error| compute_error(&error))?;
        }
        Ok(Removal::Underway { again: ENDS_INTERVAL })
    }

    pub(crate) async fn list_owned(&self) -> Result<Vec<Owned>, ComputeError> {
        let owned = |vm: Vm| {
            Some(Owned {
                kind: OwnedKind::Machine,
                mark: OwnedMark::of_name(&vm.id)?,
                name: vm.id.clone(),
                id: vm.id,
                region: vm.datacenter_id,
                price: None,
                made_at: vm.create_time.parse().ok(),
            })
        };
        let all = self.vms().await?.into_iter();
        Ok(all
            .filter(|vm| vm.state != State::Deleted)
            .filter_map(owned)
            .collect())
    }
}

const GONE: &str = "Cudo does not have the machine any more";

const fn end_of(vm: &Vm) -> Option<&'static str> {
    match vm.state {
        State::Failed => Some("Cudo could not start the machine"),
        State::Deleting | State::Deleted => Some("Cudo has ended the machine"),
        State::Active | State::Other => None,
    }
}

/// Codes of gRPC.
mod code {
    pub(super) const INVALID_ARGUMENT: i64 = 3;
    pub(super) const ALREADY_EXISTS: i64 = 6;
    pub(super) const RESOURCE_EXHAUSTED: i64 = 8;
    pub(super) const FAILED_PRECONDITION: i64 = 9;
}

/// The vendor has codes for kinds of errors, and tells in words the rest.
fn not_made(error: &ApiError) -> ComputeError {
    let usual = compute_error(error);
    let answer = told(error);
    let text = format!("{} (code {})", answer.message, answer.code);
    let lower = answer.message.to_ascii_lowercase();
    let says = |words: &[&str]| words.iter().any(|word| lower.contains(word));
    // Too many calls have the code of quotas.
    let is_pause = match error {
        ApiError::Status { retry_after, .. } => retry_after.is_some(),
        _ => false,
    };
    let is_rate = |word: &str| matches!(word, "rate" | "requests");
    if !usual.is_definite() || is_pause || lower.split(|c: char| !c.is_alphanumeric()).any(is_rate) {
        return usual;
    }
    match answer.code {
        // A machine of this id, or the disk of one that is going: looked for, and asked again.
        code::ALREADY_EXISTS => ComputeError::Unclear(text),
        code::RESOURCE_EXHAUSTED | code::FAILED_PRECONDITION if says(&["quota", "limit"]) => {
            ComputeError::NoQuota(text)
        }
        code::INVALID_ARGUMENT if says(&["host", "capacity", "available"]) => ComputeError::NoCapacity(text),
        // Such as no free addresses in the data center.
        code::FAILED_PRECONDITION if says(&["network", "full", "available"]) => {
            ComputeError::NoCapacity(text)
        }
        _ => usual,
    }
}

fn place(offer: &InstanceOfferWithAvailability, vm: Vm) -> JobProvisioningData {
    let internal_ip = Some(vm.internal_ip_address).filter(|address| !address.is_empty());
    JobProvisioningData {
        internal_ip,
        ..machine_place(offer, vm.id, vm.public_ip_address, "root", 22)
    }
}

#[cfg(test)]
mod tests {
    use http::StatusCode;

    use super::*;

    #[test]
    fn refusals_are_told_apart() {
        let told = |status: u16, code: i64, message: &str| {
            not_made(&ApiError::Status {
                api: "rest.compute.cudo.org".to_owned(),
                status: StatusCode::from_u16(status).unwrap(),
                body: format!(r#"{{"code":{code},"message":"{message}","details":[]}}"#),
                retry_after: None,
            })
        };
        assert!(matches!(
            told(400, 3, "no hosts available"),
            ComputeError::NoCapacity(_)
        ));
        assert!(matches!(
            told(400, 3, "invalid image id"),
            ComputeError::Refused(_)
        ));
        assert!(matches!(
            told(400, 9, "network is full"),
            ComputeError::NoCapacity(_)
        ));
        assert!(matches!(
            told(429, 8, "project quota exceeded"),
            ComputeError::NoQuota(_)
        ));
        assert!(matches!(
            told(429, 8, "slow down"),
            ComputeError::Throttled { .. }
        ));
        assert!(matches!(
            told(429, 8, "Rate limit exceeded: too many requests"),
            ComputeError::Throttled { .. }
        ));
        assert!(!told(500, 9, "network is full").is_definite());
        assert!(!told(409, 6, "disk already exists").is_definite());
        assert!(matches!(told(401, 16, "no token"), ComputeError::Credentials(_)));
        assert!(!told(500, 13, "no hosts").is_definite());
    }
}
