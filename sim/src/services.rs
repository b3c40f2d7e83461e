//! Simulated ways of requests to the jobs of services: how jobs answer their probes, and which requests are under way.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use async_trait::async_trait;
use dstack_engine::Engine;
use dstack_engine::services::{Measured, RequestObserver, Worker};
use dstack_model::runs::{JobStatus, ProbeSpec};
use dstack_plan::lifecycle::job::requests_timeout;
use dstack_plan::services::autoscaling::Load;
use dstack_plan::services::pages::Told;
use dstack_plan::services::rollout::judge::Answered;
use dstack_plan::services::rollout::state::Phase;
use dstack_store::memory::Tables;
use dstack_store::rows::{AgentAddress, JobRow};
use dstack_store::{JobSnapshot, MemoryStore};
use dstack_system::clock::SharedClock;
use dstack_system::task;
use dstack_units::{GatewayId, GatewayReplicaId, InstanceId, JobId, RunId, Seconds, Time};
use tokio::sync::Notify;

use crate::World;

/// Servers that share a database wait so long for the others to hear of a job that gets no requests any more.
pub const TO_BE_HEARD: Duration = Duration::from_secs(2);

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
type Standings = Arc<dyn Fn(JobId) -> Worker + Send + Sync>;

/// A request that is, or was, under way at a job.
#[derive(Debug, Clone, Copy)]
struct Request {
    /// The server that it came through, by its number.
    through: usize,
    began: Time,
    ended: Option<Time>,
}

/// Where a server sends the requests for a job.
#[derive(Debug, Clone, PartialEq)]
struct Route {
    address: Option<AgentAddress>,
    /// It gets no new ones.
    leaves: bool,
}

/// What a server knows of where requests go: what it has read, and what it was told since.
#[derive(Debug, Default)]
struct Known {
    routes: BTreeMap<JobId, Route>,
    observer: Option<Weak<dyn RequestObserver>>,
    /// How often it was told that a job gets no requests any more.
    withdrawals: BTreeMap<JobId, usize>,
}

#[derive(Default)]
struct State {
    /// Replicas of gateways that have not answered for long.
    silent_gateways: BTreeSet<GatewayReplicaId>,
    answers: Option<Answers>,
    /// When which probe of which job was asked.
    asked: Vec<(JobId, String, Time)>,
    /// Probes under way, and the most that ever were.
    probes: (usize, usize),
    requests: BTreeMap<JobId, Vec<Request>>,
    /// The servers that were ever started, in this order.
    servers: Vec<Known>,
    /// The server that has waited last for the requests of a job.
    waiting: BTreeMap<JobId, usize>,
    /// Requests to services within any window; of others it is not known.
    loads: BTreeMap<RunId, u64>,
    /// What is measured of requests to services within any window; of others nothing is known.
    measured: BTreeMap<RunId, Measured>,
    /// What all replicas tell together.
    told: Told,
    /// What routers have of jobs that are to be their workers.
    workers: Option<Standings>,
    /// What both sides of roll-outs have answered; of others it is not known.
    answered: BTreeMap<RunId, Answered>,
    /// The way of requests leads over a gateway that cannot split them.
    cannot_split: bool,
    /// Services to which a request came that waits for a replica.
    awaited: BTreeSet<RunId>,
}

impl State {
    fn newest(&self) -> usize {
        self.servers.len().saturating_sub(1)
    }
}

/// What outlives the servers: the jobs, and those who send requests to them.
#[derive(Clone)]
pub struct Services {
    state: Arc<Mutex<State>>,
    changed: Arc<Notify>,
    store: Arc<MemoryStore>,
    clock: SharedClock,
    /// How long a server waits for others to hear.
    to_be_heard: Duration,
}

impl fmt::Debug for Services {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Services").finish_non_exhaustive()
    }
}

impl Services {
    /// Without requests; every probe is answered as it should be.
    pub(crate) fn new(store: Arc<MemoryStore>, clock: SharedClock, to_be_heard: Duration) -> Self {
        Self {
            state: Arc::default(),
            changed: Arc::default(),
            store,
            clock,
            to_be_heard,
        }
    }

    /// A replica of a gateway has not answered for long, or does again.
    pub fn gateway_is_silent(&self, replica: GatewayReplicaId, is_silent: bool) {
        let mut state = self.lock();
        match is_silent {
            true => state.silent_gateways.insert(replica),
            false => state.silent_gateways.remove(&replica),
        };
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

    /// From now on routers have this of the jobs that are to be their workers. The server that was started last is told of these.
    pub fn workers(
        &self,
        run: RunId,
        jobs: &[JobId],
        standing: impl Fn(JobId) -> Worker + Send + Sync + 'static,
    ) {
        let mut state = self.lock();
        state.workers = Some(Arc::new(standing));
        let observer = state.servers.last().and_then(|known| known.observer.clone());
        drop(state);
        let observer = observer.and_then(|observer| observer.upgrade());
        for (job, observer) in jobs.iter().filter_map(|job| Some((job, observer.as_ref()?))) {
            observer.worker_changed(run, *job);
        }
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

    /// A request arrives at a job through the server that was started last, and is under way from now on. It ends with that server.
    pub fn begin(&self, job: JobId) {
        let mut state = self.lock();
        let request = Request {
            through: state.newest(),
            began: self.clock.now(),
            ended: None,
        };
        state.requests.entry(job).or_default().push(request);
        drop(state);
        self.changed.notify_waiters();
    }

    /// All requests at a job are finished.
    pub fn end(&self, job: JobId) {
        self.end_those(|of, _| of == job);
    }

    fn end_those(&self, which: impl Fn(JobId, &Request) -> bool) {
        let now = self.clock.now();
        for (job, requests) in &mut self.lock().requests {
            for request in requests.iter_mut().filter(|request| which(*job, request)) {
                request.ended.get_or_insert(now);
            }
        }
        self.changed.notify_waiters();
    }

    /// So many requests to a service came lately, whatever the window, from now on. `None`: that is not known.
    pub fn load(&self, run: RunId, requests: Option<u64>) {
        let mut state = self.lock();
        match requests {
            Some(requests) => drop(state.loads.insert(run, requests)),
            None => drop(state.loads.remove(&run)),
        }
    }

    /// Both sides of a roll-out have answered so from now on. `None`: that is not known.
    pub fn answered(&self, run: RunId, answered: Option<Answered>) {
        let mut state = self.lock();
        match answered {
            Some(answered) => drop(state.answered.insert(run, answered)),
            None => drop(state.answered.remove(&run)),
        }
    }

    /// The requests to this service come over a gateway that can split them, or cannot, from now on. The server that was started last is
    /// told.
    pub fn can_split(&self, run: RunId, can_split: bool) {
        let mut state = self.lock();
        state.cannot_split = !can_split;
        let observer = state.servers.last().and_then(|known| known.observer.clone());
        drop(state);
        if let Some(observer) = observer.and_then(|observer| observer.upgrade()) {
            observer.published(run);
        }
    }

    /// Whether a job is of the new deployment of a roll-out for which requests are split.
    fn is_split_off(&self, job: JobId) -> bool {
        self.store.read(|tables| {
            let job = tables.jobs.get(&job);
            let run = job.and_then(|job| tables.runs.get(&job.run_id));
            let rollout = run.and_then(|run| run.rollout_under_way());
            rollout.zip(job).is_some_and(|(rollout, job)| {
                rollout.phase != Phase::Following && rollout.is_new(job.deployment_num, job.submitted_at)
            })
        })
    }

    /// This is measured of the requests to a service, whatever the window, from now on.
    pub fn measure(&self, run: RunId, measured: Measured) {
        self.lock().measured.insert(run, measured);
    }

    /// The replicas of all services tell this of themselves together, whatever the window, from now on.
    pub fn tell(&self, told: Told) {
        self.lock().told = told;
    }

    /// A request to a service comes through the server that was started last, and waits for a replica. Clients whose server dies ask
    /// the next one.
    pub fn await_replica(&self, run: RunId) {
        let mut state = self.lock();
        state.awaited.insert(run);
        let observer = state.servers.last().and_then(|known| known.observer.clone());
        drop(state);
        if let Some(observer) = observer.and_then(|observer| observer.upgrade()) {
            observer.awaited(run);
        }
    }

    /// Who waited for a replica of a service has gone.
    pub fn give_up(&self, run: RunId) {
        self.lock().awaited.remove(&run);
    }

    /// Whether a request waits for a replica of the service.
    pub fn is_awaited(&self, run: RunId) -> bool {
        let has_replica = self.store.read(|tables| {
            let mut jobs = tables.jobs.values();
            jobs.any(|job| job.run_id == run && job.registered)
        });
        let mut state = self.lock();
        if has_replica {
            state.awaited.remove(&run);
        }
        state.awaited.contains(&run)
    }

    /// The jobs that requests go to, as the server knows that was started last.
    pub fn routed(&self) -> BTreeSet<JobId> {
        self.routes().into_keys().collect()
    }

    /// Where their instances are, as that server knows.
    pub fn routes(&self) -> BTreeMap<JobId, Option<AgentAddress>> {
        let state = self.lock();
        let routes = state.servers.last().into_iter().flat_map(|known| &known.routes);
        let new = routes.filter(|(_, route)| !route.leaves);
        new.map(|(job, route)| (*job, route.address.clone())).collect()
    }

    /// How often the server that was started last was told that the job gets no requests any more.
    pub fn withdrawals(&self, job: JobId) -> usize {
        let state = self.lock();
        let told = state.servers.last().and_then(|known| known.withdrawals.get(&job));
        told.copied().unwrap_or_default()
    }

    fn has_requests(&self, job: JobId, through: usize) -> bool {
        let state = self.lock();
        let mut requests = state.requests.get(&job).into_iter().flatten();
        requests.any(|request| request.through == through && request.ended.is_none())
    }

    /// Whether a request was under way at a job at that time that its server knew of.
    fn had_requests(&self, job: JobId, at: Time) -> bool {
        let state = self.lock();
        let waiting = state.waiting.get(&job);
        let mut requests = state.requests.get(&job).into_iter().flatten();
        requests.any(|request| {
            let known = waiting.is_none_or(|server| *server == request.through);
            known && request.began < at && request.ended.is_none_or(|ended| ended > at)
        })
    }

    /// The way through a server that starts now: it reads where requests go.
    pub(crate) fn of_server(&self) -> Routes {
        let routes = self.read(|_| true);
        let mut state = self.lock();
        state.servers.push(Known {
            routes,
            ..Known::default()
        });
        Routes {
            services: self.clone(),
            server: state.newest(),
        }
    }

    /// The server that was started last, by its number.
    pub(crate) fn newest(&self) -> usize {
        self.lock().newest()
    }

    /// Requests through a server end with it.
    pub(crate) fn end_with(&self, server: usize, engine: &Engine) {
        let (services, engine) = (self.clone(), engine.clone());
        task::spawn("requests through a server", async move {
            engine.stopped().await;
            services.end_those(|_, request| request.through == server);
        });
    }

    /// Where requests go, as it is in the store.
    fn read(&self, which: impl Fn(&JobRow) -> bool) -> BTreeMap<JobId, Route> {
        let address = |tables: &Tables, job: &JobRow| {
            let instance = tables.instances.get(&job.instance_id?)?;
            instance.agent.as_deref().cloned()
        };
        self.store.read(|tables| {
            let jobs = tables.jobs.values().filter(|job| job.registered && which(job));
            let route = |job: &JobRow| Route {
                address: address(tables, job),
                leaves: false,
            };
            jobs.map(|job| (job.id, route(job))).collect()
        })
    }
}

/// The way of requests through a server.
#[derive(Debug)]
pub(crate) struct Routes {
    services: Services,
    server: usize,
}

impl Routes {
    fn change<T>(&self, change: impl FnOnce(&mut Known) -> T) -> Option<T> {
        self.services.lock().servers.get_mut(self.server).map(change)
    }

    fn read_again(&self, which: impl Fn(&JobRow) -> bool) {
        let read = self.services.read(which);
        self.change(|known| known.routes.extend(read));
    }

    /// Once others have heard of it, and its last request through this server is finished.
    async fn forgets(self, job: JobId) {
        tokio::time::sleep(self.services.to_be_heard).await;
        loop {
            let change = self.services.changed();
            if !self.services.has_requests(job, self.server) {
                break;
            }
            change.await;
        }
        let observer = self.change(|known| {
            let left = known.routes.remove(&job).filter(|route| !route.leaves);
            known.routes.extend(left.map(|route| (job, route)));
            known.observer.clone()
        });
        if let Some(observer) = observer.flatten().and_then(|observer| observer.upgrade()) {
            observer.idle(job);
        }
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

    fn unregistered(&self, job: JobId, _run: RunId) {
        let leaves = self.change(|known| {
            *known.withdrawals.entry(job).or_default() += 1;
            let route = known.routes.get_mut(&job);
            route.is_some_and(|route| !std::mem::replace(&mut route.leaves, true))
        });
        if leaves == Some(true) {
            let routes = Self {
                services: self.services.clone(),
                server: self.server,
            };
            task::spawn("requests of a job end", routes.forgets(job));
        }
    }

    fn registered(&self, job: &JobRow) {
        let id = job.id;
        self.read_again(|job| job.id == id);
    }

    fn changed(&self, run: RunId) {
        self.read_again(|job| job.run_id == run);
    }

    fn moved(&self, instance: InstanceId) {
        self.read_again(|job| job.instance_id == Some(instance));
    }

    fn serves(&self, job: JobId, _gateway: Option<GatewayId>) -> bool {
        let mut state = self.services.lock();
        let known = state.servers.get(self.server);
        let serves = known.is_some_and(|known| known.routes.contains_key(&job));
        if serves {
            state.waiting.insert(job, self.server);
        }
        serves
    }

    fn gateways_changed(&self) {}

    fn is_gateway_silent(&self, replica: GatewayReplicaId) -> bool {
        self.services.lock().silent_gateways.contains(&replica)
    }

    fn is_published(&self, job: JobId, gateway: Option<GatewayId>) -> bool {
        let can_split = !self.services.lock().cannot_split;
        gateway.is_none() && (can_split || !self.services.is_split_off(job))
    }

    fn worker(&self, _run: RunId, job: JobId) -> Worker {
        let standing = self.services.lock().workers.clone();
        standing.map_or(Worker::Unknown(None), |standing| standing(job))
    }

    fn refusal(&self, _run: RunId, _gateway: GatewayId) -> Option<String> {
        None
    }

    fn load(&self, run: RunId, _gateway: Option<GatewayId>, _window: Seconds) -> Option<Load> {
        let requests = *self.services.lock().loads.get(&run)?;
        Some(Load { requests })
    }

    fn answered(&self, run: RunId, _deployment: i64, _gateway: Option<GatewayId>) -> Option<Answered> {
        self.services.lock().answered.get(&run).copied()
    }

    fn can_split(&self, _gateway: Option<GatewayId>) -> bool {
        !self.services.lock().cannot_split
    }

    fn measured(&self, run: RunId, _gateway: Option<GatewayId>, _window: Seconds) -> Measured {
        let measured = self.services.lock().measured.get(&run).copied();
        measured.unwrap_or_default()
    }

    fn told(&self, _jobs: &[JobId], _path: &str, _window: Seconds) -> Told {
        self.services.lock().told
    }

    fn is_awaited(&self, run: RunId) -> bool {
        self.services.is_awaited(run)
    }

    fn report_to(&self, observer: Weak<dyn RequestObserver>) {
        self.change(|known| known.observer = Some(observer));
    }
}

/// No requests were cut short that the server knew of: no job was asked to stop while some were under way, before their time was
/// over.
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
