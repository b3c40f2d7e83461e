//! So much is done at a time, by kind of call. What comes on top is answered 429 at once instead of waiting in memory:
//! whoever is let in is served soon.
//!
//! Of the writes and plans that are let in, only so many are worked on at a time; the others wait for their turn, so that a
//! read finds few of them before it wherever it has to wait. They are worked on by threads of their own, if there are such:
//! a read does not wait for a thread that works on them either.

pub(crate) mod memory;

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use dstack_api::{Body, Effect, RouteInfo};
use dstack_system::task::{self, Panicked};
use tokio::runtime::Handle;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;
use tokio_util::task::AbortOnDropHandle;
use tracing::Instrument;

use self::memory::BodyMemory;
use crate::error::{ApiError, Result};

/// When to come back: the calls under way are done by then.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// Writes, and plans, worked on at a time: enough of them to share commits, few enough not to be in the way of reads.
const TURNS: usize = 32;

/// How long a turn may last. Whoever takes longer waits for something else than this server, such as a registry of images,
/// and lets others go on.
const TURN: Duration = Duration::from_secs(1);

/// What calls compete for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// The database's pool of readers.
    Read,
    /// The processor: plans look at every offer.
    Plan,
    /// The database's writer.
    Write,
    /// Memory: files are held until they are stored.
    Upload,
}

impl Kind {
    fn of(route: &RouteInfo) -> Self {
        match route.effect {
            _ if route.body == Body::Upload => Self::Upload,
            _ if route.path.ends_with("/get_plan") || route.path.ends_with("/gpus/list") => Self::Plan,
            Effect::Reads | Effect::Reveals => Self::Read,
            Effect::Changes | Effect::Governs | Effect::Account => Self::Write,
        }
    }
}

/// How many calls of each kind there may be at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Calls that only read.
    pub reads: usize,
    /// Plans and lists of offers.
    pub plans: usize,
    /// Calls that change something.
    pub writes: usize,
    /// Uploads of code and files at a time.
    pub uploads: usize,
    /// Bytes of bodies that are held; half as many besides of calls of models.
    pub body_bytes: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            reads: 4096,
            plans: 256,
            writes: 512,
            uploads: 64,
            body_bytes: 256 * 1024 * 1024,
        }
    }
}

/// Lets calls in.
#[derive(Debug)]
pub struct Overload {
    reads: Arc<Semaphore>,
    plans: Arc<Semaphore>,
    writes: Arc<Semaphore>,
    uploads: Arc<Semaphore>,
    write_turns: Arc<Semaphore>,
    plan_turns: Arc<Semaphore>,
    memory: BodyMemory,
    model_memory: BodyMemory,
    workers: Option<Handle>,
}

/// A place for a call, held until it is answered.
#[derive(Debug)]
pub struct Place {
    _place: OwnedSemaphorePermit,
    turns: Option<Arc<Semaphore>>,
    workers: Option<Handle>,
}

impl Place {
    /// Does the call's work when it is its turn. It is given up with what is returned here.
    ///
    /// # Errors
    /// That of the work; 500 when it panicked.
    pub async fn work<T: Send + 'static>(
        &self,
        work: impl Future<Output = Result<T>> + Send + 'static,
    ) -> Result<T> {
        let Some(turns) = &self.turns else {
            return work.await;
        };
        let Some(workers) = &self.workers else {
            return in_turn(turns, work).await;
        };
        in_turn(turns, async move {
            let done = task::spawn_on(workers, "call", work.in_current_span());
            match AbortOnDropHandle::new(done).await {
                Ok(Some(done)) => done,
                Ok(None) | Err(_) => Err(ApiError::internal(Panicked)),
            }
        })
        .await
    }
}

async fn in_turn<T>(turns: &Semaphore, work: impl Future<Output = T>) -> T {
    // Never closed: an error cannot come, and would mean that nobody takes turns.
    let turn = turns.acquire().await.ok();
    let mut work = pin!(work);
    match timeout(TURN, &mut work).await {
        Ok(done) => done,
        Err(_) => {
            drop(turn);
            work.await
        }
    }
}

impl Default for Overload {
    fn default() -> Self {
        Limits::default().into()
    }
}

impl From<Limits> for Overload {
    fn from(limits: Limits) -> Self {
        Self::new(limits, None)
    }
}

impl Overload {
    /// That lets in so many calls. Writes and plans are worked on by `workers`; `None`: by whoever answers.
    pub fn new(limits: Limits, workers: Option<Handle>) -> Self {
        let semaphore = |permits: usize| Arc::new(Semaphore::new(permits.clamp(1, Semaphore::MAX_PERMITS)));
        Self {
            reads: semaphore(limits.reads),
            plans: semaphore(limits.plans),
            writes: semaphore(limits.writes),
            uploads: semaphore(limits.uploads),
            write_turns: semaphore(TURNS),
            plan_turns: semaphore(TURNS),
            memory: BodyMemory::new(limits.body_bytes),
            model_memory: BodyMemory::new(limits.body_bytes / 2),
            workers,
        }
    }

    /// Memory for bodies.
    pub(crate) const fn memory(&self) -> &BodyMemory {
        &self.memory
    }

    /// Memory for calls of models, which are held until the model has answered: those of the API do not wait for it.
    pub(crate) const fn model_memory(&self) -> &BodyMemory {
        &self.model_memory
    }

    /// A place for a call of a route of the table.
    ///
    /// # Errors
    /// 429 when there is none.
    pub fn enter(&self, route: &RouteInfo) -> Result<Place> {
        self.enter_as(Kind::of(route))
    }

    /// A place for a call of this kind.
    ///
    /// # Errors
    /// 429 when there is none.
    pub(crate) fn enter_as(&self, kind: Kind) -> Result<Place> {
        let (places, turns) = match kind {
            Kind::Read => (&self.reads, None),
            Kind::Plan => (&self.plans, Some(&self.plan_turns)),
            Kind::Write => (&self.writes, Some(&self.write_turns)),
            Kind::Upload => (&self.uploads, None),
        };
        let place = Arc::clone(places).try_acquire_owned();
        let place = place.map_err(|_| ApiError::TooMany {
            msg: "The server is busy. Try again later",
            retry_after: RETRY_AFTER,
        })?;
        Ok(Place {
            _place: place,
            turns: turns.cloned(),
            workers: self.workers.clone(),
        })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use dstack_api::ROUTES;

    use super::*;

    fn kind(name: &str) -> Kind {
        Kind::of(ROUTES.iter().find(|route| route.name == name).unwrap())
    }

    #[test]
    fn kinds() {
        assert_eq!(kind("RunsList"), Kind::Read);
        assert_eq!(kind("SecretsGet"), Kind::Read);
        assert_eq!(kind("RunsGetPlan"), Kind::Plan);
        assert_eq!(kind("GpusList"), Kind::Plan);
        assert_eq!(kind("RunsApply"), Kind::Write);
        assert_eq!(kind("UsersCreate"), Kind::Write);
        assert_eq!(kind("ReposUploadCode"), Kind::Upload);
    }

    #[tokio::test(start_paused = true)]
    async fn few_writes_are_worked_on_at_a_time_and_slow_ones_do_not_hold_up_others() {
        let overload = Overload::default();
        let route = |name: &str| ROUTES.iter().find(|route| route.name == name).unwrap();
        let places: Vec<Place> = (0..=TURNS)
            .map(|_| overload.enter(route("RunsApply")).unwrap())
            .collect();
        let begun = Arc::new(AtomicUsize::new(0));
        let slow = |place| {
            let begun = Arc::clone(&begun);
            Place::work(place, async move {
                begun.fetch_add(1, Ordering::Relaxed);
                tokio::time::sleep(TURN * 10).await;
                Ok(())
            })
        };
        let mut all = pin!(futures_util::future::join_all(places.iter().map(slow)));
        let mut after = async |time| {
            tokio::time::timeout(time, &mut all).await.ok();
            begun.load(Ordering::Relaxed)
        };
        assert_eq!(after(TURN / 2).await, TURNS);
        assert_eq!(after(TURN).await, TURNS + 1, "slow ones gave up their turns");
        let read = overload.enter(route("RunsList")).unwrap();
        assert_eq!(read.work(async { Ok(7) }).await.unwrap(), 7);
    }

    #[test]
    fn writes_have_threads_of_their_own_and_end_with_their_callers() {
        let route = |name: &str| ROUTES.iter().find(|route| route.name == name).unwrap();
        let threads = |name: &str| {
            let mut threads = tokio::runtime::Builder::new_multi_thread();
            threads.thread_name(name).worker_threads(1).enable_time();
            threads.build().unwrap()
        };
        let (main, workers) = (threads("main"), threads("workers"));
        let overload = Overload::new(Limits::default(), Some(workers.handle().clone()));
        let on = |name: &str| {
            let place = overload.enter(route(name)).unwrap();
            let name = async { Ok(std::thread::current().name().map(str::to_owned)) };
            dstack_system::task::spawn_on(main.handle(), "call", async move { place.work(name).await })
        };
        let (write, read) = (on("RunsApply"), on("RunsList"));
        for (call, thread) in [(write, "workers"), (read, "main")] {
            let name = main.block_on(call).unwrap().unwrap().unwrap();
            assert_eq!(name.as_deref(), Some(thread));
        }

        let place = overload.enter(route("RunsApply")).unwrap();
        let (kept, gone) = tokio::sync::oneshot::channel::<()>();
        main.block_on(async {
            let endless = place.work(async move {
                std::future::pending::<()>().await;
                drop(kept);
                Ok(())
            });
            assert!(timeout(Duration::ZERO, endless).await.is_err());
            gone.await.unwrap_err();
        });

        let place = overload.enter(route("RunsApply")).unwrap();
        let failed = main.block_on(place.work(async { panic!("on purpose") as Result<()> }));
        assert!(matches!(failed, Err(ApiError::Internal(_))));
    }

    #[test]
    fn a_place_is_free_again_after_the_call() {
        let overload = Overload::from(Limits {
            writes: 1,
            ..Limits::default()
        });
        let route = |name: &str| ROUTES.iter().find(|route| route.name == name).unwrap();
        let first = overload.enter(route("RunsApply")).unwrap();
        assert!(overload.enter(route("RunsStop")).is_err());
        assert!(overload.enter(route("RunsList")).is_ok());
        drop(first);
        assert!(overload.enter(route("RunsStop")).is_ok());
    }
}
