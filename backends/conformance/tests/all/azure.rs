use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use dstack_backend_kit::{
    CANARY, Cloud, Driver, Emulator as _, Fault, Subject, checks, checks_of, gateway, machine, machine_of,
    requirements, with_machine, with_machines_in,
};
use dstack_compute::{ComputeError, ConfigureError, GatewayMachine, Machine, Sign};
use dstack_emulator_azure::{Azure, CLIENT, GROUP, HOME, OTHER, SUBSCRIPTION, TENANT};
use dstack_model::instances::InstanceAvailability;
use dstack_model::runs::Requirements;
use serde_json::{Value, json};

fn config(more: &Value) -> Value {
    let mut config = json!({"type": "azure", "tenant_id": TENANT, "subscription_id": SUBSCRIPTION, "resource_group": GROUP,
        "regions": [HOME, OTHER], "creds": {"type": "client", "client_id": CLIENT, "client_secret": CANARY}});
    for (name, field) in more.as_object().unwrap() {
        config[name] = field.clone();
    }
    config
}

fn creds(more: &Value) -> Value {
    let mut creds = json!({"type": "client", "client_id": CLIENT, "client_secret": CANARY});
    for (name, field) in more.as_object().unwrap() {
        creds[name] = field.clone();
    }
    json!({"creds": creds})
}

fn emulated(more: &Value) -> (Arc<Azure>, Cloud) {
    let emulator = Arc::new(Azure::default());
    let refused = vec![
        (
            config(&creds(&json!({"client_secret": "wrong"}))),
            &["creds.client_secret"][..],
        ),
        (
            config(&creds(&json!({"client_id": "wrong"}))),
            &["creds.client_id"],
        ),
        (
            config(&creds(&json!({"tenant_id": "wrong"}))),
            &["creds.tenant_id"],
        ),
        (config(&json!({"tenant_id": "wrong"})), &["tenant_id"]),
        (
            config(
                &json!({"tenant_id": "wrong", "creds": {"type": "client", "client_id": CLIENT, "client_secret": CANARY,
                "tenant_id": TENANT}}),
            ),
            &["tenant_id"],
        ),
        (config(&json!({"subscription_id": "wrong"})), &["subscription_id"]),
    ];
    let cloud = Cloud::new(
        emulator.clone(),
        dstack_backend_azure::kind,
        config(more),
        refused,
    );
    (emulator, cloud)
}

fn cloud() -> Cloud {
    emulated(&json!({})).1
}

pub(crate) async fn one_machine() -> (Cloud, Subject<Machine>) {
    with_machine(cloud()).await
}

/// One whose network is there already, in fewer requests.
fn prepared(regions: &[&str]) -> (Arc<Azure>, Cloud) {
    let (emulator, cloud) = emulated(&json!({"regions": regions}));
    for region in regions {
        emulator.prepare(region);
    }
    (emulator, cloud)
}

async fn another_machine() -> (Cloud, Subject<Machine>) {
    with_machine(prepared(&[HOME]).1).await
}

async fn machines_in_two_regions() -> (Cloud, Vec<Subject<Machine>>) {
    with_machines_in(prepared(&[HOME, OTHER]).1, &[HOME, OTHER, HOME]).await
}

checks_of!(machines: one_machine, machines_in_two_regions; whole_life, sold_out, loss, soak);
checks_of!(machines_with_a_network: another_machine, machines_in_two_regions;
    any_fault_anywhere, another_attempt, neighbours, left_behind, removed_before_listed);

async fn one_gateway() -> (Cloud, Subject<GatewayMachine>) {
    let (_, cloud) = prepared(&[HOME]);
    let subject = gateway(&cloud, HOME);
    (cloud, subject)
}

async fn two_gateways() -> (Cloud, Vec<Subject<GatewayMachine>>) {
    let (_, cloud) = prepared(&[HOME, OTHER]);
    let subjects = vec![gateway(&cloud, HOME), gateway(&cloud, OTHER)];
    (cloud, subjects)
}

checks_of!(gateways: one_gateway, two_gateways);

#[tokio::test(start_paused = true)]
async fn credentials() {
    checks::credentials(&cloud()).await;
}

#[tokio::test(start_paused = true)]
async fn offers() {
    checks::offers(&cloud()).await;
}

fn wanted(resources: &Value, spot: Option<bool>) -> Requirements {
    requirements(&json!({"resources": resources, "spot": spot}))
}

/// A machine of a size in the first region.
async fn machine_named(cloud: &Cloud, size: &str, spot: bool) -> Subject<Machine> {
    let small = json!({"cpu": "1..", "memory": "1GB..", "disk": "80GB.."});
    machine_of(cloud, &wanted(&small, Some(spot)), |offer| {
        offer.instance.name == size && &*offer.region == HOME
    })
    .await
}

#[tokio::test(start_paused = true)]
async fn the_machine_that_the_server_runs_on_has_an_identity() {
    if dstack_system::env::all()
        .iter()
        .any(|(name, _)| name.starts_with("AZURE_"))
    {
        eprintln!("skipped: there are credentials in the surroundings");
        return;
    }
    let (emulator, mut cloud) = emulated(&json!({"creds": {"type": "default"}}));
    cloud.configure(&cloud.config).await.unwrap();
    let subject = machine(&cloud).await;
    Driver::new(&cloud).make(&subject).await.unwrap();

    emulator.without_identity();
    cloud.refused = vec![(cloud.config.clone(), &["creds"])];
    let error = cloud.configure(&cloud.config).await.unwrap_err();
    let ConfigureError::Credentials { fields, .. } = &error else {
        panic!("{error:?}")
    };
    assert_eq!(*fields, [["creds"]]);
    // Elsewhere than in Azure, there is nobody to ask.
    cloud.faults().away(Some("169.254.169.254"));
    let error = cloud.configure(&cloud.config).await.unwrap_err();
    let text = format!("{error:?}");
    assert!(
        text.contains("AZURE_CLIENT_ID") && text.contains("`az`"),
        "{text}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_resource_group_is_made_where_none_is_named() {
    let (emulator, cloud) = emulated(&json!({"resource_group": null, "regions": null}));
    let stored = cloud.configure(&cloud.config).await.unwrap();
    assert_eq!(stored["resource_group"], "dstack-main");
    assert_eq!(stored["regions"].as_array().unwrap().len(), 16);
    assert_eq!(emulator.groups(), [GROUP], "it was there");

    emulator.only_group("other");
    for _ in 0..2 {
        cloud.configure(&cloud.config).await.unwrap();
        assert_eq!(emulator.groups(), ["other", "dstack-main"]);
    }
    let named = config(&json!({"resource_group": "none"}));
    let error = cloud.configure(&named).await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "`resource_group`: Resource group none not found"
    );
}

#[tokio::test(start_paused = true)]
async fn what_is_wrong_with_a_configuration_is_told() {
    let (emulator, cloud) = emulated(&json!({}));
    emulator.add_network("net", "closed", HOME, &["a", "b"], &[]);
    emulator.add_network("net", "open", HOME, &["a", "b"], &["b"]);
    emulator.add_network("net", "peered", HOME, &["a"], &[]);
    emulator.peer("peered");
    emulator.add_network("net", "elsewhere", OTHER, &["a"], &[]);
    let here = |more: Value| {
        let mut config = config(&more);
        config["regions"] = json!([HOME]);
        config
    };
    let tags: Value = (0..26)
        .map(|number| (format!("t{number}"), "v".into()))
        .collect::<serde_json::Map<_, _>>()
        .into();
    for (more, expected) in [
        (
            json!({"tags": {"a/b": "c"}}),
            "`tags`: Azure takes no tag with the key",
        ),
        (json!({"tags": tags}), "more than 25"),
        (
            json!({"vm_managed_identity": "runners"}),
            "`vm_managed_identity`: runners is not of the form",
        ),
        (
            json!({"vm_managed_identity": "dstack-main/none"}),
            "Managed identity none not found",
        ),
        (
            json!({"public_ips": false}),
            "must be specified if `public_ips: false`",
        ),
        (
            json!({"vpc_ids": {HOME: "net/open"}, "subnet_ids": {HOME: "net/open/a"}}),
            "both",
        ),
        (
            json!({"vpc_ids": {OTHER: "net/open"}}),
            "not configured for regions eastus",
        ),
        (
            json!({"vpc_ids": {HOME: "open"}}),
            "not of the form resourceGroup/network",
        ),
        (json!({"vpc_ids": {HOME: "net/none"}}), "network none not found"),
        (json!({"vpc_ids": {HOME: "none/none"}}), "network none not found"),
        (
            json!({"vpc_ids": {HOME: "net/elsewhere"}}),
            "`vpc_ids`: network elsewhere is in westeurope, and not in eastus",
        ),
        (
            json!({"subnet_ids": {HOME: "net/elsewhere/a"}}),
            "`subnet_ids`: network elsewhere is in westeurope, and not in eastus",
        ),
        (
            json!({"subnet_ids": {HOME: "net/open"}}),
            "not of the form resourceGroup/network/subnet",
        ),
        (
            json!({"subnet_ids": {HOME: "net/open/none"}}),
            "subnet none not found",
        ),
        (
            json!({"subnet_ids": {HOME: "net/closed/a"}, "public_ips": false}),
            "does not reach the internet",
        ),
        (
            json!({"vpc_ids": {HOME: "net/closed"}, "public_ips": false}),
            "no subnet of network closed reaches the internet",
        ),
    ] {
        let error = cloud.configure(&here(more.clone())).await.unwrap_err();
        assert!(matches!(error, ConfigureError::Invalid(_)), "{more}: {error:?}");
        assert!(error.to_string().contains(expected), "{more}: {error}");
    }
    let error = cloud
        .configure(&config(&json!({"regions": ["mars"]})))
        .await
        .unwrap_err();
    assert!(
        error.to_string().contains("Unknown Azure location mars"),
        "{error}"
    );
    for more in [
        json!({"tags": {"team": "a"}}),
        json!({"vm_managed_identity": "dstack-main/runners"}),
        json!({"vpc_ids": {HOME: "net/closed"}}),
        json!({"subnet_ids": {HOME: "net/closed/a"}}),
        json!({"vpc_ids": {HOME: "net/open"}, "public_ips": false}),
        json!({"subnet_ids": {HOME: "net/open/b"}, "public_ips": false}),
        json!({"vpc_ids": {HOME: "net/peered"}, "public_ips": false}),
    ] {
        cloud
            .configure(&here(more.clone()))
            .await
            .unwrap_or_else(|error| panic!("{more}: {error}"));
    }
}

#[tokio::test(start_paused = true)]
async fn a_role_that_lacks_rights_is_refused() {
    let (emulator, cloud) = emulated(&json!({}));
    emulator.forbid("Microsoft.Network/networkInterfaces/write");
    emulator.forbid("Microsoft.Compute/locations/usages/read");
    let error = cloud.configure(&cloud.config).await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "the role of the credentials lacks Microsoft.Network/networkInterfaces/write in the resource group dstack-main"
    );
    // Who may not see rights finds out when they are needed.
    emulator.forbid("Microsoft.Authorization/permissions/read");
    cloud.configure(&cloud.config).await.unwrap();
    // A role in the resource group alone has no rights in the subscription.
    emulator.forbid("Microsoft.Compute/skus/read");
    let error = cloud.configure(&cloud.config).await.unwrap_err();
    assert!(
        error
            .to_string()
            .contains("Azure does not allow `Microsoft.Compute/skus/read`"),
        "{error}"
    );
}

#[tokio::test(start_paused = true)]
async fn networks_of_the_configuration_are_taken() {
    for (more, subnet, address) in [
        (json!({"vpc_ids": {HOME: "net/open"}}), "a", "203.0.113.77"),
        (
            json!({"vpc_ids": {HOME: "net/open"}, "public_ips": false}),
            "b",
            "10.0.0.7",
        ),
        (json!({"subnet_ids": {HOME: "net/open/b"}}), "b", "203.0.113.77"),
    ] {
        let mut config = more.clone();
        config["regions"] = json!([HOME]);
        let (emulator, cloud) = emulated(&config);
        emulator.add_network("net", "open", HOME, &["a", "b"], &["b"]);
        let subject = machine(&cloud).await;
        let driver = Driver::new(&cloud);
        let place = driver.make(&subject).await.unwrap();
        assert_eq!(place.hostname.as_deref(), Some(address), "{more}");
        assert_eq!(place.internal_ip.as_deref(), Some("10.0.0.7"));
        let asked = emulator.asked(&place.instance_id).unwrap();
        let nic = &asked["properties"]["networkProfile"]["networkInterfaceConfigurations"][0]["properties"];
        let id = nic["ipConfigurations"][0]["properties"]["subnet"]["id"]
            .as_str()
            .unwrap();
        assert!(
            id.ends_with(&format!(
                "/net/providers/Microsoft.Network/virtualNetworks/open/subnets/{subnet}"
            )),
            "{id}"
        );
        let made = emulator.shared().len();
        assert_eq!(made, 2, "only the security group is made");
        driver.remove(&subject.known(Some(place)), &subject).await;
        assert_eq!(emulator.ledger().alive(), []);
    }
}

#[tokio::test(start_paused = true)]
async fn whichever_answer_is_lost_one_network_and_one_machine_are_made() {
    for nth in 1..100 {
        let (emulator, cloud) = emulated(&json!({"regions": [HOME], "tags": {"team": "ops"}}));
        let subject = machine(&cloud).await;
        cloud.faults().at(nth, Fault::AnswerLost);
        let driver = Driver::new(&cloud);
        let place = driver.make(&subject).await.unwrap();
        let shared = emulator.shared();
        let names: Vec<&str> = shared.iter().map(|(name, _)| name.as_str()).collect();
        let expected = [
            "dstack-main-eastus-default-network",
            "dstack-main-eastus-default-security-group",
        ];
        assert_eq!(names, expected, "the answer to request {nth} lost");
        assert_eq!(
            shared[0].1["properties"]["addressSpace"]["addressPrefixes"],
            json!(["10.0.0.0/16"])
        );
        assert_eq!(
            shared[0].1["properties"]["subnets"][0]["name"],
            "dstack-main-eastus-default-subnet"
        );
        assert_eq!(
            shared[0].1["properties"]["subnets"][0]["properties"]["addressPrefix"],
            "10.0.0.0/20"
        );
        assert_eq!(shared[1].1["tags"], json!({"owner": "dstack", "team": "ops"}));
        assert_eq!(
            shared[1].1["properties"]["securityRules"][0]["name"],
            "runner_ssh"
        );
        driver.remove(&subject.known(Some(place)), &subject).await;
        assert_eq!(emulator.ledger().alive(), []);
        if !cloud.faults().happened() {
            return;
        }
    }
    panic!("a life of more requests");
}

#[tokio::test(start_paused = true)]
async fn a_network_that_somebody_has_removed_is_made_again() {
    let (emulator, cloud) = emulated(&json!({"regions": [HOME]}));
    let backend = cloud.open();
    for _ in 0..2 {
        let subject = machine(&cloud).await;
        let driver = Driver::with_backend(&cloud, backend.clone());
        driver.make(&subject).await.unwrap();
        emulator.remove_shared("dstack-main-eastus-default-security-group");
    }
}

#[tokio::test(start_paused = true)]
async fn offers_tell_restrictions_and_quotas() {
    let (emulator, cloud) = emulated(&json!({}));
    let told = async |cloud: &Cloud, size: &str, region: &str, spot: bool| {
        let all = json!({"cpu": "1..", "memory": "1GB..", "disk": "30GB.."});
        let offers = cloud.offers(&wanted(&all, Some(spot))).await;
        let mut found = offers
            .into_iter()
            .filter(|offer| offer.instance.name == size && &*offer.region == region);
        found
            .next()
            .unwrap_or_else(|| panic!("{size} in {region}"))
            .availability
    };
    let (unknown, no_quota) = (InstanceAvailability::Unknown, InstanceAvailability::NoQuota);
    for (size, region, spot, expected) in [
        ("Standard_D2s_v6", HOME, false, unknown),
        // Of all CPUs, too few are left; of those of spot as well.
        ("Standard_D96s_v6", HOME, false, no_quota),
        ("Standard_D96s_v6", HOME, true, no_quota),
        ("Standard_NC24ads_A100_v4", HOME, false, unknown),
        // The family has none; spot machines count against another quota.
        ("Standard_NC40ads_H100_v5", HOME, false, no_quota),
        ("Standard_E4s_v6", OTHER, false, unknown),
        ("Standard_NC4as_T4_v3", HOME, false, unknown),
        ("Standard_NC4as_T4_v3", OTHER, false, no_quota),
        // Not sold there.
        ("Standard_D8s_v6", HOME, false, no_quota),
    ] {
        assert_eq!(
            told(&cloud, size, region, spot).await,
            expected,
            "{size} {region} {spot}"
        );
    }
    let small = json!({"cpu": "1..", "memory": "1GB..", "disk": "30GB.."});
    let others = cloud.offers(&wanted(&small, None)).await;
    assert!(
        !others.iter().any(|offer| offer.instance.name.contains("p")),
        "there are no images for ARM"
    );
    // Who may not see quotas sees offers.
    emulator.forbid("Microsoft.Compute/locations/usages/read");
    assert_eq!(
        told(&cloud, "Standard_NC40ads_H100_v5", HOME, false).await,
        unknown
    );
    // Of a region that does not answer, nothing is to be had.
    cloud.faults().away(Some(OTHER));
    let offers = cloud.offers(&wanted(&json!({}), None)).await;
    assert!(!offers.is_empty() && offers.iter().all(|offer| &*offer.region == HOME));
}

#[tokio::test(start_paused = true)]
async fn machines_are_made_as_they_were_asked_for() {
    let (emulator, cloud) = emulated(
        &json!({"tags": {"team": "ops", "cost": "7"}, "vm_managed_identity": "dstack-main/runners"}),
    );
    for (size, spot, image) in [
        ("Standard_D2s_v6", false, "dstack-0.14"),
        ("Standard_D4s_v6", true, "dstack-0.14"),
        ("Standard_NC4as_T4_v3", false, "dstack-cuda-0.14"),
        ("Standard_NC6s_v3", true, "dstack-cuda-0.10"),
        ("Standard_NV6ads_A10_v5", false, "dstack-grid-0.14"),
    ] {
        let subject = machine_named(&cloud, size, spot).await;
        let place = Driver::new(&cloud).make(&subject).await.unwrap();
        assert_eq!(place.instance_id, subject.marks.name(60));
        assert_eq!((place.username.as_str(), place.ssh_port), ("ubuntu", Some(22)));
        let asked = emulator.asked(&place.instance_id).unwrap();
        let tags = &asked["tags"];
        assert_eq!(
            (&tags["team"], &tags["cost"], &tags["owner"]),
            (&json!("ops"), &json!("7"), &json!("dstack"))
        );
        assert_eq!(
            (&tags["dstack_project"], &tags["dstack_user"]),
            (&json!("main"), &json!("somebody"))
        );
        let identity = format!(
            "/subscriptions/{SUBSCRIPTION}/resourceGroups/dstack-main/providers/Microsoft.ManagedIdentity/userAssignedIdentities/runners"
        );
        assert_eq!(
            asked["identity"],
            json!({"type": "UserAssigned", "userAssignedIdentities": {identity: {}}})
        );
        let properties = &asked["properties"];
        assert_eq!(properties["hardwareProfile"]["vmSize"], size);
        assert_eq!(properties["priority"], if spot { "Spot" } else { "Regular" });
        assert_eq!(properties.get("evictionPolicy"), spot.then_some(&json!("Delete")));
        let id = properties["storageProfile"]["imageReference"]["communityGalleryImageId"]
            .as_str()
            .unwrap();
        assert!(id.ends_with(&format!("/Images/{image}")), "{id}");
        assert_eq!(properties["storageProfile"]["osDisk"]["diskSizeGB"], 80);
        let user_data = BASE64_STANDARD
            .decode(properties["userData"].as_str().unwrap())
            .unwrap();
        let user_data = String::from_utf8(user_data).unwrap();
        assert!(
            user_data.contains("ssh-ed25519") && user_data.contains("cgroupfs"),
            "{user_data}"
        );
    }
}

type Expected = fn(&ComputeError) -> bool;

#[tokio::test(start_paused = true)]
async fn why_a_machine_is_refused_is_told_apart() {
    let size = "Standard_D2s_v6";
    let quota =
        "Operation could not be completed as it results in exceeding approved Total Regional Cores quota.";
    let cases: &[(u16, &str, &str, Expected)] = &[
        (409, "SkuNotAvailable", "m", |error| {
            matches!(error, ComputeError::NoCapacity(_))
        }),
        (409, "ZonalAllocationFailed", "m", |error| {
            matches!(error, ComputeError::NoCapacity(_))
        }),
        (409, "OverconstrainedAllocationRequest", "m", |error| {
            matches!(error, ComputeError::NoCapacity(_))
        }),
        (409, "OperationNotAllowed", quota, |error| {
            matches!(error, ComputeError::NoQuota(_))
        }),
        (409, "QuotaExceeded", "m", |error| {
            matches!(error, ComputeError::NoQuota(_))
        }),
        (403, "RequestDisallowedByPolicy", "m", |error| {
            matches!(error, ComputeError::Refused(_))
        }),
        (400, "InvalidParameter", "m", |error| {
            matches!(error, ComputeError::Refused(_))
        }),
        (404, "GalleryImageNotFound", "m", |error| {
            matches!(error, ComputeError::Refused(_))
        }),
    ];
    for (status, code, message, is_expected) in cases {
        let (emulator, cloud) = prepared(&[HOME]);
        emulator.refuse(size, *status, code, message);
        let subject = machine_named(&cloud, size, false).await;
        let error = Driver::new(&cloud).make(&subject).await.unwrap_err();
        assert!(is_expected(&error), "{code}: {error:?}");
        assert!(error.to_string().contains(code), "{error}");
        assert_eq!(emulator.ledger().count(), 0);
    }
    let (emulator, cloud) = prepared(&[HOME]);
    emulator.forbid("Microsoft.Compute/virtualMachines/write");
    let subject = machine_named(&cloud, size, false).await;
    let error = Driver::new(&cloud).make(&subject).await.unwrap_err();
    let ComputeError::Credentials(text) = &error else {
        panic!("{error:?}")
    };
    assert!(
        text.starts_with("Azure does not allow `Microsoft.Compute/virtualMachines/write`"),
        "{text}"
    );
}

#[tokio::test(start_paused = true)]
async fn what_fails_while_it_is_made_is_removed_with_its_pieces() {
    let cases: &[(&str, Expected)] = &[
        ("AllocationFailed", |error| {
            matches!(error, ComputeError::NoCapacity(_))
        }),
        ("OSProvisioningTimedOut", |error| {
            matches!(error, ComputeError::Broken(_))
        }),
    ];
    for (code, is_expected) in cases {
        for is_told in [true, false] {
            let (emulator, cloud) = prepared(&[HOME]);
            emulator.fail("Standard_D2s_v6", code);
            let subject = machine_named(&cloud, "Standard_D2s_v6", false).await;
            // Where the answer is lost, the address of the operation is not known.
            if !is_told {
                cloud.faults().at(4, Fault::AnswerLost);
            }
            let error = Driver::new(&cloud).make(&subject).await.unwrap_err();
            assert_eq!(cloud.faults().happened(), !is_told);
            assert!(is_expected(&error), "{code}: {error:?}");
            assert_eq!(emulator.ledger().count(), 3);
            assert_eq!(emulator.ledger().alive(), [], "{code}");
        }
    }
}

/// The answer is lost, and the server is killed; or Azure refuses what it has begun.
#[tokio::test(start_paused = true)]
async fn what_was_begun_is_removed_though_nobody_was_told() {
    let size = "Standard_D2s_v6";
    let mut begun = 0;
    for nth in 0..8 {
        let (emulator, cloud) = prepared(&[HOME]);
        emulator.fail(size, "AllocationFailed");
        let subject = machine_named(&cloud, size, false).await;
        let driver = Driver::new(&cloud);
        cloud.faults().at(nth, Fault::KilledAfter);
        drop(driver.make_until_killed(&subject).await);
        cloud.faults().none();
        begun += emulator.ledger().alive().len();
        driver.remove(&subject.known(None), &subject).await;
        assert_eq!(emulator.ledger().alive(), [], "killed after request {nth}");
    }
    assert!(begun > 0);

    for (status, code) in [
        (409, "OperationNotAllowed"),
        (409, "SkuNotAvailable"),
        (400, "PublicIPCountLimitReached"),
    ] {
        let (emulator, cloud) = prepared(&[HOME]);
        emulator.refuse_late(size, status, code);
        let subject = machine_named(&cloud, size, false).await;
        Driver::new(&cloud).make(&subject).await.unwrap_err();
        assert_eq!(emulator.ledger().count(), 3, "{code}");
        assert_eq!(emulator.ledger().alive(), [], "{code}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_resource_group_that_is_gone_is_named() {
    let (emulator, cloud) = emulated(&json!({"regions": [HOME]}));
    let subject = machine(&cloud).await;
    emulator.only_group("other");
    let error = Driver::new(&cloud).make(&subject).await.unwrap_err();
    assert!(matches!(error, ComputeError::Configuration(_)), "{error:?}");
    assert!(error.to_string().contains("resource group is gone"), "{error}");
}

/// What is there stays known, and is found by the inventory, as far as the credentials may see it.
#[tokio::test(start_paused = true)]
async fn another_resource_group_hides_no_machine() {
    let (emulator, mut cloud) = emulated(&json!({"regions": [HOME]}));
    emulator.add_group("other");
    let subject = machine(&cloud).await;
    let of_gateway = gateway(&cloud, HOME);
    let place = Driver::new(&cloud).make(&subject).await.unwrap();
    let place_of_gateway = Driver::new(&cloud).make(&of_gateway).await.unwrap();
    let known = subject.known(Some(place));
    let known_gateway = of_gateway.known(Some(place_of_gateway));

    cloud.config["resource_group"] = "other".into();
    let backend = cloud.open();
    assert_eq!(subject.sign(&*backend, &known).await, Some(Sign::Well));
    let sign = of_gateway.sign(&*backend, &known_gateway).await;
    assert_eq!(sign, Some(Sign::Well));
    let owned = backend.inventory().await.unwrap();
    assert_eq!(owned.len(), 8, "{owned:?}");
    let another = machine(&cloud).await;
    Driver::new(&cloud).make(&another).await.unwrap();
    assert_eq!(backend.inventory().await.unwrap().len(), 12);
    emulator.show_groups_only();
    assert_eq!(backend.inventory().await.unwrap().len(), 4);

    let driver = Driver::with_backend(&cloud, backend.clone());
    driver.remove(&known, &subject).await;
    Driver::with_backend(&cloud, backend.clone())
        .remove(&known_gateway, &of_gateway)
        .await;
    let alive = emulator.ledger().alive();
    assert_eq!(alive.len(), 4);
    assert!(
        alive
            .iter()
            .all(|entry| entry.id.contains("/resourceGroups/other/")),
        "{alive:?}"
    );
}

/// dstack 0.22.5, and early builds, do not note in which group a machine is.
#[tokio::test(start_paused = true)]
async fn machines_of_which_no_group_is_noted_are_looked_for_everywhere() {
    let (emulator, mut cloud) = emulated(&json!({"regions": [HOME]}));
    emulator.add_group("other");
    let mut known = Vec::new();
    for (group, is_of_older_server) in [(GROUP, false), (GROUP, true), ("other", true)] {
        cloud.config["resource_group"] = group.into();
        let subject = machine(&cloud).await;
        let mut place = Driver::new(&cloud).make(&subject).await.unwrap();
        place.backend_data = None;
        if is_of_older_server {
            emulator.grow_old(&place.instance_id);
        }
        known.push((subject.known(Some(place)), subject));
    }
    let look = async || {
        let known: Vec<_> = known.iter().map(|(known, _)| known.clone()).collect();
        let backend = cloud.open();
        let signs = backend.machines().unwrap().look(&known).await.unwrap();
        let is_well = |sign: Option<Sign<_>>| sign.map(|sign| sign == Sign::Well);
        signs.into_iter().map(is_well).collect::<Vec<_>>()
    };
    assert_eq!(look().await, [Some(true); 3]);
    for (known, subject) in &known[1..] {
        Driver::new(&cloud).remove(known, subject).await;
    }
    assert_eq!(look().await, [Some(true), Some(false), Some(false)]);
    let alive = emulator.ledger().alive();
    assert!(
        alive.len() == 4
            && alive
                .iter()
                .all(|entry| entry.id.contains("/resourceGroups/dstack-main/")),
        "{alive:?}"
    );

    // Whoever sees the present group only does not know, and says so.
    emulator.show_groups_only();
    assert_eq!(look().await, [None; 3]);
    let (known, subject) = &known[0];
    let driver = Driver::new(&cloud);
    let removed = tokio::time::timeout(Duration::from_secs(60), driver.remove(known, subject)).await;
    let errors = driver.errors.lock().unwrap().clone();
    assert!(
        removed.is_err() && errors.iter().all(|error| error.contains("virtualMachines/read")),
        "{errors:?}"
    );
    assert_eq!(emulator.ledger().alive().len(), 4);
    // What it sees it removes to the end.
    cloud.config["resource_group"] = GROUP.into();
    Driver::new(&cloud).remove(known, subject).await;
    assert_eq!(emulator.ledger().alive(), []);
}

/// With what somebody has changed there.
#[tokio::test(start_paused = true)]
async fn a_security_group_that_has_failed_is_asked_for_as_it_is() {
    let (emulator, cloud) = prepared(&[HOME]);
    let rules = json!([{"name": "own", "properties": {"protocol": "Tcp", "access": "Deny", "priority": 200, "direction": "Inbound"}}]);
    let name = "dstack-main-eastus-default-security-group";
    for (tags, expected) in [
        (Value::Null, json!({"owner": "dstack"})),
        (json!({"team": "net"}), json!({"owner": "dstack", "team": "net"})),
        (
            json!({"Owner": "net", "a": "1"}),
            json!({"Owner": "net", "a": "1"}),
        ),
    ] {
        emulator.fail_change(name, &rules, &tags);
        Driver::new(&cloud).make(&machine(&cloud).await).await.unwrap();
        let shared = emulator.shared();
        let (_, group) = shared.iter().find(|(known, _)| known == name).unwrap();
        assert_eq!(group["properties"]["securityRules"], rules);
        assert_eq!(group["tags"], expected);
    }
}

/// Of which nothing was noted.
#[tokio::test(start_paused = true)]
async fn a_machine_of_an_older_server_is_removed_with_its_pieces() {
    for nth in 0..30 {
        let (emulator, cloud) = prepared(&[HOME]);
        let subject = machine(&cloud).await;
        let place = Driver::new(&cloud).make(&subject).await.unwrap();
        emulator.grow_old(&place.instance_id);
        cloud.faults().at(nth, Fault::KilledAfter);
        Driver::new(&cloud)
            .remove(&subject.known(Some(place)), &subject)
            .await;
        assert_eq!(emulator.ledger().alive(), [], "killed after request {nth}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_disk_that_somebody_else_uses_is_told_of() {
    let (emulator, cloud) = prepared(&[HOME]);
    let subject = machine(&cloud).await;
    let driver = Driver::new(&cloud);
    let place = driver.make(&subject).await.unwrap();
    emulator.attach_elsewhere(&place.instance_id);
    let known = subject.known(Some(place));
    let removed = tokio::time::timeout(Duration::from_secs(300), driver.remove(&known, &subject)).await;
    let errors = driver.errors.lock().unwrap().clone();
    assert!(
        removed.is_err()
            && errors
                .last()
                .is_some_and(|error| error.starts_with("still in use")),
        "{errors:?}"
    );
    let backend = cloud.open();
    let left = backend.inventory().await.unwrap();
    assert_eq!(left.len(), 1, "all else is gone: {left:?}");
    let error = backend.remove_owned(&left[0]).await.unwrap_err();
    assert!(matches!(error, ComputeError::InUse(_)), "{error:?}");
    emulator.detach_all();
    driver.remove(&known, &subject).await;
    assert_eq!(emulator.ledger().alive(), []);
}

#[tokio::test(start_paused = true)]
async fn a_spot_machine_that_is_taken_back_is_lost() {
    let (emulator, cloud) = prepared(&[HOME]);
    let mut known = Vec::new();
    for _ in 0..2 {
        let subject = machine_named(&cloud, "Standard_D2s_v6", true).await;
        let place = Driver::new(&cloud).make(&subject).await.unwrap();
        known.push(subject.known(Some(place)));
    }
    emulator.evict(&known[0].place.as_ref().unwrap().instance_id);
    let backend = cloud.open();
    let signs = backend.machines().unwrap().look(&known).await.unwrap();
    assert!(
        matches!(signs.as_slice(), [Some(Sign::Lost(_)), Some(Sign::Well)]),
        "{signs:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn tokens_are_kept_and_renewed() {
    let (emulator, cloud) = prepared(&[HOME]);
    let backend = cloud.open();
    let subject = machine(&cloud).await;
    let before = emulator.logins();
    let driver = Driver::with_backend(&cloud, backend.clone());
    let place = driver.make(&subject).await.unwrap();
    assert_eq!(emulator.logins(), before + 1, "one token for all requests");
    let known = subject.known(Some(place));
    let look = async || subject.sign(&*backend, &known).await;
    for (pause, logins) in [(3000, 1), (500, 2), (3000, 2)] {
        tokio::time::sleep(Duration::from_secs(pause)).await;
        look().await.unwrap();
        assert_eq!(emulator.logins(), before + logins);
    }
    // Azure may end a token early.
    emulator.end_tokens();
    look().await.unwrap();
    assert_eq!(emulator.logins(), before + 3);
}

#[tokio::test(start_paused = true)]
async fn a_pause_that_azure_asks_for_is_kept() {
    let (emulator, cloud) = prepared(&[HOME]);
    let backend = cloud.open();
    let subjects = [
        machine(&cloud).await,
        machine(&cloud).await,
        machine(&cloud).await,
    ];
    emulator.be_busy(Duration::from_secs(40));
    let made = subjects.iter().map(|subject| {
        let driver = Driver::with_backend(&cloud, backend.clone());
        async move { driver.make(subject).await }
    });
    for made in futures_util::future::join_all(made).await {
        made.unwrap();
    }
    assert!(
        emulator.held_off() <= 2,
        "{} calls were too many",
        emulator.held_off()
    );
}

/// Within what Azure Resource Manager takes of a subscription.
#[tokio::test(start_paused = true)]
async fn two_hundred_machines_are_made_and_removed_at_once() {
    let (emulator, cloud) = prepared(&[HOME]);
    emulator.with_long_pages();
    let backend = cloud.open();
    let one = machine(&cloud).await;
    let lives = (0..200).map(|number: u128| {
        let mut marks = one.marks.clone();
        marks.key = uuid::Uuid::from_u128(0x0195_6fd2_6b2c_7ad1_8f3e_0123_4567_0000 + number);
        let want = (one.asked)(&one.want, marks.clone());
        let driver = Driver::with_backend(&cloud, backend.clone());
        let subject = Subject {
            want,
            marks,
            site: one.site.clone(),
            ..one_of(&one)
        };
        async move {
            let place = driver.make(&subject).await.unwrap();
            driver.remove(&subject.known(Some(place)), &subject).await;
        }
    });
    let begun = tokio::time::Instant::now();
    futures_util::future::join_all(lives).await;
    assert_eq!(emulator.ledger().alive(), []);
    assert_eq!(emulator.ledger().doubled(), Vec::<String>::new());
    assert!(
        emulator.held_off() < 40,
        "{} calls were too many",
        emulator.held_off()
    );
    assert!(
        begun.elapsed() < Duration::from_secs(600),
        "{:?}",
        begun.elapsed()
    );
}

fn one_of(subject: &Subject<Machine>) -> Subject<Machine> {
    Subject {
        lifecycle: subject.lifecycle,
        want: subject.want.clone(),
        asked: subject.asked,
        marks: subject.marks.clone(),
        site: subject.site.clone(),
        problem: subject.problem,
        called: subject.called,
    }
}

/// Of plain Ubuntu, reached at the ports of a gateway, without what jobs may do in the account.
#[tokio::test(start_paused = true)]
async fn a_gateway_runs_on_a_small_machine_that_is_open_to_clients() {
    let (emulator, cloud) =
        emulated(&json!({"regions": [HOME], "vm_managed_identity": "dstack-main/runners"}));
    let subject = gateway(&cloud, HOME);
    let place = Driver::new(&cloud).make(&subject).await.unwrap();
    assert_eq!(place.instance_id, subject.marks.name(60));
    assert_eq!(
        (place.ip_address.as_str(), place.region.as_str()),
        ("203.0.113.77", HOME)
    );
    let asked = emulator.asked(&place.instance_id).unwrap();
    assert_eq!(asked.get("identity"), None);
    let properties = &asked["properties"];
    assert_eq!(properties["hardwareProfile"]["vmSize"], "Standard_B1ms");
    assert_eq!(properties["priority"], "Regular");
    assert_eq!(
        properties["storageProfile"]["imageReference"],
        json!({"publisher": "canonical", "offer": "0001-com-ubuntu-server-jammy", "sku": "22_04-lts-gen2", "version": "latest"})
    );
    assert_eq!(properties["storageProfile"]["osDisk"]["diskSizeGB"], 30);
    let system = &properties["osProfile"];
    assert_eq!(
        (&system["computerName"], &system["adminUsername"]),
        (&json!("gatewayvm"), &json!("ubuntu"))
    );
    let keys = &system["linuxConfiguration"]["ssh"]["publicKeys"];
    assert_eq!(
        keys,
        &json!([{"path": "/home/ubuntu/.ssh/authorized_keys", "keyData": subject.want.authorized_keys[0]}])
    );
    let group = security_group_of(&asked);
    assert_eq!(group, "dstack-main-eastus-gateway-security-group");
    let shared = emulator.shared();
    let (_, group) = shared.iter().find(|(name, _)| *name == group).unwrap();
    assert_eq!(
        group["properties"]["securityRules"],
        json!([{"name": "gateway_all", "properties": {"protocol": "Tcp", "sourceAddressPrefix": "Internet", "sourcePortRange": "*",
            "destinationAddressPrefix": "*", "destinationPortRanges": ["22", "80", "443"], "access": "Allow", "priority": 101,
            "direction": "Inbound"}}])
    );
}

fn security_group_of(asked: &Value) -> String {
    let nic = &asked["properties"]["networkProfile"]["networkInterfaceConfigurations"][0]["properties"];
    let id = nic["networkSecurityGroup"]["id"].as_str().unwrap();
    id.rsplit('/').next().unwrap().to_owned()
}

/// A gateway has an address where machines for jobs have none, and is of any newer size; jobs keep their security group.
#[tokio::test(start_paused = true)]
async fn a_gateway_has_an_address_and_the_size_that_is_asked_for() {
    let (emulator, cloud) =
        emulated(&json!({"regions": [HOME], "vpc_ids": {HOME: "net/open"}, "public_ips": false}));
    emulator.add_network("net", "open", HOME, &["a", "b"], &["b"]);
    let backend = cloud.open();
    let mut subject = gateway(&cloud, HOME);
    subject.want.instance_type = Some("Standard_D2s_v6".to_owned());
    let place = Driver::with_backend(&cloud, backend.clone())
        .make(&subject)
        .await
        .unwrap();
    assert_eq!(place.ip_address, "203.0.113.77");
    let of_gateway = emulator.asked(&place.instance_id).unwrap();
    assert_eq!(
        of_gateway["properties"]["hardwareProfile"]["vmSize"],
        "Standard_D2s_v6"
    );
    let subject = machine(&cloud).await;
    let place = Driver::with_backend(&cloud, backend)
        .make(&subject)
        .await
        .unwrap();
    assert_eq!(place.hostname.as_deref(), Some("10.0.0.7"));
    let of_jobs = emulator.asked(&place.instance_id).unwrap();
    assert_eq!(
        [&of_gateway, &of_jobs].map(security_group_of),
        [
            "dstack-main-eastus-gateway-security-group",
            "dstack-main-eastus-default-security-group"
        ]
    );
}

#[tokio::test(start_paused = true)]
async fn what_no_gateway_can_be_is_refused() {
    let (emulator, cloud) = prepared(&[HOME]);
    let mut private = gateway(&cloud, HOME);
    private.want.is_public = false;
    let error = Driver::new(&cloud).make(&private).await.unwrap_err();
    assert!(matches!(error, ComputeError::Unsupported(_)), "{error:?}");
    // Users write it.
    let elsewhere = gateway(&cloud, "eastus/../..");
    let error = Driver::new(&cloud).make(&elsewhere).await.unwrap_err();
    assert!(matches!(error, ComputeError::Refused(_)), "{error:?}");
    assert_eq!(emulator.ledger().count(), 0);
}
