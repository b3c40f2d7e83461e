use std::sync::Arc;
use std::time::Duration;

use dstack_backend_kit::{
    CANARY, Cloud, Driver, Emulator as _, Fault, Notes, Subject, checks, checks_of, container, extended,
    passes_with_the_reference, requirements, volume, with_container, with_containers,
};
use dstack_compute::{ComputeError, Container, MountedVolume, Owned, OwnedKind, Step, Volume, VolumeRequest};
use dstack_emulator_lium::Lium;
use dstack_model::runs::Requirements;
use serde_json::{Value, json};

fn node(id: &str, more: &Value) -> Value {
    let node = json!({"id": id, "rent_url": format!("https://lium.io/rent/{id}"), "gpu_model": "H100 80GB HBM3",
        "gpu_count": 8, "available_gpu_count": 8, "min_rentable_gpu_count": 1, "price_per_gpu_hour": 2.1,
        "gpu_memory_gb": 80, "cpu_count": 224, "ram_gb": 2015, "disk_free_gb": 1467, "country_code": "US",
        "region": "CA", "tier": "secure"});
    extended(node, more)
}

fn nodes() -> Vec<Value> {
    vec![
        node("6f0c2d1e-77aa-4c0f-9a1e-0f6a3b2c1d00", &json!({})),
        // All of it or nothing.
        node(
            "0a0a2d1e-77aa-4c0f-9a1e-0f6a3b2c1d01",
            &json!({"gpu_model": "RTX 5090", "gpu_count": 4, "available_gpu_count": 4, "min_rentable_gpu_count": 4,
                "price_per_gpu_hour": 0.6, "gpu_memory_gb": 32, "cpu_count": 64, "ram_gb": 252, "disk_free_gb": 900,
                "country_code": "JP", "region": "13", "tier": "spot"}),
        ),
        // Nobody knows where it is.
        node(
            "0b0b2d1e-77aa-4c0f-9a1e-0f6a3b2c1d02",
            &json!({"country_code": null}),
        ),
    ]
}

struct Played {
    emulator: Arc<Lium>,
    cloud: Cloud,
}

fn played(more: &Value) -> Played {
    played_with(nodes(), more)
}

fn played_with(nodes: Vec<Value>, more: &Value) -> Played {
    let config = |key: &str| {
        let config = json!({"type": "lium", "creds": {"type": "api_key", "api_key": key}});
        extended(config, more)
    };
    let emulator = Arc::new(Lium::new(CANARY, nodes));
    let refused = vec![(config("wrong"), &["creds.api_key"][..])];
    let cloud = Cloud::new(
        Arc::clone(&emulator) as _,
        dstack_backend_lium::kind,
        config(CANARY),
        refused,
    );
    Played { emulator, cloud }
}

fn cloud() -> Cloud {
    played(&json!({})).cloud
}

fn volume_config() -> Value {
    json!({"type": "volume", "backend": "lium", "name": "data"})
}

pub(crate) async fn one_container() -> (Cloud, Subject<Container>) {
    with_container(cloud()).await
}

/// Of a Lium that does not know repeated calls, and tells nothing but lists.
async fn one_container_without_keys() -> (Cloud, Subject<Container>) {
    let Played { emulator, cloud } = played(&json!({}));
    emulator.forget_keys();
    emulator.hide_events();
    with_container(cloud).await
}

async fn two_containers_without_keys() -> (Cloud, Vec<Subject<Container>>) {
    let Played { emulator, cloud } = played(&json!({}));
    emulator.forget_keys();
    with_containers(cloud, 2).await
}

async fn one_volume() -> (Cloud, Subject<Volume>) {
    let cloud = cloud();
    let subject = volume(&cloud, &volume_config());
    (cloud, subject)
}

async fn two_containers() -> (Cloud, Vec<Subject<Container>>) {
    with_containers(cloud(), 2).await
}

async fn two_volumes() -> (Cloud, Vec<Subject<Volume>>) {
    let cloud = cloud();
    let subjects = vec![volume(&cloud, &volume_config()), volume(&cloud, &volume_config())];
    (cloud, subjects)
}

checks_of!(containers: one_container, two_containers;
    sold_out, loss, any_fault_anywhere, another_attempt, neighbours, left_behind, removed_before_listed, soak);
mod without_keys {
    use super::*;

    checks_of!(containers: one_container_without_keys, two_containers_without_keys;
        whole_life, any_fault_anywhere, another_attempt, neighbours, left_behind, removed_before_listed, soak);
}
checks_of!(volumes: one_volume, two_volumes;
    whole_life, sold_out, any_fault_anywhere, another_attempt, neighbours, left_behind, removed_before_listed, soak);

#[tokio::test(start_paused = true)]
async fn credentials() {
    checks::credentials(&cloud()).await;
}

#[tokio::test(start_paused = true)]
async fn offers() {
    checks::offers(&cloud()).await;
}

#[tokio::test(start_paused = true)]
async fn parts_of_nodes_are_offered_where_they_are_wanted() {
    let of =
        |resources: Value, spot: Option<bool>| requirements(&json!({"resources": resources, "spot": spot}));
    let found = async |cloud: &Cloud, requirements: &Requirements| -> Vec<(String, usize)> {
        let offers = cloud.offers(requirements).await;
        let row = |offer: &dstack_model::offers::InstanceOfferWithAvailability| {
            (offer.region.to_string(), offer.instance.resources.gpus.len())
        };
        offers.iter().map(row).collect()
    };
    let gpus = json!({"cpu": "1..", "memory": "1GB..", "disk": "50GB..", "gpu": "1..2"});
    let two = [("us-ca".to_owned(), 1), ("us-ca".to_owned(), 2)];
    assert_eq!(found(&cloud(), &of(gpus.clone(), None)).await, two);
    let spot = json!({"cpu": "1..", "memory": "1GB..", "disk": "50GB..", "gpu": "1.."});
    let four = [("jp-13".to_owned(), 4)];
    assert_eq!(found(&cloud(), &of(spot.clone(), Some(true))).await, four);
    let in_japan = played(&json!({"regions": ["jp-13"]})).cloud;
    assert_eq!(found(&in_japan, &of(spot, None)).await, four);
    let large = json!({"cpu": "1..", "memory": "1GB..", "disk": "600GB..", "gpu": "1.."});
    assert_eq!(found(&cloud(), &of(large, None)).await, []);
}

#[tokio::test(start_paused = true)]
async fn a_container_lives_and_ends() {
    let Played { emulator, cloud } = played(&json!({}));
    checks::whole_life(&cloud, &container(&cloud).await).await;
    assert_eq!(emulator.logins(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_container_is_asked_for_as_it_is_to_run() {
    let Played { emulator, cloud } = played(&json!({}));
    let mut subject = container(&cloud).await;
    subject.want.workload.script = "echo 'a b'\nsleep infinity".to_owned();
    subject.want.workload.authorized_keys.truncate(1);
    let place = Driver::new(&cloud).make(&subject).await.unwrap();
    assert_eq!(
        (place.hostname.as_deref(), place.ssh_port, place.ssh_proxy),
        (Some("192.0.2.41"), Some(20023), None)
    );
    let asked = emulator.asked();
    assert_eq!(
        (
            asked[0]["entrypoint"].as_str(),
            asked[0]["startup_commands"].as_str()
        ),
        (Some("/bin/sh"), Some("-c 'echo '\\''a b'\\''\nsleep infinity'"))
    );
    assert!(asked[0]["docker_credential_id"].is_string());
    assert_eq!(asked[1]["gpu_count"], 1);
    assert_eq!(
        asked[1]["user_public_key"],
        json!(subject.want.workload.authorized_keys[0])
    );
}

#[tokio::test(start_paused = true)]
async fn a_node_with_one_port_is_gone_through() {
    let Played { emulator, cloud } = played(&json!({}));
    emulator.map_one_port_only();
    let place = Driver::new(&cloud).make(&container(&cloud).await).await.unwrap();
    let proxy = place.ssh_proxy.unwrap();
    assert_eq!(
        (place.hostname.as_deref(), place.ssh_port),
        (Some("localhost"), Some(10_022))
    );
    assert_eq!((proxy.hostname.as_str(), proxy.port), ("192.0.2.41", 20022));
}

#[tokio::test(start_paused = true)]
async fn keys_of_users_may_go_through_a_node() {
    let Played { emulator, cloud } = played(&json!({}));
    let mut subject = container(&cloud).await;
    let keys = &mut subject.want.workload.authorized_keys;
    keys.truncate(1);
    keys.push("ssh-ed25519 BBBB".to_owned());
    Driver::new(&cloud).make(&subject).await.unwrap();
    let asked = emulator.asked();
    let command = asked[0]["startup_commands"].as_str().unwrap();
    assert!(
        command.contains("command=\"/bin/false\" %s") && command.contains("\nssh-ed25519 BBBB\n"),
        "{command}"
    );
    assert!(!command.contains(subject.want.workload.authorized_keys[0].as_str()));
}

/// A call for a pod whose answer is lost and that is not listed is made again with the same key, and finds the same pod.
#[tokio::test(start_paused = true)]
async fn a_pod_that_is_listed_late_is_rented_once() {
    let Played { emulator, cloud } = played(&json!({}));
    let subject = container(&cloud).await;
    // After the login and the template.
    cloud.faults().at(3, Fault::AnswerLost);
    emulator.lag(Duration::from_secs(50));
    let driver = Driver::new(&cloud);
    let place = driver.make(&subject).await.unwrap();
    assert!(cloud.faults().happened());
    assert_eq!(emulator.ledger().doubled(), Vec::<String>::new());
    driver.remove(&subject.known(Some(place)), &subject).await;
    assert_eq!(emulator.ledger().alive(), []);
}

/// Where Lium does not know a repeated call, it is not made again before it is certain that nothing came of the first.
#[tokio::test(start_paused = true)]
async fn where_keys_are_not_known_a_call_without_an_answer_is_not_repeated() {
    let Played { emulator, cloud } = played(&json!({}));
    emulator.forget_keys();
    emulator.hide_events();
    let subject = container(&cloud).await;
    cloud.faults().at(3, Fault::AnswerLost);
    emulator.lag(Duration::from_secs(50));
    let driver = Driver::new(&cloud);
    let place = driver.make(&subject).await.unwrap();
    assert!(cloud.faults().happened());
    assert_eq!(
        (emulator.ledger().doubled(), emulator.ledger().count()),
        (Vec::new(), 2)
    );
    driver.remove(&subject.known(Some(place)), &subject).await;
    assert_eq!(emulator.ledger().alive(), []);
}

/// Lists may be late, and events tell of the pod already.
#[tokio::test(start_paused = true)]
async fn a_pod_that_is_listed_late_is_found_in_the_events() {
    let Played { emulator, cloud } = played(&json!({}));
    emulator.forget_keys();
    let subject = container(&cloud).await;
    cloud.faults().at(3, Fault::AnswerLost);
    emulator.lag(Duration::from_secs(50));
    let (backend, notes) = (cloud.open(), Notes::default());
    notes.make(&cloud, &*backend, &subject).await.unwrap_err();
    let step = notes.ensure(&cloud, &*backend, &subject).await.unwrap();
    assert!(
        matches!(&step, Step::Underway { doing, .. } if doing == "the pod is listed"),
        "{step:?}"
    );
    let place = notes.make(&cloud, &*backend, &subject).await.unwrap();
    notes.remove(&cloud, &subject, Some(place)).await.unwrap();
    assert_eq!(emulator.ledger().alive(), []);
}

#[tokio::test(start_paused = true)]
async fn what_cannot_be_had_is_told_apart() {
    let Played { emulator, cloud } = played(&json!({}));
    let subject = container(&cloud).await;
    emulator.use_up_money();
    let error = Driver::new(&cloud).make(&subject).await.unwrap_err();
    assert!(matches!(error, ComputeError::NoQuota(_)), "{error:?}");
    assert_eq!((emulator.ledger().alive(), emulator.logins()), (Vec::new(), 0));
    let mut subject = container(&cloud).await;
    subject.want.workload.privileged = true;
    let error = Driver::new(&cloud).make(&subject).await.unwrap_err();
    assert!(matches!(error, ComputeError::Refused(_)), "{error:?}");
}

#[tokio::test(start_paused = true)]
async fn a_volume_that_exists_is_registered() {
    let cloud = cloud();
    let made = Driver::new(&cloud)
        .make(&volume(&cloud, &volume_config()))
        .await
        .unwrap();
    let backend = cloud.open();
    let ask = |id: &str| {
        let configuration = json!({"type": "volume", "backend": "lium", "name": "data", "volume_id": id});
        VolumeRequest {
            ..volume(&cloud, &configuration).want
        }
    };
    let volumes = backend.volumes().unwrap();
    assert_eq!(volumes.register(&ask(&made.volume_id)).await.unwrap(), made);
    for id in ["gone", "../pods", ""] {
        let error = volumes.register(&ask(id)).await.unwrap_err();
        assert!(matches!(error, ComputeError::Refused(_)), "{id}: {error:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_volume_is_deleted_when_no_pod_has_it_any_more() {
    let Played { emulator, cloud } = played(&json!({}));
    let driver = Driver::new(&cloud);
    let disk = volume(&cloud, &volume_config());
    let made = driver.make(&disk).await.unwrap();
    let mut subject = container(&cloud).await;
    subject.want.workload.volumes = vec![MountedVolume {
        name: "data".to_owned(),
        volume: made.clone(),
        path: "/data".to_owned(),
    }];
    let pods = Driver::new(&cloud);
    let place = pods.make(&subject).await.unwrap();
    let asked = emulator.asked();
    assert_eq!(asked[1]["volume_id"], json!(made.volume_id));
    let command = asked[0]["startup_commands"].as_str().unwrap();
    assert!(command.contains("mount --bind /mnt"), "{command}");
    let owned = cloud.open().inventory().await.unwrap();
    let owned = owned
        .iter()
        .find(|owned| owned.kind == OwnedKind::Volume)
        .unwrap();
    let error = cloud.open().remove_owned(owned).await.unwrap_err();
    assert!(matches!(error, ComputeError::InUse(_)), "{error:?}");
    pods.remove(&subject.known(Some(place)), &subject).await;
    driver.remove(&disk.known(Some(made)), &disk).await;
    assert_eq!(emulator.ledger().alive(), []);
}

/// What dstack 0.22.5 has made is removed with its template and login, of which nothing was noted.
#[tokio::test(start_paused = true)]
async fn what_the_reference_has_made_is_removed_whole() {
    let Played { emulator, cloud } = played(&json!({}));
    let subject = container(&cloud).await;
    let mut place = Driver::new(&cloud).make(&subject).await.unwrap();
    let owned = cloud.open().inventory().await.unwrap();
    let template = owned
        .iter()
        .find(|owned| matches!(owned.kind, OwnedKind::Piece(_)))
        .unwrap();
    let login = emulator.asked()[0]["docker_credential_id"].clone();
    let stored = json!({"pod_name": "p", "executor_id": "e", "startup_command": "true", "template_id": template.id,
        "credential_id": login, "rent_payload": null, "idempotency_key": null, "rent_started_at": null, "rent_failed": false});
    place.backend_data = Some(stored.to_string());
    Driver::new(&cloud)
        .remove(&subject.known(Some(place)), &subject)
        .await;
    assert_eq!((emulator.ledger().alive(), emulator.logins()), (Vec::new(), 0));
}

/// dstack 0.22.5 had no answer to its call for the pod: it is known by its name.
#[tokio::test(start_paused = true)]
async fn a_pod_of_the_reference_without_an_answer_is_found_by_its_name() {
    for at in 1..=12 {
        let Played { emulator, cloud } = played(&json!({}));
        let subject = container(&cloud).await;
        let place = Driver::new(&cloud).make(&subject).await.unwrap();
        let owned = cloud.open().inventory().await.unwrap();
        let is_pod = |owned: &&Owned| owned.kind == OwnedKind::Container;
        let pod = owned.iter().find(is_pod).unwrap();
        let template = owned.iter().find(|owned| !is_pod(owned)).unwrap();
        let login = emulator.asked()[0]["docker_credential_id"].clone();
        let lost = |name: &str| {
            let stored = json!({"pod_name": name, "executor_id": "e", "startup_command": "true",
                "template_id": template.id, "credential_id": login, "rent_payload": {"pod_name": name},
                "idempotency_key": "k"});
            let mut place = place.clone();
            place.instance_id = name.to_owned();
            place.backend_data = Some(stored.to_string());
            subject.known(Some(place))
        };
        let sign = subject.sign(&*cloud.open(), &lost(&pod.name)).await;
        assert_eq!(sign, None);
        if at == 1 {
            let (driver, unknown) = (Driver::new(&cloud), lost("another"));
            let removal = driver.remove(&unknown, &subject);
            let removal = tokio::time::timeout(Duration::from_secs(600), removal);
            removal.await.unwrap_err();
            assert_eq!(emulator.ledger().alive().len(), 2);
        }
        cloud.faults().at(at, Fault::Refused(500));
        Driver::new(&cloud).remove(&lost(&pod.name), &subject).await;
        assert_eq!((emulator.ledger().alive(), emulator.logins()), (Vec::new(), 0));
    }
}

/// Polls share a list, and all calls wait for their turn.
#[tokio::test(start_paused = true)]
async fn many_pods_at_once_make_no_more_calls_than_they_may() {
    let large = || {
        let gpus = json!({"gpu_count": 64, "available_gpu_count": 64, "cpu_count": 1792, "ram_gb": 16120, "disk_free_gb": 11736});
        vec![node("6f0c2d1e-77aa-4c0f-9a1e-0f6a3b2c1d00", &gpus)]
    };
    let another = played_with(large(), &json!({})).cloud;
    let mut subjects = Vec::new();
    for _ in 0..32 {
        subjects.push(container(&another).await);
    }
    let Played { emulator, cloud } = played_with(large(), &json!({}));
    emulator.limit_calls();
    let backend = cloud.open();
    let lives = subjects.iter().map(async |subject| {
        let driver = Driver::with_backend(&cloud, Arc::clone(&backend));
        let place = driver.make(subject).await.unwrap();
        driver.remove(&subject.known(Some(place)), subject).await;
        let errors = driver.errors.lock().unwrap().clone();
        let told = errors
            .iter()
            .find(|error| error.contains("429") && !error.contains("too_many_calls_wait"));
        assert_eq!(told, None);
    });
    futures_util::future::join_all(lives).await;
    let ledger = emulator.ledger();
    assert_eq!((ledger.count(), ledger.alive()), (64, Vec::new()));
}

/// The reference's own code against this cloud: `reference.py` makes, waits for and removes pods and volumes.
#[tokio::test]
async fn the_reference_finds_its_way_in_the_emulated_cloud() {
    let emulator = Lium::with_pace(CANARY, nodes(), Duration::from_millis(50));
    if !passes_with_the_reference("lium", &emulator, &[CANARY]).await {
        return;
    }
    assert_eq!((emulator.ledger().alive(), emulator.logins()), (Vec::new(), 0));
    assert!(emulator.ledger().count() >= 5, "it made too little");
}
