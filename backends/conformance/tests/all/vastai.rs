use std::sync::Arc;
use std::time::Duration;

use dstack_backend_kit::{
    CANARY, Cloud, Driver, Emulator as _, Fault, Subject, checks, checks_of, container, container_of,
    extended, requirements, with_container, with_containers,
};
use dstack_compute::{ComputeError, Container, MountedFolder, Sign};
use dstack_emulator_vastai::VastAi;
use dstack_model::runs::Requirements;
use futures_util::future::join_all;
use serde_json::{Value, json};

/// An offer as the search has it, of an eighth of a machine.
fn row(id: i64, gpu: &str, more: &Value) -> Value {
    let row = json!({"id": id, "ask_contract_id": id, "machine_id": 178, "host_id": 2, "num_gpus": 1,
        "gpu_name": gpu, "gpu_ram": 24_564, "gpu_frac": 0.125, "cpu_cores": 128, "cpu_cores_effective": 16.0,
        "cpu_ram": 515_852, "disk_space": 812.4, "geolocation": "California, US", "dph_base": 0.302,
        "dph_total": 0.3141, "min_bid": 0.1401, "storage_cost": 0.15, "score": 241.7, "reliability2": 0.9961,
        "verification": "verified", "hosting_type": 0, "rentable": true, "rented": false, "inet_down": 812.3,
        "cuda_max_good": 12.8, "compute_cap": 890, "direct_port_count": 249});
    extended(row, more)
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
    let config = json!({"type": "vastai", "creds": {"type": "api_key", "api_key": key}});
    extended(config, more)
}

fn played(more: &Value) -> Played {
    played_with(more, rows())
}

fn played_with(more: &Value, rows: Vec<Value>) -> Played {
    let emulator = Arc::new(VastAi::new(CANARY, rows));
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

fn wanted(resources: &Value, more: &Value) -> Requirements {
    let resources = extended(
        json!({"cpu": "1..", "memory": "1GB..", "disk": "100GB.."}),
        resources,
    );
    requirements(&extended(json!({"resources": resources}), more))
}

/// Names of offers, with `s` for those that may be outbid.
async fn names(cloud: &Cloud, requirements: &Requirements) -> Vec<String> {
    let offers = cloud.offers(requirements).await;
    let name = |spot: bool, name: &str| format!("{name}{}", if spot { "s" } else { "" });
    offers
        .iter()
        .map(|offer| name(offer.instance.resources.spot, &offer.instance.name))
        .collect()
}

async fn two_containers() -> (Cloud, Vec<Subject<Container>>) {
    with_containers(cloud(), 2).await
}

checks_of!(containers: one_container, two_containers);

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
    let of = |resources: Value, more: Value| wanted(&resources, &more);
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
    let offers = cloud.offers(&gpus).await;
    assert_eq!(offers[0].instance.resources.disk.size_mib, 102_400);
    assert!(offers[0].price > 14.9, "{}", offers[0].price);
    let large = of(json!({"disk": "900GB.."}), json!({}));
    assert_eq!(names(&cloud, &large).await, [""; 0]);
}

#[tokio::test(start_paused = true)]
async fn places_and_kinds_of_hosts_are_those_of_the_configuration() {
    let all = wanted(&json!({}), &json!({"spot": false}));
    let in_sweden = played(&json!({"regions": ["se-sweden"]})).cloud;
    assert_eq!(names(&in_sweden, &all).await, ["31234568"]);
    let anywhere = played(&json!({"regions": []})).cloud;
    assert_eq!(names(&anywhere, &all).await.len(), 3);
    let data_centers = played(&json!({"community_cloud": false})).cloud;
    assert_eq!(names(&data_centers, &all).await, ["31234568"]);
}

#[tokio::test(start_paused = true)]
async fn the_same_search_is_made_once_and_has_no_offer_that_was_taken() {
    let Played { emulator, cloud } = played(&json!({}));
    let backend = cloud.open();
    let (one, other) = (
        wanted(&json!({}), &json!({})),
        wanted(&json!({"gpu": "H100:8"}), &json!({})),
    );
    let names = async || -> Vec<String> {
        let offers = backend.offers(&one).await.unwrap();
        offers.iter().map(|offer| offer.instance.name.clone()).collect()
    };
    for _ in 0..3 {
        names().await;
        backend.offers(&other).await.unwrap();
    }
    let subject = container(&cloud).await;
    let searches = emulator.searches().len();
    let taken = &subject.want.offer.instance.name;
    // It was not asked for as it was too early, or the cloud was away: it is still there.
    for fault in [Fault::Refused(429), Fault::NotSent] {
        cloud.faults().from(1, 1000, fault);
        let driver = Driver::with_backend(&cloud, Arc::clone(&backend));
        let _ = tokio::time::timeout(Duration::from_secs(20), driver.make(&subject)).await;
        cloud.faults().none();
        assert!(names().await.contains(taken), "{fault:?}");
    }
    let driver = Driver::with_backend(&cloud, Arc::clone(&backend));
    driver.make(&subject).await.unwrap();
    let left = names().await;
    assert!(!left.is_empty() && !left.contains(taken), "{left:?}");
    assert_eq!(emulator.searches().len(), searches);
    tokio::time::sleep(Duration::from_secs(200)).await;
    assert!(names().await.contains(taken));
    assert_eq!(emulator.searches().len(), searches + 1);
}

#[tokio::test(start_paused = true)]
async fn what_will_do_is_found_behind_many_offers_that_will_not() {
    let better = |more: Value| -> Vec<Value> {
        let mut more = more;
        more["score"] = json!(900.0);
        (100..200).map(|id| row(id, "RTX 4090", &more)).collect()
    };
    let found = async |others: Vec<Value>, resources: Value, more: Value| {
        let cloud = played_with(&json!({}), [others, rows()].concat()).cloud;
        let all = names(&cloud, &wanted(&resources, &more)).await;
        all.into_iter().take(2).collect::<Vec<_>>()
    };
    // The host has the memory, and the part has not.
    let little = better(json!({"cpu_cores": 512}));
    assert_eq!(
        found(little, json!({"memory": "60GB..", "gpu": "RTX4090"}), json!({})).await,
        ["31234568", "31234567s"]
    );
    let small = better(json!({}));
    assert_eq!(
        found(
            small.clone(),
            json!({"gpu": {"total_memory": "300GB.."}}),
            json!({})
        )
        .await,
        ["31234999"]
    );
    assert_eq!(
        found(
            small,
            json!({"gpu": {"memory": "24GB..", "total_memory": "..24GB"}}),
            json!({})
        )
        .await
        .len(),
        2
    );
    let dear = better(json!({"min_bid": 0.9, "dph_base": 2.0, "dph_total": 2.1}));
    for more in [json!({"spot": true, "max_price": 0.2}), json!({"max_price": 0.2})] {
        assert_eq!(found(dear.clone(), json!({}), more).await, ["31234567s"]);
    }
}

#[tokio::test(start_paused = true)]
async fn a_search_says_that_the_key_is_none() {
    let mut cloud = cloud();
    cloud.config = config("wrong", &json!({}));
    let error = cloud.open().offers(&Cloud::requirements()).await.unwrap_err();
    assert!(matches!(error, ComputeError::Credentials(_)), "{error:?}");
}

/// More than the API lists in a page or takes calls for at a time.
#[tokio::test(start_paused = true)]
async fn many_are_made_and_ended_at_once() {
    const MANY: usize = 30;
    let many = row(31_234_567, "RTX 4090", &json!({"gpu_frac": 0.01}));
    let Played { emulator, cloud } = played_with(&json!({}), vec![many]);
    let backend = cloud.open();
    let subjects = containers(&cloud, MANY).await;
    let make = async |subject| {
        let driver = Driver::with_backend(&cloud, Arc::clone(&backend));
        let place = driver.make(subject).await.unwrap();
        (driver, place)
    };
    let made = join_all(subjects.iter().map(make)).await;
    assert_eq!(emulator.ledger().alive().len(), MANY);
    assert_eq!(backend.inventory().await.unwrap().len(), MANY);
    let known: Vec<_> = subjects
        .iter()
        .zip(&made)
        .map(|(subject, (_, place))| subject.known(Some(place.clone())))
        .collect();
    let signs = backend.containers().unwrap().look(&known).await.unwrap();
    assert!(
        signs.iter().all(|sign| matches!(sign, Some(Sign::Well))),
        "{signs:?}"
    );
    let remove = async |(at, (driver, _)): (usize, &(Driver<'_>, _))| {
        driver.remove(&known[at], &subjects[at]).await;
    };
    join_all(made.iter().enumerate().map(remove)).await;
    assert_eq!(emulator.ledger().alive(), []);
    assert_eq!(emulator.ledger().count(), MANY);
    assert_eq!(emulator.early_calls(), 0);
}

/// Others use the account too.
#[tokio::test(start_paused = true)]
async fn a_call_that_came_too_early_is_made_again() {
    let Played { emulator, cloud } = played(&json!({}));
    let subjects = containers(&cloud, 5).await;
    for subject in &subjects {
        Driver::new(&cloud).make(subject).await.unwrap();
    }
    let other_server = Cloud::new(
        Arc::clone(&emulator) as _,
        dstack_backend_vastai::kind,
        cloud.config.clone(),
        vec![],
    );
    let (one, other) = (cloud.open(), other_server.open());
    let (one, other) = tokio::join!(one.inventory(), other.inventory());
    assert_eq!((one.unwrap().len(), other.unwrap().len()), (5, 5));
    assert!(emulator.early_calls() > 0);
}

async fn containers(cloud: &Cloud, count: usize) -> Vec<Subject<Container>> {
    let mut all = Vec::new();
    for _ in 0..count {
        all.push(container(cloud).await);
    }
    all
}

#[tokio::test(start_paused = true)]
async fn only_the_api_itself_says_that_something_is_gone() {
    let Played { emulator, cloud } = played(&json!({}));
    let subject = container(&cloud).await;
    let place = Driver::new(&cloud).make(&subject).await.unwrap();
    tokio::time::sleep(Duration::from_secs(300)).await;
    let backend = cloud.open();
    let owned = backend.inventory().await.unwrap().remove(0);
    let known = [subject.known(Some(place))];
    let is_told = async || {
        let signs = backend.containers().unwrap().look(&known).await;
        signs.is_ok_and(|signs| !matches!(signs.as_slice(), [None]))
            || backend.remove_owned(&owned).await.is_ok()
    };
    cloud.faults().from(1, 1000, Fault::Refused(404));
    assert!(!is_told().await);
    cloud.faults().none();
    for status in [200, 404] {
        emulator.say_nothing(status);
        assert!(!is_told().await, "{status}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_odd_instance_is_read_as_far_as_it_can_be() {
    let Played { emulator, cloud } = played(&json!({}));
    let subject = container(&cloud).await;
    let place = Driver::new(&cloud).make(&subject).await.unwrap();
    emulator.list_oddly(
        json!({"status_msg": {"text": "well"}, "dph_total": "0.3", "start_date": "2025-01-01",
        "is_bid": null, "cur_state": 7, "public_ipaddr": ["192.0.2.41"], "actual_status": false}),
    );
    let backend = cloud.open();
    assert_eq!(backend.inventory().await.unwrap().len(), 1);
    let known = [subject.known(Some(place))];
    let signs = backend.containers().unwrap().look(&known).await.unwrap();
    assert!(matches!(signs.as_slice(), [Some(Sign::Well)]), "{signs:?}");
    // What it is called is not to be guessed.
    emulator.list_oddly(json!({"label": 7}));
    backend.inventory().await.unwrap_err();
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
    let spot = wanted(&json!({}), &json!({"spot": true}));
    let subject = container_of(&cloud, spot, |_| true).await;
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

pub(crate) async fn one_container() -> (Cloud, Subject<Container>) {
    with_container(cloud()).await
}
