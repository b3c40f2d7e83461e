//! What every part of the engine works with.

use std::collections::BTreeSet;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use dstack_compute::Backends;
use dstack_model::runs::{JobStatus, RunStatus};
use dstack_plan::fleets::MAX_OFFERS_TRIED;
use dstack_plan::placement::HostNetwork;
use dstack_store::rows::JobRow;
use dstack_store::{Commit, EngineStore, EntityRef, Lease, Put};
use dstack_system::clock::SharedClock;
use dstack_system::{Random, causes, causes_of, task};
use dstack_units::{InstanceId, RunId, Time};
use tokio_util::sync::CancellationToken;

use crate::attendance::Attendance;
use crate::failpoint::Failpoints;
use crate::market::Market;
use crate::observations::Observations;
use crate::operations::Running;
use crate::owned::Owned;
use crate::wakes::{Key, Wakes};
use crate::{Agents, EngineError, Inputs, Output, Result};

/// How the engine behaves.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Name of this server, if no other process can have it at the same time: one that starts again under its name
    /// goes on with what it drove. `None`: a new name at each start.
    pub name: Option<String>,
    /// The instance that only this server can reach: its own machine.
    pub home: Option<InstanceId>,
    /// How long a server counts as living after it last said so: then others take over. They notice after a third of
    /// this at the latest.
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
    /// Leaves the tasks of ended jobs at their hosts, ended: for looking at them.
    pub keep_tasks: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            name: None,
            home: None,
            lease: Duration::from_secs(6),
            workers: 32,
            host_network: HostNetwork::default(),
            offers_tried: MAX_OFFERS_TRIED,
            health_every: Duration::from_secs(60),
            sweep: Duration::from_secs(30),
            keep_tasks: false,
        }
    }
}

/// What the engine is given.
#[derive(Debug, Clone)]
pub struct EngineDeps {
    /// State.
    pub store: Arc<dyn EngineStore>,
    /// Agents.
    pub agents: Arc<dyn Agents>,
    /// Configured clouds.
    pub backends: Arc<dyn Backends>,
    /// Job output.
    pub output: Arc<dyn Output>,
    /// Secrets, code, files.
    pub inputs: Arc<dyn Inputs>,
    /// Time.
    pub clock: SharedClock,
    /// Ids, jitter.
    pub random: Random,
    /// Where tests kill it.
    pub failpoints: Arc<dyn Failpoints>,
    /// Behaviour.
    pub settings: Settings,
}

/// Shared by all parts of one running engine.
#[derive(Debug)]
pub struct Context {
    /// What it was given.
    pub deps: EngineDeps,
    /// Name of this server.
    pub owner: String,
    /// What it drives.
    pub owned: Owned,
    /// Held while the database is asked for all of that.
    pub claiming: tokio::sync::Mutex<()>,
    /// Queue.
    pub wakes: Wakes,
    /// What the streams said.
    pub seen: Observations,
    /// Who is about to attach.
    pub attendance: Attendance,
    /// What clouds offer.
    pub market: Market,
    /// Calls and streams under way.
    pub running: Running,
    /// Cancelled when the engine ends (or dies at a failpoint).
    pub stop: CancellationToken,
}

impl Context {
    /// The time.
    pub fn now(&self) -> Time {
        self.deps.clock.now()
    }

    /// A lease of this process from now on.
    pub fn lease(&self) -> Lease {
        Lease {
            owner: self.owner.clone(),
            until: self.now() + self.deps.settings.lease,
        }
    }

    /// Starts a task that ends with the engine.
    pub fn spawn(self: &Arc<Self>, name: &'static str, work: impl Future<Output = ()> + Send + 'static) {
        let stop = self.stop.clone();
        task::spawn(name, async move {
            tokio::select! {
                () = stop.cancelled() => {}
                () = work => {}
            }
        });
    }

    /// Logs a failed step; one that was killed takes the engine with it.
    pub fn report(&self, doing: &str, error: &EngineError) {
        match error {
            EngineError::Killed(name) => {
                tracing::warn!(failpoint = name, "killed");
                self.stop.cancel();
            }
            EngineError::Store(store) if store.is_conflict() => tracing::debug!(%store, doing, "tried again"),
            other => {
                let hint = if is_disk_full(other) { DISK_FULL } else { "" };
                tracing::error!(error = %other, causes = %causes_of(other), doing, hint, "step failed, and is tried again");
            }
        }
    }

    /// A failpoint.
    pub fn reached(&self, name: &'static str) -> Result<()> {
        self.deps.failpoints.reached(name)
    }

    /// Commits, and wakes whomever the change concerns.
    pub async fn commit(&self, name: (&'static str, &'static str), mut commit: Commit) -> Result<()> {
        if commit.is_empty() {
            return Ok(());
        }
        let owner = commit.owner.get_or_insert_with(|| self.owner.clone());
        let own = *owner == self.owner;
        let wakes = concerned(&commit);
        let inserted: Vec<EntityRef> = commit
            .puts()
            .iter()
            .filter(|put| put.is_insert() && !matches!(put, Put::Operation(_)))
            .filter_map(Put::entity)
            .collect();
        self.reached(name.0)?;
        self.deps.store.commit(commit).await?;
        if own {
            self.owned.extend(inserted);
        }
        self.reached(name.1)?;
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
        self.owned.remove(entity);
        self.wakes.wake_at(entity, None);
        match entity {
            EntityRef::Job(job) => self.seen.forget_job(job),
            EntityRef::Instance(instance) => self.seen.forget_instance(instance),
            EntityRef::Run(run) => self.attendance.forget(run),
            EntityRef::Fleet(_) => {}
        }
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
    let mut found = Vec::new();
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
            _ => found.extend(put.entity().map(|entity| Concerned::Wake(entity.into()))),
        }
    }
    found
}
