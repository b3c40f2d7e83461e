use std::sync::Arc;
use std::time::Duration;

use dstack_backend_kit::{CANARY, Cloud, Driver, Emulator as _, checks, container, soak};
use dstack_compute::{ComputeError, Container, MountedFolder};
use dstack_emulator_vastai::VastAi;
use dstack_model::decode::decode_strict;
use dstack_model::runs::Requirements;
use serde_json::{Value, json};

/// An offer as the search has it, of an eighth of a machine.
fn row(id: i64, gpu: &str, more: &Value) -> Value {
    let mut row = json!({"id": id, "ask_contract_id": id, "machine_id": 178, "host_id": 2, "num_gpus": 1,
        "gpu_name": gpu, "gpu_ram": 24_564, "gpu_frac": 0.125, "cpu_cores": 128, "cpu_cores_effective": 16.0,
        "cpu_ram": 515_852, "disk_space": 812.4, "geolocation": "California, US", "dph_base": 0.302,
        "dph_total": 0.3141, "min_bid": 0.1401, "storage_cost": 0.15, "score": 241.7, "reliability2": 0.9961,
        "verification": "verified", "hosting_type": 0, "rentable": true, "rented": false, "inet_down": 812.3,
        "cuda_max_good": 12.8, "compute_cap": 890, "direct_port_count": 249});
    row.as_object_mut()
        .unwrap()
        .extend(more.as_object().unwrap().clone());
    row
}

fn rows() -> Vec<Value> {
    vec![
        row(31_234_567, "RTX 4090", &json!({})),
        // Dearer, and of a better score.
        row(
            31_234_568,
            "RTX 4090",
            &json!({"dph_base": 0.4, "score": 300.0, "min_bid": null, "geolocation": "Sweden, SE", "hosting_type": 1}),
        ),
        row(
            31_234_999,
            "H100 SXM",
            &json!({"num_gpus": 8, "gpu_ram": 81_559, "gpu_frac": 1.0, "cpu_cores": 192, "cpu_cores_effective": 192.0,
                "cpu_ram": 2_063_936, "dph_base": 14.9, "dph_total": 15.2, "min_bid": null, "score": 200.0,
                "compute_cap": 900}),
        ),
        // What nobody is to have: no port, not reliable, not verified, slow, too old.
        row(1, "RTX 4090", &json!({"direct_port_count": 0})),
        row(2, "RTX 4090", &json!({"reliability2": 0.8})),
        row(3, "RTX 4090", &json!({"verification": "unverified"})),
        row(4, "RTX 4090", &json!({"inet_down": 100.0})),
        row(5, "RTX 4090", &json!({"cuda_max_good": 12.4})),
        row(6, "RTX 4090", &json!({"geolocation": null})),
    ]
}

struct Played {
    emulator: Arc<VastAi>,
    cloud: Cloud,
}

fn config(key: &str, more: &Value) -> Value {
    let mut config = json!({"type": "vastai", "creds": {"type": "api_key", "api_key": key}});
    config
        .as_object_mut()
        .unwrap()
        .extend(more.as_object().unwrap().clone());
    config
}

fn played(more: &Value) -> Played {
    let emulator = Arc::new(VastAi::new(CANARY, rows()));
    let refused = vec![(config("wrong", more), &["creds.api_key"][..])];
    let cloud = Cloud::new(
        Arc::clone(&emulator) as _,
        dstack_backend_vastai::kind,
        config(CANARY, more),
        refused,
    );
    Played { emulator, cloud }
}

fn cloud() -> Cloud {
    played(&json!({})).cloud
}

fn requirements(resources: Value, more: Value) -> Requirements {
    let mut all = json!({"resources": {"cpu": "1..", "memory": "1GB..", "disk": "100GB.."}});
    let set = |target: &mut Value, more: Value| {
        for (name, value) in more.as_object().unwrap() {
            target[name] = value.clone();
        }
    };
    set(&mut all["resources"], resources);
    set(&mut all, more);
    decode_strict(&all).unwrap()
}

/// Names of offers, with `s` for those that may be outbid.
async fn names(cloud: &Cloud, requirements: &Requirements) -> Vec<String> {
    let offers = cloud.open().offers(requirements).await.unwrap();
    let name = |spot: bool, name: &str| format!("{name}{}", if spot { "s" } else { "" });
    offers
        .iter()
        .map(|offer| name(offer.instance.resources.spot, &offer.instance.name))
        .collect()
}

#[tokio::test(start_paused = true)]
async fn credentials() {
    checks::credentials(&cloud()).await;
}

#[tokio::test(start_paused = true)]
async fn offers() {
    checks::offers(&cloud()).await;
}

#[tokio::test(start_paused = true)]
async fn offers_are_those_that_can_be_used_the_best_first() {
    let cloud = cloud();
    let of = |resources: Value, more: Value| requirements(resources, more);
    // By score; of one machine, the bid is cheaper.
    let all = of(json!({}), json!({}));
    assert_eq!(
        names(&cloud, &all).await,
        ["31234568", "31234567s", "31234567", "31234999"]
    );
    let by_price = json!({"backend_options": [{"type": "vastai", "offer_order": "price"}]});
    assert_eq!(
        names(&cloud, &of(json!({}), by_price)).await,
        ["31234567s", "31234567", "31234568", "31234999"]
    );
    let demanding = json!({"backend_options": [{"type": "vastai", "min_score": 250}]});
    assert_eq!(names(&cloud, &of(json!({}), demanding)).await, ["31234568"]);
    let loose = json!({"backend_options": [{"type": "vastai", "min_reliability": 0.5}]});
    assert!(
        names(&cloud, &of(json!({}), loose))
            .await
            .contains(&"2".to_owned())
    );
    let spot = of(json!({}), json!({"spot": true}));
    assert_eq!(names(&cloud, &spot).await, ["31234567s"]);
    // The bid is below what the machine costs on demand.
    let cheap = of(json!({}), json!({"max_price": 0.2}));
    assert_eq!(names(&cloud, &cheap).await, ["31234567s"]);
    // Parts of hosts with many CPUs and much memory.
    let small = of(
        json!({"cpu": "2..16", "memory": "8GB..80GB"}),
        json!({"spot": false}),
    );
    assert_eq!(names(&cloud, &small).await, ["31234568", "31234567"]);
    let gpus = of(json!({"gpu": "H100:8"}), json!({}));
    assert_eq!(names(&cloud, &gpus).await, ["31234999"]);
    // The disk is as large as asked for, and part of the price.
    let offers = cloud.open().offers(&gpus).await.unwrap();
    assert_eq!(offers[0].instance.resources.disk.size_mib, 102_400);
    assert!(offers[0].price > 14.9, "{}", offers[0].price);
    let large = of(json!({"disk": "900GB.."}), json!({}));
    assert_eq!(names(&cloud, &large).await, [""; 0]);
}

#[tokio::test(start_paused = true)]
async fn places_and_kinds_of_hosts_are_those_of_the_configuration() {
    let all = requirements(json!({}), json!({"spot": false}));
    let in_sweden = played(&json!({"regions": ["se-sweden"]})).cloud;
    assert_eq!(names(&in_sweden, &all).await, ["31234568"]);
    let anywhere = played(&json!({"regions": []})).cloud;
    assert_eq!(names(&anywhere, &all).await.len(), 3);
    let data_centers = played(&json!({"community_cloud": false})).cloud;
    assert_eq!(names(&data_centers, &all).await, ["31234568"]);
}

#[tokio::test(start_paused = true)]
async fn the_same_search_is_made_once_until_something_is_rented() {
    let Played { emulator, cloud } = played(&json!({}));
    let backend = cloud.open();
    let (one, other) = (
        requirements(json!({}), json!({})),
        requirements(json!({"gpu": "H100:8"}), json!({})),
    );
    for _ in 0..3 {
        backend.offers(&one).await.unwrap();
        backend.offers(&other).await.unwrap();
    }
    assert_eq!(emulator.searches().len(), 2);
    tokio::time::sleep(Duration::from_secs(200)).await;
    backend.offers(&one).await.unwrap();
    assert_eq!(emulator.searches().len(), 3);
}

#[tokio::test(start_paused = true)]
async fn a_container_lives_and_ends() {
    let cloud = cloud();
    checks::whole_life(&cloud, &container(&cloud).await).await;
}

#[tokio::test(start_paused = true)]
async fn a_container_is_asked_for_as_it_is_to_run() {
    let Played { emulator, cloud } = played(&json!({}));
    let subject = container(&cloud).await;
    let place = Driver::new(&cloud).make(&subject).await.unwrap();
    assert_eq!(
        (place.hostname.as_deref(), place.ssh_port, place.username.as_str()),
        (Some("192.0.2.41"), Some(20011), "root")
    );
    let asked = emulator.asked().remove(0);
    assert_eq!(asked["env"], json!({"-p 10022:10022": "1"}));
    assert_eq!(asked["args"], json!(["-c", "sleep infinity"]));
    assert_eq!(asked["onstart"], "/bin/sh");
    assert_eq!(asked["price"], json!(null));
    assert_eq!(
        asked["image_login"],
        format!("-u puller -p {CANARY} registry.example")
    );
}

#[tokio::test(start_paused = true)]
async fn spot_is_bid_for() {
    let Played { emulator, cloud } = played(&json!({}));
    let spot = requirements(json!({}), json!({"spot": true}));
    let mut subject = container(&cloud).await;
    subject.want.offer = cloud.open().offers(&spot).await.unwrap().remove(0);
    let driver = Driver::new(&cloud);
    let place = driver.make(&subject).await.unwrap();
    assert_eq!(emulator.asked()[0]["price"], json!(0.1401));
    driver.remove(&subject.known(Some(place)), &subject).await;
    // Somebody bids more meanwhile: a contract is there although the call fails, and is ended.
    emulator.raise_bids();
    let error = Driver::new(&cloud).make(&subject).await.unwrap_err();
    assert!(matches!(error, ComputeError::NoCapacity(_)), "{error:?}");
    assert_eq!(emulator.ledger().count(), 2);
    assert_eq!(emulator.ledger().alive(), []);
}

#[tokio::test(start_paused = true)]
async fn what_cannot_be_had_is_told_apart() {
    let Played { emulator, cloud } = played(&json!({}));
    let mut subject = container(&cloud).await;
    subject.want.workload.image = "registry.example/team/broken:1".to_owned();
    let error = Driver::new(&cloud).make(&subject).await.unwrap_err();
    assert!(
        matches!(&error, ComputeError::Broken(why) if why.contains("OCI runtime create failed")),
        "{error:?}"
    );
    assert_eq!(emulator.ledger().alive(), []);

    let mut subject = container(&cloud).await;
    subject.want.workload.privileged = true;
    let error = Driver::new(&cloud).make(&subject).await.unwrap_err();
    assert!(matches!(error, ComputeError::Refused(_)), "{error:?}");
    let mut subject = container(&cloud).await;
    subject.want.workload.folders = vec![MountedFolder {
        node_path: "/data".to_owned(),
        path: "/data".to_owned(),
        optional: false,
    }];
    let error = Driver::new(&cloud).make(&subject).await.unwrap_err();
    assert!(matches!(error, ComputeError::Refused(_)), "{error:?}");

    let subject = container(&cloud).await;
    emulator.use_up_credit();
    let error = Driver::new(&cloud).make(&subject).await.unwrap_err();
    assert!(matches!(error, ComputeError::NoQuota(_)), "{error:?}");
    assert_eq!(emulator.ledger().count(), 1);
}

#[tokio::test(start_paused = true)]
async fn nothing_is_to_be_had() {
    let cloud = cloud();
    checks::sold_out(&cloud, &container(&cloud).await).await;
}

#[tokio::test(start_paused = true)]
async fn what_breaks_is_seen() {
    let cloud = cloud();
    checks::loss(&cloud, &container(&cloud).await).await;
}

async fn one_container() -> (Cloud, dstack_backend_kit::Subject<Container>) {
    let cloud = cloud();
    let subject = container(&cloud).await;
    (cloud, subject)
}

#[tokio::test(start_paused = true)]
async fn whatever_happens_nothing_is_made_twice_or_left() {
    checks::any_fault_anywhere(one_container).await;
}

#[tokio::test(start_paused = true)]
async fn another_attempt_makes_another_container() {
    checks::another_attempt(one_container).await;
}

#[tokio::test(start_paused = true)]
async fn containers_of_others_are_neither_taken_nor_ended() {
    checks::neighbours(async || {
        let cloud = cloud();
        let subjects = vec![container(&cloud).await, container(&cloud).await];
        (cloud, subjects)
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn what_was_left_behind_is_found_and_ended() {
    checks::left_behind(one_container).await;
}

#[tokio::test(start_paused = true)]
async fn what_is_removed_before_it_is_listed_is_not_left() {
    checks::removed_before_listed(one_container).await;
}

#[tokio::test(start_paused = true)]
async fn many_lives_of_containers() {
    let (cloud, subject) = one_container().await;
    soak(&cloud, &subject).await;
}
