//! Clouds of containers: a container is a host of a lab that runs nothing but what it was asked for.

use std::time::Duration;

use dstack_backend_kit::{Emulator as _, serve};
use dstack_emulator_kubernetes::{Kubernetes, Times};
use dstack_emulator_runpod::{Runpod, Size};
use dstack_emulator_vastai::VastAi;
use dstack_system::{Clock as _, SystemClock};
use dstack_tests::containers::LabContainers;
use dstack_tests::hosts::{EndsHosts, Lab};
use dstack_tests::parts::Part;
use serde_json::{Value, json};

use crate::Cloud;

const RUNPOD_KEY: &str = "canary-runpod-key";

const VASTAI_KEY: &str = "canary-vastai-key";

const TOKEN: &str = "canary-kubernetes-token";

/// A size of the catalogue, and a data center that has it.
const POD: (&str, &str) = ("cpu3c-2-4", "EUR-IS-1");

const NODE: &str = "worker-1";

pub(crate) fn runpod() -> Part<Cloud> {
    let (lab, ends) = Lab::for_ever()?;
    let size = Size {
        name: POD.0.to_owned(),
        place: POD.1.to_owned(),
        gpus: 0,
        cpus: 2,
        memory: 4.0,
        disk: Some(20.0),
        is_for_clusters: false,
    };
    let containers = Box::new(LabContainers::new(lab));
    let emulator = Runpod::with_containers(RUNPOD_KEY, vec![size], Duration::from_millis(500), containers);
    let config = |key: &str| json!({"type": "runpod", "regions": [POD.1], "creds": {"type": "api_key", "api_key": key}});
    Ok(Cloud {
        name: "runpod",
        config: config(RUNPOD_KEY),
        wrong_config: config("wrong"),
        wrong_fields: &["creds", "api_key"],
        secret: RUNPOD_KEY.to_owned(),
        files: None,
        endpoint: Some(format!("runpod=http://{}", serve(emulator.router()))),
        books: Box::new(emulator),
        offer: (&["--cpu", "2", "--memory", "4GB", "--disk", "10GB"], POD.0),
        made_for_two_runs: 2,
        lab: Some(ends),
    })
}

pub(crate) fn vastai() -> Part<Cloud> {
    let (lab, ends) = Lab::for_ever()?;
    // What was rented just now is not offered for a while.
    let offer = |id: i64| {
        json!({"id": id, "ask_contract_id": id, "machine_id": id, "host_id": 2, "num_gpus": 1,
        "gpu_name": "RTX 4090", "gpu_ram": 24_564, "gpu_frac": 0.125, "cpu_cores": 128, "cpu_cores_effective": 16.0,
        "cpu_ram": 515_852, "disk_space": 812.4, "geolocation": "California, US", "dph_base": 0.302, "dph_total": 0.3141,
        "min_bid": null, "storage_cost": 0.15, "score": 241.7, "reliability2": 0.9961, "verification": "verified",
        "hosting_type": 0, "rentable": true, "rented": false, "inet_down": 812.3, "cuda_max_good": 12.8, "compute_cap": 890,
        "direct_port_count": 249})
    };
    let containers = Box::new(LabContainers::new(lab));
    let emulator = VastAi::with_containers(
        VASTAI_KEY,
        vec![offer(31_234_567), offer(31_234_568)],
        Duration::from_millis(500),
        containers,
    );
    let config = |key: &str| json!({"type": "vastai", "creds": {"type": "api_key", "api_key": key}});
    Ok(Cloud {
        name: "vastai",
        config: config(VASTAI_KEY),
        wrong_config: config("wrong"),
        wrong_fields: &["creds", "api_key"],
        secret: VASTAI_KEY.to_owned(),
        files: None,
        endpoint: Some(format!("vastai=http://{}/api", serve(emulator.router()))),
        books: Box::new(emulator),
        offer: (&["--gpu", "RTX4090"], "31234567"),
        made_for_two_runs: 2,
        lab: Some(ends),
    })
}

/// The node of a cluster, at an address of this machine.
fn node(address: &str) -> Value {
    json!({
        "metadata": {"name": NODE, "labels": {}},
        "status": {
            "allocatable": {"cpu": "7900m", "memory": "31Gi", "ephemeral-storage": "200Gi"},
            "nodeInfo": {"architecture": "amd64"},
            "conditions": [{"type": "Ready", "status": "True"}],
            "addresses": [{"type": "ExternalIP", "address": address}],
        },
    })
}

/// A cluster whose node leads to this machine.
fn cluster(lab: &'static Lab) -> Kubernetes {
    let times = Times {
        starts: Duration::from_secs(2),
        ends: Duration::from_secs(1),
        balances: Duration::from_secs(1),
    };
    let network = Box::new(LabContainers::new(lab));
    let nodes = vec![node(&lab.gateway())];
    Kubernetes::with_containers(TOKEN, nodes, SystemClock.now(), times, network)
}

pub(crate) fn kubernetes() -> Part<Cloud> {
    Ok(kubernetes_with_emulator()?.0)
}

pub(crate) fn kubernetes_with_emulator() -> Part<(Cloud, Kubernetes)> {
    let (lab, ends) = Lab::for_ever()?;
    let emulator = cluster(lab);
    Ok((cloud_of(&emulator, Some(ends)), emulator))
}

/// A cluster in whose pods nothing runs.
pub(crate) fn kubernetes_on_paper() -> (Cloud, Kubernetes) {
    let emulator = Kubernetes::new(TOKEN, vec![node("127.0.0.1")], SystemClock.now());
    (cloud_of(&emulator, None), emulator)
}

fn cloud_of(emulator: &Kubernetes, lab: Option<EndsHosts>) -> Cloud {
    Cloud {
        name: "kubernetes",
        config: kubeconfig(TOKEN),
        wrong_config: kubeconfig("wrong"),
        wrong_fields: &["kubeconfig"],
        secret: TOKEN.to_owned(),
        files: None,
        endpoint: Some(format!("kubernetes=http://{}", serve(emulator.router()))),
        books: Box::new(emulator.clone()),
        offer: (&["--cpu", "2", "--memory", "4GB"], NODE),
        // A pod and a service each.
        made_for_two_runs: 4,
        lab,
    }
}

fn kubeconfig(token: &str) -> Value {
    let data = format!(
        "apiVersion: v1\nkind: Config\ncurrent-context: lab\n\
         contexts:\n- name: lab\n  context: {{cluster: c, user: u, namespace: default}}\n\
         clusters:\n- name: c\n  cluster: {{server: 'https://192.0.2.1:6443'}}\n\
         users:\n- name: u\n  user: {{token: {token}}}\n"
    );
    json!({"type": "kubernetes", "kubeconfig": {"data": data}, "contexts": ["lab"]})
}
