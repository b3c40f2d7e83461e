use std::sync::{Arc, LazyLock};
use std::time::Duration;

use dstack_backend_kit::{
    CANARY, Cloud, Driver, Emulator as _, Subject, checks, checks_of, machine, passes_with_the_reference,
    sizes_of_catalog, with_machine, with_machines,
};
use dstack_compute::{ComputeError, Machine, Sign};
use dstack_emulator_lambda::{Lambda, Size, Times, USUAL};
use dstack_model::instances::InstanceAvailability;
use dstack_units::CpuArchitecture;
use serde_json::{Value, json};

/// All sizes of the catalogue.
fn sizes() -> Vec<Size> {
    static SIZES: LazyLock<Vec<Size>> = LazyLock::new(|| {
        sizes_of_catalog("lambdalabs", &["lambda-arm"], |row| Size {
            name: row.instance_name().to_owned(),
            region: row.location().to_owned(),
        })
    });
    SIZES.clone()
}

fn cloud_of(emulator: Lambda) -> Cloud {
    let config = |key: &str| json!({"type": "lambda", "creds": {"type": "api_key", "api_key": key}});
    let refused = vec![(config("wrong"), &["creds.api_key"][..])];
    Cloud::new(
        Arc::new(emulator),
        dstack_backend_lambda::kind,
        config(CANARY),
        refused,
    )
}

fn cloud() -> Cloud {
    cloud_of(Lambda::new(CANARY, sizes()))
}

async fn two_machines() -> (Cloud, Vec<Subject<Machine>>) {
    with_machines(cloud(), 2).await
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
    let all = sizes();
    let free = all[0].clone();
    let elsewhere = Size {
        region: "nowhere-1".to_owned(),
        ..all.iter().find(|size| size.name != free.name).unwrap().clone()
    };
    let cloud = cloud_of(Lambda::new(CANARY, vec![free.clone(), elsewhere]));
    let offers = cloud.offers(&Cloud::requirements()).await;
    assert!(offers.len() > 100, "{}", offers.len());
    let available = offers
        .iter()
        .filter(|offer| offer.availability == InstanceAvailability::Available);
    let places: Vec<_> = available
        .map(|offer| (&*offer.instance.name, &*offer.region))
        .collect();
    assert_eq!(places, [(&*free.name, &*free.region)]);
    let arm = |offer: &&dstack_model::offers::InstanceOfferWithAvailability| {
        offer.instance.resources.cpu_arch == Some(CpuArchitecture::Arm)
    };
    assert!(
        offers
            .iter()
            .filter(arm)
            .all(|offer| offer.instance.name.contains("gh200"))
    );
    assert!(offers.iter().any(|offer| arm(&offer)), "no GH200");
}

#[tokio::test(start_paused = true)]
async fn refusals_are_told_apart() {
    for (status, code) in [
        (400, "global/quota-exceeded"),
        (403, "global/invalid-address"),
        (403, "global/account-inactive"),
        (400, "global/invalid-parameters"),
    ] {
        let emulator = Lambda::new(CANARY, sizes());
        emulator.refuse_launches(status, code);
        let cloud = cloud_of(emulator);
        let subject = machine(&cloud).await;
        let error = Driver::new(&cloud).make(&subject).await.unwrap_err();
        let is_expected = match code {
            "global/quota-exceeded" => matches!(error, ComputeError::NoQuota(_)),
            "global/account-inactive" => matches!(error, ComputeError::Credentials(_)),
            _ => matches!(error, ComputeError::Refused(_)),
        };
        assert!(is_expected, "{code}: {error:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_unhealthy_machine_is_waited_for() {
    let emulator = Lambda::new(CANARY, sizes());
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
    let emulator = Lambda::new(CANARY, sizes());
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

/// The API takes one request a second, and one launch in twelve: whoever asks sooner is told 429, which is an error here.
#[tokio::test(start_paused = true)]
async fn requests_and_launches_are_as_far_apart_as_the_api_wants() {
    let times = Times {
        request_interval: Duration::from_secs(1),
        ..USUAL
    };
    let another = cloud();
    let subjects = [
        machine(&another).await,
        machine(&another).await,
        machine(&another).await,
    ];
    let emulator = Lambda::with_times(CANARY, sizes(), times);
    let cloud = cloud_of(emulator.clone());
    let backend = cloud.open();
    let lives = subjects.iter().map(async |subject| {
        let driver = Driver::with_backend(&cloud, Arc::clone(&backend));
        let place = driver.make(subject).await.unwrap();
        driver.remove(&subject.known(Some(place)), subject).await;
        let errors = driver.errors.lock().unwrap().clone();
        assert!(errors.iter().all(|error| !error.contains("429")), "{errors:?}");
    });
    futures_util::future::join_all(lives).await;
    assert_eq!(
        (emulator.ledger().count(), emulator.ledger().alive()),
        (3, Vec::new())
    );
}

#[tokio::test(start_paused = true)]
async fn servers_that_register_a_key_at_once_share_it() {
    let emulator = Lambda::new(CANARY, sizes());
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
