//! Sets up a replica of a gateway on a host, in steps that may be cut off anywhere and made again, and takes it off. It is the executable
//! of the agent, copied: the agent of a host may be replaced without it. To a machine that has no agent it is brought before.
//!
//! Each build of the gateway is a service of its own, which takes over from the one before: no connection is refused meanwhile.

use std::time::Duration;

use dstack_agent_api::gateway_client::GatewayClient;
use dstack_model::reach::Reach;
use dstack_system::{Secret, chain};
use dstack_units::quoting::{shell_line, shell_word, systemd_word};
use tokio::time::{Instant, timeout};

use super::host::{As, Host};
use super::push::{Pushed, push};
use super::script::{end_of, script};
use super::{DeployError, Deployer, HostPaths, pinned, report};

const SCRIPT_LIMIT: Duration = Duration::from_secs(120);
/// There is no event for a port that begins to be listened to.
const AGAIN: Duration = Duration::from_millis(300);

/// How a replica is to be set up.
#[derive(Debug, Clone)]
pub struct GatewayDeployment {
    /// The way to the host, with its host keys.
    pub reach: Reach,
    /// The build of the agent that the host has: see [`Deployer::build`].
    pub build: String,
    /// What calls to the gateway must be signed with.
    pub token: Secret,
    /// A load balancer stands before it, which adds so many addresses to `X-Forwarded-For`, that of its client first.
    pub load_balancer_hops: Option<u8>,
}

/// The agent's executable on a machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Delivered {
    /// The way there.
    pub reach: Reach,
    /// The architecture, as `uname -m` names it.
    pub arch: String,
    /// Which build it is: see [`Deployer::build`].
    pub build: String,
}

/// Functions that end gateways which run without systemd, by the ids of their processes, and only those that still are what they were.
const FUNCTIONS: &str = r#"
is_loop() { [ -n "$1" ] && tr '\0' '\n' < "/proc/$1/cmdline" 2>/dev/null | grep -qF -- "$home/loop-"; }
is_gateway() {
  [ -n "$1" ] || return 1
  case "$(readlink "/proc/$1/exe" 2>/dev/null)" in "$home"/gateway-*) return 0 ;; esac
  return 1
}
# check id patience: in tenths of a second
end_by_id() {
  "$1" "$2" || return 0
  kill "$2" 2>/dev/null
  kill -CONT "$2" 2>/dev/null
  tries=0
  while "$1" "$2" && [ "$tries" -lt "$3" ]; do
    tries=$((tries + 1))
    sleep 0.1 2>/dev/null || sleep 1
  done
  "$1" "$2" && kill -9 "$2" 2>/dev/null
  return 0
}
"#;

const START: &str = r#"
if [ ! -x "$agent" ]; then
  say state missing
  return 0
fi
umask 077
mkdir -p "$home/state" "$home/servers" || fail "$home cannot be made"
home=$(cd "$home" && pwd -P)
# Whoever logs in for a server opens a socket there, and only he.
chmod 711 "$home" && chown "$user" "$home/servers" && chmod 700 "$home/servers" || fail "$home/servers cannot be given to $user"
program=$home/gateway-$build
if [ ! -x "$program" ]; then
  said=$({ cp -f "$agent" "$program.new" && chmod 755 "$program.new" && mv -f "$program.new" "$program"; } 2>&1) || {
    rm -f "$program.new"
    unwritten "$program" "$said"
  }
  label bin_t "$program"
fi
changed=no
put() { # path content mode
  [ -f "$1" ] && [ "$(cat "$1"; printf x)" = "$2x" ] && return 0
  said=$({ printf '%s' "$2" > "$1.new" && chmod "$3" "$1.new" && mv -f "$1.new" "$1"; } 2>&1) || {
    rm -f "$1.new"
    unwritten "$1" "$said"
  }
  changed=yes
}
running() { [ -n "$1" ] && [ "$(readlink "/proc/$1/exe" 2>/dev/null)" = "$program" ]; }
put "$home/api.token" "$token" 600
if [ -d "$systemd" ]; then
  name=dstack-gateway-$build.service
  put "$units/$name" "$unit_text" 644
  label systemd_unit_file_t "$units/$name"
  pid=$(systemctl show -p MainPID "$name" 2>/dev/null | sed 's/^MainPID=//')
  if [ "$changed" = no ] && running "$pid"; then
    say state kept
    return 0
  fi
  said=$(systemctl daemon-reload 2>&1) || fail "systemctl daemon-reload failed: $said"
  said=$(systemctl --quiet enable "$name" 2>&1) || fail "systemctl enable $name failed: $said"
  systemctl reset-failed "$name" 2>/dev/null
  said=$(systemctl restart "$name" 2>&1) || fail "systemctl restart $name failed: $said"
else
  put "$home/loop-$build.sh" "$loop_text" 700
  if [ "$changed" = no ] && is_loop "$(cat "$home/loop-$build.pid" 2>/dev/null)" &&
    running "$(cat "$home/gateway-$build.pid" 2>/dev/null)"; then
    say state kept
    return 0
  fi
  end_by_id is_loop "$(cat "$home/loop-$build.pid" 2>/dev/null)" 50
  detach=nohup
  have setsid && detach=setsid
  "$detach" sh "$home/loop-$build.sh" > /dev/null 2>&1 &
  tries=0
  until is_loop "$(cat "$home/loop-$build.pid" 2>/dev/null)" || [ "$tries" -ge 50 ]; do
    tries=$((tries + 1))
    sleep 0.1 2>/dev/null || sleep 1
  done
fi
say state started
"#;

/// Whether the build runs; of others, which have handed over, nothing is left but requests under way.
const SETTLE: &str = r#"
home=$(cd "$home" && pwd -P)
program=$home/gateway-$build
if [ -d "$systemd" ]; then
  pid=$(systemctl show -p MainPID "dstack-gateway-$build.service" 2>/dev/null | sed 's/^MainPID=//')
else
  pid=$(cat "$home/gateway-$build.pid" 2>/dev/null)
fi
[ -n "$pid" ] && [ "$(readlink "/proc/$pid/exe" 2>/dev/null)" = "$program" ] || return 0
say runs yes
if [ -d "$systemd" ]; then
  for file in "$units"/dstack-gateway-*.service; do
    [ "$file" != "$units/dstack-gateway-$build.service" ] && [ -e "$file" ] || continue
    systemctl --quiet disable "${file##*/}" 2>/dev/null
    # One that finishes its requests was told to end by this one; another word would cut them.
    systemctl is-active --quiet "${file##*/}" || systemctl stop "${file##*/}" 2>/dev/null
    rm -f "$file"
  done
  systemctl daemon-reload 2>/dev/null
fi
for file in "$home"/loop-*.sh "$home"/gateway-*; do
  case $file in *"-$build" | *"-$build".*) ;; *) rm -f "$file" ;; esac
done
return 0
"#;

/// The system and the architecture of a machine.
const WHAT: &str = r#"
say os "$(uname -s)"
say arch "$(uname -m)"
for tool in sha256sum readlink cut sed tr tail grep wc; do have "$tool" || say lacks "$tool"; done
"#;

const LOG: &str = r#"
if [ -d "$systemd" ]; then
  said log "$(journalctl -u "dstack-gateway-$build.service" -n 20 --no-pager -o cat 2>&1)"
else
  said log "$(tail -n 20 "$home/gateway-$build.log" 2>&1)"
fi
"#;

/// Ends all builds, and removes all that they have stored. With a token, only where it is that of the gateway that is there.
const OFF: &str = r#"
if [ -n "$token" ] && [ -f "$home/api.token" ] && [ "$(cat "$home/api.token")" != "$token" ]; then
  return 0
fi
if [ -d "$systemd" ]; then
  for file in "$units"/dstack-gateway-*.service; do
    [ -e "$file" ] || continue
    systemctl stop "${file##*/}" 2>/dev/null
    systemctl --quiet disable "${file##*/}" 2>/dev/null
    rm -f "$file" || fail "$file cannot be removed"
  done
  systemctl daemon-reload 2>/dev/null
fi
[ -d "$home" ] || return 0
home=$(cd "$home" && pwd -P)
for file in "$home"/loop-*.pid; do
  [ -e "$file" ] && end_by_id is_loop "$(cat "$file")" 50
done
for file in "$home"/gateway-*.pid; do
  [ -e "$file" ] && end_by_id is_gateway "$(cat "$file")" 400
done
rm -rf "$home" || fail "$home cannot be removed"
return 0
"#;

impl Deployer {
    /// The way to a machine, with the host keys that it shows.
    ///
    /// # Errors
    /// The machine is not reached.
    pub async fn greet(&self, reach: &Reach) -> Result<Reach, DeployError> {
        let host = Host::open(self, reach).await?;
        let seen = pinned(reach, &host.connection.host_keys());
        // The connection goes on as that to a machine whose key is known.
        self.pool.pin(reach, &seen);
        Ok(seen)
    }

    /// Brings the agent's executable to a machine that needs nothing else of it. May be cut off anywhere, and goes on there.
    ///
    /// # Errors
    /// The machine is not reached, or takes no agent.
    pub async fn deliver(&self, reach: &Reach) -> Result<Delivered, DeployError> {
        let host = Host::open(self, reach).await?;
        let said = host
            .run(
                As::User,
                SCRIPT_LIMIT,
                "the look at the machine",
                &script(&[], WHAT),
            )
            .await?;
        if said.get("os") != "Linux" {
            return Err(host.transient(format!(
                "its system is {}, and agents run on Linux only",
                said.get("os")
            )));
        }
        let lacks = said.all("lacks");
        if !lacks.is_empty() {
            return Err(host.transient(format!("it lacks {}", lacks.replace('\n', ", "))));
        }
        let arch = said.get("arch").to_owned();
        let package = self.packages.of(&self.agents, &arch).await?;
        while matches!(push(&host, &host.paths, &package).await?, Pushed::Partly) {}
        Ok(Delivered {
            reach: reach.clone(),
            arch,
            build: package.name(),
        })
    }

    /// Removes other builds of the agent from a machine that has but a gateway. What is left does no harm.
    pub async fn clean_machine(&self, delivered: &Delivered) {
        match Host::open(self, &delivered.reach).await {
            Ok(host) => report::clean(&host, &delivered.build).await,
            Err(error) => tracing::debug!(%error, "old agents stay on the machine of a gateway"),
        }
    }

    /// Starts the gateway of a host unless it runs as it should, and waits until it answers. May be cut off anywhere, and repeated.
    ///
    /// # Errors
    /// It does not answer, and nothing may be relied on.
    pub async fn set_up_gateway(&self, deployment: &GatewayDeployment) -> Result<(), DeployError> {
        let host = Host::open(self, &deployment.reach).await?;
        start(&host, &host.paths, deployment).await?;
        self.settle(&host, deployment).await
    }

    /// Ends the gateway of a host, and removes its state, certificates included: that with this token, `None`: whichever there is.
    /// May be repeated.
    ///
    /// # Errors
    /// The host was not reached, or something is left there.
    pub async fn release_gateway(&self, reach: &Reach, token: Option<&Secret>) -> Result<(), DeployError> {
        let host = Host::open(self, reach).await?;
        let mut variables = variables(&self.paths);
        variables.push(("token", token.map_or("", Secret::expose)));
        let text = script(&variables, &format!("{FUNCTIONS}{OFF}"));
        host.run(As::Root, SCRIPT_LIMIT, "taking the gateway off", &text)
            .await?;
        Ok(())
    }

    /// The gateway of a host.
    pub fn gateway(&self, reach: &Reach, token: Secret) -> GatewayClient {
        let connector = self.pool.connector(reach.clone(), self.paths.gateway.api_port);
        GatewayClient::new(connector, token)
    }

    /// The directory in which the gateway of a host looks for the sockets of servers.
    pub fn gateway_servers(&self) -> String {
        format!("{}/servers", self.paths.gateway.home)
    }

    async fn settle(&self, host: &Host, deployment: &GatewayDeployment) -> Result<(), DeployError> {
        let client = self.gateway(&deployment.reach, deployment.token.clone());
        match timeout(self.paths.patience, answers(&client)).await {
            Ok(()) => {}
            Err(_) => return Err(silent(&client, host, &self.paths, deployment).await),
        }
        let mut variables = variables(&self.paths);
        variables.push(("build", &deployment.build));
        let text = script(&variables, &format!("{FUNCTIONS}{SETTLE}"));
        let said = host
            .run(As::Root, SCRIPT_LIMIT, "the look at the gateway", &text)
            .await?;
        match said.is("runs") {
            true => Ok(()),
            false => Err(silent(&client, host, &self.paths, deployment).await),
        }
    }
}

async fn answers(client: &GatewayClient) {
    loop {
        let began = Instant::now();
        if client.health().await.is_ok() {
            return;
        }
        tokio::time::sleep_until(began + AGAIN).await;
    }
}

fn variables(paths: &HostPaths) -> Vec<(&'static str, &str)> {
    let units = paths.unit.rsplit_once('/').map_or("/", |(dir, _)| dir);
    vec![
        ("home", paths.gateway.home.as_str()),
        ("systemd", paths.systemd.as_str()),
        ("units", units),
    ]
}

async fn start(host: &Host, paths: &HostPaths, deployment: &GatewayDeployment) -> Result<(), DeployError> {
    let agent = format!("{}/{}", paths.programs, deployment.build);
    let unquotable = |error: dstack_units::quoting::Unquotable| DeployError::Refused(error.to_string());
    let unit_text = unit(paths, deployment).map_err(unquotable)?;
    let loop_text = supervisor(paths, deployment);
    let mut variables = variables(paths);
    variables.extend([
        ("agent", agent.as_str()),
        ("build", &deployment.build),
        ("user", &deployment.reach.host.user),
        ("token", deployment.token.expose()),
        ("unit_text", &unit_text),
        ("loop_text", &loop_text),
    ]);
    let text = script(&variables, &format!("{FUNCTIONS}{START}"));
    let said = host
        .run(As::Root, SCRIPT_LIMIT, "starting the gateway", &text)
        .await?;
    match said.get("state") {
        "missing" => Err(host.transient("the agent is being replaced: the gateway waits for the new one")),
        _ => Ok(()),
    }
}

/// The gateway did not answer in time: its log says why.
async fn silent(
    client: &GatewayClient,
    host: &Host,
    paths: &HostPaths,
    deployment: &GatewayDeployment,
) -> DeployError {
    let last = match client.health().await {
        Ok(_) => "another build answers".to_owned(),
        Err(error) => chain(&error).to_string(),
    };
    let mut variables = variables(paths);
    variables.push(("build", &deployment.build));
    let text = script(&variables, LOG);
    let log = host
        .run(As::Root, SCRIPT_LIMIT, "reading the gateway's log", &text)
        .await;
    let log = log.map_or_else(|error| error.to_string(), |said| end_of(&said.all("log")));
    host.transient(format!(
        "the gateway does not answer {} s after its start ({last}). Its last lines:\n{log}",
        paths.patience.as_secs()
    ))
}

/// What the gateway is started with.
fn arguments(paths: &HostPaths, load_balancer_hops: Option<u8>) -> Vec<String> {
    let gateway = &paths.gateway;
    let home = &gateway.home;
    let balanced = load_balancer_hops.map(|hops| ("--load-balancer-hops", hops.to_string()));
    [
        ("--dir", format!("{home}/state")),
        ("--api", format!("127.0.0.1:{}", gateway.api_port)),
        ("--api-token", format!("{home}/api.token")),
        ("--server-connections", format!("{home}/servers")),
        ("--http", gateway.http.clone()),
        ("--https", gateway.https.clone()),
    ]
    .into_iter()
    .chain(balanced)
    .flat_map(|(option, value)| [option.to_owned(), value])
    .chain(["--take-over".to_owned()])
    .collect()
}

/// Root, because the sockets of servers belong to whoever logs in for them; without all that root can do besides.
fn unit(
    paths: &HostPaths,
    deployment: &GatewayDeployment,
) -> Result<String, dstack_units::quoting::Unquotable> {
    let build = &deployment.build;
    let home = &paths.gateway.home;
    let mut words = vec![
        systemd_word(&format!("{home}/gateway-{build}"))?,
        "gateway".to_owned(),
    ];
    for argument in arguments(paths, deployment.load_balancer_hops) {
        words.push(systemd_word(&argument)?);
    }
    Ok(format!(
        "[Unit]\nDescription=dstack gateway\nAfter=network-online.target\nStartLimitIntervalSec=3600\nStartLimitBurst=1080\n\n\
         [Service]\nType=simple\nUser=root\nRestart=on-failure\nRestartSec=3\nTimeoutStopSec=60\nLimitNOFILE=1048576\n\
         CapabilityBoundingSet=CAP_NET_BIND_SERVICE CAP_DAC_OVERRIDE\nNoNewPrivileges=yes\nProtectSystem=strict\n\
         ReadWritePaths={home}\nInaccessiblePaths=-/run/docker.sock -/run/containerd -/run/dbus -/run/systemd/private\n\
         RestrictNamespaces=yes\nProtectProc=invisible\nProtectHome=yes\nPrivateDevices=yes\nPrivateTmp=yes\nProtectKernelTunables=yes\n\
         ProtectControlGroups=yes\nExecStart={}\n\n[Install]\nWantedBy=multi-user.target\n",
        words.join(" "),
    ))
}

/// Keeps the gateway running where systemd does not. One that was told to end does not start again: another has taken over.
fn supervisor(paths: &HostPaths, deployment: &GatewayDeployment) -> String {
    let build = &deployment.build;
    let arguments = shell_line(arguments(paths, deployment.load_balancer_hops));
    format!(
        "#!/bin/sh\n# Keeps dstack's gateway running.\ncd {home} || exit 1\necho $$ > loop-{build}.pid\n\
         while :; do\n  \
         sh -c 'echo $$ > gateway-{build}.pid; exec \"$@\"' sh {program} gateway {arguments} < /dev/null > gateway-{build}.log 2>&1 &\n  \
         wait $! && exit 0\n  sleep 3\ndone\n",
        home = shell_word(&paths.gateway.home),
        program = shell_word(&format!("{}/gateway-{build}", paths.gateway.home)),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn deployment(build: &str, load_balancer_hops: Option<u8>) -> GatewayDeployment {
        let host = serde_json::json!({"host": "h", "port": 22, "user": "u", "keys": []});
        GatewayDeployment {
            reach: serde_json::from_value(serde_json::json!({ "host": host })).unwrap(),
            build: build.to_owned(),
            token: Secret::new("token".to_owned()),
            load_balancer_hops,
        }
    }

    #[test]
    fn a_gateway_is_told_of_the_load_balancer_before_it() {
        let text = |hops| unit(&HostPaths::default(), &deployment("b", hops)).unwrap();
        assert!(!text(None).contains("--load-balancer-hops"));
        let balanced = text(Some(2));
        assert!(balanced.contains("\"--load-balancer-hops\" \"2\""), "{balanced}");
    }

    #[test]
    fn the_unit_starts_the_build_and_leaves_it_ended_when_another_takes_over() {
        let text = unit(&HostPaths::default(), &deployment("dstack-agent-01", None)).unwrap();
        let start = "ExecStart=\"/var/lib/dstack-gateway/gateway-dstack-agent-01\" gateway ";
        assert!(text.lines().any(|line| line.starts_with(start)), "{text}");
        assert!(text.contains("\nRestart=on-failure\n") && text.contains("\"--take-over\""));
        assert!(!text.contains("api.token=") && text.contains("\"/var/lib/dstack-gateway/api.token\""));
    }

    #[test]
    fn shells_read_the_loop() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("loop.sh");
        fs_err::write(
            &file,
            supervisor(&HostPaths::default(), &deployment("x", Some(1))),
        )
        .unwrap();
        let checked = std::process::Command::new("sh").arg("-n").arg(&file).status();
        assert!(checked.unwrap().success());
    }
}
