use std::sync::Arc;
use std::time::Duration;

use dstack_backend_kit::{
    CANARY, Cloud, Driver, Emulator as _, Fault, Notes, Subject, checks, checks_of, machine, machine_in,
    machine_of, passes_with_the_reference, requirements, with_machine,
};
use dstack_compute::{ComputeError, Machine, Removal, Sign};
use dstack_emulator_vultr::{Addresses, Pace, Vultr};
use dstack_model::runs::Requirements;
use futures_util::future::join_all;
use serde_json::{Value, json};

/// A region with bare metal only.
const METAL: &str = "ord";

/// A cloud of which things are made in one region.
fn cloud_in(region: &'static str) -> (Arc<Vultr>, Cloud) {
    let emulator = Arc::new(Vultr::new(CANARY));
    let config = |key: &str| json!({"type": "vultr", "creds": {"type": "api_key", "api_key": key}});
    let refused = vec![(config("wrong"), &["creds.api_key"][..])];
    let mut cloud = Cloud::new(
        Arc::<Vultr>::clone(&emulator),
        dstack_backend_vultr::kind,
        config(CANARY),
        refused,
    );
    cloud.region = Some(region);
    (emulator, cloud)
}

fn cloud() -> Cloud {
    cloud_in("ewr").1
}

pub(crate) async fn one_vm() -> (Cloud, Subject<Machine>) {
    with_machine(cloud()).await
}

pub(crate) async fn one_of_metal() -> (Cloud, Subject<Machine>) {
    let (_, cloud) = cloud_in(METAL);
    let subject = machine(&cloud).await;
    assert!(subject.want.offer.instance.name.starts_with("vbm-"));
    (cloud, subject)
}

/// One of each kind.
async fn both(cloud: &Cloud) -> [Subject<Machine>; 2] {
    [machine(cloud).await, machine_in(cloud, METAL).await]
}

fn wanted(resources: &Value) -> Requirements {
    requirements(&json!({"resources": resources}))
}

async fn machines_of_both_kinds() -> (Cloud, Vec<Subject<Machine>>) {
    let cloud = cloud();
    let mut subjects = vec![machine(&cloud).await];
    subjects.extend(both(&cloud).await);
    (cloud, subjects)
}

checks_of!(machines: one_vm, machines_of_both_kinds);
checks_of!(machines_of_bare_metal: one_of_metal, machines_of_both_kinds;
    whole_life, sold_out, loss, any_fault_anywhere, another_attempt, left_behind, removed_before_listed, soak);

/// Everybody is told the plans: only what an account may have shows that its key is none any more.
#[tokio::test(start_paused = true)]
async fn a_key_that_is_refused_is_an_error_also_where_only_dedicated_gpus_are_asked_for() {
    let mut refused = 0;
    for nth in 1..20 {
        let cloud = cloud();
        cloud.faults().at(nth, Fault::Refused(401));
        let offers = cloud.open().offers(&Cloud::requirements()).await;
        if cloud.faults().happened() {
            assert!(
                matches!(offers, Err(ComputeError::Credentials(_))),
                "{nth}: {offers:?}"
            );
            refused += 1;
        }
    }
    assert!(refused > 3, "the regions are asked one by one");
    // A region that does not tell has none, and the others are as before.
    let cloud = cloud();
    cloud.faults().at(refused, Fault::Refused(404));
    assert!(
        !cloud
            .open()
            .offers(&Cloud::requirements())
            .await
            .unwrap()
            .is_empty()
    );
    assert!(cloud.faults().happened());
}

#[tokio::test(start_paused = true)]
async fn credentials() {
    checks::credentials(&cloud()).await;
}

#[tokio::test(start_paused = true)]
async fn offers() {
    checks::offers(&cloud()).await;
}

/// Each kind has a list of its own.
#[tokio::test(start_paused = true)]
async fn a_list_that_is_away_says_nothing() {
    let cloud = cloud();
    let subjects = both(&cloud).await;
    checks::a_place_away(&cloud, &subjects, "bare-metals").await;
}

#[tokio::test(start_paused = true)]
async fn what_cannot_be_used_is_not_offered() {
    let cloud = cloud();
    let any = json!({"cpu": "1..", "memory": "0.1GB..", "disk": "1GB..", "gpu": "0.."});
    let all = cloud.offers(&wanted(&any)).await;
    let names: Vec<(&str, &str)> = all
        .iter()
        .map(|offer| (offer.instance.name.as_str(), &*offer.region))
        .collect();
    // Without: free, on hold, of ARM, without VPC or IPv4, with GPUs that the images may not serve. With one GPU that came later, and dedicated ones where this account has them.
    assert_eq!(
        names,
        [
            ("vc2-1c-1gb", "ewr"),
            ("vc2-1c-1gb", "ams"),
            ("vcg-a16-2c-16g-4vram", "ewr"),
            ("voc-c-8c-16gb-150s-amd", "ewr"),
            ("vbm-24c-256gb-amd", "ord"),
            ("vcg-a100-12c-120g-80vram", "ewr"),
            ("vcg-a100-12c-120g-80vram", "ams"),
            ("vcg-h200-24c-240g-282vram", "ams"),
            ("vbm-112c-2048gb-8-h100-gpu", "ord"),
            ("vcg-a100-96c-960g-640vram", "ewr"),
        ]
    );
    let gpus = cloud
        .offers(&wanted(&json!({"gpu": "A16:4GB", "disk": "10GB.."})))
        .await;
    assert_eq!(gpus[0].instance.resources.gpus.len(), 1, "a slice is one GPU");
}

#[tokio::test(start_paused = true)]
async fn regions_that_are_configured_are_the_only_ones() {
    let mut cloud = cloud();
    for (regions, expected) in [
        (json!(["ord"]), vec!["ord"]),
        (json!([]), vec!["ams", "ewr", "ord"]),
    ] {
        cloud.config["regions"] = regions;
        let offers = cloud.offers(&Cloud::requirements()).await;
        let mut found: Vec<String> = offers.iter().map(|offer| offer.region.to_string()).collect();
        found.sort();
        found.dedup();
        assert_eq!(found, expected);
    }
}

#[tokio::test(start_paused = true)]
async fn many_machines_at_once_ask_for_their_network_once() {
    let (emulator, cloud) = cloud_in("ewr");
    let backend = cloud.open();
    let mut subjects = Vec::new();
    for _ in 0..30 {
        subjects.push(machine(&cloud).await);
    }
    let notes: Vec<Notes> = subjects.iter().map(|_| Notes::default()).collect();
    let made = notes
        .iter()
        .zip(&subjects)
        .map(|(notes, subject)| notes.ensure(&cloud, &*backend, subject));
    assert!(join_all(made).await.iter().all(Result::is_ok));
    assert_eq!(emulator.asked().len(), 30);
    // Before it is made, and afterwards.
    assert_eq!(emulator.vpcs_listed(), 2);
}

/// Nothing was asked for that costs money, and so it may be asked for elsewhere.
#[tokio::test(start_paused = true)]
async fn a_network_that_cannot_be_looked_for_is_no_machine_that_may_be_there() {
    let cloud = cloud();
    let (backend, subject) = (cloud.open(), machine(&cloud).await);
    cloud.faults().from(1, 100, Fault::Refused(500));
    let notes = Notes::default();
    let error = notes.ensure(&cloud, &*backend, &subject).await.unwrap_err();
    assert!(matches!(error, ComputeError::NotReady(_)), "{error:?}");
}

#[tokio::test(start_paused = true)]
async fn addresses_in_the_vpc_come_late_or_not_at_all() {
    for (addresses, are_told) in [(Addresses::Late, true), (Addresses::Untold, false)] {
        for (region, kind) in [("ewr", "vc2"), (METAL, "vbm")] {
            let (emulator, cloud) = cloud_in(region);
            emulator.addresses(addresses);
            let subject = machine(&cloud).await;
            let place = Driver::new(&cloud).make(&subject).await.unwrap();
            assert_eq!(place.internal_ip.is_some(), are_told, "{addresses:?} {kind}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn only_the_vendor_says_that_a_machine_is_gone() {
    for region in ["ewr", METAL] {
        let (emulator, cloud) = cloud_in(region);
        let subject = machine(&cloud).await;
        let place = Driver::new(&cloud).make(&subject).await.unwrap();
        let known = [subject.known(Some(place))];
        let backend = cloud.open();
        let machines = backend.machines().unwrap();
        let notes = Notes::default();
        // A proxy's 404 is in its own words.
        cloud.faults().at(1, Fault::Refused(404));
        machines.remove(&known[0], &notes.call(&cloud)).await.unwrap_err();
        cloud.faults().none();
        // A list that misses it is not believed, and the vendor's answer for this one is.
        emulator.miss_one();
        let signs = machines.look(&known).await.unwrap();
        assert!(matches!(signs.as_slice(), [Some(Sign::Well)]), "{signs:?}");
        cloud.faults().at(2, Fault::Refused(404));
        match machines.look(&known).await {
            Ok(signs) => assert!(matches!(signs.as_slice(), [None]), "{signs:?}"),
            Err(error) => assert!(matches!(error, ComputeError::Refused(_)), "{error:?}"),
        }
        cloud.faults().none();
        let removal = machines.remove(&known[0], &notes.call(&cloud)).await.unwrap();
        assert!(matches!(removal, Removal::Underway { .. }), "{removal:?}");
        assert_eq!(emulator.ledger().alive().len(), 1, "it takes its time");
    }
}

#[tokio::test(start_paused = true)]
async fn a_list_without_end_is_an_error() {
    let (emulator, cloud) = cloud_in("ewr");
    emulator.page_on_and_on();
    let error = cloud.open().inventory().await.unwrap_err();
    assert!(error.to_string().contains("pages"), "{error}");
}

/// Nodes of one cluster, made at the same time: the same network, whose other machines get through their firewall.
#[tokio::test(start_paused = true)]
async fn nodes_share_a_network() {
    let (emulator, cloud) = cloud_in("ewr");
    emulator.lag(Duration::from_secs(30));
    let (backend, nodes) = (cloud.open(), [machine(&cloud).await, machine(&cloud).await]);
    let (one, other) = (Notes::default(), Notes::default());
    let (one, other) = tokio::join!(
        one.make(&cloud, &*backend, &nodes[0]),
        other.make(&cloud, &*backend, &nodes[1])
    );
    let (one, other) = (one.unwrap(), other.unwrap());
    assert!(one.internal_ip.is_some() && one.internal_ip != other.internal_ip);
    let asked = emulator.asked();
    assert_eq!(asked[0]["attach_vpc"], asked[1]["attach_vpc"]);
    assert_eq!(asked[0]["image_id"], "docker");
    assert_eq!(emulator.networks(), ["dstack-vpc-ewr"]);
    let metal = machine_in(&cloud, METAL).await;
    let metal = Driver::new(&cloud).make(&metal).await.unwrap();
    assert!(metal.internal_ip.is_some(), "told by another call");
    assert_eq!(metal.backend_data.unwrap(), r#"{"plan_type":"bare-metal"}"#);
    assert_eq!(emulator.networks(), ["dstack-vpc-ewr", "dstack-vpc-ord"]);
    assert!(cloud.kind.capabilities().multinode);
    let timeout = |plan: &str| cloud.kind.provisioning_timeout(plan).as_secs() / 60;
    assert_eq!((timeout("vc2-1c-1gb"), timeout("vbm-24c-256gb-amd")), (10, 55));
}

/// What was noted in the region that was tried first is not of use there.
#[tokio::test(start_paused = true)]
async fn the_next_region_has_a_network_of_its_own() {
    let (emulator, cloud) = cloud_in("ewr");
    let mut subject = machine(&cloud).await;
    let next = machine_in(&cloud, "ams").await.want.offer;
    let driver = Driver::new(&cloud);
    emulator.sell_out(true);
    driver.make(&subject).await.unwrap_err();
    emulator.sell_out(false);
    subject.want.offer = next;
    driver.make(&subject).await.unwrap();
    assert_eq!(emulator.networks(), ["dstack-vpc-ewr", "dstack-vpc-ams"]);
}

#[tokio::test(start_paused = true)]
async fn machines_with_gpus_get_the_image_with_drivers() {
    let (emulator, cloud) = cloud_in("ewr");
    let subject = machine_of(&cloud, &wanted(&json!({"gpu": "A100:1"})), |_| true).await;
    Driver::new(&cloud).make(&subject).await.unwrap();
    assert_eq!(emulator.asked()[0]["os_id"], 1743);
}

#[tokio::test(start_paused = true)]
async fn what_the_account_may_not_have_is_told_from_what_is_sold_out() {
    let (emulator, cloud) = cloud_in("ewr");
    emulator.set_limit(0);
    let error = Driver::new(&cloud)
        .make(&machine(&cloud).await)
        .await
        .unwrap_err();
    assert!(matches!(error, ComputeError::NoQuota(_)), "{error:?}");
}

#[tokio::test(start_paused = true)]
async fn a_machine_that_does_not_start_is_ended() {
    let (emulator, cloud) = cloud_in("ewr");
    let (subject, driver) = (machine(&cloud).await, Driver::new(&cloud));
    let failing = async {
        tokio::time::sleep(Duration::from_secs(20)).await;
        emulator.fail_all();
    };
    let (made, ()) = tokio::join!(driver.make(&subject), failing);
    assert!(matches!(made.unwrap_err(), ComputeError::Broken(_)));
    assert_eq!(emulator.ledger().alive(), []);
}

/// The reference's own code against this cloud: `reference.py` asks for offers, makes, waits for and removes one machine of each kind.
#[tokio::test]
async fn the_reference_finds_its_way_in_the_emulated_cloud() {
    // It reads first pages only, and needs an address in the VPC in the machine itself.
    let pace = Pace {
        starts: Duration::from_millis(300),
        metal_starts: Duration::from_millis(300),
        ends: Duration::ZERO,
        page: 500,
    };
    let emulator = Vultr::with_pace(CANARY, pace);
    if !passes_with_the_reference("vultr", &emulator, &[CANARY]).await {
        return;
    }
    assert_eq!(emulator.ledger().alive(), []);
    assert_eq!(emulator.ledger().count(), 3);
}
