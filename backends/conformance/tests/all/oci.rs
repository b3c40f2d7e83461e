use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use dstack_backend_kit::{
    CANARY, Cloud, Driver, Emulator as _, Fault, Subject, checks, checks_of, extended, machine, machine_in,
    machine_of, requirements, with_machine, with_machines_in,
};
use dstack_compute::{ComputeError, ConfigureError, Machine, Removal};
use dstack_emulator_oci::{ENCRYPTED_KEY, FINGERPRINT, HOME, KEY, OTHER, Oci, PENDING, TENANCY, USER};
use dstack_model::instances::InstanceAvailability;
use dstack_model::offers::InstanceOfferWithAvailability;
use dstack_model::runs::Requirements;
use serde_json::{Value, json};

fn creds(more: &Value) -> Value {
    let creds = json!({"type": "client", "user": USER, "tenancy": TENANCY, "fingerprint": FINGERPRINT,
        "region": OTHER, "key_content": KEY});
    extended(creds, more)
}

fn config(more: &Value) -> Value {
    json!({"type": "oci", "creds": creds(more)})
}

/// With the regions and the compartment that a server stores.
async fn emulated() -> (Arc<Oci>, Cloud) {
    let emulator = Arc::new(Oci::default());
    let all = &[
        "creds.user",
        "creds.tenancy",
        "creds.fingerprint",
        "creds.key_content",
    ][..];
    let refused = vec![
        (config(&json!({"user": "ocid1.user.oc1..other"})), all),
        (config(&json!({"fingerprint": "00:00"})), all),
        (config(&json!({"user": "a b"})), &["creds.user"][..]),
        (config(&json!({"region": "nowhere/"})), &["creds.region"]),
        (
            config(&json!({"key_content": ENCRYPTED_KEY, "pass_phrase": "wrong"})),
            &["creds.key_content"],
        ),
        (config(&json!({"key_content": "no key"})), &["creds.key_content"]),
        (
            config(&json!({"key_content": null, "key_file": "/nonexistent/key.pem"})),
            &["creds.key_file"],
        ),
        (
            json!({"type": "oci", "creds": {"type": "default", "file": "/nonexistent/config"}}),
            &["creds.file"],
        ),
    ];
    let mut cloud = Cloud::new(
        emulator.clone(),
        dstack_backend_oci::kind,
        config(&json!({})),
        refused,
    );
    let stored = cloud.configure(&cloud.config).await.unwrap();
    cloud.config["regions"] = stored["regions"].clone();
    cloud.config["compartment_id"] = stored["compartment_id"].clone();
    (emulator, cloud)
}

async fn cloud() -> Cloud {
    emulated().await.1
}

pub(crate) async fn one_machine() -> (Cloud, Subject<Machine>) {
    with_machine(cloud().await).await
}

/// One whose networks and agreements are there already, in fewer requests: each costs a signature.
fn prepared(regions: &[&str]) -> Cloud {
    let emulator = Arc::new(Oci::default());
    let mut config = config(&json!({}));
    config["regions"] = regions.into();
    config["compartment_id"] = TENANCY.into();
    for region in regions {
        emulator.prepare(region);
    }
    Cloud::new(emulator, dstack_backend_oci::kind, config, Vec::new())
}

async fn another_machine() -> (Cloud, Subject<Machine>) {
    with_machine(prepared(&[OTHER])).await
}

fn wanted(resources: &Value, spot: Option<bool>) -> Requirements {
    requirements(&json!({"resources": resources, "spot": spot}))
}

/// A machine of a shape in the home region.
async fn machine_named(cloud: &Cloud, shape: &str, spot: bool) -> Subject<Machine> {
    let small = json!({"cpu": "1..", "memory": "1GB..", "disk": "80GB.."});
    machine_of(cloud, &wanted(&small, Some(spot)), |offer| {
        offer.instance.name == shape && &*offer.region == HOME
    })
    .await
}

async fn machines_in_two_regions() -> (Cloud, Vec<Subject<Machine>>) {
    with_machines_in(prepared(&[HOME, OTHER]), &[HOME, OTHER, HOME]).await
}

checks_of!(machines: one_machine, machines_in_two_regions; whole_life, sold_out, loss, soak);
checks_of!(machines_with_a_network: another_machine, machines_in_two_regions;
    any_fault_anywhere, another_attempt, neighbours, left_behind, removed_before_listed);

#[tokio::test(start_paused = true)]
async fn credentials() {
    let mut cloud = cloud().await;
    checks::credentials(&cloud).await;
    cloud.config["creds"] = creds(&json!({"key_content": ENCRYPTED_KEY, "pass_phrase": CANARY}));
    checks::credentials(&cloud).await;
}

#[tokio::test(start_paused = true)]
async fn offers() {
    checks::offers(&cloud().await).await;
}

/// `regions` may have had more of them before.
#[tokio::test(start_paused = true)]
async fn what_was_left_in_a_region_that_is_not_configured_any_more_is_found_and_ended() {
    let mut cloud = prepared(&[HOME, OTHER]);
    let subject = machine_in(&cloud, HOME).await;
    Driver::new(&cloud).make(&subject).await.unwrap();
    cloud.config["regions"] = json!([OTHER]);
    let backend = cloud.open();
    let left = backend.inventory().await.unwrap();
    assert_eq!((left.len(), left[0].region.as_str()), (1, HOME), "{left:?}");
    // One that does not tell hides no other, and is named.
    cloud.faults().away(Some(HOME));
    let told = backend.inventory_by_region().await.unwrap();
    let missing: Vec<_> = told
        .missing
        .iter()
        .map(|missing| missing.region.as_str())
        .collect();
    assert_eq!((told.owned.len(), missing), (0, vec![HOME]));
    assert!(
        backend.inventory().await.is_err(),
        "what may be there is not known"
    );
    cloud.faults().away(None);
    while backend.remove_owned(&left[0]).await != Ok(Removal::Gone) {
        tokio::time::sleep(Duration::from_secs(5)).await;
    }
    assert_eq!(cloud.emulator.ledger().alive(), []);
}

#[tokio::test(start_paused = true)]
async fn a_region_that_is_away_hides_no_other() {
    let cloud = cloud().await;
    let subjects = [machine_in(&cloud, HOME).await, machine_in(&cloud, OTHER).await];
    checks::a_place_away(&cloud, &subjects, OTHER).await;
}

#[tokio::test(start_paused = true)]
async fn whichever_answer_is_lost_one_network_and_one_machine_are_made() {
    for nth in 1..100 {
        let (emulator, cloud) = emulated().await;
        let subject = machine(&cloud).await;
        cloud.faults().at(nth, Fault::AnswerLost);
        let driver = Driver::new(&cloud);
        let place = driver.make(&subject).await.unwrap();
        for path in ["vcns", "subnets", "internetGateways", "networkSecurityGroups"] {
            assert_eq!(
                emulator.parts(path),
                1,
                "{path}, the answer to request {nth} lost"
            );
        }
        assert_eq!(emulator.ledger().count(), 1);
        driver.remove(&subject.known(Some(place)), &subject).await;
        assert_eq!(emulator.ledger().alive(), []);
        if !cloud.faults().happened() {
            return;
        }
    }
    panic!("a life of more requests");
}

#[tokio::test(start_paused = true)]
async fn a_compartment_and_one_network_are_made() {
    let (emulator, cloud) = emulated().await;
    cloud.configure(&config(&json!({}))).await.unwrap();
    assert_eq!(emulator.compartments(), ["dstack-main"]);
    for _ in 0..2 {
        let subject = machine(&cloud).await;
        Driver::new(&cloud).make(&subject).await.unwrap();
    }
    for path in ["vcns", "subnets", "internetGateways", "networkSecurityGroups"] {
        assert_eq!(emulator.parts(path), 1, "{path}");
    }
}

#[tokio::test(start_paused = true)]
async fn only_regions_that_have_images_and_are_subscribed_to_are_taken() {
    let cloud = cloud().await;
    assert_eq!(cloud.config["regions"], json!([OTHER, HOME]));
    for (regions, expected) in [
        (json!([PENDING]), "not subscribed"),
        (json!(["ap-tokyo-1"]), "no images in ap-tokyo-1"),
    ] {
        let mut config = config(&json!({}));
        config["regions"] = regions;
        let error = cloud.configure(&config).await.unwrap_err();
        let ConfigureError::Invalid(text) = &error else {
            panic!("{error:?}")
        };
        assert!(text.contains("regions") && text.contains(expected), "{text}");
    }
    let mut config = config(&json!({}));
    config["compartment_id"] = "ocid1.compartment.oc1..none".into();
    let error = cloud.configure(&config).await.unwrap_err();
    assert!(error.to_string().contains("compartment_id"), "{error}");
}

#[tokio::test(start_paused = true)]
async fn offers_tell_domains_and_limits() {
    let cloud = cloud().await;
    let gpu = json!({"gpu": "1..", "cpu": "1..", "memory": "1GB..", "disk": "50GB.."});
    let offers = cloud.offers(&wanted(&gpu, Some(false))).await;
    let told = |shape: &str, region: &str| {
        let mut found = offers
            .iter()
            .filter(|offer| offer.instance.name == shape && &*offer.region == region);
        let offer = found.next().unwrap_or_else(|| panic!("{shape}"));
        (offer.availability, offer.availability_zones.clone().unwrap())
    };
    let second = format!("Uocm:{}-AD-2", HOME.to_uppercase());
    assert_eq!(
        told("VM.GPU.A10.1", HOME),
        (InstanceAvailability::Available, vec![second])
    );
    assert_eq!(
        told("VM.GPU.A10.1", OTHER),
        (InstanceAvailability::NoQuota, vec![])
    );
    assert_eq!(
        told("BM.GPU.A10.4", HOME),
        (InstanceAvailability::NotAvailable, vec![])
    );
    assert_eq!(told("BM.GPU4.8", HOME), (InstanceAvailability::NoQuota, vec![]));
    let is_flexible = |offer: &InstanceOfferWithAvailability| offer.instance.name.contains("Flex");
    assert!(!offers.iter().any(is_flexible));
    // Of a region that does not answer, nothing is to be had.
    cloud.faults().away(Some(OTHER));
    let offers = cloud.offers(&wanted(&json!({}), None)).await;
    assert!(!offers.is_empty() && offers.iter().all(|offer| &*offer.region == HOME));
}

#[tokio::test(start_paused = true)]
async fn untested_shapes_are_offered_where_they_are_named() {
    let mut cloud = cloud().await;
    cloud.config["experimental_instance_types"] = json!(["VM.Standard.E4.Flex"]);
    let small = json!({"cpu": "1..", "memory": "1GB..", "disk": "50GB.."});
    let offers = cloud.offers(&wanted(&small, None)).await;
    assert!(
        offers
            .iter()
            .any(|offer| offer.instance.name == "VM.Standard.E4.Flex")
    );
}

#[tokio::test(start_paused = true)]
async fn machines_are_made_as_they_were_asked_for() {
    let (emulator, cloud) = emulated().await;
    for (shape, spot, image) in [
        ("VM.Standard2.1", false, "dstack-0.14"),
        ("VM.Standard2.2", true, "dstack-0.14"),
        ("VM.GPU.A10.1", false, "dstack-cuda-0.14"),
        ("VM.GPU3.1", true, "dstack-cuda-0.10"),
    ] {
        let subject = machine_named(&cloud, shape, spot).await;
        let place = Driver::new(&cloud).make(&subject).await.unwrap();
        let asked = emulator.asked(&subject.marks.name(60)).unwrap();
        assert_eq!(asked["shape"], shape);
        assert_eq!(asked.get("preemptibleInstanceConfig").is_some(), spot, "{shape}");
        let source = &asked["sourceDetails"];
        assert_eq!(source["imageId"], format!("ocid1.image.oc1.{HOME}.{image}"));
        assert_eq!(source["bootVolumeSizeInGBs"], 80);
        assert_eq!(asked["freeformTags"]["team"], "vision");
        let user_data = BASE64_STANDARD
            .decode(asked["metadata"]["user_data"].as_str().unwrap())
            .unwrap();
        let user_data = String::from_utf8(user_data).unwrap();
        assert!(
            user_data.contains("ssh-ed25519") && user_data.contains("10.0.0.0/16"),
            "{user_data}"
        );
        assert_eq!(
            place.availability_zone.as_deref(),
            asked["availabilityDomain"].as_str()
        );
        assert_eq!(
            (place.username.as_str(), place.internal_ip.as_deref()),
            ("ubuntu", Some("10.0.0.7"))
        );
    }
}

#[tokio::test(start_paused = true)]
async fn each_availability_domain_is_tried() {
    let (emulator, cloud) = emulated().await;
    let subject = machine_named(&cloud, "VM.Standard2.1", false).await;
    let domains = subject.want.offer.availability_zones.clone().unwrap();
    assert_eq!(domains.len(), 2);
    emulator.fill(&domains[0]);
    let place = Driver::new(&cloud).make(&subject).await.unwrap();
    assert_eq!(place.availability_zone.as_ref(), Some(&domains[1]));
}

#[tokio::test(start_paused = true)]
async fn limits_are_told_from_what_is_refused() {
    let (emulator, cloud) = emulated().await;
    for (code, is_expected) in [
        (
            "LimitExceeded",
            (|error| matches!(error, ComputeError::NoQuota(_))) as fn(&ComputeError) -> bool,
        ),
        ("QuotaExceeded", |error| matches!(error, ComputeError::NoQuota(_))),
        ("InvalidParameter", |error| {
            matches!(error, ComputeError::Refused(_))
        }),
    ] {
        emulator.refuse("VM.Standard2.1", code);
        let subject = machine_named(&cloud, "VM.Standard2.1", false).await;
        let error = Driver::new(&cloud).make(&subject).await.unwrap_err();
        assert!(is_expected(&error), "{code}: {error:?}");
    }
    assert_eq!(emulator.ledger().count(), 0);
}

#[test]
fn bare_metal_has_longer_to_start() {
    let kind = dstack_backend_oci::kind(dstack_backend_kit::env(Arc::new(
        dstack_backend_kit::EmulatedTransport::new(Oci::default().router()),
    )));
    assert_eq!(
        kind.provisioning_timeout("BM.GPU.A10.4"),
        Duration::from_secs(20 * 60)
    );
    assert_eq!(
        kind.provisioning_timeout("VM.GPU.A10.1"),
        Duration::from_secs(10 * 60)
    );
}

/// The file that OCI's own programs have, with a key in another file.
#[tokio::test(start_paused = true)]
async fn profiles_of_this_machine_are_taken() {
    let cloud = cloud().await;
    let folder = tempfile::tempdir().unwrap();
    let (key, file) = (folder.path().join("key.pem"), folder.path().join("config"));
    fs_err::write(&key, ENCRYPTED_KEY).unwrap();
    let profile = format!(
        "[DEFAULT]\nuser={USER}\ntenancy={TENANCY}\nfingerprint={FINGERPRINT}\nregion={HOME}\n\
         key_file={}\npass_phrase={CANARY}\n[OTHER]\nuser=ocid1.user.oc1..other\n",
        key.display()
    );
    fs_err::write(&file, profile).unwrap();
    let configure = async |profile: &str| {
        let creds = json!({"type": "default", "file": file, "profile": profile});
        cloud.configure(&json!({"type": "oci", "creds": creds})).await
    };
    configure("DEFAULT").await.unwrap();
    for profile in ["OTHER", "NONE"] {
        let error = configure(profile).await.unwrap_err();
        let ConfigureError::Credentials { fields, .. } = &error else {
            panic!("{error:?}")
        };
        assert_eq!(*fields, [["creds", "profile"]]);
    }
}
