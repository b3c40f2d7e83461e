use std::sync::{Arc, OnceLock};
use std::time::Duration;

use dstack_backend_kit::{
    CANARY, Cloud, Driver, Emulator as _, Fault, Subject, checks, checks_of, machine, network_env, placement,
    reference_python, run, served,
};
use dstack_catalog::Catalog;
use dstack_compute::config::BackendConfig;
use dstack_compute::{ComputeError, ConfigureError, Machine, OwnedKind, Placement, Sign, placement_name};
use dstack_emulator_nebius::{ACCOUNT, KEY, KEY_ID, NORTH, Nebius, RESEARCH, Refusal, Times, WEST};
use dstack_model::backends::BackendType;
use dstack_model::decode::decode_strict;
use dstack_model::instances::InstanceAvailability;
use dstack_model::offers::InstanceOfferWithAvailability;
use dstack_model::runs::Requirements;
use serde_json::{Value, json};

const REGION: &str = "eu-north1";
const OTHER_REGION: &str = "eu-west1";
const H100: &str = "gpu-h100-sxm 8gpu-128vcpu-1600gb";
const H200: &str = "gpu-h200-sxm 8gpu-128vcpu-1600gb";

fn creds(more: &Value) -> Value {
    let mut creds = json!({"type": "service_account", "service_account_id": ACCOUNT, "public_key_id": KEY_ID,
        "private_key_content": KEY});
    creds
        .as_object_mut()
        .unwrap()
        .extend(more.as_object().unwrap().clone());
    creds
}

fn config(creds_more: &Value, more: &Value) -> Value {
    let mut config = json!({"type": "nebius", "creds": creds(creds_more)});
    config
        .as_object_mut()
        .unwrap()
        .extend(more.as_object().unwrap().clone());
    config
}

fn emulated_with(more: &Value) -> (Arc<Nebius>, Cloud) {
    let emulator = Arc::new(Nebius::default());
    let none = &json!({});
    let all = &[
        "creds.service_account_id",
        "creds.public_key_id",
        "creds.private_key_content",
    ][..];
    let no_key = format!("-----BEGIN PRIVATE KEY-----\n{CANARY}\n-----END PRIVATE KEY-----");
    let refused = vec![
        (
            config(&json!({"service_account_id": "serviceaccount-e00other"}), none),
            all,
        ),
        (config(&json!({"public_key_id": "publickey-e00other"}), none), all),
        (
            config(&json!({"service_account_id": "a b"}), none),
            &["creds.service_account_id"][..],
        ),
        (
            config(&json!({"public_key_id": ""}), none),
            &["creds.public_key_id"],
        ),
        (
            config(&json!({"private_key_content": no_key}), none),
            &["creds.private_key_content"],
        ),
        (config(none, &json!({"regions": ["nowhere"]})), &["regions"]),
        (
            config(none, &json!({"projects": ["project-e00other"]})),
            &["projects"],
        ),
        (
            config(none, &json!({"projects": [NORTH, RESEARCH]})),
            &["projects"],
        ),
        (
            config(none, &json!({"fabrics": ["fabric-2", "fabric-0"]})),
            &["fabrics"],
        ),
    ];
    let mut cloud = Cloud::new(
        emulator.clone(),
        dstack_backend_nebius::kind,
        config(none, more),
        refused,
    );
    // Read once, and not for each cloud.
    static CATALOG: OnceLock<Arc<Catalog>> = OnceLock::new();
    cloud.env.catalog = CATALOG.get_or_init(|| cloud.env.catalog.clone()).clone();
    cloud.kind = dstack_backend_nebius::kind(cloud.env.clone());
    (emulator, cloud)
}

fn emulated() -> (Arc<Nebius>, Cloud) {
    emulated_with(&json!({}))
}

fn cloud() -> Cloud {
    emulated().1
}

async fn one_machine() -> (Cloud, Subject<Machine>) {
    let cloud = cloud();
    let subject = machine(&cloud).await;
    (cloud, subject)
}

async fn machine_in(cloud: &mut Cloud, region: &'static str) -> Subject<Machine> {
    cloud.region = Some(region);
    let subject = machine(cloud).await;
    cloud.region = None;
    subject
}

async fn three_machines() -> (Cloud, Vec<Subject<Machine>>) {
    let mut cloud = cloud();
    let subjects = vec![
        machine_in(&mut cloud, REGION).await,
        machine_in(&mut cloud, OTHER_REGION).await,
        machine_in(&mut cloud, REGION).await,
    ];
    (cloud, subjects)
}

async fn offers_of(cloud: &Cloud, spot: Option<bool>) -> Vec<InstanceOfferWithAvailability> {
    let resources = json!({"cpu": "1..", "memory": "1GB..", "disk": "100GB"});
    let requirements: Requirements = decode_strict(&json!({"resources": resources, "spot": spot})).unwrap();
    cloud.open().offers(&requirements).await.unwrap()
}

async fn machine_of(cloud: &Cloud, instance_type: &str, region: &str, spot: bool) -> Subject<Machine> {
    let offers = offers_of(cloud, Some(spot)).await;
    let is_it = |offer: &InstanceOfferWithAvailability| {
        offer.instance.name == instance_type && &*offer.region == region
    };
    let mut subject = machine(cloud).await;
    subject.want.offer = offers.into_iter().find(is_it).unwrap();
    subject.site = region.to_owned();
    subject
}

/// One whose price moves: with a policy for it.
async fn one_spot_machine() -> (Cloud, Subject<Machine>) {
    let cloud = cloud();
    let subject = machine_of(&cloud, H100, REGION, true).await;
    (cloud, subject)
}

async fn three_spot_machines() -> (Cloud, Vec<Subject<Machine>>) {
    let cloud = cloud();
    let subjects = vec![
        machine_of(&cloud, H100, REGION, true).await,
        machine_of(&cloud, H200, OTHER_REGION, true).await,
        machine_of(&cloud, H200, REGION, true).await,
    ];
    (cloud, subjects)
}

async fn one_placement() -> (Cloud, Subject<Placement>) {
    let cloud = cloud();
    let subject = placement(&cloud, REGION, H100);
    (cloud, subject)
}

async fn three_placements() -> (Cloud, Vec<Subject<Placement>>) {
    let cloud = cloud();
    let subjects = vec![
        placement(&cloud, REGION, H100),
        placement(&cloud, OTHER_REGION, H200),
        placement(&cloud, REGION, H200),
    ];
    (cloud, subjects)
}

// Spot machines have all that others have, and a piece more.
checks_of!(machines: one_machine, three_machines; whole_life, sold_out, loss, neighbours, soak);
checks_of!(spot_machines: one_spot_machine, three_spot_machines);
checks_of!(placements: one_placement, three_placements;
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
async fn spot_machines_show_the_most_that_is_paid() {
    let (_, cloud) = emulated();
    let all = offers_of(&cloud, None).await;
    assert!(
        all.iter()
            .all(|offer| offer.availability == InstanceAvailability::Unknown)
    );
    assert!(
        all.iter()
            .all(|offer| [REGION, OTHER_REGION].contains(&&*offer.region))
    );
    let disks = all.iter().map(|offer| offer.instance.resources.disk.size_mib);
    assert!(disks.into_iter().all(|disk| disk == 100 * 1024));
    let price = |name: &str, spot: bool| {
        let found = all
            .iter()
            .find(|offer| offer.instance.name == name && offer.instance.resources.spot == spot);
        found.unwrap().price
    };
    assert!(price(H100, true) < price(H100, false));

    let (_, one) = emulated_with(&json!({"regions": [OTHER_REGION]}));
    let some = offers_of(&one, None).await;
    assert!(!some.is_empty() && some.iter().all(|offer| &*offer.region == OTHER_REGION));
}

#[tokio::test(start_paused = true)]
async fn what_is_asked_for_is_what_the_offer_says() {
    let (emulator, cloud) = emulated_with(&json!({"projects": [RESEARCH], "tags": {"team": "admins"}}));
    for (name, spot, has_policy) in [
        ("cpu-e2 2vcpu-8gb", false, false),
        (H100, false, false),
        (H100, true, true),
        ("gpu-l40s-a 1gpu-8vcpu-32gb", true, false),
    ] {
        let subject = machine_of(&cloud, name, REGION, spot).await;
        let driver = Driver::new(&cloud);
        let place = driver.make(&subject).await.unwrap();
        assert_eq!(place.username, "ubuntu");
        assert_eq!(place.hostname.as_deref(), Some("203.0.113.56"));
        assert_eq!(place.internal_ip.as_deref(), Some("192.168.0.5"));
        let known_as = subject.marks.name(60);
        let asked = |kind: &str| emulator.asked(kind, &known_as);
        let (machine, disk) = (asked("machine").unwrap(), asked("disk").unwrap());
        assert_eq!(machine["metadata"]["parent_id"], RESEARCH);
        assert_eq!(machine["metadata"]["labels"]["team"], "admins");
        assert_eq!(disk["spec"]["size_mebibytes"], 100 * 1024);
        let (platform, preset) = name.split_once(' ').unwrap();
        assert_eq!(
            machine["spec"]["resources"],
            json!({"platform": platform, "preset": preset})
        );
        assert_eq!(machine["spec"]["preemptible"].is_object(), spot, "{name}");
        assert_eq!(
            machine["spec"]["spot_pricing_policy"].is_object(),
            has_policy,
            "{name}"
        );
        if let Some(policy) = asked("pricing policy") {
            let gpus = subject.want.offer.instance.resources.gpus.len();
            let cap: f64 = policy["spec"]["pricing"]["max_price_v1"]["max_price"]
                .as_str()
                .unwrap()
                .parse()
                .unwrap();
            assert!((cap * gpus as f64 - subject.want.offer.price).abs() < 1e-9);
        }
        // As dstack 0.22.5 has it: by what is noted in the place alone.
        Driver::new(&cloud)
            .remove(&subject.known(Some(place)), &subject)
            .await;
        assert_eq!(emulator.ledger().alive(), []);
    }
}

#[tokio::test(start_paused = true)]
async fn entries_of_an_unknown_form_are_left_out() {
    let (emulator, cloud) = emulated();
    let before = offers_of(&cloud, None).await;
    emulator.list_oddities();
    assert_eq!(offers_of(&cloud, None).await, before);
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
    for fault in [Fault::Refused(404), Fault::Malformed] {
        cloud.faults().at(2, fault);
        let signs = machines.look(&known).await.unwrap();
        assert!(matches!(signs.as_slice(), [None]), "{signs:?}");
    }
    cloud.faults().at(1, Fault::Refused(404));
    driver.remove(&known[0], &subject).await;
    assert_eq!(emulator.ledger().alive(), []);
    let signs = machines.look(&known).await.unwrap();
    assert!(matches!(signs.as_slice(), [Some(Sign::Lost(_))]), "{signs:?}");
}

#[tokio::test(start_paused = true)]
async fn a_project_that_may_not_be_looked_into_hides_no_other() {
    let (emulator, mut cloud) = emulated();
    let mut known = Vec::new();
    for region in [REGION, OTHER_REGION] {
        let subject = machine_in(&mut cloud, region).await;
        let place = Driver::new(&cloud).make(&subject).await.unwrap();
        known.push(subject.known(Some(place)));
    }
    let backend = cloud.open();
    emulator.forbid(WEST);
    let signs = backend.machines().unwrap().look(&known).await.unwrap();
    assert!(matches!(signs.as_slice(), [Some(Sign::Well), None]), "{signs:?}");
    // An inventory that is not whole is an error, unless the region is not used.
    backend.inventory().await.unwrap_err();
    cloud.config["regions"] = json!([REGION]);
    assert_eq!(cloud.open().inventory().await.unwrap().len(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_token_that_is_revoked_is_fetched_again() {
    let (emulator, cloud) = emulated();
    let backend = cloud.open();
    backend.inventory().await.unwrap();
    emulator.revoke_tokens();
    backend.inventory().await.unwrap();
    // And one that has ended before it is used.
    tokio::time::sleep(Duration::from_secs(13 * 60 * 60)).await;
    cloud.faults().from(1, 1, Fault::AnswerLost);
    backend.inventory().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn several_projects_in_a_region_have_to_be_named() {
    let (_, cloud) = emulated();
    let given = config(
        &json!({}),
        &json!({"projects": [RESEARCH, WEST], "regions": [REGION]}),
    );
    let given = BackendConfig::read(&given).unwrap();
    cloud.kind.configure("main", &given).await.unwrap();
    let given = config(&json!({}), &json!({"tags": {"Team": "x"}}));
    let given = BackendConfig::read(&given).unwrap();
    let error = cloud.kind.configure("main", &given).await.unwrap_err();
    assert!(
        matches!(&error, ConfigureError::Invalid(text) if text.contains("Team")),
        "{error:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn refusals_are_told_apart() {
    for (refusal, expected) in [
        (Refusal::quota(), "NoQuota"),
        (Refusal::new(8, "no hosts left", Value::Null), "NoCapacity"),
        (Refusal::new(3, "no such preset", Value::Null), "Refused"),
        (Refusal::new(7, "no role", Value::Null), "Credentials"),
    ] {
        let (emulator, cloud) = emulated();
        emulator.refuse(refusal);
        let error = Driver::new(&cloud)
            .make(&machine(&cloud).await)
            .await
            .unwrap_err();
        assert!(format!("{error:?}").starts_with(expected), "{error:?}");
        assert_eq!(emulator.ledger().alive(), []);
    }
}

#[tokio::test(start_paused = true)]
async fn a_list_without_end_is_an_error() {
    let (emulator, cloud) = emulated();
    emulator.page_on_and_on();
    let error = cloud.open().inventory().await.unwrap_err();
    assert!(error.to_string().contains("pages"), "{error}");
}

#[tokio::test(start_paused = true)]
async fn a_machine_that_is_being_made_is_ended_afterwards() {
    let (emulator, cloud) = emulated();
    let (subject, driver) = (machine(&cloud).await, Driver::new(&cloud));
    let early = tokio::time::timeout(Duration::from_secs(20), driver.make(&subject)).await;
    assert!(early.is_err() && emulator.ledger().alive().len() == 2);
    driver.remove(&subject.known(None), &subject).await;
    assert_eq!(*driver.errors.lock().unwrap(), Vec::<String>::new());
    assert_eq!(emulator.ledger().alive(), []);
}

/// Projects, subnets and tokens are looked for before anything is asked for that costs money.
#[tokio::test(start_paused = true)]
async fn what_is_looked_for_in_vain_is_nothing_that_may_be_there() {
    for nth in 1..4 {
        let (_, cloud) = emulated();
        let subject = machine(&cloud).await;
        let driver = Driver::new(&cloud);
        cloud.faults().from(nth, 4, Fault::Lost);
        driver.make(&subject).await.unwrap();
        let errors = driver.errors.into_inner().unwrap();
        assert_eq!(errors.len(), 1, "the cloud was away once: {errors:?}");
        let is_definite = |error: &String| error.contains("NotReady") || error.contains("Unreachable");
        assert!(errors.iter().all(is_definite), "{nth} {errors:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn machines_with_infiniband_are_in_the_cluster_of_their_group() {
    let (emulator, cloud) = emulated_with(&json!({"fabrics": ["fabric-6", "fabric-7"]}));
    let (group, driver) = (placement(&cloud, REGION, H100), Driver::new(&cloud));
    let made = driver.make(&group).await.unwrap();
    let data: Value = serde_json::from_str(made.backend_data.as_deref().unwrap()).unwrap();
    assert_eq!(data["cluster"]["fabric"], "fabric-6");

    let mut subject = machine_of(&cloud, H100, REGION, false).await;
    subject.want.placement_group = Some(placement_name(&group.marks));
    let machines = Driver::new(&cloud);
    let place = machines.make(&subject).await.unwrap();
    let asked = emulator.asked("machine", &subject.marks.name(60)).unwrap();
    assert_eq!(asked["spec"]["gpu_cluster"]["id"], data["cluster"]["id"]);
    let mut other = machine_of(&cloud, H200, REGION, false).await;
    other.want.placement_group = Some(placement_name(&group.marks));
    let error = Driver::new(&cloud).make(&other).await.unwrap_err();
    assert!(error.to_string().contains("fabric-6"), "{error}");

    // A cluster stays as long as there are machines in it.
    let backend = cloud.open();
    let left = backend.inventory().await.unwrap();
    let cluster = left
        .iter()
        .find(|owned| owned.kind == OwnedKind::Placement)
        .unwrap();
    let error = backend.remove_owned(cluster).await.unwrap_err();
    assert!(matches!(error, ComputeError::InUse(_)), "{error:?}");
    machines.remove(&subject.known(Some(place)), &subject).await;
    driver.remove(&group.known(Some(made)), &group).await;
    assert_eq!(emulator.ledger().alive(), []);
}

#[tokio::test(start_paused = true)]
async fn a_group_without_infiniband_is_nothing_at_nebius() {
    let (emulator, cloud) = emulated();
    let (group, driver) = (placement(&cloud, REGION, "cpu-e2 2vcpu-8gb"), Driver::new(&cloud));
    let made = driver.make(&group).await.unwrap();
    assert_eq!(emulator.ledger().count(), 0);
    assert_eq!(made.backend_data.as_deref(), Some(r#"{"cluster":null}"#));
    let mut subject = machine(&cloud).await;
    subject.want.placement_group = Some(placement_name(&group.marks));
    Driver::new(&cloud).make(&subject).await.unwrap();
    let asked = emulator.asked("machine", &subject.marks.name(60)).unwrap();
    assert_eq!(asked["spec"].get("gpu_cluster"), None);
    driver.remove(&group.known(Some(made)), &group).await;
}

/// The reference's own code and the vendor's SDK against this cloud, over HTTP/2: `reference.py` makes, waits for and removes machines and
/// a group.
#[tokio::test]
async fn the_reference_finds_its_way_in_the_emulated_cloud() {
    let python = match reference_python() {
        Ok(python) => python,
        Err(reason) => {
            eprintln!("skipped: {reason}");
            return;
        }
    };
    let (has_sdk, _) = run(&python, &["-c", "import nebius"]).await;
    if !has_sdk {
        eprintln!("skipped: there is no SDK of Nebius beside dstack 0.22.5");
        return;
    }
    let pace = Duration::from_millis(50);
    let times = Times {
        piece: pace,
        machine: pace,
        ends: pace,
    };
    let emulator = Nebius::with_times(times, 1000);
    let url = served(&emulator).await;
    let address = url.trim_start_matches("http://");
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../nebius/emulator");
    let (script, key) = (format!("{folder}/reference.py"), format!("{folder}/key.pem"));
    let (status, text) = run(&python, &[&script, address, ACCOUNT, KEY_ID, &key]).await;
    assert!(status && text.contains("all parts passed"), "{text}");
    assert_eq!(emulator.ledger().count(), 10);
    assert_eq!(emulator.ledger().alive(), []);
}

/// Over the network, with a status after the message.
#[tokio::test]
async fn the_client_reads_what_is_served() {
    let emulator = Nebius::default();
    let url = served(&emulator).await;
    let kind = dstack_backend_nebius::kind(network_env(BackendType::Nebius, &url));
    let given = BackendConfig::read(&config(&json!({}), &json!({}))).unwrap();
    kind.configure("main", &given).await.unwrap();
    let other = config(&json!({"public_key_id": "publickey-e00other"}), &json!({}));
    let error = kind
        .configure("main", &BackendConfig::read(&other).unwrap())
        .await
        .unwrap_err();
    assert!(
        format!("{error:?}").contains("the subject token is not valid"),
        "{error:?}"
    );
}
