//! Pods whose containers run for real, and services that lead there.

#![allow(clippy::unwrap_used, clippy::indexing_slicing)] // tests

use std::sync::{Arc, Mutex};
use std::time::Duration;

use dstack_backend_kit::{ContainerStart, Containers};
use dstack_emulator_kubernetes::{Kubernetes, Network, NodePort, Times};
use dstack_units::Time;
use serde_json::json;

/// Notes what it is asked for.
#[derive(Clone, Default)]
struct Noting {
    asked: Arc<Mutex<Vec<String>>>,
    exit_status: Arc<Mutex<Option<i32>>>,
}

impl Noting {
    fn note(&self, what: String) {
        self.asked.lock().unwrap().push(what);
    }

    /// What was asked for since the last time.
    fn asked(&self) -> Vec<String> {
        std::mem::take(&mut self.asked.lock().unwrap())
    }
}

impl Containers for Noting {
    fn start(&self, container: &ContainerStart) -> Option<String> {
        let (path, content) = &container.files[0];
        self.note(format!(
            "start {} {:?} with {path}: {}",
            container.command.join(" "),
            container.env,
            String::from_utf8_lossy(content)
        ));
        Some("10.1.2.3".to_owned())
    }

    fn exit_status(&self, _: &str) -> Option<i32> {
        *self.exit_status.lock().unwrap()
    }

    fn end(&self, _: &str) {
        self.note("end".to_owned());
    }
}

impl Network for Noting {
    fn write(&self, _: &str, path: &str, content: &[u8]) {
        self.note(format!("write {path}: {}", String::from_utf8_lossy(content)));
    }

    fn lead(&self, _: &str, _: &str, port: Option<NodePort>) {
        self.note(format!("lead {port:?}"));
    }
}

#[tokio::test(start_paused = true)]
async fn a_pod_is_what_its_container_is() {
    let network = Noting::default();
    let node = json!({"metadata": {"name": "n"}, "status": {"allocatable": {}}});
    let times = Times {
        starts: Duration::from_secs(2),
        ends: Duration::from_secs(1),
        balances: Duration::from_secs(1),
    };
    let now = Time::from_millis(1_700_000_000_000);
    let cluster = Kubernetes::with_containers("t", vec![node], now, times, Box::new(network.clone()));
    let secret = |data: &str| json!({"kind": "Secret", "metadata": {"name": "keys"}, "data": {"key": data}});
    cluster.put("default", &secret("b25l"));
    cluster.put(
        "default",
        &json!({
            "kind": "Pod", "metadata": {"name": "p", "labels": {"app": "a"}}, "status": {"phase": "Pending"},
            "spec": {"restartPolicy": "Never", "volumes": [{"name": "v", "secret": {"secretName": "keys"}}],
                "containers": [{"name": "c", "image": "i", "command": ["sh"], "args": ["-c", "x"], "env": [{"name": "A", "value": "b"}],
                    "volumeMounts": [{"name": "v", "mountPath": "/keys"}]}]},
        }),
    );
    let service = |name: &str, app: &str| {
        json!({"kind": "Service", "metadata": {"name": name},
            "spec": {"clusterIP": "10.96.0.1", "selector": {"app": app}, "ports": [{"port": 22, "nodePort": 30001}]}})
    };
    cluster.put("default", &service("mine", "a"));
    cluster.put("default", &service("other", "b"));
    let status = |pointer: &str| {
        cluster.object("pods", "p").unwrap()["status"]
            .pointer(pointer)
            .cloned()
    };

    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(status("/podIP"), None);
    assert_eq!(network.asked(), Vec::<String>::new());

    tokio::time::sleep(Duration::from_secs(1)).await;
    for _ in 0..2 {
        assert_eq!(status("/podIP"), Some(json!("10.1.2.3")));
    }
    let port = Some(NodePort {
        node: 30001,
        container: 22,
    });
    assert_eq!(
        network.asked(),
        [
            "start sh -c x [(\"A\", \"b\")] with /keys/key: one".to_owned(),
            format!("lead {port:?}")
        ]
    );

    cluster.put("default", &secret("dHdv"));
    assert_eq!(status("/phase"), Some(json!("Running")));
    assert_eq!(network.asked(), ["write /keys/key: two"]);

    *network.exit_status.lock().unwrap() = Some(7);
    status("/phase");
    assert_eq!(status("/phase"), Some(json!("Failed")));
    let exit = status("/containerStatuses/0/state/terminated/exitCode");
    assert_eq!(exit, Some(json!(7)));
}
