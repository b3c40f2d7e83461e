use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use dstack_backend_kit::{
    CANARY, Cloud, Driver, Emulator as _, Fault, Notes, Subject, checks, checks_of, extended, machine,
    machine_in, machine_of, network_env, placement, reference_python, requirements, run, served,
    with_machine, with_machines_in,
};
use dstack_backend_nebius::NebiusCollector;
use dstack_catalog::{
    Catalog, CollectContext, OfflineProvider as _, Progress, Provider, Table, TableInfo, write_csv,
};
use dstack_compute::config::{BackendConfig, NebiusConfig, TypedConfig as _};
use dstack_compute::{
    ComputeError, ConfigureError, Machine, OwnedKind, Placement, Removal, Sign, placement_name,
};
use dstack_emulator_nebius::{ACCOUNT, KEY, KEY_ID, NORTH, Nebius, OLD, RESEARCH, Refusal, Times, WEST};
use dstack_model::backends::BackendType;
use dstack_model::instances::InstanceAvailability;
use dstack_model::runs::Requirements;
use futures_util::future::join_all;
use serde_json::{Value, json};

const REGION: &str = "eu-north1";
const OTHER_REGION: &str = "eu-west1";
const H100: &str = "gpu-h100-sxm 8gpu-128vcpu-1600gb";
const H200: &str = "gpu-h200-sxm 8gpu-128vcpu-1600gb";

fn config(creds: &Value, more: &Value) -> Value {
    let all = json!({"type": "service_account", "service_account_id": ACCOUNT, "public_key_id": KEY_ID,
        "private_key_content": KEY});
    let config = json!({"type": "nebius", "creds": extended(all, creds)});
    extended(config, more)
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

pub(crate) async fn one_machine() -> (Cloud, Subject<Machine>) {
    with_machine(cloud()).await
}

async fn three_machines() -> (Cloud, Vec<Subject<Machine>>) {
    with_machines_in(cloud(), &[REGION, OTHER_REGION, REGION]).await
}

fn wanted(spot: Option<bool>) -> Requirements {
    let resources = json!({"cpu": "1..", "memory": "1GB..", "disk": "100GB"});
    requirements(&json!({"resources": resources, "spot": spot}))
}

async fn machine_named(cloud: &Cloud, instance_type: &str, region: &str, spot: bool) -> Subject<Machine> {
    machine_of(cloud, &wanted(Some(spot)), |offer| {
        offer.instance.name == instance_type && &*offer.region == region
    })
    .await
}

/// One whose price moves: with a policy for it.
async fn one_spot_machine() -> (Cloud, Subject<Machine>) {
    let cloud = cloud();
    let subject = machine_named(&cloud, H100, REGION, true).await;
    (cloud, subject)
}

async fn three_spot_machines() -> (Cloud, Vec<Subject<Machine>>) {
    let cloud = cloud();
    let subjects = vec![
        machine_named(&cloud, H100, REGION, true).await,
        machine_named(&cloud, H200, OTHER_REGION, true).await,
        machine_named(&cloud, H200, REGION, true).await,
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
    let all = cloud.offers(&wanted(None)).await;
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
    let some = one.offers(&wanted(None)).await;
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
        let subject = machine_named(&cloud, name, REGION, spot).await;
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
        // Another subnet is listed first.
        assert_eq!(
            machine["spec"]["network_interfaces"],
            json!([{"subnet_id": format!("vpcsubnet-{RESEARCH}"), "name": "dstack-default-interface", "ip_address": {},
                "public_ip_address": {"static": true}}])
        );
        let user_data = machine["spec"]["cloud_init_user_data"].as_str().unwrap();
        let user_data = user_data.strip_prefix("#cloud-config\n").unwrap();
        let user_data: Value = serde_json::from_str(user_data).unwrap();
        assert_eq!(
            user_data["ssh_authorized_keys"],
            json!(subject.want.authorized_keys)
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
    let before = cloud.offers(&wanted(None)).await;
    emulator.list_oddities();
    assert_eq!(cloud.offers(&wanted(None)).await, before);
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
        let subject = machine_in(&cloud, region).await;
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
    cloud.configure(&given).await.unwrap();
    let given = config(&json!({}), &json!({"tags": {"Team": "x"}}));
    let error = cloud.configure(&given).await.unwrap_err();
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
async fn what_may_have_been_carried_out_is_not_refused_by_a_later_answer() {
    let of = |code: i32| Refusal::new(code, "not now", Value::Null);
    for (answers, is_unclear) in [
        // The same key: it is made once.
        (vec![(of(14), true)], false),
        (vec![(of(14), false), (of(14), true)], false),
        (vec![(of(14), true), (Refusal::quota(), false)], true),
        (vec![(of(14), true), (of(8), false)], true),
        (vec![(of(14), true), (of(16), false)], true),
        (vec![(of(14), false), (of(3), false)], true),
        (vec![(of(16), false)], false),
        (vec![(of(13), true)], true),
        (vec![(of(4), true)], true),
        (vec![(of(4), false)], true),
    ] {
        let case = format!("{answers:?}");
        let (emulator, cloud) = emulated();
        emulator.refuse_next(answers);
        let (subject, driver) = (machine(&cloud).await, Driver::new(&cloud));
        let place = driver
            .make(&subject)
            .await
            .unwrap_or_else(|error| panic!("{case}: {error}"));
        assert_eq!(emulator.ledger().count(), 2, "{case}");
        let errors = driver.errors.lock().unwrap().clone();
        assert_eq!(!errors.is_empty(), is_unclear, "{case}: {errors:?}");
        assert!(
            errors.iter().all(|error| error.contains("Unclear")),
            "{case}: {errors:?}"
        );
        driver.remove(&subject.known(Some(place)), &subject).await;
        assert_eq!(emulator.ledger().alive(), [], "{case}");
    }
}

#[tokio::test(start_paused = true)]
async fn why_a_machine_came_to_nothing_is_told_though_it_is_removed() {
    let (emulator, cloud) = emulated();
    emulator.sell_out(true);
    emulator.remove_failed();
    let error = Driver::new(&cloud)
        .make(&machine(&cloud).await)
        .await
        .unwrap_err();
    assert!(matches!(error, ComputeError::NoCapacity(_)), "{error:?}");
    assert_eq!(emulator.ledger().alive(), []);
}

/// All wait for one token, and nothing is taken for asked for.
#[tokio::test(start_paused = true)]
async fn a_token_service_that_hangs_holds_nobody_up_for_long() {
    let (emulator, cloud) = emulated();
    let mut subjects = Vec::new();
    for _ in 0..20 {
        subjects.push(machine(&cloud).await);
    }
    let backend = cloud.open();
    cloud
        .faults()
        .from(1, 6, Fault::SlowAnswer(Duration::from_secs(100)));
    let made = subjects.iter().map(|subject| {
        let driver = Driver::with_backend(&cloud, backend.clone());
        async move {
            let made = tokio::time::timeout(Duration::from_secs(90), driver.make(subject)).await;
            made.unwrap().unwrap();
            driver.errors.into_inner().unwrap()
        }
    });
    for errors in join_all(made).await {
        assert!(
            errors.iter().all(|error| error.contains("Unreachable")),
            "{errors:?}"
        );
    }
    assert_eq!(emulator.ledger().count(), 40);
}

#[tokio::test(start_paused = true)]
async fn what_was_begun_is_looked_for_where_it_was_begun() {
    let (emulator, mut cloud) = emulated_with(&json!({"projects": [RESEARCH]}));
    let (subject, notes) = (machine_in(&cloud, REGION).await, Notes::default());
    let backend = cloud.open();
    // A disk is asked for after a token, two lists of projects and of subnets each, and the tenant.
    cloud.faults().from(7, 3, Fault::AnswerLost);
    let error = notes.ensure(&cloud, &*backend, &subject).await.unwrap_err();
    assert!(matches!(error, ComputeError::Unclear(_)), "{error:?}");
    assert_eq!(emulator.ledger().alive().len(), 1);

    cloud.config["projects"] = json!([NORTH]);
    notes.remove(&cloud, &subject, None).await.unwrap();
    assert_eq!(emulator.ledger().alive(), []);
}

#[tokio::test(start_paused = true)]
async fn machines_in_projects_that_are_not_used_any_more_are_looked_after() {
    let (emulator, mut cloud) = emulated_with(&json!({"projects": [RESEARCH]}));
    let mut known = Vec::new();
    for _ in 0..25 {
        let subject = machine_in(&cloud, REGION).await;
        let place = Driver::new(&cloud).make(&subject).await.unwrap();
        known.push(subject.known(Some(place)));
    }
    for named in [NORTH, WEST] {
        cloud.config["projects"] = json!([named]);
        let backend = cloud.open();
        let machines = backend.machines().unwrap();
        let [first, second] = [
            machines.look(&known).await.unwrap(),
            machines.look(&known).await.unwrap(),
        ];
        let told = |signs: &[Option<Sign<_>>]| signs.iter().flatten().count();
        assert_eq!((told(&first), told(&second)), (20, 20), "{named}");
        for signs in first.iter().zip(&second) {
            assert!(
                matches!(signs, (Some(Sign::Well), _) | (_, Some(Sign::Well))),
                "{named} {signs:?}"
            );
        }
        assert_eq!(backend.inventory().await.unwrap().len(), 50, "{named}");
    }
    emulator.lose_all();
    let backend = cloud.open();
    let signs = backend.machines().unwrap().look(&known).await.unwrap();
    assert!(signs.iter().flatten().all(|sign| matches!(sign, Sign::Lost(_))));
}

#[tokio::test(start_paused = true)]
async fn a_project_that_is_gone_takes_none_but_its_own_region_away() {
    let (emulator, cloud) = emulated_with(&json!({"projects": [NORTH, WEST]}));
    emulator.hide(WEST);
    let all = cloud.offers(&wanted(None)).await;
    assert!(!all.is_empty() && all.iter().all(|offer| &*offer.region == REGION));
    checks::whole_life(&cloud, &machine(&cloud).await).await;
    let error = cloud.configure(&cloud.config).await.unwrap_err();
    assert!(format!("{error:?}").contains("projects"), "{error:?}");
}

#[tokio::test(start_paused = true)]
async fn a_project_that_was_deleted_a_moment_ago_hides_no_other() {
    let (emulator, cloud) = emulated();
    let subject = machine_named(&cloud, H100, REGION, false).await;
    Driver::new(&cloud).make(&subject).await.unwrap();
    let backend = cloud.open();
    backend.inventory().await.unwrap();
    emulator.delete_project(RESEARCH);
    for _ in 0..2 {
        assert_eq!(backend.inventory().await.unwrap().len(), 2);
    }
    // Of one that is used, something may have been there: that it is not used any more is found out next.
    emulator.delete_project(WEST);
    backend.inventory().await.unwrap_err();
    assert_eq!(backend.inventory().await.unwrap().len(), 2);
}

#[tokio::test(start_paused = true)]
async fn machines_with_infiniband_are_in_a_cluster_or_not_at_all() {
    let (emulator, cloud) = emulated();
    let (group, driver) = (placement(&cloud, REGION, H100), Driver::new(&cloud));
    driver.make(&group).await.unwrap();
    // Somebody removes it.
    let backend = cloud.open();
    let left = backend.inventory().await.unwrap();
    while backend.remove_owned(&left[0]).await != Ok(Removal::Gone) {
        tokio::time::sleep(Duration::from_secs(5)).await;
    }
    let mut subject = machine_named(&cloud, H100, REGION, false).await;
    subject.want.placement_group = Some(placement_name(&group.marks));
    let error = Driver::new(&cloud).make(&subject).await.unwrap_err();
    assert!(
        matches!(&error, ComputeError::Refused(text) if text.contains("no GPU cluster")),
        "{error:?}"
    );
    assert_eq!(emulator.ledger().count(), 1, "not even a disk was made");
}

#[tokio::test(start_paused = true)]
async fn machines_of_other_fabrics_than_those_configured_are_in_no_group() {
    let (emulator, cloud) = emulated_with(&json!({"fabrics": ["fabric-7"]}));
    let (group, driver) = (placement(&cloud, REGION, H100), Driver::new(&cloud));
    let error = driver.make(&group).await.unwrap_err();
    let is_told =
        |error: &ComputeError| matches!(error, ComputeError::Refused(text) if text.contains("`fabrics`"));
    assert!(is_told(&error), "{error:?}");
    // Of one that was made before.
    let mut subject = machine_named(&cloud, H100, REGION, false).await;
    subject.want.placement_group = Some(placement_name(&group.marks));
    let error = Driver::new(&cloud).make(&subject).await.unwrap_err();
    assert!(is_told(&error), "{error:?}");
    assert_eq!(emulator.ledger().count(), 0);
    // Alone, it needs none; and others are in theirs.
    let alone = machine_named(&cloud, H100, REGION, false).await;
    Driver::new(&cloud).make(&alone).await.unwrap();
    for (name, count) in [("cpu-e2 2vcpu-8gb", 2), (H200, 3)] {
        let group = placement(&cloud, REGION, name);
        Driver::new(&cloud).make(&group).await.unwrap();
        assert_eq!(emulator.ledger().count(), count, "{name}");
    }
}

/// Platforms and prices for the published catalogue.
#[tokio::test(start_paused = true)]
async fn what_is_sold_is_collected() {
    let (_, cloud) = emulated();
    let config = NebiusConfig::of(BackendConfig::read(&cloud.config).unwrap()).unwrap();
    let collector = NebiusCollector::new(&cloud.env, &config.creds).unwrap();
    let warnings = Arc::new(Warnings::default());
    let context = CollectContext {
        progress: Arc::clone(&warnings) as _,
        published_only: true,
    };
    let items = collector.collect(&context).await.unwrap();
    let mut text = Vec::new();
    let table = Table::from_items(TableInfo::unversioned(Provider::Nebius), &items);
    write_csv(table.offers(), &mut text).unwrap();
    let expected = include_str!("../data/nebius_collected.csv").replace('\n', "\r\n");
    assert_eq!(String::from_utf8(text).unwrap(), expected);
    let told = warnings.0.lock().unwrap().join("\n");
    assert!(
        told.contains("gpu-x900-sxm") && told.contains("unpriced"),
        "{told}"
    );
}

/// What could not be collected.
#[derive(Debug, Default)]
struct Warnings(Mutex<Vec<String>>);

impl Progress for Warnings {
    fn step(&self, _: &str) {}

    fn bytes(&self, _: u64, _: Option<u64>) {}

    fn warn(&self, what: &str) {
        self.0.lock().unwrap().push(what.to_owned());
    }
}

/// As with `regions` and `projects`, none named is all.
#[tokio::test(start_paused = true)]
async fn an_empty_list_of_fabrics_is_all_of_them() {
    let (emulator, cloud) = emulated_with(&json!({"fabrics": []}));
    let group = placement(&cloud, REGION, H100);
    Driver::new(&cloud).make(&group).await.unwrap();
    let mut subject = machine_named(&cloud, H100, REGION, false).await;
    subject.want.placement_group = Some(placement_name(&group.marks));
    Driver::new(&cloud).make(&subject).await.unwrap();
    let asked = emulator.asked("machine", &subject.marks.name(60)).unwrap();
    assert!(asked["spec"]["gpu_cluster"]["id"].is_string(), "{asked}");
}

#[tokio::test(start_paused = true)]
async fn b200s_are_in_clusters_too() {
    const B200: &str = "gpu-b200-sxm 8gpu-160vcpu-1792gb";
    const CENTRAL: &str = "us-central1";
    let (emulator, cloud) = emulated();
    emulator.restore();
    let group = placement(&cloud, CENTRAL, B200);
    Driver::new(&cloud).make(&group).await.unwrap();
    let mut subject = machine_named(&cloud, B200, CENTRAL, false).await;
    subject.want.placement_group = Some(placement_name(&group.marks));
    Driver::new(&cloud).make(&subject).await.unwrap();
    let asked = emulator.asked("machine", &subject.marks.name(60)).unwrap();
    assert_eq!(asked["metadata"]["parent_id"], OLD);
    assert!(asked["spec"]["gpu_cluster"]["id"].is_string());
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
    for nth in 1..7 {
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

    let mut subject = machine_named(&cloud, H100, REGION, false).await;
    subject.want.placement_group = Some(placement_name(&group.marks));
    let machines = Driver::new(&cloud);
    let place = machines.make(&subject).await.unwrap();
    let asked = emulator.asked("machine", &subject.marks.name(60)).unwrap();
    assert_eq!(asked["spec"]["gpu_cluster"]["id"], data["cluster"]["id"]);
    let mut other = machine_named(&cloud, H200, REGION, false).await;
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

/// The group's machines are all in its project.
#[tokio::test(start_paused = true)]
async fn a_group_grows_though_another_project_is_used_now() {
    let (emulator, mut cloud) = emulated_with(&json!({"projects": [RESEARCH]}));
    let group = placement(&cloud, REGION, H100);
    let made = Driver::new(&cloud).make(&group).await.unwrap();
    for named in [json!([NORTH]), json!([])] {
        cloud.config["projects"] = named;
        let mut subject = machine_named(&cloud, H100, REGION, false).await;
        subject.want.placement_group = Some(placement_name(&group.marks));
        let machines = Driver::new(&cloud);
        let place = machines.make(&subject).await.unwrap();
        let asked = emulator.asked("machine", &subject.marks.name(60)).unwrap();
        assert_eq!(asked["metadata"]["parent_id"], RESEARCH);
        assert!(asked["spec"]["gpu_cluster"]["id"].is_string());
        machines.remove(&subject.known(Some(place)), &subject).await;
    }
    Driver::new(&cloud).remove(&group.known(Some(made)), &group).await;
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

/// `reference.py`: the reference's own code and the vendor's SDK against this cloud, over HTTP/2. Credentials and what is wrong with them;
/// machines with CPUs, with GPUs of spot, and in a GPU cluster, each from its disk to its end.
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
