//! Brings the job agent into a container of a cloud, whose first script has brought up an SSH server and waits for it.
//!
//! The script becomes the runner, which serves SSH itself from then on, on the same port and with the same host key.

use std::time::Duration;

use dstack_agent_api::container::{ContainerPaths, files};
use dstack_agent_api::http::CallError;
use dstack_agent_api::runner_client::RunnerClient;
use dstack_model::reach::Reach;
use dstack_system::{Secret, chain};
use dstack_units::human;
use tokio::time::{Instant, sleep_until, timeout};

use super::host::{As, Host, unreached};
use super::package::Package;
use super::probe::{ROOM, free_bytes};
use super::push::{Pushed, push};
use super::script::{Said, script};
use super::{DeployError, Deployer, HostPaths, Progress, Stage, pinned};

const LOOK_LIMIT: Duration = Duration::from_secs(30);
/// The script looks every second, and ends the SSH server before it becomes the runner.
const START_LIMIT: Duration = Duration::from_secs(60);
/// There is no event for a port that begins to be listened to.
const AGAIN: Duration = Duration::from_millis(300);

/// A script beside another agent has a folder of its own, by the port of its SSH server (`bootstrap/container.sh`).
const FIND_STATE: &str = r#"
connection=${SSH_CONNECTION:-}
[ ! -d "$state-${connection##* }" ] || state=$state-${connection##* }
"#;

const LOOK: &str = r#"
for tool in sha256sum readlink cut sed tr tail grep wc; do have "$tool" || say lacks "$tool"; done
say arch "$(uname -m)"
[ -f "$state/host_key" ] && say waits yes
[ -f "$state/$taken" ] && say taken yes
room=$programs
while [ -n "$room" ] && [ ! -d "$room" ]; do room=${room%/*}; done
say disk "$(df -Pk "${room:-/}" | tail -n 1)"
"#;

const START: &str = r#"
if [ -f "$state/$taken" ]; then say state taken; return 0; fi
if [ ! -x "$agent" ]; then say state missing; return 0; fi
umask 077
put() { # path content
  said=$({ printf '%s' "$2" > "$1.new" && mv -f "$1.new" "$1"; } 2>&1) || unwritten "$1" "$said"
}
put "$state/$token_file" "$token"
put "$state/$start" "$agent"
tries=0
until [ -f "$state/$taken" ]; do
  [ "$tries" -lt 40 ] || fail "the first script of the container does not take the agent: see the container's log"
  tries=$((tries + 1))
  sleep 1
done
say state taken
"#;

/// How the agent is brought into a container.
#[derive(Debug, Clone)]
pub struct ContainerDeployment {
    /// The way there, with the host keys that are known beforehand.
    pub reach: Reach,
    /// Where things are in the container: as its script has it.
    pub paths: ContainerPaths,
    /// TCP port of the runner on the loopback interface: as the script has it.
    pub runner_port: u16,
    /// What calls to the runner must bring.
    pub token: Secret,
}

/// What a step came to.
#[derive(Debug, Clone)]
pub enum ContainerOutcome {
    /// The next step follows.
    Underway {
        /// How far it is.
        progress: Progress,
        /// What was done, for people; empty: nothing worth telling.
        done: String,
    },
    /// The runner answers.
    Ready {
        /// The way there, with the host keys that were seen.
        reach: Reach,
    },
}

impl Deployer {
    /// Makes the step that `progress` says is next; `None`: the first. Every step may be cut off anywhere, and made again.
    ///
    /// # Errors
    /// The step failed, and nothing of it may be relied on.
    pub async fn container_step(
        &self,
        deployment: &ContainerDeployment,
        progress: Option<Progress>,
    ) -> Result<ContainerOutcome, DeployError> {
        let progress = progress.unwrap_or_default();
        let reach = pinned(&deployment.reach, &progress.host_keys);
        let is_known = progress.host_keys.len() == reach.hops().count() && !progress.machine.is_empty();
        let container = Container {
            deployer: self,
            deployment,
            reach,
        };
        match progress.next {
            Stage::Push if is_known => container.push(progress).await,
            Stage::Install if is_known => container.start(progress).await,
            Stage::Report if is_known => container.report().await,
            _ => container.look().await,
        }
    }
}

struct Container<'a> {
    deployer: &'a Deployer,
    deployment: &'a ContainerDeployment,
    /// The way there, with the host keys that were seen.
    reach: Reach,
}

impl Container<'_> {
    async fn open(&self) -> Result<Host, DeployError> {
        Host::open(self.deployer, &self.reach).await
    }

    /// What the container is, and whether its script waits for the agent.
    async fn look(&self) -> Result<ContainerOutcome, DeployError> {
        let pool = &self.deployer.pool;
        let host = self.open().await?;
        let paths = &self.deployment.paths;
        let variables = [
            ("state", paths.state.as_str()),
            ("programs", paths.programs.as_str()),
            ("taken", files::TAKEN),
        ];
        let text = script(&variables, &format!("{FIND_STATE}{LOOK}"));
        let said = host
            .run(As::Root, LOOK_LIMIT, "looking at the container", &text)
            .await?;
        let machine = said.get("arch").to_owned();
        let package = self.deployer.packages.of(&self.deployer.agents, &machine).await?;
        let is_taken = said.is("taken");
        if !is_taken && let Some(problem) = problem(&said, paths, &package) {
            return Err(host.transient(problem));
        }
        let connection = pool
            .connection(&self.reach)
            .await
            .map_err(|error| unreached(&error))?;
        let host_keys = connection.host_keys();
        // The connection goes on as that to a container whose key is known.
        pool.pin(&self.reach, &pinned(&self.reach, &host_keys));
        let progress = Progress {
            next: match is_taken {
                true => Stage::Report,
                false => Stage::Push,
            },
            host_keys,
            machine,
        };
        Ok(underway(progress, "the container can be used"))
    }

    async fn push(&self, progress: Progress) -> Result<ContainerOutcome, DeployError> {
        let package = self
            .deployer
            .packages
            .of(&self.deployer.agents, &progress.machine)
            .await?;
        let paths = HostPaths {
            programs: self.deployment.paths.programs.clone(),
            ..self.deployer.paths.clone()
        };
        let host = self.open().await?;
        Ok(match push(&host, &paths, &package).await? {
            Pushed::Whole(done) => underway(progress.then(Stage::Install), done),
            Pushed::Partly => underway(progress, ""),
        })
    }

    /// Hands over the token, and has the script become the runner.
    async fn start(&self, progress: Progress) -> Result<ContainerOutcome, DeployError> {
        let package = self
            .deployer
            .packages
            .of(&self.deployer.agents, &progress.machine)
            .await?;
        let paths = &self.deployment.paths;
        let agent = format!("{}/{}", paths.programs, package.name());
        let variables = [
            ("state", paths.state.as_str()),
            ("taken", files::TAKEN),
            ("token_file", files::TOKEN),
            ("start", files::START),
            ("token", self.deployment.token.expose()),
            ("agent", &agent),
        ];
        let host = self.open().await?;
        let text = script(&variables, &format!("{FIND_STATE}{START}"));
        let said = host
            .run(As::Root, START_LIMIT, "starting the runner", &text)
            .await?;
        if said.get("state") == "missing" {
            return Ok(underway(
                progress.then(Stage::Push),
                "the agent's file is missing",
            ));
        }
        // To the SSH server of the script, which has ended: the next one is to the runner.
        self.deployer.pool.forget(&self.reach);
        Ok(underway(progress.then(Stage::Report), "the runner was started"))
    }

    async fn report(&self) -> Result<ContainerOutcome, DeployError> {
        let port = self.deployment.runner_port;
        let connector = self.deployer.pool.connector(self.reach.clone(), port);
        let runner = RunnerClient::new(connector).with_token(self.deployment.token.clone());
        let mut last = String::new();
        let answered = timeout(self.deployer.paths.patience, async {
            loop {
                let began = Instant::now();
                match runner.healthcheck().await {
                    Ok(_) => return Ok(()),
                    Err(error) if is_of_another_job(&error) => {
                        return Err(DeployError::Refused(format!(
                            "{}: the runner there is that of another job",
                            self.reach.host.host
                        )));
                    }
                    Err(error) => last = chain(&error).to_string(),
                }
                sleep_until(began + AGAIN).await;
            }
        });
        match answered.await {
            Ok(answered) => answered?,
            Err(_) => {
                return Err(DeployError::Transient(format!(
                    "the runner does not answer: {last}. See the container's log"
                )));
            }
        }
        Ok(ContainerOutcome::Ready {
            reach: self.reach.clone(),
        })
    }
}

/// Whether the runner has shown that it is not this job's: its proof is wrong, or it wants another token (401) or none (404).
/// Whatever else is in the way may be gone when it is asked again.
fn is_of_another_job(error: &CallError) -> bool {
    match error {
        CallError::Unproven { status, .. } => {
            status.is_none_or(|status| matches!(status.as_u16(), 401 | 404))
        }
        _ => false,
    }
}

/// The first thing that keeps the container from being used.
fn problem(said: &Said, paths: &ContainerPaths, package: &Package) -> Option<String> {
    if !said.get("lacks").is_empty() {
        let lacks = said.all("lacks").replace('\n', ", ");
        return Some(format!(
            "these programs are missing in the image: {lacks}. Use one that has them"
        ));
    }
    if !said.is("waits") {
        return Some("its first script has not come to its end yet".to_owned());
    }
    let free = free_bytes(said.get("disk"))?;
    let room = package.size.saturating_mul(2).saturating_add(ROOM);
    (free < room).then(|| {
        format!(
            "{} are free where the agent goes ({}), and it needs {}: ask for a larger disk",
            human::bytes(free),
            paths.programs,
            human::bytes(room)
        )
    })
}

fn underway(progress: Progress, done: impl Into<String>) -> ContainerOutcome {
    ContainerOutcome::Underway {
        progress,
        done: done.into(),
    }
}

#[cfg(test)]
mod tests {
    use http::StatusCode;

    use super::*;

    #[test]
    fn only_a_wrong_proof_or_another_token_shows_that_a_runner_is_that_of_another_job() {
        let unproven = |status: Option<u16>| CallError::Unproven {
            call: "GET /api/healthcheck".to_owned(),
            status: status.and_then(|status| StatusCode::from_u16(status).ok()),
        };
        for status in [None, Some(401), Some(404)] {
            assert!(is_of_another_job(&unproven(status)), "{status:?}");
        }
        for status in [408, 429, 500, 502, 503, 504] {
            assert!(!is_of_another_job(&unproven(Some(status))), "{status}");
        }
        let late = CallError::Timeout {
            call: "GET /api/healthcheck".to_owned(),
            after: Duration::from_secs(1),
            connected: true,
        };
        assert!(!is_of_another_job(&late));
    }
}
