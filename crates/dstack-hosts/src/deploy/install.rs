//! Lets keys log in, and makes the agent a service. What runs already as it should is left alone; tasks always are.

use std::time::Duration;

use dstack_ssh::keys::normalise_public;

use super::host::{As, Host};
use super::package::Package;
use super::script::script;
use super::service::{self, FUNCTIONS};
use super::{DeployError, Deployment};

const KEYS_LIMIT: Duration = Duration::from_secs(20);
const SERVICE_LIMIT: Duration = Duration::from_secs(120);

/// Ends each line that was added here. That of the agent begins with it: only whole line ends are compared.
pub(super) const MARK: &str = " # added by dstack";

const KEYS: &str = r#"
ssh=${ssh:-$HOME/.ssh}
umask 077
mkdir -p "$ssh" || fail "$ssh cannot be made"
file=$ssh/authorized_keys
[ -e "$file" ] || : > "$file" || unwritten "$file"
printf '%s\n' "$lines" | while IFS= read -r line; do
  blob=$(printf '%s\n' "$line" | cut -d ' ' -f 2)
  [ -n "$blob" ] || continue
  grep -qF -- "$blob" "$file" && continue
  # Somebody's last line may have no end.
  [ ! -s "$file" ] || [ -z "$(tail -c 1 "$file")" ] || echo >> "$file" || exit 1
  printf '%s\n' "$line" >> "$file" || exit 1
done || unwritten "$file"
"#;

const SERVICE: &str = r#"
if [ ! -x "$agent" ]; then
  say state missing
  return 0
fi
programs=$(cd "$programs" && pwd -P)
umask 077
mkdir -p "$home" || fail "$home cannot be made"
# What is changed counts once the agent was started with it: this may be cut off in between.
due=$home/restart-due
changed=no
[ ! -e "$due" ] || changed=yes
put() { # path content mode
  [ -f "$1" ] && [ "$(cat "$1"; printf x)" = "$2x" ] && return 0
  : > "$due" || unwritten "$due"
  said=$({ printf '%s' "$2" > "$1.new" && chmod "$3" "$1.new" && mv -f "$1.new" "$1"; } 2>&1) || {
    rm -f "$1.new"
    unwritten "$1" "$said"
  }
  changed=yes
}
running() { [ -n "$1" ] && [ "$(readlink "/proc/$1/exe" 2>/dev/null)" = "$(readlink -f "$agent")" ]; }
put "$token_file" "$token" 600
put "$home/shim.env" "$env" 600
label etc_t "$home/shim.env"
if [ -d "$systemd" ]; then
  put "$unit" "$unit_text" 644
  label systemd_unit_file_t "$unit"
  end_loop
  pid=$(systemctl show -p MainPID dstack-shim.service 2>/dev/null | sed 's/^MainPID=//')
  if [ "$changed" = no ] && running "$pid"; then
    say state kept
    return 0
  fi
  rm -f "$home/host_info.json"
  said=$(systemctl daemon-reload 2>&1) || fail "systemctl daemon-reload failed: $said"
  said=$(systemctl --quiet enable dstack-shim.service 2>&1) || fail "systemctl enable dstack-shim failed: $said"
  # Many failures within an hour would keep it from being started.
  systemctl reset-failed dstack-shim.service 2>/dev/null
  said=$(systemctl restart dstack-shim.service 2>&1) || fail "systemctl restart dstack-shim failed: $said"
else
  put "$home/shim-loop.sh" "$loop_text" 700
  if [ "$changed" = no ] && is_loop "$(cat "$home/shim-loop.pid" 2>/dev/null)" &&
    running "$(cat "$home/shim.pid" 2>/dev/null)"; then
    say state kept
    return 0
  fi
  end_loop
  rm -f "$home/host_info.json"
  detach=nohup
  have setsid && detach=setsid
  "$detach" sh "$home/shim-loop.sh" > /dev/null 2>&1 &
  tries=0
  until is_loop "$(cat "$home/shim-loop.pid" 2>/dev/null)" || [ "$tries" -ge 50 ]; do
    tries=$((tries + 1))
    sleep 0.1 2>/dev/null || sleep 1
  done
fi
rm -f "$due"
say state started
"#;

/// What came of it.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Installed {
    /// It was started.
    Started,
    /// It ran already.
    Kept,
    /// Its file is gone: it must be brought there again.
    FileMissing,
}

/// Adds the keys, and starts the agent unless it runs.
pub(super) async fn install(
    host: &Host,
    deployment: &Deployment,
    package: &Package,
) -> Result<Installed, DeployError> {
    let paths = &host.paths;
    let lines = lines(&deployment.authorized_keys)?;
    let ssh = paths.ssh.as_deref().unwrap_or_default();
    let keys = script(&[("ssh", ssh), ("lines", &lines)], KEYS);
    host.run(As::User, KEYS_LIMIT, "adding the keys", &keys).await?;

    let agent = format!("{}/{}", paths.programs, package.name());
    let unit_text = service::unit(paths, &agent).map_err(|error| DeployError::Refused(error.to_string()))?;
    let text = script(
        &[
            ("programs", &paths.programs),
            ("agent", &agent),
            ("home", &paths.home),
            ("token_file", &service::token_file(paths)),
            ("token", deployment.token.expose()),
            ("env", &service::env(paths, deployment, &agent)?),
            ("systemd", &paths.systemd),
            ("unit", &paths.unit),
            ("unit_text", &unit_text),
            ("loop_text", &service::supervisor(paths, &agent)),
        ],
        &format!("{FUNCTIONS}{SERVICE}"),
    );
    let said = host
        .run(As::Root, SERVICE_LIMIT, "starting the agent", &text)
        .await?;
    Ok(match said.get("state") {
        "missing" => Installed::FileMissing,
        "kept" => Installed::Kept,
        _ => Installed::Started,
    })
}

/// Keys as they stand in `authorized_keys`, a line each.
fn lines(keys: &[String]) -> Result<String, DeployError> {
    let mut lines = Vec::new();
    for key in keys {
        let line = normalise_public(key)
            .map_err(|error| DeployError::Refused(format!("a key that is to log in to the host: {error}")))?;
        lines.push(format!("{line}{MARK}"));
    }
    Ok(lines.join("\n"))
}
