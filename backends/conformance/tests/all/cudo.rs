use std::sync::Arc;
use std::time::Duration;

use dstack_backend_kit::{
    CANARY, Cloud, Driver, Emulator as _, Subject, checks, checks_of, machine, machine_of, requirements,
    with_machine, with_machines,
};
use dstack_compute::{ComputeError, Machine};
use dstack_emulator_cudo::{Cudo, GPU_IMAGE, PROJECT};
use dstack_model::offers::InstanceOfferWithAvailability as Offer;
use serde_json::{Value, json};

fn config(key: &str, project: &str) -> Value {
    json!({"type": "cudo", "creds": {"type": "api_key", "api_key": key}, "project_id": project})
}

fn cloud_and_emulator() -> (Arc<Cudo>, Cloud) {
    let emulator = Arc::new(Cudo::new(CANARY));
    let refused = vec![
        (config("wrong", PROJECT), &["creds.api_key"][..]),
        (config(CANARY, "another-project"), &["project_id"][..]),
    ];
    let made = Arc::<Cudo>::clone(&emulator);
    let cloud = Cloud::new(made, dstack_backend_cudo::kind, config(CANARY, PROJECT), refused);
    (emulator, cloud)
}

fn cloud() -> Cloud {
    cloud_and_emulator().1
}

async fn one() -> (Cloud, Subject<Machine>) {
    with_machine(cloud()).await
}

async fn two() -> (Cloud, Vec<Subject<Machine>>) {
    with_machines(cloud(), 2).await
}

checks_of!(machines: one, two);

#[tokio::test(start_paused = true)]
async fn credentials() {
    let cloud = cloud();
    checks::credentials(&cloud).await;
    let other = config(CANARY, "../billing-accounts");
    cloud.configure(&other).await.unwrap_err();
}

#[tokio::test(start_paused = true)]
async fn offers() {
    checks::offers(&cloud()).await;
}

/// The cheapest combination for each place, type and number of GPUs, with its disk in the price.
#[tokio::test(start_paused = true)]
async fn machines_are_composed_of_what_is_allowed_and_free() {
    let mut cloud = cloud();
    let small = json!({"resources": {"cpu": "4..", "memory": "8GB..", "disk": "100GB.."}});
    let all = cloud.offers(&requirements(&small)).await;
    let told = |offer: &Offer| {
        let resources = &offer.instance.resources;
        (
            offer.instance.name.clone(),
            offer.region.to_string(),
            (resources.cpus, resources.memory_mib / 1024, resources.gpus.len()),
        )
    };
    let smallest = ("epyc-milan", "se-smedjebacken-1", (4, 8, 0));
    let expected =
        |(name, region, size): (&str, &str, (i64, i64, usize))| (name.to_owned(), region.to_owned(), size);
    assert_eq!(told(&all[0]), expected(smallest));
    let price = 4.0 * 0.0018 + 8.0 * 0.0024 + 0.004 + 100.0 * 0.00013;
    assert!((all[0].price - price).abs() < 1e-9, "{}", all[0].price);
    let few = json!({"resources": {"cpu": "4..", "memory": "8GB..", "disk": "100GB.."}, "max_price": price - 0.001});
    assert_eq!(cloud.offers(&requirements(&few)).await, [], "the disk counts");

    let gpus = json!({"resources": {"gpu": "A4000:1..", "cpu": "2..", "memory": "8GB.."}});
    let gpus = cloud.offers(&requirements(&gpus)).await;
    let found: Vec<_> = gpus.iter().map(told).collect();
    let a4000 =
        |gpus: usize, cpus: i64| expected(("epyc-milan-rtx-a4000", "se-smedjebacken-1", (cpus, 8, gpus)));
    assert_eq!(found, [a4000(1, 2), a4000(2, 2), a4000(3, 3), a4000(4, 4)]);
    assert_eq!(gpus[0].instance.resources.gpus[0].memory_mib, 16 * 1024);
    // Neither what the old backend left out, nor GPUs that no image has drivers for, nor what is taken.
    let left_out = |offer: &Offer| ["in-hyderabad-1", "us-newyork-1"].contains(&&*offer.region);
    assert_eq!(all.iter().filter(|offer| left_out(offer)).count(), 0);
    assert_eq!(all.len(), 2 + 4);
    cloud.config["regions"] = json!(["no-luster-1"]);
    let there = cloud.offers(&requirements(&json!({"resources": {}}))).await;
    assert!(there.iter().all(|offer| &*offer.region == "no-luster-1") && !there.is_empty());
}

#[tokio::test(start_paused = true)]
async fn each_machine_gets_an_image_with_docker_or_installs_it() {
    let (emulator, cloud) = cloud_and_emulator();
    let subject = machine(&cloud).await;
    Driver::new(&cloud).make(&subject).await.unwrap();
    let asked = emulator.asked().remove(0);
    assert_eq!(asked["bootDiskImageId"], "ubuntu-2204");
    assert!(asked["startScript"].as_str().unwrap().contains("docker.io"));

    let (emulator, cloud) = cloud_and_emulator();
    let gpus = requirements(&json!({"resources": {"gpu": "A4000:2", "disk": "1GB.."}}));
    let subject = machine_of(&cloud, &gpus, |_| true).await;
    Driver::new(&cloud).make(&subject).await.unwrap();
    let asked = emulator.asked().remove(0);
    assert_eq!(asked["bootDiskImageId"], GPU_IMAGE);
    assert_eq!((&asked["gpus"], &asked["startScript"]), (&json!(2), &Value::Null));
    assert_eq!(asked["bootDisk"]["sizeGib"], 40, "as large as the image");
}

#[tokio::test(start_paused = true)]
async fn refusals_are_told_apart() {
    for (status, code, message) in [
        (400, 9, "network is full"),
        (400, 3, "invalid field"),
        (429, 8, "project quota exceeded"),
    ] {
        let (emulator, cloud) = cloud_and_emulator();
        let subject = machine(&cloud).await;
        emulator.refuse(status, code, message);
        let error = Driver::new(&cloud).make(&subject).await.unwrap_err();
        let is_told = match code {
            9 => matches!(error, ComputeError::NoCapacity(_)),
            8 => matches!(error, ComputeError::NoQuota(_)),
            _ => matches!(error, ComputeError::Refused(_)),
        };
        assert!(is_told, "{error:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_machine_that_does_not_start_is_ended() {
    let (emulator, cloud) = cloud_and_emulator();
    let (subject, driver) = (machine(&cloud).await, Driver::new(&cloud));
    let failing = async {
        tokio::time::sleep(Duration::from_secs(20)).await;
        emulator.fail_all();
    };
    let (made, ()) = tokio::join!(driver.make(&subject), failing);
    assert!(matches!(made.unwrap_err(), ComputeError::Broken(_)));
    assert_eq!(emulator.ledger().alive(), []);
}
