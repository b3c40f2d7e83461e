//! The life of a container: its login to the image registry, the sandbox, its command, and access by SSH.

use std::collections::HashMap;
use std::time::Duration;

use async_trait::async_trait;
use dstack_backend::Made;
use dstack_compute::{
    CONTAINER_SSH_PORT, Call, ComputeError, Container, ContainerRequest, Known, LISTED_WITHIN, Lifecycle,
    Removal, Sign, Step,
};
use dstack_model::instances::SshConnectionParams;
use dstack_model::offers::InstanceOfferWithAvailability;
use dstack_model::runs::JobProvisioningData;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::Daytona;
use crate::client::{Sandbox, SshAccess, Toolbox};
use crate::requests::{not_made, registry_of, sandbox, start_command, told};

/// Longest name of anything, as dstack 0.22.5 has it.
pub(crate) const NAME_LENGTH: usize = 63;

const LOGIN: &str = "registry login";
const SANDBOX: &str = "sandbox";
const COMMAND: &str = "command";
const ACCESS: &str = "SSH access";

const USER: &str = "root";

/// Pause while a sandbox starts: its image is built, which takes minutes.
const STARTS_INTERVAL: Duration = Duration::from_secs(10);

/// Pause while something is being taken away.
pub(crate) const ENDS_INTERVAL: Duration = Duration::from_secs(5);

/// States that a sandbox does not come back from by itself.
const ENDS: &[&str] = &[
    "error",
    "build_failed",
    "destroyed",
    "destroying",
    "stopped",
    "stopping",
    "archived",
    "archiving",
    "paused",
    "pausing",
];

/// What dstack 0.22.5 has stored of a sandbox, beside its id.
#[derive(Debug, Default, Deserialize)]
struct Stored {
    #[serde(default)]
    registry_id: Option<String>,
}

/// Through which server a sandbox is reached. The user is a token, and secret.
#[derive(Clone, Serialize, Deserialize)]
struct Access {
    host: String,
    port: i64,
    token: String,
}

#[async_trait]
impl Lifecycle<Container> for Daytona {
    async fn ensure(
        &self,
        want: &ContainerRequest,
        call: &Call<'_>,
    ) -> Result<Step<JobProvisioningData>, ComputeError> {
        let name = want.marks.name(NAME_LENGTH);
        // What can never be made costs no call.
        let body = sandbox(want, &name)?;
        if let Some(login) = &want.workload.registry {
            let record = json!({"name": name, "url": registry_of(&want.workload.image),
                "username": login.username, "password": login.password.expose()});
            let create = async || {
                let made = self.client.create_registry(&record).await;
                Ok(Made::now(made.map_err(|error| not_made(&error))?, call))
            };
            let find = || self.find_registry(&name, call);
            call.make::<Made, _, _>(LOGIN, LISTED_WITHIN, create, find)
                .await?;
        }
        let create = async || {
            let made = self.client.create_sandbox(&body).await;
            // It counts towards the limits of the organization.
            self.facts.forget();
            Ok(Made::now(made.map_err(|error| not_made(&error))?, call))
        };
        let find = || self.find_sandbox(&name, call);
        let made: Made = call.make(SANDBOX, LISTED_WITHIN, create, find).await?;
        let waiting = |doing: String| Step::Underway {
            seen: None,
            doing,
            again: STARTS_INTERVAL,
        };
        let Some(found) = told(self.client.sandbox(&made.id).await)? else {
            return match made.is_new(call) {
                true => Ok(waiting("the sandbox is listed".to_owned())),
                false => Err(ComputeError::Broken(
                    "Daytona does not have the sandbox any more".to_owned(),
                )),
            };
        };
        if let Some(end) = end_of(&found) {
            return Err(ComputeError::Broken(end));
        }
        if found.state != "started" {
            return Ok(waiting(format!("the sandbox starts ({})", found.state)));
        }
        let toolbox = told(self.client.toolbox(&found.id).await)?;
        self.start(&toolbox, want, call).await?;
        let access = async || {
            let access = told(self.client.create_ssh_access(&found.id).await)?;
            access_of(&access).ok_or_else(|| {
                // Another token would say the same.
                ComputeError::Broken(
                    "Daytona tells in a form that is not understood how the sandbox is reached".to_owned(),
                )
            })
        };
        // A later token ends an earlier one: once it is made, it is the last.
        let access: Access = call.make_once(ACCESS, access).await?;
        Ok(Step::Ready(place(&want.offer, found.id, access)))
    }

    async fn look(
        &self,
        known: &[Known<Container>],
    ) -> Result<Vec<Option<Sign<JobProvisioningData>>>, ComputeError> {
        let listed = told(self.client.sandboxes().await)?;
        let listed: HashMap<String, Sandbox> = listed
            .into_iter()
            .map(|found| (found.id.clone(), found))
            .collect();
        let mut signs = Vec::with_capacity(known.len());
        for known in known {
            let Some(place) = &known.place else {
                signs.push(None);
                continue;
            };
            let sign = match listed.get(&place.instance_id) {
                Some(found) => Some(sign_of(found)),
                // One that was evicted, or one that is not listed yet.
                None => match self.client.sandbox(&place.instance_id).await {
                    Ok(Some(found)) => Some(sign_of(&found)),
                    Ok(None) => Some(Sign::Lost(
                        "Daytona does not have the sandbox any more".to_owned(),
                    )),
                    // Of the others it is told how they are.
                    Err(error) => {
                        tracing::debug!(sandbox.id = place.instance_id, %error, "Daytona does not tell how a sandbox is");
                        None
                    }
                },
            };
            signs.push(sign);
        }
        Ok(signs)
    }

    async fn remove(&self, known: &Known<Container>, call: &Call<'_>) -> Result<Removal, ComputeError> {
        let name = known.marks.name(NAME_LENGTH);
        let place = known.place.as_ref();
        let stored = place.and_then(|place| place.backend_data.as_deref());
        let stored: Stored = stored
            .and_then(|stored| serde_json::from_str(stored).ok())
            .unwrap_or_default();
        let made = place.map(|place| Made::long_ago(place.instance_id.clone()));
        let find = || self.find_sandbox(&name, call);
        let delete =
            async |made: Made| Ok(made.removal(call, self.delete_sandbox(&made.id).await?, ENDS_INTERVAL));
        let removal = call.unmake(SANDBOX, made, LISTED_WITHIN, find, delete).await?;
        if removal != Removal::Gone {
            return Ok(removal);
        }
        // They are gone with the sandbox.
        for piece in [COMMAND, ACCESS] {
            let find = async || Ok(Some(Value::Null));
            let forget = async |_: Value| Ok(Removal::Gone);
            call.unmake(piece, None, Duration::ZERO, find, forget).await?;
        }
        let login = stored.registry_id.map(Made::long_ago);
        let find = || self.find_registry(&name, call);
        let delete = async |login: Made| {
            let told = self.delete_registry(&login.id).await?;
            Ok(login.removal(call, told, ENDS_INTERVAL))
        };
        call.unmake(LOGIN, login, LISTED_WITHIN, find, delete).await
    }
}

/// A proxy stands before the toolbox of a sandbox, which has just been started: whatever is refused there may work soon.
fn not_yet(error: ComputeError) -> ComputeError {
    match error {
        ComputeError::Refused(text) | ComputeError::Credentials(text) => ComputeError::NotReady(text),
        other => other,
    }
}

impl Daytona {
    /// Runs the script, once, in a session of the sandbox.
    async fn start(
        &self,
        toolbox: &Toolbox,
        want: &ContainerRequest,
        call: &Call<'_>,
    ) -> Result<(), ComputeError> {
        let commands = match told(toolbox.commands().await).map_err(not_yet)? {
            Some(commands) => commands,
            None => {
                told(toolbox.create_session().await).map_err(not_yet)?;
                Vec::new()
            }
        };
        let run = async || {
            let begun = told(toolbox.run(&start_command(&want.workload)).await);
            begun.map_err(not_yet)
        };
        let find = async || Ok(commands.first().map(|_| ()));
        call.make::<(), _, _>(COMMAND, Duration::ZERO, run, find).await?;
        match commands
            .iter()
            .find_map(|command| Some((&command.id, command.exit_code?)))
        {
            Some((id, code)) => Err(ComputeError::Broken(format!(
                "the container has ended with code {code}: see command {id} of the sandbox's sessions in Daytona"
            ))),
            None => Ok(()),
        }
    }

    async fn find_registry(&self, name: &str, call: &Call<'_>) -> Result<Option<Made>, ComputeError> {
        let all = told(self.client.registries().await)?;
        let found = all.into_iter().find(|registry| registry.name == name);
        Ok(found.map(|registry| Made::now(registry.id, call)))
    }

    /// The list tells whether it is gone.
    pub(crate) async fn delete_registry(&self, id: &str) -> Result<Removal, ComputeError> {
        told(self.client.delete_registry(id).await)?;
        let all = told(self.client.registries().await)?;
        Ok(match all.iter().any(|registry| registry.id == id) {
            true => Removal::Underway { again: ENDS_INTERVAL },
            false => Removal::Gone,
        })
    }

    async fn find_sandbox(&self, name: &str, call: &Call<'_>) -> Result<Option<Made>, ComputeError> {
        let found = told(self.client.sandbox(name).await)?;
        let found = found.filter(|found| found.name == name && found.state != "destroyed");
        Ok(found.map(|found| Made::now(found.id, call)))
    }

    pub(crate) async fn delete_sandbox(&self, id: &str) -> Result<Removal, ComputeError> {
        let is_there = |found: &Sandbox| found.state != "destroyed";
        match told(self.client.sandbox(id).await)? {
            Some(found) if is_there(&found) && found.state != "destroying" => {
                told(self.client.delete_sandbox(id).await)?;
            }
            Some(_) => {}
            None => return Ok(Removal::Gone),
        }
        let left = told(self.client.sandbox(id).await)?;
        Ok(match left.as_ref().is_some_and(is_there) {
            true => Removal::Underway { again: ENDS_INTERVAL },
            false => Removal::Gone,
        })
    }
}

/// Why a sandbox will never work (again).
fn end_of(found: &Sandbox) -> Option<String> {
    if found.spot_evicted_at.is_some() {
        return Some("Daytona has taken the spot sandbox away: its GPUs are used on demand".to_owned());
    }
    let state = found.state.as_str();
    ENDS.contains(&state).then(
        || match found.error_reason.as_deref().filter(|why| !why.is_empty()) {
            Some(why) => format!("Daytona has the sandbox in state {state}: {why}"),
            None => format!("Daytona has the sandbox in state {state}"),
        },
    )
}

fn sign_of(found: &Sandbox) -> Sign<JobProvisioningData> {
    end_of(found).map_or(Sign::Well, Sign::Lost)
}

/// Host and port of `ssh -p 22 <token>@ssh.app.daytona.io`, which is read and never run.
fn access_of(access: &SshAccess) -> Option<Access> {
    let mut words = access.ssh_command.split_whitespace();
    if words.next() != Some("ssh") || access.token.is_empty() {
        return None;
    }
    let (mut host, mut port) = (None, 22);
    while let Some(word) = words.next() {
        match word {
            "-p" => port = words.next()?.parse().ok()?,
            word => host = Some(word.rsplit_once('@')?.1).filter(|host| !host.is_empty()),
        }
    }
    (1..=65_535).contains(&port).then_some(())?;
    Some(Access {
        host: host?.to_owned(),
        port,
        token: access.token.clone(),
    })
}

fn place(offer: &InstanceOfferWithAvailability, id: String, access: Access) -> JobProvisioningData {
    JobProvisioningData {
        backend: offer.backend,
        base_backend: None,
        instance_type: (*offer.instance).clone(),
        instance_id: id,
        hostname: Some("localhost".to_owned()),
        internal_ip: None,
        public_ip_enabled: true,
        instance_network: None,
        region: offer.region.to_string(),
        availability_zone: None,
        reservation: None,
        price: offer.price,
        username: USER.to_owned(),
        ssh_port: Some(i64::from(CONTAINER_SSH_PORT)),
        dockerized: false,
        ssh_proxy: Some(SshConnectionParams {
            hostname: access.host,
            username: access.token,
            port: access.port,
        }),
        backend_data: None,
        gpu_driver: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reached(command: &str) -> Option<(String, i64)> {
        let access = access_of(&SshAccess {
            token: "abc".to_owned(),
            ssh_command: command.to_owned(),
        });
        access.map(|access| (access.host, access.port))
    }

    #[test]
    fn a_sandbox_is_reached_as_the_command_says() {
        let host = "ssh.app.daytona.io".to_owned();
        for (command, expected) in [
            ("ssh -p 22 abc@ssh.app.daytona.io", Some((host.clone(), 22))),
            ("ssh abc@ssh.app.daytona.io -p 2222", Some((host.clone(), 2222))),
            ("ssh abc@ssh.app.daytona.io", Some((host, 22))),
            ("ssh -p x abc@h", None),
            ("ssh -p 0 abc@h", None),
            ("ssh abc@", None),
            ("ssh h", None),
            ("curl abc@h", None),
        ] {
            assert_eq!(reached(command), expected, "{command}");
        }
    }
}
