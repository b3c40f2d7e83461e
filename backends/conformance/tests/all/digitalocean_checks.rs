//! What each backend for DigitalOcean has to do, by whatever it is described.

use std::sync::Arc;
use std::time::Duration;

use dstack_backend::Env;
use dstack_backend_kit::{CANARY, Cloud, Driver, Subject, machine, machine_of, requirements};
use dstack_compute::{BackendKind, ComputeError, Machine};
use dstack_emulator_digitalocean::{DigitalOcean, PROJECT, Times, size};
use dstack_model::runs::Requirements;
use serde_json::{Value, json};

use crate::with_key;

pub(crate) const TIMES: Times = Times {
    starts: Duration::from_secs(45),
    ends: Duration::from_secs(10),
};

/// Pages of lists are so small that nothing fits on one.
pub(crate) const SMALL_PAGE: usize = 2;

/// More than a small page of each list.
pub(crate) fn sizes() -> Vec<Value> {
    let h100 = |count: u64| Some(("nvidia_h100", count, 80 * count));
    let mi300x = Some(("amd_mi300x", 8, 1536));
    vec![
        size("s-4vcpu-8gb", (4, 8, 0.071_43), None, &["nyc1", "fra1"]),
        size("g-16vcpu-64gb", (16, 64, 0.75), None, &["nyc1"]),
        size("gpu-h100x1-80gb", (20, 240, 3.39), h100(1), &["tor1", "nyc2"]),
        size("gpu-h100x8-640gb", (160, 1920, 23.92), h100(8), &["tor1"]),
        size("gpu-mi300x8-1536gb", (160, 1920, 15.92), mi300x, &["atl1"]),
    ]
}

pub(crate) fn with_project(name: &str, project: &str) -> Value {
    let mut config = with_key(name, CANARY);
    config["project_name"] = json!(project);
    config
}

/// A cloud whose lists have pages of so many entries, with a backend of this type.
pub(crate) fn cloud_of(
    name: &str,
    kind: fn(Env) -> Arc<dyn BackendKind>,
    page: usize,
) -> (Arc<DigitalOcean>, Cloud) {
    let emulator = Arc::new(DigitalOcean::with(CANARY, sizes(), TIMES, page));
    let refused = vec![
        (with_key(name, "wrong"), &["creds.api_key"][..]),
        (with_project(name, "none"), &["project_name"][..]),
    ];
    let working = with_project(name, PROJECT);
    let cloud = Cloud::new(Arc::clone(&emulator) as _, kind, working, refused);
    (emulator, cloud)
}

pub(crate) fn with_gpus(gpus: &Value) -> Requirements {
    let resources = json!({"cpu": "1..", "memory": "1GB..", "disk": "1GB..", "gpu": gpus});
    requirements(&json!({"resources": resources}))
}

/// The cheapest machine with GPUs of this kind.
pub(crate) async fn gpu_machine(cloud: &Cloud, gpus: &Value) -> Subject<Machine> {
    machine_of(cloud, &with_gpus(gpus), |_| true).await
}

/// Machines with GPUs are a list of their own.
pub(crate) async fn machines_of_both_lists(cloud: Cloud) -> (Cloud, Vec<Subject<Machine>>) {
    let gpus = json!("H100:1");
    let subjects = vec![
        machine(&cloud).await,
        machine(&cloud).await,
        machine(&cloud).await,
        gpu_machine(&cloud, &gpus).await,
        gpu_machine(&cloud, &gpus).await,
        gpu_machine(&cloud, &gpus).await,
    ];
    (cloud, subjects)
}

pub(crate) async fn each_gpu_has_its_image_and_docker_is_installed_where_it_lacks(
    (emulator, cloud): (Arc<DigitalOcean>, Cloud),
) {
    for (gpus, image, has_docker) in [
        (json!(0), "ubuntu-24-04-x64", false),
        (json!("H100:1"), "gpu-h100x1-base", true),
        (json!("H100:8"), "gpu-h100x8-base", true),
        (json!("MI300X:8"), "gpu-amd-base", false),
    ] {
        let subject = gpu_machine(&cloud, &gpus).await;
        Driver::new(&cloud).make(&subject).await.unwrap();
        let asked = emulator.asked().pop().unwrap();
        assert_eq!(asked["image"], image);
        assert!(asked["project_id"].is_string());
        let user_data = asked["user_data"].as_str().unwrap();
        assert_eq!(user_data.contains("docker.io"), !has_docker, "{user_data}");
        assert!(
            user_data.contains(&subject.want.authorized_keys[0]),
            "{user_data}"
        );
    }
    // The key was added once, beside those of others.
    assert_eq!(emulator.keys().len(), 4);
}

pub(crate) async fn an_account_may_have_so_many((emulator, cloud): (Arc<DigitalOcean>, Cloud)) {
    emulator.limit(0);
    let made = Driver::new(&cloud).make(&machine(&cloud).await).await;
    assert!(matches!(made, Err(ComputeError::NoQuota(_))), "{made:?}");
}

/// The project that is named was there when the backend was configured.
pub(crate) async fn a_project_that_is_gone_is_told(mut cloud: Cloud, name: &str, told: &str) {
    cloud.config = with_project(name, "none");
    let subject = machine(&cloud).await;
    let error = Driver::new(&cloud).make(&subject).await.unwrap_err();
    assert!(
        matches!(&error, ComputeError::Configuration(text) if text.contains(told)),
        "{error:?}"
    );
}
