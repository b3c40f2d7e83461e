//! What a run needs besides its rows: volumes, a gateway, archives, a repo, jobs.

use async_trait::async_trait;
use dstack_api::ErrorCode;
use dstack_control::repos::repo_row;
use dstack_control::runs::RunResources;
use dstack_control::{ControlError, Result};
use dstack_model::repos::{AnyRepoInfo, AnyRunRepoData};
use dstack_model::runs::{JobSpec, RunSpec};
use dstack_plan::services::replicas::Slot;
use dstack_plan::validate::unsupported;
use dstack_store::queries::repos;
use dstack_store::rows::GatewayRow;
use dstack_system::Random;
use dstack_units::{ArchiveId, ProjectId, RepoRowId, UserId};

use crate::handlers::runs;
use crate::job_maker::JobMaker;
use crate::settings::Settings;

/// From the database, and from registries.
#[derive(Debug)]
pub(crate) struct SqlRunResources {
    jobs: JobMaker,
    random: Random,
    forbid_services_without_gateway: bool,
}

impl SqlRunResources {
    pub(crate) fn new(jobs: JobMaker, random: Random, settings: &Settings) -> Self {
        Self {
            jobs,
            random,
            forbid_services_without_gateway: settings.forbid_services_without_gateway,
        }
    }
}

#[async_trait]
impl RunResources for SqlRunResources {
    async fn check(&self, project: ProjectId, spec: &RunSpec) -> Result<()> {
        let database = &self.jobs.database;
        runs::volumes::check_active(database, project, spec).await?;
        match unsupported(spec) {
            None => Ok(()),
            Some(reason) => Err(reason.into()),
        }
    }

    async fn gateway(&self, project: ProjectId, spec: &RunSpec) -> Result<Option<GatewayRow>> {
        let must_have_gateway = self.forbid_services_without_gateway;
        runs::services::gateway_of(&self.jobs.database, project, spec, must_have_gateway).await
    }

    async fn check_archives(&self, user: UserId, archives: &[ArchiveId]) -> Result<()> {
        if archives.is_empty() {
            return Ok(());
        }
        let foreign = self
            .jobs
            .database
            .content()
            .foreign_archives(user, archives)
            .await?;
        match foreign.first() {
            None => Ok(()),
            Some(id) => Err(ControlError::with_code(
                ErrorCode::ResourceNotExists,
                format!("The file archive {id} does not exist. Upload the files again"),
            )),
        }
    }

    /// It must be known, unless it is virtual: then it is created.
    async fn repo(&self, project: ProjectId, spec: &RunSpec) -> Result<Option<RepoRowId>> {
        let id = spec.repo_id.clone().unwrap_or_default();
        if let Some(repo) = self.jobs.database.repo_by_name(project, &id).await? {
            return Ok(Some(repo.id));
        }
        let Some(AnyRunRepoData::Virtual(data)) = &spec.repo_data else {
            return Err(ControlError::with_code(
                ErrorCode::RepoDoesNotExist,
                format!("Repo {id} does not exist"),
            ));
        };
        let info = AnyRepoInfo::Virtual(data.clone());
        let row = repo_row(&self.random, project, &id, &info)?;
        let stored = self
            .jobs
            .database
            .write(move |tx| Box::pin(async move { repos::put(tx, &row).await }))
            .await?;
        Ok(Some(stored))
    }

    async fn jobs(&self, project: ProjectId, spec: &RunSpec, replicas: &[Slot]) -> Result<Vec<JobSpec>> {
        Ok(self.jobs.jobs(project, spec, replicas).await?)
    }
}
