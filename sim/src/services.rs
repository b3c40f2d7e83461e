//! Simulated ways of requests to the jobs of services: how jobs answer their probes, and which requests are under way.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use async_trait::async_trait;
use dstack_engine::services::Idle;
use dstack_model::runs::{JobStatus, ProbeSpec};
use dstack_plan::lifecycle::job::requests_timeout;
use dstack_store::rows::JobRow;
use dstack_store::{JobSnapshot, MemoryStore};
use dstack_system::clock::SharedClock;
use dstack_units::{JobId, RunId, Time};
use tokio::sync::Notify;

use crate::World;

/// How a job answers a probe.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// As it should.
    Well,
    /// With this instead.
    Instead(&'static str),
    /// Never.
    Never,
}

type Answers = Arc<dyn Fn(&JobRow, &ProbeSpec) -> Answer + Send + Sync>;

/// Requests that are, or were, under way at a job.
#[derive(Debug, Clone, Copy)]
struct Request {
    began: Time,
    ended: Option<Time>,
}

#[derive(Default)]
struct State {
    answers: Option<Answers>,
    /// When which probe of which job was asked.
    asked: Vec<(JobId, String, Time)>,
    /// Probes under way, and the most that ever were.
    probes: (usize, usize),
    requests: BTreeMap<JobId, Vec<Request>>,
    /// The jobs that requests go to, as the server knows that started last.
    routed: BTreeSet<JobId>,
    listeners: Vec<Weak<dyn Idle>>,
}

/// What outlives the servers: the jobs, and those who send requests to them.
#[derive(Clone)]
pub struct Services {
    state: Arc<Mutex<State>>,
    changed: Arc<Notify>,
    store: Arc<MemoryStore>,
    clock: SharedClock,
}

impl fmt::Debug for Services {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Services").finish_non_exhaustive()
    }
}

impl Services {
    /// Without requests; every probe is answered as it should be.
    pub fn new(store: Arc<MemoryStore>, clock: SharedClock) -> Self {
        Self {
            state: Arc::default(),
            changed: Arc::default(),
            store,
            clock,
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends when a request begins or ends, or jobs answer in another way. Whatever changes after this call counts, also before the
    /// answer is awaited.
    pub fn changed(&self) -> impl Future<Output = ()> {
        self.changed.notified()
    }

    /// From now on jobs answer their probes so.
    pub fn answer(&self, answers: impl Fn(&JobRow, &ProbeSpec) -> Answer + Send + Sync + 'static) {
        self.lock().answers = Some(Arc::new(answers));
        self.changed.notify_waiters();
    }

    /// When a probe of a job was asked, by its path.
    pub fn asked(&self, job: JobId, path: &str) -> Vec<Time> {
        let state = self.lock();
        let of_job = state
            .asked
            .iter()
            .filter(|(id, url, _)| *id == job && url == path);
        of_job.map(|(_, _, at)| *at).collect()
    }

    /// The most probes that were under way at the same time.
    pub fn most_probes(&self) -> usize {
        self.lock().probes.1
    }

    /// A request arrives at a job, and is under way from now on.
    pub fn begin(&self, job: JobId) {
        let request = Request {
            began: self.clock.now(),
            ended: None,
        };
        self.lock().requests.entry(job).or_default().push(request);
        self.changed.notify_waiters();
    }

    /// All requests at a job are finished.
    pub fn end(&self, job: JobId) {
        let now = self.clock.now();
        let listeners = {
            let mut state = self.lock();
            for request in state.requests.entry(job).or_default() {
                request.ended.get_or_insert(now);
            }
            state.listeners.clone()
        };
        for listener in listeners.iter().filter_map(Weak::upgrade) {
            listener.idle(job);
        }
        self.changed.notify_waiters();
    }

    /// The jobs that requests go to, as the server knows that started last.
    pub fn routed(&self) -> BTreeSet<JobId> {
        self.lock().routed.clone()
    }

    fn has_requests(&self, job: JobId) -> bool {
        let state = self.lock();
        let mut requests = state.requests.get(&job).into_iter().flatten();
        requests.any(|request| request.ended.is_none())
    }

    /// Whether a request was under way at a job at that time.
    fn had_requests(&self, job: JobId, at: Time) -> bool {
        let state = self.lock();
        let mut requests = state.requests.get(&job).into_iter().flatten();
        requests.any(|request| request.began < at && request.ended.is_none_or(|ended| ended > at))
    }

    /// The way through a server that starts now: it reads where requests go.
    pub(crate) fn of_server(&self) -> Routes {
        let registered: BTreeSet<JobId> = self.store.read(|tables| {
            let jobs = tables.jobs.values().filter(|job| job.registered);
            jobs.map(|job| job.id).collect()
        });
        self.lock().routed.clone_from(&registered);
        Routes {
            services: self.clone(),
            registered: Mutex::new(registered),
        }
    }
}

/// What a server knows of where requests go: what it has read, and what it was told since.
#[derive(Debug)]
pub(crate) struct Routes {
    services: Services,
    registered: Mutex<BTreeSet<JobId>>,
}

impl Routes {
    fn change(&self, change: impl FnOnce(&mut BTreeSet<JobId>)) {
        let mut registered = self.registered.lock().unwrap_or_else(PoisonError::into_inner);
        change(&mut registered);
        self.services.lock().routed.clone_from(&registered);
    }

    fn contains(&self, job: JobId) -> bool {
        let registered = self.registered.lock().unwrap_or_else(PoisonError::into_inner);
        registered.contains(&job)
    }
}

/// A probe under way.
struct UnderWay<'a>(&'a Services);

impl<'a> UnderWay<'a> {
    fn begin(services: &'a Services) -> Self {
        let mut state = services.lock();
        let now = state.probes.0 + 1;
        state.probes = (now, state.probes.1.max(now));
        Self(services)
    }
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        self.0.lock().probes.0 -= 1;
    }
}

#[async_trait]
impl dstack_engine::Services for Routes {
    async fn probe(&self, job: &JobSnapshot, probe: &ProbeSpec) -> Result<(), String> {
        let _under_way = UnderWay::begin(&self.services);
        let answers = {
            let mut state = self.services.lock();
            let asked = (job.job.id, probe.url.clone(), self.services.clock.now());
            state.asked.push(asked);
            state.answers.clone()
        };
        match answers.map_or(Answer::Well, |answers| answers(&job.job, probe)) {
            Answer::Well => Ok(()),
            Answer::Instead(what) => Err(what.to_owned()),
            Answer::Never => std::future::pending().await,
        }
    }

    fn unregistered(&self, job: JobId) {
        self.change(|registered| {
            registered.remove(&job);
        });
    }

    fn changed(&self, run: RunId) {
        let registered: Vec<JobId> = self.services.store.read(|tables| {
            let jobs = tables
                .jobs
                .values()
                .filter(|job| job.run_id == run && job.registered);
            jobs.map(|job| job.id).collect()
        });
        self.change(|known| known.extend(registered));
    }

    fn serves(&self, job: JobId) -> bool {
        self.contains(job) || self.services.has_requests(job)
    }

    fn tell(&self, idle: Weak<dyn Idle>) {
        self.services.lock().listeners.push(idle);
    }
}

/// Nobody's requests were cut short: no job was asked to stop while some were under way, before their time was over.
pub(crate) fn requests_are_finished(world: &World, wrong: &mut Vec<String>) {
    world.store.read(|tables| {
        for job in tables.jobs.values() {
            if job.registered && job.status() != JobStatus::Running {
                wrong.push(format!(
                    "{} is {:?} and gets requests",
                    job.job_name,
                    job.status()
                ));
            }
            if was_cut_short(world, job) {
                wrong.push(format!(
                    "{} was asked to stop while requests were under way",
                    job.job_name
                ));
            }
        }
    });
}

fn was_cut_short(world: &World, job: &JobRow) -> bool {
    let limit = job.termination_reason().and_then(requests_timeout);
    let until = limit.zip(job.ending_since).map(|(limit, since)| since + limit);
    let asked = world.hosts.stopped_at(job.id);
    let too_early = asked.zip(until).filter(|(asked, until)| asked < until);
    too_early.is_some_and(|(asked, _)| world.services.had_requests(job.id, asked))
}
