use std::time::Duration;

use async_trait::async_trait;
use dstack_backend::{Made, compute_error, machine_place, not_asked};
use dstack_compute::{
    Call, ComputeError, Known, LISTED_WITHIN, Lifecycle, Machine, MachineRequest, Owned, OwnedKind,
    OwnedMark, Removal, Sign, Step,
};
use dstack_http::ApiError;
use dstack_model::runs::JobProvisioningData;
use serde_json::{Value, json};

use crate::TensorDock;
use crate::client::{Listed, NewServer, Reached, is_unclear, message};
use crate::offers::GPU_MODEL;

/// Longest name of a machine.
const NAME_LENGTH: usize = 60;

/// The user that the vendor's images have.
const USER: &str = "user";

/// Has drivers, Docker and the container toolkit.
const IMAGE: &str = "Ubuntu 22.04 LTS";

const SSH_PORT: &str = "22";

const MIB_OF_GIB: i64 = 1024;

/// Pause while a machine starts.
const STARTS_INTERVAL: Duration = Duration::from_secs(10);

/// Pause while a machine is being taken away.
const ENDS_INTERVAL: Duration = Duration::from_secs(5);

#[async_trait]
impl Lifecycle<Machine> for TensorDock {
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
                async || Ok(Made::now(self.deploy(want, &name).await?, call)),
                || self.find(&name, call),
            )
            .await?;
        let starting = |doing: &str| Step::Underway {
            seen: None,
            doing: doing.to_owned(),
            again: STARTS_INTERVAL,
        };
        let server = match self.server(&made.id).await? {
            None if made.is_new(call) => return Ok(starting("the machine is listed")),
            None => return Err(ComputeError::Broken(gone())),
            Some(server) => server,
        };
        match State::of(&server) {
            State::Over(end) => return Err(ComputeError::Broken(end)),
            State::Ending => return Err(ComputeError::Broken(gone())),
            State::Starts => return Ok(starting("the machine starts")),
            State::Runs => {}
        }
        let reached = self.client.reached(&made.id).await;
        let reached = reached.map_err(|error| compute_error(&error))?;
        Ok(match address(&reached) {
            Some((hostname, port)) => Step::Ready(machine_place(&want.offer, made.id, hostname, USER, port)),
            None => starting("the machine starts"),
        })
    }

    async fn look(
        &self,
        known: &[Known<Machine>],
    ) -> Result<Vec<Option<Sign<JobProvisioningData>>>, ComputeError> {
        let all = self.servers().await?;
        let mut signs = Vec::with_capacity(known.len());
        for known in known {
            let Some(place) = &known.place else {
                signs.push(None);
                continue;
            };
            let listed = all.iter().find(|server| server.id == place.instance_id);
            let server = match listed {
                Some(server) => Ok(Some(server.clone())),
                None => self.client.unlisted(&place.instance_id).await,
            };
            signs.push(match server.map(|server| server.as_ref().map(State::of)) {
                Ok(None | Some(State::Ending)) => Some(Sign::Lost(gone())),
                Ok(Some(State::Over(end))) => Some(Sign::Lost(end)),
                Ok(Some(State::Starts | State::Runs)) => Some(Sign::Well),
                // Of the others it is told how they are.
                Err(error) => {
                    tracing::debug!(machine.id = place.instance_id, %error, "TensorDock does not tell how a machine is");
                    None
                }
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
        call.unmake("machine", machine, LISTED_WITHIN, find, delete).await
    }
}

impl TensorDock {
    async fn deploy(&self, want: &MachineRequest, name: &str) -> Result<String, ComputeError> {
        let offer = &want.offer;
        let model = offer.backend_data.get(GPU_MODEL).and_then(Value::as_str);
        let gpu_model = model.ok_or_else(|| {
            ComputeError::Refused("the offer does not say what TensorDock calls its GPUs".to_owned())
        })?;
        let resources = &offer.instance.resources;
        let new = NewServer {
            name,
            hostnode: &offer.instance.name,
            gpu_model,
            gpu_count: resources.gpus.len(),
            vcpus: resources.cpus,
            ram_gb: resources.memory_mib / MIB_OF_GIB,
            storage_gb: resources.disk.size_mib / MIB_OF_GIB,
            ssh_port: self.free_port(&offer.instance.name).await.map_err(not_asked)?,
            operating_system: IMAGE,
            // Nobody logs in with it.
            password: &format!("{}Aa1!", self.kind.env.random.uuid().simple()),
            cloudinit: &cloudinit(&want.authorized_keys),
        };
        let deployed = self.client.deploy(&new).await;
        deployed.map_err(|error| {
            // What is free is not what it was.
            self.hosts.forget();
            not_deployed(&error)
        })
    }

    /// A port of the host that leads to no machine yet, by chance: others look for one too.
    async fn free_port(&self, hostnode: &str) -> Result<i64, ComputeError> {
        let hosts = self.client.hostnodes().await;
        let hosts = hosts.map_err(|error| compute_error(&error))?;
        let host = hosts.get(hostnode);
        let ports = host.map_or(&[][..], |host| host.networking.ports.as_slice());
        let count = u64::try_from(ports.len()).unwrap_or_default();
        let at = (count > 0).then(|| self.kind.env.random.below(count));
        let at = at.and_then(|at| usize::try_from(at).ok());
        let port = at.and_then(|at| ports.get(at)).copied();
        let text = match host {
            None => "TensorDock does not have the host any more",
            Some(_) => "the host has no port left",
        };
        port.ok_or_else(|| ComputeError::NoCapacity(text.to_owned()))
    }

    async fn find(&self, name: &str, call: &Call<'_>) -> Result<Option<Made>, ComputeError> {
        let all = self.servers().await?;
        let found = all.into_iter().find(|server| server.name == name);
        Ok(found.map(|server| Made::now(server.id, call)))
    }

    async fn servers(&self) -> Result<Vec<Listed>, ComputeError> {
        let all = self.client.servers().await;
        all.map_err(|error| compute_error(&error))
    }

    /// `None`: the list does not have it, and the API does not tell of it either.
    async fn server(&self, id: &str) -> Result<Option<Listed>, ComputeError> {
        let all = self.servers().await?;
        if let Some(server) = all.into_iter().find(|server| server.id == id) {
            return Ok(Some(server));
        }
        let unlisted = self.client.unlisted(id).await;
        unlisted.map_err(|error| compute_error(&error))
    }

    pub(crate) async fn terminate(&self, id: &str) -> Result<Removal, ComputeError> {
        match self.server(id).await?.as_ref().map(State::of) {
            None => return Ok(Removal::Gone),
            Some(State::Ending) => {}
            Some(_) => {
                let deleted = self.client.delete(id).await;
                deleted.map_err(|error| compute_error(&error))?;
            }
        }
        Ok(Removal::Underway { again: ENDS_INTERVAL })
    }

    pub(crate) async fn list_owned(&self) -> Result<Vec<Owned>, ComputeError> {
        let owned = |server: Listed| {
            Some(Owned {
                kind: OwnedKind::Machine,
                id: server.id,
                mark: OwnedMark::of_name(&server.name)?,
                name: server.name,
                region: String::new(),
                price: server.cost,
                made_at: None,
            })
        };
        Ok(self.servers().await?.into_iter().filter_map(owned).collect())
    }
}

/// How a machine is, by a status of which examples are known only: `Running`, `Outbid`, and those of API v2.
#[derive(Debug, PartialEq)]
enum State {
    Starts,
    Runs,
    Ending,
    /// Why it will never work (again).
    Over(String),
}

impl State {
    fn of(server: &Listed) -> Self {
        let status = server.status.to_ascii_lowercase();
        let has = |words: &[&str]| words.iter().any(|word| status.contains(word));
        match () {
            // The description has machines whose status is not told.
            () if status == "running" || status.is_empty() => Self::Runs,
            () if has(&["delet", "terminat"]) => Self::Ending,
            () if has(&["stop", "outbid", "error", "fail"]) => {
                Self::Over(format!("TensorDock says of the machine: {}", server.status))
            }
            () => Self::Starts,
        }
    }
}

/// The vendor tells in words why it makes none, of which few are known: mostly somebody else has taken what was free of the host.
fn not_deployed(error: &ApiError) -> ComputeError {
    let text = message(error);
    let lower = text.to_ascii_lowercase();
    let tells = |words: &[&str]| words.iter().any(|word| lower.contains(word));
    match compute_error(error) {
        ComputeError::Refused(_) if is_unclear(&lower) => ComputeError::Unclear(text),
        ComputeError::Refused(_) if tells(&["balance", "funds", "credit", "quota", "limit"]) => {
            ComputeError::NoQuota(text)
        }
        ComputeError::Refused(_) if tells(&["invalid", "required", "missing", "must be"]) => {
            ComputeError::Refused(text)
        }
        ComputeError::Refused(_) => ComputeError::NoCapacity(text),
        other => other,
    }
}

fn gone() -> String {
    "TensorDock does not have the machine any more".to_owned()
}

/// As dstack 0.19 had it: GPUs are lost to containers with systemd's groups when it reads its units again.
const DOCKER_CONFIG: &str = r#"{"runtimes": {"nvidia": {"path": "nvidia-container-runtime", "runtimeArgs": []}}, "exec-opts": ["native.cgroupdriver=cgroupfs"]}"#;

/// Lines of YAML that are put after the vendor's own: the keys may log in, and passwords may not.
fn cloudinit(authorized_keys: &[String]) -> String {
    let user = json!({"name": USER, "shell": "/bin/bash", "sudo": "ALL=(ALL) NOPASSWD:ALL",
        "ssh_authorized_keys": authorized_keys});
    let users = json!(["default", user]);
    format!(
        "ssh_pwauth: false\nusers: {users}\n\
        write_files:\n- path: /etc/docker/daemon.json\n  content: '{DOCKER_CONFIG}'\n"
    )
}

/// Where the machine's SSH server is reached; `None`: not yet.
fn address(reached: &Reached) -> Option<(String, i64)> {
    let hostname = reached.hostname.clone().filter(|name| !name.is_empty())?;
    let is_ssh = |inner: &Value| {
        inner
            .as_str()
            .map_or(inner.as_i64() == Some(22), |text| text == SSH_PORT)
    };
    let mut forwards = reached.port_forwards.iter();
    let (outer, _) = forwards.find(|(_, inner)| is_ssh(inner))?;
    Some((hostname, outer.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use http::StatusCode;

    use super::*;

    #[test]
    fn a_machine_is_reached_where_its_ports_lead() {
        for (reached, expected) in [
            (
                json!({"hostname": "192.0.2.7", "port_forwards": {"30117": "80", "30118": "22"}}),
                Some(30_118),
            ),
            (
                json!({"ip": "192.0.2.7", "port_forwards": {"30118": 22}}),
                Some(30_118),
            ),
            (json!({"ip": "192.0.2.7", "port_forwards": {}}), None),
            (json!({"hostname": "", "port_forwards": {"30118": "22"}}), None),
            (json!({"port_forwards": {"30118": "22"}}), None),
        ] {
            let found = address(&serde_json::from_value(reached.clone()).unwrap());
            assert_eq!(
                found,
                expected.map(|port| ("192.0.2.7".to_owned(), port)),
                "{reached}"
            );
        }
    }

    #[test]
    fn statuses_are_read_whatever_their_case() {
        let of = |status: &str| {
            let server = json!({"id": "i", "status": status});
            State::of(&serde_json::from_value(server).unwrap())
        };
        assert_eq!(of("Running"), State::Runs);
        assert_eq!(of("Deploying"), State::Starts);
        assert_eq!(of("deleting"), State::Ending);
        for status in ["StoppedDisassociated", "Outbid", "error"] {
            assert!(matches!(of(status), State::Over(_)), "{status}");
        }
    }

    #[test]
    fn refusals_are_told_apart_by_their_words() {
        let told = |status: StatusCode, text: &str| {
            not_deployed(&ApiError::Status {
                api: "marketplace.tensordock.com".to_owned(),
                status,
                body: json!({"success": false, "error": text}).to_string(),
                retry_after: None,
            })
        };
        let bad = StatusCode::BAD_REQUEST;
        let text = "Not enough GPUs on this hostnode";
        assert_eq!(told(bad, text), ComputeError::NoCapacity(text.to_owned()));
        let text = "Your balance must be at least $1";
        assert_eq!(told(bad, text), ComputeError::NoQuota(text.to_owned()));
        let text = "Invalid operating system";
        assert_eq!(told(bad, text), ComputeError::Refused(text.to_owned()));
        for text in ["Timeout of the hostnode", "Internal server error"] {
            assert_eq!(told(bad, text), ComputeError::Unclear(text.to_owned()));
        }
        let text = "Invalid internal_ports";
        assert_eq!(told(bad, text), ComputeError::Refused(text.to_owned()));
        let unclear = told(StatusCode::BAD_GATEWAY, "Invalid operating system");
        assert!(matches!(unclear, ComputeError::Unclear(_)), "{unclear:?}");
    }

    #[test]
    fn lines_for_the_first_start_are_yaml() {
        let lines = cloudinit(&["ssh-ed25519 AAAA a".to_owned()]);
        let mut lines = lines.lines();
        assert_eq!(lines.next(), Some("ssh_pwauth: false"));
        let users = lines.next().unwrap().strip_prefix("users: ").unwrap();
        let users: Value = serde_json::from_str(users).unwrap();
        assert_eq!(users[0], "default");
        assert_eq!(users[1]["ssh_authorized_keys"], json!(["ssh-ed25519 AAAA a"]));
        serde_json::from_str::<Value>(DOCKER_CONFIG).unwrap();
        assert!(!DOCKER_CONFIG.contains('\''));
    }
}
