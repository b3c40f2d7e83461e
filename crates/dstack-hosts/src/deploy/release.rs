//! Takes the agent off a host: its tasks, its service, its files, and the keys that were added.

use std::time::Duration;

use dstack_agent_api::shim::{SERVICE, TaskTerminate};
use dstack_agent_api::shim_client::ShimClient;
use dstack_model::reach::Reach;
use dstack_ssh::keys::normalise_public;
use tokio::time::timeout;

use super::host::{As, Host};
use super::install::MARK;
use super::script::script;
use super::service::{FUNCTIONS, OWN_TOKEN, token_file};
use super::{DeployError, Deployer, Deployment};

/// Ending tasks by the agent itself, which also unmounts their volumes.
const TASKS_LIMIT: Duration = Duration::from_secs(60);
const SERVICE_LIMIT: Duration = Duration::from_secs(120);
const KEYS_LIMIT: Duration = Duration::from_secs(20);

/// Only what the agent and we have put there: the directory of its state may also be that of a user's `dstack`.
const OFF: &str = r#"
if [ -f "$token_file" ] && ! is_own_token; then
  say state anothers
  return 0
fi
programs=$(cd "$programs" 2>/dev/null && pwd -P) || programs=/nonexistent
if [ -d "$systemd" ]; then
  systemctl stop dstack-shim.service 2>/dev/null
  systemctl --quiet disable dstack-shim.service 2>/dev/null
fi
end_loop
[ -z "$docker_host" ] || export DOCKER_HOST="$docker_host"
if have docker && ids=$(limited docker ps -aq --filter label=ai.dstack.shim.is-task=true 2>/dev/null) && [ -n "$ids" ]; then
  said=$(printf '%s\n' "$ids" | xargs docker rm -f -v 2>&1) || fail "containers of tasks are left: $said"
fi
rm -f "$unit" "$unit.new" || fail "$unit cannot be removed"
if [ -d "$systemd" ]; then
  systemctl daemon-reload 2>/dev/null
  systemctl reset-failed dstack-shim.service 2>/dev/null
fi
if [ -d "$programs" ]; then
  rm -f "$programs"/dstack-agent-* || fail "$programs cannot be emptied"
  rmdir "$programs" 2>/dev/null
fi
if [ -d "$home" ]; then
  for name in shim.env shim.env.new restart-due shim.token shim.token.new host_info.json shim.log shim.lock shim.pid shim-loop.pid shim-loop.sh shim-loop.sh.new \
    shim-loop.log runtime dcgm-exporter.csv; do
    rm -f "$home/$name" || fail "$home/$name cannot be removed"
  done
  rm -rf "$home/runners" || fail "$home/runners cannot be removed"
  rmdir "$home" 2>/dev/null
fi
return 0
"#;

const KEYS: &str = r#"
ssh=${ssh:-$HOME/.ssh}
file=$ssh/authorized_keys
[ -f "$file" ] || return 0
[ ! -L "$file" ] || file=$(readlink -f "$file")
umask 077
kept() {
  while IFS= read -r line || [ -n "$line" ]; do
    case $line in
      *" # added by dstack-shim") continue ;;
      *"$mark")
        rest=${line%"$mark"}
        blob=$(printf '%s\n' "$rest" | cut -d ' ' -f 2)
        case " $blobs " in *" $blob "*) continue ;; esac ;;
    esac
    printf '%s\n' "$line"
  done
}
kept < "$file" > "$file.dstack" || { rm -f "$file.dstack"; fail "$file.dstack cannot be written"; }
if [ "$(cat "$file")" = "$(cat "$file.dstack")" ]; then
  rm -f "$file.dstack"
elif [ -s "$file.dstack" ]; then
  mv -f "$file.dstack" "$file" || fail "$file cannot be written"
else
  # An empty file says what none says.
  rm -f "$file.dstack" "$file"
  rmdir "$ssh" 2>/dev/null
fi
return 0
"#;

/// Takes everything off. May be repeated.
pub(super) async fn release(
    deployer: &Deployer,
    deployment: &Deployment,
    reach: &Reach,
) -> Result<(), DeployError> {
    let host = Host::open(deployer, reach).await?;
    let paths = &host.paths;
    // One that does not answer, or is not ours, ends nothing. What is left is removed below.
    let _ = timeout(TASKS_LIMIT, end_tasks(&deployer.shim(deployment, reach))).await;
    let docker_host = deployment
        .env
        .iter()
        .rev()
        .find(|(name, _)| name == "DOCKER_HOST");
    let docker_host = docker_host.map_or("", |(_, value)| value.as_str());
    let variables = [
        ("programs", paths.programs.as_str()),
        ("home", paths.home.as_str()),
        ("systemd", paths.systemd.as_str()),
        ("unit", paths.unit.as_str()),
        ("docker_host", docker_host),
        ("token_file", &token_file(paths)),
        ("token", deployment.token.expose()),
    ];
    let off = script(&variables, &format!("{FUNCTIONS}{OWN_TOKEN}{OFF}"));
    let said = host
        .run(As::Root, SERVICE_LIMIT, "taking the agent off", &off)
        .await?;
    if said.get("state") == "anothers" {
        // Nor are the keys removed: that of the project may be the other's as well.
        return Err(DeployError::Refused(format!(
            "{}: it is the agent of another instance, which has set the host up since, and goes on",
            host.name
        )));
    }

    // Last: it may be by one of them that this connection is made.
    let blobs: Vec<String> = deployment
        .authorized_keys
        .iter()
        .filter_map(|key| blob(key))
        .collect();
    let ssh = paths.ssh.as_deref().unwrap_or_default();
    let blobs = blobs.join(" ");
    let keys = script(&[("ssh", ssh), ("mark", MARK), ("blobs", &blobs)], KEYS);
    host.run(As::User, KEYS_LIMIT, "removing the keys", &keys).await?;
    Ok(())
}

/// Whether the token of this deployment lies on the host.
pub(super) async fn has_token(host: &Host, deployment: &Deployment) -> Result<bool, DeployError> {
    let variables = [
        ("token_file", token_file(&host.paths)),
        ("token", deployment.token.expose().to_owned()),
    ];
    let variables = variables.each_ref().map(|(name, value)| (*name, value.as_str()));
    let text = script(
        &variables,
        &format!("{OWN_TOKEN}is_own_token && say own yes\nreturn 0\n"),
    );
    let said = host
        .run(As::Root, KEYS_LIMIT, "the look at the agent's token", &text)
        .await?;
    Ok(said.is("own"))
}

async fn end_tasks(shim: &ShimClient) {
    if !shim
        .healthcheck()
        .await
        .is_ok_and(|health| health.service == SERVICE)
    {
        return;
    }
    let Ok(list) = shim.tasks().await else { return };
    for task in list.tasks {
        let order = TaskTerminate {
            termination_message: "the host is released".to_owned(),
            ..TaskTerminate::default()
        };
        if let Err(error) = shim.terminate(&task.id, &order).await {
            tracing::warn!(%error, task = task.id, "a task of a released host is not ended by its agent");
        }
        if let Err(error) = shim.remove(&task.id).await {
            tracing::warn!(%error, task = task.id, "a task of a released host is not removed by its agent");
        }
    }
}

/// The key itself, of a line `type base64 [comment]`.
fn blob(key: &str) -> Option<String> {
    let line = normalise_public(key).ok()?;
    line.split(' ').nth(1).map(ToOwned::to_owned)
}
