//! What a gateway is made of: a pod, and a service that leads to it from outside. No I/O.

use dstack_compute::{GATEWAY_USER, GatewayRequest};
use dstack_units::AcceleratorVendor as Vendor;
use dstack_units::quoting::shell_word;
use serde_json::{Value, json};

use crate::labels::{INSTANCE, Labels};
use crate::manifests::gpu_tolerations;
use crate::objects::Node;
use crate::offers::is_guarded;

/// What the container is made of, as with dstack 0.22.5.
pub(super) const IMAGE: &str = "ubuntu:22.04";

const SCRIPT: &str = include_str!("start.sh");

/// Where the engine puts the gateway, its state and its certificates.
const HOME: &str = "/var/lib/dstack-gateway";

/// Where the SSH server has its host key: the server takes no other than the one that it saw first.
const SSH: &str = "/var/lib/dstack-gateway-ssh";

const SSH_PORT: u16 = 22;
const HTTP_PORT: u16 = 80;
const HTTPS_PORT: u16 = 443;

/// The program of the container.
fn script(authorized_keys: &[String]) -> String {
    let keys = authorized_keys.join("\n");
    let variables = [
        ("home", HOME),
        ("ssh", SSH),
        ("user", GATEWAY_USER),
        ("keys", &keys),
    ];
    let assigned = variables.map(|(name, value)| format!("{name}={}\n", shell_word(value)));
    format!("{}{SCRIPT}", assigned.concat())
}

/// The pod of a gateway. What has to survive a restart of its container is in volumes that live as long as the pod: what comes after
/// the pod is another gateway.
pub(super) fn pod(want: &GatewayRequest, name: &str, image: &str, labels: &Labels, nodes: &[Node]) -> Value {
    let tolerations = match nodes.iter().all(is_guarded) {
        true => gpu_tolerations(&[Vendor::Nvidia, Vendor::Amd]),
        false => json!([]),
    };
    let ports = [SSH_PORT, HTTP_PORT, HTTPS_PORT].map(|port| json!({"containerPort": port}));
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name, "labels": labels},
        "spec": {
            "containers": [{
                "name": "gateway", "image": image,
                "command": ["/bin/sh"], "args": ["-c", script(&want.authorized_keys)],
                "ports": ports,
                "securityContext": {"runAsUser": 0, "runAsGroup": 0},
                // What asks for nothing is evicted first.
                "resources": {"requests": {"cpu": "100m", "memory": "256Mi"}},
                "readinessProbe": {"tcpSocket": {"port": SSH_PORT}, "periodSeconds": 5},
                // Why it ends is told by its last lines.
                "terminationMessagePolicy": "FallbackToLogsOnError",
                "volumeMounts": [{"name": "gateway", "mountPath": HOME}, {"name": "ssh", "mountPath": SSH}],
            }],
            "volumes": [{"name": "gateway", "emptyDir": {}}, {"name": "ssh", "emptyDir": {}}],
            // It is reached from everywhere, and has nothing to ask of the cluster.
            "automountServiceAccountToken": false,
            "enableServiceLinks": false,
            "tolerations": tolerations,
        },
    })
}

/// The service by which a gateway is reached. It leads there also while the SSH server of a container that was started again is not up,
/// as the gateway may be.
pub(super) fn service(name: &str, pod: &str, labels: &Labels) -> Value {
    let port = |name: &str, port: u16| json!({"name": name, "port": port});
    json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": {"name": name, "labels": labels},
        "spec": {
            "type": "LoadBalancer",
            "selector": {INSTANCE: pod},
            "publishNotReadyAddresses": true,
            "ports": [port("ssh", SSH_PORT), port("http", HTTP_PORT), port("https", HTTPS_PORT)],
        },
    })
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Output};

    use super::*;

    fn run(script: &str, path: &str) -> Output {
        let mut shell = Command::new("/bin/sh");
        shell.args(["-c", script]).env_clear().env("PATH", path);
        shell.output().unwrap()
    }

    #[test]
    fn shells_read_the_script_with_whatever_keys() {
        let keys = ["ssh-ed25519 AAAA it's $(exit 1)", "ssh-ed25519 BBBB"].map(str::to_owned);
        let whole = script(&keys);
        let mut shell = Command::new("/bin/sh");
        assert!(shell.args(["-n", "-c", &whole]).status().unwrap().success());
        let assigned = whole.split_once("\n#").unwrap().0;
        let said = run(&format!("{assigned}\nprintf '%s' \"$keys\""), "/usr/bin:/bin");
        assert_eq!(String::from_utf8(said.stdout).unwrap(), keys.join("\n"));
    }
}
