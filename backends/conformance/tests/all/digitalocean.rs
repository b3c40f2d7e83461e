use std::sync::Arc;
use std::time::Duration;

use dstack_backend_kit::{
    CANARY, Cloud, Driver, Emulator as _, Subject, checks, checks_of, machine, machine_of,
    passes_with_the_reference, requirements, with_machine,
};
use dstack_compute::{ComputeError, Machine, Removal, Sign};
use dstack_emulator_digitalocean::{DigitalOcean, PROJECT, Times, size};
use dstack_model::runs::Requirements;
use serde_json::{Value, json};

/// More than a page of each list.
fn sizes() -> Vec<Value> {
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

/// Pages of lists are so small that nothing fits on one.
const SMALL_PAGE: usize = 2;

/// As large as they are there.
const PAGE: usize = 200;

const TIMES: Times = Times {
    starts: Duration::from_secs(45),
    ends: Duration::from_secs(10),
};

fn config(kind: &str, key: &str, project: Option<&str>) -> Value {
    json!({"type": kind, "project_name": project, "creds": {"type": "api_key", "api_key": key}})
}

fn cloud_of(kind: &str, page: usize) -> (Arc<DigitalOcean>, Cloud) {
    let make = match kind {
        "amddevcloud" => dstack_backend_digitalocean::amd_kind,
        _ => dstack_backend_digitalocean::kind,
    };
    let emulator = Arc::new(DigitalOcean::with(CANARY, sizes(), TIMES, page));
    let refused = vec![
        (config(kind, "wrong", None), &["creds.api_key"][..]),
        (config(kind, CANARY, Some("none")), &["project_name"][..]),
    ];
    let working = config(kind, CANARY, Some(PROJECT));
    let cloud = Cloud::new(Arc::clone(&emulator) as _, make, working, refused);
    (emulator, cloud)
}

fn digitalocean() -> (Arc<DigitalOcean>, Cloud) {
    cloud_of("digitalocean", SMALL_PAGE)
}

fn cloud() -> Cloud {
    digitalocean().1
}

fn amd_cloud() -> Cloud {
    cloud_of("amddevcloud", SMALL_PAGE).1
}

fn with(gpus: &Value) -> Requirements {
    let resources = json!({"cpu": "1..", "memory": "1GB..", "disk": "1GB..", "gpu": gpus});
    requirements(&json!({"resources": resources}))
}

/// The cheapest machine with GPUs of this kind.
async fn gpu_machine(cloud: &Cloud, gpus: &Value) -> Subject<Machine> {
    machine_of(cloud, &with(gpus), |_| true).await
}

pub(crate) async fn one_machine() -> (Cloud, Subject<Machine>) {
    with_machine(cloud()).await
}

pub(crate) async fn one_of_amd() -> (Cloud, Subject<Machine>) {
    with_machine(amd_cloud()).await
}

/// Of which there is a list of its own, and which the page is too short for.
async fn one_with_gpus() -> (Cloud, Subject<Machine>) {
    let cloud = cloud_of("amddevcloud", PAGE).1;
    let subject = gpu_machine(&cloud, &json!("MI300X:8")).await;
    (cloud, subject)
}

async fn machines_of_both_lists() -> (Cloud, Vec<Subject<Machine>>) {
    let cloud = cloud();
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

checks_of!(machines: one_machine, machines_of_both_lists);
checks_of!(machines_of_amd: one_of_amd, machines_of_both_lists; whole_life, loss, soak);
checks_of!(machines_with_gpus: one_with_gpus, machines_of_both_lists;
    whole_life, sold_out, loss, any_fault_anywhere, left_behind, removed_before_listed);

#[tokio::test(start_paused = true)]
async fn credentials() {
    checks::credentials(&cloud()).await;
    checks::credentials(&amd_cloud()).await;
}

#[tokio::test(start_paused = true)]
async fn offers() {
    checks::offers(&cloud()).await;
    checks::offers(&amd_cloud()).await;
}

#[tokio::test(start_paused = true)]
async fn regions_restrict_offers() {
    let (_, mut cloud) = digitalocean();
    let regions = async |cloud: &Cloud| {
        let offers = cloud.offers(&Cloud::requirements()).await;
        let mut regions: Vec<String> = offers.iter().map(|offer| offer.region.to_string()).collect();
        regions.sort();
        regions.dedup();
        regions
    };
    assert_eq!(regions(&cloud).await, ["atl1", "fra1", "nyc1", "nyc2", "tor1"]);
    cloud.config["regions"] = json!(["fra1", "tor1"]);
    assert_eq!(regions(&cloud).await, ["fra1", "tor1"]);
    cloud.config["regions"] = json!([]);
    assert_eq!(regions(&cloud).await, [""; 0]);
}

#[tokio::test(start_paused = true)]
async fn each_gpu_has_its_image_and_docker_is_installed_where_it_lacks() {
    let (emulator, cloud) = digitalocean();
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

#[tokio::test(start_paused = true)]
async fn memory_of_a_gpu_is_not_that_of_all() {
    let offers = cloud().offers(&with(&json!({"count": 8}))).await;
    let memory = offers
        .iter()
        .map(|offer| offer.instance.resources.gpus[0].memory_mib / 1024);
    assert_eq!(memory.collect::<Vec<_>>(), [192, 80]);
}

#[tokio::test(start_paused = true)]
async fn an_account_may_have_so_many() {
    let (emulator, cloud) = digitalocean();
    emulator.limit(0);
    let made = Driver::new(&cloud).make(&machine(&cloud).await).await;
    assert!(matches!(made, Err(ComputeError::NoQuota(_))), "{made:?}");
}

#[tokio::test(start_paused = true)]
async fn a_project_that_is_gone_is_named() {
    let mut cloud = cloud();
    cloud.config["project_name"] = json!("none");
    let error = Driver::new(&cloud)
        .make(&machine(&cloud).await)
        .await
        .unwrap_err();
    assert!(
        matches!(&error, ComputeError::Configuration(text) if text.contains("project_name")),
        "{error:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn what_is_listed_late_is_waited_for() {
    let (emulator, cloud) = digitalocean();
    emulator.lag(Duration::from_secs(50));
    let made = Driver::new(&cloud).make(&machine(&cloud).await).await;
    made.unwrap();
    assert_eq!(emulator.ledger().count(), 1);
}

#[tokio::test(start_paused = true)]
async fn what_others_have_deleted_is_lost() {
    let (emulator, cloud) = digitalocean();
    let subject = machine(&cloud).await;
    let place = Driver::new(&cloud).make(&subject).await.unwrap();
    emulator.delete_all();
    tokio::time::sleep(TIMES.ends).await;
    let sign = subject.sign(&*cloud.open(), &subject.known(Some(place))).await;
    assert!(matches!(sign, Some(Sign::Lost(_))), "{sign:?}");
}

#[tokio::test(start_paused = true)]
async fn a_machine_that_is_busy_is_ended_later() {
    let (_, cloud) = digitalocean();
    let subject = machine(&cloud).await;
    Driver::new(&cloud).make(&subject).await.unwrap();
    let backend = cloud.open();
    let owned = backend.inventory().await.unwrap().remove(0);
    assert_eq!((&*owned.region, owned.price), ("nyc1", Some(0.071_43)));
    let removal = backend.remove_owned(&owned).await.unwrap();
    assert!(matches!(removal, Removal::Underway { .. }), "{removal:?}");
    let refused = backend.remove_owned(&owned).await.unwrap_err();
    let ComputeError::InUse(why) = &refused else {
        panic!("{refused:?}");
    };
    assert!(why.contains("pending event"), "{why}");
    tokio::time::sleep(TIMES.ends).await;
    assert_eq!(backend.remove_owned(&owned).await.unwrap(), Removal::Gone);
}

/// By its own calls, not by ours: what only our own code has met proves little.
#[tokio::test]
async fn the_reference_finds_its_way_in_the_emulated_cloud() {
    let times = Times {
        starts: Duration::from_millis(50),
        ends: Duration::from_millis(50),
    };
    let emulator = DigitalOcean::with(CANARY, sizes(), times, PAGE);
    if !passes_with_the_reference("digitalocean", &emulator, &[CANARY, PROJECT]).await {
        return;
    }
    assert_eq!(emulator.ledger().alive(), []);
    assert_eq!(
        emulator.ledger().count(),
        14,
        "one of each size and region, twice"
    );
}
