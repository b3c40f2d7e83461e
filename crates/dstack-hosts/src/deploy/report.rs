//! Waits for the agent, and asks it what the host has.

use std::time::Duration;

use dstack_agent_api::http::CallError;
use dstack_agent_api::shim::{HostInfo, HostReport, SERVICE};
use dstack_agent_api::shim_client::ShimClient;
use dstack_model::reach::Reach;
use dstack_system::chain;
use tokio::time::{Instant, sleep, timeout};

use super::host::{As, Host};
use super::script::{end_of, script};
use super::{DeployError, Deployer, HostPaths};

/// There is no event for a port that begins to be listened to.
const AGAIN: Duration = Duration::from_millis(300);
const LOG_LIMIT: Duration = Duration::from_secs(20);
const CLEAN_LIMIT: Duration = Duration::from_secs(20);

const LOG: &str = r#"
if [ -d "$systemd" ]; then
  said log "$(journalctl -u dstack-shim.service -n 20 --no-pager -o cat 2>&1)"
else
  said log "$(tail -n 20 "$home/shim-loop.log" 2>&1)"
fi
"#;

const INFO: &str = r#"if [ -f "$home/host_info.json" ]; then said info "$(cat "$home/host_info.json")"; fi"#;

/// Executables of other versions, and what was left of sending them. Processes that run go on.
const CLEAN: &str = r#"
for file in "$programs"/dstack-agent-*; do
  case $file in "$agent") ;; *) rm -f "$file" ;; esac
done
"#;

/// What the host has, once its agent answers.
pub(super) async fn report(
    deployer: &Deployer,
    shim: &ShimClient,
    reach: &Reach,
    machine: &str,
) -> Result<HostReport, DeployError> {
    let host = Host::open(deployer, reach).await?;
    let paths = &host.paths;
    let unsigned = deployer.shim_without_token(reach);
    let asked = timeout(paths.patience, ask(shim, &unsigned, &host, paths, machine)).await;
    match asked {
        Ok(report) => report,
        Err(_) => Err(silent(shim, &host, paths).await),
    }
}

async fn ask(
    shim: &ShimClient,
    unsigned: &ShimClient,
    host: &Host,
    paths: &HostPaths,
    machine: &str,
) -> Result<HostReport, DeployError> {
    let version = loop {
        let began = Instant::now();
        let health = match shim.healthcheck().await {
            // It knows no token.
            Err(error) if is_unknown(&error) => unsigned.healthcheck().await,
            health => health,
        };
        match health {
            Ok(health) if health.service == SERVICE => break health.version,
            Err(error) if is_forbidden(&error) => return Err(host.transient(chain(&error))),
            _ => tokio::time::sleep_until(began + AGAIN).await,
        }
    };
    loop {
        match shim.host().await {
            Ok(report) => return Ok(report),
            Err(error) if is_unknown(&error) => break,
            Err(error) if error.is_unreachable() => sleep(AGAIN).await,
            Err(error) => return Err(host.transient(chain(&error))),
        }
    }
    // dstack 0.22.5's agent writes it down instead.
    loop {
        let text = script(&[("home", &paths.home)], INFO);
        let said = host
            .run(As::Root, LOG_LIMIT, "reading what the host has", &text)
            .await?;
        let info = said.all("info");
        if let Ok(host_info) = serde_json::from_str::<HostInfo>(&info) {
            return Ok(HostReport {
                host_info,
                runtime: "docker".to_owned(),
                version,
                arch: architecture(machine).to_owned(),
                notices: Vec::new(),
                ..HostReport::default()
            });
        }
        sleep(AGAIN).await;
    }
}

/// Whether the agent has no such route.
fn is_unknown(error: &CallError) -> bool {
    let status = error.status().or(error.unproven_status());
    status.is_some_and(|status| status.as_u16() == 404)
}

fn architecture(machine: &str) -> &'static str {
    match machine {
        "aarch64" | "arm64" => "arm64",
        _ => "amd64",
    }
}

/// Whether the SSH server does not let us through, which waiting does not change.
fn is_forbidden(error: &CallError) -> bool {
    matches!(error, CallError::Unreachable { source, .. } if source.kind() == std::io::ErrorKind::PermissionDenied)
}

/// The agent did not answer in time: its log says why.
async fn silent(shim: &ShimClient, host: &Host, paths: &HostPaths) -> DeployError {
    let last = match shim.healthcheck().await {
        Ok(health) => format!("`{}` answers on its port {}", health.service, paths.port),
        Err(error) => chain(&error).to_string(),
    };
    let variables = [("systemd", paths.systemd.as_str()), ("home", paths.home.as_str())];
    let log = host
        .run(
            As::Root,
            LOG_LIMIT,
            "reading the agent's log",
            &script(&variables, LOG),
        )
        .await;
    let log = log.map_or_else(|error| error.to_string(), |said| end_of(&said.all("log")));
    host.transient(format!(
        "the agent does not answer {} s after its start ({last}). Its last lines:\n{log}",
        paths.patience.as_secs()
    ))
}

/// Removes other versions. Those that stay cost their space only.
pub(super) async fn clean(host: &Host, agent: &str) {
    let paths = &host.paths;
    let agent = format!("{}/{agent}", paths.programs);
    let variables = [("programs", paths.programs.as_str()), ("agent", agent.as_str())];
    let cleaned = host
        .run(
            As::Root,
            CLEAN_LIMIT,
            "removing old agents",
            &script(&variables, CLEAN),
        )
        .await;
    if let Err(error) = cleaned {
        tracing::warn!(%error, "old agents are left on a host");
    }
}
