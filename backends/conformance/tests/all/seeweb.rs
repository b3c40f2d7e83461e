use std::sync::Arc;
use std::time::Duration;

use dstack_backend_kit::{
    CANARY, Cloud, Driver, Emulator as _, Notes, Subject, checks, checks_of, machine, machine_in, machine_of,
    passes_with_the_reference, with_machine,
};
use dstack_compute::{ComputeError, Machine, Removal, Sign};
use dstack_emulator_seeweb::{Plan, Seeweb, Times};
use dstack_model::instances::InstanceAvailability;
use serde_json::{Value, json};

const PLANS: &[Plan] = &[
    ("ECS1GPU2", "RTX A6000 48GB", 1, 0.74, &["it-fr2"]),
    ("ECS1GPU6", "H100 80GB", 1, 2.62, &["it-fr2", "it-mi2"]),
    ("ECS4GPU10", "H200 141GB", 4, 10.4, &["it-mi2"]),
    ("ECS8MI", "MI300X 192GB", 8, 14.0, &["it-mi2"]),
];

fn config(token: &str) -> Value {
    json!({"type": "seeweb", "creds": {"type": "api_token", "api_token": token}})
}

fn seeweb() -> (Arc<Seeweb>, Cloud) {
    let emulator = Arc::new(Seeweb::new(CANARY, PLANS.to_vec()));
    let refused = vec![(config("wrong"), &["creds.api_token"][..])];
    let cloud = Cloud::new(
        Arc::clone(&emulator) as _,
        dstack_backend_seeweb::kind,
        config(CANARY),
        refused,
    );
    (emulator, cloud)
}

fn cloud() -> Cloud {
    seeweb().1
}

pub(crate) async fn one_machine() -> (Cloud, Subject<Machine>) {
    with_machine(cloud()).await
}

async fn machines_in_two_regions() -> (Cloud, Vec<Subject<Machine>>) {
    let cloud = cloud();
    let subjects = vec![
        machine(&cloud).await,
        machine(&cloud).await,
        machine_in(&cloud, "it-mi2").await,
    ];
    (cloud, subjects)
}

checks_of!(machines: one_machine, machines_in_two_regions;
    loss, any_fault_anywhere, another_attempt, neighbours, left_behind, removed_before_listed, soak);

#[tokio::test(start_paused = true)]
async fn credentials() {
    checks::credentials(&cloud()).await;
}

#[tokio::test(start_paused = true)]
async fn offers() {
    let (emulator, cloud) = seeweb();
    checks::offers(&cloud).await;
    assert_eq!(
        cloud.kind.provisioning_timeout("any"),
        Duration::from_secs(20 * 60)
    );
    let offers = cloud.offers(&Cloud::requirements()).await;
    let rows = offers
        .iter()
        .map(|offer| (offer.instance.name.as_str(), &*offer.region));
    let rows: Vec<(&str, &str)> = rows.collect();
    let expected = [
        ("ECS1GPU2", "it-fr2"),
        ("ECS1GPU6", "it-fr2"),
        ("ECS1GPU6", "it-mi2"),
        ("ECS4GPU10", "it-mi2"),
    ];
    assert_eq!(rows, expected);
    emulator.sell_out(true);
    let offers = cloud.offers(&Cloud::requirements()).await;
    let gone = InstanceAvailability::NotAvailable;
    assert!(offers.iter().all(|offer| offer.availability == gone));
}

#[tokio::test(start_paused = true)]
async fn a_machine_lives_and_ends() {
    let (emulator, cloud) = seeweb();
    checks::whole_life(&cloud, &machine(&cloud).await).await;
    // Of the images, one that is active; and a key that was added once.
    let asked = emulator.asked().remove(0);
    assert_eq!(asked["image"], "ubuntu-2204-nvidia-driver");
    assert_eq!(emulator.labels().len(), 2);
    assert_eq!(asked["ssh_key"], *emulator.labels().last().unwrap());
    let script = asked["user_customize"].as_str().unwrap();
    assert!(script.contains("nvidia-container-toolkit"), "{script}");
}

#[tokio::test(start_paused = true)]
async fn the_best_image_is_taken() {
    let (emulator, cloud) = seeweb();
    let subject = machine_of(&cloud, &Cloud::requirements(), |offer| {
        offer.instance.name == "ECS4GPU10"
    })
    .await;
    Driver::new(&cloud).make(&subject).await.unwrap();
    assert_eq!(emulator.asked()[0]["image"], "ubuntu-2204-uefi-nvidia-driver");
}

#[tokio::test(start_paused = true)]
async fn what_is_known_of_a_making_is_waited_for() {
    let (emulator, cloud) = seeweb();
    emulator.forget_actions();
    checks::whole_life(&cloud, &machine(&cloud).await).await;

    let (emulator, cloud) = seeweb();
    emulator.fail_actions();
    let made = Driver::new(&cloud).make(&machine(&cloud).await).await;
    assert!(matches!(made, Err(ComputeError::Broken(_))), "{made:?}");
    assert_eq!(emulator.ledger().alive(), []);
}

/// By what it lists, and by what it answers when that has changed since.
#[tokio::test(start_paused = true)]
async fn nothing_is_to_be_had() {
    let (emulator, cloud) = seeweb();
    let subject = machine(&cloud).await;
    let backend = cloud.open();
    backend.offers(&Cloud::requirements()).await.unwrap();
    checks::sold_out(&cloud, &subject).await;
    emulator.sell_out(false);
    emulator.limit(0);
    let made = Driver::new(&cloud).make(&subject).await;
    assert!(matches!(made, Err(ComputeError::NoQuota(_))), "{made:?}");
}

#[tokio::test(start_paused = true)]
async fn what_was_free_a_moment_ago_may_be_gone() {
    let (emulator, cloud) = seeweb();
    let subject = machine(&cloud).await;
    let driver = Driver::new(&cloud);
    let place = driver.make(&subject).await.unwrap();
    driver.remove(&subject.known(Some(place)), &subject).await;
    // This backend has asked for what is free, and does not ask again within a minute.
    let backend = cloud.open();
    backend.offers(&Cloud::requirements()).await.unwrap();
    emulator.sell_out(true);
    let notes = Notes::default();
    let answered = notes.ensure(&cloud, &*backend, &subject).await.unwrap_err();
    assert!(
        matches!(&answered, ComputeError::NoCapacity(text) if text.contains("not activatable")),
        "{answered:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn what_is_listed_late_is_waited_for() {
    let (emulator, cloud) = seeweb();
    emulator.lag(Duration::from_secs(50));
    let made = Driver::new(&cloud).make(&machine(&cloud).await).await;
    made.unwrap();
    assert_eq!(emulator.ledger().count(), 1);
}

#[tokio::test(start_paused = true)]
async fn what_others_have_deleted_is_lost_at_once_and_gone_later() {
    let (emulator, cloud) = seeweb();
    let subject = machine(&cloud).await;
    let place = Driver::new(&cloud).make(&subject).await.unwrap();
    let backend = cloud.open();
    let owned = backend.inventory().await.unwrap().remove(0);
    emulator.delete_all();
    let known = subject.known(Some(place));
    for (after, removal) in [
        (
            0,
            Removal::Underway {
                again: Duration::from_secs(5),
            },
        ),
        (20, Removal::Gone),
        (200, Removal::Gone),
    ] {
        tokio::time::sleep(Duration::from_secs(after)).await;
        let sign = subject.sign(&*backend, &known).await;
        assert!(matches!(sign, Some(Sign::Lost(_))), "{sign:?}");
        assert_eq!(backend.remove_owned(&owned).await.unwrap(), removal, "{after}");
    }
}

/// By its own calls, not by ours: what only our own code has met proves little.
#[tokio::test]
async fn the_reference_finds_its_way_in_the_emulated_cloud() {
    let moment = Duration::from_millis(50);
    let times = Times {
        starts: moment,
        ends: moment,
        shown: moment,
    };
    let emulator = Seeweb::with_times(CANARY, PLANS.to_vec(), times);
    if !passes_with_the_reference("seeweb", &emulator, &[CANARY]).await {
        return;
    }
    assert_eq!(emulator.ledger().alive(), []);
    assert_eq!(emulator.ledger().count(), 4, "one of each plan and region");
}
