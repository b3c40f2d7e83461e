//! The checks. Each panics with what is wrong.

use std::any::Any;
use std::time::Duration;

use dstack_compute::config::BackendConfig;
use dstack_compute::{ComputeError, ConfigureError, Owned, OwnedKind, Resource, Sign};
use dstack_model::runs::JobProvisioningData;

use crate::{CANARY, Cloud, Driver, Fault, Subject};

/// Longer than anything takes that was sent before: late requests have arrived.
const AFTERWARDS: Duration = Duration::from_secs(10 * 60);

/// No life of a thing takes more requests.
const MOST_REQUESTS: usize = 90;

/// Good credentials are taken; of bad ones, the field at fault is named, and nothing of the secret is shown.
pub async fn credentials(cloud: &Cloud) {
    let config = BackendConfig::read(&cloud.config).unwrap();
    let stored = cloud.kind.configure("main", &config).await.unwrap();
    assert!(
        !stored.config.contains(CANARY),
        "a secret stands in {}",
        stored.config
    );
    assert!(!cloud.refused.is_empty(), "no configuration is refused");
    for (refused, expected) in &cloud.refused {
        let config = BackendConfig::read(refused).unwrap();
        let error = cloud.kind.configure("main", &config).await.unwrap_err();
        let ConfigureError::Credentials { fields, .. } = &error else {
            panic!("{refused}: {error:?}");
        };
        let paths: Vec<String> = fields.iter().map(|path| path.join(".")).collect();
        assert_eq!(paths, *expected, "{refused}");
        assert!(!format!("{error:?}").contains(CANARY), "{error:?}");
    }
    cloud.faults().from(1, 10, Fault::Refused(500));
    let error = cloud.kind.configure("main", &config).await.unwrap_err();
    assert!(
        matches!(error, ConfigureError::Invalid(_)),
        "a cloud that is away is not a wrong credential: {error:?}"
    );
}

/// There are offers, of this backend; nothing secret is shown of it.
pub async fn offers(cloud: &Cloud) {
    let backend = cloud.open();
    let offers = backend.offers(&Cloud::requirements()).await.unwrap();
    assert!(!offers.is_empty());
    for offer in &offers {
        assert_eq!(offer.backend, cloud.kind.kind());
        assert!(
            !offer.region.is_empty() && !offer.instance.name.is_empty(),
            "{offer:?}"
        );
    }
    assert!(!format!("{backend:?}").contains(CANARY), "{backend:?}");
}

/// Made, found in the inventory, looked at, removed, and removed again.
pub async fn whole_life<R: Resource>(cloud: &Cloud, subject: &Subject<R>)
where
    R::Place: 'static,
{
    let driver = Driver::new(cloud);
    let place = driver.make(subject).await.unwrap();
    assert_eq!((subject.problem)(&place), None);
    // Asked for each time: a real cloud brings its books up to date only then.
    let now_alive = || cloud.emulator.ledger().alive();
    let alive = now_alive();
    assert!(!alive.is_empty());
    // Made again after it is there, it is the same.
    assert_eq!(driver.make(subject).await.unwrap(), place);
    assert_eq!(now_alive(), alive);
    let backend = cloud.open();
    let inventory = backend.inventory().await.unwrap();
    for entry in &alive {
        let owned = inventory.iter().find(|owned| owned.id == entry.id);
        let owned = owned.unwrap_or_else(|| panic!("{entry:?} is not in {inventory:?}"));
        assert!(owned.mark.is_for(&subject.marks), "{owned:?}");
    }
    // What is known to be in use is told from what is not by that.
    let called = (subject.called)(&place);
    let is_called = |owned: &Owned| owned.id == called || owned.name == called;
    assert!(
        called.is_empty() || inventory.iter().any(is_called),
        "{called} is not in {inventory:?}"
    );
    if let Some(place) = (&place as &dyn Any).downcast_ref::<JobProvisioningData>() {
        // Another with these marks would be one too many.
        let is_own = |owned: &&Owned| {
            matches!(owned.kind, OwnedKind::Machine | OwnedKind::Container) && backend.is_at(owned, place)
        };
        let own: Vec<&Owned> = inventory.iter().filter(is_own).collect();
        assert_eq!(own.len(), 1, "{place:?} is not one of {inventory:?}");
    }
    let lifecycle = (subject.lifecycle)(backend.as_ref()).unwrap();
    let known = subject.known(Some(place));
    let signs = lifecycle.look(std::slice::from_ref(&known)).await.unwrap();
    assert!(matches!(signs.as_slice(), [Sign::Well]), "{signs:?}");
    for _ in 0..2 {
        driver.remove(&known, subject).await;
        assert_eq!(now_alive(), []);
    }
    let left = cloud.open().inventory().await.unwrap();
    assert_eq!(left, []);
}

/// Nothing is to be had: a definite error that lets another offer be tried, and nothing is left.
pub async fn sold_out<R: Resource>(cloud: &Cloud, subject: &Subject<R>) {
    cloud.emulator.sell_out(true);
    let error = Driver::new(cloud).make(subject).await.unwrap_err();
    assert!(
        matches!(error, ComputeError::NoCapacity(_) | ComputeError::NoQuota(_)),
        "{error:?}"
    );
    assert_eq!(cloud.emulator.ledger().alive(), []);
}

/// What breaks is seen.
pub async fn loss<R: Resource>(cloud: &Cloud, subject: &Subject<R>) {
    let driver = Driver::new(cloud);
    let place = driver.make(subject).await.unwrap();
    cloud.emulator.lose_all();
    let known = subject.known(Some(place));
    let backend = cloud.open();
    let lifecycle = (subject.lifecycle)(backend.as_ref()).unwrap();
    let signs = lifecycle.look(std::slice::from_ref(&known)).await.unwrap();
    assert!(matches!(signs.as_slice(), [Sign::Lost(_)]), "{signs:?}");
    driver.remove(&known, subject).await;
    assert_eq!(cloud.emulator.ledger().alive(), []);
}

/// Whatever happens to any one request while a thing is made or removed, and however late the cloud lists it: it is made once,
/// and nothing of it is left.
pub async fn any_fault_anywhere<R: Resource, C: AsyncFn() -> (Cloud, Subject<R>)>(fresh: C) {
    for fault in Fault::ALL {
        for lag in [Duration::ZERO, Duration::from_secs(20)] {
            let mut nth = 1;
            while fault_at(&fresh, *fault, lag, nth).await {
                nth += 1;
                assert!(
                    nth < MOST_REQUESTS,
                    "a life of more than {MOST_REQUESTS} requests"
                );
            }
            assert!(nth > 2, "{fault:?} never happened");
        }
    }
}

/// One life with one fault; whether it happened.
async fn fault_at<R: Resource, C: AsyncFn() -> (Cloud, Subject<R>)>(
    fresh: &C,
    fault: Fault,
    lag: Duration,
    nth: usize,
) -> bool {
    let (cloud, subject) = fresh().await;
    let what = format!("{fault:?} at request {nth}, listed after {lag:?}");
    cloud.emulator.lag(lag);
    cloud.faults().at(nth, fault);
    let driver = Driver::new(&cloud);
    let place = driver.make(&subject).await;
    let place = place
        .inspect_err(|error| assert!(error.is_definite(), "{what}: {error:?}"))
        .ok();
    tokio::time::sleep(AFTERWARDS).await;
    let ledger = cloud.emulator.ledger();
    assert_eq!(ledger.doubled(), Vec::<String>::new(), "{what}");
    match place {
        Some(place) => driver.remove(&subject.known(Some(place)), &subject).await,
        None => assert_eq!(
            ledger.alive(),
            [],
            "{what}: left behind by an attempt that failed"
        ),
    }
    tokio::time::sleep(AFTERWARDS).await;
    assert_eq!(ledger.alive(), [], "{what}");
    let shown = driver.errors.lock().unwrap().join("\n");
    assert!(!shown.contains(CANARY), "{what}: a secret is shown in {shown}");
    cloud.faults().happened()
}

/// After what was made is removed, another attempt under the same marks, whose answers are lost one after the other: another thing is
/// made, once, and what the first attempt left in lists is not taken for it.
pub async fn another_attempt<R: Resource, C: AsyncFn() -> (Cloud, Subject<R>)>(fresh: C) {
    for nth in 1..MOST_REQUESTS {
        let (cloud, subject) = fresh().await;
        let ledger = cloud.emulator.ledger();
        let first = Driver::new(&cloud);
        let place = first.make(&subject).await.unwrap();
        first.remove(&subject.known(Some(place)), &subject).await;
        let made = cloud.emulator.ledger().count();

        cloud.faults().at(nth, Fault::AnswerLost);
        let second = Driver::new(&cloud);
        let place = second.make(&subject).await;
        let place = place.unwrap_or_else(|error| panic!("the answer to request {nth} lost: {error:?}"));
        assert!(cloud.emulator.ledger().count() > made, "nothing was made");
        tokio::time::sleep(AFTERWARDS).await;
        assert_eq!(
            ledger.doubled(),
            Vec::<String>::new(),
            "the answer to request {nth} lost"
        );
        second.remove(&subject.known(Some(place)), &subject).await;
        assert_eq!(
            cloud.emulator.ledger().alive(),
            [],
            "the answer to request {nth} lost"
        );
        if !cloud.faults().happened() {
            return;
        }
    }
    panic!("a life of more than {MOST_REQUESTS} requests");
}
