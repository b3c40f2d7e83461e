//! One replica of a gateway: what it has, and telling it what it should have.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use dstack_agent_api::gateway::{
    Counted, RegisterEntrypoint, Registered, RolloutCounts, ServiceCounts, Split, Strained,
};
use dstack_agent_api::gateway_client::GatewayClient;
use dstack_agent_api::http::CallError;
use dstack_model::reach::Reach;
use dstack_plan::services::gateways::{Known, Step, steps};
use dstack_proxy::stats::Strain;
use dstack_store::rows::{AgentAddress, GatewayReplicaRow};
use dstack_store::{Database, EngineStore as _, SqlStore};
use dstack_system::{Locked, chain, task};
use dstack_units::{GatewayId, GatewayReplicaId, JobId, RunId};
use futures_util::future::join_all;
use http::StatusCode;
use tokio::sync::{Notify, Semaphore};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::expected::{self, Expected, Replica, Service};
use super::{Gateways, questions};
use crate::services::rollouts::Both;
use crate::wiring::{GatewayHosts, NoWay};

/// What a replica has is compared so often with what it should have, where nothing is known to have changed.
const SYNC_INTERVAL: Duration = Duration::from_secs(15);
/// Changes that follow each other are told together.
const DEBOUNCE: Duration = Duration::from_millis(100);
/// Pause after the gateway was not reached.
const RETRY_INTERVAL: Duration = Duration::from_secs(5);
/// Counts of requests are of use for so long.
const COUNTED_FOR: Duration = Duration::from_secs(40);
/// Pause before what was refused is tried again.
const REFUSED_INTERVAL: Duration = Duration::from_secs(15);
/// A gateway that says nothing for so long holds up no update of a service: it passes nothing on either, or soon will not.
const SILENT_AFTER: Duration = Duration::from_secs(120);
/// Requests under way at a job that leaves have so long; the job itself ends earlier where it must.
const DRAIN_LIMIT: Duration = Duration::from_secs(60);
/// Services that one replica is told of at a time.
const MOST_TOLD: usize = 16;
/// Questions of one replica that are answered at a time; more wait.
const MOST_QUESTIONS: usize = 64;
/// Replicas of one service that are told of at a time.
const AT_ONCE: usize = 8;
/// So often the replicas of a service may be refused before the service is: an SSH server may have yet to start.
const MAX_REFUSALS: u32 = 5;

/// One replica of a gateway, as this server sees it.
#[derive(Debug)]
pub(super) struct Link {
    pub(super) gateway: GatewayId,
    pub(super) replica: GatewayReplicaId,
    row: GatewayReplicaRow,
    wanted: Notify,
    /// For what is told at a time.
    places: Semaphore,
    /// For questions under way.
    pub(super) questions: Arc<Semaphore>,
    ended: CancellationToken,
    state: Locked<State>,
}

#[derive(Debug)]
struct State {
    /// When it last said what it has; before that, when it was first known.
    told_at: Instant,
    /// It has said what it has.
    is_known: bool,
    /// The jobs that get requests there, with their runs.
    jobs: HashMap<JobId, RunId>,
    /// Jobs whose last requests are waited for.
    leaving: HashSet<JobId>,
    /// Jobs that it is being told of.
    coming: HashSet<JobId>,
    /// Services that are being told of.
    busy: HashSet<Name>,
    /// Host names of models that it was told of, by this connection.
    entrypoints: HashSet<Name>,
    refused: BTreeMap<Name, Refused>,
    /// Services of which it was not told how their requests are split: until then, it is not tried again.
    unsplit: HashMap<Name, Instant>,
    /// It has said, by this connection, that it knows nothing of splitting requests.
    cannot_split: bool,
    /// Requests to services that scale, when they were counted last.
    counted: Option<(Instant, HashMap<RunId, Windows>)>,
    /// What both sides of roll-outs have answered, when that was asked last.
    rollouts: Option<(Instant, HashMap<RunId, RolloutCounts>)>,
    /// By which it was reached last, and what it should have had then.
    reached: Option<(GatewayClient, Arc<Expected>)>,
}

/// What was counted by the seconds of the window.
type Windows = HashMap<u64, Counted>;

/// Project and run, in small letters.
type Name = (String, String);

/// What a replica of a gateway has counted of the requests to a service.
#[derive(Debug)]
pub(crate) struct CountedService {
    pub(crate) project: String,
    pub(crate) run_name: String,
    pub(crate) run: RunId,
    pub(crate) replica: GatewayReplicaId,
    pub(crate) counts: ServiceCounts,
}

/// What was told of a service was refused.
#[derive(Debug, Clone)]
struct Refused {
    run: Option<RunId>,
    reason: String,
    times: u32,
    /// The service itself is refused, not one of its replicas.
    is_whole: bool,
    until: Instant,
}

impl Link {
    pub(super) fn new(row: &GatewayReplicaRow, ended: CancellationToken) -> Self {
        Self {
            gateway: row.gateway_id,
            replica: row.id,
            row: row.clone(),
            wanted: Notify::new(),
            places: Semaphore::new(MOST_TOLD),
            questions: Arc::new(Semaphore::new(MOST_QUESTIONS)),
            ended,
            state: Locked::new(State {
                told_at: Instant::now(),
                is_known: false,
                jobs: HashMap::new(),
                leaving: HashSet::new(),
                coming: HashSet::new(),
                busy: HashSet::new(),
                entrypoints: HashSet::new(),
                refused: BTreeMap::new(),
                unsplit: HashMap::new(),
                cannot_split: false,
                counted: None,
                rollouts: None,
                reached: None,
            }),
        }
    }

    pub(super) fn start(self: &Arc<Self>, gateways: &Arc<Gateways>, hosts: &Arc<GatewayHosts>) {
        let all = (Arc::clone(gateways), Arc::clone(self), Arc::clone(hosts));
        let (telling, answering) = (all.clone(), all);
        Gateways::until_ended(self, "tell a gateway its services", move || {
            let (gateways, link, hosts) = telling.clone();
            tell(gateways, link, hosts)
        });
        Gateways::until_ended(self, "answer a gateway", move || {
            let (gateways, link, hosts) = answering.clone();
            questions::answer(gateways, link, hosts)
        });
    }

    pub(super) fn ended(&self) -> CancellationToken {
        self.ended.clone()
    }

    /// The replica is gone; the jobs that it had, with their runs.
    pub(super) fn end(&self) -> Vec<(JobId, RunId)> {
        self.ended.cancel();
        let jobs = std::mem::take(&mut self.state.lock().jobs);
        jobs.into_iter().collect()
    }

    /// What it should have may have changed.
    pub(super) fn want(&self) {
        self.wanted.notify_one();
    }

    /// Whether it passes new requests on to the job.
    pub(super) fn is_registered(&self, job: JobId) -> bool {
        self.state.lock().jobs.contains_key(&job)
    }

    /// Whether it passes requests on to the job, or some are under way there.
    pub(super) fn has(&self, job: JobId) -> bool {
        let state = self.state.lock();
        state.jobs.contains_key(&job) || state.leaving.contains(&job) || state.coming.contains(&job)
    }

    /// Whether it has not said yet what it has, and is going to.
    pub(super) fn is_yet_unknown(&self) -> bool {
        !self.state.lock().is_known && self.is_current()
    }

    /// Whether it has said lately what it has.
    pub(super) fn is_current(&self) -> bool {
        Instant::now() < self.state.lock().told_at + SILENT_AFTER
    }

    /// Requests that came to the service within a window of so many seconds; `None`: it has not said so lately.
    pub(super) fn requests(&self, run: RunId, seconds: u64) -> Option<u64> {
        Some(self.counted(run, seconds)?.requests)
    }

    /// How busy the service was within a window of so many seconds; `None`: it has not said so lately, or is of dstack 0.22.5.
    pub(super) fn strain(&self, run: RunId, seconds: u64) -> Option<Strain> {
        let Strained {
            busy,
            first_pieces,
            waited,
        } = self.counted(run, seconds)?.strain?;
        // What a gateway says may be anything.
        let time = |seconds| Duration::try_from_secs_f64(seconds).ok();
        Some(Strain {
            busy: time(busy)?,
            first_pieces,
            waited: time(waited)?,
        })
    }

    fn counted(&self, run: RunId, seconds: u64) -> Option<Counted> {
        let state = self.state.lock();
        let (at, counted) = state.counted.as_ref()?;
        let is_recent = Instant::now() < *at + COUNTED_FOR;
        counted.get(&run).filter(|_| is_recent)?.get(&seconds).copied()
    }

    /// What both sides of the roll-out of this deployment have answered; `None`: it has not said so lately.
    pub(super) fn answered(&self, run: RunId, deployment: i64) -> Option<Both> {
        let state = self.state.lock();
        let (at, counted) = state.rollouts.as_ref()?;
        let is_recent = Instant::now() < *at + COUNTED_FOR;
        let counts = counted.get(&run).filter(|_| is_recent)?;
        (counts.deployment == deployment).then(|| Both::from(counts))
    }

    /// What it has counted since it was started of the services that it should have; `None`: it does not say so.
    pub(super) async fn counts(&self) -> Option<Vec<CountedService>> {
        let reached = self.state.lock().reached.clone();
        let (client, expected) = reached.filter(|_| self.is_current())?;
        let told = match client.counts().await {
            Ok(told) => told,
            Err(error) => {
                tracing::debug!(gateway.replica = %self.replica, error = %chain(&error), "a gateway does not say what it has counted");
                return None;
            }
        };
        let mut seen = HashSet::new();
        let known = told.into_iter().filter_map(|counts| {
            let run = RunId::from(Uuid::parse_str(&counts.id).ok()?);
            if !seen.insert(run) {
                return None;
            }
            // Whose they are is not the gateway's to say.
            let listed = &expected.services.get(&run)?.listed;
            Some(CountedService {
                project: listed.project_name.clone(),
                run_name: listed.run.run_name.clone(),
                run,
                replica: self.replica,
                counts,
            })
        });
        Some(known.collect())
    }

    /// It is reached by a new connection: another version of it may answer.
    fn begin_anew(&self) {
        let mut state = self.state.lock();
        state.entrypoints.clear();
        state.cannot_split = false;
    }

    fn told_at(&self) -> Instant {
        self.state.lock().told_at
    }

    /// Why it does not take the service.
    pub(super) fn refusal(&self, run: RunId) -> Option<String> {
        let state = self.state.lock();
        if state.jobs.values().any(|of| *of == run) {
            return None;
        }
        let refused = state.refused.values().find(|refused| refused.run == Some(run))?;
        let is_final = refused.times >= if refused.is_whole { 2 } else { MAX_REFUSALS };
        is_final.then(|| refused.reason.clone())
    }

    /// The way to what it runs on, as it is now.
    pub(super) async fn reach(&self, database: &Database) -> Result<Reach, String> {
        let store = SqlStore::new(database.clone());
        let Some(host) = self.row.instance_id else {
            let found = store.gateway_replica(self.replica).await;
            let found = found.map_err(|error| chain(&error).to_string())?;
            let row = found.ok_or("it is gone")?.replica;
            return row
                .reach
                .map(|reach| (*reach).clone())
                .ok_or_else(|| "its machine was not reached yet".to_owned());
        };
        let found = store.instance(host).await;
        let found = found.map_err(|error| chain(&error).to_string())?;
        let host = found.ok_or("its host is gone")?.instance;
        let reach = host.agent.as_deref().and_then(AgentAddress::reach);
        reach
            .cloned()
            .ok_or_else(|| format!("{} is not reached over SSH", host.name))
    }

    /// Takes over what the gateway says that it has. Jobs that are gone, with their runs, and runs whose jobs have come.
    fn take_over(&self, known: &[Known]) -> (Vec<(JobId, RunId)>, BTreeSet<RunId>) {
        let now: HashMap<JobId, RunId> = known
            .iter()
            .filter_map(|service| service.run.map(|run| (run, &service.jobs)))
            .flat_map(|(run, jobs)| jobs.iter().map(move |job| (*job, run)))
            .collect();
        let mut state = self.state.lock();
        let is_new = |job: &&JobId| !state.jobs.contains_key(job);
        let came = now.keys().filter(is_new).filter_map(|job| now.get(job).copied());
        let came: BTreeSet<RunId> = came.collect();
        let is_gone = |(job, _): &(&JobId, &RunId)| !now.contains_key(job);
        let left = state.jobs.iter().filter(is_gone);
        let left = left.map(|(job, run)| (*job, *run)).collect();
        state.jobs = now;
        state.is_known = true;
        state.told_at = Instant::now();
        (left, came)
    }

    /// Whether a service is to be told of now; then it is being told of.
    fn begin(&self, name: &Name, run: Option<RunId>) -> bool {
        let mut state = self.state.lock();
        if let Some(refused) = state.refused.get(name)
            && refused.run == run
            && Instant::now() < refused.until
        {
            return false;
        }
        state.busy.insert(name.clone())
    }

    /// Whether it is to be told now how the requests to a service are split.
    fn may_be_split(&self, name: &Name) -> bool {
        let state = self.state.lock();
        let until = state.unsplit.get(name);
        until.is_none_or(|until| Instant::now() >= *until)
    }

    /// It was told how the requests to a service are split. True if that shows that it can split requests.
    fn note_split(&self) -> bool {
        std::mem::take(&mut self.state.lock().cannot_split)
    }

    /// It was not told how the requests to a service are split. True if that shows that it cannot split any.
    fn note_unsplit(&self, name: Name, error: &CallError) -> bool {
        let now = Instant::now();
        let mut state = self.state.lock();
        state.unsplit.retain(|_, until| *until > now);
        state.unsplit.insert(name, now + RETRY_INTERVAL);
        let is_unknown = is_unknown(error);
        is_unknown && !std::mem::replace(&mut state.cannot_split, true)
    }

    /// Whether it has said that it cannot split requests.
    pub(super) fn cannot_split(&self) -> bool {
        self.state.lock().cannot_split
    }

    /// It took the service, and the replicas that it was told of.
    fn note_success(&self, name: &Name) {
        self.state.lock().refused.remove(name);
    }

    fn note_refusal(&self, name: &Name, run: Option<RunId>, reason: String, is_whole: bool) {
        let mut state = self.state.lock();
        let is_same = |refused: &&Refused| refused.run == run && refused.is_whole == is_whole;
        let before = state.refused.get(name).filter(is_same);
        let times = before.map_or(1, |refused| refused.times + 1);
        if before.is_none_or(|before| before.reason != reason) {
            let (project, run) = name;
            tracing::warn!(gateway.replica = %self.replica, project, run, reason, "a gateway does not take a service");
        }
        let refused = Refused {
            run,
            reason,
            times,
            is_whole,
            until: Instant::now() + REFUSED_INTERVAL,
        };
        state.refused.insert(name.clone(), refused);
    }
}

/// A service is being told of, until this is dropped.
struct Turn {
    link: Arc<Link>,
    name: Name,
    coming: BTreeSet<JobId>,
}

impl Turn {
    /// `None`: it is being told of, or was refused just now.
    fn begin(link: &Arc<Link>, name: &Name, run: Option<RunId>, coming: &BTreeSet<JobId>) -> Option<Self> {
        link.begin(name, run).then(|| {
            link.state.lock().coming.extend(coming);
            Self {
                link: Arc::clone(link),
                name: name.clone(),
                coming: coming.clone(),
            }
        })
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let mut state = self.link.state.lock();
        state.busy.remove(&self.name);
        for job in &self.coming {
            state.coming.remove(job);
        }
        drop(state);
        self.link.want();
    }
}

/// Tells a replica what it should have, as long as it is there.
async fn tell(gateways: Arc<Gateways>, link: Arc<Link>, hosts: Arc<GatewayHosts>) {
    let mut told = String::new();
    loop {
        let before = link.told_at();
        // Ends when it is not reached any more.
        let Err(error) = serve(&gateways, &link, &hosts).await;
        // The same reason is told once, until it was reached again.
        if error != told || link.told_at() != before {
            tracing::warn!(gateway.replica = %link.replica, error, "a gateway is not told what it should have, and is tried again");
            told = error;
        }
        tokio::time::sleep(RETRY_INTERVAL).await;
    }
}

async fn serve(
    gateways: &Arc<Gateways>,
    link: &Arc<Link>,
    hosts: &Arc<GatewayHosts>,
) -> Result<Infallible, String> {
    let reach = link.reach(&gateways.database).await?;
    let client = hosts.client(&link.row, &reach).await?;
    let called = |error: CallError| chain(&error).to_string();
    client.configure(&gateways.rules.acme).await.map_err(called)?;
    link.begin_anew();
    loop {
        let registered = client.registered().await.map_err(called)?;
        let (known, splits) = (known(&registered), splits(&registered));
        // Read after it: what was committed before has been told by now, or is told below.
        let expected = expected::read(&gateways.database, link.gateway).await;
        let expected = Arc::new(expected.map_err(|error| chain(&error).to_string())?);
        link.state.lock().reached = Some((client.clone(), Arc::clone(&expected)));
        let (left, came) = link.take_over(&known);
        for (job, run) in left {
            gateways.left(job);
            if !expected.services.contains_key(&run) {
                gateways.forget(run);
            }
        }
        for run in came {
            gateways.came(run);
        }
        for (run, name, split) in expected.resplit(&known, &splits) {
            begin_split(gateways, link, &client, (run, name), split);
        }
        for step in steps(&known, &expected.planned(&splits)) {
            begin(gateways, link, hosts, &client, &expected, step);
        }
        for (project, entrypoint) in expected.entrypoints(&gateways.rules) {
            begin_entrypoint(link, &client, project, entrypoint);
        }
        count(link, &client, &expected).await?;
        if expected.has_splits() {
            count_rollouts(link, &client).await;
        }
        tokio::select! {
            () = link.wanted.notified() => tokio::time::sleep(DEBOUNCE).await,
            () = tokio::time::sleep(SYNC_INTERVAL) => {}
        }
    }
}

/// Asks for the requests to services that scale, as often as all is compared.
async fn count(link: &Link, client: &GatewayClient, expected: &Expected) -> Result<(), String> {
    let is_due = |counted: &Option<(Instant, HashMap<RunId, Windows>)>| {
        let next = counted.as_ref().map(|(at, _)| *at + SYNC_INTERVAL);
        next.is_none_or(|next| Instant::now() >= next)
    };
    let scaled = expected.scaled();
    if scaled.is_empty() || !is_due(&link.state.lock().counted) {
        return Ok(());
    }
    let told = client
        .statistics()
        .await
        .map_err(|error| chain(&error).to_string())?;
    let mut counted = HashMap::new();
    for service in told {
        let Some(run) = scaled.get(&(service.project_name, service.run_name)) else {
            continue;
        };
        let windows = service.stats.iter().filter_map(|(seconds, counted)| {
            let seconds = seconds.parse().ok()?;
            Some((seconds, *counted))
        });
        counted.insert(*run, windows.collect::<Windows>());
    }
    link.state.lock().counted = Some((Instant::now(), counted));
    Ok(())
}

/// Asks what both sides of roll-outs have answered. A gateway that does not say so is asked again.
async fn count_rollouts(link: &Link, client: &GatewayClient) {
    let told = match client.counts().await {
        Ok(told) => told,
        Err(error) => {
            tracing::debug!(gateway.replica = %link.replica, error = %chain(&error), "a gateway does not say what new replicas have answered");
            return;
        }
    };
    let of_run = |counts: ServiceCounts| {
        let run = RunId::from(Uuid::parse_str(&counts.id).ok()?);
        Some((run, counts.rollout?))
    };
    let counted = told.into_iter().filter_map(of_run).collect();
    link.state.lock().rollouts = Some((Instant::now(), counted));
}

/// Begins to tell how the requests to a service are split, unless it is being told of, or that was refused just now.
fn begin_split(
    gateways: &Arc<Gateways>,
    link: &Arc<Link>,
    client: &GatewayClient,
    (run, name): (RunId, Name),
    split: Option<Split>,
) {
    if !link.may_be_split(&name) {
        return;
    }
    let Some(turn) = Turn::begin(link, &name, Some(run), &BTreeSet::new()) else {
        return;
    };
    let (gateways, client) = (Arc::clone(gateways), client.clone());
    task::spawn("tell a gateway how requests are split", async move {
        let _place = turn.link.places.acquire().await;
        let told = client.split(&name.0, &name.1, split.as_ref()).await;
        let is_news = match told {
            Ok(()) => turn.link.note_split(),
            Err(error) => {
                // One that cannot is asked again and again, since it may be updated: that is said once.
                if !turn.link.cannot_split() {
                    tracing::warn!(gateway.replica = %turn.link.replica, run = name.1, error = %chain(&error), "a gateway is told later how requests are split");
                }
                // The pause is not a part of the turn: meanwhile the gateway hears of the service's replicas.
                turn.link.note_unsplit(name, &error)
            }
        };
        if is_news {
            gateways.told(run);
        }
    });
}

fn splits(registered: &Registered) -> HashMap<RunId, Split> {
    let services = registered.services.iter();
    let split = |service: &dstack_agent_api::gateway::RegisteredService| {
        let run = RunId::from(Uuid::parse_str(service.id.as_deref()?).ok()?);
        Some((run, service.split.clone()?))
    };
    services.filter_map(split).collect()
}

fn known(registered: &Registered) -> Vec<Known> {
    let id = |text: &str| Uuid::parse_str(text).ok();
    let service = |service: &dstack_agent_api::gateway::RegisteredService| Known {
        run: service.id.as_deref().and_then(id).map(RunId::from),
        project: service.project_name.clone(),
        name: service.run_name.clone(),
        jobs: service
            .replicas
            .iter()
            .filter_map(|replica| id(&replica.id).map(JobId::from))
            .collect(),
    };
    registered.services.iter().map(service).collect()
}

/// Begins what is to be told of a service, unless that is under way: a certificate or the end of a request may be waited for, and
/// other services wait for neither.
fn begin(
    gateways: &Arc<Gateways>,
    link: &Arc<Link>,
    hosts: &Arc<GatewayHosts>,
    client: &GatewayClient,
    expected: &Arc<Expected>,
    step: Step,
) {
    let name = (step.project.clone(), step.name.clone());
    for job in &step.remove {
        drain(gateways, link, client, &name, *job);
    }
    if !step.unregister && step.register.is_none() && step.add.is_empty() {
        return;
    }
    let run = step.register.or_else(|| run_of(expected, &step));
    let Some(turn) = Turn::begin(link, &name, run, &step.add) else {
        return;
    };
    let (gateways, hosts) = (Arc::clone(gateways), Arc::clone(hosts));
    let (client, expected) = (client.clone(), Arc::clone(expected));
    task::spawn("tell a gateway of a service", async move {
        let _place = turn.link.places.acquire().await;
        let told = carry_out(&gateways, &hosts, &client, &expected, &step, run).await;
        match told {
            Ok(()) => turn.link.note_success(&name),
            Err(NotTold::Refused { reason, is_whole }) => {
                turn.link.note_refusal(&name, run, reason, is_whole);
                if let Some(run) = run {
                    gateways.told(run);
                }
            }
            Err(NotTold::Later(reason)) => {
                tracing::warn!(gateway.replica = %turn.link.replica, run = name.1, reason, "a gateway is told of a service later");
                tokio::time::sleep(RETRY_INTERVAL).await;
            }
        }
    });
}

/// Begins to tell where the models of a project are answered, unless that is done or under way.
fn begin_entrypoint(
    link: &Arc<Link>,
    client: &GatewayClient,
    project: String,
    entrypoint: RegisterEntrypoint,
) {
    let name = (project, entrypoint.domain.clone());
    if link.state.lock().entrypoints.contains(&name) {
        return;
    }
    let Some(turn) = Turn::begin(link, &name, None, &BTreeSet::new()) else {
        return;
    };
    let client = client.clone();
    task::spawn("tell a gateway of models", async move {
        let _place = turn.link.places.acquire().await;
        match client.register_entrypoint(&name.0, &entrypoint).await {
            Ok(()) => {
                turn.link.note_success(&name);
                turn.link.state.lock().entrypoints.insert(name);
            }
            Err(error) => turn
                .link
                .note_refusal(&name, None, chain(&error).to_string(), true),
        }
    });
}

fn run_of(expected: &Expected, step: &Step) -> Option<RunId> {
    let mut services = expected.services.values();
    let found = services.find(|service| service.replicas.keys().any(|job| step.add.contains(job)));
    found.map(|service| service.listed.run.id)
}

/// A job leaves: it gets no new requests, and those under way are waited for.
fn drain(gateways: &Arc<Gateways>, link: &Arc<Link>, client: &GatewayClient, name: &Name, job: JobId) {
    if !link.state.lock().leaving.insert(job) {
        return;
    }
    let (gateways, link, client) = (Arc::clone(gateways), Arc::clone(link), client.clone());
    let (project, run) = name.clone();
    task::spawn("requests of a job end at a gateway", async move {
        let id = job.uuid().simple().to_string();
        match client.drain_replica(&project, &run, &id, DRAIN_LIMIT).await {
            Err(error) if !is_gone_already(&error) => {
                tracing::warn!(gateway.replica = %link.replica, job.id = %job, error = %chain(&error), "a job is not taken away from a gateway yet");
                tokio::time::sleep(RETRY_INTERVAL).await;
            }
            _ => drop(link.state.lock().jobs.remove(&job)),
        }
        link.state.lock().leaving.remove(&job);
        gateways.left(job);
        link.want();
    });
}

enum NotTold {
    /// The gateway says no.
    Refused { reason: String, is_whole: bool },
    /// Whatever is in the way has nothing to do with the service: it is tried again.
    Later(String),
}

impl NotTold {
    fn of(error: &CallError, is_whole: bool) -> Self {
        match error {
            CallError::Refused { status, message, .. } if *status == StatusCode::BAD_REQUEST => {
                Self::Refused {
                    reason: detail(message),
                    is_whole,
                }
            }
            other => Self::Later(chain(other).to_string()),
        }
    }
}

/// The text of a refusal.
fn detail(message: &str) -> String {
    let value: Option<serde_json::Value> = serde_json::from_str(message).ok();
    let detail = value.as_ref().and_then(|value| value["detail"].as_str());
    detail.unwrap_or(message).to_owned()
}

/// What a repetition is answered with.
fn is_there_already(error: &CallError) -> bool {
    matches!(error, CallError::Refused { message, .. } if message.contains("is already registered") || message.contains("already exists in service"))
}

/// How gateways answer what is not among their calls. Those that know it answer 400 where there is no such service.
const fn is_unknown(error: &CallError) -> bool {
    matches!(error, CallError::Refused { status, .. } if matches!(*status, StatusCode::NOT_FOUND | StatusCode::METHOD_NOT_ALLOWED))
}

/// What a repetition of taking something away is answered with.
fn is_gone_already(error: &CallError) -> bool {
    matches!(error, CallError::Refused { message, .. } if message.contains("does not exist"))
}

async fn carry_out(
    gateways: &Gateways,
    hosts: &GatewayHosts,
    client: &GatewayClient,
    expected: &Expected,
    step: &Step,
    run: Option<RunId>,
) -> Result<(), NotTold> {
    let whole = |error: &CallError| NotTold::of(error, true);
    if step.unregister {
        match client.unregister_service(&step.project, &step.name).await {
            Err(error) if !is_gone_already(&error) => return Err(whole(&error)),
            _ => {}
        }
    }
    let Some(service) = run.and_then(|run| expected.services.get(&run)) else {
        return Ok(());
    };
    if step.register.is_some() {
        register(gateways, hosts, client, expected, (step, service)).await?;
    }
    let mut replicas: Vec<&Replica> = Vec::new();
    for (job, replica) in &service.replicas {
        if step.add.contains(job) {
            replicas.push(replica);
        }
    }
    let mut outcome = Ok(());
    for some in replicas.chunks(AT_ONCE) {
        let mut told = Vec::new();
        for replica in some {
            told.push(add(hosts, client, step, replica));
        }
        // One that is refused keeps no other away.
        for told in join_all(told).await {
            outcome = outcome.and(told);
        }
    }
    outcome
}

async fn add(
    hosts: &GatewayHosts,
    client: &GatewayClient,
    step: &Step,
    replica: &Replica,
) -> Result<(), NotTold> {
    let payload = hosts.replica(replica.address.as_ref(), &replica.job).await;
    let payload = payload.map_err(|error| match error {
        NoWay::Never(reason) => NotTold::Refused {
            reason,
            is_whole: false,
        },
        NoWay::Now(reason) => NotTold::Later(reason),
    })?;
    match client.register_replica(&step.project, &step.name, &payload).await {
        Err(error) if !is_there_already(&error) => Err(NotTold::of(&error, false)),
        _ => Ok(()),
    }
}

async fn register(
    gateways: &Gateways,
    hosts: &GatewayHosts,
    client: &GatewayClient,
    expected: &Expected,
    (step, service): (&Step, &Service),
) -> Result<(), NotTold> {
    let key = hosts.project_key(service.listed.run.project_id).await;
    let key = key.map_err(NotTold::Later)?;
    let payload = service.registration(&gateways.rules, expected.has_tls, key);
    let payload = payload.map_err(|reason| NotTold::Refused {
        reason,
        is_whole: true,
    })?;
    match client.register_service(&step.project, &payload).await {
        Err(error) if !is_there_already(&error) => Err(NotTold::of(&error, true)),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests;
