//! What every part of the engine works with.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use dstack_model::runs::{JobStatus, RunStatus};
use dstack_store::{Commit, EngineStore, EntityRef, Lease, Put};
use dstack_system::clock::SharedClock;
use dstack_system::{Random, task};
use dstack_units::Time;
use tokio_util::sync::CancellationToken;

use crate::failpoint::Failpoints;
use crate::observations::Observations;
use crate::operations::Running;
use crate::wakes::{Key, Wakes};
use crate::{Agents, EngineError, Inputs, Output, Result};

/// How the engine behaves.
#[derive(Debug, Clone)]
pub struct Settings {
    /// How long a lease lasts unless renewed: after this, another server takes over.
    pub lease: Duration,
    /// Entities worked on at the same time.
    pub workers: usize,
    /// Safety net: everything is looked at this often.
    pub sweep: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            lease: Duration::from_secs(10),
            workers: 32,
            sweep: Duration::from_secs(30),
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
    /// Name of this server process in leases.
    pub owner: String,
    /// Queue.
    pub wakes: Wakes,
    /// What the streams said.
    pub seen: Observations,
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
                tracing::error!(error = %other, source = ?std::error::Error::source(other), doing, "step failed");
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
        commit.lease.get_or_insert_with(|| self.lease());
        let wakes = concerned(&commit);
        self.reached(name.0)?;
        self.deps.store.commit(commit).await?;
        self.reached(name.1)?;
        for wake in wakes {
            match wake {
                Concerned::Wake(key) => self.wakes.wake(key),
                Concerned::Final(entity) => self.finished(entity),
            }
        }
        Ok(())
    }

    /// Nothing will happen to it any more.
    pub fn finished(&self, entity: EntityRef) {
        self.wakes.wake_at(entity, None);
        if let EntityRef::Job(job) = entity {
            self.seen.forget_job(job);
        }
    }
}

/// What follows from a written row.
#[derive(Debug, PartialEq, Eq)]
enum Concerned {
    Wake(Key),
    Final(EntityRef),
}

/// Whom a commit concerns. Whoever would look at its row only to find that another decides is not woken: a waiting job
/// is the scheduler's, a finished one its run's.
fn concerned(commit: &Commit) -> Vec<Concerned> {
    let mut found = Vec::new();
    for put in &commit.puts {
        match put {
            Put::Job(job) if job.status.is_finished() => {
                found.push(Concerned::Final(EntityRef::Job(job.id)));
                found.push(Concerned::Wake(EntityRef::Run(job.run_id).into()));
            }
            Put::Job(job) if job.status == JobStatus::Submitted => {
                found.push(Concerned::Wake(Key::Schedule(job.project_id)));
            }
            Put::Run(run) if run.status.is_finished() => {
                found.push(Concerned::Final(EntityRef::Run(run.id)));
            }
            // Its jobs are waiting, and the first of them to change wakes it.
            Put::Run(run) if put.is_insert() && run.status == RunStatus::Submitted => {}
            _ => found.extend(put.entity().map(|entity| Concerned::Wake(entity.into()))),
        }
    }
    found
}
