use serde_json::json;

/// Run before SSH and Docker start. Nebius' image has Docker and NVIDIA's runtime, of which Docker is told; and control groups are made
/// without systemd, which would take running containers their GPUs whenever it is reloaded (NVIDIA/nvidia-container-toolkit#48).
const SET_UP_DOCKER: &str = r#"
import json, os
path = "/etc/docker/daemon.json"
config = json.load(open(path)) if os.path.exists(path) else {}
config.setdefault("runtimes", {}).setdefault("nvidia", {"args": [], "path": "nvidia-container-runtime"})
options = [option for option in config.get("exec-opts", []) if "native.cgroupdriver" not in option]
config["exec-opts"] = options + ["native.cgroupdriver=cgroupfs"]
os.makedirs("/etc/docker", exist_ok=True)
with open(path + ".new", "w") as file:
    json.dump(config, file)
os.rename(path + ".new", path)
"#;

/// The image's SSH server forwards nothing.
const ALLOW_FORWARDING: &str =
    "sed -i 's/.*AllowTcpForwarding.*/AllowTcpForwarding yes/' /etc/ssh/sshd_config";

/// Where SSH has been started before.
const RELOAD_SSH: &str = "systemctl try-reload-or-restart ssh";

/// What cloud-init does at the first start: these keys may log in as `ubuntu`. It is all done before anybody can log in.
pub(crate) fn user_data(authorized_keys: &[String]) -> String {
    let config = json!({
        "ssh_authorized_keys": authorized_keys,
        "bootcmd": [["python3", "-c", SET_UP_DOCKER], ["sh", "-c", ALLOW_FORWARDING]],
        "runcmd": [["sh", "-c", RELOAD_SSH]],
    });
    format!("#cloud-config\n{config}\n")
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use serde_json::Value;

    use super::*;

    #[test]
    fn docker_is_told_of_gpus_once() {
        let text = user_data(&["ssh-ed25519 AAAA".to_owned()]);
        let config: Value = serde_json::from_str(text.strip_prefix("#cloud-config\n").unwrap()).unwrap();
        assert_eq!(config["ssh_authorized_keys"], json!(["ssh-ed25519 AAAA"]));
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("daemon.json");
        let script = SET_UP_DOCKER.replace("/etc/docker", folder.path().to_str().unwrap());
        let others = json!({"exec-opts": ["native.cgroupdriver=systemd"], "log-driver": "local"});
        for before in [None, None, Some(others)] {
            if let Some(before) = &before {
                fs_err::write(&path, before.to_string()).unwrap();
            }
            let run = Command::new("python3").args(["-c", &script]).output().unwrap();
            assert!(run.status.success(), "{run:?}");
            let text = fs_err::read_to_string(&path).unwrap();
            let config: Value = serde_json::from_str(&text).unwrap();
            assert_eq!(config["exec-opts"], json!(["native.cgroupdriver=cgroupfs"]));
            assert_eq!(config["runtimes"]["nvidia"]["path"], "nvidia-container-runtime");
            assert_eq!(
                config.get("log-driver"),
                before.as_ref().map(|before| &before["log-driver"])
            );
        }
    }
}
