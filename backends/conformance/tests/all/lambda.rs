use std::time::Duration;

use dstack_backend_kit::{
    CANARY, Cloud, Driver, Emulator as _, Subject, checks, checks_of, machine, passes_with_the_reference,
    with_machine,
};
use dstack_compute::{Machine, Sign};
use dstack_emulator_lambda::{Lambda, Times};
use serde_json::{Value, json};

use crate::lambda_checks::{self, emulator, sizes};

fn cloud_of(emulator: Lambda) -> Cloud {
    lambda_checks::cloud_of(emulator, "lambda", dstack_backend_lambda::kind)
}

fn cloud() -> Cloud {
    cloud_of(emulator())
}

async fn two_machines() -> (Cloud, Vec<Subject<Machine>>) {
    lambda_checks::two_machines(cloud_of).await
}

checks_of!(machines: one_machine, two_machines);

#[tokio::test(start_paused = true)]
async fn credentials() {
    checks::credentials(&cloud()).await;
}

#[tokio::test(start_paused = true)]
async fn offers() {
    checks::offers(&cloud()).await;
}

#[tokio::test(start_paused = true)]
async fn what_is_free_is_told_for_each_region() {
    lambda_checks::what_is_free_is_told_for_each_region(cloud_of).await;
}

#[tokio::test(start_paused = true)]
async fn refusals_are_told_apart() {
    lambda_checks::refusals_are_told_apart(cloud_of).await;
}

#[tokio::test(start_paused = true)]
async fn an_unhealthy_machine_is_waited_for() {
    let emulator = emulator();
    let cloud = cloud_of(emulator.clone());
    let subject = machine(&cloud).await;
    let driver = Driver::new(&cloud);
    let making = driver.make(&subject);
    let meanwhile = async {
        tokio::time::sleep(Duration::from_secs(60)).await;
        emulator.tell_all(Some("unhealthy"));
        tokio::time::sleep(Duration::from_secs(600)).await;
        emulator.tell_all(None);
    };
    let (place, ()) = tokio::join!(making, meanwhile);
    let known = subject.known(Some(place.unwrap()));
    emulator.tell_all(Some("unhealthy"));
    let sign = subject.sign(&*cloud.open(), &known).await;
    assert_eq!(sign, Some(Sign::Well));
    driver.remove(&known, &subject).await;
    assert_eq!(emulator.ledger().alive(), []);
}

#[tokio::test(start_paused = true)]
async fn a_key_that_the_account_has_is_used() {
    let emulator = emulator();
    let cloud = cloud_of(emulator.clone());
    let mut subject = machine(&cloud).await;
    let other = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIOtherOtherOtherOtherOtherOtherOtherOtherOt";
    subject.want.authorized_keys.push(other.to_owned());
    let project = subject.want.authorized_keys[0].clone();
    emulator.add_key("laptop", other);
    emulator.add_key(
        "mine",
        &format!("{} of mine", project.trim_end_matches(" dstack")),
    );
    Driver::new(&cloud).make(&subject).await.unwrap();
    assert_eq!(emulator.key_names(), ["laptop", "mine"]);
    let user_data = emulator.user_data().remove(0);
    let config: Value = serde_json::from_str(user_data.strip_prefix("#cloud-config\n").unwrap()).unwrap();
    assert_eq!(config["ssh_authorized_keys"], json!([project, other]));
}

#[tokio::test(start_paused = true)]
async fn requests_and_launches_are_as_far_apart_as_the_api_wants() {
    lambda_checks::requests_and_launches_are_as_far_apart_as_the_api_wants(cloud_of).await;
}

#[tokio::test(start_paused = true)]
async fn servers_that_register_a_key_at_once_share_it() {
    let emulator = emulator();
    let cloud = cloud_of(emulator.clone());
    let subjects = [machine(&cloud).await, machine(&cloud).await];
    let drivers = [Driver::new(&cloud), Driver::new(&cloud)];
    let (one, other) = tokio::join!(drivers[0].make(&subjects[0]), drivers[1].make(&subjects[1]));
    assert_ne!(one.unwrap().instance_id, other.unwrap().instance_id);
    assert_eq!(emulator.key_names().len(), 1);
}

pub(crate) async fn one_machine() -> (Cloud, dstack_backend_kit::Subject<dstack_compute::Machine>) {
    with_machine(cloud()).await
}

/// The reference's own code against this cloud: `reference.py` makes a machine, waits for it and removes it.
#[tokio::test]
async fn the_reference_finds_its_way_in_the_emulated_cloud() {
    let times = Times {
        boots: Duration::from_millis(100),
        ends: Duration::from_millis(100),
        shown: Duration::ZERO,
        launch_interval: Duration::ZERO,
        request_interval: Duration::ZERO,
    };
    let emulator = Lambda::with_times(CANARY, sizes(), times);
    let size = &sizes()[0];
    if !passes_with_the_reference("lambda", &emulator, &[CANARY, &size.name, &size.region]).await {
        return;
    }
    assert_eq!(emulator.ledger().alive(), []);
    assert_eq!(emulator.ledger().count(), 2);
    assert_eq!(emulator.key_names().len(), 1);
}
