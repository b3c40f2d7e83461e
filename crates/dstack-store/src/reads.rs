//! What many ask for at the same time, each by its own key.

use std::collections::{BTreeMap, HashMap};

use dstack_units::{JobId, ProjectId, RunId};

use crate::batch_loader::BatchLoader;
use crate::database::{Database, Transactions};
use crate::queries::Reads;
use crate::queries::repos::{RepoRow, Repos};
use crate::queries::views::{ListedRun, Views};
use crate::rows::{JobRow, RunRow};
use crate::sql::by_column;
use crate::{Column, Result, RunSnapshot};

/// A name within a project.
pub(crate) type Named = (ProjectId, String);

#[derive(Debug, Clone)]
pub(crate) struct BatchedReads {
    /// Runs with their jobs.
    pub(crate) runs: BatchLoader<RunId, RunSnapshot>,
    runs_by_name: BatchLoader<Named, ListedRun>,
    repos_by_name: BatchLoader<Named, RepoRow>,
}

impl BatchedReads {
    pub(crate) fn start(database: &Transactions) -> Self {
        let (runs, named, repos) = (database.clone(), database.clone(), database.clone());
        Self {
            runs: BatchLoader::start("read runs", move |ids| {
                let database = runs.clone();
                Box::pin(async move { database.asked(snapshots(database.keyed(), ids)).await })
            }),
            runs_by_name: BatchLoader::start("read runs by name", move |names| {
                let database = named.clone();
                Box::pin(async move { database.asked(Views(database.keyed()).runs_named(&names)).await })
            }),
            repos_by_name: BatchLoader::start("read repos by name", move |names| {
                let database = repos.clone();
                Box::pin(async move { database.asked(Repos(database.keyed()).named(&names)).await })
            }),
        }
    }
}

impl Database {
    /// The project's run of this name that is not deleted.
    pub async fn run_by_name(&self, project: ProjectId, name: &str) -> Result<Option<ListedRun>> {
        let name = (project, name.to_owned());
        self.asked(self.batched().runs_by_name.get(name)).await
    }

    /// The project of a job; `None`: there is no such job.
    pub async fn project_of_job(&self, job: JobId) -> Result<Option<ProjectId>> {
        let found = sqlx::query("SELECT project_id FROM jobs WHERE id = $1")
            .bind(job.to_raw())
            .fetch_optional(self.keyed().pool());
        let found = self.asked(async { Ok(found.await?) }).await?;
        found
            .map(|row| crate::entity::read_column(&row, 0, "jobs", "project_id"))
            .transpose()
    }

    /// The project's repo, by the client's name for it.
    pub async fn repo_by_name(&self, project: ProjectId, name: &str) -> Result<Option<RepoRow>> {
        let name = (project, name.to_owned());
        self.asked(self.batched().repos_by_name.get(name)).await
    }
}

async fn snapshots(reads: Reads<'_>, ids: Vec<RunId>) -> Result<BTreeMap<RunId, RunSnapshot>> {
    let ids: Vec<String> = ids.iter().map(Column::to_raw).collect();
    let runs: Vec<RunRow> = by_column(reads, "id", &ids, "").await?;
    let order = "ORDER BY t.replica_num, t.job_num, t.submission_num";
    let mut jobs: HashMap<RunId, Vec<JobRow>> = HashMap::new();
    for job in by_column::<JobRow>(reads, "run_id", &ids, order).await? {
        jobs.entry(job.run_id).or_default().push(job);
    }
    let snapshot = |run: RunRow| {
        let jobs = jobs.remove(&run.id).unwrap_or_default();
        (run.id, RunSnapshot { run, jobs })
    };
    Ok(runs.into_iter().map(snapshot).collect())
}
