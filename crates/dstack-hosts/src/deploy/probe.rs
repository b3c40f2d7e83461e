//! What a host is, and whether it can be used.

use std::time::Duration;

use dstack_agent_api::http::CallError;
use dstack_agent_api::shim::SERVICE as SHIM;
use dstack_model::reach::Reach;
use dstack_units::human;

use super::host::{As, Host, no_sudo, unreached};
use super::script::{Said, end_of, script};
use super::service::{OWN_TOKEN, token_file};
use super::{DeployError, Deployer, Deployment, HostPaths};
use crate::pool::ReachError;
use crate::pool::connector::PortError;

const LIMIT: Duration = Duration::from_secs(30);
/// Room beside the executable, which is there twice for a moment.
pub(super) const ROOM: u64 = 32 << 20;
/// Certificates and tokens are refused by clocks that differ by more.
const CLOCK_TOLERANCE: u64 = 300;
/// The oldest API of Docker that the agent speaks (Docker 19.03).
const OLDEST_DOCKER: (u32, u32) = (1, 40);

const WHO: &str = r#"
say arch "$(uname -m)"
say os "$(uname -s)"
say now "$(date +%s)"
[ "$(id -u)" != 0 ] || return 0
have sudo || { say sudo "sudo is not installed"; return 0; }
answer=$(sudo -n true 2>&1) || say sudo "${answer:-sudo asks for a password}"
"#;

const WHAT: &str = r#"
for tool in sha256sum readlink cut sed tr tail grep; do have "$tool" || say lacks "$tool"; done
room=$programs
while [ -n "$room" ] && [ ! -d "$room" ]; do room=${room%/*}; done
say disk "$(df -Pk "${room:-/}" | tail -n 1)"
[ -z "$docker_host" ] || export DOCKER_HOST="$docker_host"
if have docker; then
  if answer=$(limited docker version --format '{{.Server.APIVersion}}' 2>&1); then
    say docker answers
    said docker_api "$answer"
  else
    say docker silent
    say docker_said "$answer"
  fi
elif [ -S /var/run/docker.sock ]; then
  say docker answers
else
  say docker missing
fi
if have nvidia-smi || [ -e /dev/nvidiactl ]; then
  say nvidia yes
  for tool in nvidia-container-runtime-hook nvidia-container-runtime nvidia-container-cli nvidia-ctk; do
    have "$tool" && say toolkit yes
  done
  have docker && limited docker info --format '{{json .Runtimes}}' 2>/dev/null | grep -q nvidia && say toolkit yes
fi
for node in $gpu_devices; do [ -e "$node" ] || say awaited "$node"; done
is_own_token && say own yes
have ss && say listener "$(ss -Hltnp "sport = :$port" 2>/dev/null | head -n 1)"
return 0
"#;

/// See the script that starts the agent.
const RESTART: &str = r#": > "$home/restart-due" || fail "$home/restart-due cannot be written""#;

/// Of an agent that has the host's token and says nothing.
const HANGS: &str = "an agent runs there that takes connections and does not answer: it is started again";

/// What was found.
#[derive(Debug)]
pub(super) struct Found {
    /// As `uname -m` says.
    pub(super) machine: String,
    /// Architecture and agent of the host, as the event of this step tells them.
    pub(super) told: String,
}

/// Looks whether the host can be used.
pub(super) async fn probe(
    deployer: &Deployer,
    deployment: &Deployment,
    reach: &Reach,
) -> Result<Found, DeployError> {
    let host = Host::open(deployer, reach).await?;
    let before = deployer.clock.now().as_millis();
    let who = host
        .run(As::User, LIMIT, "the look at the host", &script(&[], WHO))
        .await?;
    let after = deployer.clock.now().as_millis();
    if who.get("os") != "Linux" {
        let text = format!("its system is {}, and agents run on Linux only", who.get("os"));
        return Err(host.transient(text));
    }
    let machine = who.get("arch").to_owned();
    let package = deployer.packages.of(&deployer.agents, &machine).await?;
    if !who.get("sudo").is_empty() {
        return Err(no_sudo(&host.name, who.get("sudo")));
    }
    let off = clock_off(who.get("now"), before, after);
    if let Some(text) = off {
        return Err(host.transient(text));
    }
    let paths = &host.paths;
    let port = paths.port.to_string();
    let docker_host = variable(deployment, "DOCKER_HOST").unwrap_or_default();
    let variables = [
        ("programs", paths.programs.as_str()),
        ("port", port.as_str()),
        ("docker_host", docker_host),
        ("token_file", &token_file(paths)),
        ("token", deployment.token.expose()),
        ("gpu_devices", &deployment.gpu_devices.join(" ")),
    ];
    let text = script(&variables, &format!("{OWN_TOKEN}{WHAT}"));
    let what = host.run(As::Root, LIMIT, "the look at the host", &text).await?;
    let room = package.size.saturating_mul(2).saturating_add(ROOM);
    if let Some(problem) = problem(&what, &host.name, &Wants::of(deployment), room, paths) {
        return Err(host.transient(problem));
    }
    let agent = agent(deployer, deployment, reach, &what).await?;
    if agent == HANGS {
        // Everything there is as it should be: it would be left alone.
        let due = script(&[("home", paths.home.as_str())], RESTART);
        host.run(As::Root, LIMIT, "the note to start the agent again", &due)
            .await?;
    }
    Ok(Found {
        told: format!("{machine}, {agent}"),
        machine,
    })
}

fn variable<'a>(deployment: &'a Deployment, name: &str) -> Option<&'a str> {
    let found = deployment.env.iter().rev().find(|(key, _)| key == name);
    found.map(|(_, value)| value.as_str())
}

/// Whether the agent is told to run tasks in containers, as it does by itself.
pub(super) fn needs_docker(deployment: &Deployment) -> bool {
    matches!(variable(deployment, "DSTACK_SHIM_RUNTIME"), None | Some("docker"))
}

/// What a host must have to be used.
struct Wants {
    docker: bool,
    /// The NVIDIA Container Toolkit, if it has such GPUs.
    toolkit: bool,
}

impl Wants {
    fn of(deployment: &Deployment) -> Self {
        let docker = needs_docker(deployment);
        Self {
            docker,
            toolkit: docker && deployment.gpu_devices.is_empty(),
        }
    }
}

/// The host's clock, in seconds, was read between the two times, in milliseconds.
fn clock_off(said: &str, before: i64, after: i64) -> Option<String> {
    let there: i64 = said.parse().ok()?;
    let (before, after) = (before.div_euclid(1000), after.div_euclid(1000));
    let ahead = u64::try_from(there.saturating_sub(after)).unwrap_or(0);
    let behind = u64::try_from(before.saturating_sub(there)).unwrap_or(0);
    let off = ahead.max(behind);
    let way = if ahead > behind { "ahead of" } else { "behind" };
    (off > CLOCK_TOLERANCE).then(|| {
        format!(
            "its clock is {} {way} the server's. Set it, and let NTP keep it right: `timedatectl set-ntp true`",
            human::seconds(off)
        )
    })
}

/// The first thing that keeps the host from being used.
fn problem(what: &Said, host: &str, wants: &Wants, room: u64, paths: &HostPaths) -> Option<String> {
    if !what.get("lacks").is_empty() {
        let lacks = what.all("lacks").replace('\n', ", ");
        return Some(format!("these programs are missing: {lacks}. Install them"));
    }
    if !what.get("awaited").is_empty() {
        let awaited = what.all("awaited").replace('\n', ", ");
        return Some(format!(
            "its GPUs are not there yet ({awaited}): the commands of its first start are waited for"
        ));
    }
    if wants.docker
        && let Some(problem) = docker_problem(what, host)
    {
        return Some(problem);
    }
    if wants.toolkit && what.is("nvidia") && !what.is("toolkit") {
        return Some(
            "it has an NVIDIA GPU, and no NVIDIA Container Toolkit, without which containers do not get it: install \
             `nvidia-container-toolkit`, then `nvidia-ctk runtime configure --runtime=docker` and `systemctl restart docker`"
                .to_owned(),
        );
    }
    let free = free_bytes(what.get("disk"))?;
    (free < room).then(|| {
        format!(
            "{} are free where the agent goes ({}), and it needs {}: make room",
            human::bytes(free),
            paths.programs,
            human::bytes(room)
        )
    })
}

fn docker_problem(what: &Said, host: &str) -> Option<String> {
    match what.get("docker") {
        "missing" => Some(format!(
            "Docker is not installed on {host}: install it (https://docs.docker.com/engine/install/), e.g. by `curl -fsSL \
             https://get.docker.com | sh`"
        )),
        "silent" => Some(format!(
            "Docker is installed on {host}, and does not answer: {}. Start it: `systemctl start docker`",
            end_of(what.get("docker_said"))
        )),
        _ => {
            // Warnings may come before it.
            let version = what.get("docker_api");
            let (major, minor) = version.split_once('.')?;
            let version = (major.parse().ok()?, minor.parse().ok()?);
            (version < OLDEST_DOCKER).then(|| {
                format!(
                    "Docker on {host} is too old (API {}.{}, and {}.{} is needed): install 19.03 or later",
                    version.0, version.1, OLDEST_DOCKER.0, OLDEST_DOCKER.1
                )
            })
        }
    }
}

/// The fourth column of `df -Pk`.
pub(super) fn free_bytes(line: &str) -> Option<u64> {
    let kibibytes: u64 = line.split_whitespace().nth(3)?.parse().ok()?;
    kibibytes.checked_mul(1024)
}

/// What answers on the agent's port, for people.
async fn agent(
    deployer: &Deployer,
    deployment: &Deployment,
    reach: &Reach,
    what: &Said,
) -> Result<String, DeployError> {
    let port = deployer.paths.port;
    let own = what.is("own");
    let signed = match own {
        true => {
            let shim = deployer.shim(deployment, reach);
            Some(shim.healthcheck_within(deployer.paths.patience).await)
        }
        false => None,
    };
    let hangs = matches!(&signed, Some(Err(CallError::Timeout { connected: true, .. })));
    if hangs && program(what.get("listener")).is_none_or(is_agent) {
        return Ok(HANGS.to_owned());
    }
    // The token may lie there for an agent that was not started with it yet.
    let asked = match signed {
        Some(asked) if !matches!(asked, Err(CallError::Unproven { .. })) => asked,
        _ => deployer.shim_without_token(reach).healthcheck().await,
    };
    let answer = match asked {
        Ok(health) if health.service == SHIM => return Ok(format!("agent {} runs there", health.version)),
        Ok(_) => None,
        // Whoever may make himself root there decides which agent the host has.
        Err(error) if wants_a_token(&error) => {
            return Ok(match own {
                true => "an agent runs there that is to be started again",
                false => "an agent of another instance runs there",
            }
            .to_owned());
        }
        Err(CallError::Unreachable { source, .. }) => Some(source),
        Err(_) => None,
    };
    let inner = answer.as_ref().and_then(|error| error.get_ref());
    match inner.and_then(|error| error.downcast_ref::<PortError>()) {
        Some(PortError::NothingListens { .. }) => return Ok("no agent yet".to_owned()),
        Some(error) => return Err(DeployError::Transient(error.to_string())),
        None => {}
    }
    if let Some(error) = inner.and_then(|error| error.downcast_ref::<ReachError>()) {
        return Err(unreached(error));
    }
    Err(DeployError::Transient(format!(
        "{}: the agent's port {port} is taken{}. Let that use another port, or end it",
        reach.host.host,
        program(what.get("listener"))
            .map(|name| format!(" by `{name}`"))
            .unwrap_or_default()
    )))
}

/// Whether what answers says to be an agent, and does not know our calls.
fn wants_a_token(error: &CallError) -> bool {
    matches!(error, CallError::Refused { status, message, .. } if status.as_u16() == 401 && message.contains(SHIM))
}

/// Whether a program is an agent, by its name as `ss` has it: of this version, or of dstack 0.22.5.
fn is_agent(program: &str) -> bool {
    program.starts_with("dstack-agent") || program.starts_with(SHIM)
}

/// The program of a line of `ss -p`: `users:(("nginx",pid=1,fd=6))`.
fn program(listener: &str) -> Option<&str> {
    let (_, rest) = listener.split_once("((\"")?;
    rest.split_once('"').map(|(name, _)| name)
}

#[cfg(test)]
mod tests {
    use dstack_ssh::{ExitStatus, Output};

    use super::*;

    fn said(text: &str) -> Said {
        Said::of(&Output {
            status: ExitStatus::Code(0),
            stdout: text.as_bytes().to_vec(),
            stderr: Vec::new(),
        })
    }

    fn found(text: &str, needs_docker: bool) -> String {
        let wants = Wants {
            docker: needs_docker,
            toolkit: needs_docker,
        };
        problem(&said(text), "h", &wants, 50 << 20, &HostPaths::default()).unwrap_or_default()
    }

    const FINE: &str =
        "dstack:disk=/dev/sda1 1000000 500000 400000 56% /\ndstack:docker=answers\ndstack:docker_api=1.47\n";

    #[test]
    fn each_thing_that_is_missing_is_named() {
        assert_eq!(found(FINE, true), "");
        let with = |line: &str| found(&format!("{FINE}{line}\n"), true);
        assert!(with("dstack:docker=missing").starts_with("Docker is not installed on h"));
        let silent = with("dstack:docker=silent\ndstack:docker_said=Cannot connect");
        assert!(
            silent.contains("Cannot connect") && silent.contains("systemctl start docker"),
            "{silent}"
        );
        assert!(with("dstack:docker_api=1.39").contains("too old (API 1.39"));
        assert_eq!(with("dstack:docker_api=1.40"), "");
        assert!(with("dstack:nvidia=yes").contains("nvidia-container-toolkit"));
        assert_eq!(with("dstack:nvidia=yes\ndstack:toolkit=yes"), "");
        assert!(with("dstack:disk=/dev/sda1 1000000 999000 1000 99% /").contains("make room"));
        assert!(with("dstack:lacks=sed\ndstack:lacks=tr").contains("sed, tr"));
        assert_eq!(
            found(
                &format!("{FINE}dstack:docker=missing\ndstack:nvidia=yes\n"),
                false
            ),
            ""
        );
    }

    #[test]
    fn where_jobs_get_gpus_by_their_nodes_those_are_waited_for_and_no_toolkit_is_needed() {
        let wants = Wants {
            docker: true,
            toolkit: false,
        };
        let found = |more: &str| {
            let text = format!("{FINE}dstack:nvidia=yes\n{more}");
            problem(&said(&text), "h", &wants, 50 << 20, &HostPaths::default()).unwrap_or_default()
        };
        assert_eq!(found(""), "");
        let awaited = found("dstack:awaited=/dev/gpu0\ndstack:awaited=/dev/gpuctl\n");
        assert!(
            awaited.contains("not there yet (/dev/gpu0, /dev/gpuctl)"),
            "{awaited}"
        );
    }

    #[test]
    fn clocks_may_differ_a_little() {
        let off =
            |there: i64| clock_off(&there.to_string(), 1_000_000_000, 1_000_010_000).unwrap_or_default();
        assert_eq!(
            (off(1_000_005), off(1_000_310), off(999_700)),
            (String::new(), String::new(), String::new())
        );
        assert!(off(1_000_311).contains("ahead of"), "{}", off(1_000_311));
        assert!(off(900_000).contains("behind"));
    }

    #[test]
    fn who_listens_is_named() {
        let line =
            r#"LISTEN 0 511 127.0.0.1:10998 0.0.0.0:* users:(("nginx",pid=7,fd=6),("nginx",pid=6,fd=6))"#;
        assert_eq!((program(line), program("")), (Some("nginx"), None));
    }
}
