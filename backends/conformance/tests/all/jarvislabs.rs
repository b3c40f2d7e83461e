use std::sync::Arc;
use std::time::Duration;

use dstack_backend_kit::{
    CANARY, Cloud, Driver, Emulator as _, Subject, checks, checks_of, machine, machine_in, machine_of,
    passes_with_the_reference, requirements, with_machine,
};
use dstack_compute::{ComputeError, ConfigureError, Machine, MachineSetup};
use dstack_emulator_jarvislabs::{Failing, JarvisLabs, Size, Times};
use dstack_model::runs::{JobProvisioningData, Requirements};
use serde_json::{Value, json};

const NOIDA: &str = "india-noida-01";
const CHENNAI: &str = "india-chennai-01";
const EUROPE: &str = "europe-01";

const fn size(gpu_type: Option<&'static str>, region: &'static str, price: f64) -> Size {
    Size {
        gpu_type,
        region,
        price,
    }
}

/// Without GPUs in the first region, with GPUs in all.
fn sizes() -> Vec<Size> {
    vec![
        size(None, NOIDA, 0.0992),
        size(Some("H100"), NOIDA, 2.69),
        size(Some("RTX-PRO6000"), CHENNAI, 1.49),
        size(Some("H200"), EUROPE, 3.8),
    ]
}

fn config(key: &str, regions: &Value) -> Value {
    json!({"type": "jarvislabs", "regions": regions, "creds": {"type": "api_key", "api_key": key}})
}

fn cloud_of(emulator: JarvisLabs) -> Cloud {
    let refused = vec![(config("wrong", &Value::Null), &["creds.api_key"][..])];
    Cloud::new(
        Arc::new(emulator),
        dstack_backend_jarvislabs::kind,
        config(CANARY, &Value::Null),
        refused,
    )
}

fn cloud() -> Cloud {
    cloud_of(JarvisLabs::new(CANARY, sizes()))
}

fn cloud_in(region: &'static str) -> Cloud {
    Cloud {
        region: Some(region),
        ..cloud()
    }
}

/// The cheapest, without GPUs.
pub(crate) async fn one_machine() -> (Cloud, Subject<Machine>) {
    with_machine(cloud()).await
}

async fn one_with_gpu() -> (Cloud, Subject<Machine>) {
    with_machine(cloud_in(CHENNAI)).await
}

async fn machines_in_two_regions() -> (Cloud, Vec<Subject<Machine>>) {
    let cloud = cloud();
    let subjects = vec![machine_in(&cloud, CHENNAI).await, machine(&cloud).await];
    (cloud, subjects)
}

checks_of!(machines: one_machine, machines_in_two_regions);
checks_of!(machines_with_gpus: one_with_gpu, machines_in_two_regions;
    whole_life, sold_out, loss, any_fault_anywhere);

#[tokio::test(start_paused = true)]
async fn credentials() {
    checks::credentials(&cloud()).await;
}

#[tokio::test(start_paused = true)]
async fn regions_without_a_host_are_refused() {
    let cloud = cloud();
    let configure = async |regions: Value| cloud.configure(&config(CANARY, &regions)).await;
    for regions in [json!([]), json!([NOIDA, "india-01"])] {
        configure(regions).await.unwrap();
    }
    let Err(ConfigureError::Invalid(text)) = configure(json!([NOIDA, "mars-01"])).await else {
        panic!("it is no region");
    };
    assert!(
        text.contains("regions") && text.contains("mars-01") && text.contains(EUROPE),
        "{text}"
    );
}

#[tokio::test(start_paused = true)]
async fn offers() {
    checks::offers(&cloud()).await;
    let all = cloud().offers(&Cloud::requirements()).await;
    let named = |name: &str| all.iter().find(|offer| offer.instance.name == name).unwrap();
    let gpus = named("RTXPRO6000-8x");
    assert_eq!(
        (gpus.instance.resources.gpus.len(), &*gpus.region, gpus.price),
        (8, CHENNAI, 11.92)
    );
    assert_eq!(gpus.backend_data["gpu_type"], "RTX-PRO6000");
    assert_eq!(named("cpu-4x16").instance.resources.disk.size_mib, 100 * 1024);
    assert!(
        all.iter()
            .all(|offer| &*offer.region != EUROPE || offer.instance.name == "H200-1x")
    );
}

#[tokio::test(start_paused = true)]
async fn disks_are_as_large_as_is_asked_for() {
    let large = requirements(&json!({"resources": {"cpu": "1..", "memory": "1GB..", "disk": "250GB.."}}));
    let emulator = JarvisLabs::new(CANARY, sizes());
    let cloud = cloud_of(emulator.clone());
    for offer in cloud.offers(&large).await.into_iter().take(2) {
        let subject = machine_of(&cloud, &large, |other| *other == offer).await;
        Driver::new(&cloud).make(&subject).await.unwrap();
    }
    let disks: Vec<Value> = emulator.bodies().iter().map(|body| body["hdd"].clone()).collect();
    assert_eq!(disks, [json!(250), json!(250)]);
}

#[tokio::test(start_paused = true)]
async fn nodes_that_reach_each_other_are_where_there_is_a_network() {
    let requirements = Requirements {
        multinode: Some(true),
        ..Cloud::requirements()
    };
    let offers = cloud().offers(&requirements).await;
    assert!(!offers.is_empty() && offers.iter().all(|offer| &*offer.region != EUROPE));
    for (region, has_network) in [(CHENNAI, true), (EUROPE, false)] {
        let cloud = cloud_in(region);
        let place = Driver::new(&cloud).make(&machine(&cloud).await).await.unwrap();
        assert_eq!(place.internal_ip.is_some(), has_network, "{region}");
        assert_eq!(place.username, "ubuntu");
    }
}

/// Nothing can be run when they start, and not all images have it.
#[tokio::test(start_paused = true)]
async fn machines_get_docker_where_they_have_none() {
    let cloud = cloud();
    let subject = machine(&cloud).await;
    let driver = Driver::new(&cloud);
    let place = driver.make(&subject).await.unwrap();
    assert!(MachineSetup::of(&place).install_docker, "{place:?}");
    let before = JobProvisioningData {
        backend_data: None,
        ..place.clone()
    };
    assert!(!MachineSetup::of(&before).install_docker, "one of a build before");
    driver.remove(&subject.known(Some(place)), &subject).await;
}

#[tokio::test(start_paused = true)]
async fn a_region_is_asked_at_its_own_host() {
    for (region, host) in [
        (NOIDA, "backendn."),
        (CHENNAI, "backendc."),
        (EUROPE, "backendeu."),
    ] {
        let cloud = cloud_in(region);
        let subject = machine(&cloud).await;
        if region != NOIDA {
            cloud.faults().away(Some(host));
            let driver = Driver::new(&cloud);
            let made = tokio::time::timeout(Duration::from_secs(3600), driver.make(&subject));
            assert!(!matches!(made.await, Ok(Ok(_))), "{region}");
            cloud.faults().away(None);
        }
        for other in ["backendc.", "backendeu.", "backendprod."] {
            if other != host {
                cloud.faults().away(Some(other));
                checks::whole_life(&cloud, &machine(&cloud).await).await;
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_machine_that_fails_is_ended() {
    for fails in [Failing::BeforeListed, Failing::Listed] {
        let emulator = JarvisLabs::new(CANARY, sizes());
        let cloud = cloud_of(emulator.clone());
        let subject = machine(&cloud).await;
        emulator.fail(Some(fails));
        let error = Driver::new(&cloud).make(&subject).await.unwrap_err();
        assert!(matches!(error, ComputeError::Broken(_)), "{error:?}");
        assert_eq!(emulator.ledger().alive(), [], "{fails:?}");
    }
}

/// Answers without success tell nothing: neither that a machine is gone, nor that there is none.
#[tokio::test(start_paused = true)]
async fn what_is_not_told_is_not_gone() {
    let emulator = JarvisLabs::new(CANARY, sizes());
    let cloud = cloud_of(emulator.clone());
    let subject = machine(&cloud).await;
    let driver = Driver::new(&cloud);
    let known = subject.known(Some(driver.make(&subject).await.unwrap()));
    let backend = cloud.open();
    emulator.tell_nothing(true);
    backend.inventory().await.unwrap_err();
    let machines = backend.machines().unwrap();
    machines.look(std::slice::from_ref(&known)).await.unwrap_err();
    let removal = tokio::time::timeout(Duration::from_secs(600), driver.remove(&known, &subject));
    removal.await.unwrap_err();
    assert_eq!(emulator.ledger().alive().len(), 1);
    emulator.tell_nothing(false);
    driver.remove(&known, &subject).await;
    assert_eq!(emulator.ledger().alive(), []);
}

#[tokio::test(start_paused = true)]
async fn one_key_is_registered_for_all_machines() {
    let emulator = JarvisLabs::new(CANARY, sizes());
    let cloud = cloud_of(emulator.clone());
    emulator.add_key("laptop", "ssh-ed25519 AAAAother me");
    for _ in 0..3 {
        let mut subject = machine(&cloud).await;
        subject
            .want
            .authorized_keys
            .push("ssh-ed25519 AAAAjob".to_owned());
        Driver::new(&cloud).make(&subject).await.unwrap();
    }
    let names = emulator.key_names();
    assert!(names.len() == 2 && names[1].starts_with("dstack-"), "{names:?}");
}

#[tokio::test(start_paused = true)]
async fn a_key_is_registered_once_for_machines_that_are_made_at_once() {
    let emulator = JarvisLabs::new(CANARY, sizes());
    let cloud = cloud_of(emulator.clone());
    let subjects = [
        machine(&cloud).await,
        machine(&cloud).await,
        machine(&cloud).await,
    ];
    let backend = cloud.open();
    let drivers = [0; 3].map(|_| Driver::with_backend(&cloud, Arc::clone(&backend)));
    let [first, second, third] = [0, 1, 2].map(|at| drivers[at].make(&subjects[at]));
    let made = tokio::join!(first, second, third);
    assert!(made.0.is_ok() && made.1.is_ok() && made.2.is_ok(), "{made:?}");
    assert_eq!(emulator.key_names().len(), 1);
}

/// The vendor lists a machine minutes after it has made it, and neither destroys it before nor, perhaps, says that there is one.
#[tokio::test(start_paused = true)]
async fn what_is_listed_late_is_not_gone() {
    for (region, hides) in [(NOIDA, false), (CHENNAI, false), (CHENNAI, true)] {
        let emulator = JarvisLabs::new(CANARY, sizes());
        emulator.hide_unlisted(hides);
        emulator.lag(Duration::from_secs(5 * 60));
        let cloud = Cloud {
            region: Some(region),
            ..cloud_of(emulator.clone())
        };
        let (subject, driver) = (machine(&cloud).await, Driver::new(&cloud));
        let making = tokio::time::timeout(Duration::from_secs(30), driver.make(&subject));
        making.await.unwrap_err();
        assert_eq!(emulator.ledger().alive().len(), 1);
        driver.remove(&subject.known(None), &subject).await;
        assert_eq!(emulator.ledger().alive(), [], "{region}, {hides}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_account_with_ten_keys_is_told_so() {
    let emulator = JarvisLabs::new(CANARY, sizes());
    let cloud = cloud_of(emulator.clone());
    for number in 0..10 {
        emulator.add_key("other", &format!("ssh-ed25519 AAAA{number}"));
    }
    let error = Driver::new(&cloud)
        .make(&machine(&cloud).await)
        .await
        .unwrap_err();
    assert!(error.to_string().contains("SSH key limit reached"), "{error:?}");
}

/// dstack 0.22.5 adds keys for each machine.
#[tokio::test(start_paused = true)]
async fn keys_of_machines_of_the_reference_go_with_them() {
    let emulator = JarvisLabs::new(CANARY, sizes());
    let cloud = cloud_of(emulator.clone());
    let subject = machine(&cloud).await;
    let driver = Driver::new(&cloud);
    let mut place = driver.make(&subject).await.unwrap();
    let id = emulator.add_key("dstack-train-0-0.key", "ssh-ed25519 AAAAtrain");
    place.backend_data = Some(json!({"ssh_key_ids": [id, "9999"]}).to_string());
    driver.remove(&subject.known(Some(place)), &subject).await;
    assert_eq!(emulator.key_names().len(), 1);
}

/// The reference's own code against this cloud: `reference.py` makes one of each, waits for it and removes it.
#[tokio::test]
async fn the_reference_finds_its_way_in_the_emulated_cloud() {
    let pause = Duration::from_millis(100);
    let times = Times {
        creates: pause,
        starts: pause,
        ends: pause,
    };
    let emulator = JarvisLabs::with_times(CANARY, sizes(), times);
    if !passes_with_the_reference("jarvislabs", &emulator, &[CANARY]).await {
        return;
    }
    assert_eq!(emulator.ledger().alive(), []);
    assert_eq!((emulator.ledger().count(), emulator.key_names().len()), (2, 0));
}
