//! The checks. Each panics with what is wrong.

use std::any::Any;
use std::fmt::Debug;
use std::time::Duration;

use dstack_compute::config::BackendConfig;
use dstack_compute::{ComputeError, ConfigureError, Owned, OwnedKind, Resource, Sign};
use dstack_model::runs::JobProvisioningData;

use crate::{CANARY, Cloud, Driver, Entry, Fault, Subject};

/// Longer than anything takes that was sent before: late requests have arrived.
const AFTERWARDS: Duration = Duration::from_secs(10 * 60);

/// A call that returns soon has returned by then, where nothing is wrong.
const SOON: Duration = Duration::from_secs(60);

/// A cloud that cannot be used now, in all ways.
const AWAY: &[Fault] = &[
    Fault::NotSent,
    Fault::Lost,
    Fault::Refused(429),
    Fault::Refused(500),
    Fault::DoneAndBusy,
];

/// What a proxy answers that does not know the cloud. Where an address is configured, that may as well be wrong.
const UNKNOWN: Fault = Fault::Refused(404);

/// When what was made is listed, of a cloud that takes long: within [`LISTED_WITHIN`](dstack_compute::LISTED_WITHIN).
const LATE_LISTED: Duration = Duration::from_secs(50);

/// Pause before orphans are looked for again.
const PAUSE_OF_SWEEPS: Duration = Duration::from_secs(10);

/// For as many requests as anything takes.
const LONG: usize = 1000;

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
        assert_hidden(&error);
    }
    // Where the address is part of the credentials, one that cannot be reached may be wrong.
    for fault in AWAY.iter().filter(|fault| **fault != Fault::NotSent) {
        cloud.faults().from(1, LONG, *fault);
        let error = cloud.kind.configure("main", &config).await.unwrap_err();
        assert!(
            matches!(error, ConfigureError::Invalid(_)),
            "a cloud that is away ({fault:?}) is not a wrong credential: {error:?}"
        );
        assert_hidden(&error);
    }
    cloud.faults().from(1, LONG, Fault::Refused(401));
    assert_hidden(&cloud.kind.configure("main", &config).await.unwrap_err());
    cloud.faults().none();
}

/// No credential stands in an error, as it is written to logs.
fn assert_hidden(error: &impl Debug) {
    let shown = format!("{error:?}");
    assert!(!shown.contains(CANARY), "a secret is shown in {shown}");
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
    assert_hidden(&backend);
    for fault in AWAY {
        cloud.faults().from(1, LONG, *fault);
        // A backend may know its offers without its cloud.
        let asked = cloud.open().offers(&Cloud::requirements()).await;
        asked.as_ref().err().iter().for_each(assert_hidden);
    }
    cloud.faults().none();
}

/// Made, found in the inventory, looked at, removed, and removed again.
pub async fn whole_life<R: Resource>(cloud: &Cloud, subject: &Subject<R>)
where
    R::Place: 'static,
{
    let driver = Driver::new(cloud);
    let place = driver.make(subject).await.unwrap();
    assert_eq!((subject.problem)(&place), None);
    let longest = driver.longest_call();
    assert!(longest < SOON, "a call took {longest:?}: it is to return soon");
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
    assert!(matches!(signs.as_slice(), [Some(Sign::Well)]), "{signs:?}");
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

/// What breaks is seen, and what the cloud does not tell of is not taken for broken.
pub async fn loss<R: Resource>(cloud: &Cloud, subject: &Subject<R>) {
    let driver = Driver::new(cloud);
    let place = driver.make(subject).await.unwrap();
    let known = subject.known(Some(place));
    let backend = cloud.open();
    let lifecycle = (subject.lifecycle)(backend.as_ref()).unwrap();
    for fault in AWAY.iter().chain([&UNKNOWN]) {
        cloud.faults().from(1, LONG, *fault);
        match lifecycle.look(std::slice::from_ref(&known)).await {
            Err(error) => assert_hidden(&error),
            // Of a real cloud, none can be kept from it.
            Ok(_) if !cloud.faults().happened() => {}
            Ok(signs) => assert!(
                matches!(signs.as_slice(), [None]),
                "a cloud that is away ({fault:?}) tells nothing: {signs:?}"
            ),
        }
    }
    cloud.faults().none();
    cloud.emulator.lose_all();
    let signs = lifecycle.look(std::slice::from_ref(&known)).await.unwrap();
    assert!(matches!(signs.as_slice(), [Some(Sign::Lost(_))]), "{signs:?}");
    driver.remove(&known, subject).await;
    assert_eq!(cloud.emulator.ledger().alive(), []);
}

/// Of two places (regions, clusters) the second, in whose addresses `there` is, does not answer: nothing is told of what is there, and
/// of what is in the first what is so.
pub async fn a_place_away<R: Resource>(cloud: &Cloud, subjects: &[Subject<R>; 2], there: &str) {
    let backend = cloud.open();
    let mut known = Vec::new();
    for subject in subjects {
        let place = Driver::new(cloud).make(subject).await.unwrap();
        known.push(subject.known(Some(place)));
    }
    let lifecycle = (subjects[0].lifecycle)(backend.as_ref()).unwrap();
    cloud.faults().away(Some(there));
    let signs = lifecycle.look(&known).await.unwrap();
    assert!(matches!(signs.as_slice(), [Some(Sign::Well), None]), "{signs:?}");
    cloud.emulator.lose_all();
    let signs = lifecycle.look(&known).await.unwrap();
    assert!(
        matches!(signs.as_slice(), [Some(Sign::Lost(_)), None]),
        "{signs:?}"
    );
    cloud.faults().away(None);
    let signs = lifecycle.look(&known).await.unwrap();
    assert!(
        matches!(signs.as_slice(), [Some(Sign::Lost(_)), Some(Sign::Lost(_))]),
        "{signs:?}"
    );
}

/// Whatever happens to any one request while a thing is made or removed, and however late the cloud lists it: it is made once,
/// and nothing of it is left.
pub async fn any_fault_anywhere<R: Resource, C: AsyncFn() -> (Cloud, Subject<R>)>(fresh: C) {
    for fault in Fault::ALL {
        for lag in [Duration::ZERO, LATE_LISTED] {
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

/// Several things, best in several regions, with one of another installation for a row of the same key: each is told from the others,
/// whichever answer is lost while it is made or removed, and ends alone. The first is made last.
pub async fn neighbours<R: Resource, C: AsyncFn() -> (Cloud, Vec<Subject<R>>)>(fresh: C) {
    are_told_apart(Neighbours::of(&fresh).await).await;
    for nth in 1..MOST_REQUESTS {
        let around = Neighbours::of(&fresh).await;
        around.cloud.faults().at(nth, Fault::AnswerLost);
        around.live(&format!("the answer to request {nth} lost")).await;
        if !around.cloud.faults().happened() {
            break;
        }
        assert!(nth + 1 < MOST_REQUESTS, "a life of more requests");
    }
    for nth in 1..MOST_REQUESTS {
        let around = Neighbours::of(&fresh).await;
        around.cloud.faults().at(nth, Fault::KilledAfter);
        around.give_up(&format!("given up after request {nth}")).await;
        if !around.cloud.faults().happened() {
            return;
        }
    }
    panic!("a life of more than {MOST_REQUESTS} requests");
}

/// One that is made and removed, and those around it, which are there.
struct Neighbours<R: Resource> {
    cloud: Cloud,
    subject: Subject<R>,
    others: Vec<Subject<R>>,
    /// What there is of the others.
    before: Vec<Entry>,
}

impl<R: Resource> Neighbours<R> {
    async fn of<C: AsyncFn() -> (Cloud, Vec<Subject<R>>)>(fresh: &C) -> Self {
        let (cloud, mut others) = fresh().await;
        let subject = others.remove(0);
        others.push(subject.of_another_installation());
        for other in &others {
            Driver::new(&cloud).make(other).await.unwrap();
        }
        let before = cloud.emulator.ledger().alive();
        Self {
            cloud,
            subject,
            others,
            before,
        }
    }

    async fn live(&self, what: &str) {
        let driver = Driver::new(&self.cloud);
        let place = self.make(&driver, what).await;
        driver
            .remove(&self.subject.known(Some(place)), &self.subject)
            .await;
        self.others_stay(what);
    }

    async fn make(&self, driver: &Driver<'_>, what: &str) -> R::Place {
        let place = driver.make(&self.subject).await.unwrap();
        let own = self.cloud.emulator.ledger().alive().len() - self.before.len();
        assert_eq!(
            own,
            self.before.len() / self.others.len(),
            "{what}: a neighbour was taken for it"
        );
        place
    }

    /// Made as far as a control plane gets that is killed, and removed by what was noted.
    async fn give_up(&self, what: &str) {
        let driver = Driver::new(&self.cloud);
        let made = driver.make_until_killed(&self.subject).await;
        let place = made.map(Result::unwrap);
        driver.remove(&self.subject.known(place), &self.subject).await;
        self.others_stay(what);
    }

    fn others_stay(&self, what: &str) {
        let alive = self.cloud.emulator.ledger().alive();
        assert_eq!(alive, self.before, "{what}: others are to stay");
    }
}

/// All are in the inventory, and one of them ends alone.
async fn are_told_apart<R: Resource>(around: Neighbours<R>) {
    let driver = Driver::new(&around.cloud);
    let place = around.make(&driver, "no fault").await;
    are_listed(&around.cloud, around.others.iter().chain([&around.subject])).await;
    driver
        .remove(&around.subject.known(Some(place)), &around.subject)
        .await;
    around.others_stay("no fault");
}

/// Removed before the cloud lists it, by what was noted until the control plane was killed, also where one of the answers to the removal
/// is lost (any of the first seven, of later ones each third): nothing of it is left.
pub async fn removed_before_listed<R: Resource, C: AsyncFn() -> (Cloud, Subject<R>)>(fresh: C) {
    for nth in 1..MOST_REQUESTS {
        let mut was_killed = false;
        for lost in lost_in_removal() {
            let has_more;
            (was_killed, has_more) = removed_after(&fresh, nth, lost).await;
            if !has_more {
                break;
            }
        }
        if !was_killed {
            assert!(nth > 1, "it takes no request");
            return;
        }
    }
    panic!("a life of more than {MOST_REQUESTS} requests");
}

/// Which answers to a removal are lost, one in each; none in the first. Later ones are those of the same calls, made again and again
/// until the cloud lists the thing: some of them do.
fn lost_in_removal() -> impl Iterator<Item = usize> {
    (0..8).chain((8..40).step_by(3))
}

/// A making that is killed after its `nth` request, and a removal at once, of which the answer to request `lost` is lost (0: none);
/// whether it was killed, and whether there may be more answers to lose.
async fn removed_after<R: Resource, C: AsyncFn() -> (Cloud, Subject<R>)>(
    fresh: &C,
    nth: usize,
    lost: usize,
) -> (bool, bool) {
    let (cloud, subject) = fresh().await;
    let what = format!("killed after request {nth}, the answer to request {lost} of the removal lost");
    cloud.emulator.lag(LATE_LISTED);
    cloud.faults().at(nth, Fault::KilledAfter);
    let driver = Driver::new(&cloud);
    let place = driver.make_until_killed(&subject).await.map(Result::unwrap);
    let was_killed = cloud.faults().happened();
    let ledger = cloud.emulator.ledger();
    let is_there = !ledger.alive().is_empty();
    cloud.faults().at(lost, Fault::AnswerLost);
    driver.remove(&subject.known(place), &subject).await;
    let was_lost = cloud.faults().happened();
    tokio::time::sleep(AFTERWARDS).await;
    let left = cloud.emulator.ledger().alive();
    assert_eq!(left, [], "{what}: it is left");
    (was_killed, is_there && (lost == 0 || was_lost))
}

/// All that is there is in the inventory under the marks of one of these; an inventory that is not whole is an error.
async fn are_listed<'a, R: Resource>(cloud: &Cloud, subjects: impl Iterator<Item = &'a Subject<R>>) {
    let subjects: Vec<_> = subjects.collect();
    let whole = cloud.open().inventory().await.unwrap();
    for entry in cloud.emulator.ledger().alive() {
        let owned = whole.iter().find(|owned| owned.id == entry.id);
        let owned = owned.unwrap_or_else(|| panic!("{entry:?} is not in {whole:?}"));
        let of = subjects
            .iter()
            .filter(|subject| owned.mark.is_for(&subject.marks));
        assert_eq!(of.count(), 1, "{owned:?} is of one request");
    }
    for nth in 1..MOST_REQUESTS {
        cloud.faults().from(nth, LONG, Fault::Refused(500));
        let told = cloud.open().inventory().await;
        let happened = cloud.faults().happened();
        cloud.faults().none();
        match told {
            Err(error) => assert_hidden(&error),
            Ok(told) => assert_eq!(told, whole, "an inventory that is not whole is an error"),
        }
        if !happened {
            return;
        }
    }
    panic!("an inventory of more than {MOST_REQUESTS} requests");
}

/// Killed for good after any request, and forgotten: what was made by then is in the inventory, and removed from there.
pub async fn left_behind<R: Resource, C: AsyncFn() -> (Cloud, Subject<R>)>(fresh: C) {
    for nth in 1..MOST_REQUESTS {
        let (cloud, subject) = fresh().await;
        cloud.faults().at(nth, Fault::KilledAfter);
        let driver = Driver::new(&cloud);
        driver.make_until_killed(&subject).await;
        let was_killed = cloud.faults().happened();
        cloud.faults().none();
        tokio::time::sleep(AFTERWARDS).await;
        let backend = cloud.open();
        let inventory = backend.inventory().await.unwrap();
        let what = format!("killed after request {nth}");
        for entry in cloud.emulator.ledger().alive() {
            let owned = inventory.iter().find(|owned| owned.id == entry.id);
            let owned = owned.unwrap_or_else(|| panic!("{what}: {entry:?} is not in {inventory:?}"));
            assert!(owned.mark.is_for(&subject.marks), "{what}: {owned:?}");
        }
        // What others still use is removed after them.
        let mut left = inventory;
        for _ in 0..MOST_REQUESTS {
            for owned in &left {
                if let Err(error) = backend.remove_owned(owned).await {
                    assert_hidden(&error);
                }
            }
            tokio::time::sleep(PAUSE_OF_SWEEPS).await;
            left = backend.inventory().await.unwrap();
            if left.is_empty() {
                break;
            }
        }
        assert_eq!(left, [], "{what}: orphans stay");
        assert_eq!(cloud.emulator.ledger().alive(), [], "{what}: orphans stay");
        if !was_killed {
            return;
        }
    }
    panic!("a life of more than {MOST_REQUESTS} requests");
}
