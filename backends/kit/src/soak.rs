//! Many lives at once, in an account where anything may happen to any request.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use dstack_compute::{CALL_LIMIT, ComputeError, LISTED_WITHIN, Marks, Owned, Resource, Sign};
use dstack_system::{Random, env};
use futures_util::future::join_all;
use tokio::time::Instant;

use crate::{CANARY, Cloud, Driver, Subject};

/// Lives of one kind of things where nothing else is asked for by `DSTACK_SOAK_LIVES`.
const FEW: usize = 40;

/// Lives at the same time.
const AT_ONCE: usize = 8;

/// A fault in so many requests.
const FAULT_IN: u64 = 16;

/// A life in so many is forgotten while it begins, and left to the sweep.
const FORGOTTEN_IN: u64 = 20;

/// Longest time that a thing is used, and that a control plane lives that forgets what it began.
const LONGEST_USE: Duration = Duration::from_secs(5 * 60);

/// Longest time that how late clouds list things stays as it is.
const LONGEST_WEATHER: Duration = Duration::from_secs(20 * 60);

/// Longest time for which nothing is to be had.
const LONGEST_SOLD_OUT: Duration = Duration::from_secs(3 * 60);

/// When what was made is listed at the latest, within [`LISTED_WITHIN`](dstack_compute::LISTED_WITHIN).
const LATEST_LISTED: Duration = Duration::from_secs(50);

/// Longer than anything takes that was sent before.
const AFTERWARDS: Duration = Duration::from_secs(10 * 60);

const INTERVAL_OF_SWEEPS: Duration = Duration::from_secs(5 * 60);

/// Of those at the end.
const PAUSE_OF_SWEEPS: Duration = Duration::from_secs(10);

const MOST_SWEEPS: usize = 1000;

/// Things are made, used and removed, several at once, while any request fails in any way by chance, control planes are killed, nothing
/// is to be had for a while, and lists are late. None is made twice, what was removed is gone, and of those whose control plane
/// forgot them the inventory tells, so that a sweep ends them.
///
/// The number of lives is [`FEW`], or `DSTACK_SOAK_LIVES`; chance is the same in each run, but for `DSTACK_SOAK_SEED`.
pub async fn soak<R: Resource>(cloud: &Cloud, subject: &Subject<R>) {
    let number = |name: &str| env::var(name).and_then(|text| text.parse::<u64>().ok());
    let lives = number("DSTACK_SOAK_LIVES").map_or(FEW, |lives| usize::try_from(lives).unwrap());
    let seed = number("DSTACK_SOAK_SEED").unwrap_or(1);
    let soak = Soak {
        cloud,
        subject,
        random: Random::seeded(seed),
        begun: AtomicUsize::new(0),
        used: AtomicUsize::new(0),
        errors: Mutex::default(),
        over: Mutex::default(),
        forgotten: Mutex::default(),
    };
    cloud.faults().one_in(FAULT_IN, soak.random.clone());
    tokio::select! {
        _ = join_all((0..AT_ONCE).map(|_| soak.live_on(lives))) => {}
        () = soak.change_weather() => {}
        () = soak.sweep_now_and_then() => {}
    }
    cloud.faults().none();
    cloud.emulator.sell_out(false);
    cloud.emulator.lag(Duration::ZERO);
    tokio::time::sleep(AFTERWARDS).await;
    let ledger = cloud.emulator.ledger();
    assert_eq!(ledger.doubled(), Vec::<String>::new(), "made twice");
    soak.sweep().await;
    assert_eq!(ledger.alive(), [], "left, and not in the inventory");
    let used = soak.used.into_inner();
    println!(
        "{lives} lives, seed {seed}: {used} were there, {} things made in all, none twice, none left",
        ledger.count()
    );
    let errors = soak.errors.into_inner().unwrap();
    assert!(
        used * 4 >= lives,
        "only {used} of {lives} were ever there: {errors:?}"
    );
}

struct Soak<'a, R: Resource> {
    cloud: &'a Cloud,
    subject: &'a Subject<R>,
    random: Random,
    begun: AtomicUsize,
    /// How many were there, and could be used.
    used: AtomicUsize,
    /// Why others were not.
    errors: Mutex<Vec<ComputeError>>,
    /// Of lives that are over, and were not forgotten.
    over: Mutex<Vec<Marks>>,
    /// Of those that were, and when.
    forgotten: Mutex<Vec<(Marks, Instant)>>,
}

impl<R: Resource> Soak<'_, R> {
    /// One life after the other, until so many have begun.
    async fn live_on(&self, lives: usize) {
        while self.begun.fetch_add(1, Ordering::Relaxed) < lives {
            let subject = self.subject.of_another_row(self.cloud);
            match self.random.below(FORGOTTEN_IN) {
                0 => self.begin(&subject).await,
                _ => self.live(&subject).await,
            }
        }
    }

    async fn live(&self, subject: &Subject<R>) {
        let driver = Driver::new(self.cloud);
        match driver.make(subject).await {
            // The driver has removed what was begun.
            Err(error) => {
                self.errors.lock().unwrap().push(error);
                tokio::time::sleep(self.at_most(LONGEST_USE)).await;
            }
            Ok(place) => self.use_and_remove(place, subject, &driver).await,
        }
        self.over.lock().unwrap().push(subject.marks.clone());
        let shown = driver.errors.lock().unwrap().join("\n");
        assert!(!shown.contains(CANARY), "a secret is shown in {shown}");
    }

    async fn use_and_remove(&self, place: R::Place, subject: &Subject<R>, driver: &Driver<'_>) {
        assert_eq!((subject.problem)(&place), None);
        self.used.fetch_add(1, Ordering::Relaxed);
        // As lists get later, they lose sight again of what is new.
        tokio::time::sleep(LISTED_WITHIN + self.at_most(LONGEST_USE)).await;
        let known = subject.known(Some(place));
        let backend = self.cloud.open();
        let lifecycle = (subject.lifecycle)(backend.as_ref()).unwrap();
        let signs = tokio::time::timeout(CALL_LIMIT, lifecycle.look(std::slice::from_ref(&known))).await;
        let signs = signs.ok().and_then(Result::ok).unwrap_or_default();
        let is_lost = matches!(signs.as_slice(), [Some(Sign::Lost(_))]);
        assert!(
            !is_lost,
            "what is there is taken for lost: {} {signs:?} {}",
            subject.marks.name(63),
            driver.errors.lock().unwrap().join("\n")
        );
        driver.remove(&known, subject).await;
    }

    /// By a control plane that is gone soon, with all that it noted.
    async fn begin(&self, subject: &Subject<R>) {
        let limit = self.at_most(LONGEST_USE);
        let _ = tokio::time::timeout(limit, Driver::new(self.cloud).make(subject)).await;
        let forgotten = (subject.marks.clone(), Instant::now());
        self.forgotten.lock().unwrap().push(forgotten);
    }

    async fn change_weather(&self) {
        loop {
            self.cloud.emulator.sell_out(true);
            tokio::time::sleep(self.at_most(LONGEST_SOLD_OUT)).await;
            self.cloud.emulator.sell_out(false);
            self.cloud.emulator.lag(self.at_most(LATEST_LISTED));
            tokio::time::sleep(self.at_most(LONGEST_WEATHER)).await;
        }
    }

    /// Ends what has been forgotten for a while, as far as it gets: anything happens to these requests too.
    async fn sweep_now_and_then(&self) {
        loop {
            tokio::time::sleep(INTERVAL_OF_SWEEPS).await;
            let backend = self.cloud.open();
            let inventory = tokio::time::timeout(CALL_LIMIT, backend.inventory()).await;
            for owned in inventory.ok().and_then(Result::ok).unwrap_or_default() {
                if self.is_forgotten(&owned) {
                    let _ = tokio::time::timeout(CALL_LIMIT, backend.remove_owned(&owned)).await;
                }
            }
        }
    }

    fn is_forgotten(&self, owned: &Owned) -> bool {
        let forgotten = self.forgotten.lock().unwrap();
        forgotten
            .iter()
            .any(|(marks, since)| owned.mark.is_for(marks) && since.elapsed() > AFTERWARDS)
    }

    fn at_most(&self, longest: Duration) -> Duration {
        longest.mul_f64(self.random.fraction())
    }

    /// Ends what was forgotten, as the inventory has it; nothing else is in it.
    async fn sweep(&self) {
        let backend = self.cloud.open();
        for _ in 0..MOST_SWEEPS {
            let inventory = backend.inventory().await.unwrap();
            if inventory.is_empty() {
                return;
            }
            for owned in &inventory {
                assert!(!self.is_over(owned), "left by a life that is over: {owned:?}");
                // What others still use is removed after them.
                let _ = backend.remove_owned(owned).await;
            }
            tokio::time::sleep(PAUSE_OF_SWEEPS).await;
        }
        panic!("the sweep comes to no end");
    }

    fn is_over(&self, owned: &Owned) -> bool {
        let over = self.over.lock().unwrap();
        over.iter().any(|marks| owned.mark.is_for(marks))
    }
}
