use std::process::Command;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use dstack_backend_kit::{
    CANARY, Cloud, Driver, Fault, Notes, Subject, attachment, checks, checks_of, extended, gateway,
    load_balancer, machine, machine_of, placement, requirements, sizes_of_catalog, soak, volume,
};
use dstack_compute::config::BackendConfig;
use dstack_compute::{
    Attachment, AttachmentSite, Backend, Balancing, CALL_LIMIT, ComputeError, ConfigureError, GatewayMachine,
    JobNeeds, Known, LoadBalancer, Machine, MachineRequest, OwnedKind, Placement, Removal, Resource, Sign,
    Step, Volume, VolumeRequest,
};
use dstack_emulator_aws::{Aws, Reservation, Size};
use dstack_model::decode::decode_strict;
use dstack_model::gateways::GatewayReplicaProvisioningData;
use dstack_model::instances::InstanceAvailability;
use dstack_model::runs::Requirements;
use dstack_units::Time;
use serde_json::{Value, json};

use crate::aws_roles::{ROLE, trust_policy};

pub(crate) const KEY_ID: &str = "AKIAIOSFODNN7EXAMPLE";

pub(crate) const REGIONS: &[&str] = &["us-east-1", "eu-west-1"];

const REGION: &str = "us-east-1";

/// Types with EFA, and how many interfaces they have for it.
const WITH_EFA: &[(&str, u32)] = &[("p4d.24xlarge", 4), ("p5.48xlarge", 32), ("g5.8xlarge", 1)];

/// All that the catalogue has.
static SIZES: LazyLock<Vec<Size>> = LazyLock::new(|| {
    let mut sizes = sizes_of_catalog("aws", &[], |row| {
        let efa = WITH_EFA.iter().find(|(name, _)| *name == row.instance_name());
        Size {
            name: row.instance_name().to_owned(),
            vcpus: row.cpu(),
            max_efa: efa.map_or(0, |(_, most)| *most),
        }
    });
    sizes.sort_by(|one, other| one.name.cmp(&other.name));
    sizes.dedup_by(|one, other| one.name == other.name);
    sizes
});

pub(crate) fn sizes() -> Vec<Size> {
    SIZES.clone()
}

pub(crate) fn key(id: &str, secret: &str) -> Value {
    json!({"type": "access_key", "access_key": id, "secret_key": secret})
}

pub(crate) fn config_with(more: &Value) -> Value {
    let config = json!({"type": "aws", "regions": REGIONS, "creds": key(KEY_ID, CANARY)});
    extended(config, more)
}

/// The cloud, and what is behind it.
pub(crate) fn cloud_with(more: &Value) -> (Cloud, Aws) {
    let emulator = Aws::new(KEY_ID, CANARY, REGIONS, sizes());
    let refused = vec![
        (
            config_with(&json!({"creds": key("AKIAI44QH8DHBEXAMPLE", CANARY)})),
            &["creds.access_key"][..],
        ),
        (
            config_with(&json!({"creds": key(KEY_ID, "wrong")})),
            &["creds.secret_key"][..],
        ),
    ];
    let cloud = Cloud::new(
        Arc::new(emulator.clone()),
        dstack_backend_aws::kind,
        config_with(more),
        refused,
    );
    (cloud, emulator)
}

fn cloud() -> Cloud {
    cloud_with(&json!({})).0
}

fn wanted(more: &Value) -> Requirements {
    let all = json!({"resources": {"cpu": "1..", "memory": "1GB..", "disk": "100GB.."}});
    requirements(&extended(all, more))
}

fn with_gpus(gpu: &str) -> Requirements {
    wanted(&json!({"resources": {"cpu": "1..", "memory": "1GB..", "gpu": gpu}}))
}

/// Which is not spot, in the first region.
async fn machine_named(cloud: &Cloud, name: &str) -> Subject<Machine> {
    let all = wanted(&json!({"resources": {"cpu": "1..", "memory": "1GB..", "gpu": "0.."}, "spot": false}));
    machine_of(cloud, &all, |offer| {
        offer.instance.name == name && &*offer.region == REGION
    })
    .await
}

fn disk(more: &Value) -> Value {
    let disk = json!({"type": "volume", "backend": "aws", "name": "data", "region": REGION, "size": "100GB"});
    extended(disk, more)
}

async fn problem(cloud: &Cloud, more: &Value) -> String {
    match cloud.configure(&config_with(more)).await.unwrap_err() {
        ConfigureError::Invalid(text) => text,
        other @ ConfigureError::Credentials { .. } => panic!("{other:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn credentials() {
    checks::credentials(&cloud()).await;
}

/// The environment of a process cannot be changed: another one of this test has the credentials.
#[tokio::test(start_paused = true)]
async fn the_credentials_of_this_machine_are_taken_where_that_is_configured() {
    if dstack_system::env::var("AWS_ACCESS_KEY_ID").as_deref() != Some(KEY_ID) {
        let this = std::env::current_exe().unwrap();
        let name = "aws::the_credentials_of_this_machine_are_taken_where_that_is_configured";
        let output = Command::new(this)
            .args(["--exact", name, "--nocapture"])
            .env_clear()
            .env("AWS_ACCESS_KEY_ID", KEY_ID)
            .env("AWS_SECRET_ACCESS_KEY", CANARY)
            .env("AWS_SESSION_TOKEN", "session")
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success() && text.contains("1 passed"), "{output:?}");
        return;
    }
    let default = json!({"creds": {"type": "default"}});
    let (cloud, emulator) = cloud_with(&default);
    cloud.configure(&cloud.config).await.unwrap();
    assert_eq!(emulator.session_tokens(), ["session"]);
    let in_role = json!({"type": "default", "role_arn": ROLE});
    emulator.add_role(ROLE, trust_policy(None));
    emulator.set_roles_only();
    cloud
        .configure(&config_with(&json!({"creds": in_role})))
        .await
        .unwrap();
    cloud.configure(&cloud.config).await.unwrap_err();
    assert_eq!(emulator.sessions().len(), 1);
    let of_others = Aws::new(KEY_ID, "other", REGIONS, sizes());
    let cloud = Cloud::new(
        Arc::new(of_others),
        dstack_backend_aws::kind,
        config_with(&default),
        Vec::new(),
    );
    let error = cloud.configure(&cloud.config).await.unwrap_err();
    let ConfigureError::Credentials { fields, .. } = &error else {
        panic!("{error:?}");
    };
    assert_eq!(*fields, [["creds"]]);
    assert!(!format!("{error:?}").contains(CANARY), "{error:?}");
}

#[tokio::test(start_paused = true)]
async fn a_configuration_is_checked_in_each_of_its_regions() {
    let (cloud, emulator) = cloud_with(&json!({}));
    for good in [
        json!({}),
        json!({"public_ips": false, "vpc_name": "private"}),
        json!({"vpc_ids": {"eu-west-1": "vpc-default-eu-west-1"}}),
    ] {
        cloud.configure(&config_with(&good)).await.unwrap();
    }
    for (bad, expected) in [
        (json!({"public_ips": false}), "Failed to find private subnets"),
        (json!({"vpc_name": "private"}), "Failed to find public subnets"),
        (
            json!({"vpc_name": "none"}),
            "Failed to find VPC with name none in region us-east-1",
        ),
        (
            json!({"vpc_ids": {"eu-west-1": "vpc-0"}}),
            "Failed to find VPC vpc-0 in region eu-west-1",
        ),
        (
            json!({"regions": ["us-east-1", "ap-east-1"]}),
            "The account cannot use region ap-east-1: enable it",
        ),
        (
            json!({"default_vpcs": false}),
            "must be specified if `default_vpcs: false`",
        ),
        (
            json!({"tags": {"team": "a b"}, "iam_instance_profile": "jobs"}),
            "IAM instance profile jobs not found",
        ),
    ] {
        let text = problem(&cloud, &bad).await;
        assert!(text.contains(expected), "{bad}: {text}");
    }
    emulator.add_profile("jobs");
    cloud
        .configure(&config_with(&json!({"iam_instance_profile": "jobs"})))
        .await
        .unwrap();
    emulator.deny("ec2:DescribeRouteTables");
    let text = problem(&cloud, &json!({})).await;
    assert!(
        text.contains("AWS does not allow `ec2:DescribeRouteTables`: add it to the policy"),
        "{text}"
    );
}

#[tokio::test(start_paused = true)]
async fn regions_that_are_not_named_are_filled_in() {
    let emulator = Aws::new(KEY_ID, CANARY, &["us-east-1"], sizes());
    let cloud = Cloud::new(
        Arc::new(emulator),
        dstack_backend_aws::kind,
        config_with(&json!({"regions": null})),
        Vec::new(),
    );
    // The account has one of them only.
    let text = problem(&cloud, &json!({"regions": null})).await;
    assert!(text.contains("cannot use region us-east-2"), "{text}");
    let stored = cloud
        .configure(&config_with(&json!({"regions": ["us-east-1"]})))
        .await
        .unwrap();
    assert_eq!(stored["regions"], json!(["us-east-1"]));
}

#[tokio::test(start_paused = true)]
async fn offers() {
    let cloud = cloud();
    checks::offers(&cloud).await;
    let offers = cloud.offers(&wanted(&json!({}))).await;
    let first = offers.iter().find(|offer| &*offer.region == REGION).unwrap();
    assert_eq!(
        first.availability_zones.as_deref().unwrap(),
        ["us-east-1a", "us-east-1b", "us-east-1c"]
    );
    assert_eq!(first.instance.resources.disk.size_mib, 100 * 1024);
    assert!(offers.iter().all(|offer| REGIONS.contains(&&*offer.region)));
}

#[tokio::test(start_paused = true)]
async fn types_without_quota_are_offered_as_such() {
    let (cloud, emulator) = cloud_with(&json!({}));
    emulator.set_quota("L-417A185B", 0.0);
    let of = async |backend: &dyn Backend, start: &str| {
        let offers = backend.offers(&with_gpus("1..")).await.unwrap();
        let mut all: Vec<_> = offers
            .iter()
            .filter(|offer| offer.instance.name.starts_with(start))
            .map(|offer| offer.availability)
            .collect();
        all.dedup();
        all
    };
    let backend = cloud.open();
    assert_eq!(of(&*backend, "p").await, [InstanceAvailability::NoQuota]);
    assert_eq!(of(&*backend, "g").await, [InstanceAvailability::Unknown]);
    // It is asked for again after ten minutes.
    emulator.set_quota("L-417A185B", 384.0);
    assert_eq!(of(&*backend, "p").await, [InstanceAvailability::NoQuota]);
    tokio::time::sleep(Duration::from_secs(601)).await;
    assert_eq!(of(&*backend, "p").await, [InstanceAvailability::Unknown]);
    // Quotas that may not be asked for are not known.
    emulator.set_quota("L-417A185B", 0.0);
    emulator.deny("servicequotas:GetServiceQuota");
    assert_eq!(of(&*cloud.open(), "p").await, [InstanceAvailability::Unknown]);
}

#[tokio::test(start_paused = true)]
async fn a_region_that_does_not_answer_has_no_offers() {
    let more = json!({"regions": ["us-east-1", "ap-east-1"]});
    let (cloud, emulator) = cloud_with(&more);
    let offers = cloud.offers(&Cloud::requirements()).await;
    assert!(offers.iter().all(|offer| &*offer.region == REGION));
    emulator.deny("ec2:DescribeAvailabilityZones");
    let error = cloud.open().offers(&Cloud::requirements()).await.unwrap_err();
    assert!(
        matches!(&error, ComputeError::Credentials(_)),
        "none answers: {error:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn only_what_is_reserved_is_offered_and_made() {
    let (cloud, emulator) = cloud_with(&json!({}));
    for (id, kind) in [("cr-1", "default"), ("cr-2", "capacity-block")] {
        emulator.add_reservation(Reservation {
            id: id.to_owned(),
            zone: "us-east-1b".to_owned(),
            instance_type: "p5.48xlarge".to_owned(),
            available: 1,
            kind,
        });
    }
    emulator.set_quota("L-417A185B", 1000.0);
    let reserved = |id: &str| {
        wanted(&json!({"resources": {"cpu": "1..", "memory": "1GB..", "gpu": "1.."}, "reservation": id}))
    };
    for none in ["cr-0", "malformed"] {
        assert_eq!(cloud.offers(&reserved(none)).await, []);
    }
    for id in ["cr-1", "cr-2"] {
        let offers = cloud.offers(&reserved(id)).await;
        assert_eq!(offers.len(), 1, "{offers:?}");
        assert_eq!(offers[0].availability_zones.as_deref().unwrap(), ["us-east-1b"]);
        let mut subject = machine_of(&cloud, &reserved(id), |_| true).await;
        subject.want.reservation = Some(id.to_owned());
        // Capacity blocks take no groups.
        subject.want.placement_group = (id == "cr-2").then(|| "none".to_owned());
        let place = Driver::new(&cloud).make(&subject).await.unwrap();
        assert_eq!(place.reservation.as_deref(), Some(id));
        assert_eq!(place.availability_zone.as_deref(), Some("us-east-1b"));
    }
    // There is nothing left.
    assert_eq!(cloud.offers(&reserved("cr-1")).await, []);
}

#[tokio::test(start_paused = true)]
async fn a_machine_lives_and_ends() {
    let (cloud, emulator) = cloud_with(&json!({"tags": {"team": "admins", "cost": "1"}}));
    let subject = machine(&cloud).await;
    checks::whole_life(&cloud, &subject).await;
    let made = &emulator.instances()[0];
    let user_data = made["user_data"].as_str().unwrap();
    assert!(
        user_data.starts_with("#cloud-config\n{\"ssh_authorized_keys\":[\"ssh-ed25519 "),
        "{user_data}"
    );
    assert_eq!(made["image"], "ami-dstack");
    let tag = |key: &str| {
        let tags = made["tags"].as_array().unwrap();
        tags.iter()
            .find(|tag| tag["Key"] == key)
            .map(|tag| tag["Value"].clone())
    };
    assert_eq!(tag("owner").unwrap(), "dstack");
    assert_eq!(tag("dstack_user").unwrap(), "somebody");
    assert_eq!(tag("dstack_key").unwrap(), subject.marks.key.to_string());
    assert_eq!(tag("team").unwrap(), "admins", "administrators override users");
    assert_eq!(tag("cost").unwrap(), "1");
    assert_eq!(emulator.security_groups(), ["dstack_security_group_main"]);
}

#[tokio::test(start_paused = true)]
async fn a_machine_with_gpus_has_the_newest_image_with_drivers() {
    let (cloud, emulator) = cloud_with(&json!({}));
    let subject = machine_named(&cloud, "g5.8xlarge").await;
    let place = Driver::new(&cloud).make(&subject).await.unwrap();
    assert_eq!(place.username, "ubuntu");
    let made = &emulator.instances()[0];
    assert_eq!(made["image"], "ami-drivers-november");
    assert_eq!(made["interfaces"][0]["InterfaceType"], "efa");
}

#[tokio::test(start_paused = true)]
async fn machines_without_public_addresses_are_reached_by_private_ones() {
    let (cloud, _) = cloud_with(&json!({"public_ips": false, "vpc_name": "private"}));
    let subject = machine(&cloud).await;
    let place = Driver::new(&cloud).make(&subject).await.unwrap();
    assert_eq!(place.hostname, place.internal_ip);
    assert!(!place.public_ip_enabled && place.hostname.unwrap().starts_with("172.31."));
}

#[tokio::test(start_paused = true)]
async fn a_machine_with_many_cards_gets_an_address_and_gives_it_back() {
    let (cloud, emulator) = cloud_with(&json!({}));
    let subject = machine_named(&cloud, "p5.48xlarge").await;
    checks::whole_life(&cloud, &subject).await;
    let subject = machine_named(&cloud, "p4d.24xlarge").await;
    let driver = Driver::new(&cloud);
    let place = driver.make(&subject).await.unwrap();
    assert!(place.hostname.as_deref().unwrap().starts_with("198.51.100."));
    let data: Value = serde_json::from_str(place.backend_data.as_deref().unwrap()).unwrap();
    assert!(
        data["eip_allocation_id"]
            .as_str()
            .unwrap()
            .starts_with("eipalloc-")
    );
    let made = emulator.instances();
    assert_eq!(made[0]["interfaces"].as_array().unwrap().len(), 32);
    // A row of dstack 0.22.5: nothing was noted.
    Driver::new(&cloud)
        .remove(&subject.known(Some(place)), &subject)
        .await;
    assert_eq!(cloud.emulator.ledger().alive(), []);
}

#[tokio::test(start_paused = true)]
async fn addresses_that_the_account_may_not_have_end_the_machine() {
    let (cloud, emulator) = cloud_with(&json!({}));
    emulator.deny("ec2:AllocateAddress");
    let subject = machine_named(&cloud, "p4d.24xlarge").await;
    let error = Driver::new(&cloud).make(&subject).await.unwrap_err();
    assert!(
        error
            .to_string()
            .contains("AWS does not allow `ec2:AllocateAddress`"),
        "{error}"
    );
    assert_eq!(cloud.emulator.ledger().alive(), []);
}

#[tokio::test(start_paused = true)]
async fn zones_are_tried_one_after_the_other() {
    let (cloud, emulator) = cloud_with(&json!({}));
    emulator.set_free("us-east-1a", 0);
    emulator.set_free("us-east-1b", 1);
    emulator.set_free("us-east-1c", 0);
    let subject = machine_named(&cloud, "t3.medium").await;
    let place = Driver::new(&cloud).make(&subject).await.unwrap();
    assert_eq!(place.availability_zone.as_deref(), Some("us-east-1b"));
    let mut none = machine_named(&cloud, "t3.medium").await;
    let error = Driver::new(&cloud).make(&none).await.unwrap_err();
    assert!(
        matches!(&error, ComputeError::NoCapacity(text) if text.contains("(us-east-1c)")),
        "{error:?}"
    );
    // Only the zones of the offer.
    emulator.set_free("us-east-1a", 1);
    none.want.offer.availability_zones = Some(vec!["us-east-1b".to_owned()]);
    let error = Driver::new(&cloud).make(&none).await.unwrap_err();
    assert!(matches!(&error, ComputeError::NoCapacity(_)), "{error:?}");
    none.want.offer.availability_zones = Some(Vec::new());
    let error = Driver::new(&cloud).make(&none).await.unwrap_err();
    assert_eq!(
        error,
        ComputeError::NoCapacity("No eligible availability zones in us-east-1".to_owned())
    );
}

/// A server that is killed while it notes which zone is next makes no circles.
#[tokio::test(start_paused = true)]
async fn a_choice_whose_note_was_cut_off_is_made_anew() {
    let (cloud, emulator) = cloud_with(&json!({}));
    emulator.set_free("us-east-1a", 0);
    let subject = machine_named(&cloud, "t3.medium").await;
    let clock = &cloud.env.clock;
    let noted = json!({"choice of the instance": {"state": "asked", "at": clock.now()}});
    let (backend, notes) = (cloud.open(), Notes::of(noted));
    let call = notes.call(&cloud);
    let made = backend.machines().unwrap().ensure(&subject.want, &call);
    tokio::time::timeout(CALL_LIMIT, made).await.unwrap().unwrap();
    let choice = &call.notes()["choice of the instance"]["made"];
    assert_eq!(choice["tried"], json!(["us-east-1a"]), "{choice}");
}

#[tokio::test(start_paused = true)]
async fn nothing_is_to_be_had() {
    let cloud = cloud();
    checks::sold_out(&cloud, &machine(&cloud).await).await;
    checks::sold_out(&cloud, &volume(&cloud, &disk(&json!({})))).await;
    let (cloud, emulator) = cloud_with(&json!({}));
    emulator.set_quota("L-1216C47A", 1.0);
    let subject = machine_named(&cloud, "t3.medium").await;
    let error = Driver::new(&cloud).make(&subject).await.unwrap_err();
    assert!(matches!(&error, ComputeError::NoQuota(_)), "{error:?}");
    assert_eq!(cloud.emulator.ledger().alive(), []);
}

#[tokio::test(start_paused = true)]
async fn what_breaks_is_seen() {
    let cloud = cloud();
    checks::loss(&cloud, &machine(&cloud).await).await;
    checks::loss(&cloud, &volume(&cloud, &disk(&json!({})))).await;
}

#[tokio::test(start_paused = true)]
async fn a_spot_instance_that_is_taken_back_is_told_of_before() {
    let (cloud, emulator) = cloud_with(&json!({}));
    let spot = wanted(&json!({"spot": true}));
    let subject = machine_of(&cloud, &spot, |offer| offer.instance.resources.spot).await;
    let place = Driver::new(&cloud).make(&subject).await.unwrap();
    assert_eq!(emulator.instances()[0]["spot"], true);
    let backend = cloud.open();
    let known = subject.known(Some(place));
    let look = async || subject.sign(&*backend, &known).await.unwrap();
    assert_eq!(look().await, Sign::Well);
    emulator.interrupt_spot();
    let now = cloud.env.clock.now();
    let Sign::Ending { at: Some(at), why } = look().await else {
        panic!("it is told");
    };
    let left = at.since(now);
    assert!(
        (Duration::from_secs(118)..=Duration::from_secs(121)).contains(&left),
        "{left:?}"
    );
    assert!(why.contains("takes the spot instance back"), "{why}");
    tokio::time::sleep(Duration::from_secs(121)).await;
    let sign = look().await;
    assert!(
        matches!(&sign, Sign::Lost(why) if why.contains("has taken the spot instance back")),
        "{sign:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn without_the_permission_spot_instances_end_without_notice() {
    let (cloud, emulator) = cloud_with(&json!({}));
    let spot = wanted(&json!({"spot": true}));
    let subject = machine_of(&cloud, &spot, |offer| offer.instance.resources.spot).await;
    let place = Driver::new(&cloud).make(&subject).await.unwrap();
    emulator.deny("ec2:DescribeSpotInstanceRequests");
    emulator.interrupt_spot();
    let sign = subject.sign(&*cloud.open(), &subject.known(Some(place))).await;
    assert_eq!(sign, Some(Sign::Well));
}

#[tokio::test(start_paused = true)]
async fn a_missing_permission_is_named() {
    let (cloud, emulator) = cloud_with(&json!({}));
    let subject = machine(&cloud).await;
    emulator.deny("ec2:RunInstances");
    let error = Driver::new(&cloud).make(&subject).await.unwrap_err();
    assert!(
        matches!(&error, ComputeError::Credentials(text) if text.contains("`ec2:RunInstances`")),
        "{error:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn the_next_attempt_is_made_where_its_offer_is() {
    let cloud = cloud();
    let driver = Driver::new(&cloud);
    let mut subject = machine_named(&cloud, "t3.medium").await;
    let place = driver.make(&subject).await.unwrap();
    driver.remove(&subject.known(Some(place)), &subject).await;
    let all = wanted(&json!({"spot": false}));
    let elsewhere = machine_of(&cloud, &all, |offer| &*offer.region == "eu-west-1").await;
    subject.want.offer = elsewhere.want.offer;
    subject.site = elsewhere.site;
    let place = driver.make(&subject).await.unwrap();
    assert_eq!(place.availability_zone.as_deref(), Some("eu-west-1a"));
}

#[tokio::test(start_paused = true)]
async fn what_was_deleted_by_others_is_made_again() {
    let (cloud, emulator) = cloud_with(&json!({}));
    let driver = Driver::new(&cloud);
    let subject = machine_named(&cloud, "t3.medium").await;
    let place = driver.make(&subject).await.unwrap();
    driver.remove(&subject.known(Some(place)), &subject).await;
    emulator.delete_security_groups();
    driver.make(&subject).await.unwrap();
    let errors = driver.errors.lock().unwrap().join("\n");
    assert!(
        errors.contains("not ready yet") && errors.contains("InvalidGroup.NotFound"),
        "{errors}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_machine_whose_request_changed_meanwhile_is_the_same() {
    let mut was_lost = false;
    for nth in 1..30 {
        let cloud = cloud();
        let mut subject = machine_named(&cloud, "t3.medium").await;
        let notes = Notes::default();
        let backend = cloud.open();
        let machines = backend.machines().unwrap();
        let ensure = async |want: &MachineRequest| machines.ensure(want, &notes.call(&cloud)).await;
        cloud.faults().at(nth, Fault::AnswerLost);
        let first = ensure(&subject.want).await;
        if cloud.emulator.ledger().count() == 0 || first.is_ok() {
            continue;
        }
        was_lost = true;
        // Another key may log in, and AWS takes the token for this request no more.
        subject
            .want
            .authorized_keys
            .push("ssh-ed25519 AAAA another".to_owned());
        while !matches!(ensure(&subject.want).await, Ok(Step::Ready(_))) {
            tokio::time::sleep(Duration::from_secs(10)).await;
        }
        assert_eq!(cloud.emulator.ledger().count(), 1, "at request {nth}");
    }
    assert!(was_lost);
}

/// Whatever request is refused for good, in a cloud whose lists lag: nothing is left of what was made before.
async fn refused_anywhere<R: Resource, C: AsyncFn() -> (Cloud, Subject<R>)>(fresh: C) {
    let mut refused = 0;
    for nth in 1..40 {
        let (cloud, subject) = fresh().await;
        // Longer than it takes to end a machine.
        cloud.emulator.lag(Duration::from_secs(50));
        cloud.faults().at(nth, Fault::Refused(403));
        let driver = Driver::new(&cloud);
        match driver.make(&subject).await {
            Ok(place) => driver.remove(&subject.known(Some(place)), &subject).await,
            Err(error) => {
                assert!(matches!(error, ComputeError::Credentials(_)), "{error:?}");
                refused += 1;
            }
        }
        assert_eq!(cloud.emulator.ledger().alive(), [], "at request {nth}");
    }
    assert!(refused > 2);
}

#[tokio::test(start_paused = true)]
async fn nothing_is_left_of_what_is_refused_half_way() {
    refused_anywhere(async || {
        let cloud = cloud();
        let subject = machine_named(&cloud, "p4d.24xlarge").await;
        (cloud, subject)
    })
    .await;
    refused_anywhere(async || {
        let cloud = cloud();
        let subject = volume(&cloud, &disk(&json!({})));
        (cloud, subject)
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_placement_group_lives_and_ends() {
    let cloud = cloud();
    let subject = placement(&cloud, REGION, "p4d.24xlarge");
    checks::whole_life(&cloud, &subject).await;
    let error = Driver::new(&cloud)
        .make(&placement(&cloud, REGION, "t3.medium"))
        .await
        .unwrap_err();
    assert!(matches!(&error, ComputeError::Refused(_)), "{error:?}");
}

#[tokio::test(start_paused = true)]
async fn a_placement_group_is_deleted_once_no_machine_is_in_it() {
    let (cloud, emulator) = cloud_with(&json!({}));
    let group = placement(&cloud, REGION, "c5.large");
    let of_group = Driver::new(&cloud);
    let group_place = of_group.make(&group).await.unwrap();
    let mut subject = machine_named(&cloud, "c5.large").await;
    subject.want.placement_group = Some(group.marks.name(60));
    let of_machine = Driver::new(&cloud);
    let place = of_machine.make(&subject).await.unwrap();
    assert_eq!(emulator.instances()[0]["placement_group"], group.marks.name(60));
    let owned = cloud.open().inventory().await.unwrap();
    let owned = owned.iter().find(|one| one.kind == OwnedKind::Placement).unwrap();
    let removal = cloud.open().remove_owned(owned).await.unwrap();
    assert!(matches!(removal, Removal::Underway { .. }), "{removal:?}");
    of_machine.remove(&subject.known(Some(place)), &subject).await;
    of_group.remove(&group.known(Some(group_place)), &group).await;
    assert_eq!(cloud.emulator.ledger().alive(), []);
}

#[tokio::test(start_paused = true)]
async fn a_volume_lives_and_ends() {
    let cloud = cloud();
    let subject = volume(&cloud, &disk(&json!({"tags": {"team": "disks"}})));
    checks::whole_life(&cloud, &subject).await;
    let there = volume(&cloud, &disk(&json!({"availability_zone": "us-east-1c"})));
    let place = Driver::new(&cloud).make(&there).await.unwrap();
    assert_eq!(place.availability_zone.as_deref(), Some("us-east-1c"));
    assert_eq!((place.size_gb, place.price), (Some(100), Some(8.0)));
    let data: Value = serde_json::from_str(place.backend_data.as_deref().unwrap()).unwrap();
    assert_eq!(data, json!({"volume_type": "gp3", "iops": 3000}));
    let nowhere = volume(&cloud, &disk(&json!({"availability_zone": "us-east-1z"})));
    let error = Driver::new(&cloud).make(&nowhere).await.unwrap_err();
    assert!(matches!(&error, ComputeError::Refused(_)), "{error:?}");
}

#[tokio::test(start_paused = true)]
async fn a_volume_that_exists_is_registered() {
    let cloud = cloud();
    let made = Driver::new(&cloud)
        .make(&volume(&cloud, &disk(&json!({}))))
        .await
        .unwrap();
    let backend = cloud.open();
    let volumes = backend.volumes().unwrap();
    let ask = |id: &str, region: &str| {
        let configuration = disk(&json!({"volume_id": id, "region": region, "size": null}));
        VolumeRequest {
            ..volume(&cloud, &configuration).want
        }
    };
    let registered = volumes.register(&ask(&made.volume_id, REGION)).await.unwrap();
    assert_eq!(registered.volume_id, made.volume_id);
    assert_eq!((registered.size_gb, registered.price), (Some(100), None));
    for (id, region) in [("vol-0", REGION), (&*made.volume_id, "eu-west-1")] {
        let error = volumes.register(&ask(id, region)).await.unwrap_err();
        assert!(matches!(error, ComputeError::Refused(_)), "{id}: {error:?}");
    }
}

/// A machine and a volume that are there, and are no concern of the books.
async fn site(cloud: &Cloud, emulator: &Aws) -> AttachmentSite {
    let subject = machine_named(cloud, "t3.medium").await;
    let machine = Driver::new(cloud).make(&subject).await.unwrap();
    let zone = machine.availability_zone.as_deref().unwrap();
    let subject = volume(cloud, &disk(&json!({"availability_zone": zone})));
    let volume = Driver::new(cloud).make(&subject).await.unwrap();
    emulator.write_off();
    AttachmentSite {
        volume,
        machine,
        force: false,
    }
}

#[tokio::test(start_paused = true)]
async fn a_volume_is_attached_and_detached() {
    let (cloud, emulator) = cloud_with(&json!({}));
    let site = site(&cloud, &emulator).await;
    let subject = attachment(&cloud, site.clone());
    let driver = Driver::new(&cloud);
    let place = driver.make(&subject).await.unwrap();
    assert_eq!(place.device_name.as_deref(), Some("/dev/sdf"));
    assert_eq!(driver.make(&subject).await.unwrap(), place);
    let backend = cloud.open();
    let known = subject.known(Some(place));
    assert_eq!(subject.sign(&*backend, &known).await, Some(Sign::Well));
    // A second one has the next device, and the first is in use.
    let zone = site.machine.availability_zone.as_deref().unwrap();
    let second = volume(&cloud, &disk(&json!({"availability_zone": zone})));
    let second = Driver::new(&cloud).make(&second).await.unwrap();
    let second = attachment(
        &cloud,
        AttachmentSite {
            volume: second,
            ..site.clone()
        },
    );
    let place = Driver::new(&cloud).make(&second).await.unwrap();
    assert_eq!(place.device_name.as_deref(), Some("/dev/sdg"));
    let owned = backend.inventory().await.unwrap();
    let owned = owned.iter().find(|one| one.id == site.volume.volume_id).unwrap();
    let error = backend.remove_owned(owned).await.unwrap_err();
    assert!(matches!(error, ComputeError::InUse(_)), "{error:?}");
    for _ in 0..2 {
        driver.remove(&known, &subject).await;
        let sign = subject.sign(&*backend, &known).await;
        assert!(matches!(sign, Some(Sign::Lost(_))), "{sign:?}");
    }
    assert!(backend.remove_owned(owned).await.is_ok(), "it is free");
}

#[tokio::test(start_paused = true)]
async fn a_volume_of_another_zone_cannot_be_attached() {
    let (cloud, emulator) = cloud_with(&json!({}));
    let mut site = site(&cloud, &emulator).await;
    let elsewhere = volume(&cloud, &disk(&json!({"availability_zone": "us-east-1c"})));
    site.volume = Driver::new(&cloud).make(&elsewhere).await.unwrap();
    let error = Driver::new(&cloud)
        .make(&attachment(&cloud, site))
        .await
        .unwrap_err();
    assert!(
        error.to_string().contains("not in the same availability zone"),
        "{error:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_machine_that_ends_lets_its_volumes_go() {
    let (cloud, emulator) = cloud_with(&json!({}));
    let site = site(&cloud, &emulator).await;
    let subject: Subject<Attachment> = attachment(&cloud, site);
    let driver = Driver::new(&cloud);
    let place = driver.make(&subject).await.unwrap();
    emulator.interrupt_spot();
    let owned = cloud.open().inventory().await.unwrap();
    let machine = owned.iter().find(|one| one.kind == OwnedKind::Machine).unwrap();
    while cloud.open().remove_owned(machine).await.unwrap() != Removal::Gone {
        tokio::time::sleep(Duration::from_secs(5)).await;
    }
    driver.remove(&subject.known(Some(place)), &subject).await;
    assert_eq!(cloud.emulator.ledger().alive(), []);
}

#[tokio::test(start_paused = true)]
async fn what_nobody_knows_of_is_removed() {
    let cloud = cloud();
    let machine = machine_named(&cloud, "p4d.24xlarge").await;
    Driver::new(&cloud).make(&machine).await.unwrap();
    Driver::new(&cloud)
        .make(&volume(&cloud, &disk(&json!({}))))
        .await
        .unwrap();
    Driver::new(&cloud)
        .make(&placement(&cloud, "eu-west-1", "p4d.24xlarge"))
        .await
        .unwrap();
    let backend = cloud.open();
    let owned = backend.inventory().await.unwrap();
    let mut kinds: Vec<String> = owned.iter().map(|one| one.kind.to_string()).collect();
    kinds.sort();
    assert_eq!(kinds, ["Elastic IP", "machine", "placement group", "volume"]);
    let made_at = owned.iter().find_map(|one| one.made_at).unwrap();
    assert!(made_at > Time::from_millis(1_700_000_000_000 - 1000), "{made_at}");
    for _ in 0..30 {
        for one in backend.inventory().await.unwrap() {
            backend.remove_owned(&one).await.unwrap();
        }
        tokio::time::sleep(Duration::from_secs(10)).await;
    }
    assert_eq!(backend.inventory().await.unwrap(), []);
    assert_eq!(cloud.emulator.ledger().alive(), []);
}

/// What was made before a region was taken out of the configuration is found and removed.
#[tokio::test(start_paused = true)]
async fn an_inventory_has_all_regions_of_the_account() {
    let (cloud, emulator) = cloud_with(&json!({}));
    let subject = volume(&cloud, &disk(&json!({"region": "eu-west-1"})));
    Driver::new(&cloud).make(&subject).await.unwrap();
    let other = |more: &Value| {
        let config = BackendConfig::read(&config_with(more)).unwrap();
        cloud.kind.open(&config.split()).unwrap()
    };
    let backend = other(&json!({"regions": [REGION]}));
    let owned = backend.inventory().await.unwrap();
    let [one] = owned.as_slice() else {
        panic!("{owned:?}");
    };
    assert_eq!(one.region, "eu-west-1");
    // One that does not tell may have something: that is an error.
    cloud.faults().away(Some("eu-west-1"));
    backend.inventory().await.unwrap_err();
    let here = volume(&cloud, &disk(&json!({})));
    let driver = Driver::new(&cloud);
    let place = driver.make(&here).await.unwrap();
    let regions = async |backend: &dyn Backend| {
        let told = backend.inventory_by_region().await.unwrap();
        let owned = told
            .owned
            .iter()
            .map(|one| one.region.clone())
            .collect::<Vec<_>>();
        let missing = told.missing.into_iter();
        (
            owned,
            missing
                .map(|one| (one.region, one.error.is_some()))
                .collect::<Vec<_>>(),
        )
    };
    let missing = |has_error: bool| (vec![REGION.to_owned()], vec![("eu-west-1".to_owned(), has_error)]);
    assert_eq!(regions(&*backend).await, missing(true), "it hides no other");
    cloud.faults().away(None);
    driver.remove(&here.known(Some(place)), &here).await;
    // One that is closed to the account hides none of the others.
    emulator.close_region("eu-west-1");
    assert_eq!(backend.inventory().await.unwrap(), []);
    assert_eq!(regions(&*backend).await, (Vec::new(), missing(false).1));
    let configured = other(&json!({"regions": ["eu-west-1", REGION]}));
    configured.inventory().await.unwrap_err();
    assert_eq!(regions(&*configured).await, (Vec::new(), missing(true).1));
    emulator.open_regions();
    // Who may not ask which there are, is told of those that are configured.
    emulator.deny("ec2:DescribeRegions");
    assert_eq!(backend.inventory().await.unwrap(), []);
    while backend.remove_owned(one).await.unwrap() != Removal::Gone {
        tokio::time::sleep(Duration::from_secs(10)).await;
    }
    assert_eq!(cloud.emulator.ledger().alive(), []);
}

/// What an answer that was lost has made in one zone is not forgotten for another zone.
#[tokio::test(start_paused = true)]
async fn a_lost_answer_and_then_no_capacity_leave_nothing() {
    let (cloud, emulator) = cloud_with(&json!({"regions": [REGION]}));
    emulator.set_free("us-east-1a", 0);
    let subject = machine_named(&cloud, "t3.medium").await;
    for nth in 1..40 {
        // The request arrives when there is room again, after others had none.
        cloud.faults().at(nth, Fault::Late(Duration::from_secs(45)));
        let room = async {
            tokio::time::sleep(Duration::from_secs(30)).await;
            emulator.set_free("us-east-1a", 1);
        };
        let driver = Driver::new(&cloud);
        let (made, ()) = tokio::join!(driver.make(&subject), room);
        tokio::time::sleep(Duration::from_secs(600)).await;
        let ledger = cloud.emulator.ledger();
        assert_eq!(ledger.doubled(), Vec::<String>::new(), "request {nth}");
        if let Ok(place) = made {
            driver.remove(&subject.known(Some(place)), &subject).await;
        }
        tokio::time::sleep(Duration::from_secs(600)).await;
        assert_eq!(cloud.emulator.ledger().alive(), [], "request {nth}");
        emulator.set_free("us-east-1a", 0);
        if !cloud.faults().happened() {
            assert!(nth > 5, "only {nth} requests");
            return;
        }
    }
    panic!("a life of more than 40 requests");
}

#[tokio::test(start_paused = true)]
async fn another_attempt_makes_another_machine() {
    checks::another_attempt(one_small_machine).await;
}

#[tokio::test(start_paused = true)]
async fn another_attempt_makes_another_address() {
    checks::another_attempt(async || {
        let (cloud, _) = cloud_with(&json!({"regions": [REGION]}));
        let subject = machine_named(&cloud, "p4d.24xlarge").await;
        (cloud, subject)
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn another_attempt_makes_another_volume() {
    checks::another_attempt(one_volume).await;
}

#[tokio::test(start_paused = true)]
async fn another_attempt_makes_another_placement_group() {
    checks::another_attempt(one_placement).await;
}

/// AWS forgets tokens after a day.
#[tokio::test(start_paused = true)]
async fn a_volume_that_was_asked_for_days_ago_is_found() {
    let (cloud, emulator) = cloud_with(&json!({}));
    let subject = volume(&cloud, &disk(&json!({"availability_zone": "us-east-1a"})));
    let (backend, notes) = (cloud.open(), Notes::default());
    cloud.faults().at(1, Fault::AnswerLost);
    notes.ensure(&cloud, &*backend, &subject).await.unwrap_err();
    assert_eq!(cloud.emulator.ledger().alive().len(), 1);
    let again = async || notes.ensure(&cloud, &*backend, &subject).await;
    // Asked for in vain all the time.
    for _ in 0..6 {
        tokio::time::sleep(Duration::from_secs(12 * 60 * 60)).await;
        cloud.faults().from(1, 10, Fault::NotSent);
        again().await.unwrap_err();
    }
    cloud.faults().none();
    emulator.forget_tokens();
    again().await.unwrap();
    assert_eq!(cloud.emulator.ledger().alive().len(), 1);
}

/// A page has 100.
#[tokio::test(start_paused = true)]
async fn an_inventory_of_several_pages_is_whole() {
    let cloud = cloud();
    for _ in 0..101 {
        let subject = volume(&cloud, &disk(&json!({})));
        Driver::new(&cloud).make(&subject).await.unwrap();
    }
    assert_eq!(cloud.open().inventory().await.unwrap().len(), 101);
}

#[tokio::test(start_paused = true)]
async fn an_inventory_that_is_not_whole_is_an_error() {
    let (cloud, emulator) = cloud_with(&json!({}));
    emulator.deny("ec2:DescribeAddresses");
    let error = cloud.open().inventory().await.unwrap_err();
    assert!(error.to_string().contains("`ec2:DescribeAddresses`"), "{error}");
    let cloud = self::cloud();
    cloud.faults().from(3, 10, Fault::Refused(500));
    cloud.open().inventory().await.unwrap_err();
}

#[tokio::test(start_paused = true)]
async fn whatever_happens_no_machine_is_made_twice_or_left() {
    checks::any_fault_anywhere(async || {
        let (cloud, emulator) = cloud_with(&json!({"regions": [REGION]}));
        emulator.set_free("us-east-1a", 0);
        let subject = machine_named(&cloud, "t3.medium").await;
        (cloud, subject)
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn whatever_happens_no_address_is_made_twice_or_left() {
    checks::any_fault_anywhere(async || {
        let (cloud, _) = cloud_with(&json!({"regions": [REGION]}));
        let subject = machine_named(&cloud, "p4d.24xlarge").await;
        (cloud, subject)
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn whatever_happens_no_volume_is_made_twice_or_left() {
    checks::any_fault_anywhere(one_volume).await;
}

#[tokio::test(start_paused = true)]
async fn whatever_happens_no_placement_group_is_made_twice_or_left() {
    checks::any_fault_anywhere(one_placement).await;
}

#[tokio::test(start_paused = true)]
async fn whatever_happens_no_volume_stays_attached() {
    checks::any_fault_anywhere(async || {
        let (cloud, emulator) = cloud_with(&json!({"regions": [REGION]}));
        let subject = attachment(&cloud, site(&cloud, &emulator).await);
        (cloud, subject)
    })
    .await;
}

/// Throttles, failures and silence of a region that is not configured hide what it has; a refusal does not.
#[tokio::test(start_paused = true)]
async fn a_region_that_is_not_configured_and_does_not_tell_is_an_error() {
    let (cloud, _) = cloud_with(&json!({"regions": [REGION]}));
    let backend = cloud.open();
    assert_eq!(backend.inventory().await.unwrap(), []);
    for fault in [
        Fault::Lost,
        Fault::NotSent,
        Fault::Refused(429),
        Fault::Refused(500),
        Fault::Refused(503),
        Fault::SlowAnswer(Duration::from_secs(90)),
    ] {
        for nth in 1.. {
            cloud.faults().from(nth, 1_000, fault);
            let told = backend.inventory().await;
            let happened = cloud.faults().happened();
            cloud.faults().none();
            if !happened {
                break;
            }
            assert!(told.is_err(), "{fault:?} from {nth} on: {told:?}");
        }
    }
}

/// Of one interface.
pub(crate) async fn one_small_machine() -> (Cloud, Subject<Machine>) {
    let (cloud, _) = cloud_with(&json!({"regions": [REGION]}));
    let subject = machine_named(&cloud, "t3.medium").await;
    (cloud, subject)
}

/// With an address of its own, which is a piece.
pub(crate) async fn one_machine() -> (Cloud, Subject<Machine>) {
    let (cloud, _) = cloud_with(&json!({}));
    let subject = machine_named(&cloud, "p4d.24xlarge").await;
    (cloud, subject)
}

async fn one_volume() -> (Cloud, Subject<Volume>) {
    let cloud = cloud();
    let subject = volume(&cloud, &disk(&json!({})));
    (cloud, subject)
}

async fn one_placement() -> (Cloud, Subject<Placement>) {
    let cloud = cloud();
    let subject = placement(&cloud, REGION, "p4d.24xlarge");
    (cloud, subject)
}

async fn machine_in(cloud: &Cloud, region: &str) -> Subject<Machine> {
    let all = wanted(&json!({"spot": false}));
    machine_of(cloud, &all, |offer| &*offer.region == region).await
}

#[tokio::test(start_paused = true)]
async fn machines_of_others_are_neither_taken_nor_ended() {
    checks::neighbours(async || {
        let cloud = cloud();
        let subjects = vec![
            machine_in(&cloud, REGION).await,
            machine_in(&cloud, "eu-west-1").await,
        ];
        (cloud, subjects)
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn other_things_of_others_are_neither_taken_nor_ended() {
    checks::neighbours(async || {
        let cloud = cloud();
        let elsewhere = disk(&json!({"region": "eu-west-1"}));
        let subjects = vec![volume(&cloud, &disk(&json!({}))), volume(&cloud, &elsewhere)];
        (cloud, subjects)
    })
    .await;
    checks::neighbours(async || {
        let cloud = cloud();
        let subjects = vec![
            placement(&cloud, REGION, "p4d.24xlarge"),
            placement(&cloud, "eu-west-1", "p4d.24xlarge"),
        ];
        (cloud, subjects)
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn what_was_left_behind_is_found_and_ended() {
    checks::left_behind(one_machine).await;
    checks::left_behind(one_volume).await;
    checks::left_behind(one_placement).await;
}

#[tokio::test(start_paused = true)]
async fn what_is_removed_before_it_is_listed_is_not_left() {
    checks::removed_before_listed(one_machine).await;
    checks::removed_before_listed(one_volume).await;
    checks::removed_before_listed(one_placement).await;
}

#[tokio::test(start_paused = true)]
async fn a_region_that_is_away_hides_no_other() {
    let cloud = cloud();
    let here = machine_in(&cloud, REGION).await;
    let there = machine_in(&cloud, "eu-west-1").await;
    checks::a_place_away(&cloud, &[here, there], "eu-west-1").await;
}

#[tokio::test(start_paused = true)]
async fn many_lives_of_machines() {
    let (cloud, subject) = one_machine().await;
    soak(&cloud, &subject).await;
}

#[tokio::test(start_paused = true)]
async fn many_lives_of_volumes() {
    let (cloud, subject) = one_volume().await;
    soak(&cloud, &subject).await;
}

#[tokio::test(start_paused = true)]
async fn many_lives_of_placements() {
    let (cloud, subject) = one_placement().await;
    soak(&cloud, &subject).await;
}

async fn one_gateway() -> (Cloud, Subject<GatewayMachine>) {
    let cloud = cloud();
    let subject = gateway(&cloud, REGION);
    (cloud, subject)
}

async fn two_gateways() -> (Cloud, Vec<Subject<GatewayMachine>>) {
    let cloud = cloud();
    let subjects = vec![gateway(&cloud, REGION), gateway(&cloud, "eu-west-1")];
    (cloud, subjects)
}

checks_of!(gateways: one_gateway, two_gateways);

async fn one_balancer() -> (Cloud, Subject<LoadBalancer>) {
    let cloud = cloud();
    let subject = load_balancer(&cloud, REGION);
    (cloud, subject)
}

async fn three_balancers() -> (Cloud, Vec<Subject<LoadBalancer>>) {
    let cloud = cloud();
    let subjects = [REGION, "eu-west-1", REGION].map(|region| load_balancer(&cloud, region));
    (cloud, subjects.into())
}

checks_of!(load_balancers: one_balancer, three_balancers;
    whole_life, sold_out, any_fault_anywhere, another_attempt, neighbours, left_behind, removed_before_listed, soak);

/// With a certificate it answers by HTTPS, and sends others there; in private networks only, if that is asked for.
#[tokio::test(start_paused = true)]
async fn a_load_balancer_is_made_as_it_is_asked_for() {
    let (cloud, emulator) = cloud_with(&json!({}));
    let mut subject = load_balancer(&cloud, REGION);
    let arn = "arn:aws:acm:us-east-1:123456789012:certificate/1";
    let certificate = json!({"type": "acm", "arn": arn});
    subject.want.certificate = Some(decode_strict(&certificate).unwrap());
    let place = Driver::new(&cloud).make(&subject).await.unwrap();
    let data: Value = serde_json::from_str(&place.backend_data).unwrap();
    for field in ["lb_arn", "tg_arn", "listener_arn", "http_listener_arn"] {
        assert!(data[field].as_str().unwrap().starts_with("arn:aws:"), "{data}");
    }
    let made = emulator.load_balancers().remove(0);
    assert_eq!(
        (&made["arn"], &made["scheme"]),
        (&data["lb_arn"], &json!("internet-facing"))
    );
    assert_eq!(made["subnets"].as_array().unwrap().len(), 3, "one in each zone");
    assert!(
        made["tags"]
            .as_array()
            .unwrap()
            .iter()
            .any(|tag| tag["Key"] == "dstack_project")
    );
    let [https, http] = made["listeners"].as_array().unwrap().as_slice() else {
        panic!("{made}");
    };
    assert_eq!(
        (&https["Port"], &https["Certificates"][0]["CertificateArn"]),
        (&json!(443), &json!(arn))
    );
    assert_eq!(https["DefaultActions"][0]["TargetGroupArn"], data["tg_arn"]);
    assert_eq!(
        http["DefaultActions"][0]["RedirectConfig"]["StatusCode"],
        "HTTP_301"
    );
    let mut private = load_balancer(&cloud, REGION);
    private.want.is_public = false;
    let refused = Driver::new(&cloud).make(&private).await.unwrap_err();
    assert!(refused.to_string().contains("private subnets"), "{refused}");
    let (cloud, emulator) = cloud_with(&json!({"vpc_name": "private", "regions": [REGION]}));
    let mut private = load_balancer(&cloud, REGION);
    private.want.is_public = false;
    Driver::new(&cloud).make(&private).await.unwrap();
    let made = emulator.load_balancers().remove(0);
    assert_eq!(made["scheme"], "internal");
    let http = &made["listeners"][0];
    assert_eq!(
        (&http["Port"], &http["DefaultActions"][0]["Type"]),
        (&json!(80), &json!("forward"))
    );
}

/// What cannot be made is refused in words that help, and nothing of it is left.
#[tokio::test(start_paused = true)]
async fn a_certificate_that_is_not_there_is_refused() {
    let (cloud, subject) = one_balancer().await;
    let mut subject = subject;
    let certificate = json!({"type": "acm", "arn": "arn:aws:acm:eu-west-1:1:certificate/none"});
    subject.want.certificate = Some(decode_strict(&certificate).unwrap());
    let refused = Driver::new(&cloud).make(&subject).await.unwrap_err();
    assert!(
        refused.is_definite() && refused.to_string().contains("CertificateNotFound"),
        "{refused}"
    );
    assert_eq!(cloud.emulator.ledger().alive(), []);
}

/// Until nothing is under way any more; what was said meanwhile.
async fn told(
    cloud: &Cloud,
    known: &Known<LoadBalancer>,
    machines: &[GatewayReplicaProvisioningData],
) -> Vec<String> {
    let mut said = Vec::new();
    let backend = cloud.open();
    for _ in 0..100 {
        match backend
            .load_balancers()
            .unwrap()
            .set_machines(known, machines)
            .await
        {
            Ok(Balancing::Set) => return said,
            Ok(Balancing::Underway { doing, again }) => {
                said.push(doing);
                tokio::time::sleep(again).await;
            }
            Err(error) if error.is_transient() => tokio::time::sleep(Duration::from_secs(5)).await,
            Err(error) => panic!("{error}"),
        }
    }
    panic!("{said:?}");
}

#[tokio::test(start_paused = true)]
async fn requests_go_to_the_machines_that_are_named() {
    let (cloud, emulator) = cloud_with(&json!({}));
    let mut machines = Vec::new();
    for _ in 0..3 {
        machines.push(Driver::new(&cloud).make(&gateway(&cloud, REGION)).await.unwrap());
    }
    let subject = load_balancer(&cloud, REGION);
    let place = Driver::new(&cloud).make(&subject).await.unwrap();
    let known = subject.known(Some(place));
    let ids = |machines: &[GatewayReplicaProvisioningData]| -> Vec<String> {
        machines
            .iter()
            .map(|machine| machine.instance_id.clone())
            .collect()
    };
    let said = told(&cloud, &known, &machines[..2]).await;
    assert!(said[0].contains("to be set up by AWS"), "{said:?}");
    assert!(said.last().unwrap().contains("to be found healthy"), "{said:?}");
    assert_eq!(emulator.targets(REGION), ids(&machines[..2]));
    assert!(
        told(&cloud, &known, &machines[..2]).await.is_empty(),
        "it is so already"
    );
    let said = told(&cloud, &known, &machines[1..]).await;
    assert_eq!(emulator.targets(REGION), ids(&machines[1..]));
    assert!(said.last().unwrap().contains("to be found healthy"), "{said:?}");
    let said = told(&cloud, &known, &machines[1..2]).await;
    assert!(
        said.last().unwrap().contains("requests of the machine"),
        "{said:?}"
    );
    let faults = Fault::ALL
        .iter()
        .filter(|fault| !matches!(fault, Fault::KilledBefore | Fault::KilledAfter));
    for fault in faults {
        for number in 0..5 {
            cloud.faults().at(number, *fault);
            let wanted = &machines[number % 3..][..1];
            told(&cloud, &known, wanted).await;
            cloud.faults().none();
            told(&cloud, &known, wanted).await;
            assert_eq!(emulator.targets(REGION), ids(wanted), "{fault:?} at {number}");
        }
    }
    told(&cloud, &known, &[]).await;
    assert!(emulator.targets(REGION).is_empty());
    // Somebody has deleted it.
    Driver::new(&cloud).remove(&known, &subject).await;
    let balancers = cloud.open();
    let gone = balancers
        .load_balancers()
        .unwrap()
        .set_machines(&known, &machines)
        .await;
    let gone = gone.unwrap_err();
    assert!(
        gone.is_definite() && gone.to_string().contains("is gone"),
        "{gone}"
    );
}

/// Of plain Ubuntu, reached at the ports of a gateway, without what jobs may do in the account: the emulator knows no such profile.
#[tokio::test(start_paused = true)]
async fn a_gateway_runs_on_a_small_machine_that_is_open_to_clients() {
    let (cloud, emulator) = cloud_with(&json!({"iam_instance_profile": "jobs"}));
    let place = Driver::new(&cloud).make(&gateway(&cloud, REGION)).await.unwrap();
    let instances = emulator.instances();
    let [made] = instances.as_slice() else {
        panic!("{instances:?}");
    };
    assert_eq!(
        (&made["size"], &made["image"]),
        (&json!("t3.micro"), &json!("ami-ubuntu"))
    );
    assert_eq!(made["interfaces"][0]["AssociatePublicIpAddress"], json!(true));
    assert_eq!(emulator.security_groups(), ["dstack_gw_sg_main"]);
    assert!(!place.ip_address.starts_with("172."), "{place:?}");

    let (cloud, emulator) = cloud_with(&json!({"vpc_name": "private"}));
    let mut subject = gateway(&cloud, REGION);
    subject.want.is_public = false;
    subject.want.instance_type = Some("m5.large".to_owned());
    let place = Driver::new(&cloud).make(&subject).await.unwrap();
    assert_eq!(emulator.instances()[0]["size"], json!("m5.large"));
    assert!(place.ip_address.starts_with("172."), "{place:?}");
}

/// Of all types in the catalogue, those with EFA of which dstack 0.22.5 knows.
#[test]
fn jobs_need_an_image_with_efa_on_types_that_have_gpus_and_it() {
    let (cloud, _) = cloud_with(&json!({}));
    let mut with: Vec<String> = sizes().into_iter().map(|size| size.name).collect();
    with.retain(|name| cloud.kind.job_needs(name).has_efa);
    assert!(
        ["p5.48xlarge", "p4d.24xlarge", "g5.8xlarge", "g6e.48xlarge"]
            .iter()
            .all(|name| with.iter().any(|found| found == name)),
        "{with:?}"
    );
    for name in ["g5.xlarge", "g6.4xlarge", "m5.24xlarge", "t3.micro"] {
        assert_eq!(cloud.kind.job_needs(name), JobNeeds::NONE, "{name}");
    }
}
