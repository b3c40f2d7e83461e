use serde_json::json;

/// For Docker, written before it starts: NVIDIA's runtime; and control groups without systemd, which takes running containers their GPUs
/// whenever it is reloaded (NVIDIA/nvidia-container-toolkit#48).
const DOCKER_CONFIG: &str = r#"{
  "exec-opts": ["native.cgroupdriver=cgroupfs"],
  "runtimes": {"nvidia": {"args": [], "path": "nvidia-container-runtime"}}
}
"#;

/// Lambda's image has Docker, and may lack the container toolkit: then Docker does not start before it is there, as a host is taken as
/// soon as Docker answers. This runs before SSH and Docker start.
const HOLD_DOCKER: &str =
    "command -v nvidia-container-runtime-hook || systemctl mask --now docker.socket docker.service";

/// Just after the start, the image's own updates may hold the lock, and mirrors may fail.
const INSTALL_TOOLKIT: &str = "export DEBIAN_FRONTEND=noninteractive; for i in $(seq 10); do \
    command -v nvidia-container-runtime-hook && break; \
    apt-get -o DPkg::Lock::Timeout=300 update && \
    apt-get -o DPkg::Lock::Timeout=300 install --yes --no-install-recommends nvidia-container-toolkit && break; sleep 10; done; \
    command -v nvidia-container-runtime-hook && systemctl unmask docker.socket docker.service && \
    systemctl start docker.socket docker.service";

/// What cloud-init does at the first start: these keys may log in as `ubuntu`, and Docker is made ready for GPUs.
pub(crate) fn user_data(authorized_keys: &[String]) -> String {
    let docker = json!({"path": "/etc/docker/daemon.json", "content": DOCKER_CONFIG});
    let config = json!({
        "ssh_authorized_keys": authorized_keys,
        "bootcmd": [["sh", "-c", HOLD_DOCKER]],
        "write_files": [docker],
        "runcmd": [["sh", "-c", INSTALL_TOOLKIT]],
    });
    format!("#cloud-config\n{config}\n")
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    #[test]
    fn it_is_a_configuration_that_docker_reads() {
        let text = user_data(&["ssh-ed25519 AAAA".to_owned()]);
        let config: Value = serde_json::from_str(text.strip_prefix("#cloud-config\n").unwrap()).unwrap();
        assert_eq!(config["ssh_authorized_keys"], json!(["ssh-ed25519 AAAA"]));
        let docker: Value =
            serde_json::from_str(config["write_files"][0]["content"].as_str().unwrap()).unwrap();
        assert_eq!(docker["runtimes"]["nvidia"]["path"], "nvidia-container-runtime");
    }
}
