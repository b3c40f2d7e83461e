//! One service: what its router has, and telling it what it should have.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use dstack_engine::services::Worker;
use dstack_plan::services::routers::{Listed, Steps, Wanted, steps};
use dstack_plan::services::workers;
use dstack_store::StoreError;
use dstack_system::{Locked, chain, task};
use dstack_units::{JobId, RunId};
use futures_util::stream::{self, StreamExt as _};
use tokio::sync::{Notify, Semaphore};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::expected::{self, Expected, Replica};
use super::inspection::NotYet;
use super::{Routers, calls, inspection};

/// What a router has is compared so often with what it should have: it may have been started anew, and forgotten all (dstack 0.22.5's).
const SYNC_INTERVAL: Duration = Duration::from_secs(5);
/// The same after it was told something, which it does a little later.
const SETTLE_INTERVAL: Duration = Duration::from_secs(1);
/// Changes that follow each other are told together.
const DEBOUNCE: Duration = Duration::from_millis(100);
/// A safety net where servers share a database: what one was not told of, it reads by then.
const READ_INTERVAL: Duration = Duration::from_secs(30);
/// Pause before a replica is asked again that is no worker yet.
const INSPECTION_INTERVAL: Duration = Duration::from_secs(5);
/// A router that says nothing for so long holds up no update of its service.
const SILENT_AFTER: Duration = Duration::from_secs(120);
/// A replica that is no worker for so long holds up no update of its service either (as long as dstack 0.22.5 waits for a router of Dynamo).
const GIVEN_UP_AFTER: Duration = Duration::from_secs(30 * 60);
/// What keeps a replica from being a worker is told anew so often: each change is a commit, and routers and replicas may put it in other
/// words with every answer.
const REASON_INTERVAL: Duration = Duration::from_secs(5);
/// Most that is told to routers before they are asked again what they have.
const MOST_CALLS: usize = 64;
/// Routers that are called, and replicas that are asked, at a time (dstack 0.22.5's).
const AT_ONCE: usize = 8;

/// A service whose router is told of its workers.
#[derive(Debug)]
pub(super) struct Link {
    run: RunId,
    /// What it should have may have changed.
    wanted: Notify,
    /// More is known of a replica.
    inspected: Notify,
    ended: CancellationToken,
    /// For replicas that are asked.
    places: Semaphore,
    state: Locked<State>,
}

#[derive(Debug)]
struct State {
    /// When a router last said what it has; before that, when the service was first known.
    heard_at: Instant,
    /// What each replica of the router said last.
    listed: BTreeMap<JobId, Vec<Listed>>,
    /// Why the router is not told of any.
    router_trouble: Option<String>,
    /// Why a job is no worker.
    trouble: BTreeMap<JobId, String>,
    /// Jobs that are being asked.
    asked: HashSet<JobId>,
    /// What came of that.
    answers: HashMap<JobId, Answer>,
    /// Jobs that are something else than workers, and stay so.
    others: HashSet<JobId>,
    /// What was told of each job to whoever acts on it.
    told: BTreeMap<JobId, Told>,
}

#[derive(Debug, Clone)]
struct Told {
    standing: Worker,
    at: Instant,
    /// When the job was first among those that are to be workers.
    since: Instant,
}

#[derive(Debug)]
enum Answer {
    Is(workers::Worker),
    IsNot { until: Instant },
}

impl State {
    /// The jobs that a router has as workers.
    fn jobs(&self) -> BTreeSet<JobId> {
        let all = self.listed.values().flatten();
        all.filter_map(|worker| worker.job).collect()
    }

    /// The jobs that each router has as workers.
    fn had_by_all(&self) -> BTreeSet<JobId> {
        let mut had = self.jobs();
        had.retain(|job| {
            let has = |listed: &Vec<Listed>| listed.iter().any(|worker| worker.job == Some(*job));
            self.listed.values().all(has)
        });
        had
    }

    /// What is known of these replicas now.
    fn standings(&self, expected: &Expected) -> BTreeMap<JobId, Worker> {
        let wanted = expected.wanted();
        let listed = self.listed.values();
        let added: BTreeSet<JobId> = listed.flat_map(|listed| steps(listed, &wanted).has).collect();
        let is_silent = Instant::now() >= self.heard_at + SILENT_AFTER;
        let is_given_up = |worker: &Replica| {
            let known = self.told.get(&worker.job);
            let is_late = known.is_some_and(|told| Instant::now() >= told.since + GIVEN_UP_AFTER);
            is_late || worker.address.is_none() || self.others.contains(&worker.job)
        };
        let standing = |worker: &Replica| {
            let no_address = || "its instance has no address by which the router could reach it".to_owned();
            let own = || match worker.address {
                Some(_) => self.trouble.get(&worker.job).cloned(),
                None => Some(no_address()),
            };
            let standing = match added.contains(&worker.job) {
                true => Worker::Added,
                false if is_silent => Worker::Unknown(self.router_trouble.clone()),
                false if is_given_up(worker) => Worker::Unknown(own()),
                false => Worker::Missing(self.router_trouble.clone().or_else(own)),
            };
            (worker.job, standing)
        };
        expected.workers.iter().map(standing).collect()
    }
}

impl Link {
    pub(super) fn new(run: RunId) -> Self {
        Self {
            run,
            wanted: Notify::new(),
            inspected: Notify::new(),
            ended: CancellationToken::new(),
            places: Semaphore::new(AT_ONCE),
            state: Locked::new(State {
                heard_at: Instant::now(),
                listed: BTreeMap::new(),
                router_trouble: None,
                trouble: BTreeMap::new(),
                asked: HashSet::new(),
                answers: HashMap::new(),
                others: HashSet::new(),
                told: BTreeMap::new(),
            }),
        }
    }

    pub(super) fn ended(&self) -> CancellationToken {
        self.ended.clone()
    }

    /// It ends; the jobs that the router had.
    pub(super) fn end(&self) -> BTreeSet<JobId> {
        self.ended.cancel();
        let mut state = self.state.lock();
        let jobs = state.jobs();
        state.listed.clear();
        jobs
    }

    /// What the router should have may have changed.
    pub(super) fn want(&self) {
        self.wanted.notify_one();
    }

    /// Whether the router has the job, as far as it has said.
    pub(super) fn has(&self, job: JobId) -> bool {
        let state = self.state.lock();
        let mut all = state.listed.values().flatten();
        all.any(|worker| worker.job == Some(job))
    }

    /// What the router has of the job, as it was last compared.
    pub(super) fn worker(&self, job: JobId) -> Worker {
        let told = self.state.lock().told.get(&job).cloned();
        told.map_or(Worker::Unasked, |told| told.standing)
    }
}

/// Tells the router what it should have, as long as the service is there.
pub(super) async fn tell(routers: Arc<Routers>, link: Arc<Link>) {
    let mut read: Option<(Instant, Expected)> = None;
    let mut failure = String::new();
    loop {
        let pause = match compare(&routers, &link, &mut read).await {
            Ok(true) => SETTLE_INTERVAL,
            Ok(false) => SYNC_INTERVAL,
            Err(error) => {
                let error = chain(&error).to_string();
                if error != failure {
                    tracing::warn!(run.id = %link.run, error, "which replicas run cannot be read now, and is read again");
                    failure = error;
                }
                read = None;
                SYNC_INTERVAL
            }
        };
        tokio::select! {
            () = link.wanted.notified() => {
                read = None;
                tokio::time::sleep(DEBOUNCE).await;
            }
            () = link.inspected.notified() => tokio::time::sleep(DEBOUNCE).await,
            () = tokio::time::sleep(pause) => {}
        }
    }
}

/// Compares once, and does what follows from it. True if the router was told something.
async fn compare(
    routers: &Arc<Routers>,
    link: &Arc<Link>,
    read: &mut Option<(Instant, Expected)>,
) -> Result<bool, StoreError> {
    let fresh = || async {
        let expected = expected::read(&routers.database, &routers.ports, link.run).await?;
        Ok::<_, StoreError>((Instant::now(), expected))
    };
    let known = match read.take() {
        Some((at, expected)) if Instant::now() < at + READ_INTERVAL => (at, expected),
        _ => fresh().await?,
    };
    let answers = list(&known.1.routers).await;
    let (at, expected) = match differs(&known.1, &answers) {
        // Read after the lists: of what another server has told the router, the database knows.
        true => fresh().await?,
        false => known,
    };
    link.take_over(routers, &expected, answers);
    let told = follow_up(link, &expected).await;
    link.report(routers, &expected);
    *read = Some((at, expected));
    Ok(told)
}

/// What a replica of a router says that it has.
type Said = (JobId, Result<Vec<Listed>, String>);

async fn list(all: &[Replica]) -> Vec<Said> {
    let asked = all.iter().cloned().map(|router| async move {
        let answer = calls::list(router.connector.as_ref()).await;
        (router.job, answer)
    });
    stream::iter(asked).buffer_unordered(AT_ONCE).collect().await
}

fn differs(expected: &Expected, answers: &[Said]) -> bool {
    let wanted = expected.wanted();
    let mut listed = answers.iter().filter_map(|(_, answer)| answer.as_ref().ok());
    listed.any(|listed| {
        let steps = steps(listed, &wanted);
        !steps.add.is_empty() || !steps.remove.is_empty()
    })
}

/// What is told to a router.
enum Call {
    Add(JobId, workers::Worker),
    Remove(String),
}

/// Adds what was found to be a worker, asks those of which nothing is known, and removes what is over. True if something was told.
async fn follow_up(link: &Arc<Link>, expected: &Expected) -> bool {
    let wanted = expected.wanted();
    let mut calls: Vec<(Replica, Call)> = Vec::new();
    let mut unknown = BTreeSet::new();
    for router in &expected.routers {
        let Some(steps) = link.steps(router.job, &wanted) else {
            continue;
        };
        let Steps {
            add, blocked, remove, ..
        } = steps;
        // First: nobody waits for them in vain any more.
        calls.extend(remove.into_iter().map(|id| (router.clone(), Call::Remove(id))));
        for job in add {
            match link.answer(job) {
                Some(worker) => calls.push((router.clone(), Call::Add(job, worker))),
                None => drop(unknown.insert(job)),
            }
        }
        for job in blocked {
            link.note(job, "another worker of the router has its address".to_owned());
        }
    }
    for job in unknown {
        if let Some(replica) = expected.worker(job) {
            begin_inspection(link, replica);
        }
    }
    let is_told = !calls.is_empty();
    calls.truncate(MOST_CALLS);
    let carried_out = stream::iter(calls).map(|(router, call)| carry_out(link, router, call));
    carried_out.buffer_unordered(AT_ONCE).collect::<()>().await;
    is_told
}

async fn carry_out(link: &Link, router: Replica, call: Call) {
    match call {
        Call::Remove(id) => match calls::remove(router.connector.as_ref(), &id).await {
            Ok(()) => tracing::debug!(run.id = %link.run, worker = id, "a worker is removed from its router"),
            Err(error) => {
                tracing::warn!(run.id = %link.run, router.job = %router.job, worker = id, error, "a worker is not removed from its router yet");
            }
        },
        Call::Add(job, worker) => {
            let url = worker.url.clone();
            let answer = calls::add(router.connector.as_ref(), &worker).await;
            // It may have become another one until the router forgets it; and a router takes a while to add it.
            let pause = Answer::IsNot {
                until: Instant::now() + INSPECTION_INTERVAL,
            };
            link.state.lock().answers.insert(job, pause);
            match answer {
                Ok(()) => {
                    tracing::debug!(run.id = %link.run, job.id = %job, url, "a worker is added to its router");
                    link.note(
                        job,
                        format!("the router was told of {url}, and does not list it yet"),
                    );
                }
                Err(error) => link.note(job, format!("the router does not take it: {error}")),
            }
        }
    }
}

/// A replica is being asked, until this is dropped.
struct Asking {
    link: Arc<Link>,
    job: JobId,
}

impl Asking {
    /// `None`: it is being asked, or was just now.
    fn begin(link: &Arc<Link>, job: JobId) -> Option<Self> {
        let mut state = link.state.lock();
        if let Some(Answer::IsNot { until }) = state.answers.get(&job)
            && Instant::now() < *until
        {
            return None;
        }
        state.asked.insert(job).then(|| Self {
            link: Arc::clone(link),
            job,
        })
    }

    fn end(self, answer: Result<workers::Worker, NotYet>) {
        let is_other = answer.as_ref().is_err_and(|failure| failure.is_final);
        let answer = match answer {
            Ok(worker) => Answer::Is(worker.of_job(self.job)),
            Err(NotYet { why, .. }) => {
                self.link.note(self.job, why);
                Answer::IsNot {
                    until: Instant::now() + INSPECTION_INTERVAL,
                }
            }
        };
        let mut state = self.link.state.lock();
        state.answers.insert(self.job, answer);
        match is_other {
            true => drop(state.others.insert(self.job)),
            false => drop(state.others.remove(&self.job)),
        }
    }
}

impl Drop for Asking {
    fn drop(&mut self) {
        self.link.state.lock().asked.remove(&self.job);
        self.link.inspected.notify_one();
    }
}

fn begin_inspection(link: &Arc<Link>, replica: &Replica) {
    let Some(address) = replica.address.clone() else {
        return;
    };
    let Some(asking) = Asking::begin(link, replica.job) else {
        return;
    };
    let connector = Arc::clone(&replica.connector);
    task::spawn("inspect a worker", async move {
        let link = Arc::clone(&asking.link);
        let asked = async {
            let _place = link.places.acquire().await;
            inspection::inspect(connector.as_ref(), &address).await
        };
        tokio::select! {
            answer = asked => asking.end(answer),
            () = link.ended.cancelled() => {}
        }
    });
}

impl Link {
    /// Takes over what the routers said.
    fn take_over(&self, routers: &Routers, expected: &Expected, answers: Vec<Said>) {
        let mut state = self.state.lock();
        let before = state.jobs();
        state
            .listed
            .retain(|router, _| expected.routers.iter().any(|one| one.job == *router));
        let mut trouble = Some("no replica of the router runs".to_owned());
        let is_heard = answers.iter().any(|(_, answer)| answer.is_ok());
        for (router, answer) in answers {
            match answer {
                // It may have ended meanwhile.
                Ok(_) if expected.routers.iter().all(|one| one.job != router) => {}
                Ok(listed) => {
                    state.heard_at = Instant::now();
                    state.listed.insert(router, listed);
                }
                Err(error) => {
                    trouble = Some(format!("the router does not say which workers it has: {error}"));
                }
            }
        }
        let trouble = trouble.filter(|_| !is_heard);
        if let Some(trouble) = trouble.as_ref().filter(|_| state.router_trouble.is_none()) {
            tracing::info!(run.id = %self.run, trouble, "a router is not told its workers now");
        }
        state.router_trouble = trouble;
        let after = state.jobs();
        state
            .trouble
            .retain(|job, _| expected.worker(*job).is_some() && !after.contains(job));
        // What all routers have is asked again before it is told to one that has forgotten it.
        let had = state.had_by_all();
        state
            .answers
            .retain(|job, _| expected.worker(*job).is_some() && !had.contains(job));
        state
            .others
            .retain(|job| expected.worker(*job).is_some() && !after.contains(job));
        drop(state);
        for job in before.difference(&after).copied().collect::<Vec<_>>() {
            routers.waiting.report(|observer| observer.idle(job));
        }
    }

    /// What is to be done at a replica of the router; `None`: it has not said what it has.
    fn steps(&self, router: JobId, wanted: &[Wanted]) -> Option<Steps> {
        let state = self.state.lock();
        Some(steps(state.listed.get(&router)?, wanted))
    }

    /// What the job is, if it was asked just now.
    fn answer(&self, job: JobId) -> Option<workers::Worker> {
        match self.state.lock().answers.get(&job)? {
            Answer::Is(worker) => Some(worker.clone()),
            Answer::IsNot { .. } => None,
        }
    }

    /// Tells whoever acts on it what has changed of these replicas.
    fn report(&self, routers: &Routers, expected: &Expected) {
        let mut state = self.state.lock();
        let (now, mut changed) = (Instant::now(), Vec::new());
        let standings = state.standings(expected);
        let mut before = std::mem::take(&mut state.told);
        let mut after = BTreeMap::new();
        for (job, standing) in standings {
            let known = before.remove(&job);
            let since = known.as_ref().map_or(now, |told| told.since);
            let told = match known {
                Some(told) if !is_news(&told, &standing, now) => told,
                _ => {
                    changed.push((job, standing.clone()));
                    Told {
                        standing,
                        at: now,
                        since,
                    }
                }
            };
            after.insert(job, told);
        }
        state.told = after;
        drop(state);
        for (job, standing) in changed {
            if let Worker::Missing(Some(trouble)) | Worker::Unknown(Some(trouble)) = standing {
                tracing::info!(run.id = %self.run, job.id = %job, trouble, "a replica is no worker of its router yet");
            }
            let run = self.run;
            routers
                .waiting
                .report(|observer| observer.worker_changed(run, job));
        }
    }

    /// Why a job is no worker.
    fn note(&self, job: JobId, trouble: String) {
        self.state.lock().trouble.insert(job, trouble);
    }
}

/// Whether a standing is to be told: another reason for the same one is now and then.
fn is_news(told: &Told, standing: &Worker, now: Instant) -> bool {
    let is_same_but_reason = std::mem::discriminant(&told.standing) == std::mem::discriminant(standing);
    told.standing != *standing && (!is_same_but_reason || now >= told.at + REASON_INTERVAL)
}
