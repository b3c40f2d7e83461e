//! What every part of the engine works with.

use std::collections::BTreeSet;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use dstack_compute::Backends;
use dstack_model::runs::{JobStatus, RunStatus};
use dstack_plan::fleets::MAX_OFFERS_TRIED;
use dstack_plan::orphans::Policy as OrphanPolicy;
use dstack_plan::placement::HostNetwork;
use dstack_store::rows::JobRow;
use dstack_store::{Commit, EngineStore, EntityRef, Put, StoreError};
use dstack_system::clock::SharedClock;
use dstack_system::{Random, causes, causes_of, task};
use dstack_units::{InstallationId, InstanceId, JobId, RunId, Time};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::attendance::Attendance;
use crate::failpoint::Failpoints;
use crate::follow::probes::Places;
use crate::lease_set::LeaseSet;
use crate::look::Looks;
use crate::observations::Observations;
use crate::offer_cache::OfferCache;
use crate::orphans::SWEEP_INTERVAL;
use crate::panics::Panics;
use crate::running::Running;
use crate::services::{RequestObserver, Rerouting};
use crate::wakes::{Key, Wakes};
use crate::{Agents, EngineError, Hosts, Inputs, Output, Result, Services};

/// Who a server is among those that share its database.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// Its name: one that starts again under its name goes on with what it drove.
    pub name: String,
    /// Random id of this process.
    pub process: Uuid,
    /// The process that had the name before, if it is known to be dead: its lease need not run out first.
    pub predecessor: Option<Uuid>,
}

/// How the engine behaves.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The installation that this server is of: what it makes in clouds carries it.
    pub installation: InstallationId,
    /// Who this server is; `None`: somebody new at each start.
    pub identity: Option<Identity>,
    /// The instance that only this server can reach: its own machine.
    pub home: Option<InstanceId>,
    /// How long a server counts as living after it last said so: then others take over, as soon as it has run out.
    pub lease: Duration,
    /// Entities worked on at the same time.
    pub workers: usize,
    /// Which jobs get the network of their host.
    pub host_network: HostNetwork,
    /// Offers tried for one instance.
    pub offers_tried: usize,
    /// Pause between two questions to an agent for the health of its GPUs.
    pub health_every: Duration,
    /// Safety net: everything is looked at this often.
    pub sweep: Duration,
    /// What becomes of things in clouds that belong to nobody.
    pub orphans: OrphanPolicy,
    /// Pause between two looks for them.
    pub orphans_interval: Duration,
    /// Leaves the tasks of ended jobs at their hosts, ended: for looking at them.
    pub keep_tasks: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            installation: InstallationId::new(Uuid::nil()),
            identity: None,
            home: None,
            lease: Duration::from_secs(6),
            workers: 32,
            host_network: HostNetwork::default(),
            offers_tried: MAX_OFFERS_TRIED,
            health_every: Duration::from_secs(60),
            sweep: Duration::from_secs(30),
            orphans: OrphanPolicy::default(),
            orphans_interval: SWEEP_INTERVAL,
            keep_tasks: false,
        }
    }
}

/// What the engine is given.
#[derive(Debug, Clone)]
pub struct EngineDeps {
    /// Store of the rows that the engine reads and writes.
    pub store: Arc<dyn EngineStore>,
    /// Reaches agents by the address of their instance.
    pub agents: Arc<dyn Agents>,
    /// Sets up hosts of SSH fleets.
    pub hosts: Arc<dyn Hosts>,
    /// The configured backends of projects.
    pub backends: Arc<dyn Backends>,
    /// Stores the output of jobs.
    pub output: Arc<dyn Output>,
    /// Secrets, code, files.
    pub inputs: Arc<dyn Inputs>,
    /// Passes requests on to the jobs of services.
    pub services: Arc<dyn Services>,
    /// Clock that the engine takes the time from.
    pub clock: SharedClock,
    /// Ids, jitter.
    pub random: Random,
    /// Where tests kill it.
    pub failpoints: Arc<dyn Failpoints>,
    /// How the engine behaves.
    pub settings: Settings,
}

/// Shared by all parts of one running engine.
#[derive(Debug)]
pub struct Context {
    /// What it was given.
    pub deps: EngineDeps,
    /// Name of this server.
    pub owner: String,
    /// What it drives, as long as its lease lasts.
    pub leases: LeaseSet,
    /// Held while the database is asked for all of that.
    pub claiming: tokio::sync::Mutex<()>,
    /// Asks for that to be done soon.
    pub claim_wanted: tokio::sync::Notify,
    /// Queue of wakes and timers.
    pub wakes: Wakes,
    /// What the streams said.
    pub seen: Observations,
    /// Who is about to attach.
    pub attendance: Attendance,
    /// What clouds offer.
    pub offer_cache: OfferCache,
    pub looks: Looks,
    /// Calls and streams under way.
    pub running: Running,
    /// Taken while a probe is under way.
    pub probing: Places,
    /// Which work on which entity has panicked, and how often in a row.
    pub panics: Panics,
    /// Cancelled when the engine ends (or dies at a failpoint).
    pub stop: CancellationToken,
}

impl Context {
    /// Returns the time of the engine's clock.
    pub fn now(&self) -> Time {
        self.deps.clock.now()
    }

    /// Starts a task that ends with the engine.
    pub fn spawn(self: &Arc<Self>, name: &'static str, work: impl Future<Output = ()> + Send + 'static) {
        let stop = self.stop.clone();
        // Boxed: each of the layers around it would have room for all of it, as long as it goes on.
        let work = Box::pin(work);
        task::spawn(name, async move {
            tokio::select! {
                () = stop.cancelled() => {}
                () = work => {}
            }
        });
    }

    /// Starts a task that runs as long as the engine: it is started again when it panics.
    pub fn spawn_service<F>(
        self: &Arc<Self>,
        name: &'static str,
        work: impl Fn(Arc<Self>) -> F + Send + 'static,
    ) where
        F: Future<Output = ()> + Send + 'static,
    {
        let ctx = Arc::clone(self);
        task::spawn_restarted(name, move || {
            // Each layer around it would have room for all of it, and moves it: without optimisation that is more than a stack has.
            let (stop, work) = (ctx.stop.clone(), Box::pin(work(Arc::clone(&ctx))));
            async move {
                tokio::select! {
                    () = stop.cancelled() => {}
                    () = work => {}
                }
            }
        });
    }

    /// Starts work on an entity that ends with the engine or with this server's lease; see [`Context::under_lease`].
    pub fn spawn_under_lease(
        self: &Arc<Self>,
        name: &'static str,
        entity: EntityRef,
        work: impl Future<Output = ()> + Send + 'static,
    ) {
        let (ctx, work) = (Arc::clone(self), Box::pin(work));
        self.spawn(name, async move {
            ctx.under_lease(name, entity.into(), work).await;
        });
    }

    /// Does work on an entity. `None`: it was not done, or given up half-way, because this server has no lease (any more),
    /// or because it panicked; then the entity is looked at again after a pause.
    pub async fn under_lease<T>(
        &self,
        name: &'static str,
        key: Key,
        work: impl Future<Output = T>,
    ) -> Option<T> {
        let term = self.leases.term()?;
        // Boxed: each of the layers around it would have room for all of it on the stack.
        let work = Box::pin(work);
        match task::contained(name, term.run(work)).await {
            Ok(Some(done)) => {
                self.panics.clear(name, key);
                Some(done)
            }
            Ok(None) => None,
            Err(task::Panicked) => {
                let pause = self.panics.add(name, key);
                let pause_ms = u64::try_from(pause.as_millis()).unwrap_or(u64::MAX);
                tracing::error!(work = name, entity = %key, pause_ms, "work panicked, and is tried again");
                self.wakes.wake_at(key, Some(self.now() + pause));
                None
            }
        }
    }

    /// Logs a failed step; one that was killed takes the engine with it.
    pub fn report(&self, doing: &str, error: &EngineError) {
        match error {
            EngineError::Killed(name) => {
                tracing::warn!(failpoint = name, "killed");
                self.stop.cancel();
            }
            EngineError::LeaseLost | EngineError::Store(StoreError::LeaseLost { .. }) => {
                tracing::debug!(doing, "given up: another server may do it now");
            }
            EngineError::Store(store) if store.is_conflict() => tracing::debug!(%store, doing, "tried again"),
            other => {
                let hint = if is_disk_full(other) { DISK_FULL } else { "" };
                tracing::error!(error = %other, causes = %causes_of(other), doing, hint, "step failed, and is tried again");
            }
        }
    }

    /// Marks a named failpoint; an error means that the process dies here.
    pub fn reached(&self, name: &'static str) -> Result<()> {
        self.deps.failpoints.reached(name)
    }

    /// To be asked immediately before anything is changed outside, at the failpoint of that.
    ///
    /// # Errors
    /// This server does not drive the entity (any more): whoever does makes the change.
    pub fn before_effect(&self, name: &'static str, entity: EntityRef) -> Result<()> {
        if !self.leases.contains(entity) {
            return Err(EngineError::LeaseLost);
        }
        self.reached(name)
    }

    /// Commits what was decided under this server's lease, and wakes whomever the change concerns.
    ///
    /// # Errors
    /// Besides others [`EngineError::LeaseLost`]: this server has no lease (any more), and nothing was written.
    pub async fn commit(&self, name: (&'static str, &'static str), commit: Commit) -> Result<()> {
        if commit.is_empty() {
            return Ok(());
        }
        let term = self.leases.term().ok_or(EngineError::LeaseLost)?;
        let commit = commit.under(term.lease().clone());
        let written = self.write(name, commit).await;
        if let Err(EngineError::Store(StoreError::LeaseLost { .. })) = &written {
            term.end();
        }
        written
    }

    /// Commits a change that any server may make, with a lease or without, and wakes whomever it concerns.
    pub async fn commit_from_outside(
        &self,
        name: (&'static str, &'static str),
        commit: Commit,
    ) -> Result<()> {
        if commit.is_empty() {
            return Ok(());
        }
        self.write(name, commit).await
    }

    async fn write(&self, name: (&'static str, &'static str), mut commit: Commit) -> Result<()> {
        let owner = commit.owner.get_or_insert_with(|| self.owner.clone());
        let own = *owner == self.owner;
        let wakes = concerned(&commit);
        let rerouting = Rerouting::of(&commit);
        let inserted: Vec<EntityRef> = commit
            .puts()
            .iter()
            .filter(|put| put.is_insert() && !matches!(put, Put::Operation(_)))
            .map(Put::entity)
            .collect();
        self.reached(name.0)?;
        self.deps.store.commit(commit).await?;
        if own {
            self.leases.extend(inserted);
        }
        self.reached(name.1)?;
        // Before anybody is woken: whoever ends a job that gets no requests any more sees that it gets none.
        rerouting.tell(self.deps.services.as_ref());
        for wake in wakes {
            match wake {
                Concerned::Wake(key) => self.wakes.wake(key),
                Concerned::Final(entity) => self.finished(entity),
            }
        }
        Ok(())
    }

    /// Until when somebody who reads the output at the job itself may still be doing so.
    pub fn attended_until(&self, job: &JobRow) -> Option<Time> {
        let seen = self.seen.job(job.id);
        // They connect to the first job of a run.
        let is_first = job.job_num == 0 && job.replica_num == 0;
        let expected = self.attendance.until(job.run_id).filter(|_| is_first);
        expected.max(seen.watched_until).filter(|_| !seen.left)
    }

    /// Nothing will happen to it any more.
    pub fn finished(&self, entity: EntityRef) {
        self.leases.remove(entity);
        self.wakes.wake_at(entity, None);
        match entity {
            EntityRef::Job(job) => {
                self.seen.forget_job(job);
                self.deps.output.forget(job);
            }
            EntityRef::Instance(instance) => self.seen.forget_instance(instance),
            EntityRef::Run(run) => self.attendance.forget(run),
            EntityRef::Fleet(_)
            | EntityRef::Volume(_)
            | EntityRef::Attachment(_)
            | EntityRef::Gateway(_)
            | EntityRef::GatewayReplica(_)
            | EntityRef::PlacementGroup(_)
            | EntityRef::ComputeGroup(_) => {}
        }
    }
}

impl RequestObserver for Context {
    /// Its end waits for its requests.
    fn idle(&self, job: JobId) {
        self.wakes.wake(EntityRef::Job(job));
    }

    fn published(&self, run: RunId) {
        self.wakes.wake(EntityRef::Run(run));
    }

    fn awaited(&self, run: RunId) {
        self.wakes.wake(EntityRef::Run(run));
    }

    /// The job says what it waits for, and updates of its run wait for it.
    fn worker_changed(&self, run: RunId, job: JobId) {
        self.wakes.wake(EntityRef::Job(job));
        self.wakes.wake(EntityRef::Run(run));
    }
}

const DISK_FULL: &str = "the disk is full: free space on it. Nothing needs to be restarted; output of jobs is kept by their \
     agents until then";

fn is_disk_full(error: &EngineError) -> bool {
    if let EngineError::Store(store) = error
        && store.unavailable() == Some(dstack_store::Unavailable::DiskFull)
    {
        return true;
    }
    causes(error)
        .filter_map(|cause| cause.downcast_ref::<std::io::Error>())
        .any(|io| io.kind() == std::io::ErrorKind::StorageFull)
}

/// What follows from a written row.
#[derive(Debug, PartialEq, Eq)]
enum Concerned {
    Wake(Key),
    Final(EntityRef),
}

fn has_jobs(commit: &Commit, run: RunId) -> bool {
    let of_run = |put: &Put| matches!(put, Put::Job(job) if job.run_id == run);
    commit.puts().iter().any(of_run)
}

/// Whom a commit concerns. Whoever would look at its row only to find that another decides is not woken: a waiting job
/// is the scheduler's, a finished one its run's.
fn concerned(commit: &Commit) -> Vec<Concerned> {
    let finished = |put: &Put| match put {
        Put::Run(run) if run.status().is_finished() => Some(run.id),
        _ => None,
    };
    let finished: BTreeSet<RunId> = commit.puts().iter().filter_map(finished).collect();
    let removed = commit
        .removals()
        .iter()
        .map(|removal| Concerned::Final(removal.entity));
    let mut found: Vec<Concerned> = removed.collect();
    for put in commit.puts() {
        match put {
            Put::Job(job) if job.status().is_finished() => {
                found.push(Concerned::Final(EntityRef::Job(job.id)));
                if !finished.contains(&job.run_id) {
                    found.push(Concerned::Wake(EntityRef::Run(job.run_id).into()));
                }
            }
            Put::Job(job) if job.status() == JobStatus::Submitted => {
                found.push(Concerned::Wake(Key::Schedule(job.project_id)));
            }
            Put::Run(run) if run.status().is_finished() => {
                found.push(Concerned::Final(EntityRef::Run(run.id)));
            }
            // Its jobs, if it has any, are waiting, and the first of them to change wakes it.
            Put::Run(run)
                if put.is_insert() && run.status() == RunStatus::Submitted && has_jobs(commit, run.id) => {}
            _ => found.push(Concerned::Wake(put.entity().into())),
        }
    }
    found
}
