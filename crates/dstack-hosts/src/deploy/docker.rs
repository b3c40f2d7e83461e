//! Installs Docker where it is missing: on machines of clouds whose images do not always have it. Every part may be made again.

use std::time::Duration;

use super::DeployError;
use super::host::{As, Host};
use super::script::script;

/// Of Docker, and of NVIDIA's toolkit. The parts below end before, so that it is told which of them took so long.
const LIMIT: Duration = Duration::from_secs(270);

const FUNCTIONS: &str = r#"
export DEBIAN_FRONTEND=noninteractive
within() { # seconds command...
  if have timeout; then timeout -k 5 "$@"; else shift; "$@"; fi
}
# A client that is there and does not start is as good as none.
has_docker() { docker --version >/dev/null 2>&1; }
has_gpu() { have nvidia-smi || [ -e /dev/nvidiactl ]; }
has_toolkit() {
  for tool in nvidia-container-runtime-hook nvidia-container-runtime nvidia-container-cli nvidia-ctk; do
    have "$tool" && return 0
  done
  limited docker info --format '{{json .Runtimes}}' 2>/dev/null | grep -q nvidia
}
why() { # status output
  if [ "$1" = 124 ] || [ "$1" = 137 ]; then printf 'it took too long: '; fi
  printf '%s' "$2" | tail -n 5
}
get() { # package remedy
  have apt-get || fail "$1 is not installed, and there is no apt-get by which it could be. $2"
  # What was cut off before would be in the way.
  have dpkg && within 30 dpkg --configure -a >/dev/null 2>&1
  # A source that does not answer may not be the one that is needed.
  update=$(within 50 apt-get -q update 2>&1 | grep '^[EW]:' | tail -n 2)
  said=$(within 120 apt-get -q -y -o DPkg::Lock::Timeout=60 install "$1" 2>&1) && return 0
  status=$?
  fail "$1 is not installed, and apt-get does not install it: $(why "$status" "$said")${update:+ ($update)}. $2"
}
"#;

const DOCKER: &str = r#"
if ! has_docker; then
  get docker.io "It is tried again; if that stays so, choose an image that has Docker"
  hash -r
  has_docker || fail "apt-get says that docker.io is installed, and there is no docker: choose an image that has Docker"
  say docker installed
fi
# Where it does not start, that is told later, with what it says.
limited docker version >/dev/null 2>&1 || { have systemctl && within 30 systemctl --quiet enable --now docker >/dev/null 2>&1; }
return 0
"#;

const TOOLKIT: &str = r#"
has_gpu || return 0
due=$home/nvidia-toolkit-due
if ! has_toolkit; then
  lists=$(apt-cache policy nvidia-container-toolkit 2>/dev/null | sed -n 's/^ *Candidate: *//p')
  case "$lists" in
    "" | "(none)")
      fail "it has an NVIDIA GPU and no NVIDIA Container Toolkit, and none of its package sources has one: choose an image that has it, \
or add NVIDIA's source (https://docs.nvidia.com/datacenter/cloud-native/container-toolkit)" ;;
  esac
  # It is there until Docker has started with the toolkit, whenever that is.
  { mkdir -p "$home" && : > "$due"; } || fail "$due cannot be written"
  get nvidia-container-toolkit "It is tried again; if that stays so, choose an image that has it"
  hash -r
fi
# A start anew would end what runs.
if [ -e "$due" ] && [ -z "$(limited docker ps --quiet --filter label=ai.dstack.shim.is-task 2>/dev/null)" ]; then
  said=$(nvidia-ctk runtime configure --runtime=docker 2>&1) || fail "nvidia-ctk does not tell Docker of NVIDIA's runtime: $said"
  said=$(systemctl restart docker 2>&1) || fail "Docker does not start again with NVIDIA's runtime: $said"
  rm -f "$due"
  say toolkit installed
fi
return 0
"#;

/// Installs Docker, and starts it; what was done, for people, empty: nothing. Of machines with NVIDIA's GPUs, NVIDIA's container
/// toolkit as well, if one of their package sources has it.
///
/// # Errors
/// There is no `apt-get`, it does not install it, or the toolkit is missing in all package sources.
pub(super) async fn install_if_missing(host: &Host) -> Result<String, DeployError> {
    let mut done = Vec::new();
    for (part, key, told) in [
        (DOCKER, "docker", "Docker was installed"),
        (TOOLKIT, "toolkit", "NVIDIA's container toolkit was installed"),
    ] {
        let text = script(&[("home", &host.paths.home)], &format!("{FUNCTIONS}{part}"));
        let said = host.run(As::Root, LIMIT, "installing Docker", &text).await?;
        if said.get(key) == "installed" {
            done.push(told);
        }
    }
    Ok(done.join(", "))
}
