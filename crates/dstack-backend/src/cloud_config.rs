use serde_json::json;

/// Where Docker has a runtime for GPUs of NVIDIA, it makes control groups without systemd, which would take running containers their GPUs
/// whenever it is reloaded (NVIDIA/nvidia-container-toolkit#48). A program in Python, which cloud-init needs as well, to be run before
/// Docker starts.
pub const KEEP_GPUS: &str = r#"
import json, os
path = "/etc/docker/daemon.json"
text = open(path).read() if os.path.exists(path) else ""
if "nvidia" in text and "native.cgroupdriver" not in text:
    config = json.loads(text)
    config.setdefault("exec-opts", []).append("native.cgroupdriver=cgroupfs")
    with open(path + ".new", "w") as file:
        json.dump(config, file)
    os.rename(path + ".new", path)
"#;

/// User data for cloud-init, which carries it out at the first start of a machine: these public keys may log in as the image's user,
/// then these shell commands are run as root, one after the other. Whoever logs in may find that they have not ended yet.
///
/// The first of all is [`KEEP_GPUS`], before SSH and Docker start: containers keep their GPUs where the image has Docker with a runtime
/// for them.
///
/// It is written as JSON, which is YAML, so that texts need no other quotes.
pub fn cloud_config(authorized_keys: &[String], commands: &[String]) -> String {
    let run: Vec<_> = commands.iter().map(|command| ["sh", "-c", command]).collect();
    let mut config = json!({
        "ssh_authorized_keys": authorized_keys,
        "bootcmd": [["python3", "-c", KEEP_GPUS]],
    });
    if let (false, Some(fields)) = (run.is_empty(), config.as_object_mut()) {
        fields.insert("runcmd".to_owned(), json!(run));
    }
    format!("#cloud-config\n{config}\n")
}

/// A shell command that installs a package on Debian or Ubuntu. Just after the start, the image's own updates may hold the lock, and
/// mirrors may fail.
pub fn apt_install(package: &str) -> String {
    format!(
        "export DEBIAN_FRONTEND=noninteractive; for i in $(seq 10); do \
        apt-get -o DPkg::Lock::Timeout=300 update && \
        apt-get -o DPkg::Lock::Timeout=300 install --yes {package} && break; sleep 10; done"
    )
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    #[test]
    fn keys_and_commands_are_quoted() {
        let keys = ["ssh-ed25519 AAAA p".to_owned()];
        let config = cloud_config(&keys, &[]);
        let config: Value = serde_json::from_str(config.strip_prefix("#cloud-config\n").unwrap()).unwrap();
        assert_eq!(config["ssh_authorized_keys"], json!(["ssh-ed25519 AAAA p"]));
        assert_eq!(config.get("runcmd"), None);
        let config = cloud_config(&keys, &["echo \"a: b\"".to_owned()]);
        assert!(
            config.contains(r#""runcmd":[["sh","-c","echo \"a: b\""]]"#),
            "{config}"
        );
    }
}
