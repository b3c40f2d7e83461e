//! Runs: submitting, changing, stopping, deleting.

mod apply;
mod rollout;

use std::fmt::Debug;
use std::sync::Arc;

use async_trait::async_trait;
use dstack_model::runs::{JobSpec, RunSpec, RunStatus, RunTerminationReason};
use dstack_plan::services::replicas::Slot;
use dstack_store::events;
use dstack_store::rows::{GatewayRow, RunRow};
use dstack_units::{ArchiveId, ProjectId, RepoRowId, RunId, UserId};

use crate::core::{Actor, Core};
use crate::error::{ControlError, Result};

pub use apply::{Applied, ApplyRun, SeenRun};

const BUSY: &str = "The run is being processed at the moment. Try again later.";

/// What a run needs besides its rows.
#[async_trait]
pub trait RunResources: Send + Sync + Debug {
    /// Refuses volumes that the run asks for and cannot have.
    async fn check(&self, project: ProjectId, spec: &RunSpec) -> Result<()>;

    /// The gateway that a service is to be published at; `None`: none, requests go through the server. Refuses one that it asks
    /// for and cannot have.
    async fn gateway(&self, project: ProjectId, spec: &RunSpec) -> Result<Option<GatewayRow>>;

    /// Refuses archives that the user has not uploaded. What they are called is no secret, what is in them is: whoever starts
    /// the run's jobs relies on it.
    async fn check_archives(&self, user: UserId, archives: &[ArchiveId]) -> Result<()>;

    /// Its repo; a virtual one is created.
    async fn repo(&self, project: ProjectId, spec: &RunSpec) -> Result<Option<RepoRowId>>;

    /// The jobs of these replicas, as they are to be stored.
    async fn jobs(&self, project: ProjectId, spec: &RunSpec, replicas: &[Slot]) -> Result<Vec<JobSpec>>;
}

/// The verbs of runs.
#[derive(Debug, Clone)]
pub struct Runs {
    core: Core,
    resources: Arc<dyn RunResources>,
}

impl Runs {
    /// On this store and engine.
    pub fn new(core: Core, resources: Arc<dyn RunResources>) -> Self {
        Self { core, resources }
    }

    /// Begins to end the runs of these names; unknown names and runs that are over are left alone. To abort a run that is
    /// being stopped already makes it faster.
    ///
    /// # Errors
    /// The store refuses, or cannot be reached.
    pub async fn stop(&self, actor: Actor, project: ProjectId, names: &[String], abort: bool) -> Result<()> {
        let reason = match abort {
            true => RunTerminationReason::AbortedByUser,
            false => RunTerminationReason::StoppedByUser,
        };
        for run in self.core.store.runs_by_names(project, names).await? {
            self.core
                .retry_on_conflict(BUSY, || self.stop_one(actor, run.id, reason))
                .await?;
        }
        Ok(())
    }

    async fn stop_one(&self, actor: Actor, id: RunId, reason: RunTerminationReason) -> Result<()> {
        let Some(run) = self.find(id).await? else {
            return Ok(());
        };
        let aborts = reason == RunTerminationReason::AbortedByUser;
        let stops_already =
            run.status() == RunStatus::Terminating && (!aborts || run.termination_reason() == Some(reason));
        if run.status().is_finished() || stops_already {
            return Ok(());
        }
        let mut stopped = run.clone();
        stopped.terminate(reason, self.core.now())?;
        let mut changes = self.core.changes(actor);
        changes.update(&run, stopped);
        self.core.commit(changes).await
    }

    /// Hides the runs of these names; unknown ones are left alone.
    ///
    /// # Errors
    /// One of them is not over: nothing is deleted.
    pub async fn delete(&self, actor: Actor, project: ProjectId, names: &[String]) -> Result<()> {
        let found = self.core.store.runs_by_names(project, names).await?;
        let active: Vec<&str> = found
            .iter()
            .filter(|run| !run.status().is_finished())
            .map(|run| run.run_name.as_str())
            .collect();
        if !active.is_empty() {
            let names = dstack_units::number::quote_list(&active);
            return Err(ControlError::refused(format!(
                "Cannot delete active runs: {names}"
            )));
        }
        for run in found {
            self.core
                .retry_on_conflict(BUSY, || self.delete_one(actor, run.id))
                .await?;
        }
        Ok(())
    }

    async fn delete_one(&self, actor: Actor, id: RunId) -> Result<()> {
        let Some(run) = self.find(id).await? else {
            return Ok(());
        };
        if run.deleted || !run.status().is_finished() {
            return Ok(());
        }
        let mut deleted = run.clone();
        deleted.deleted = true;
        let mut changes = self.core.changes(actor);
        changes.note("Run deleted", vec![events::run(&run)]);
        changes.update(&run, deleted);
        self.core.commit(changes).await
    }

    async fn find(&self, id: RunId) -> Result<Option<RunRow>> {
        Ok(self.core.store.run(id).await?.map(|snapshot| snapshot.run))
    }
}
