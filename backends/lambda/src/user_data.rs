use serde_json::json;

/// For Docker, written before it starts: NVIDIA's runtime; and control groups without systemd, which takes running containers their GPUs
/// whenever it is reloaded (NVIDIA/nvidia-container-toolkit#48).
const DOCKER_CONFIG: &str = r#"{
  "exec-opts": ["native.cgroupdriver=cgroupfs"],
  "runtimes": {"nvidia": {"args": [], "path": "nvidia-container-runtime"}}
}
"#;

/// Lambda's image has Docker; the container toolkit may be missing. A host is taken as soon as Docker answers: it does not until then.
const INSTALL_TOOLKIT: &str = "command -v nvidia-container-runtime-hook || { \
    systemctl stop docker.socket docker.service; \
    for i in 1 2 3; do apt-get update && apt-get install -y --no-install-recommends nvidia-container-toolkit && break; sleep 5; done; \
    systemctl start docker.socket docker.service; }";

/// What cloud-init does at the first start: these keys may log in as `ubuntu`, and Docker is made ready for GPUs.
pub(crate) fn user_data(authorized_keys: &[String]) -> String {
    let docker = json!({"path": "/etc/docker/daemon.json", "content": DOCKER_CONFIG});
    let config = json!({
        "ssh_authorized_keys": authorized_keys,
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
