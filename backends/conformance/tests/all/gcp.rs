use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use dstack_backend_kit::{
    Cloud, Driver, Fault, Notes, Subject, attachment, checks, checks_of, extended, gateway, group_of,
    load_balancer, machine, machine_in, machine_of, placement, requirements, volume, with_machine,
    with_machines_in,
};
use dstack_compute::{
    Attachment, AttachmentSite, Balancing, ComputeError, ConfigureError, GatewayMachine, Group, JobNeeds,
    Known, LoadBalancer, Machine, MountedFolder, MountedVolume, OwnedKind, Placement, Removal, Sign, Step,
    Volume, VolumeRequest,
};
use dstack_emulator_gcp::{
    AUDIENCE, CLIENT_SECRET, EMAIL, Gcp, HOME, HOST_PROJECT, KEY, KEY_ID, OTHER, PROJECT, PROVIDER_URL,
    REFRESH_TOKEN, Reservation, SUBJECT_TOKEN,
};
use dstack_model::gateways::{
    AnyGatewayCertificate, GatewayLoadBalancerData, GatewayReplicaProvisioningData,
};
use dstack_model::instances::{InstanceAvailability, InstanceRuntime};
use dstack_model::offers::InstanceOfferWithAvailability;
use dstack_model::runs::Requirements;
use futures_util::future::join_all;
use serde_json::{Value, json};

/// As Google's console gives it.
fn key(more: &Value) -> Value {
    let key = json!({"type": "service_account", "project_id": PROJECT, "private_key_id": KEY_ID, "private_key": KEY,
        "client_email": EMAIL, "client_id": "1", "token_uri": "https://oauth2.googleapis.com/token"});
    let key = extended(key, more);
    json!({"type": "service_account", "filename": "key.json", "data": key.to_string()})
}

fn config(more: &Value) -> Value {
    let config =
        json!({"type": "gcp", "project_id": PROJECT, "regions": [HOME, OTHER], "creds": key(&json!({}))});
    extended(config, more)
}

fn cloud_with(more: &Value) -> (Cloud, Gcp) {
    let emulator = Gcp::default();
    let refused = vec![
        (
            config(
                &json!({"creds": key(&json!({"client_email": "other@a-project.iam.gserviceaccount.com"}))}),
            ),
            &["creds.data"][..],
        ),
        (
            config(&json!({"creds": key(&json!({"private_key_id": "another"}))})),
            &["creds.data"],
        ),
        (
            config(&json!({"creds": key(&json!({"private_key": "no key"}))})),
            &["creds.data"],
        ),
        (
            config(&json!({"creds": key(&federated(&json!({})))})),
            &["creds.data"],
        ),
        (
            config(&json!({"creds": {"type": "service_account", "filename": "", "data": "{"}})),
            &["creds.data"],
        ),
        (config(&json!({"project_id": "no-project"})), &["creds.data"]),
    ];
    let cloud = Cloud::new(
        Arc::new(emulator.clone()),
        dstack_backend_gcp::kind,
        config(more),
        refused,
    );
    (cloud, emulator)
}

fn cloud() -> Cloud {
    cloud_with(&json!({})).0
}

pub(crate) async fn one_machine() -> (Cloud, Subject<Machine>) {
    with_machine(cloud()).await
}

async fn machines_in_two_regions() -> (Cloud, Vec<Subject<Machine>>) {
    with_machines_in(cloud(), &[HOME, OTHER, HOME]).await
}

fn wanted(more: &Value) -> Requirements {
    let all = json!({"resources": {"cpu": "1..", "memory": "1GB..", "disk": "100GB..", "gpu": "0.."}});
    requirements(&extended(all, more))
}

/// A machine of a type in the first region.
async fn machine_named(cloud: &Cloud, machine_type: &str, spot: bool) -> Subject<Machine> {
    machine_of(cloud, &wanted(&json!({"spot": spot})), |offer| {
        offer.instance.name == machine_type && &*offer.region == HOME
    })
    .await
}

checks_of!(machines: one_machine, machines_in_two_regions);
checks_of!(volumes: one_volume, volumes_in_two_regions);
checks_of!(tpus: one_tpu, tpus_in_two_regions;
    whole_life, sold_out, loss, another_attempt, neighbours, left_behind, removed_before_listed, any_fault_anywhere, soak);
checks_of!(pods: one_pod, pods_in_two_regions);
checks_of!(placement_groups: one_group, groups_in_two_regions;
    whole_life, sold_out, any_fault_anywhere, another_attempt, neighbours, left_behind, removed_before_listed, soak);

fn disk(more: &Value) -> Value {
    let disk = json!({"type": "volume", "backend": "gcp", "name": "data", "region": HOME, "size": "100GB"});
    extended(disk, more)
}

async fn one_volume() -> (Cloud, Subject<Volume>) {
    let cloud = cloud();
    let subject = volume(&cloud, &disk(&json!({})));
    (cloud, subject)
}

async fn volumes_in_two_regions() -> (Cloud, Vec<Subject<Volume>>) {
    let cloud = cloud();
    let subjects = [HOME, OTHER, HOME].map(|region| volume(&cloud, &disk(&json!({"region": region}))));
    (cloud, subjects.into())
}

#[tokio::test(start_paused = true)]
async fn credentials() {
    checks::credentials(&cloud()).await;
}

#[tokio::test(start_paused = true)]
async fn offers() {
    checks::offers(&cloud()).await;
}

#[tokio::test(start_paused = true)]
async fn a_region_that_is_away_hides_no_other() {
    let cloud = cloud();
    let subjects = [machine_in(&cloud, HOME).await, machine_in(&cloud, OTHER).await];
    checks::a_place_away(&cloud, &subjects, OTHER).await;
}

/// The environment of a process cannot be changed: others of this test have the credentials.
#[tokio::test(start_paused = true)]
async fn the_credentials_of_this_machine_are_taken_where_that_is_configured() {
    let name = "gcp::the_credentials_of_this_machine_are_taken_where_that_is_configured";
    let Some(what) = dstack_system::env::var("DSTACK_TEST_GCP_CREDENTIALS") else {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("credentials.json");
        let login = |token: &str| json!({"type": "authorized_user", "client_id": "1", "client_secret": CLIENT_SECRET, "refresh_token": token});
        let data = key(&json!({}))["data"].as_str().unwrap().to_owned();
        for (what, text) in [
            ("good", Some(login(REFRESH_TOKEN).to_string())),
            ("good", Some(data)),
            ("good", None),
            ("bad", Some(login("another").to_string())),
            ("bad", Some("no JSON".to_owned())),
        ] {
            let mut command = Command::new(std::env::current_exe().unwrap());
            command.args(["--exact", name, "--nocapture"]).env_clear();
            command
                .env("DSTACK_TEST_GCP_CREDENTIALS", what)
                .env("HOME", folder.path());
            if let Some(text) = &text {
                fs_err::write(&file, text).unwrap();
                command.env("GOOGLE_APPLICATION_CREDENTIALS", &file);
            }
            let output = command.output().unwrap();
            let shown = String::from_utf8_lossy(&output.stdout).into_owned();
            assert!(
                output.status.success() && shown.contains("1 passed"),
                "{what} {text:?}: {output:?}"
            );
        }
        return;
    };
    let (cloud, emulator) = cloud_with(&json!({"creds": {"type": "default"}}));
    emulator.has_metadata();
    match what.as_str() {
        "good" => {
            cloud.configure(&cloud.config).await.unwrap();
        }
        _ => {
            let error = cloud.configure(&cloud.config).await.unwrap_err();
            let ConfigureError::Credentials { fields, .. } = &error else {
                panic!("{error:?}")
            };
            assert_eq!(*fields, [["creds"]]);
            assert!(!format!("{error:?}").contains(CLIENT_SECRET), "{error:?}");
        }
    }
}

/// What Google knows a workload elsewhere by.
fn federated(more: &Value) -> Value {
    let file = json!({"type": "external_account", "audience": AUDIENCE, "token_url": "https://sts.googleapis.com/v1/token",
        "subject_token_type": "urn:ietf:params:oauth:token-type:jwt", "credential_source": {"file": "token"}});
    extended(file, more)
}

/// As for the credentials of this machine.
#[tokio::test(start_paused = true)]
async fn a_workload_elsewhere_is_known_by_the_token_of_its_provider() {
    let name = "gcp::a_workload_elsewhere_is_known_by_the_token_of_its_provider";
    let Some(expected) = dstack_system::env::var("DSTACK_TEST_GCP_FEDERATION") else {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("credentials.json");
        let token = folder.path().join("token");
        fs_err::write(&token, format!("{SUBJECT_TOKEN}\n")).unwrap();
        let wrong = folder.path().join("wrong");
        fs_err::write(&wrong, "wrong-canary-0f1e2d3c").unwrap();
        let of_file =
            |more: &Value| extended(federated(&json!({"credential_source": {"file": token}})), more);
        let account = |email: &str| {
            let base = "https://iamcredentials.googleapis.com/v1/projects/-/serviceAccounts";
            json!({"service_account_impersonation_url": format!("{base}/{email}:generateAccessToken")})
        };
        let of_url = |secret: &str| {
            json!({"credential_source": {"url": PROVIDER_URL, "headers": {"X-Client-Secret": secret},
                "format": {"type": "json", "subject_token_field_name": "value"}}})
        };
        for (text, expected) in [
            (of_file(&json!({})), "good"),
            (of_file(&account(EMAIL)), "good"),
            (federated(&of_url(CLIENT_SECRET)), "good"),
            (
                extended(federated(&of_url(CLIENT_SECRET)), &account(EMAIL)),
                "good",
            ),
            (
                federated(&of_url("another")),
                "provider.example refuses the subject token: 403",
            ),
            (
                of_file(
                    &json!({"audience": "//iam.googleapis.com/projects/2/locations/global/workloadIdentityPools/x/providers/y"}),
                ),
                "invalid_target",
            ),
            (
                federated(&json!({"credential_source": {"file": wrong}})),
                "invalid_grant",
            ),
            (
                federated(&json!({"credential_source": {"file": folder.path().join("none")}})),
                "the subject token: ",
            ),
            (
                federated(
                    &json!({"credential_source": {"file": wrong, "format": {"type": "json", "subject_token_field_name": "value"}}}),
                ),
                "no subject token in `value`",
            ),
            (
                of_file(&account("other@a-project.iam.gserviceaccount.com")),
                "iam.serviceAccounts.getAccessToken",
            ),
            (
                of_file(&json!({"token_url": "https://sts.googleapis.com.evil.example/v1/token"})),
                "`token_url`",
            ),
        ] {
            fs_err::write(&file, text.to_string()).unwrap();
            let mut command = Command::new(std::env::current_exe().unwrap());
            command.args(["--exact", name, "--nocapture"]).env_clear();
            command
                .env("DSTACK_TEST_GCP_FEDERATION", expected)
                .env("HOME", folder.path())
                .env("GOOGLE_APPLICATION_CREDENTIALS", &file);
            let output = command.output().unwrap();
            let shown = String::from_utf8_lossy(&output.stdout).into_owned();
            assert!(
                output.status.success() && shown.contains("1 passed"),
                "{expected} {text}: {output:?}"
            );
        }
        return;
    };
    let (cloud, emulator) = cloud_with(&json!({"creds": {"type": "default"}}));
    if expected == "good" {
        cloud.configure(&cloud.config).await.unwrap();
        assert_eq!(emulator.tokens(), 1, "one token is used for all");
        return;
    }
    let error = cloud.configure(&cloud.config).await.unwrap_err();
    let ConfigureError::Credentials { fields, details } = &error else {
        panic!("{error:?}")
    };
    assert_eq!(*fields, [["creds"]]);
    assert!(details.as_ref().unwrap().contains(&expected), "{details:?}");
    assert!(!format!("{error:?}").contains("canary"), "{error:?}");
}

#[tokio::test(start_paused = true)]
async fn a_token_is_used_until_shortly_before_its_end() {
    let (cloud, emulator) = cloud_with(&json!({}));
    let backend = cloud.open();
    for _ in 0..3 {
        backend.inventory().await.unwrap();
    }
    assert_eq!(emulator.tokens(), 1);
    tokio::time::sleep(Duration::from_secs(3400)).await;
    backend.inventory().await.unwrap();
    assert_eq!(emulator.tokens(), 2);
    // One that was revoked is replaced at once, once for all who asked with it.
    emulator.revoke();
    let (one, other) = tokio::join!(backend.inventory(), backend.inventory());
    one.unwrap();
    other.unwrap();
    assert_eq!(emulator.tokens(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_configuration_is_checked_in_each_of_its_regions() {
    let (cloud, emulator) = cloud_with(&json!({}));
    emulator.add_network("private", &[(HOME, "one"), (HOME, "two"), (OTHER, "three")]);
    emulator.add_network("small", &[(HOME, "only")]);
    for good in [
        json!({}),
        json!({"vpc_name": "private", "subnetworks": {HOME: "two"}}),
        json!({"vpc_name": "shared", "vpc_project_id": HOST_PROJECT, "public_ips": false}),
        json!({"public_ips": false, "nat_check": false}),
    ] {
        let stored = cloud.configure(&config(&good)).await.unwrap();
        assert_eq!(stored["regions"], json!([HOME, OTHER]));
    }
    for (bad, expected) in [
        (
            json!({"regions": null}),
            "no subnetwork in northamerica-northeast1",
        ),
        (
            json!({"vpc_name": "small"}),
            "the VPC small has no subnetwork in europe-west4",
        ),
        (
            json!({"vpc_name": "none"}),
            "the VPC none has no subnetwork in us-central1",
        ),
        (
            json!({"vpc_name": "private", "subnetworks": {HOME: "three"}}),
            "no subnetwork three in us-central1",
        ),
        (
            json!({"subnetworks": {HOME: "two"}}),
            "`vpc_name` must be specified",
        ),
        (
            json!({"vpc_name": "private", "subnetworks": {"us-east1": "x"}}),
            "for regions not in `regions`: [\"us-east1\"]",
        ),
        (json!({"vpc_project_id": "nobody"}), "there is no project nobody"),
        (json!({"vpc_project_id": "../x"}), "no name of Google's"),
        (
            json!({"public_ips": false}),
            "no Cloud NAT in [\"us-central1\", \"europe-west4\"]",
        ),
        (json!({"tags": {"Team": "x"}}), "`Team`"),
        (json!({"vpc_name": "../x"}), "no name of Google's"),
        (json!({"roce_vpcs": ["a", "b"]}), "`roce_vpcs`"),
    ] {
        match cloud.configure(&config(&bad)).await.unwrap_err() {
            ConfigureError::Invalid(text) => assert!(text.contains(expected), "{bad}: {text}"),
            other @ ConfigureError::Credentials { .. } => panic!("{bad}: {other:?}"),
        }
    }
    emulator.add_nat(HOME);
    emulator.add_nat(OTHER);
    cloud
        .configure(&config(&json!({"public_ips": false})))
        .await
        .unwrap();
    emulator.disable("compute");
    let error = cloud.configure(&config(&json!({}))).await.unwrap_err();
    let ConfigureError::Credentials { details, .. } = error else {
        panic!("{error:?}")
    };
    assert!(details.unwrap().contains("Enable it by visiting"));
}

#[tokio::test(start_paused = true)]
async fn offers_are_of_regions_and_tell_zones_and_quotas() {
    let (cloud, emulator) = cloud_with(&json!({}));
    emulator.set_quota(HOME, "NVIDIA_L4_GPUS", 4.0, 3.0);
    emulator.set_quota(HOME, "PREEMPTIBLE_NVIDIA_L4_GPUS", 16.0, 0.0);
    let offers = cloud.offers(&wanted(&json!({}))).await;
    assert!(offers.iter().all(|offer| [HOME, OTHER].contains(&&*offer.region)));
    let told = |machine_type: &str, region: &str, spot: bool| {
        let mut found = offers.iter().filter(|offer| {
            let instance = &offer.instance;
            instance.name == machine_type && &*offer.region == region && instance.resources.spot == spot
        });
        let offer = found.next().unwrap_or_else(|| panic!("{machine_type}"));
        assert!(found.next().is_none(), "{machine_type} is offered twice");
        (offer.availability, offer.availability_zones.clone().unwrap())
    };
    let (availability, zones) = told("e2-standard-2", HOME, false);
    assert_eq!(availability, InstanceAvailability::Unknown);
    assert!(
        zones.len() > 1 && zones.iter().all(|zone| zone.starts_with("us-central1-")),
        "{zones:?}"
    );
    assert_eq!(
        told("g2-standard-4", HOME, false).0,
        InstanceAvailability::Unknown
    );
    assert_eq!(
        told("g2-standard-24", HOME, false).0,
        InstanceAvailability::NoQuota
    );
    assert_eq!(
        told("g2-standard-24", HOME, true).0,
        InstanceAvailability::Unknown
    );
    assert_eq!(
        told("g2-standard-4", OTHER, false).0,
        InstanceAvailability::NoQuota
    );
    assert_eq!(
        told("a3-megagpu-8g", HOME, false).0,
        InstanceAvailability::Unknown
    );
    // What cannot be read is not nothing.
    let (hidden, emulator) = cloud_with(&json!({}));
    emulator.hide_quotas(HOME);
    let hidden = hidden.offers(&wanted(&json!({"spot": false}))).await;
    let of_g2 = |region: &str| {
        let mut all = hidden.iter();
        let is_it = |offer: &&InstanceOfferWithAvailability| {
            offer.instance.name == "g2-standard-4" && &*offer.region == region
        };
        all.find(is_it).unwrap().availability
    };
    assert_eq!(of_g2(HOME), InstanceAvailability::Unknown);
    assert_eq!(of_g2(OTHER), InstanceAvailability::NoQuota);
    // Types of any size with another number of GPUs are others.
    let with_t4 = offers
        .iter()
        .filter(|offer| offer.instance.name == "n1-standard-8" && &*offer.region == HOME);
    let mut counts: Vec<usize> = with_t4
        .filter(|offer| !offer.instance.resources.spot && offer.instance.resources.gpus[0].name == "T4")
        .map(|offer| offer.instance.resources.gpus.len())
        .collect();
    counts.sort_unstable();
    assert_eq!(counts, [1, 2, 4]);
    let names: Vec<&str> = offers.iter().map(|offer| offer.instance.name.as_str()).collect();
    assert!(
        !names
            .iter()
            .any(|name| name.starts_with("v5litepod") || name.starts_with("n1-standard-1-")),
        "{names:?}"
    );
    let is_in_advance = |offer: &InstanceOfferWithAvailability| {
        offer.backend_data.get("is_dws_calendar_mode") == Some(&json!(true))
    };
    assert!(!offers.iter().any(is_in_advance));
    // Parts of a GPU, of which Google's names are not known.
    let parts = offers
        .iter()
        .filter(|offer| offer.instance.name.starts_with("g4-"));
    let sizes: std::collections::BTreeSet<i64> = parts
        .flat_map(|offer| &offer.instance.resources.gpus)
        .map(|gpu| gpu.memory_mib / 1024)
        .collect();
    assert_eq!(sizes, [96].into());
}

#[tokio::test(start_paused = true)]
async fn machines_are_made_as_they_were_asked_for() {
    let (cloud, emulator) = cloud_with(
        &json!({"tags": {"team": "admins"}, "vm_service_account": "jobs@a-project.iam.gserviceaccount.com"}),
    );
    for metric in ["NVIDIA_L4_GPUS", "PREEMPTIBLE_NVIDIA_T4_GPUS", "NVIDIA_V100_GPUS"] {
        emulator.set_quota(HOME, metric, 8.0, 0.0);
    }
    for (machine_type, spot, image, disk) in [
        ("e2-standard-2", false, "dstack-0-14", "pd-balanced"),
        ("e2-standard-2", true, "dstack-0-14", "pd-balanced"),
        ("c4-standard-2", false, "dstack-0-14", "hyperdisk-balanced"),
        ("g2-standard-4", false, "dstack-cuda-0-14", "pd-balanced"),
    ] {
        let subject = machine_named(&cloud, machine_type, spot).await;
        let place = Driver::new(&cloud).make(&subject).await.unwrap();
        let asked = emulator.asked().pop().unwrap();
        let zone = place.availability_zone.clone().unwrap();
        assert_eq!(asked["name"], subject.marks.name(63));
        assert_eq!(place.instance_id, subject.marks.name(63));
        assert_eq!(
            asked["scheduling"]["provisioningModel"] == "SPOT",
            spot,
            "{machine_type}"
        );
        let boot = &asked["disks"][0]["initializeParams"];
        assert_eq!(
            boot["sourceImage"],
            format!("projects/dstack/global/images/{image}")
        );
        assert_eq!(boot["diskType"], format!("zones/{zone}/diskTypes/{disk}"));
        assert_eq!(boot["diskSizeGb"], "100");
        assert_eq!(asked["labels"]["team"], "admins", "administrators override users");
        assert_eq!(asked["labels"]["owner"], "dstack");
        assert_eq!(asked["tags"]["items"], json!(["dstack-runner-instance"]));
        assert_eq!(
            asked["serviceAccounts"][0]["email"],
            "jobs@a-project.iam.gserviceaccount.com"
        );
        let items = asked["metadata"]["items"].as_array().unwrap();
        assert!(
            items[0]["value"].as_str().unwrap().starts_with("#cloud-config\n"),
            "{items:?}"
        );
        assert!(
            items[1]["value"]
                .as_str()
                .unwrap()
                .starts_with("ubuntu:ssh-ed25519 "),
            "{items:?}"
        );
        let interface = &asked["networkInterfaces"][0];
        assert_eq!(
            interface["network"],
            format!("projects/{PROJECT}/global/networks/default")
        );
        assert_eq!(interface["accessConfigs"][0]["type"], "ONE_TO_ONE_NAT");
        assert_eq!(place.hostname.as_deref(), Some("203.0.113.70"));
        assert_eq!(place.internal_ip.as_deref(), Some("10.128.0.2"));
        assert_eq!(place.backend_data, Some(json!({"zone": zone}).to_string()));
        assert_eq!((place.username.as_str(), place.ssh_port), ("ubuntu", Some(22)));
    }
    let rules = emulator.firewalls();
    let [rule] = rules.as_slice() else {
        panic!("{rules:?}")
    };
    assert_eq!(
        rule["name"],
        format!("dstack-ssh-in-projects-{PROJECT}-global-networks-default")
    );
    assert_eq!(rule["targetTags"], json!(["dstack-runner-instance"]));
}

/// In the first region, not spot.
async fn with_gpus(cloud: &Cloud, gpus: &str) -> Subject<Machine> {
    let gpus = json!({"spot": false, "resources": {"cpu": "1..", "memory": "1GB..", "gpu": gpus}});
    machine_of(cloud, &wanted(&gpus), |offer| &*offer.region == HOME).await
}

#[tokio::test(start_paused = true)]
async fn gpus_that_do_not_come_with_the_type_are_asked_for() {
    let (cloud, emulator) = cloud_with(&json!({}));
    emulator.set_quota(HOME, "NVIDIA_T4_GPUS", 4.0, 0.0);
    let subject = with_gpus(&cloud, "T4:2").await;
    let place = Driver::new(&cloud).make(&subject).await.unwrap();
    let asked = emulator.asked().pop().unwrap();
    let zone = place.availability_zone.unwrap();
    let accelerator = format!("projects/{PROJECT}/zones/{zone}/acceleratorTypes/nvidia-tesla-t4");
    assert_eq!(
        asked["guestAccelerators"],
        json!([{"acceleratorCount": 2, "acceleratorType": accelerator}])
    );
    assert_eq!(asked["scheduling"], json!({"onHostMaintenance": "TERMINATE"}));
    // Its driver is of before Turing.
    emulator.set_quota(HOME, "NVIDIA_V100_GPUS", 4.0, 0.0);
    let subject = with_gpus(&cloud, "V100:1").await;
    Driver::new(&cloud).make(&subject).await.unwrap();
    let asked = emulator.asked().pop().unwrap();
    assert_eq!(
        asked["disks"][0]["initializeParams"]["sourceImage"],
        "projects/dstack/global/images/dstack-cuda-0-10"
    );
}

/// As dstack 0.22.5 has it (`services/backends/provisioning.py`).
#[tokio::test]
async fn jobs_on_machines_with_gpudirect_get_its_folders_and_devices() {
    let (cloud, _) = cloud_with(&json!({}));
    let of = |machine_type: &str| {
        let needs = cloud.kind.job_needs(machine_type);
        let mounts = needs.mounts.iter();
        let mounts: Vec<_> = mounts
            .map(|mount| format!("{}:{}", mount.on_machine, mount.in_container))
            .collect();
        assert!(!needs.has_efa);
        (mounts, needs.gpu_devices)
    };
    let (mounts, devices) = of("a3-megagpu-8g");
    assert_eq!(
        mounts,
        [
            "/dev/aperture_devices:/dev/aperture_devices",
            "/var/lib/tcpxo/lib64:/var/lib/tcpxo/lib64",
            "/var/lib/fastrak/lib64:/var/lib/fastrak/lib64"
        ]
    );
    assert!(devices.is_empty(), "{devices:?}");
    let (mounts, devices) = of("a3-highgpu-8g");
    assert_eq!(
        mounts,
        [
            "/var/lib/nvidia/lib64:/usr/local/nvidia/lib64",
            "/var/lib/nvidia/bin:/usr/local/nvidia/bin",
            "/var/lib/tcpx/lib64:/usr/local/tcpx/lib64",
            "/run/tcpx:/run/tcpx"
        ]
    );
    let gpus = (0..8).map(|number| format!("/dev/nvidia{number}"));
    let others = ["/dev/nvidia-uvm", "/dev/nvidiactl"].map(str::to_owned);
    let wanted: Vec<String> = gpus.chain(others).collect();
    assert_eq!(devices, wanted);
    assert_eq!(of("a3-edgegpu-8g"), (mounts, devices));
    for other in ["a3-ultragpu-8g", "a3-highgpu-4g", "n2-standard-2"] {
        assert_eq!(cloud.kind.job_needs(other), JobNeeds::NONE, "{other}");
    }
}

#[tokio::test(start_paused = true)]
async fn machines_with_many_interfaces_have_their_networks() {
    let extra: Vec<String> = (1..=8).map(|number| format!("gpu-{number}")).collect();
    let (cloud, emulator) = cloud_with(&json!({"extra_vpcs": extra, "roce_vpcs": ["rdma"]}));
    for name in &extra {
        emulator.add_network(name, &[(HOME, name)]);
    }
    let subnets: Vec<String> = (1..=8).map(|number| format!("rdma-{number}")).collect();
    let all: Vec<(&str, &str)> = subnets.iter().map(|name| (HOME, name.as_str())).collect();
    let subject = machine_named(&cloud, "a3-megagpu-8g", false).await;
    Driver::new(&cloud).make(&subject).await.unwrap();
    let asked = emulator.asked().pop().unwrap();
    let interfaces = asked["networkInterfaces"].as_array().unwrap();
    assert_eq!(interfaces.len(), 9);
    assert!(
        interfaces.iter().all(|one| one["nicType"] == "GVNIC"),
        "{interfaces:?}"
    );
    assert_eq!(
        interfaces[8]["subnetwork"],
        format!("projects/{PROJECT}/regions/{HOME}/subnetworks/gpu-8")
    );
    assert_eq!(
        asked["disks"][0]["initializeParams"]["sourceImage"],
        "projects/dstack/global/images/dstack-a3mega-5"
    );
    let user_data = asked["metadata"]["items"][0]["value"].as_str().unwrap();
    assert!(user_data.contains("nccl-plugin-gpudirecttcpx-dev"), "{user_data}");

    // These have half as many, and another system.
    let subject = machine_named(&cloud, "a3-highgpu-8g", false).await;
    Driver::new(&cloud).make(&subject).await.unwrap();
    let asked = emulator.asked().pop().unwrap();
    assert_eq!(asked["networkInterfaces"].as_array().unwrap().len(), 5);
    assert_eq!(
        asked["disks"][0]["initializeParams"]["sourceImage"],
        "projects/cos-cloud/global/images/family/cos-121-lts"
    );
    let user_data = asked["metadata"]["items"][0]["value"].as_str().unwrap();
    assert!(user_data.contains("cos-extensions install gpu"), "{user_data}");

    // Of a network for RDMA, only trying tells in which zone it is.
    let mut with_rdma = machine_named(&cloud, "a3-megagpu-8g", false).await;
    let mut instance = (*with_rdma.want.offer.instance).clone();
    instance.name = "a4-highgpu-8g".to_owned();
    for gpu in &mut instance.resources.gpus {
        gpu.name = "B200".to_owned();
        gpu.memory_mib = 180 * 1024;
    }
    with_rdma.want.offer.instance = Arc::new(instance);
    with_rdma.want.offer.availability_zones =
        Some(vec!["us-central1-a".to_owned(), "us-central1-b".to_owned()]);
    let error = Driver::new(&cloud).make(&with_rdma).await.unwrap_err();
    assert!(
        matches!(&error, ComputeError::Configuration(text) if text.contains("has 0")),
        "{error:?}"
    );
    emulator.add_rdma_network("rdma", "us-central1-b", &all);
    tokio::time::sleep(Duration::from_secs(121)).await;
    let place = Driver::new(&cloud).make(&with_rdma).await.unwrap();
    assert_eq!(place.availability_zone.as_deref(), Some("us-central1-b"));
    let asked = emulator.asked().pop().unwrap();
    let interfaces = asked["networkInterfaces"].as_array().unwrap();
    let kinds: Vec<&str> = interfaces
        .iter()
        .map(|one| one["nicType"].as_str().unwrap())
        .collect();
    assert_eq!(kinds, [&["GVNIC"; 2][..], &["MRDMA"; 8][..]].concat());
    assert_eq!(asked["guestAccelerators"][0]["acceleratorCount"], 8);
}

#[tokio::test(start_paused = true)]
async fn machines_of_a_shared_network_have_no_rule_made_and_private_addresses() {
    let (cloud, emulator) =
        cloud_with(&json!({"vpc_name": "shared", "vpc_project_id": HOST_PROJECT, "public_ips": false}));
    let subject = machine_named(&cloud, "e2-standard-2", false).await;
    let place = Driver::new(&cloud).make(&subject).await.unwrap();
    assert_eq!(place.hostname.as_deref(), Some("10.128.0.2"));
    assert!(!place.public_ip_enabled);
    assert_eq!(emulator.firewalls(), Vec::<Value>::new());
    let asked = emulator.asked().pop().unwrap();
    let interface = &asked["networkInterfaces"][0];
    assert_eq!(
        interface["subnetwork"],
        format!("projects/{HOST_PROJECT}/regions/{HOME}/subnetworks/shared-{HOME}")
    );
    assert_eq!(interface.get("accessConfigs"), None);
}

#[tokio::test(start_paused = true)]
async fn machines_are_put_into_subnetworks_that_take_them() {
    let (cloud, emulator) = cloud_with(&json!({"vpc_name": "mixed"}));
    let subnets = [(HOME, "proxy-only"), (HOME, "machines"), (OTHER, "others")];
    emulator.add_network("mixed", &subnets);
    let subject = machine_named(&cloud, "e2-standard-2", false).await;
    Driver::new(&cloud).make(&subject).await.unwrap();
    let asked = emulator.asked().pop().unwrap();
    assert_eq!(
        asked["networkInterfaces"][0]["subnetwork"],
        format!("projects/{PROJECT}/regions/{HOME}/subnetworks/machines")
    );
    // A list that lacks a region says nothing of the subnetworks there, and hides no other.
    emulator.unreachable(Some("us-central1-a"));
    let here = machine_named(&cloud, "e2-standard-2", false).await;
    let (backend, notes) = (cloud.open(), Notes::default());
    let made = notes.ensure(&cloud, &*backend, &here).await;
    assert!(matches!(made, Err(ComputeError::NotReady(_))), "{made:?}");
    let elsewhere = machine_in(&cloud, OTHER).await;
    let place = Driver::with_backend(&cloud, backend.clone())
        .make(&elsewhere)
        .await
        .unwrap();
    assert_eq!(place.region, OTHER);
    match cloud.configure(&cloud.config).await.unwrap_err() {
        ConfigureError::Invalid(text) => assert!(text.contains("Try again later"), "{text}"),
        other @ ConfigureError::Credentials { .. } => panic!("{other:?}"),
    }
    emulator.unreachable(None);
    Driver::with_backend(&cloud, backend).make(&here).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn zones_are_tried_one_after_the_other() {
    let (cloud, emulator) = cloud_with(&json!({}));
    let subject = machine_named(&cloud, "e2-standard-2", false).await;
    let zones = subject.want.offer.availability_zones.clone().unwrap();
    assert!(zones.len() > 2, "{zones:?}");
    emulator.fill(&zones[0]);
    emulator.lack(&zones[1], "e2-standard-2");
    let place = Driver::new(&cloud).make(&subject).await.unwrap();
    assert_eq!(place.availability_zone.as_ref(), Some(&zones[2]));
    for zone in &zones {
        emulator.fill(zone);
    }
    let mut subject = machine_named(&cloud, "e2-standard-2", false).await;
    let error = Driver::new(&cloud).make(&subject).await.unwrap_err();
    assert!(
        matches!(&error, ComputeError::NoCapacity(text) if text.contains("does not have enough resources")),
        "{error:?}"
    );
    subject.want.offer.availability_zones = Some(Vec::new());
    let error = Driver::new(&cloud).make(&subject).await.unwrap_err();
    assert!(
        matches!(&error, ComputeError::NoCapacity(text) if text.contains("no zone")),
        "{error:?}"
    );
    assert_eq!(cloud.emulator.ledger().count(), 1);
}

/// A server that is killed while it notes which zone is next makes no circles.
#[tokio::test(start_paused = true)]
async fn a_choice_whose_note_was_cut_off_is_made_anew() {
    let (cloud, emulator) = cloud_with(&json!({}));
    let subject = machine_named(&cloud, "e2-standard-2", false).await;
    let zones = subject.want.offer.availability_zones.clone().unwrap();
    emulator.fill(&zones[0]);
    emulator.fill(&zones[1]);
    let clock = &cloud.env.clock;
    let begun = clock.now();
    let notes = Notes::of(json!({"choice of the instance": {"state": "asked", "at": begun}}));
    let place = notes.make(&cloud, &*cloud.open(), &subject).await.unwrap();
    assert_eq!(place.availability_zone.as_ref(), Some(&zones[2]));
    assert!(
        clock.now() < begun + Duration::from_secs(100),
        "the zone that is full was tried again"
    );
}

#[tokio::test(start_paused = true)]
async fn refusals_are_told_apart() {
    let (cloud, emulator) = cloud_with(&json!({}));
    for (status, code, is_expected) in [
        (
            403,
            "QUOTA_EXCEEDED",
            (|error| matches!(error, ComputeError::NoQuota(_))) as fn(&ComputeError) -> bool,
        ),
        (503, "ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS", |error| {
            matches!(error, ComputeError::NoCapacity(_))
        }),
        (400, "INVALID_USAGE", |error| {
            matches!(error, ComputeError::Refused(_))
        }),
    ] {
        emulator.fail("e2-standard-2", status, code);
        let subject = machine_named(&cloud, "e2-standard-2", false).await;
        let error = Driver::new(&cloud).make(&subject).await.unwrap_err();
        assert!(is_expected(&error), "{code}: {error:?}");
    }
    let subject = machine_named(&cloud, "e2-standard-4", false).await;
    for permission in ["compute.instances.create", "compute.firewalls.create"] {
        let (cloud, emulator) = cloud_with(&json!({}));
        emulator.deny(permission);
        let error = Driver::new(&cloud).make(&subject).await.unwrap_err();
        assert!(
            matches!(&error, ComputeError::Credentials(text) if text.contains(&format!("`{permission}`"))),
            "{error:?}"
        );
    }
    emulator.disable("compute");
    let error = Driver::new(&cloud).make(&subject).await.unwrap_err();
    assert!(
        matches!(&error, ComputeError::Configuration(text) if text.contains("Compute Engine API")),
        "{error:?}"
    );
    assert_eq!(cloud.emulator.ledger().count(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_spot_machine_that_is_taken_back_is_told_of() {
    let (cloud, emulator) = cloud_with(&json!({}));
    let subject = machine_named(&cloud, "e2-standard-2", true).await;
    let driver = Driver::new(&cloud);
    let known = subject.known(Some(driver.make(&subject).await.unwrap()));
    let backend = cloud.open();
    let look = async || subject.sign(&*backend, &known).await.unwrap();
    assert_eq!(look().await, Sign::Well);
    emulator.preempt();
    let sign = look().await;
    assert!(
        matches!(&sign, Sign::Ending { why, .. } if why.contains("spot")),
        "{sign:?}"
    );
    tokio::time::sleep(Duration::from_secs(60)).await;
    let sign = look().await;
    assert!(
        matches!(&sign, Sign::Lost(why) if why.contains("spot")),
        "{sign:?}"
    );
    // It is stopped, and its disk costs money until it is deleted.
    assert_eq!(cloud.emulator.ledger().alive().len(), 1);
    driver.remove(&known, &subject).await;
    assert_eq!(cloud.emulator.ledger().alive(), []);
}

/// Of dstack 0.22.5 nothing was noted, and its oldest rows have a zone for a region.
#[tokio::test(start_paused = true)]
async fn machines_of_older_rows_are_found() {
    let cloud = cloud();
    let subject = machine_named(&cloud, "e2-standard-2", false).await;
    let mut place = Driver::new(&cloud).make(&subject).await.unwrap();
    place.region = place.availability_zone.take().unwrap();
    place.backend_data = None;
    let known = subject.known(Some(place));
    let sign = subject.sign(&*cloud.open(), &known).await;
    assert_eq!(sign, Some(Sign::Well));
    Driver::new(&cloud).remove(&known, &subject).await;
    assert_eq!(cloud.emulator.ledger().alive(), []);
}

#[tokio::test(start_paused = true)]
async fn an_inventory_that_lacks_a_zone_is_an_error() {
    let (cloud, emulator) = cloud_with(&json!({}));
    let subject = machine_named(&cloud, "e2-standard-2", false).await;
    let place = Driver::new(&cloud).make(&subject).await.unwrap();
    let backend = cloud.open();
    assert_eq!(backend.inventory().await.unwrap().len(), 1);
    emulator.unreachable(place.availability_zone.as_deref());
    backend.inventory().await.unwrap_err();
    emulator.unreachable(None);
    assert_eq!(backend.inventory().await.unwrap().len(), 1);
}

/// What a request that was lost makes in one zone is not forgotten for another one.
#[tokio::test(start_paused = true)]
async fn a_late_request_makes_no_second_machine() {
    for nth in 1..40 {
        let (cloud, emulator) = cloud_with(&json!({}));
        let subject = machine_named(&cloud, "e2-standard-2", false).await;
        let zones = subject.want.offer.availability_zones.clone().unwrap();
        emulator.fill(&zones[0]);
        cloud.faults().at(nth, Fault::Late(Duration::from_secs(100)));
        let driver = Driver::new(&cloud);
        let place = driver.make(&subject).await.unwrap();
        tokio::time::sleep(Duration::from_secs(600)).await;
        assert_eq!(cloud.emulator.ledger().count(), 1, "request {nth}");
        driver.remove(&subject.known(Some(place)), &subject).await;
        assert_eq!(cloud.emulator.ledger().alive(), [], "request {nth}");
        if !cloud.faults().happened() {
            assert!(nth > 5, "only {nth} requests");
            return;
        }
    }
    panic!("a life of more requests");
}

#[tokio::test(start_paused = true)]
async fn a_volume_is_made_in_the_zone_that_is_named() {
    let (cloud, emulator) = cloud_with(&json!({}));
    let subject = volume(
        &cloud,
        &disk(&json!({"availability_zone": "us-central1-c", "tags": {"team": "disks"}})),
    );
    let place = Driver::new(&cloud).make(&subject).await.unwrap();
    assert_eq!(place.availability_zone.as_deref(), Some("us-central1-c"));
    assert_eq!((place.size_gb, place.price), (Some(100), Some(12.0)));
    let data: Value = serde_json::from_str(place.backend_data.as_deref().unwrap()).unwrap();
    assert_eq!(data, json!({"type": "disk", "disk_type": "pd-balanced"}));
    for (more, expected) in [
        (
            json!({"availability_zone": "us-central1-z"}),
            "no such zone in us-central1",
        ),
        (json!({"region": "nowhere"}), "no such zone in nowhere"),
        (json!({"size": "1GB"}), "from 10 to 65536 GB"),
    ] {
        let subject = volume(&cloud, &disk(&more));
        let error = Driver::new(&cloud).make(&subject).await.unwrap_err();
        assert!(error.to_string().contains(expected), "{more}: {error:?}");
    }
    // One of others is registered, and has no price.
    emulator.add_disk("us-central1-b", "theirs", 50);
    let backend = cloud.open();
    let register = async |more: &Value| {
        let request = VolumeRequest {
            ..volume(&cloud, &disk(more)).want
        };
        backend.volumes().unwrap().register(&request).await
    };
    let registered = register(&json!({"volume_id": "theirs", "size": null}))
        .await
        .unwrap();
    assert_eq!((registered.size_gb, registered.price), (Some(50), None));
    assert_eq!(registered.availability_zone.as_deref(), Some("us-central1-b"));
    for (id, region) in [("theirs", OTHER), ("none", HOME), ("../x", HOME)] {
        let error = register(&json!({"volume_id": id, "region": region, "size": null}))
            .await
            .unwrap_err();
        assert!(matches!(error, ComputeError::Refused(_)), "{id}: {error:?}");
    }
}

/// A machine and a volume that are there, and are no concern of the books.
async fn site(cloud: &Cloud, emulator: &Gcp) -> AttachmentSite {
    let subject = machine_named(cloud, "e2-standard-2", false).await;
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

async fn one_attachment() -> (Cloud, Subject<Attachment>) {
    let (cloud, emulator) = cloud_with(&json!({}));
    let subject = attachment(&cloud, site(&cloud, &emulator).await);
    (cloud, subject)
}

#[tokio::test(start_paused = true)]
async fn whatever_happens_a_volume_is_attached_once() {
    checks::any_fault_anywhere(one_attachment).await;
}

#[tokio::test(start_paused = true)]
async fn a_volume_is_attached_and_detached() {
    let (cloud, emulator) = cloud_with(&json!({}));
    let site = site(&cloud, &emulator).await;
    let subject = attachment(&cloud, site.clone());
    let driver = Driver::new(&cloud);
    let place = driver.make(&subject).await.unwrap();
    assert_eq!(place.device_name, Some(format!("pd-{}", site.volume.volume_id)));
    assert_eq!(driver.make(&subject).await.unwrap(), place);
    let backend = cloud.open();
    let known = subject.known(Some(place));
    assert_eq!(subject.sign(&*backend, &known).await, Some(Sign::Well));
    let owned = backend.inventory().await.unwrap();
    let owned = owned.iter().find(|one| one.kind == OwnedKind::Volume).unwrap();
    let error = backend.remove_owned(owned).await.unwrap_err();
    assert!(matches!(error, ComputeError::InUse(_)), "{error:?}");
    // Another machine cannot have it.
    let other = machine_named(&cloud, "e2-standard-2", false).await;
    let machine = Driver::new(&cloud).make(&other).await.unwrap();
    let second = AttachmentSite {
        machine,
        ..site.clone()
    };
    let error = Driver::new(&cloud)
        .make(&attachment(&cloud, second))
        .await
        .unwrap_err();
    assert!(matches!(error, ComputeError::InUse(_)), "{error:?}");
    for _ in 0..2 {
        driver.remove(&known, &subject).await;
        let sign = subject.sign(&*backend, &known).await;
        assert!(matches!(sign, Some(Sign::Lost(_))), "{sign:?}");
    }
    backend.remove_owned(owned).await.unwrap();
    // Types with hyperdisks only take none.
    let mut without = site;
    without.machine.instance_type.name = "c4-standard-2".to_owned();
    let error = Driver::new(&cloud)
        .make(&attachment(&cloud, without))
        .await
        .unwrap_err();
    assert!(
        matches!(&error, ComputeError::Refused(text) if text.contains("no persistent disks")),
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
    let backend = cloud.open();
    let owned = backend.inventory().await.unwrap();
    let machine = owned.iter().find(|one| one.kind == OwnedKind::Machine).unwrap();
    backend.remove_owned(machine).await.unwrap();
    driver.remove(&subject.known(Some(place)), &subject).await;
    assert_eq!(cloud.emulator.ledger().alive(), []);
}

async fn one_group() -> (Cloud, Subject<Placement>) {
    let cloud = cloud();
    let subject = placement(&cloud, HOME, "n2-standard-2");
    (cloud, subject)
}

async fn groups_in_two_regions() -> (Cloud, Vec<Subject<Placement>>) {
    let cloud = cloud();
    let subjects = [HOME, OTHER, HOME].map(|region| placement(&cloud, region, "n2-standard-2"));
    (cloud, subjects.into())
}

#[tokio::test(start_paused = true)]
async fn a_placement_group_is_deleted_once_no_machine_is_in_it() {
    let (cloud, emulator) = cloud_with(&json!({}));
    let group = placement(&cloud, HOME, "n2-standard-2");
    let of_group = Driver::new(&cloud);
    let group_place = of_group.make(&group).await.unwrap();
    let mut subject = machine_named(&cloud, "n2-standard-2", false).await;
    subject.want.placement_group = Some(group.marks.name(60));
    let of_machine = Driver::new(&cloud);
    let place = of_machine.make(&subject).await.unwrap();
    let link = format!(
        "projects/{PROJECT}/regions/{HOME}/resourcePolicies/{}",
        group.marks.name(60)
    );
    assert_eq!(emulator.asked()[0]["resourcePolicies"], json!([link]));
    let owned = cloud.open().inventory().await.unwrap();
    let owned = owned.iter().find(|one| one.kind == OwnedKind::Placement).unwrap();
    let removal = cloud.open().remove_owned(owned).await.unwrap();
    assert!(matches!(removal, Removal::Underway { .. }), "{removal:?}");
    of_machine.remove(&subject.known(Some(place)), &subject).await;
    of_group.remove(&group.known(Some(group_place)), &group).await;
    assert_eq!(cloud.emulator.ledger().alive(), []);
    let error = Driver::new(&cloud)
        .make(&placement(&cloud, HOME, "e2-medium"))
        .await
        .unwrap_err();
    assert!(matches!(error, ComputeError::Refused(_)), "{error:?}");
}

#[tokio::test(start_paused = true)]
async fn only_what_is_reserved_is_offered_and_made() {
    let (cloud, emulator) = cloud_with(&json!({}));
    let placement = "projects/host-project/regions/us-central1/resourcePolicies/dense";
    let plain = Reservation {
        project: PROJECT,
        name: "plain",
        zone: "us-central1-b",
        machine_type: "n2-standard-2",
        gpus: None,
        count: 1,
        placement: None,
    };
    emulator.add_reservation(plain.clone());
    emulator.add_reservation(Reservation {
        project: HOST_PROJECT,
        name: "shared",
        machine_type: "a3-highgpu-8g",
        zone: "us-central1-a",
        gpus: Some(("nvidia-h100-80gb", 8)),
        placement: Some(placement),
        ..plain.clone()
    });
    // Another size of the same type.
    emulator.add_reservation(Reservation {
        name: "t4",
        machine_type: "n1-standard-8",
        zone: "us-central1-a",
        gpus: Some(("nvidia-tesla-t4", 2)),
        ..plain
    });
    for none in [
        "other",
        "projects/host-project/reservations/plain",
        "us-central1/plain",
        "a\" OR (name = \"plain",
    ] {
        assert_eq!(cloud.offers(&wanted(&json!({"reservation": none}))).await, []);
    }
    let t4 = cloud.offers(&wanted(&json!({"reservation": "t4"}))).await;
    assert_eq!(t4.len(), 1);
    assert_eq!(t4[0].instance.resources.gpus.len(), 2);
    for (name, machine_type, zone) in [
        ("plain", "n2-standard-2", "us-central1-b"),
        (
            "projects/host-project/reservations/shared",
            "a3-highgpu-8g",
            "us-central1-a",
        ),
    ] {
        let offers = cloud.offers(&wanted(&json!({"reservation": name}))).await;
        let [offer] = offers.as_slice() else {
            panic!("{offers:?}")
        };
        assert_eq!(
            (offer.instance.name.as_str(), offer.instance.resources.spot),
            (machine_type, false)
        );
        assert_eq!(offer.availability_zones.as_deref().unwrap(), [zone]);
        let mut subject = machine(&cloud).await;
        subject.want.offer = offer.clone();
        subject.want.reservation = Some(name.to_owned());
        subject.want.placement_group = Some("never".to_owned());
        let place = Driver::new(&cloud).make(&subject).await.unwrap();
        assert_eq!(place.reservation.as_deref(), Some(name));
        let asked = emulator.asked().pop().unwrap();
        let path = if name == "plain" {
            "projects/a-project/reservations/plain"
        } else {
            name
        };
        assert_eq!(asked["reservationAffinity"]["values"], json!([path]));
        assert_eq!(asked["disks"][1]["initializeParams"]["diskSizeGb"], "375");
        assert_eq!(
            asked.get("resourcePolicies"),
            (name != "plain").then_some(&json!([placement]))
        );
        // There is nothing left.
        let offers = cloud.offers(&wanted(&json!({"reservation": name}))).await;
        assert_eq!(offers[0].availability, InstanceAvailability::NotAvailable);
        let mut second = machine(&cloud).await;
        second.want.offer = offers[0].clone();
        second.want.reservation = Some(name.to_owned());
        let error = Driver::new(&cloud).make(&second).await.unwrap_err();
        assert!(matches!(error, ComputeError::NoCapacity(_)), "{error:?}");
    }
    emulator.deny("compute.reservations.list");
    assert_eq!(cloud.offers(&wanted(&json!({"reservation": "plain"}))).await, []);
}

/// A TPU in place of another machine.
fn as_tpu(mut subject: Subject<Machine>, accelerator: &str, spot: bool) -> Subject<Machine> {
    let mut instance = (*subject.want.offer.instance).clone();
    instance.name = accelerator.to_owned();
    instance.resources.spot = spot;
    subject.want.offer.instance = Arc::new(instance);
    subject
}

async fn one_tpu() -> (Cloud, Subject<Machine>) {
    let cloud = cloud_with(&json!({"tpu": true})).0;
    let subject = as_tpu(machine(&cloud).await, "v5litepod-8", false);
    (cloud, subject)
}

async fn tpus_in_two_regions() -> (Cloud, Vec<Subject<Machine>>) {
    let cloud = cloud_with(&json!({"tpu": true})).0;
    let subjects = vec![
        as_tpu(machine_in(&cloud, HOME).await, "v2-8", false),
        as_tpu(machine_in(&cloud, OTHER).await, "v2-8", true),
        as_tpu(machine_in(&cloud, HOME).await, "v5p-8", false),
    ];
    (cloud, subjects)
}

#[tokio::test(start_paused = true)]
async fn tpus_on_one_host_are_offered_where_they_are_wanted() {
    let gpus = json!({"resources": {"cpu": "1..", "memory": "1GB..", "gpu": "google:1.."}});
    assert_eq!(cloud().offers(&wanted(&gpus)).await, []);
    let (cloud, _) = cloud_with(&json!({"tpu": true}));
    let offers = cloud.offers(&wanted(&gpus)).await;
    let mut names: Vec<&str> = offers.iter().map(|offer| offer.instance.name.as_str()).collect();
    names.sort_unstable();
    names.dedup();
    assert!(
        names.contains(&"v5litepod-8") && names.iter().all(|name| name.starts_with('v')),
        "{names:?}"
    );
    assert!(
        offers
            .iter()
            .all(|offer| offer.availability == InstanceAvailability::Unknown)
    );
    let sizes: std::collections::BTreeSet<i64> = offers
        .iter()
        .map(|offer| offer.instance.resources.disk.size_mib / 1024)
        .collect();
    assert_eq!(sizes, [100].into());
    let large =
        json!({"resources": {"cpu": "1..", "memory": "1GB..", "gpu": "google:1..", "disk": "200GB.."}});
    assert_eq!(
        cloud.offers(&wanted(&large)).await,
        [],
        "nobody makes another disk"
    );
}

#[tokio::test(start_paused = true)]
async fn tpus_are_made_as_they_were_asked_for() {
    let more = json!({"tpu": true, "vpc_name": "private", "vm_service_account": "jobs@a-project.iam.gserviceaccount.com"});
    let (cloud, emulator) = cloud_with(&more);
    emulator.add_network("private", &[(HOME, "one"), (OTHER, "two")]);
    for (accelerator, spot, runtime) in [
        ("v5litepod-8", false, "v2-alpha-tpuv5-lite"),
        ("v6e-4", true, "v2-alpha-tpuv6e"),
        ("v3-8", false, "tpu-ubuntu2204-base"),
    ] {
        let subject = as_tpu(
            machine_named(&cloud, "e2-standard-2", false).await,
            accelerator,
            spot,
        );
        let driver = Driver::new(&cloud);
        let place = driver.make(&subject).await.unwrap();
        let asked = emulator.asked_tpus().pop().unwrap();
        assert_eq!(
            (&asked["acceleratorType"], &asked["runtimeVersion"]),
            (&json!(accelerator), &json!(runtime))
        );
        assert_eq!(
            asked.get("schedulingConfig"),
            spot.then_some(&json!({"preemptible": true}))
        );
        let subnet = format!("projects/{PROJECT}/regions/{HOME}/subnetworks/one");
        assert_eq!(asked["networkConfig"]["subnetwork"], subnet);
        assert_eq!(
            asked["serviceAccount"]["email"],
            "jobs@a-project.iam.gserviceaccount.com"
        );
        assert_eq!(asked["labels"]["owner"], "dstack");
        assert!(
            asked["metadata"]["ssh-keys"]
                .as_str()
                .unwrap()
                .starts_with("ubuntu:ssh-ed25519 ")
        );
        assert!(
            asked["metadata"]["startup-script"]
                .as_str()
                .unwrap()
                .contains("PJRT_DEVICE=TPU")
        );
        assert_eq!(place.hostname.as_deref(), Some("203.0.113.80"));
        assert_eq!(place.internal_ip.as_deref(), Some("10.128.0.9"));
        let zone = place.availability_zone.clone().unwrap();
        assert_eq!(
            place.backend_data,
            Some(json!({"is_tpu": true, "zone": zone}).to_string())
        );
        // A row of dstack 0.22.5: nothing was noted.
        let known = subject.known(Some(place));
        let sign = subject.sign(&*cloud.open(), &known).await;
        assert_eq!(sign, Some(Sign::Well));
        Driver::new(&cloud).remove(&known, &subject).await;
        assert_eq!(cloud.emulator.ledger().alive(), []);
    }
}

#[tokio::test(start_paused = true)]
async fn why_there_is_no_tpu_is_told() {
    let (cloud, emulator) = cloud_with(&json!({"tpu": true}));
    let of = |mut subject: Subject<Machine>| {
        let zones = subject.want.offer.availability_zones.as_mut();
        zones.unwrap().truncate(3);
        as_tpu(subject, "v2-8", false)
    };
    let subject = of(machine_named(&cloud, "e2-standard-2", false).await);
    let zones = subject.want.offer.availability_zones.clone().unwrap();
    emulator.fill(&zones[0]);
    emulator.lack(&zones[1], "v2-8");
    let place = Driver::new(&cloud).make(&subject).await.unwrap();
    assert_eq!(place.availability_zone.as_ref(), Some(&zones[2]));
    emulator.fail("v2-8", 429, "RESOURCE_EXHAUSTED");
    let second = of(machine_named(&cloud, "e2-standard-2", false).await);
    let error = Driver::new(&cloud).make(&second).await.unwrap_err();
    assert!(matches!(error, ComputeError::NoQuota(_)), "{error:?}");
    emulator.deny("tpu.nodes.create");
    let error = Driver::new(&cloud).make(&second).await.unwrap_err();
    assert!(
        matches!(&error, ComputeError::Credentials(text) if text.contains("`tpu.nodes.create`")),
        "{error:?}"
    );
    // Cloud TPU may also say so at once, and where fewer calls are wanted in the same words but for the quota.
    let (hasty, other) = cloud_with(&json!({"tpu": true}));
    other.refuse_at_once();
    other.fill(&zones[0]);
    let place = Driver::new(&hasty).make(&subject).await.unwrap();
    assert_eq!(place.availability_zone.as_ref(), Some(&zones[1]));
    other.fail("v2-8", 429, "RESOURCE_EXHAUSTED");
    let third = of(machine_named(&hasty, "e2-standard-2", false).await);
    let error = Driver::new(&hasty).make(&third).await.unwrap_err();
    assert!(matches!(error, ComputeError::NoQuota(_)), "{error:?}");
    // A zone that does not tell which it has hides them.
    emulator.unreachable(Some(&zones[2]));
    cloud.open().inventory().await.unwrap_err();
    emulator.unreachable(None);
    assert_eq!(cloud.open().inventory().await.unwrap().len(), 1);
    // Who has nothing to do with them need not be allowed to ask.
    emulator.deny("tpu.nodes.list");
    cloud.open().inventory().await.unwrap_err();
    let (cloud, emulator) = cloud_with(&json!({}));
    emulator.deny("tpu.nodes.list");
    assert_eq!(cloud.open().inventory().await.unwrap(), []);
    emulator.disable("tpu");
    assert_eq!(cloud.open().inventory().await.unwrap(), []);
}

/// What a run of several nodes with a TPU asks for.
fn of_pods(more: &Value) -> Requirements {
    let all = json!({"resources": {"cpu": "1..", "memory": "1GB..", "gpu": "google:1.."}, "multinode": true});
    requirements(&extended(all, more))
}

async fn pod_in(cloud: &Cloud, region: &str, slice: &str, spot: bool) -> Subject<Group> {
    group_of(cloud, of_pods(&json!({"spot": spot})), |offer| {
        offer.instance.name == slice && &*offer.region == region
    })
    .await
}

pub(crate) async fn one_pod() -> (Cloud, Subject<Group>) {
    let cloud = cloud_with(&json!({"tpu": true})).0;
    let subject = pod_in(&cloud, HOME, "v5litepod-16", false).await;
    (cloud, subject)
}

async fn pods_in_two_regions() -> (Cloud, Vec<Subject<Group>>) {
    let cloud = cloud_with(&json!({"tpu": true})).0;
    let subjects = vec![
        pod_in(&cloud, HOME, "v5litepod-16", false).await,
        pod_in(&cloud, OTHER, "v5litepod-16", true).await,
        pod_in(&cloud, HOME, "v5litepod-16", true).await,
    ];
    (cloud, subjects)
}

#[tokio::test(start_paused = true)]
async fn pods_are_offered_to_runs_of_several_nodes() {
    let (cloud, _) = cloud_with(&json!({"tpu": true}));
    let offers = cloud.offers(&of_pods(&json!({}))).await;
    let prices: Vec<f64> = offers.iter().map(|offer| offer.price).collect();
    assert!(prices.is_sorted(), "{prices:?}");
    let of = |name: &str, spot: bool| {
        let mut of_type = offers.iter().filter(|offer| offer.instance.name == name);
        let found = of_type.find(|offer| &*offer.region == HOME && offer.instance.resources.spot == spot);
        found.unwrap_or_else(|| panic!("no {name}"))
    };
    let (small, pod) = (of("v5litepod-8", false), of("v5litepod-16", false));
    assert_eq!(
        (small.group_size, small.instance_runtime),
        (None, InstanceRuntime::Shim)
    );
    assert_eq!(
        (pod.group_size, pod.instance_runtime),
        (Some(4), InstanceRuntime::Runner)
    );
    // A host has four chips, the small one eight.
    assert!(
        (pod.price * 2.0 - small.price).abs() < 1e-9,
        "{} {}",
        pod.price,
        small.price
    );
    assert_eq!(pod.availability_zones, small.availability_zones);
    assert_eq!(pod.instance.resources.gpus.len(), 1);
    assert_eq!(pod.instance.resources.gpus[0].memory_mib, 64 * 1024);
    let one = cloud
        .offers(&of_pods(
            &json!({"resources": {"cpu": "1..", "memory": "1GB..", "gpu": "v5litepod-16"}}),
        ))
        .await;
    assert!(!one.is_empty() && one.iter().all(|offer| offer.group_size == Some(4)));
    // The limit is for each node.
    let cheap = cloud
        .offers(&of_pods(&json!({"max_price": pod.price, "spot": false})))
        .await;
    assert!(cheap.iter().any(|offer| offer.group_size == Some(4)));
    assert!(cheap.iter().all(|offer| offer.price <= pod.price));
    for none in [
        json!({"multinode": false}),
        json!({"multinode": null}),
        json!({"reservation": "r"}),
    ] {
        let offers = cloud.offers(&of_pods(&none)).await;
        assert!(offers.iter().all(|offer| offer.group_size.is_none()), "{none}");
    }
    let without = cloud_with(&json!({})).0;
    assert_eq!(without.offers(&of_pods(&json!({}))).await, []);
}

#[tokio::test(start_paused = true)]
async fn a_pod_is_one_tpu_with_a_container_on_each_host() {
    let (cloud, emulator) = cloud_with(&json!({"tpu": true}));
    let mut subject = pod_in(&cloud, HOME, "v5litepod-16", true).await;
    subject.want.workloads[2].folders = vec![MountedFolder {
        node_path: "/mnt/data".to_owned(),
        path: "/data".to_owned(),
        optional: false,
    }];
    let place = Driver::new(&cloud).make(&subject).await.unwrap();
    let asked = emulator.asked_tpus();
    assert_eq!(asked.len(), 1);
    assert_eq!(
        (&asked[0]["acceleratorType"], &asked[0]["schedulingConfig"]),
        (&json!("v5litepod-16"), &json!({"preemptible": true}))
    );
    let script = asked[0]["metadata"]["startup-script"].as_str().unwrap();
    for part in [
        "\n0|1|3)\n",
        "\n2)\n",
        "--privileged --network host --env 'PJRT_DEVICE=TPU'",
        "--volume /mnt/data:/data",
    ] {
        assert!(script.contains(part), "{part}: {script}");
    }
    let members = &place.job_provisioning_datas;
    let ways: Vec<_> = members
        .iter()
        .map(|member| {
            let proxy = member.ssh_proxy.as_ref().unwrap();
            (
                member.internal_ip.as_deref().unwrap(),
                proxy.hostname.as_str(),
                proxy.port,
            )
        })
        .collect();
    let expected = [
        ("10.128.0.9", "203.0.113.80", 22),
        ("10.128.0.10", "203.0.113.81", 22),
        ("10.128.0.11", "203.0.113.82", 22),
        ("10.128.0.12", "203.0.113.83", 22),
    ];
    assert_eq!(ways, expected, "members are in the order of the hosts");
    assert!(
        members
            .iter()
            .all(|member| !member.dockerized && member.ssh_port == Some(10_022))
    );
    let owned = cloud.open().inventory().await.unwrap();
    let kinds: Vec<&OwnedKind> = owned.iter().map(|owned| &owned.kind).collect();
    assert_eq!(kinds, [&OwnedKind::Group]);
    // It was stopped and started.
    emulator.move_tpus();
    let known = subject.known(Some(place));
    let Some(Sign::Moved(moved)) = subject.sign(&*cloud.open(), &known).await else {
        panic!("it has not moved");
    };
    let first = &moved.job_provisioning_datas[0];
    assert_eq!(first.hostname.as_deref(), Some("10.128.0.19"));
    assert_eq!(first.ssh_proxy.as_ref().unwrap().hostname, "203.0.113.90");
    Driver::new(&cloud).remove(&known, &subject).await;
    assert_eq!(cloud.emulator.ledger().alive(), []);
    // Of other nodes than it has hosts, and with disks, none is made.
    let (mut short, mut disks) = (subject, pod_in(&cloud, HOME, "v5litepod-16", false).await);
    short.want.workloads.pop();
    let data = volume(&cloud, &disk(&json!({})));
    let made = Driver::new(&cloud).make(&data).await.unwrap();
    disks.want.workloads[0].volumes = vec![MountedVolume {
        name: "data".to_owned(),
        volume: made,
        path: "/data".to_owned(),
    }];
    for refused in [short, disks] {
        let error = Driver::new(&cloud).make(&refused).await.unwrap_err();
        assert!(matches!(error, ComputeError::Refused(_)), "{error:?}");
    }
    assert_eq!(emulator.asked_tpus().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn pods_without_public_addresses_are_reached_in_their_network() {
    let more = json!({"tpu": true, "public_ips": false, "nat_check": false});
    let (cloud, emulator) = cloud_with(&more);
    let subject = pod_in(&cloud, HOME, "v5litepod-16", false).await;
    let zones = subject.want.offer.availability_zones.clone().unwrap();
    // Where a zone has no such slices, or no room, the next one is tried.
    emulator.lack(&zones[0], "v5litepod-16");
    let place = Driver::new(&cloud).make(&subject).await.unwrap();
    let first = &place.job_provisioning_datas[0];
    assert_eq!(first.availability_zone.as_ref(), Some(&zones[1]));
    assert_eq!(first.ssh_proxy.as_ref().unwrap().hostname, "10.128.0.9");
    assert!(!first.public_ip_enabled);
}

#[tokio::test(start_paused = true)]
async fn volumes_are_attached_to_tpus() {
    let (cloud, emulator) = cloud_with(&json!({"tpu": true}));
    let subject = as_tpu(
        machine_named(&cloud, "e2-standard-2", false).await,
        "v5litepod-8",
        false,
    );
    let machine = Driver::new(&cloud).make(&subject).await.unwrap();
    let zone = machine.availability_zone.clone().unwrap();
    let mut attached = Vec::new();
    for number in 1..=2 {
        let subject = volume(&cloud, &disk(&json!({"availability_zone": zone})));
        let volume = Driver::new(&cloud).make(&subject).await.unwrap();
        let site = AttachmentSite {
            volume,
            machine: machine.clone(),
            force: false,
        };
        let subject = attachment(&cloud, site);
        let place = Driver::new(&cloud).make(&subject).await.unwrap();
        assert_eq!(place.device_name, Some(format!("persistent-disk-{number}")));
        attached.push((subject, place));
    }
    let disks = emulator.asked_tpus()[0]["dataDisks"].clone();
    assert_eq!(disks.as_array().unwrap().len(), 2);
    assert_eq!(disks[0]["mode"], "READ_WRITE");
    let (subject, place) = attached.remove(1);
    Driver::new(&cloud)
        .remove(&subject.known(Some(place)), &subject)
        .await;
    assert_eq!(emulator.asked_tpus()[0]["dataDisks"].as_array().unwrap().len(), 1);
    // Of two at once, none is lost.
    let mut both = Vec::new();
    for _ in 0..2 {
        let subject = volume(&cloud, &disk(&json!({"availability_zone": zone})));
        let volume = Driver::new(&cloud).make(&subject).await.unwrap();
        let machine = machine.clone();
        both.push(attachment(
            &cloud,
            AttachmentSite {
                volume,
                machine,
                force: false,
            },
        ));
    }
    let backend = cloud.open();
    let made = both.iter().map(|subject| {
        let driver = Driver::with_backend(&cloud, backend.clone());
        async move { driver.make(subject).await.unwrap() }
    });
    join_all(made).await;
    tokio::time::sleep(Duration::from_secs(60)).await;
    cloud.open().inventory().await.unwrap();
    assert_eq!(emulator.asked_tpus()[0]["dataDisks"].as_array().unwrap().len(), 3);
    let mut without = subject.site.clone();
    without.machine.instance_type.name = "v6e-8".to_owned();
    let error = Driver::new(&cloud)
        .make(&attachment(&cloud, without))
        .await
        .unwrap_err();
    assert!(matches!(error, ComputeError::Refused(_)), "{error:?}");
}

/// A TPU and so many disks in its zone, to be attached.
async fn tpu_with_disks(cloud: &Cloud, count: usize) -> Vec<Subject<Attachment>> {
    let subject = as_tpu(
        machine_named(cloud, "e2-standard-2", false).await,
        "v5litepod-8",
        false,
    );
    let machine = Driver::new(cloud).make(&subject).await.unwrap();
    let zone = machine.availability_zone.clone().unwrap();
    let mut subjects = Vec::new();
    for _ in 0..count {
        let subject = volume(cloud, &disk(&json!({"availability_zone": zone})));
        let site = AttachmentSite {
            volume: Driver::new(cloud).make(&subject).await.unwrap(),
            machine: machine.clone(),
            force: false,
        };
        subjects.push(attachment(cloud, site));
    }
    subjects
}

/// A change takes effect some seconds after it was asked for, and until then the old disks are told of.
#[tokio::test(start_paused = true)]
async fn a_change_of_the_disks_of_a_tpu_waits_for_that_of_another_server() {
    let (cloud, emulator) = cloud_with(&json!({"tpu": true}));
    let subjects = tpu_with_disks(&cloud, 3).await;
    let [first, second, third] = subjects.as_slice() else {
        panic!("{} disks", subjects.len())
    };
    let count = || emulator.asked_tpus()[0]["dataDisks"].as_array().unwrap().len();
    let killed = cloud.open();
    let lifecycle = killed.volumes().unwrap().attachments().unwrap();
    let notes = Notes::default();
    notes.ensure(&cloud, &*killed, first).await.unwrap();
    let place = Driver::new(&cloud).make(second).await.unwrap();
    assert_eq!(
        (place.device_name.as_deref(), count()),
        (Some("persistent-disk-2"), 2)
    );
    // As one is detached, too.
    let known = second.known(Some(place));
    let notes = Notes::default();
    lifecycle.remove(&known, &notes.call(&cloud)).await.unwrap();
    Driver::new(&cloud).make(third).await.unwrap();
    assert_eq!(count(), 2);
    let signs = lifecycle
        .look(&[first.known(None), known, third.known(None)])
        .await;
    assert!(
        matches!(
            signs.as_deref(),
            Ok([Some(Sign::Well), Some(Sign::Lost(_)), Some(Sign::Well)])
        ),
        "{signs:?}"
    );
}

/// What is on its way to Google is listed by nobody.
#[tokio::test(start_paused = true)]
async fn a_change_of_the_disks_of_a_tpu_that_comes_late_undoes_no_other() {
    for nth in 1..40 {
        let (cloud, emulator) = cloud_with(&json!({"tpu": true}));
        let subjects = tpu_with_disks(&cloud, 2).await;
        cloud.faults().at(nth, Fault::Late(Duration::from_secs(100)));
        let backend = cloud.open();
        let made = subjects.iter().map(|subject| {
            let driver = Driver::with_backend(&cloud, backend.clone());
            async move { driver.make(subject).await.unwrap() }
        });
        join_all(made).await;
        tokio::time::sleep(Duration::from_secs(600)).await;
        cloud.open().inventory().await.unwrap();
        let disks = emulator.asked_tpus()[0]["dataDisks"].clone();
        assert_eq!(disks.as_array().unwrap().len(), 2, "request {nth}");
        if !cloud.faults().happened() {
            assert!(nth > 5, "only {nth} requests");
            return;
        }
    }
    panic!("a life of more requests");
}

#[tokio::test(start_paused = true)]
async fn many_machines_at_once_wait_for_the_rate_that_is_allowed() {
    let (cloud, emulator) = cloud_with(&json!({}));
    let mut subjects = Vec::new();
    for _ in 0..40 {
        subjects.push(machine_named(&cloud, "e2-standard-2", false).await);
    }
    emulator.limit(100);
    let backend = cloud.open();
    let lives = subjects.iter().map(|subject| {
        let driver = Driver::with_backend(&cloud, backend.clone());
        async move {
            let place = driver.make(subject).await.unwrap();
            driver.remove(&subject.known(Some(place)), subject).await;
        }
    });
    join_all(lives).await;
    assert_eq!(cloud.emulator.ledger().count(), 40);
    assert_eq!(cloud.emulator.ledger().alive(), []);
}

async fn one_gateway() -> (Cloud, Subject<GatewayMachine>) {
    let cloud = cloud();
    let subject = gateway(&cloud, HOME);
    (cloud, subject)
}

async fn two_gateways() -> (Cloud, Vec<Subject<GatewayMachine>>) {
    let cloud = cloud();
    let subjects = vec![gateway(&cloud, HOME), gateway(&cloud, OTHER)];
    (cloud, subjects)
}

checks_of!(gateways: one_gateway, two_gateways);

/// Of plain Ubuntu, reached at the ports of a gateway, without what jobs may do in the project.
#[tokio::test(start_paused = true)]
async fn a_gateway_runs_on_a_small_machine_that_is_open_to_clients() {
    let account =
        json!({"vm_service_account": "jobs@a-project.iam.gserviceaccount.com", "public_ips": false});
    let (cloud, emulator) = cloud_with(&account);
    emulator.fill("us-central1-a");
    let subject = gateway(&cloud, HOME);
    let place = Driver::new(&cloud).make(&subject).await.unwrap();
    assert_eq!(place.availability_zone.as_deref(), Some("us-central1-b"));
    assert_eq!(
        (place.ip_address.as_str(), place.backend_data.as_deref()),
        ("203.0.113.70", Some(r#"{"zone":"us-central1-b"}"#))
    );
    let asked = emulator.asked().pop().unwrap();
    assert_eq!(asked["machineType"], "zones/us-central1-b/machineTypes/e2-medium");
    let boot = &asked["disks"][0]["initializeParams"];
    assert_eq!(
        (&boot["sourceImage"], &boot["diskSizeGb"]),
        (
            &json!("projects/ubuntu-os-cloud/global/images/family/ubuntu-2204-lts"),
            &json!("10")
        )
    );
    assert_eq!(asked["tags"]["items"], json!(["dstack-gateway-instance"]));
    assert_eq!(asked.get("serviceAccounts"), None);
    let keys = asked["metadata"]["items"][1]["value"].as_str().unwrap();
    assert!(keys.starts_with("ubuntu:ssh-ed25519 "), "{keys}");
    let rules = emulator.firewalls();
    let [rule] = rules.as_slice() else {
        panic!("{rules:?}")
    };
    assert_eq!(
        rule["name"], "dstack-gateway-in-all-default",
        "the whole path would be too long"
    );
    assert_eq!(rule["allowed"][0]["ports"], json!(["22", "80", "443"]));
    assert_eq!(rule["targetTags"], json!(["dstack-gateway-instance"]));

    // One that is private, in a network of another project, whose rules are the user's to make.
    let shared = json!({"vpc_name": "shared", "vpc_project_id": HOST_PROJECT});
    let (cloud, emulator) = cloud_with(&shared);
    let mut subject = gateway(&cloud, HOME);
    subject.want.is_public = false;
    subject.want.instance_type = Some("e2-small".to_owned());
    let place = Driver::new(&cloud).make(&subject).await.unwrap();
    assert_eq!(place.ip_address, "10.128.0.2");
    assert_eq!(emulator.firewalls(), Vec::<Value>::new());
    let asked = emulator.asked().pop().unwrap();
    assert_eq!(asked["machineType"], "zones/us-central1-a/machineTypes/e2-small");
    assert_eq!(asked["networkInterfaces"][0].get("accessConfigs"), None);
    for machine_type in ["c4d-standard-2", "n4d-standard-2", "c3d-standard-4"] {
        subject = gateway(&cloud, HOME);
        subject.want.instance_type = Some(machine_type.to_owned());
        Driver::new(&cloud).make(&subject).await.unwrap();
    }
    assert_eq!(cloud.emulator.ledger().count(), 4);
    for (region, machine_type) in [(HOME, "v5litepod-8"), ("nowhere1", "e2-medium")] {
        let mut subject = gateway(&cloud, region);
        subject.want.instance_type = Some(machine_type.to_owned());
        let error = Driver::new(&cloud).make(&subject).await.unwrap_err();
        assert!(
            matches!(error, ComputeError::Refused(_)),
            "{machine_type} in {region}: {error:?}"
        );
    }
    assert_eq!(cloud.emulator.ledger().count(), 4);
}

/// With a subnetwork for proxies in each region.
fn cloud_with_proxies(more: &Value) -> (Cloud, Gcp) {
    let (cloud, emulator) = cloud_with(more);
    for region in [HOME, OTHER] {
        emulator.add_proxies("default", region, "proxy-only");
    }
    (cloud, emulator)
}

async fn one_balancer() -> (Cloud, Subject<LoadBalancer>) {
    let (cloud, _) = cloud_with_proxies(&json!({}));
    let subject = load_balancer(&cloud, HOME);
    (cloud, subject)
}

async fn two_balancers() -> (Cloud, Vec<Subject<LoadBalancer>>) {
    let (cloud, _) = cloud_with_proxies(&json!({}));
    let subjects = vec![load_balancer(&cloud, HOME), load_balancer(&cloud, OTHER)];
    (cloud, subjects)
}

checks_of!(load_balancers: one_balancer, two_balancers);

/// The link of a piece of a load balancer in the first region.
fn piece_link(collection: &str, name: &str) -> String {
    let place = match collection {
        "instanceGroups" => "zones/us-central1-a".to_owned(),
        _ => format!("regions/{HOME}"),
    };
    format!("https://www.googleapis.com/compute/v1/projects/{PROJECT}/{place}/{collection}/{name}")
}

#[tokio::test(start_paused = true)]
async fn a_load_balancer_is_made_as_it_was_asked_for() {
    let (cloud, emulator) = cloud_with_proxies(&json!({}));
    let subject = load_balancer(&cloud, HOME);
    let name = subject.marks.name(63);
    let link = |collection: &str| piece_link(collection, &name);
    let place = Driver::new(&cloud).make(&subject).await.unwrap();
    let network = format!("projects/{PROJECT}/global/networks/default");
    let expected = vec![
        (
            "instanceGroups",
            json!({"name": name, "namedPorts": [{"name": "http", "port": 80}]}),
        ),
        (
            "healthChecks",
            json!({"name": name, "type": "HTTP", "httpHealthCheck": {"port": 80, "requestPath": "/.well-known/dstack-gateway"}}),
        ),
        (
            "backendServices",
            json!({"name": name, "loadBalancingScheme": "EXTERNAL_MANAGED", "protocol": "HTTP", "portName": "http",
                "timeoutSec": 86400, "healthChecks": [link("healthChecks")], "connectionDraining": {"drainingTimeoutSec": 60},
                "backends": [{"group": link("instanceGroups"), "balancingMode": "UTILIZATION", "capacityScaler": 1.0}]}),
        ),
        (
            "urlMaps",
            json!({"name": name, "defaultService": link("backendServices")}),
        ),
        (
            "targetHttpProxies",
            json!({"name": name, "urlMap": link("urlMaps")}),
        ),
        (
            "forwardingRules",
            json!({"name": name, "loadBalancingScheme": "EXTERNAL_MANAGED", "IPProtocol": "TCP", "portRange": "80",
                "target": link("targetHttpProxies"), "network": network}),
        ),
    ];
    assert_eq!(emulator.pieces(), expected);
    assert_eq!(place.hostname, "203.0.113.90");
    let stored: Value = serde_json::from_str(&place.backend_data).unwrap();
    let expected = json!({"zone": "us-central1-a", "instance_group_name": name, "health_check_name": name,
        "backend_service_name": name, "url_map_name": name, "target_http_proxy_name": name, "forwarding_rule_name": name});
    assert_eq!(stored, expected);
    let rules = emulator.firewalls();
    let told = rules.iter().map(|rule| {
        assert_eq!(rule["targetTags"], json!(["dstack-gateway-instance"]));
        assert_eq!(rule["allowed"], json!([{"IPProtocol": "tcp", "ports": ["80"]}]));
        (
            rule["name"].as_str().unwrap(),
            rule["sourceRanges"][0].as_str().unwrap(),
        )
    });
    assert_eq!(
        told.collect::<Vec<_>>(),
        [
            ("dstack-gateway-lb-healthcheck-in-default", "35.191.0.0/16"),
            ("dstack-gateway-lb-proxy-in-us-central1-default", "10.129.0.0/23"),
        ]
    );
    Driver::new(&cloud)
        .remove(&subject.known(Some(place)), &subject)
        .await;
    assert_eq!(cloud.emulator.ledger().alive(), []);
}

#[tokio::test(start_paused = true)]
async fn a_private_load_balancer_with_a_certificate_is_made_in_the_subnetwork() {
    let (cloud, emulator) = cloud_with(&json!({"vpc_name": "private", "subnetworks": {HOME: "two"}}));
    emulator.add_network("private", &[(HOME, "one"), (HOME, "two"), (OTHER, "three")]);
    emulator.add_proxies("private", HOME, "proxy-only");
    let certificate = format!("projects/{PROJECT}/locations/{HOME}/certificates/gateway");
    let mut subject = load_balancer(&cloud, HOME);
    let of = |certificate: Value| -> AnyGatewayCertificate {
        dstack_model::decode::decode_strict(&certificate).unwrap()
    };
    subject.want.certificate = Some(of(json!({"type": "gcp-cm", "name": certificate})));
    subject.want.is_public = false;
    let name = subject.marks.name(63);
    let place = Driver::new(&cloud).make(&subject).await.unwrap();
    let pieces = emulator.pieces();
    let asked = |collection: &str| {
        let mut found = pieces.iter().filter(|(of, _)| *of == collection);
        let asked = found.next().map(|(_, asked)| asked.clone());
        assert!(found.next().is_none(), "{collection}");
        asked
    };
    assert_eq!(asked("targetHttpProxies"), None);
    let link = format!("//certificatemanager.googleapis.com/{certificate}");
    assert_eq!(
        asked("targetHttpsProxies").unwrap()["sslCertificates"],
        json!([link])
    );
    assert_eq!(
        asked("backendServices").unwrap()["loadBalancingScheme"],
        "INTERNAL_MANAGED"
    );
    assert_eq!(
        asked("forwardingRules").unwrap(),
        json!({"name": name, "loadBalancingScheme": "INTERNAL_MANAGED", "IPProtocol": "TCP", "portRange": "443",
            "target": piece_link("targetHttpsProxies", &name),
            "network": format!("projects/{PROJECT}/global/networks/private"),
            "subnetwork": format!("projects/{PROJECT}/regions/{HOME}/subnetworks/two")})
    );
    assert_eq!(place.hostname, "10.128.0.90");
    let stored: Value = serde_json::from_str(&place.backend_data).unwrap();
    assert_eq!(stored["target_https_proxy_name"], name);
    assert_eq!(stored.get("target_http_proxy_name"), None);
    Driver::new(&cloud)
        .remove(&subject.known(Some(place)), &subject)
        .await;
    assert_eq!(cloud.emulator.ledger().alive(), []);

    // Others have their own.
    subject.want.certificate = Some(of(json!({"type": "lets-encrypt"})));
    let error = Driver::new(&cloud).make(&subject).await.unwrap_err();
    assert!(
        matches!(&error, ComputeError::Refused(text) if text.contains("gcp-cm")),
        "{error:?}"
    );

    // In a network of another project, rules are the user's to make.
    let (cloud, emulator) = cloud_with(&json!({"vpc_name": "shared", "vpc_project_id": HOST_PROJECT}));
    emulator.add_proxies("shared", HOME, "proxy-only");
    Driver::new(&cloud)
        .make(&load_balancer(&cloud, HOME))
        .await
        .unwrap();
    assert_eq!(emulator.firewalls(), Vec::<Value>::new());
    let network = format!("projects/{HOST_PROJECT}/global/networks/shared");
    assert_eq!(emulator.pieces().pop().unwrap().1["network"], network);
}

#[tokio::test(start_paused = true)]
async fn where_load_balancers_have_no_subnetwork_for_proxies_is_told_with_the_remedy() {
    let (cloud, emulator) = cloud_with(&json!({}));
    emulator.add_proxies("default", HOME, "proxy-backup");
    emulator.add_proxies("default", OTHER, "proxy-only");
    emulator.add_network("other", &[(HOME, "proxy-of-another-network")]);
    let error = Driver::new(&cloud)
        .make(&load_balancer(&cloud, HOME))
        .await
        .unwrap_err();
    let ComputeError::Configuration(text) = &error else {
        panic!("{error:?}")
    };
    let command = format!(
        "gcloud compute networks subnets create proxy-only-{HOME} --project={PROJECT} --network=default --region={HOME} \
         --purpose=REGIONAL_MANAGED_PROXY --role=ACTIVE --range="
    );
    assert!(text.contains(&command), "{text}");
    assert_eq!(cloud.emulator.ledger().count(), 0);
    emulator.add_proxies("default", HOME, "proxy-only");
    Driver::new(&cloud)
        .make(&load_balancer(&cloud, HOME))
        .await
        .unwrap();
    let error = Driver::new(&cloud)
        .make(&load_balancer(&cloud, "nowhere1"))
        .await
        .unwrap_err();
    assert!(matches!(error, ComputeError::Refused(_)), "{error:?}");
}

/// Whichever piece it is that comes to nothing, what was made before it is removed.
#[tokio::test(start_paused = true)]
async fn of_a_load_balancer_that_comes_to_nothing_nothing_is_left() {
    for collection in [
        "instanceGroups",
        "healthChecks",
        "backendServices",
        "urlMaps",
        "targetHttpProxies",
        "forwardingRules",
    ] {
        let (cloud, emulator) = cloud_with_proxies(&json!({}));
        emulator.fail_piece(collection, 403, "QUOTA_EXCEEDED");
        let error = Driver::new(&cloud)
            .make(&load_balancer(&cloud, HOME))
            .await
            .unwrap_err();
        assert!(
            matches!(error, ComputeError::NoQuota(_)),
            "{collection}: {error:?}"
        );
        assert_eq!(cloud.emulator.ledger().alive(), [], "{collection}");
        // What Google itself fails at is not asked for for ever.
        emulator.fail_piece(collection, 409, "RESOURCE_NOT_READY");
        let error = Driver::new(&cloud)
            .make(&load_balancer(&cloud, HOME))
            .await
            .unwrap_err();
        assert!(
            matches!(error, ComputeError::Broken(_)),
            "{collection}: {error:?}"
        );
    }
}

/// Calls until so much of it is there.
async fn half_made(cloud: &Cloud, emulator: &Gcp, subject: &Subject<LoadBalancer>, count: usize) {
    let (backend, notes) = (cloud.open(), Notes::default());
    while emulator.pieces().len() < count {
        match notes.ensure(cloud, &*backend, subject).await.unwrap() {
            Step::Underway { again, .. } => tokio::time::sleep(again).await,
            Step::Ready(place) => panic!("{place:?} of less than {count} pieces"),
        }
    }
}

#[tokio::test(start_paused = true)]
async fn the_inventory_has_the_pieces_of_a_load_balancer_that_was_half_made() {
    let (cloud, emulator) = cloud_with_proxies(&json!({}));
    let subject = load_balancer(&cloud, HOME);
    half_made(&cloud, &emulator, &subject, 5).await;
    let told = cloud.open().inventory().await.unwrap();
    assert!(
        told.iter()
            .all(|owned| owned.mark.is_for(&subject.marks) && owned.region == HOME)
    );
    let kinds: Vec<&OwnedKind> = told.iter().map(|owned| &owned.kind).collect();
    let pieces = [
        "instance group",
        "health check",
        "backend service",
        "URL map",
        "HTTP proxy",
    ];
    assert_eq!(kinds, pieces.map(OwnedKind::Piece).iter().collect::<Vec<_>>());
    let whole = load_balancer(&cloud, OTHER);
    Driver::new(&cloud).make(&whole).await.unwrap();
    let told = cloud.open().inventory().await.unwrap();
    let rules: Vec<_> = told
        .iter()
        .filter(|owned| owned.kind == OwnedKind::LoadBalancer)
        .collect();
    assert_eq!(rules.len(), 1, "{told:?}");
    assert!(
        rules[0].mark.is_for(&whole.marks) && rules[0].region == OTHER,
        "{rules:?}"
    );
    // Who has no load balancers need not be allowed to list them.
    for permission in ["compute.healthChecks.list", "compute.forwardingRules.list"] {
        emulator.deny(permission);
    }
    let less = cloud.open().inventory().await.unwrap();
    assert_eq!(less.len(), told.len() - 3);
    // That Google wants fewer calls is answered with 403 too, and says nothing of what there is.
    tokio::time::sleep(Duration::from_secs(60)).await;
    emulator.limit(8);
    let error = cloud.open().inventory().await.unwrap_err();
    assert!(matches!(error, ComputeError::Throttled { .. }), "{error:?}");
}

/// Machines of gateways behind a load balancer.
async fn machines_behind(
    cloud: &Cloud,
    place: &GatewayLoadBalancerData,
    count: usize,
) -> Vec<(Subject<GatewayMachine>, GatewayReplicaProvisioningData)> {
    let mut machines = Vec::new();
    for _ in 0..count {
        let mut subject = gateway(cloud, HOME);
        subject.want.load_balancer = Some(place.clone());
        let place = Driver::new(cloud).make(&subject).await.unwrap();
        machines.push((subject, place));
    }
    machines
}

/// Asks until requests go to these machines; how long that took. Each call is one of a server that has just started, where `anew`.
async fn set_machines(
    cloud: &Cloud,
    known: &Known<LoadBalancer>,
    machines: &[GatewayReplicaProvisioningData],
    anew: bool,
) -> Duration {
    let (begun, mut backend) = (tokio::time::Instant::now(), cloud.open());
    for _ in 0..100 {
        let pause = match backend
            .load_balancers()
            .unwrap()
            .set_machines(known, machines)
            .await
        {
            Ok(Balancing::Set) => return begun.elapsed(),
            Ok(Balancing::Underway { again, .. }) => again,
            Err(error) => {
                assert!(error.is_transient(), "{error:?}");
                Duration::from_secs(5)
            }
        };
        tokio::time::sleep(pause).await;
        if anew {
            backend = cloud.open();
        }
    }
    panic!("never set")
}

fn names(machines: &[GatewayReplicaProvisioningData]) -> Vec<String> {
    let mut names: Vec<String> = machines.iter().map(|one| one.instance_id.clone()).collect();
    names.sort_unstable();
    names
}

fn members(emulator: &Gcp) -> Vec<String> {
    let mut members = emulator.members();
    members.sort_unstable();
    members
}

#[tokio::test(start_paused = true)]
async fn requests_go_to_those_machines_that_a_load_balancer_was_told_of() {
    let (cloud, emulator) = cloud_with_proxies(&json!({}));
    let subject = load_balancer(&cloud, HOME);
    let place = Driver::new(&cloud).make(&subject).await.unwrap();
    let known = subject.known(Some(place.clone()));
    let made = machines_behind(&cloud, &place, 4).await;
    let all: Vec<_> = made.iter().map(|(_, place)| place.clone()).collect();

    let took = set_machines(&cloud, &known, &all[..3], false).await;
    assert_eq!(members(&emulator), names(&all[..3]));
    assert!(took < Duration::from_secs(30), "{took:?}");
    // Told the same again, nothing changes.
    let changes = emulator.changes_of_groups();
    set_machines(&cloud, &known, &all[..3], false).await;
    assert_eq!(emulator.changes_of_groups(), changes);

    // One comes and two go: until requests to these have ended, it is not done.
    let took = set_machines(&cloud, &known, &all[2..], false).await;
    assert_eq!(members(&emulator), names(&all[2..]));
    assert!(took > Duration::from_secs(60), "{took:?}");
    assert_eq!(emulator.changes_of_groups(), changes + 2);

    // A machine that is gone is behind nothing.
    let (gone, gone_place) = &made[3];
    Driver::new(&cloud)
        .remove(&gone.known(Some(gone_place.clone())), gone)
        .await;
    set_machines(&cloud, &known, &all[2..3], false).await;
    assert_eq!(members(&emulator), names(&all[2..3]));
    set_machines(&cloud, &known, &[], false).await;
    assert_eq!(members(&emulator), Vec::<String>::new());

    // Nothing is told of one that cannot be behind it.
    let balancers = cloud.open();
    let balancers = balancers.load_balancers().unwrap();
    let elsewhere = GatewayReplicaProvisioningData {
        availability_zone: Some("us-central1-b".to_owned()),
        backend_data: Some(json!({"zone": "us-central1-b"}).to_string()),
        ..all[0].clone()
    };
    for (wrong, expected) in [(&elsewhere, "us-central1-b"), (gone_place, "was not found")] {
        let error = balancers
            .set_machines(&known, std::slice::from_ref(wrong))
            .await
            .unwrap_err();
        assert!(
            matches!(&error, ComputeError::Refused(text) if text.contains(expected)),
            "{error:?}"
        );
    }
    Driver::new(&cloud).remove(&known, &subject).await;
    let error = balancers.set_machines(&known, &all[..1]).await.unwrap_err();
    assert!(matches!(error, ComputeError::Broken(_)), "{error:?}");
}

#[tokio::test(start_paused = true)]
async fn whatever_is_lost_a_load_balancer_passes_requests_on_to_the_machines_it_is_told_of() {
    for fault in [
        Fault::AnswerLost,
        Fault::Lost,
        Fault::DoneAndRefused(502),
        Fault::Malformed,
    ] {
        for anew in [false, true] {
            for nth in 1..20 {
                let (cloud, emulator) = cloud_with_proxies(&json!({}));
                let subject = load_balancer(&cloud, HOME);
                let place = Driver::new(&cloud).make(&subject).await.unwrap();
                let known = subject.known(Some(place.clone()));
                let made = machines_behind(&cloud, &place, 3).await;
                let all: Vec<_> = made.into_iter().map(|(_, place)| place).collect();
                set_machines(&cloud, &known, &all[..2], false).await;
                cloud.faults().at(nth, fault);
                set_machines(&cloud, &known, &all[1..], anew).await;
                assert_eq!(
                    members(&emulator),
                    names(&all[1..]),
                    "{fault:?} at request {nth}, anew: {anew}"
                );
                if !cloud.faults().happened() {
                    assert!(nth > 5, "{nth} requests only");
                    break;
                }
            }
        }
    }
}

/// Nothing was noted of it, and its names are others.
#[tokio::test(start_paused = true)]
async fn a_load_balancer_of_dstack_0_22_5_is_gone_on_with() {
    let (cloud, emulator) = cloud_with_proxies(&json!({}));
    let place = |path: &str| format!("projects/{PROJECT}/regions/{HOME}/{path}");
    let region = format!("regions/{HOME}");
    let group = format!("projects/{PROJECT}/zones/us-central1-b/instanceGroups/dstack-1a2b3c4d-ig");
    let named = |end: &str, more: Value| extended(json!({"name": format!("dstack-1a2b3c4d-{end}")}), &more);
    let ports = json!({"namedPorts": [{"name": "http", "port": 80}]});
    emulator.add_piece("zones/us-central1-b", "instanceGroups", named("ig", ports));
    let check = json!({"type": "HTTP", "httpHealthCheck": {"port": 80}});
    emulator.add_piece(&region, "healthChecks", named("hc", check));
    let service =
        json!({"healthChecks": [place("healthChecks/dstack-1a2b3c4d-hc")], "backends": [{"group": group}]});
    emulator.add_piece(&region, "backendServices", named("bs", service));
    let map = json!({"defaultService": place("backendServices/dstack-1a2b3c4d-bs")});
    emulator.add_piece(&region, "urlMaps", named("um", map));
    let proxy = json!({"urlMap": place("urlMaps/dstack-1a2b3c4d-um")});
    emulator.add_piece(&region, "targetHttpsProxies", named("proxy", proxy));
    let rule = json!({"target": place("targetHttpsProxies/dstack-1a2b3c4d-proxy")});
    emulator.add_piece(&region, "forwardingRules", named("fr", rule));
    let stored = json!({"zone": "us-central1-b", "instance_group_name": "dstack-1a2b3c4d-ig", "health_check_name": "dstack-1a2b3c4d-hc",
        "backend_service_name": "dstack-1a2b3c4d-bs", "url_map_name": "dstack-1a2b3c4d-um", "target_http_proxy_name": null,
        "target_https_proxy_name": "dstack-1a2b3c4d-proxy", "forwarding_rule_name": "dstack-1a2b3c4d-fr"});
    let place = GatewayLoadBalancerData {
        hostname: "203.0.113.90".to_owned(),
        backend_data: stored.to_string(),
    };
    let subject = load_balancer(&cloud, HOME);
    let known = subject.known(Some(place.clone()));
    assert_eq!(subject.sign(&*cloud.open(), &known).await, Some(Sign::Well));
    let (machine, machine_place) = machines_behind(&cloud, &place, 1).await.remove(0);
    set_machines(&cloud, &known, std::slice::from_ref(&machine_place), false).await;
    assert_eq!(members(&emulator), names(std::slice::from_ref(&machine_place)));
    Driver::new(&cloud)
        .remove(&machine.known(Some(machine_place)), &machine)
        .await;
    Driver::new(&cloud).remove(&known, &subject).await;
    assert_eq!(cloud.emulator.ledger().alive(), []);
    assert!(matches!(
        subject.sign(&*cloud.open(), &known).await,
        Some(Sign::Lost(_))
    ));
}

/// The group of a load balancer takes machines of one zone.
#[tokio::test(start_paused = true)]
async fn the_machine_of_a_gateway_is_in_the_zone_of_its_load_balancer() {
    let (cloud, emulator) = cloud_with_proxies(&json!({}));
    let place = Driver::new(&cloud)
        .make(&load_balancer(&cloud, HOME))
        .await
        .unwrap();
    let stored: Value = serde_json::from_str(&place.backend_data).unwrap();
    let elsewhere = GatewayLoadBalancerData {
        backend_data: extended(stored, &json!({"zone": "us-central1-c"})).to_string(),
        ..place
    };
    let mut subject = gateway(&cloud, HOME);
    subject.want.load_balancer = Some(elsewhere.clone());
    let machine = Driver::new(&cloud).make(&subject).await.unwrap();
    assert_eq!(machine.availability_zone.as_deref(), Some("us-central1-c"));
    emulator.fill("us-central1-c");
    let mut subject = gateway(&cloud, HOME);
    subject.want.load_balancer = Some(elsewhere.clone());
    let error = Driver::new(&cloud).make(&subject).await.unwrap_err();
    assert!(matches!(error, ComputeError::NoCapacity(_)), "{error:?}");
    subject.want.load_balancer = Some(GatewayLoadBalancerData {
        backend_data: "{}".to_owned(),
        ..elsewhere
    });
    let error = Driver::new(&cloud).make(&subject).await.unwrap_err();
    assert!(matches!(error, ComputeError::Broken(_)), "{error:?}");
}

/// As the page for administrators lists them.
#[tokio::test(start_paused = true)]
async fn the_page_names_the_permissions_that_gateways_need() {
    let page = include_str!("../../../../docs/backends/gcp.md");
    let (cloud, emulator) = cloud_with_proxies(&json!({}));
    let mut subject = load_balancer(&cloud, HOME);
    for certificate in [
        None,
        Some(format!(
            "projects/{PROJECT}/locations/{HOME}/certificates/gateway"
        )),
    ] {
        subject.want.certificate = certificate.map(|name| {
            dstack_model::decode::decode_strict(&json!({"type": "gcp-cm", "name": name})).unwrap()
        });
        let driver = Driver::new(&cloud);
        let place = driver.make(&subject).await.unwrap();
        let known = subject.known(Some(place.clone()));
        let machines = machines_behind(&cloud, &place, 1).await;
        for (_, machine) in machines {
            set_machines(&cloud, &known, &[machine], false).await;
        }
        set_machines(&cloud, &known, &[], false).await;
        cloud.open().inventory().await.unwrap();
        driver.remove(&known, &subject).await;
    }
    let needed = emulator.needed();
    assert!(needed.contains("compute.instanceGroups.update"), "{needed:?}");
    let missing: Vec<_> = needed.iter().filter(|one| !page.contains(one.as_str())).collect();
    assert!(missing.is_empty(), "the page lacks {missing:?}");
}
