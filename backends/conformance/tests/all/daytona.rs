use std::sync::Arc;
use std::time::Duration;

use dstack_backend_kit::{
    CANARY, Cloud, Driver, Emulator as _, Subject, checks, checks_of, container, container_of, extended,
    passes_with_the_reference, requirements, volume, with_container, with_containers,
};
use dstack_compute::{
    ComputeError, ConfigureError, Container, MountedVolume, OwnedKind, Sign, Volume, VolumeRequest,
};
use dstack_emulator_daytona::Daytona;
use dstack_model::instances::InstanceAvailability;
use dstack_model::offers::InstanceOfferWithAvailability;
use dstack_model::runs::Requirements;
use serde_json::{Value, json};

struct Played {
    emulator: Arc<Daytona>,
    cloud: Cloud,
}

fn played(more: &Value) -> Played {
    let config = |key: &str| {
        let config = json!({"type": "daytona", "creds": {"type": "api_key", "api_key": key}});
        extended(config, more)
    };
    let emulator = Arc::new(Daytona::new(CANARY));
    let refused = vec![(config("wrong"), &["creds.api_key"][..])];
    let mut cloud = Cloud::new(
        Arc::clone(&emulator) as _,
        dstack_backend_daytona::kind,
        config(CANARY),
        refused,
    );
    cloud.region = Some("us");
    Played { emulator, cloud }
}

fn cloud() -> Cloud {
    played(&json!({})).cloud
}

fn volume_config() -> Value {
    json!({"type": "volume", "backend": "daytona", "name": "data"})
}

pub(crate) async fn one_container() -> (Cloud, Subject<Container>) {
    with_container(cloud()).await
}

async fn one_volume() -> (Cloud, Subject<Volume>) {
    let cloud = cloud();
    let subject = volume(&cloud, &volume_config());
    (cloud, subject)
}

fn wanted(resources: &Value, spot: bool) -> Requirements {
    requirements(&json!({"resources": resources, "spot": spot}))
}

fn with_gpus() -> Value {
    json!({"cpu": "4..", "memory": "16GB..", "disk": "100GB..", "gpu": "1.."})
}

async fn two_containers() -> (Cloud, Vec<Subject<Container>>) {
    with_containers(cloud(), 2).await
}

async fn two_volumes() -> (Cloud, Vec<Subject<Volume>>) {
    let cloud = cloud();
    let subjects = vec![volume(&cloud, &volume_config()), volume(&cloud, &volume_config())];
    (cloud, subjects)
}

checks_of!(containers: one_container, two_containers);
checks_of!(volumes: one_volume, two_volumes;
    whole_life, sold_out, any_fault_anywhere, another_attempt, neighbours, left_behind, removed_before_listed, soak);

#[tokio::test(start_paused = true)]
async fn credentials() {
    checks::credentials(&cloud()).await;
    checks::credentials(&played(&json!({"regions": ["us", "earth"]})).cloud).await;
}

#[tokio::test(start_paused = true)]
async fn a_key_needs_permissions_and_regions_exist() {
    let Played { emulator, cloud } = played(&json!({}));
    emulator.permit(&["write:sandboxes", "read:limits"]);
    let error = cloud.configure(&cloud.config).await.unwrap_err();
    let ConfigureError::Credentials { fields, details } = error else {
        panic!("{error:?}");
    };
    assert_eq!(fields, [["creds", "api_key"]]);
    assert_eq!(
        details.as_deref(),
        Some("the API key is missing permissions: delete:sandboxes")
    );
    let nowhere = played(&json!({"regions": ["mars"]})).cloud;
    let error = nowhere.configure(&nowhere.config).await.unwrap_err();
    assert!(
        matches!(&error, ConfigureError::Invalid(text) if text.contains("mars") && text.contains("earth, eu, us")),
        "{error:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn offers() {
    checks::offers(&cloud()).await;
}

#[tokio::test(start_paused = true)]
async fn offers_are_what_is_asked_for_within_the_limits() {
    let cloud = cloud();
    let row = |offer: &InstanceOfferWithAvailability| {
        let name = offer.instance.name.clone();
        (name, offer.region.to_string(), offer.availability)
    };
    let has = InstanceAvailability::Available;
    let small = json!({"cpu": "2..", "memory": "4GB..", "disk": "8GB.."});
    let cpus = cloud.offers(&wanted(&small, false)).await;
    let of = |region: &str, availability| ("2cpu-4gb-8gb".to_owned(), region.to_owned(), availability);
    let rows: Vec<_> = cpus
        .iter()
        .filter(|offer| offer.instance.resources.gpus.is_empty())
        .map(row)
        .collect();
    assert_eq!(rows, [of("us", has), of("eu", InstanceAvailability::NoQuota)]);
    // More than a sandbox may have.
    let large = cloud
        .offers(&wanted(&json!({"cpu": "5..", "gpu": 0}), false))
        .await;
    assert!(
        large
            .iter()
            .all(|offer| offer.availability == InstanceAvailability::NoQuota),
        "{large:?}"
    );
    // Three GPUs are left of the organization's, and six of all.
    let h100 = |count: usize| json!({"cpu": "4..", "memory": "16GB..", "disk": "100GB..", "gpu": format!("H100:{count}")});
    for (count, availability) in [
        (1, Some(has)),
        (3, Some(has)),
        (4, Some(InstanceAvailability::NoQuota)),
        (7, None),
    ] {
        let found = cloud.offers(&wanted(&h100(count), false)).await;
        assert_eq!(
            found.first().map(|offer| offer.availability),
            availability,
            "{count}"
        );
    }
    assert_eq!(cloud.offers(&wanted(&h100(1), true)).await, []);
    let spot = cloud.offers(&wanted(&with_gpus(), true)).await;
    assert_eq!(spot[0].backend_data["gpu_type"], "RTX-4090");
    assert_eq!(&*spot[0].region, "earth");
    let on_earth = played(&json!({"regions": ["earth"]})).cloud;
    let all = on_earth.offers(&Cloud::requirements()).await;
    assert!(all.iter().all(|offer| &*offer.region == "earth") && !all.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_container_is_asked_for_as_it_is_to_run() {
    let Played { emulator, cloud } = played(&json!({}));
    let mut subject = container(&cloud).await;
    subject.want.workload.script = "echo 'a b'".to_owned();
    let place = Driver::new(&cloud).make(&subject).await.unwrap();
    let proxy = place.ssh_proxy.unwrap();
    assert_eq!(
        (place.hostname.as_deref(), place.ssh_port),
        (Some("localhost"), Some(10_022))
    );
    assert_eq!(
        (proxy.hostname.as_str(), proxy.port, proxy.username.as_str()),
        ("ssh.app.daytona.io", 22, "abc123def456ghi789-1")
    );
    assert_eq!(emulator.commands(), ["sh -c 'echo '\\''a b'\\'''"]);
    let asked = emulator.asked().remove(0);
    assert_eq!(
        asked["buildInfo"]["dockerfileContent"],
        "FROM registry.example/team/image:1\nUSER root\nENTRYPOINT []\nCMD [\"sleep\", \"infinity\"]\n"
    );
    assert_eq!((&asked["gpu"], asked.get("gpuType")), (&json!(0), None));
}

#[tokio::test(start_paused = true)]
async fn spot_that_is_taken_away_is_lost() {
    let Played { emulator, cloud } = played(&json!({}));
    let subject = container_of(&cloud, wanted(&with_gpus(), true), |_| true).await;
    let driver = Driver::new(&cloud);
    let place = driver.make(&subject).await.unwrap();
    let asked = emulator.asked().remove(0);
    assert_eq!(
        (&asked["gpuType"], &asked["spot"]),
        (&json!(["RTX-4090"]), &json!(true))
    );
    emulator.evict_all();
    let known = subject.known(Some(place));
    let sign = subject.sign(&*cloud.open(), &known).await;
    assert!(
        matches!(&sign, Some(Sign::Lost(why)) if why.contains("spot")),
        "{sign:?}"
    );
    driver.remove(&known, &subject).await;
    assert_eq!(emulator.ledger().alive(), []);
}

#[tokio::test(start_paused = true)]
async fn what_does_not_start_is_told_apart() {
    let Played { emulator, cloud } = played(&json!({}));
    let mut subject = container(&cloud).await;
    subject.want.workload.image = "registry.example/team/broken:1".to_owned();
    let error = Driver::new(&cloud).make(&subject).await.unwrap_err();
    assert!(
        matches!(&error, ComputeError::Broken(why) if why.contains("failed to resolve image")),
        "{error:?}"
    );
    // It has ended by the time it is looked at again.
    let subject = container(&cloud).await;
    let driver = Driver::new(&cloud);
    driver.make(&subject).await.unwrap();
    emulator.end_commands(11);
    let error = driver.make(&subject).await.unwrap_err();
    assert!(
        matches!(&error, ComputeError::Broken(why) if why.contains("code 11")),
        "{error:?}"
    );
    let wrong: [fn(&mut Subject<Container>); 2] = [
        |subject| subject.want.workload.privileged = true,
        |subject| subject.want.workload.image = "a\nRUN b".to_owned(),
    ];
    for change in wrong {
        let mut subject = container(&cloud).await;
        change(&mut subject);
        let error = Driver::new(&cloud).make(&subject).await.unwrap_err();
        assert!(matches!(error, ComputeError::Refused(_)), "{error:?}");
    }
    assert_eq!(emulator.ledger().alive(), []);
}

#[tokio::test(start_paused = true)]
async fn a_volume_that_exists_is_registered() {
    let cloud = cloud();
    let made = Driver::new(&cloud)
        .make(&volume(&cloud, &volume_config()))
        .await
        .unwrap();
    let backend = cloud.open();
    let ask = |id: &str| {
        let configuration = json!({"type": "volume", "backend": "daytona", "name": "data", "volume_id": id});
        VolumeRequest {
            ..volume(&cloud, &configuration).want
        }
    };
    let volumes = backend.volumes().unwrap();
    assert_eq!(volumes.register(&ask(&made.volume_id)).await.unwrap(), made);
    for id in ["gone", "../sandbox", ""] {
        let error = volumes.register(&ask(id)).await.unwrap_err();
        assert!(matches!(error, ComputeError::Refused(_)), "{id}: {error:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn volumes_are_deleted_when_no_sandbox_has_them_any_more() {
    let Played { emulator, cloud } = played(&json!({}));
    let driver = Driver::new(&cloud);
    let disk = volume(&cloud, &volume_config());
    let made = driver.make(&disk).await.unwrap();
    let mut subject = container(&cloud).await;
    let mounted = |path: &str| MountedVolume {
        name: "data".to_owned(),
        volume: made.clone(),
        path: path.to_owned(),
    };
    subject.want.workload.volumes = vec![mounted("/data"), mounted("/more")];
    let sandboxes = Driver::new(&cloud);
    let place = sandboxes.make(&subject).await.unwrap();
    assert_eq!(
        emulator.asked()[0]["volumes"],
        json!([{"volumeId": made.volume_id, "mountPath": "/data"}, {"volumeId": made.volume_id, "mountPath": "/more"}])
    );
    let owned = cloud.open().inventory().await.unwrap();
    let owned = owned
        .iter()
        .find(|owned| owned.kind == OwnedKind::Volume)
        .unwrap();
    let error = cloud.open().remove_owned(owned).await.unwrap_err();
    assert!(matches!(error, ComputeError::InUse(_)), "{error:?}");
    sandboxes.remove(&subject.known(Some(place)), &subject).await;
    driver.remove(&disk.known(Some(made)), &disk).await;
    assert_eq!(emulator.ledger().alive(), []);
}

#[tokio::test(start_paused = true)]
async fn a_key_without_volumes_has_an_inventory() {
    let Played { emulator, cloud } = played(&json!({}));
    emulator.permit(&["write:sandboxes", "delete:sandboxes", "read:limits"]);
    assert_eq!(cloud.open().inventory().await.unwrap(), []);
}

/// What dstack 0.22.5 has made is removed with its login, of which nothing was noted.
#[tokio::test(start_paused = true)]
async fn what_the_reference_has_made_is_removed_whole() {
    let Played { emulator, cloud } = played(&json!({}));
    let subject = container(&cloud).await;
    let mut place = Driver::new(&cloud).make(&subject).await.unwrap();
    let owned = cloud.open().inventory().await.unwrap();
    let login = owned
        .iter()
        .find(|owned| matches!(owned.kind, OwnedKind::Piece(_)))
        .unwrap();
    let stored = json!({"startup_command": null, "registry_id": login.id});
    place.backend_data = Some(stored.to_string());
    Driver::new(&cloud)
        .remove(&subject.known(Some(place)), &subject)
        .await;
    assert_eq!(emulator.ledger().alive(), []);
}

/// The reference's own code against this cloud: `reference.py` makes, waits for and removes sandboxes and volumes.
#[tokio::test]
async fn the_reference_finds_its_way_in_the_emulated_cloud() {
    let emulator = Daytona::with_pace(CANARY, Duration::from_millis(50));
    if !passes_with_the_reference("daytona", &emulator, &[CANARY]).await {
        return;
    }
    assert_eq!(emulator.ledger().alive(), []);
    assert!(emulator.ledger().count() >= 5, "it made too little");
}
