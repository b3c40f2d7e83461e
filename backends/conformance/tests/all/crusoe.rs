use std::sync::Arc;
use std::time::Duration;

use dstack_backend_kit::{
    CANARY, Cloud, Driver, Emulator as _, Fault, Subject, checks, checks_of, extended, machine, machine_of,
    passes_with_the_reference, placement, with_machine,
};
use dstack_compute::{ComputeError, Machine, OwnedKind, Placement, Sign, placement_name};
use dstack_emulator_crusoe::{Crusoe, LOCATION, OTHER_LOCATION, Times};
use dstack_model::instances::InstanceAvailability;
use serde_json::{Value, json};

const PROJECT: &str = "ab4a6b00-aa5f-408e-a9fb-ac6de5eb45ab";
const ACCESS_KEY: &str = "AKEXAMPLE";

/// With InfiniBand and drives of its own.
const H100: &str = "h100-80gb-sxm-ib.8x";

fn config(access_key: &str, secret_key: &str, more: &Value) -> Value {
    let config = json!({"type": "crusoe", "project_id": PROJECT,
        "creds": {"type": "access_key", "access_key": access_key, "secret_key": secret_key}});
    extended(config, more)
}

fn emulated() -> (Arc<Crusoe>, Cloud) {
    let emulator = Arc::new(Crusoe::new(ACCESS_KEY, CANARY, PROJECT));
    let keys = &["creds.access_key", "creds.secret_key"][..];
    let refused = vec![
        (config("wrong", CANARY, &json!({})), keys),
        (config(ACCESS_KEY, "d3Jvbmc", &json!({})), keys),
        (
            config(ACCESS_KEY, "no base64", &json!({})),
            &["creds.secret_key"][..],
        ),
        (config("a b", CANARY, &json!({})), &["creds.access_key"]),
        (
            config(ACCESS_KEY, CANARY, &json!({"project_id": "another"})),
            &["project_id"],
        ),
        (
            config(ACCESS_KEY, CANARY, &json!({"regions": [LOCATION, "nowhere"]})),
            &["regions"],
        ),
    ];
    let good = config(
        ACCESS_KEY,
        CANARY,
        &json!({"regions": [LOCATION, OTHER_LOCATION]}),
    );
    let cloud = Cloud::new(emulator.clone(), dstack_backend_crusoe::kind, good, refused);
    (emulator, cloud)
}

fn cloud() -> Cloud {
    emulated().1
}

pub(crate) async fn one_machine() -> (Cloud, Subject<Machine>) {
    with_machine(cloud()).await
}

async fn machine_named(cloud: &Cloud, name: &str) -> Subject<Machine> {
    machine_of(cloud, &Cloud::requirements(), |offer| offer.instance.name == name).await
}

async fn one_partition() -> (Cloud, Subject<Placement>) {
    let cloud = cloud();
    let subject = placement(&cloud, LOCATION, H100);
    (cloud, subject)
}

async fn machines_in_two_places() -> (Cloud, Vec<Subject<Machine>>) {
    let cloud = cloud();
    let other = Subject {
        site: OTHER_LOCATION.to_owned(),
        ..machine(&cloud).await
    };
    let subjects = vec![machine(&cloud).await, other, machine(&cloud).await];
    (cloud, subjects)
}

async fn partitions_in_two_places() -> (Cloud, Vec<Subject<Placement>>) {
    let cloud = cloud();
    let subjects = [LOCATION, OTHER_LOCATION].map(|region| placement(&cloud, region, H100));
    (cloud, subjects.into())
}

checks_of!(machines: one_machine, machines_in_two_places);
checks_of!(partitions: one_partition, partitions_in_two_places;
    whole_life, any_fault_anywhere, another_attempt, neighbours, left_behind, removed_before_listed, soak);

#[tokio::test(start_paused = true)]
async fn credentials() {
    checks::credentials(&cloud()).await;
}

#[tokio::test(start_paused = true)]
async fn offers() {
    checks::offers(&cloud()).await;
}

#[tokio::test(start_paused = true)]
async fn only_what_is_free_and_has_a_price_is_offered() {
    let cloud = cloud();
    let offers = cloud.offers(&Cloud::requirements()).await;
    let told: Vec<_> = offers
        .iter()
        .map(|offer| {
            let (name, disk) = (
                offer.instance.name.as_str(),
                offer.instance.resources.disk.size_mib / 1024,
            );
            (name, &*offer.region, offer.price, disk, offer.availability)
        })
        .collect();
    use InstanceAvailability::{Available, NoQuota, Unknown};
    assert_eq!(
        told,
        [
            ("c1a.8x", LOCATION, 0.32, 50, Available),
            ("c1a.8x", OTHER_LOCATION, 0.32, 50, Available),
            ("l40s-48gb.1x", LOCATION, 1.0, 50, Available),
            ("s1a.20x", LOCATION, 1.8, 4320, Unknown),
            ("mi300x-192gb-ib.8x", LOCATION, 27.6, 30_720, NoQuota),
            (H100, LOCATION, 31.2, 30_720, Available),
        ]
    );
    assert_eq!(offers[5].instance.resources.gpus.len(), 8);
    assert_eq!(offers[5].instance.resources.gpus[0].memory_mib, 80 * 1024);
    assert_eq!(offers[5].backend_data["disk_gb"], 30_720);
}

#[tokio::test(start_paused = true)]
async fn machines_with_drives_have_no_data_disk_and_others_the_size_that_is_asked_for() {
    let (emulator, cloud) = emulated();
    for (size, image, disks) in [
        ("c1a.8x", "ubuntu22.04-nvidia-pcie-docker:latest", 1),
        (H100, "ubuntu22.04-nvidia-sxm-docker:latest", 0),
        ("mi300x-192gb-ib.8x", "ubuntu-rocm:latest", 0),
    ] {
        let mut subject = machine_named(&cloud, size).await;
        subject
            .want
            .authorized_keys
            .push("ssh-ed25519 AAAASECOND".to_owned());
        let driver = Driver::new(&cloud);
        let place = driver.make(&subject).await.unwrap();
        assert_eq!(place.username, "ubuntu");
        assert_eq!(place.internal_ip.as_deref(), Some("172.27.16.5"));
        let alive = emulator.ledger().alive();
        let of = |kind: &str| {
            let all = alive.iter().filter(|entry| entry.kind == kind);
            all.map(|entry| entry.name.clone()).collect::<Vec<_>>()
        };
        let asked = emulator.asked(&of("machine")[0]).unwrap();
        assert_eq!(
            (asked["image"].as_str().unwrap(), of("disk").len()),
            (image, disks),
            "{size}"
        );
        assert!(asked["startup_script"].as_str().unwrap().contains("AAAASECOND"));
        for disk in &of("disk") {
            assert_eq!(emulator.asked(disk).unwrap()["size"], "50GiB");
        }
        driver.remove(&subject.known(Some(place)), &subject).await;
        assert_eq!(emulator.ledger().alive(), []);
    }
}

#[tokio::test(start_paused = true)]
async fn entries_of_an_unknown_form_are_left_out() {
    let (emulator, cloud) = emulated();
    let before = cloud.offers(&Cloud::requirements()).await;
    emulator.list_oddities();
    let offers = cloud.offers(&Cloud::requirements()).await;
    assert_eq!(offers, before);
    let subject = machine(&cloud).await;
    checks::whole_life(&cloud, &subject).await;
    checks::credentials(&cloud).await;
}

#[tokio::test(start_paused = true)]
async fn only_the_vendor_says_that_a_machine_is_gone() {
    let (emulator, cloud) = emulated();
    let (subject, driver) = (machine(&cloud).await, Driver::new(&cloud));
    let place = driver.make(&subject).await.unwrap();
    let known = [subject.known(Some(place))];
    let backend = cloud.open();
    let machines = backend.machines().unwrap();
    // A list that misses it is not believed; the vendor's answer for this one is, and a proxy's 404 is none.
    emulator.miss_one();
    let signs = machines.look(&known).await.unwrap();
    assert!(matches!(signs.as_slice(), [Some(Sign::Well)]), "{signs:?}");
    cloud.faults().at(2, Fault::Refused(404));
    let signs = machines.look(&known).await.unwrap();
    assert!(matches!(signs.as_slice(), [None]), "{signs:?}");
    cloud.faults().at(1, Fault::Refused(404));
    driver.remove(&known[0], &subject).await;
    assert_eq!(emulator.ledger().alive(), []);
}

#[tokio::test(start_paused = true)]
async fn a_machine_that_is_being_made_is_ended_afterwards() {
    let (emulator, cloud) = emulated();
    let (subject, driver) = (machine(&cloud).await, Driver::new(&cloud));
    let early = tokio::time::timeout(Duration::from_secs(40), driver.make(&subject)).await;
    assert!(early.is_err() && emulator.ledger().alive().len() == 2);
    driver.remove(&subject.known(None), &subject).await;
    assert_eq!(*driver.errors.lock().unwrap(), Vec::<String>::new());
    assert_eq!(emulator.ledger().alive(), []);
}

#[tokio::test(start_paused = true)]
async fn a_machine_whose_end_is_refused_is_not_in_use() {
    let (_, cloud) = emulated();
    Driver::new(&cloud).make(&machine(&cloud).await).await.unwrap();
    let backend = cloud.open();
    let owned = backend.inventory().await.unwrap();
    let of = |kind: OwnedKind| owned.iter().find(|owned| owned.kind == kind).unwrap();
    cloud.faults().at(2, Fault::Refused(400));
    let error = backend.remove_owned(of(OwnedKind::Machine)).await.unwrap_err();
    assert!(matches!(error, ComputeError::Refused(_)), "{error:?}");
    let error = backend
        .remove_owned(of(OwnedKind::Piece("disk")))
        .await
        .unwrap_err();
    assert!(matches!(error, ComputeError::InUse(_)), "{error:?}");
}

#[tokio::test(start_paused = true)]
async fn a_list_without_end_is_an_error() {
    let (emulator, cloud) = emulated();
    emulator.page_on_and_on();
    let error = cloud.open().inventory().await.unwrap_err();
    assert!(error.to_string().contains("pages"), "{error}");
}

/// Networks and partitions are looked for before anything is asked for that costs money.
#[tokio::test(start_paused = true)]
async fn what_is_looked_for_in_vain_is_nothing_that_may_be_there() {
    let (_, cloud) = emulated();
    let (group, driver) = (placement(&cloud, LOCATION, H100), Driver::new(&cloud));
    cloud.faults().from(1, 10, Fault::Refused(500));
    driver.make(&group).await.unwrap();
    let mut subject = machine_named(&cloud, H100).await;
    subject.want.placement_group = Some(placement_name(&group.marks));
    let machines = Driver::new(&cloud);
    cloud.faults().from(1, 10, Fault::Refused(500));
    machines.make(&subject).await.unwrap();
    for errors in [driver.errors, machines.errors] {
        let errors = errors.into_inner().unwrap();
        assert!(!errors.is_empty(), "the cloud was away");
        assert!(
            errors.iter().all(|error| error.contains("NotReady")),
            "{errors:?}"
        );
    }
}

/// dstack 0.22.5 noted the disk with the machine, and no pieces.
#[tokio::test(start_paused = true)]
async fn machines_of_dstack_0_22_5_end_with_their_disks() {
    let (emulator, cloud) = emulated();
    let subject = machine(&cloud).await;
    let place = Driver::new(&cloud).make(&subject).await.unwrap();
    let known = subject.known(Some(place));
    Driver::new(&cloud).remove(&known, &subject).await;
    assert_eq!(emulator.ledger().alive(), []);
}

#[tokio::test(start_paused = true)]
async fn what_is_over_the_quota_is_told_from_what_is_sold_out() {
    let (emulator, cloud) = emulated();
    let subject = machine(&cloud).await;
    emulator.use_up_quota();
    let error = Driver::new(&cloud).make(&subject).await.unwrap_err();
    assert!(matches!(error, ComputeError::NoQuota(_)), "{error:?}");
    assert_eq!(emulator.ledger().alive(), []);
    let offers = cloud.offers(&Cloud::requirements()).await;
    assert_eq!(offers[0].availability, InstanceAvailability::NoQuota);
}

#[tokio::test(start_paused = true)]
async fn machines_with_infiniband_are_in_the_partition_of_their_group() {
    let (emulator, cloud) = emulated();
    let (group, driver) = (placement(&cloud, LOCATION, H100), Driver::new(&cloud));
    let made = driver.make(&group).await.unwrap();
    let data: Value = serde_json::from_str(made.backend_data.as_deref().unwrap()).unwrap();
    // The network with the most that are free.
    assert_eq!(data["ib_network_id"], "1ce839b7-3fab-46f9-8e54-7a6bb4ac1ffd");

    let mut subject = machine_named(&cloud, H100).await;
    subject.want.placement_group = Some(placement_name(&group.marks));
    let machines = Driver::new(&cloud);
    let place = machines.make(&subject).await.unwrap();
    let name = subject.marks.name(60);
    let adapters = &emulator.asked(&name).unwrap()["host_channel_adapters"];
    assert_eq!(*adapters, json!([{"ib_partition_id": data["ib_partition_id"]}]));

    // A partition stays as long as there are machines in it.
    let backend = cloud.open();
    let left = backend.inventory().await.unwrap();
    let partition = left
        .iter()
        .find(|owned| owned.id == data["ib_partition_id"])
        .unwrap();
    let error = backend.remove_owned(partition).await.unwrap_err();
    assert!(matches!(error, ComputeError::InUse(_)), "{error:?}");
    machines.remove(&subject.known(Some(place)), &subject).await;
    driver.remove(&group.known(Some(made)), &group).await;
    assert_eq!(emulator.ledger().alive(), []);
}

#[tokio::test(start_paused = true)]
async fn a_group_without_infiniband_is_nothing_at_crusoe() {
    let (emulator, cloud) = emulated();
    let (group, driver) = (placement(&cloud, LOCATION, "c1a.8x"), Driver::new(&cloud));
    let made = driver.make(&group).await.unwrap();
    assert_eq!(emulator.ledger().count(), 0);
    let name = placement_name(&group.marks);
    let mut subject = machine(&cloud).await;
    subject.want.placement_group = Some(name.clone());
    Driver::new(&cloud).make(&subject).await.unwrap();
    assert_eq!(
        emulator
            .asked(&subject.marks.name(60))
            .unwrap()
            .get("host_channel_adapters"),
        None
    );
    let mut other = machine_named(&cloud, H100).await;
    other.want.placement_group = Some(name);
    let error = Driver::new(&cloud).make(&other).await.unwrap_err();
    assert!(error.to_string().contains("InfiniBand"), "{error}");
    driver.remove(&group.known(Some(made)), &group).await;

    let nowhere = placement(&cloud, OTHER_LOCATION, "mi300x-192gb-ib.8x");
    let error = Driver::new(&cloud).make(&nowhere).await.unwrap_err();
    assert!(matches!(error, ComputeError::NoCapacity(_)), "{error:?}");
}

/// The reference's own code against this cloud: `reference.py` makes, waits for and removes machines and a group.
#[tokio::test]
async fn the_reference_finds_its_way_in_the_emulated_cloud() {
    let pace = Duration::from_millis(100);
    let times = Times {
        disk: pace,
        machine: pace,
        ends: pace,
    };
    let emulator = Crusoe::with_times(ACCESS_KEY, CANARY, PROJECT, times);
    if !passes_with_the_reference("crusoe", &emulator, &[ACCESS_KEY, CANARY, PROJECT]).await {
        return;
    }
    assert_eq!(emulator.ledger().count(), 4);
    assert_eq!(emulator.ledger().alive(), []);
}
