use std::time::Duration;

use async_trait::async_trait;
use dstack_backend::{
    Made, apt_install, bare_key, cloud_config, compute_error, machine_place, not_asked, one_line,
};
use dstack_compute::{
    Call, ComputeError, Known, LISTED_WITHIN, Lifecycle, Machine, MachineRequest, Owned, OwnedKind,
    OwnedMark, Removal, Sign, Step,
};
use dstack_http::ApiError;
use dstack_model::offers::InstanceOfferWithAvailability;
use dstack_model::runs::JobProvisioningData;
use dstack_units::AcceleratorVendor;
use http::StatusCode;

use crate::DigitalOcean;
use crate::client::{Droplet, NewDroplet, Status};

/// Longest name of a machine.
const NAME_LENGTH: usize = 60;

/// The user that the vendor's images have.
const USER: &str = "root";

const SSH_PORT: i64 = 22;

/// Pause while a machine starts, which takes about a minute.
const STARTS_INTERVAL: Duration = Duration::from_secs(10);

/// Pause while a machine is being taken away.
const ENDS_INTERVAL: Duration = Duration::from_secs(5);

/// That of Ubuntu, for images without Docker.
const DOCKER: &str = "docker.io";

#[async_trait]
impl Lifecycle<Machine> for DigitalOcean {
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
                async || Ok(Made::now(self.create(want, &name).await?, call)),
                || self.find(&name, call),
            )
            .await?;
        let starting = |doing: &str| Step::Underway {
            seen: None,
            doing: doing.to_owned(),
            again: STARTS_INTERVAL,
        };
        let droplet = match self.droplet(&made.id).await? {
            None if made.is_new(call) => return Ok(starting("the machine is listed")),
            None => return Err(ComputeError::Broken(self.is_gone())),
            Some(droplet) => droplet,
        };
        if let Some(end) = self.end_of(&droplet) {
            return Err(ComputeError::Broken(end));
        }
        Ok(match address(&droplet) {
            Some(hostname) => Step::Ready(machine_place(&want.offer, made.id, hostname, USER, SSH_PORT)),
            None => starting("the machine starts"),
        })
    }

    async fn look(
        &self,
        known: &[Known<Machine>],
    ) -> Result<Vec<Option<Sign<JobProvisioningData>>>, ComputeError> {
        let all = self.client.droplets(None).await;
        let all = all.map_err(|error| compute_error(&error))?;
        let mut signs = Vec::with_capacity(known.len());
        for known in known {
            let Some(place) = &known.place else {
                signs.push(None);
                continue;
            };
            let listed = all
                .iter()
                .find(|droplet| droplet.id.to_string() == place.instance_id);
            // While others end, a page may begin one entry later than the one before it ended.
            let droplet = match listed {
                Some(droplet) => Some(droplet.clone()),
                None => match self.droplet(&place.instance_id).await {
                    Ok(found) => found,
                    // It was not told.
                    Err(_) => {
                        signs.push(None);
                        continue;
                    }
                },
            };
            signs.push(Some(match droplet {
                None => Sign::Lost(self.is_gone()),
                Some(droplet) => self.end_of(&droplet).map_or(Sign::Well, Sign::Lost),
            }));
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
        call.unmake("machine", machine, LISTED_WITHIN, find, delete).await
    }
}

impl DigitalOcean {
    async fn create(&self, want: &MachineRequest, name: &str) -> Result<String, ComputeError> {
        let project = self.project_id().await.map_err(not_asked)?;
        let (image, missing) = image_for(&want.offer);
        let commands: Vec<String> = missing.into_iter().map(apt_install).collect();
        let new = NewDroplet {
            name,
            region: &want.offer.region,
            size: &want.offer.instance.name,
            image,
            key: self.key_id(want).await.map_err(not_asked)?,
            user_data: &cloud_config(&want.authorized_keys, &commands),
            project: project.as_deref(),
        };
        let made = self.client.create_droplet(&new).await;
        Ok(made.map_err(|error| not_created(&error))?.id.to_string())
    }

    /// The id of the project that the configuration names.
    async fn project_id(&self) -> Result<Option<String>, ComputeError> {
        let Some(name) = &self.project else {
            return Ok(None);
        };
        let all = self.client.projects().await;
        let all = all.map_err(|error| compute_error(&error))?;
        let found = all.into_iter().find(|project| project.name == *name);
        let missing = || {
            let text = format!("project_name: {} has no project `{name}`", self.title);
            ComputeError::Configuration(text)
        };
        Ok(Some(found.ok_or_else(missing)?.id))
    }

    /// The account's key with which the project logs in, which is added if it is not there. It stays, as other machines have it;
    /// machines without a key get a password that expires at once, and nobody can log in by a key then.
    async fn key_id(&self, want: &MachineRequest) -> Result<i64, ComputeError> {
        let key = want.authorized_keys.first().map_or("", String::as_str);
        if let Some(id) = self.find_key(key).await? {
            return Ok(id);
        }
        let name = format!("dstack-{}", want.owner.project);
        let added = self.client.add_key(&name, key).await;
        match added {
            Ok(added) => Ok(added.id),
            // Another call has added it meanwhile.
            Err(error) if error.status() == Some(StatusCode::UNPROCESSABLE_ENTITY) => {
                let found = self.find_key(key).await?;
                found.ok_or_else(|| compute_error(&error))
            }
            Err(error) => Err(compute_error(&error)),
        }
    }

    async fn find_key(&self, key: &str) -> Result<Option<i64>, ComputeError> {
        let all = self.client.keys().await;
        let all = all.map_err(|error| compute_error(&error))?;
        let wanted = bare_key(key);
        let found = all
            .into_iter()
            .find(|known| bare_key(&known.public_key) == wanted);
        Ok(found.map(|known| known.id))
    }

    async fn find(&self, name: &str, call: &Call<'_>) -> Result<Option<Made>, ComputeError> {
        let all = self.client.droplets(Some(name)).await;
        let all = all.map_err(|error| compute_error(&error))?;
        let found = all.into_iter().find(|droplet| droplet.name == name);
        Ok(found.map(|droplet| Made::now(droplet.id.to_string(), call)))
    }

    async fn droplet(&self, id: &str) -> Result<Option<Droplet>, ComputeError> {
        let found = self.client.droplet(id).await;
        found.map_err(|error| compute_error(&error))
    }

    pub(crate) async fn terminate(&self, id: &str) -> Result<Removal, ComputeError> {
        let refused = match self.client.delete_droplet(id).await {
            Ok(()) => None,
            // Mostly, something else is being done to it.
            Err(error) if error.status() == Some(StatusCode::UNPROCESSABLE_ENTITY) => Some(error),
            Err(error) => return Err(compute_error(&error)),
        };
        match (self.droplet(id).await?, refused) {
            (None, _) => Ok(Removal::Gone),
            (Some(_), None) => Ok(Removal::Underway { again: ENDS_INTERVAL }),
            (Some(_), Some(refused)) => Err(ComputeError::InUse(refused.to_string())),
        }
    }

    pub(crate) async fn list_owned(&self) -> Result<Vec<Owned>, ComputeError> {
        let all = self.client.droplets(None).await;
        let all = all.map_err(|error| compute_error(&error))?;
        let owned = |droplet: Droplet| {
            Some(Owned {
                kind: OwnedKind::Machine,
                id: droplet.id.to_string(),
                mark: OwnedMark::of_name(&droplet.name)?,
                name: droplet.name,
                region: droplet.region.map(|region| region.slug).unwrap_or_default(),
                price: droplet.size.map(|size| size.price_hourly),
                made_at: droplet.created_at,
            })
        };
        Ok(all.into_iter().filter_map(owned).collect())
    }

    fn is_gone(&self) -> String {
        format!("{} does not have the machine any more", self.title)
    }

    /// Why a machine will not work (again) by itself.
    fn end_of(&self, droplet: &Droplet) -> Option<String> {
        match droplet.status {
            Status::Off => Some("the machine was switched off".to_owned()),
            Status::Archive => Some(format!("{} has archived the machine", self.title)),
            Status::New | Status::Active | Status::Other => None,
        }
    }
}

/// All of these are answers 422: the words tell the quota from what would be refused each time. The rest is not to be had now.
fn not_created(error: &ApiError) -> ComputeError {
    if error.status() != Some(StatusCode::UNPROCESSABLE_ENTITY) {
        return compute_error(error);
    }
    let text = error.body().to_ascii_lowercase();
    let tells = |words: &[&str]| words.iter().any(|word| text.contains(word));
    let message = message(error.body());
    match () {
        () if tells(&["limit", "quota"]) => ComputeError::NoQuota(message),
        () if tells(&[
            "image",
            "key identifier",
            "ssh",
            "user_data",
            "user data",
            "name",
            "project",
        ]) =>
        {
            ComputeError::Refused(message)
        }
        () => ComputeError::NoCapacity(message),
    }
}

/// Errors are `{"id": ..., "message": ...}`.
fn message(body: &str) -> String {
    let read: Option<serde_json::Value> = serde_json::from_str(body).ok();
    let told = read
        .as_ref()
        .and_then(|read| read.get("message"))
        .and_then(|told| told.as_str());
    one_line(told.unwrap_or(body))
}

/// The address at which it is reached; `None`: not yet.
fn address(droplet: &Droplet) -> Option<String> {
    let networks = droplet.networks.v4.iter();
    let public = networks.into_iter().find(|network| network.kind == "public")?;
    (droplet.status == Status::Active).then(|| public.ip_address.clone())
}

/// The image, and the package that it lacks. Images for NVIDIA GPUs have drivers, Docker and the container toolkit; the vendor has one
/// for machines with eight GPUs, and one for all others.
fn image_for(offer: &InstanceOfferWithAvailability) -> (&'static str, Option<&'static str>) {
    let gpus = &offer.instance.resources.gpus;
    match (gpus.first(), gpus.len()) {
        (None, _) => ("ubuntu-24-04-x64", Some(DOCKER)),
        (Some(gpu), _) if gpu.vendor == Some(AcceleratorVendor::Amd) => ("gpu-amd-base", Some(DOCKER)),
        (Some(_), 8) => ("gpu-h100x8-base", None),
        (Some(_), _) => ("gpu-h100x1-base", None),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn a_machine_is_reached_at_its_public_address_when_it_runs() {
        let both = json!([{"type": "private", "ip_address": "10.0.0.2"}, {"type": "public", "ip_address": "192.0.2.7"}]);
        for (status, networks, hostname) in [
            ("active", both.clone(), Some("192.0.2.7")),
            ("new", both, None),
            (
                "active",
                json!([{"type": "private", "ip_address": "10.0.0.2"}]),
                None,
            ),
            ("active", json!([]), None),
        ] {
            let droplet: Value =
                json!({"id": 1, "name": "a", "status": status, "networks": {"v4": networks}});
            let droplet = serde_json::from_value(droplet).unwrap();
            assert_eq!(address(&droplet).as_deref(), hostname, "{status}");
        }
    }

    #[test]
    fn refusals_are_told_apart_by_their_words() {
        let told = |message: &str| {
            not_created(&ApiError::Status {
                api: "api.digitalocean.com".to_owned(),
                status: StatusCode::UNPROCESSABLE_ENTITY,
                body: json!({"id": "unprocessable_entity", "message": message}).to_string(),
                retry_after: None,
            })
        };
        let text = "Size is not available in this region.";
        assert_eq!(told(text), ComputeError::NoCapacity(text.to_owned()));
        let text = "creating this/these droplet(s) will exceed your droplet limit";
        assert_eq!(told(text), ComputeError::NoQuota(text.to_owned()));
        let text = "You specified an invalid image for Droplet creation.";
        assert_eq!(told(text), ComputeError::Refused(text.to_owned()));
    }
}
