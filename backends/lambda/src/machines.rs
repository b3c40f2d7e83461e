use std::time::Duration;

use async_trait::async_trait;
use dstack_backend::{Made, bare_key, compute_error, machine_place, not_asked};
use dstack_compute::{
    Call, ComputeError, Known, LISTED_WITHIN, Lifecycle, Machine, MachineRequest, Owned, OwnedKind,
    OwnedMark, Removal, Sign, Step,
};
use dstack_http::ApiError;
use dstack_model::runs::JobProvisioningData;
use sha2::{Digest as _, Sha256};

use crate::Lambda;
use crate::client::{Instance, Launch, NotLaunched, Problem, SshKey, Status};
use crate::user_data::user_data;

/// Longest name of a machine; the API takes 64 characters.
const NAME_LENGTH: usize = 60;

/// The user that Lambda's images have.
const USER: &str = "ubuntu";

const SSH_PORT: i64 = 22;

/// Pause while a machine boots, which takes minutes: the API takes one request a second for all that the account has.
const BOOT_INTERVAL: Duration = Duration::from_secs(20);

/// Pause while a machine is being taken away.
const END_INTERVAL: Duration = Duration::from_secs(10);

#[async_trait]
impl Lifecycle<Machine> for Lambda {
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
                async || Ok(Made::now(self.launch(want, &name).await?, call)),
                || self.find(&name, call),
            )
            .await?;
        let instance = self.instance_being_made(&made.id).await?;
        let underway = |doing: &str| Step::Underway {
            seen: None,
            doing: doing.to_owned(),
            again: BOOT_INTERVAL,
        };
        let Some(instance) = instance else {
            return match made.is_new(call) {
                true => Ok(underway("the machine is listed")),
                false => Err(ComputeError::Broken(gone())),
            };
        };
        if let Some(end) = end_of(&instance) {
            return Err(ComputeError::Broken(end));
        }
        Ok(match (instance.status, instance.ip) {
            (Status::Active, Some(ip)) => {
                Step::Ready(machine_place(&want.offer, made.id, ip.clone(), USER, SSH_PORT))
            }
            (Status::Unhealthy, _) => underway("the machine, which Lambda calls unhealthy, is well"),
            _ => underway("the machine boots"),
        })
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
            Ok(machine.removal(call, told, END_INTERVAL))
        };
        call.unmake("machine", machine, LISTED_WITHIN, find, delete).await
    }
}

impl Lambda {
    async fn launch(&self, want: &MachineRequest, name: &str) -> Result<String, ComputeError> {
        let key = want.authorized_keys.first().ok_or_else(|| {
            ComputeError::Refused("Lambda launches no machine without a public key".to_owned())
        })?;
        let key_name = self.known_key(key).await.map_err(not_asked)?;
        let launch = Launch {
            region_name: &want.offer.region,
            instance_type_name: &want.offer.instance.name,
            ssh_key_names: [&key_name],
            name,
            user_data: &user_data(&want.authorized_keys),
        };
        let id = self.client.launch(&launch).await.map_err(|error| match error {
            NotLaunched::NotYet(after) => ComputeError::Throttled {
                after,
                details: "Lambda launches one machine in 12 seconds".to_owned(),
            },
            NotLaunched::Failed(error) => launch_error(&error),
        });
        if matches!(id, Err(ComputeError::Refused(_))) {
            // Somebody may have removed the key.
            self.keys.lock().await.clear();
        }
        let id = id?;
        // It says that it launched something: that is looked for.
        id.ok_or_else(|| ComputeError::Unclear("Lambda names no machine that it launched".to_owned()))
    }

    /// What is new may not be listed yet; `None`: it could not be asked.
    async fn sign(&self, id: &str, all: &[Instance]) -> Option<Sign<JobProvisioningData>> {
        let instance = match all.iter().find(|instance| instance.id == id) {
            Some(listed) => Some(listed.clone()),
            None => self.instance(id).await.ok()?,
        };
        Some(match instance {
            None => Sign::Lost(gone()),
            Some(instance) => end_of(&instance).map_or(Sign::Well, Sign::Lost),
        })
    }

    /// [`Lambda::registered_key`], which is asked for once: with many machines, lists of keys would take all requests.
    async fn known_key(&self, key: &str) -> Result<String, ComputeError> {
        let mut known = self.keys.lock().await;
        if let Some(name) = known.get(key) {
            return Ok(name.clone());
        }
        let name = self.registered_key(key).await?;
        known.insert(key.to_owned(), name.clone());
        Ok(name)
    }

    /// The name under which the account has the key, which is registered if it has to be. All machines with this key share it, also
    /// those of other servers: it is never removed.
    async fn registered_key(&self, key: &str) -> Result<String, ComputeError> {
        if let Some(name) = self.name_of_key(key).await? {
            return Ok(name);
        }
        let name = key_name(key);
        match self.client.add_ssh_key(&name, key).await {
            Ok(()) => Ok(name),
            // Another server may have registered it meanwhile.
            Err(error) => match self.name_of_key(key).await? {
                Some(name) => Ok(name),
                None => Err(compute_error(&error)),
            },
        }
    }

    async fn name_of_key(&self, key: &str) -> Result<Option<String>, ComputeError> {
        let keys = self.client.ssh_keys().await;
        let keys = keys.map_err(|error| compute_error(&error))?;
        let is_same = |other: &SshKey| bare_key(&other.public_key) == bare_key(key);
        Ok(keys.into_iter().find(is_same).map(|same| same.name))
    }

    async fn instances(&self) -> Result<Vec<Instance>, ComputeError> {
        let all = self.client.instances().await;
        all.map_err(|error| compute_error(&error))
    }

    /// As the last list has it, which all machines share that are being made.
    async fn instance_being_made(&self, id: &str) -> Result<Option<Instance>, ComputeError> {
        let listed = self.listed.get(|| self.instances()).await?;
        match listed.iter().find(|instance| instance.id == id) {
            Some(instance) => Ok(Some(instance.clone())),
            None => self.instance(id).await,
        }
    }

    async fn instance(&self, id: &str) -> Result<Option<Instance>, ComputeError> {
        let found = self.client.instance(id).await;
        found.map_err(|error| compute_error(&error))
    }

    /// One of this name that is not over.
    async fn find(&self, name: &str, call: &Call<'_>) -> Result<Option<Made>, ComputeError> {
        let mut all = self.instances().await?.into_iter();
        let is_it =
            |instance: &Instance| instance.name.as_deref() == Some(name) && end_of(instance).is_none();
        Ok(all.find(is_it).map(|instance| Made::now(instance.id, call)))
    }

    pub(crate) async fn terminate(&self, id: &str) -> Result<Removal, ComputeError> {
        let status = self.instance(id).await?.map(|instance| instance.status);
        if matches!(status, None | Some(Status::Terminated)) {
            return Ok(Removal::Gone);
        }
        if status != Some(Status::Terminating) {
            let terminated = self.client.terminate(id).await;
            terminated.map_err(|error| compute_error(&error))?;
        }
        Ok(Removal::Underway { again: END_INTERVAL })
    }

    pub(crate) async fn list_owned(&self) -> Result<Vec<Owned>, ComputeError> {
        let owned = |instance: Instance| {
            if instance.status == Status::Terminated {
                return None;
            }
            let name = instance.name?;
            Some(Owned {
                kind: OwnedKind::Machine,
                id: instance.id,
                mark: OwnedMark::of_name(&name)?,
                name,
                region: instance.region.name,
                price: Some(instance.instance_type.price_cents_per_hour / 100.0),
                made_at: None,
            })
        };
        Ok(self.instances().await?.into_iter().filter_map(owned).collect())
    }
}

/// What a refusal to launch means, by the API's code for it.
fn launch_error(error: &ApiError) -> ComputeError {
    let Some(problem) = Problem::of(error).filter(|_| error.is_definite()) else {
        return compute_error(error);
    };
    match problem.code.as_str() {
        "instance-operations/launch/insufficient-capacity" => ComputeError::NoCapacity(problem.message),
        "global/quota-exceeded" => ComputeError::NoQuota(problem.message),
        // With 403, but not about the key: no launch works until somebody corrects the address for bills.
        "global/invalid-address" => ComputeError::Refused(problem.message),
        _ => compute_error(error),
    }
}

/// Why an instance will never work (again).
fn end_of(instance: &Instance) -> Option<String> {
    match instance.status {
        Status::Terminating | Status::Terminated => Some("the machine was terminated at Lambda".to_owned()),
        Status::Preempted => Some("Lambda has preempted the machine".to_owned()),
        Status::Booting | Status::Active | Status::Unhealthy | Status::Other => None,
    }
}

fn gone() -> String {
    "Lambda does not have the machine any more".to_owned()
}

/// The name that a key gets, the same at each server.
fn key_name(key: &str) -> String {
    let digest = hex::encode(Sha256::digest(bare_key(key)));
    let digits: String = digest.chars().take(16).collect();
    format!("dstack-{digits}")
}

#[cfg(test)]
mod tests {
    use http::StatusCode;

    use super::*;

    fn refused(status: u16, code: &str) -> ComputeError {
        launch_error(&ApiError::Status {
            api: "cloud.lambda.ai".to_owned(),
            status: StatusCode::from_u16(status).unwrap(),
            body: serde_json::json!({"error": {"code": code, "message": "why"}}).to_string(),
            retry_after: None,
        })
    }

    #[test]
    fn refusals_are_told_apart_by_their_code() {
        let why = || "why".to_owned();
        let no_capacity = "instance-operations/launch/insufficient-capacity";
        assert_eq!(refused(400, no_capacity), ComputeError::NoCapacity(why()));
        assert!(!refused(503, no_capacity).is_definite());
        assert_eq!(
            refused(400, "global/quota-exceeded"),
            ComputeError::NoQuota(why())
        );
        assert_eq!(
            refused(403, "global/invalid-address"),
            ComputeError::Refused(why())
        );
        for code in ["global/account-inactive", "global/forbidden"] {
            assert!(
                matches!(refused(403, code), ComputeError::Credentials(_)),
                "{code}"
            );
        }
        for code in ["global/invalid-parameters", "provider/something"] {
            assert!(matches!(refused(400, code), ComputeError::Refused(_)), "{code}");
        }
    }

    #[test]
    fn a_key_has_one_name_whatever_its_comment_is() {
        let name = key_name("ssh-ed25519 AAAA somebody");
        assert_eq!(name, key_name("ssh-ed25519  AAAA"));
        assert_ne!(name, key_name("ssh-ed25519 AAAB"));
        assert_eq!(name.len(), "dstack-".len() + 16);
    }
}
