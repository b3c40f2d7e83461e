use std::sync::Arc;
use std::time::Duration;

use dstack_backend_kit::{
    CANARY, Cloud, Driver, Emulator as _, Subject, checks, checks_of, machine, passes_with_the_reference,
    with_machine,
};
use dstack_compute::{ComputeError, Machine, Removal, Sign};
use dstack_emulator_digitalocean::{DigitalOcean, PROJECT, Times};
use serde_json::json;

use crate::digitalocean_checks::{self, SMALL_PAGE, TIMES, gpu_machine, sizes, with_gpus};

/// As large as they are there.
const PAGE: usize = 200;

fn cloud_of(name: &str, page: usize) -> (Arc<DigitalOcean>, Cloud) {
    let kind = match name {
        "amddevcloud" => dstack_backend_digitalocean::amd_kind,
        _ => dstack_backend_digitalocean::kind,
    };
    digitalocean_checks::cloud_of(name, kind, page)
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
    digitalocean_checks::machines_of_both_lists(cloud()).await
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
    digitalocean_checks::each_gpu_has_its_image_and_docker_is_installed_where_it_lacks(digitalocean()).await;
}

#[tokio::test(start_paused = true)]
async fn memory_of_a_gpu_is_not_that_of_all() {
    let offers = cloud().offers(&with_gpus(&json!({"count": 8}))).await;
    let memory = offers
        .iter()
        .map(|offer| offer.instance.resources.gpus[0].memory_mib / 1024);
    assert_eq!(memory.collect::<Vec<_>>(), [192, 80]);
}

#[tokio::test(start_paused = true)]
async fn an_account_may_have_so_many() {
    digitalocean_checks::an_account_may_have_so_many(digitalocean()).await;
}

#[tokio::test(start_paused = true)]
async fn a_project_that_is_gone_is_named() {
    digitalocean_checks::a_project_that_is_gone_is_told(cloud(), "digitalocean", "project_name").await;
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
