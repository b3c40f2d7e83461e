//! What others say to the emulator: `kubectl`, and dstack 0.22.5's backend, over a real connection.

#![allow(clippy::unwrap_used, clippy::print_stderr)] // tests

use std::process::{Command, Stdio};

use dstack_backend_kit::Emulator as _;
use dstack_emulator_kubernetes::Kubernetes;
use dstack_units::Time;
use serde_json::json;

/// A Python interpreter that has `dstack[kubernetes]` 0.22.5.
const PYTHON: &str = "DSTACK_TEST_REFERENCE_PYTHON";

/// The emulator, and where it listens.
async fn serve(token: &str) -> (Kubernetes, String) {
    let node = json!({
        "metadata": {"name": "gpu-1", "labels": {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"}},
        "spec": {"taints": [{"key": "nvidia.com/gpu", "effect": "NoSchedule"}]},
        "status": {
            "allocatable": {"cpu": "16", "memory": "64Gi", "ephemeral-storage": "200Gi", "nvidia.com/gpu": "8"},
            "nodeInfo": {"architecture": "amd64", "operatingSystem": "linux", "bootID": "", "containerRuntimeVersion": "", "kernelVersion": "",
                "kubeProxyVersion": "", "kubeletVersion": "v1.33.0", "machineID": "", "osImage": "", "systemUUID": ""},
            "conditions": [{"type": "Ready", "status": "True"}],
            "addresses": [{"type": "ExternalIP", "address": "127.0.0.1"}],
        },
    });
    let emulator = Kubernetes::new(token, vec![node], Time::from_millis(1_700_000_000_000));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let router = emulator.router();
    dstack_system::task::spawn(
        "emulator",
        async move { axum::serve(listener, router).await.unwrap() },
    );
    (emulator, url)
}

/// What a command says; its input goes to it.
async fn run(mut command: Command, input: String) -> Result<String, String> {
    dstack_system::task::blocking("stranger", move || {
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|error| error.to_string())?;
        std::io::Write::write_all(&mut child.stdin.take().unwrap(), input.as_bytes()).unwrap();
        let output = child.wait_with_output().unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        match output.status.success() {
            true => Ok(text(&output.stdout)),
            false => Err(format!("{}{}", text(&output.stdout), text(&output.stderr))),
        }
    })
    .await
    .unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn kubectl_makes_and_removes_a_pod() {
    if Command::new("kubectl")
        .args(["version", "--client"])
        .output()
        .is_err()
    {
        eprintln!("skipped: there is no kubectl (Debian: kubernetes-client)");
        return;
    }
    // It sends no credentials over plain HTTP.
    let (emulator, url) = serve("").await;
    let config = format!(
        "apiVersion: v1\nkind: Config\ncurrent-context: c\ncontexts: [{{name: c, context: {{cluster: c, user: u}}}}]\n\
         clusters: [{{name: c, cluster: {{server: '{url}'}}}}]\nusers: [{{name: u, user: {{token: token}}}}]\n"
    );
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("config");
    fs_err::write(&path, config).unwrap();
    let kubectl = |args: &[&str]| {
        let mut command = Command::new("kubectl");
        command
            .arg("--kubeconfig")
            .arg(&path)
            .arg("--cache-dir")
            .arg(folder.path().join("cache"))
            .args(args);
        command
    };
    let nodes = run(kubectl(&["get", "nodes"]), String::new()).await.unwrap();
    assert!(nodes.contains("gpu-1"), "{nodes}");
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": {
        "containers": [{"name": "c", "image": "i"}], "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists"}]}});
    run(
        kubectl(&["create", "--validate=false", "-f", "-"]),
        pod.to_string(),
    )
    .await
    .unwrap();
    let again = run(
        kubectl(&["create", "--validate=false", "-f", "-"]),
        pod.to_string(),
    )
    .await
    .unwrap_err();
    assert!(again.contains("already exists"), "{again}");
    let misspelt = pod
        .to_string()
        .replace("\"image\"", "\"imgae\"")
        .replace("\"p\"", "\"q\"");
    let refused = run(kubectl(&["create", "--validate=false", "-f", "-"]), misspelt)
        .await
        .unwrap_err();
    assert!(refused.contains("imgae"), "{refused}");
    let pods = run(kubectl(&["get", "pods", "-o", "name"]), String::new())
        .await
        .unwrap();
    assert_eq!(pods, "pod/p\n");
    run(kubectl(&["delete", "pod", "p", "--wait=false"]), String::new())
        .await
        .unwrap();
    let pod = emulator.object("pods", "p").unwrap();
    assert!(pod["metadata"]["deletionTimestamp"].is_string());
}

/// Offers, the jump pod, a pod with its service, a volume, and their end, by the reference's own code.
#[tokio::test(flavor = "multi_thread")]
async fn the_reference_lists_offers_and_makes_its_objects() {
    let Some(python) = dstack_system::env::var(PYTHON) else {
        eprintln!("skipped: {PYTHON} names no Python with dstack[kubernetes]==0.22.5");
        return;
    };
    let (emulator, url) = serve("token").await;
    let mut command = Command::new(python);
    command.args(["-c", include_str!("reference.py"), &url]);
    let said = run(command, String::new()).await.unwrap();
    assert!(said.contains("offer gpu-1 H100 8"), "{said}");
    assert!(said.contains("volume claim-made"), "{said}");
    assert!(said.contains("jump ready"), "{said}");
    let left = emulator.objects();
    assert!(
        left.iter().all(|name| name.contains("ssh-jump")),
        "{left:?}\n{said}"
    );
}
