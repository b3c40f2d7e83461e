use std::sync::Arc;
use std::time::Duration;

use dstack_backend_kit::{
    CANARY, Cloud, Driver, Emulator as _, Fault, Subject, checks, checks_of, machine, machine_of,
    requirements, sizes_of_catalog, with_machine, with_machines,
};
use dstack_compute::{ComputeError, Machine, OwnedKind, Removal, Sign};
use dstack_emulator_verda::{CLIENT_ID, Size, Verda};
use dstack_model::backends::BackendType;
use dstack_model::instances::InstanceAvailability;
use dstack_model::offers::InstanceOfferWithAvailability as Offer;
use serde_json::{Value, json};

/// Where nothing is free.
const FULL: &str = "FIN-02";

/// All that the catalogue has.
fn sizes() -> Vec<Size> {
    let all = sizes_of_catalog("verda", &[], |row| Size {
        name: row.instance_name().to_owned(),
        place: row.location().to_owned(),
        is_spot: row.spot(),
        gpu: row.gpu_name().unwrap_or_default().to_owned(),
    });
    all.into_iter().filter(|size| size.place != FULL).collect()
}

fn config(kind: &str, id: &str, secret: &str) -> Value {
    json!({"type": kind, "creds": {"type": "api_key", "client_id": id, "client_secret": secret}})
}

/// A cloud and the backend of one of the two types.
fn cloud_of(kind: &str) -> (Arc<Verda>, Cloud) {
    let emulator = Arc::new(Verda::new(CANARY, sizes()));
    let both = &["creds.client_id", "creds.client_secret"][..];
    let refused = vec![
        (config(kind, CLIENT_ID, "wrong"), both),
        (config(kind, "", CANARY), both),
    ];
    let make = match kind {
        "datacrunch" => dstack_backend_verda::datacrunch,
        _ => dstack_backend_verda::kind,
    };
    let made = Arc::<Verda>::clone(&emulator);
    (
        emulator,
        Cloud::new(made, make, config(kind, CLIENT_ID, CANARY), refused),
    )
}

fn cloud() -> Cloud {
    cloud_of("verda").1
}

pub(crate) async fn one_of_datacrunch() -> (Cloud, Subject<Machine>) {
    with_machine(cloud_of("datacrunch").1).await
}

pub(crate) async fn one() -> (Cloud, Subject<Machine>) {
    with_machine(cloud()).await
}

async fn two() -> (Cloud, Vec<Subject<Machine>>) {
    with_machines(cloud(), 2).await
}

checks_of!(machines: one, two;
    sold_out, loss, any_fault_anywhere, another_attempt, neighbours, left_behind, removed_before_listed, soak);

#[tokio::test(start_paused = true)]
async fn credentials() {
    for kind in ["verda", "datacrunch"] {
        checks::credentials(&cloud_of(kind).1).await;
    }
}

#[tokio::test(start_paused = true)]
async fn offers() {
    for kind in ["verda", "datacrunch"] {
        checks::offers(&cloud_of(kind).1).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_machine_lives_and_ends() {
    for (kind, backend) in [
        ("verda", BackendType::Verda),
        ("datacrunch", BackendType::DataCrunch),
    ] {
        let (emulator, cloud) = cloud_of(kind);
        let subject = machine(&cloud).await;
        assert_eq!(subject.want.offer.backend, backend);
        checks::whole_life(&cloud, &subject).await;
        assert_eq!(emulator.left_disks(), [""; 0], "its disk went with it");
    }
}

/// A gateway says that it is not found, or that there is no way to a token: only a list without it is believed.
#[tokio::test(start_paused = true)]
async fn what_is_not_found_is_not_gone_while_it_is_listed() {
    let (emulator, cloud) = cloud_of("verda");
    let (subject, driver) = (machine(&cloud).await, Driver::new(&cloud));
    let going_on = async {
        tokio::time::sleep(Duration::from_secs(15)).await;
        emulator.mislay(true);
        tokio::time::sleep(Duration::from_secs(150)).await;
        emulator.mislay(false);
    };
    let (made, ()) = tokio::join!(driver.make(&subject), going_on);
    let mut place = made.unwrap();
    let mut data: Value = serde_json::from_str(place.backend_data.as_ref().unwrap()).unwrap();
    data["startup_script_id"] = emulator.add_script("dstack-fleet-0-k3j9x0qa.sh").into();
    place.backend_data = Some(data.to_string());
    let known = subject.known(Some(place));
    let alive = emulator.ledger().alive();
    let backend = cloud.open();
    backend.inventory().await.unwrap();
    emulator.mislay(true);
    let removal = tokio::time::timeout(Duration::from_secs(1800), driver.remove(&known, &subject));
    removal.await.unwrap_err();
    let owned = backend.inventory().await.unwrap();
    let removal = backend.remove_owned(&owned[0]).await;
    assert_ne!(removal, Ok(Removal::Gone));
    emulator.revoke_tokens();
    let removal = tokio::time::timeout(Duration::from_secs(1800), driver.remove(&known, &subject));
    removal.await.unwrap_err();
    assert_eq!(emulator.ledger().alive(), alive);
    emulator.mislay(false);
    driver.remove(&known, &subject).await;
    assert_eq!(emulator.ledger().alive(), []);
}

/// Nor does a 404 instead of a token end an attempt.
#[tokio::test(start_paused = true)]
async fn a_token_that_is_not_found_is_waited_for() {
    let (emulator, cloud) = cloud_of("verda");
    let (subject, driver) = (machine(&cloud).await, Driver::new(&cloud));
    emulator.mislay(true);
    let going_on = async {
        tokio::time::sleep(Duration::from_secs(60)).await;
        emulator.mislay(false);
    };
    let (made, ()) = tokio::join!(driver.make(&subject), going_on);
    made.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_key_that_is_not_known_everywhere_yet_is_waited_for() {
    let (emulator, cloud) = cloud_of("verda");
    let (subject, driver) = (machine(&cloud).await, Driver::new(&cloud));
    emulator.lag(Duration::from_secs(30));
    driver.make(&subject).await.unwrap();
}

/// While it is made, Verda does not tell of its disk.
#[tokio::test(start_paused = true)]
async fn the_disk_of_a_machine_that_is_ended_while_it_starts_goes_with_it() {
    let (emulator, cloud) = cloud_of("verda");
    let (subject, driver) = (machine(&cloud).await, Driver::new(&cloud));
    cloud.faults().at(3, Fault::KilledAfter);
    driver.make_until_killed(&subject).await;
    assert_eq!(emulator.asked().len(), 1);
    driver.remove(&subject.known(None), &subject).await;
    assert_eq!(emulator.ledger().alive(), []);
    assert_eq!(emulator.left_disks(), [""; 0]);
}

#[tokio::test(start_paused = true)]
async fn what_is_free_is_told_by_type_location_and_spot() {
    let mut cloud = cloud();
    let gpu = json!({"resources": {"gpu": "H100:1"}});
    let all = cloud.offers(&requirements(&gpu)).await;
    assert!(!all.is_empty());
    for offer in &all {
        let is_free = offer.availability == InstanceAvailability::Available;
        assert_eq!(is_free, &*offer.region != FULL, "{offer:?}");
        assert_eq!(offer.instance.resources.disk.size_mib, 100 * 1024);
    }
    // The image needs 50 GB.
    let small = json!({"resources": {"gpu": "H100:1", "disk": "10GB.."}});
    let small = cloud.offers(&requirements(&small)).await;
    assert_eq!(small[0].instance.resources.disk.size_mib, 50 * 1024);
    cloud.config["regions"] = json!(["FIN-01"]);
    let there = cloud.offers(&requirements(&gpu)).await;
    assert!(!there.is_empty() && there.iter().all(|offer| &*offer.region == "FIN-01"));
    cloud.config["regions"] = json!([]);
    assert_eq!(cloud.offers(&requirements(&gpu)).await, []);
}

/// All users' keys, an image that the GPU is allowed, and a disk that goes with a machine that is taken away.
#[tokio::test(start_paused = true)]
async fn machines_are_asked_for_as_they_have_to_be() {
    let (emulator, cloud) = cloud_of("verda");
    let spot = requirements(&json!({"resources": {"gpu": "V100:1"}, "spot": true}));
    let is_free = |offer: &Offer| offer.availability == InstanceAvailability::Available;
    let mut subject = machine_of(&cloud, &spot, is_free).await;
    let driver = Driver::new(&cloud);
    subject
        .want
        .authorized_keys
        .push("ssh-ed25519 AAAAOther".to_owned());
    let place = driver.make(&subject).await.unwrap();
    let asked = emulator.asked().remove(0);
    assert_eq!(asked["image"], "2088da25-bb0d-41cc-a191-dccae45d96fd");
    assert_eq!(asked["ssh_key_ids"].as_array().unwrap().len(), 2);
    assert_eq!(asked["os_volume"]["size"], 100);
    assert_eq!(place.username, "root");
    let data: Value = serde_json::from_str(place.backend_data.as_ref().unwrap()).unwrap();
    assert_eq!(data["ssh_key_ids"], asked["ssh_key_ids"]);

    emulator.preempt();
    let known = subject.known(Some(place));
    let sign = subject.sign(&*cloud.open(), &known).await;
    assert!(matches!(sign, Some(Sign::Lost(_))), "{sign:?}");
    driver.remove(&known, &subject).await;
    assert_eq!(emulator.ledger().alive(), []);
    assert_eq!(emulator.left_disks(), [""; 0]);
}

/// As those of dstack 0.22.5: there are no notes, and a startup script belongs to it.
#[tokio::test(start_paused = true)]
async fn machines_of_before_go_with_all_that_belongs_to_them() {
    let (emulator, cloud) = cloud_of("verda");
    let subject = machine(&cloud).await;
    let mut place = Driver::new(&cloud).make(&subject).await.unwrap();
    let mut data: Value = serde_json::from_str(place.backend_data.as_ref().unwrap()).unwrap();
    data["startup_script_id"] = emulator.add_script("dstack-fleet-0-k3j9x0qa.sh").into();
    place.backend_data = Some(data.to_string());
    let known = subject.known(Some(place));
    Driver::new(&cloud).remove(&known, &subject).await;
    assert_eq!(emulator.ledger().alive(), []);
}

#[tokio::test(start_paused = true)]
async fn tokens_are_kept_and_replaced() {
    let (emulator, cloud) = cloud_of("verda");
    let subject = machine(&cloud).await;
    let backend = cloud.open();
    let before = emulator.fetched_tokens();
    let fetched = || emulator.fetched_tokens() - before;
    for _ in 0..3 {
        backend.inventory().await.unwrap();
    }
    assert_eq!(fetched(), 1);
    tokio::time::sleep(Duration::from_secs(3550)).await;
    backend.inventory().await.unwrap();
    assert_eq!(fetched(), 2, "one that ends soon is not used");
    emulator.revoke_tokens();
    backend.inventory().await.unwrap();
    assert_eq!(fetched(), 3, "one that is not taken is replaced");
    emulator.answer_json();
    Driver::new(&cloud).make(&subject).await.unwrap();
    let kinds: Vec<OwnedKind> = backend
        .inventory()
        .await
        .unwrap()
        .into_iter()
        .map(|owned| owned.kind)
        .collect();
    assert_eq!(kinds, [OwnedKind::Machine, OwnedKind::Piece("SSH key")]);
}

#[tokio::test(start_paused = true)]
async fn an_account_without_money_is_told_from_a_cloud_without_machines() {
    let (emulator, cloud) = cloud_of("verda");
    emulator.set_broke();
    let error = Driver::new(&cloud)
        .make(&machine(&cloud).await)
        .await
        .unwrap_err();
    assert!(matches!(error, ComputeError::NoQuota(_)), "{error:?}");
    assert_eq!(emulator.ledger().alive(), []);
}

/// Nor is one lost whose name was not known when this was written.
#[tokio::test(start_paused = true)]
async fn states_that_are_not_the_end_are_waited_for() {
    let (emulator, cloud) = cloud_of("verda");
    let (subject, driver) = (machine(&cloud).await, Driver::new(&cloud));
    for (status, is_over) in [
        ("new", false),
        ("validating", false),
        ("pending", false),
        ("some_state_of_later", false),
        ("error", true),
        ("no_capacity", true),
    ] {
        let changing = async {
            tokio::time::sleep(Duration::from_secs(5)).await;
            emulator.set_status(status);
            tokio::time::sleep(Duration::from_secs(120)).await;
            if !is_over {
                emulator.set_status("running");
            }
        };
        let (made, ()) = tokio::join!(driver.make(&subject), changing);
        assert_eq!(made.is_err(), is_over, "{status}: {made:?}");
        if let Ok(place) = made {
            driver.remove(&subject.known(Some(place)), &subject).await;
        }
        assert_eq!(emulator.ledger().alive(), [], "{status}");
    }
    // Verda does not tell which disks those had that it could not start: they are in the trash.
    assert_eq!(emulator.left_disks().len(), 2);
}
