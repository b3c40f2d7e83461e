use std::sync::Arc;
use std::time::Duration;

use dstack_backend_kit::{
    CANARY, Cloud, Driver, Emulator as _, Subject, checks, checks_of, machine, machine_in, machine_of,
    requirements, soak, with_machine,
};
use dstack_compute::{ComputeError, Machine, Removal, Sign};
use dstack_emulator_tensordock::{Host, TensorDock};
use serde_json::{Value, json};

const TOKEN: &str = "canary-0f1e2d3c-token";

const HOSTS: &[Host] = &[
    Host {
        id: "0a1b2c3d-1111-4222-8333-444455556666",
        country: "United States",
        gpus: ("geforcertx4090-pcie-24gb", 4, 24),
        shape: (64, 241, 900),
    },
    Host {
        id: "02c65d45-6da5-4232-a8db-ee0e5bc76110",
        country: "Canada",
        gpus: ("h100-sxm5-80gb", 8, 80),
        shape: (192, 1440, 9000),
    },
];

fn config(key: &str, token: &str) -> Value {
    json!({"type": "tensordock", "creds": {"type": "api_key", "api_key": key, "api_token": token}})
}

fn tensordock() -> (Arc<TensorDock>, Cloud) {
    tensordock_of(HOSTS.to_vec())
}

fn tensordock_of(hosts: Vec<Host>) -> (Arc<TensorDock>, Cloud) {
    let emulator = Arc::new(TensorDock::new(CANARY, TOKEN, hosts));
    let fields = &["creds.api_key", "creds.api_token"][..];
    let refused = vec![
        (config("wrong", TOKEN), fields),
        (config(CANARY, "wrong"), fields),
    ];
    let cloud = Cloud::new(
        Arc::clone(&emulator) as _,
        dstack_backend_tensordock::kind,
        config(CANARY, TOKEN),
        refused,
    );
    (emulator, cloud)
}

fn cloud() -> Cloud {
    tensordock().1
}

async fn one_machine() -> (Cloud, Subject<Machine>) {
    with_machine(cloud()).await
}

async fn machines_in_two_places() -> (Cloud, Vec<Subject<Machine>>) {
    let cloud = cloud();
    let subjects = vec![machine(&cloud).await, machine_in(&cloud, "canada").await];
    (cloud, subjects)
}

checks_of!(machines: one_machine, machines_in_two_places;
    loss, any_fault_anywhere, another_attempt, neighbours, left_behind, removed_before_listed);

#[tokio::test(start_paused = true)]
async fn credentials() {
    checks::credentials(&cloud()).await;
}

#[tokio::test(start_paused = true)]
async fn offers() {
    let (_, mut cloud) = tensordock();
    checks::offers(&cloud).await;
    let offers = cloud.offers(&Cloud::requirements()).await;
    assert_eq!(offers.len(), 12, "one for each number of GPUs");
    cloud.config["regions"] = json!(["canada"]);
    let offers = cloud.offers(&Cloud::requirements()).await;
    assert_eq!(offers.len(), 8);
    assert!(offers.iter().all(|offer| &*offer.region == "canada"));
}

#[tokio::test(start_paused = true)]
async fn a_machine_lives_and_ends() {
    let (emulator, cloud) = tensordock();
    checks::whole_life(&cloud, &machine(&cloud).await).await;
    let asked = emulator.asked().remove(0);
    assert_eq!(asked["gpu_model"], "geforcertx4090-pcie-24gb");
    let outer = &asked["external_ports"];
    assert!(outer.starts_with("{200") && outer.len() == 7, "{outer}");
    assert!(asked["cloudinit_script"].starts_with("ssh_pwauth: false\\n"));
    assert!(!asked["password"].is_empty());

    let (emulator, cloud) = tensordock();
    emulator.answer_as_described();
    checks::whole_life(&cloud, &machine(&cloud).await).await;
}

/// Each offer can be had.
#[tokio::test(start_paused = true)]
async fn machines_are_of_the_size_that_is_offered() {
    for resources in [
        json!({}),
        json!({"cpu": "7..", "memory": "31GB..", "disk": "555GB.."}),
        json!({"cpu": "1..3", "memory": "1GB..5GB", "disk": "..60GB"}),
        json!({"gpu": {"count": {"min": 1}, "memory": "80GB"}}),
    ] {
        let wanted = requirements(&json!({"resources": resources}));
        let offers = cloud().offers(&wanted).await;
        assert!(!offers.is_empty(), "{resources}");
        for offer in offers {
            let (emulator, cloud) = tensordock();
            let subject = machine_of(&cloud, &wanted, |other| *other == offer).await;
            let made = Driver::new(&cloud).make(&subject).await;
            made.unwrap_or_else(|error| panic!("{offer:?}: {error:?}"));
            let asked = emulator.asked().remove(0);
            assert_eq!(asked["vcpus"], offer.instance.resources.cpus.to_string());
        }
    }
}

#[tokio::test(start_paused = true)]
async fn nothing_is_to_be_had() {
    let (emulator, cloud) = tensordock();
    let subject = machine(&cloud).await;
    checks::sold_out(&cloud, &subject).await;
    emulator.sell_out(false);
    emulator.balance(0.5);
    let made = Driver::new(&cloud).make(&subject).await;
    assert!(matches!(made, Err(ComputeError::NoQuota(_))), "{made:?}");
}

#[tokio::test(start_paused = true)]
async fn a_host_that_is_gone_is_no_longer_to_be_had() {
    let cloud = cloud();
    let mut subject = machine(&cloud).await;
    let mut instance = (*subject.want.offer.instance).clone();
    instance.name = "99999999-1111-4222-8333-444455556666".to_owned();
    subject.want.offer.instance = Arc::new(instance);
    let made = Driver::new(&cloud).make(&subject).await;
    assert!(matches!(made, Err(ComputeError::NoCapacity(_))), "{made:?}");
}

#[tokio::test(start_paused = true)]
async fn what_is_listed_late_is_waited_for() {
    let (emulator, cloud) = tensordock();
    emulator.lag(Duration::from_secs(50));
    let made = Driver::new(&cloud).make(&machine(&cloud).await).await;
    made.unwrap();
    assert_eq!(emulator.ledger().count(), 1);
}

/// As they are when the account has nothing left.
#[tokio::test(start_paused = true)]
async fn what_was_deleted_is_lost() {
    let (emulator, cloud) = tensordock();
    let subject = machine(&cloud).await;
    let place = Driver::new(&cloud).make(&subject).await.unwrap();
    let backend = cloud.open();
    let owned = backend.inventory().await.unwrap().remove(0);
    emulator.delete_all();
    let known = subject.known(Some(place));
    let again = Duration::from_secs(5);
    for (after, removal) in [(0, Removal::Underway { again }), (20, Removal::Gone)] {
        tokio::time::sleep(Duration::from_secs(after)).await;
        let sign = subject.sign(&*backend, &known).await;
        assert!(matches!(sign, Some(Sign::Lost(_))), "{sign:?}");
        assert_eq!(backend.remove_owned(&owned).await.unwrap(), removal, "{after}");
    }
}

#[tokio::test(start_paused = true)]
async fn many_lives_of_machines() {
    // For all that live at the same time.
    let host = Host {
        gpus: ("geforcertx4090-pcie-24gb", 32, 24),
        shape: (512, 1928, 7200),
        ..HOSTS[0]
    };
    let cloud = tensordock_of(vec![host]).1;
    let subject = machine(&cloud).await;
    soak(&cloud, &subject).await;
}
