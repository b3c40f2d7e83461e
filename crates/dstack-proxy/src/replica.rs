//! A place where a service answers.

mod connection;
mod health;
mod pool;
mod visit;

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use dstack_agent_api::http::Connector;
use dstack_system::Locked;
use dstack_units::JobId;
use tokio::sync::Notify;
use tokio::time::Instant;

pub(crate) use connection::Sender;
use health::Health;
pub use health::Standing;
pub(crate) use pool::Pool;
pub use pool::PoolSettings;
pub(crate) use visit::Visit;

/// A replica of a service: its connections, whether it works, and how many requests are under way there. Connections that wait
/// for requests are closed when it is dropped.
#[derive(Debug)]
pub struct Replica {
    /// Id of the job that answers there.
    pub id: JobId,
    connector: Arc<dyn Connector>,
    pool: Arc<Pool>,
    in_flight: AtomicUsize,
    /// It gets no new requests.
    retired: AtomicBool,
    /// Told when no request is under way any more.
    ended: Notify,
    /// `health` has something against it: spares all others the lock.
    troubled: AtomicBool,
    health: Locked<Health>,
}

impl Replica {
    /// Without connections yet.
    pub fn new(id: JobId, connector: Arc<dyn Connector>) -> Self {
        Self {
            id,
            connector,
            pool: Arc::new(Pool::new(PoolSettings::default())),
            in_flight: AtomicUsize::new(0),
            retired: AtomicBool::new(false),
            ended: Notify::new(),
            troubled: AtomicBool::new(false),
            health: Locked::default(),
        }
    }

    /// With other limits of its connections.
    #[must_use]
    pub fn with_pool(mut self, settings: PoolSettings) -> Self {
        self.pool = Arc::new(Pool::new(settings));
        self
    }

    /// Requests under way, upgraded connections among them: from when it was chosen until the client has the whole answer, or
    /// has gone.
    pub fn in_flight(&self) -> usize {
        self.in_flight.load(Ordering::SeqCst)
    }

    /// It gets no new requests, also of those who still hold routes with it. Once it is [idle](Self::idle) after that, it stays so.
    pub fn retire(&self) {
        self.retired.store(true, Ordering::SeqCst);
    }

    /// It gets requests again.
    pub fn readmit(&self) {
        self.retired.store(false, Ordering::SeqCst);
    }

    pub(crate) fn is_retired(&self) -> bool {
        self.retired.load(Ordering::SeqCst)
    }

    /// Waits until no request is under way. One that comes meanwhile is waited for as well.
    pub async fn idle(&self) {
        loop {
            let ended = self.ended.notified();
            tokio::pin!(ended);
            ended.as_mut().enable();
            if self.in_flight() == 0 {
                return;
            }
            ended.await;
        }
    }

    /// Opens connections to it.
    pub fn connector(&self) -> &Arc<dyn Connector> {
        &self.connector
    }

    /// Whether it gets requests now.
    pub fn standing(&self) -> Standing {
        match self.is_troubled() {
            true => self.health.lock().standing(Instant::now()),
            false => Standing::Up,
        }
    }

    pub(crate) fn pool(&self) -> &Arc<Pool> {
        &self.pool
    }

    /// A new connection.
    ///
    /// # Errors
    /// It cannot be reached, or not in time.
    pub(crate) async fn open(&self) -> io::Result<Sender> {
        connection::open(&*self.connector, self.pool.settings.connect_timeout).await
    }

    fn is_troubled(&self) -> bool {
        self.troubled.load(Ordering::Acquire)
    }

    fn note_failure(&self) {
        let mut health = self.health.lock();
        health.failed(Instant::now());
        self.troubled.store(true, Ordering::Release);
        drop(health);
        self.pool.clear();
    }

    fn note_answer(&self) {
        if self.is_troubled() {
            self.health.lock().answered();
        }
    }

    fn note_completion(&self) {
        if !self.is_troubled() {
            return;
        }
        let mut health = self.health.lock();
        health.completed();
        // Under the lock: a failure at the same time is not to be forgotten.
        self.troubled.store(!health.is_well(), Ordering::Release);
    }
}
