use std::sync::Arc;
use std::time::Duration;

use dstack_backend_kit::{
    CANARY, Cloud, Driver, Emulator as _, Fault, Subject, checks, checks_of, machine, machine_of,
    passes_with_the_reference, soak, with_machine, with_machines,
};
use dstack_compute::{ComputeError, Known, Machine, Removal, Sign};
use dstack_emulator_hotaisle::{
    HotAisle, INVITING_TEAM, Size, TEAM, Times, USUAL, VIEWING_KEY, server_size, virtual_size,
};
use dstack_model::offers::InstanceOfferWithAvailability;
use serde_json::{Value, json};

fn config(key: &str, team: &str, bare_metal: Option<bool>) -> Value {
    json!({"type": "hotaisle", "team_handle": team, "bare_metal": bare_metal, "creds": {"type": "api_key", "api_key": key}})
}

fn cloud_of(emulator: HotAisle, bare_metal: Option<bool>) -> Cloud {
    let refused = vec![
        (config("wrong", TEAM, bare_metal), &["creds.api_key"][..]),
        (config(VIEWING_KEY, TEAM, bare_metal), &["creds.api_key"][..]),
        (config(CANARY, "nobody", bare_metal), &["team_handle"][..]),
        (config(CANARY, INVITING_TEAM, bare_metal), &["team_handle"][..]),
    ];
    Cloud::new(
        Arc::new(emulator),
        dstack_backend_hotaisle::kind,
        config(CANARY, TEAM, bare_metal),
        refused,
    )
}

fn sizes() -> Vec<Size> {
    vec![virtual_size(1, 6), virtual_size(8, 1), server_size(4)]
}

/// Its cheapest offer is a virtual machine.
fn cloud() -> Cloud {
    cloud_of(HotAisle::new(CANARY, sizes()), Some(true))
}

/// All that it has are servers.
fn servers() -> Cloud {
    cloud_of(HotAisle::new(CANARY, vec![server_size(4)]), Some(true))
}

pub(crate) async fn one_machine() -> (Cloud, Subject<Machine>) {
    with_machine(cloud()).await
}

async fn one_server() -> (Cloud, Subject<Machine>) {
    with_machine(servers()).await
}

async fn offers_of(cloud: &Cloud) -> Vec<InstanceOfferWithAvailability> {
    cloud.offers(&Cloud::requirements()).await
}

/// The cheapest virtual machine, or the cheapest server.
async fn machine_of_kind(cloud: &Cloud, is_bare_metal: bool) -> Subject<Machine> {
    let start = if is_bare_metal { "bm-" } else { "vm-" };
    machine_of(cloud, &Cloud::requirements(), |offer| {
        offer.instance.name.starts_with(start)
    })
    .await
}

fn names(offers: &[InstanceOfferWithAvailability]) -> Vec<&str> {
    offers.iter().map(|offer| offer.instance.name.as_str()).collect()
}

async fn two_machines() -> (Cloud, Vec<Subject<Machine>>) {
    with_machines(cloud(), 2).await
}

async fn two_servers() -> (Cloud, Vec<Subject<Machine>>) {
    with_machines(servers(), 2).await
}

// What is forgotten before it is described cannot be found: there is no `left_behind` of virtual machines, and no `soak`.
checks_of!(machines: one_machine, two_machines;
    whole_life, sold_out, loss, any_fault_anywhere, another_attempt, neighbours, removed_before_listed);
checks_of!(servers: one_server, two_servers;
    whole_life, sold_out, loss, any_fault_anywhere, another_attempt, neighbours, left_behind, removed_before_listed);

#[tokio::test(start_paused = true)]
async fn credentials() {
    checks::credentials(&cloud()).await;
}

#[tokio::test(start_paused = true)]
async fn offers() {
    checks::offers(&cloud()).await;
}

#[tokio::test(start_paused = true)]
async fn servers_are_offered_where_they_are_wanted() {
    let all = offers_of(&cloud()).await;
    assert_eq!(names(&all), ["vm-mi300x-1", "vm-mi300x-8", "bm-mi300x-8"]);
    let gpu = &all[2].instance.resources.gpus[7];
    assert_eq!((gpu.name.as_str(), gpu.memory_mib), ("MI300X", 192 * 1024));
    assert_eq!((all[2].price, &*all[2].region), (15.92, "us-michigan-1"));
    assert_eq!(all[2].backend_data["bare_metal_specs"], server_size(1).specs);
    for bare_metal in [None, Some(false)] {
        let cloud = cloud_of(HotAisle::new(CANARY, sizes()), bare_metal);
        assert_eq!(names(&offers_of(&cloud).await), ["vm-mi300x-1", "vm-mi300x-8"]);
    }
}

#[tokio::test(start_paused = true)]
async fn one_list_of_what_is_free_does_without_the_other() {
    let emulator = HotAisle::new(CANARY, sizes());
    let cloud = cloud_of(emulator.clone(), Some(true));
    emulator.hide(Some("virtual_machines"));
    assert_eq!(names(&offers_of(&cloud).await), ["bm-mi300x-8"]);
    emulator.hide(Some("bare_metal"));
    assert_eq!(names(&offers_of(&cloud).await), ["vm-mi300x-1", "vm-mi300x-8"]);
    emulator.hide(Some("virtual_machines"));
    let only_virtual = cloud_of(emulator.clone(), None);
    only_virtual
        .open()
        .offers(&Cloud::requirements())
        .await
        .unwrap_err();
}

#[tokio::test(start_paused = true)]
async fn a_gpu_that_nobody_knows_is_left_out() {
    let mut unknown = virtual_size(1, 1);
    unknown.specs["gpus"][0]["model"] = json!("MI9999X");
    let mut without = virtual_size(1, 1);
    without.specs.as_object_mut().unwrap().remove("gpus");
    let cloud = cloud_of(
        HotAisle::new(CANARY, vec![unknown, without, virtual_size(8, 1)]),
        None,
    );
    assert_eq!(names(&offers_of(&cloud).await), ["vm-mi300x-8"]);
}

#[tokio::test(start_paused = true)]
async fn a_row_that_is_no_size_takes_no_others_away() {
    let emulator = HotAisle::new(CANARY, sizes());
    emulator.list_oddly();
    let cloud = cloud_of(emulator, Some(true));
    let all = offers_of(&cloud).await;
    assert_eq!(names(&all), ["vm-mi300x-1", "vm-mi300x-8", "bm-mi300x-8"]);
}

#[tokio::test(start_paused = true)]
async fn servers_have_the_time_that_an_installation_takes() {
    let cloud = cloud();
    let minutes = |name: &str| cloud.kind.provisioning_timeout(name).as_secs() / 60;
    assert_eq!((minutes("vm-mi300x-8"), minutes("bm-mi300x-8")), (10, 55));
}

#[tokio::test(start_paused = true)]
async fn a_server_is_reached_by_its_public_port() {
    let (cloud, subject) = one_server().await;
    let place = Driver::new(&cloud).make(&subject).await.unwrap();
    let address = (place.hostname.as_deref(), place.ssh_port);
    assert_eq!(address, (Some("192.0.2.20"), Some(2201)));
    assert!(place.instance_id.starts_with("dep-"), "{}", place.instance_id);
    // As dstack 0.22.5 reads it.
    let data: Value = serde_json::from_str(&place.backend_data.unwrap()).unwrap();
    assert_eq!(
        (&data["bare_metal"], &data["ip_address"]),
        (&json!(true), &json!("192.168.1.100"))
    );
}

#[tokio::test(start_paused = true)]
async fn refusals_are_told_apart() {
    let refused = async |sizes: Vec<Size>, status: u16, text: &'static str| {
        let emulator = HotAisle::new(CANARY, sizes);
        emulator.refuse(status, text);
        let cloud = cloud_of(emulator, Some(true));
        let subject = machine(&cloud).await;
        Driver::new(&cloud).make(&subject).await.unwrap_err()
    };
    let most = "Maximum VMs already provisioned for this team";
    let error = refused(sizes(), 401, most).await;
    assert_eq!(error, ComputeError::NoQuota(most.to_owned()));
    let error = refused(sizes(), 401, "Unauthorized").await;
    assert!(matches!(error, ComputeError::Credentials(_)), "{error:?}");
    let error = refused(sizes(), 402, "Insufficient balance to provision virtual machine").await;
    assert!(matches!(error, ComputeError::Refused(_)), "{error:?}");
    let error = refused(vec![server_size(1)], 403, "tenant limit exceeded").await;
    assert!(matches!(error, ComputeError::NoQuota(_)), "{error:?}");
    let error = refused(vec![server_size(1)], 403, "insufficient permissions").await;
    assert!(matches!(error, ComputeError::Credentials(_)), "{error:?}");
    let long: &'static str = "tenant limit exceeded\n ".repeat(1000).leak();
    let error = refused(vec![server_size(1)], 403, long).await.details();
    assert!(error.len() <= 600 && !error.contains('\n'), "{error}");
    let error = refused(vec![server_size(1)], 400, "insufficient resources").await;
    assert!(matches!(error, ComputeError::NoCapacity(_)), "{error:?}");
}

#[tokio::test(start_paused = true)]
async fn an_installation_that_fails_ends_the_attempt() {
    let emulator = HotAisle::new(CANARY, vec![server_size(1)]);
    emulator.fail_installations();
    let cloud = cloud_of(emulator.clone(), Some(true));
    let subject = machine(&cloud).await;
    let error = Driver::new(&cloud).make(&subject).await.unwrap_err();
    assert!(matches!(error, ComputeError::Broken(_)), "{error:?}");
    assert_eq!(emulator.ledger().alive(), []);
}

#[tokio::test(start_paused = true)]
async fn a_server_is_kept_for_the_time_that_it_is_paid_for() {
    let (cloud, subject) = one_server().await;
    let driver = Driver::new(&cloud);
    let asked = tokio::time::Instant::now();
    let place = driver.make(&subject).await.unwrap();
    driver.remove(&subject.known(Some(place)), &subject).await;
    assert!(asked.elapsed() >= USUAL.minimum);
    assert!(driver.errors.lock().unwrap()[0].contains("minimum reservation"));
}

/// The name of a virtual machine is given to another one after its end.
#[tokio::test(start_paused = true)]
async fn a_machine_that_has_the_name_of_another_is_left_alone() {
    let (cloud, first) = one_machine().await;
    let second = machine(&cloud).await;
    let drivers = [Driver::new(&cloud), Driver::new(&cloud)];
    let gone = first.known(Some(drivers[0].make(&first).await.unwrap()));
    cloud.emulator.lose_all();
    let there = second.known(Some(drivers[1].make(&second).await.unwrap()));
    let id = |known: &Known<Machine>| known.place.as_ref().unwrap().instance_id.clone();
    assert_eq!(id(&gone), id(&there));
    let backend = cloud.open();
    let signs = backend
        .machines()
        .unwrap()
        .look(&[gone.clone(), there.clone()])
        .await
        .unwrap();
    assert!(
        matches!(signs.as_slice(), [Some(Sign::Lost(_)), Some(Sign::Well)]),
        "{signs:?}"
    );
    drivers[0].remove(&gone, &first).await;
    assert_eq!(cloud.emulator.ledger().alive().len(), 1);
    drivers[1].remove(&there, &second).await;
    assert_eq!(cloud.emulator.ledger().alive(), []);
}

/// Also where somebody made it by hand, without any description.
#[tokio::test(start_paused = true)]
async fn a_machine_by_hand_that_has_the_name_of_another_is_left_alone() {
    for description in ["", "mine"] {
        for is_bare_metal in [false, true] {
            let emulator = HotAisle::new(CANARY, sizes());
            emulator.give_no_ids();
            let cloud = cloud_of(emulator.clone(), Some(true));
            let subject = machine_of_kind(&cloud, is_bare_metal).await;
            let driver = Driver::new(&cloud);
            let place = driver.make(&subject).await.unwrap();
            let id = place.instance_id.clone();
            let gone = subject.known(Some(place));
            cloud.emulator.lose_all();
            let by_hand = match is_bare_metal {
                true => emulator.reserve_by_hand(),
                false => emulator.make_by_hand(1),
            };
            assert_eq!(by_hand, id);
            emulator.describe(&by_hand, description);
            let sign = subject.sign(&*cloud.open(), &gone).await;
            assert!(matches!(sign, Some(Sign::Lost(_))), "{sign:?}");
            driver.remove(&gone, &subject).await;
            assert_eq!(emulator.descriptions(), [description]);
        }
    }
}

/// What dstack 0.22.5 made has no notes: a virtual machine has no description, a server the name of the instance.
#[tokio::test(start_paused = true)]
async fn machines_of_before_are_taken_over() {
    for is_bare_metal in [false, true] {
        let emulator = HotAisle::new(CANARY, sizes());
        let cloud = cloud_of(emulator.clone(), Some(true));
        let subject = machine_of_kind(&cloud, is_bare_metal).await;
        let mut place = Driver::new(&cloud).make(&subject).await.unwrap();
        let mut data: Value = serde_json::from_str(place.backend_data.as_ref().unwrap()).unwrap();
        for field in ["server", "marked"] {
            data.as_object_mut().unwrap().remove(field);
        }
        place.backend_data = Some(data.to_string());
        let name = emulator.ledger().alive()[0].id.clone();
        let description = if is_bare_metal {
            &subject.want.marks.name
        } else {
            ""
        };
        emulator.describe(&name, description);
        let known = subject.known(Some(place));
        let sign = subject.sign(&*cloud.open(), &known).await;
        assert_eq!(sign, Some(Sign::Well));
        Driver::new(&cloud).remove(&known, &subject).await;
        assert_eq!(emulator.ledger().alive(), []);
    }
}

/// The request is lost on the way, and somebody makes a machine of another size by hand meanwhile.
#[tokio::test(start_paused = true)]
async fn a_machine_of_another_size_is_not_taken() {
    let emulator = HotAisle::new(CANARY, sizes());
    let cloud = cloud_of(emulator.clone(), None);
    let subject = machine(&cloud).await;
    let driver = Driver::new(&cloud);
    cloud.faults().at(3, Fault::KilledBefore);
    driver.make_until_killed(&subject).await;
    let by_hand = emulator.make_by_hand(8);
    let place = driver.make(&subject).await.unwrap();
    assert_ne!(place.instance_id, by_hand);
    driver.remove(&subject.known(Some(place)), &subject).await;
    assert_eq!(emulator.descriptions(), [""]);
}

/// A gateway says that it is not found: only a list without it is believed.
#[tokio::test(start_paused = true)]
async fn what_is_not_found_is_not_gone_while_it_is_listed() {
    for (emulator, bare_metal) in [
        (HotAisle::new(CANARY, sizes()), None),
        (HotAisle::new(CANARY, vec![server_size(1)]), Some(true)),
    ] {
        let cloud = cloud_of(emulator.clone(), bare_metal);
        let subject = machine(&cloud).await;
        let driver = Driver::new(&cloud);
        let going_on = async {
            tokio::time::sleep(Duration::from_secs(150)).await;
            emulator.mislay(true);
            tokio::time::sleep(Duration::from_secs(150)).await;
            emulator.mislay(false);
        };
        let (made, ()) = tokio::join!(driver.make(&subject), going_on);
        let known = subject.known(Some(made.unwrap()));
        emulator.mislay(true);
        let sign = subject.sign(&*cloud.open(), &known).await;
        assert_eq!(sign, Some(Sign::Well));
        let removal = tokio::time::timeout(Duration::from_secs(3600), driver.remove(&known, &subject));
        removal.await.unwrap_err();
        let owned = cloud.open().inventory().await.unwrap().remove(0);
        let removal = cloud.open().remove_owned(&owned).await;
        assert_ne!(removal, Ok(Removal::Gone));
        assert_eq!(emulator.ledger().alive().len(), 1);
        emulator.mislay(false);
        driver.remove(&known, &subject).await;
        assert_eq!(emulator.ledger().alive(), []);
    }
}

/// The answer to the making of a machine is lost, and somebody makes another one by hand: nobody knows which is whose, and nothing is deleted
/// until somebody says so.
#[tokio::test(start_paused = true)]
async fn a_machine_that_may_be_of_somebody_else_is_not_touched() {
    let emulator = HotAisle::new(CANARY, sizes());
    let cloud = cloud_of(emulator.clone(), None);
    let before = emulator.make_by_hand(1);
    let subject = machine(&cloud).await;
    let driver = Driver::new(&cloud);
    // The keys, the list of what is there, and the making.
    cloud.faults().at(3, Fault::KilledAfter);
    driver.make_until_killed(&subject).await;
    assert!(cloud.faults().happened());
    let by_hand = emulator.make_by_hand(1);
    let known = subject.known(None);
    let removal = tokio::time::timeout(Duration::from_secs(3600), driver.remove(&known, &subject));
    removal.await.unwrap_err();
    assert_eq!(emulator.ledger().alive().len(), 3);
    let errors = driver.errors.lock().unwrap().clone();
    assert!(errors.last().unwrap().contains(&by_hand), "{errors:?}");
    emulator.describe(&by_hand, "mine");
    driver.remove(&known, &subject).await;
    let left: Vec<String> = emulator
        .ledger()
        .alive()
        .into_iter()
        .map(|entry| entry.id)
        .collect();
    assert_eq!(left, [before, by_hand]);
}

#[tokio::test(start_paused = true)]
async fn only_the_key_of_the_project_is_registered() {
    let emulator = HotAisle::new(CANARY, sizes());
    let cloud = cloud_of(emulator.clone(), None);
    let mut subject = machine(&cloud).await;
    let keys = &mut subject.want.authorized_keys;
    keys.push("ssh-ed25519 AAAAother".to_owned());
    let project: Vec<String> = keys[0].split_whitespace().take(2).map(str::to_owned).collect();
    Driver::new(&cloud).make(&subject).await.unwrap();
    assert_eq!(emulator.keys(), [project.join(" ")]);
}

#[tokio::test(start_paused = true)]
async fn machines_that_are_made_at_once_are_told_apart() {
    for nth in 1..16 {
        let emulator = HotAisle::new(CANARY, sizes());
        let cloud = cloud_of(emulator.clone(), None);
        let subjects = [
            machine(&cloud).await,
            machine(&cloud).await,
            machine(&cloud).await,
        ];
        cloud.faults().from(nth, 2, Fault::AnswerLost);
        let drivers = [Driver::new(&cloud), Driver::new(&cloud), Driver::new(&cloud)];
        let places = tokio::join!(
            drivers[0].make(&subjects[0]),
            drivers[1].make(&subjects[1]),
            drivers[2].make(&subjects[2])
        );
        let mut places = vec![places.0.unwrap(), places.1.unwrap(), places.2.unwrap()];
        assert_eq!(emulator.ledger().alive().len(), 3, "{nth}");
        places.dedup_by_key(|place| place.instance_id.clone());
        assert_eq!(places.len(), 3, "{nth}");
        for ((driver, subject), place) in drivers.iter().zip(&subjects).zip(places) {
            driver.remove(&subject.known(Some(place)), subject).await;
        }
        assert_eq!(emulator.ledger().alive(), [], "{nth}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_machine_that_is_made_already_does_not_wait_for_others() {
    let cloud = cloud();
    let (first, second) = (machine(&cloud).await, machine(&cloud).await);
    let backend = cloud.open();
    let drivers = [&backend, &backend].map(|backend| Driver::with_backend(&cloud, Arc::clone(backend)));
    let asked = tokio::time::Instant::now();
    let later = async {
        tokio::time::sleep(Duration::from_secs(55)).await;
        // The key, the list of what is there, and the making.
        cloud.faults().at(3, Fault::SlowAnswer(Duration::from_secs(50)));
        drivers[1].make(&second).await.unwrap();
    };
    let first = async {
        drivers[0].make(&first).await.unwrap();
        asked.elapsed()
    };
    let (took, ()) = tokio::join!(first, later);
    assert!(took < Duration::from_secs(80), "{took:?}");
}

/// One is gone before it could be described, and the next one gets its name.
#[tokio::test(start_paused = true)]
async fn the_name_of_one_that_is_gone_does_not_hide_another() {
    let emulator = HotAisle::new(CANARY, sizes());
    let cloud = cloud_of(emulator.clone(), None);
    let (first, second) = (machine(&cloud).await, machine(&cloud).await);
    let backend = cloud.open();
    let drivers = [&backend, &backend].map(|backend| Driver::with_backend(&cloud, Arc::clone(backend)));
    emulator.lag(Duration::from_secs(30));
    let making = tokio::time::timeout(Duration::from_secs(5), drivers[0].make(&first));
    making.await.unwrap_err();
    emulator.lose_all();
    emulator.lag(Duration::ZERO);
    drivers[0].remove(&first.known(None), &first).await;
    // The key, the list of what is there, and the making.
    cloud.faults().at(3, Fault::AnswerLost);
    let place = drivers[1].make(&second).await.unwrap();
    assert_eq!(emulator.ledger().alive().len(), 1);
    drivers[1].remove(&second.known(Some(place)), &second).await;
    assert_eq!(emulator.ledger().alive(), []);
}

/// What is asked for takes effect late, twice: each waits until it is known what came of the one before.
#[tokio::test(start_paused = true)]
async fn machines_that_are_made_late_are_told_apart() {
    let emulator = HotAisle::new(CANARY, sizes());
    let cloud = cloud_of(emulator.clone(), None);
    let (first, second) = (machine(&cloud).await, machine(&cloud).await);
    let backend = cloud.open();
    let drivers = [&backend, &backend].map(|backend| Driver::with_backend(&cloud, Arc::clone(backend)));
    let late = Fault::Late(Duration::from_secs(115));
    // The key, the list of what is there, and the making.
    cloud.faults().at(3, late);
    let later = async {
        tokio::time::sleep(Duration::from_secs(111)).await;
        cloud.faults().at(3, late);
        drivers[1].make(&second).await.unwrap()
    };
    let (made, later) = tokio::join!(drivers[0].make(&first), later);
    tokio::time::sleep(Duration::from_secs(300)).await;
    drivers[0].remove(&first.known(Some(made.unwrap())), &first).await;
    drivers[1].remove(&second.known(Some(later)), &second).await;
    assert_eq!(emulator.ledger().alive(), []);
}

/// The reference's own code against this cloud: `reference.py` makes one of each, waits for it and removes it.
#[tokio::test]
async fn the_reference_finds_its_way_in_the_emulated_cloud() {
    let times = Times {
        starts: Duration::from_millis(100),
        installs: Duration::from_millis(100),
        minimum: Duration::from_millis(500),
    };
    let emulator = HotAisle::with_times(CANARY, sizes(), times);
    if !passes_with_the_reference("hotaisle", &emulator, &[CANARY, TEAM]).await {
        return;
    }
    assert_eq!(emulator.ledger().alive(), []);
    assert_eq!((emulator.ledger().count(), emulator.keys().len()), (2, 1));
}

#[tokio::test(start_paused = true)]
async fn many_lives_of_servers() {
    let cloud = cloud_of(HotAisle::new(CANARY, vec![server_size(100)]), Some(true));
    let subject = machine(&cloud).await;
    soak(&cloud, &subject).await;
}
