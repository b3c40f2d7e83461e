//! Which services requests are passed on to. The routes are read from the database once, and again run by run as commits say;
//! what a commit takes away is gone before anybody is woken by it.

pub(crate) mod counts;
mod feed;
mod gateways;
mod load;
mod others;
mod pages;
mod ports;
mod probe;
mod replicas;
pub(crate) mod rollouts;
mod routers;
mod strain;
mod waiting;

use std::collections::{BTreeSet, HashSet};
use std::net::SocketAddr;
use std::sync::{Arc, Weak};
use std::time::Duration;

use arc_swap::ArcSwap;
use async_trait::async_trait;
use dstack_engine::services::{Measured, RequestObserver, Worker};
use dstack_model::metrics::ServiceMetrics;
use dstack_model::runs::ProbeSpec;
use dstack_plan::services::autoscaling::Load;
use dstack_plan::services::pages::Told;
use dstack_plan::services::rollout::judge::Answered;
use dstack_proxy::models::{ModelApi, Renderer};
use dstack_proxy::{Forwarder, Limits, Routes};
use dstack_store::rows::JobRow;
use dstack_store::{Database, JobSnapshot};
use dstack_system::clock::SharedClock;
use dstack_system::{Locked, task};
use dstack_units::{GatewayId, GatewayReplicaId, InstanceId, JobId, RunId, Seconds};
use tokio::sync::Notify;
use tokio::time::Instant;

use self::counts::Counts;
pub(crate) use self::gateways::CountedService;
use self::gateways::{Gateways, Rules};
use self::others::{Others, Telling};
use self::pages::Pages;
pub use self::ports::Ports;
use self::ports::Reachable;
use self::replicas::Replicas;
use self::rollouts::Rollouts;
use self::routers::Routers;
use self::strain::Strains;
use self::waiting::Waiting;
use crate::settings::Settings;
use crate::state::Data;
use crate::wiring::GatewayHosts;

/// Other servers hear within milliseconds which job gets no requests any more; one whose database has paused, a little later.
const TO_BE_HEARD: Duration = Duration::from_secs(2);

/// The services of an installation, and the way to their replicas.
#[derive(Debug, Clone)]
pub struct ServiceRoutes(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    /// Of this server, among those that share the database.
    name: String,
    database: Database,
    clock: SharedClock,
    /// How long a replica may be silent.
    read_timeout: Duration,
    forwarder: Arc<Forwarder>,
    models: ModelApi,
    ports: Arc<Reachable>,
    routes: Arc<ArcSwap<Routes>>,
    waiting: Arc<Waiting>,
    replicas: Replicas,
    reading: Locked<Reading>,
    /// Something is to be read.
    wanted: Notify,
    /// Services whose replicas follow their requests.
    scaled: Locked<BTreeSet<RunId>>,
    /// Those of them that follow how busy they are.
    strained: Locked<BTreeSet<RunId>>,
    strains: Locked<Strains>,
    pages: Pages,
    telling: Locked<Telling>,
    others: Locked<Others>,
    rollouts: Locked<Rollouts>,
    gateways: Arc<Gateways>,
    routers: Arc<Routers>,
}

/// What is to be read anew, and what was taken away since the present reading began.
#[derive(Debug, Default)]
struct Reading {
    runs: BTreeSet<RunId>,
    /// To be told to the servers that share the database.
    untold: BTreeSet<RunId>,
    /// `None`: nothing is being read.
    withdrawn: Option<HashSet<JobId>>,
}

impl ServiceRoutes {
    /// No routes yet; `prompts` makes those of chat templates.
    pub fn new(data: &Data, settings: &Settings, limits: Limits, prompts: Renderer) -> Self {
        let read_timeout = settings.service_patience();
        let rules = Rules {
            read_timeout,
            max_body_size: settings.service_max_body_size,
            acme: settings.acme(),
        };
        let (clock, random) = (Arc::clone(&data.clock), data.random.clone());
        let routes = Arc::<ArcSwap<Routes>>::default();
        let waiting = Arc::new(Waiting::new(Arc::clone(&routes)));
        let forwarder = Forwarder::new(random.clone())
            .with_limits(limits)
            .with_access_log(settings.services_access_log);
        let forwarder = Arc::new(forwarder.with_starter(Arc::clone(&waiting) as _));
        let through = Arc::clone(&forwarder) as _;
        let gateways = Gateways::new(data.database.clone(), random.clone(), rules, Arc::clone(&waiting));
        let ports = Arc::<Reachable>::default();
        let routers = Routers::new(data.database.clone(), Arc::clone(&ports), Arc::clone(&waiting));
        let pages = Pages::new(data.database.clone(), Arc::clone(&ports));
        Self(Arc::new(Inner {
            name: random.uuid().to_string(),
            database: data.database.clone(),
            read_timeout,
            models: ModelApi::new(
                through,
                Arc::clone(forwarder.stats()) as _,
                prompts,
                Arc::clone(&clock),
                random.clone(),
            ),
            clock,
            forwarder,
            ports,
            routes,
            waiting,
            replicas: Replicas::default(),
            reading: Locked::default(),
            wanted: Notify::new(),
            scaled: Locked::default(),
            strained: Locked::default(),
            strains: Locked::default(),
            pages,
            telling: Locked::default(),
            others: Locked::default(),
            rollouts: Locked::default(),
            gateways: Arc::new(gateways),
            routers: Arc::new(routers),
        }))
    }

    /// Jobs are reached so from now on. To be called once, before anything is passed on.
    pub fn reach_through(&self, ports: Arc<dyn Ports>) {
        self.0.ports.through(ports);
    }

    /// Services are published at gateways so from now on. To be called once.
    pub fn publish_through(&self, hosts: Arc<GatewayHosts>) {
        self.0.gateways.reach_through(hosts);
    }

    /// This server answers here: gateways ask it who may use a project.
    pub fn answer_at(&self, address: SocketAddr) {
        self.0.gateways.answer_at(address);
    }

    /// The present routes.
    pub fn routes(&self) -> Arc<Routes> {
        self.0.routes.load_full()
    }

    /// Passes requests on.
    pub fn forwarder(&self) -> &Forwarder {
        &self.0.forwarder
    }

    /// What gateways have counted of the requests to services.
    pub(crate) async fn counted_at_gateways(&self) -> Vec<CountedService> {
        self.0.gateways.counts(None).await
    }

    /// What was counted of the requests to a service, by this server and by its gateway, as far as that answers soon.
    pub(crate) async fn metrics(&self, run: RunId, gateway: Option<GatewayId>) -> ServiceMetrics {
        const MINUTE: Seconds = Seconds(60);
        let here = self.0.forwarder.stats().snapshot(run);
        let mut counted: Vec<Counts> = here.iter().map(Counts::from).collect();
        if gateway.is_some() {
            let all = self.0.gateways.counts(gateway).await;
            let own = all.into_iter().filter(|service| service.run == run);
            counted.extend(own.map(|service| Counts::from(service.counts)));
        }
        let load = dstack_engine::Services::load(self, run, gateway, MINUTE);
        counts::metrics(&counted, load.map(|load| load.requests))
    }

    /// Answers calls to models.
    pub fn models(&self) -> &ModelApi {
        &self.0.models
    }
}

impl Inner {
    /// Whether nothing is missed of what the servers that share the database tell of the last seconds.
    fn hears_all_of(&self, run: RunId, seconds: u64) -> bool {
        let window = Duration::from_secs(seconds);
        let is_unknown = || self.others.lock().is_unknown(run, window, Instant::now());
        !self.database.is_shared() || !is_unknown()
    }

    /// Whether nothing is missed of what they tell of how busy a service was in the last seconds.
    fn hears_all_strain_of(&self, run: RunId, seconds: u64) -> bool {
        let (window, now) = (Duration::from_secs(seconds), Instant::now());
        let is_unknown = || {
            let others = self.others.lock();
            let asked = others.asked(run, window, now);
            self.strains.lock().is_unknown(run, window, asked, now)
        };
        self.hears_all_of(run, seconds) && !(self.database.is_shared() && is_unknown())
    }

    /// The job gets no requests any more; once none is under way, whoever waits for that is told.
    fn withdraw(self: &Arc<Self>, job: JobId) {
        if let Some(withdrawn) = &mut self.reading.lock().withdrawn {
            withdrawn.insert(job);
        }
        if !self.replicas.withdraw(job) {
            return;
        }
        self.routes.rcu(|routes| routes.without_replica(job));
        let inner = Arc::clone(self);
        task::spawn("requests of a job end", async move {
            if inner.database.is_shared() {
                // Nobody says when all other servers have heard of it.
                tokio::time::sleep(TO_BE_HEARD).await;
            }
            inner.replicas.ended(job).await;
            inner.waiting.report(|observer| observer.idle(job));
        });
    }
}

#[async_trait]
impl dstack_engine::Services for ServiceRoutes {
    async fn probe(&self, job: &JobSnapshot, probe: &ProbeSpec) -> Result<(), String> {
        probe::ask(&self.0, job, probe).await
    }

    fn unregistered(&self, job: JobId, run: RunId) {
        let is_known = self.0.replicas.run_of(job).is_some();
        self.0.withdraw(job);
        if is_known {
            self.want(run, true);
        }
        self.0.routers.changed(run);
        if self.0.gateways.has(job) {
            self.0.gateways.changed();
        }
    }

    fn registered(&self, job: &JobRow) {
        self.0.routers.changed(job.run_id);
        // Where it is registered already, nothing is told.
        self.0.gateways.changed();
        if !self.0.replicas.is_routed(job) {
            self.want(job.run_id, true);
        }
    }

    fn changed(&self, run: RunId) {
        self.0.gateways.changed();
        self.want(run, true);
    }

    fn moved(&self, instance: InstanceId) {
        for run in self.0.replicas.on(instance) {
            self.0.routers.changed(run);
            self.want(run, true);
        }
    }

    fn gateways_changed(&self) {
        self.0.gateways.look_again();
    }

    fn is_gateway_silent(&self, replica: GatewayReplicaId) -> bool {
        self.0.gateways.is_silent(replica)
    }

    fn serves(&self, job: JobId, gateway: Option<GatewayId>) -> bool {
        self.0.replicas.serves(job)
            || self.0.routers.have(job)
            || gateway.is_some_and(|gateway| self.0.gateways.serves(job, gateway))
    }

    fn is_published(&self, job: JobId, gateway: Option<GatewayId>) -> bool {
        gateway.is_none_or(|gateway| self.0.gateways.is_published(job, gateway))
    }

    fn worker(&self, run: RunId, job: JobId) -> Worker {
        self.0.routers.worker(run, job)
    }

    fn refusal(&self, run: RunId, gateway: GatewayId) -> Option<String> {
        self.0.gateways.refusal(run, gateway)
    }

    fn load(&self, run: RunId, gateway: Option<GatewayId>, window: Seconds) -> Option<Load> {
        let seconds = u64::try_from(window.0).ok()?;
        if let Some(gateway) = gateway {
            return self.0.gateways.load(run, gateway, seconds);
        }
        let requests = self.0.forwarder.stats().load(run, seconds)?;
        self.0.hears_all_of(run, seconds).then_some(Load { requests })
    }

    fn measured(&self, run: RunId, gateway: Option<GatewayId>, window: Seconds) -> Measured {
        let seconds = u64::try_from(window.0).unwrap_or(0);
        if let Some(gateway) = gateway {
            return self.0.gateways.measured(run, gateway, seconds);
        }
        let strain = self.0.forwarder.stats().strain(run, seconds);
        let is_whole = || self.0.hears_all_strain_of(run, seconds);
        strain.map_or(Measured::default(), |strain| {
            strain::measured(strain, seconds, is_whole())
        })
    }

    fn told(&self, jobs: &[JobId], path: &str, window: Seconds) -> Told {
        self.0.pages.told(jobs, path, window)
    }

    fn answered(&self, run: RunId, deployment: i64, gateway: Option<GatewayId>) -> Option<Answered> {
        let both = match gateway {
            Some(gateway) => self.0.gateways.answered(run, gateway, deployment),
            None => {
                let is_shared = self.0.database.is_shared();
                let rollouts = self.0.rollouts.lock();
                Some(rollouts.answered(run, deployment, is_shared.then(Instant::now)))
            }
        };
        both.as_ref().map(rollouts::Both::answered)
    }

    fn can_split(&self, gateway: Option<GatewayId>) -> bool {
        gateway.is_none_or(|gateway| self.0.gateways.can_split(gateway))
    }

    fn is_awaited(&self, run: RunId) -> bool {
        self.0.waiting.is_awaited(run) || self.0.others.lock().is_awaited(run, Instant::now())
    }

    fn report_to(&self, observer: Weak<dyn RequestObserver>) {
        self.0.waiting.report_to(observer);
    }
}

impl ServiceRoutes {
    /// A run is to be read anew; the servers that share the database are told if it was changed here.
    fn want(&self, run: RunId, tell: bool) {
        let mut reading = self.0.reading.lock();
        reading.runs.insert(run);
        if tell && self.0.database.is_shared() {
            reading.untold.insert(run);
        }
        drop(reading);
        self.0.wanted.notify_one();
    }
}
