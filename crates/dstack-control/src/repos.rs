//! Repos of projects, credentials for them, and uploaded diffs.

use std::collections::BTreeSet;

use dstack_model::repos::{AnyRepoInfo, RemoteRepoCreds};
use dstack_store::events;
use dstack_store::queries::content::Content;
use dstack_store::queries::projects::ProjectRow;
use dstack_store::queries::repos::RepoRow;
use dstack_store::queries::users::UserRow;
use dstack_store::writes::Change;
use dstack_system::Random;
use dstack_units::ProjectId;

use crate::directory::{Directory, Work};
use crate::error::{ControlError, Result};

/// The verbs of repos.
#[derive(Debug, Clone)]
pub struct Repos(Directory);

/// A row for a repo that may or may not be there already.
///
/// # Errors
/// What is known of the repo cannot be written as JSON.
pub fn repo_row(random: &Random, project: ProjectId, name: &str, info: &AnyRepoInfo) -> Result<RepoRow> {
    Ok(RepoRow {
        id: random.uuid().into(),
        project_id: project,
        name: name.to_owned(),
        r#type: info.repo_type().as_str().to_owned(),
        info: serde_json::to_string(info).map_err(ControlError::internal)?,
    })
}

impl Repos {
    /// On this database.
    pub fn new(directory: Directory) -> Self {
        Self(directory)
    }

    /// Makes a repo known, and stores the user's credentials for it; those of a remote repo for which none are given are
    /// deleted.
    ///
    /// # Errors
    /// The store refuses, or cannot be reached.
    pub async fn init(
        &self,
        user: &UserRow,
        project: &ProjectRow,
        name: &str,
        info: &AnyRepoInfo,
        credentials: Option<&RemoteRepoCreds>,
    ) -> Result<()> {
        let repo = repo_row(&self.0.random, project.id, name, info)?;
        let is_remote = matches!(info, AnyRepoInfo::Remote(_));
        let encrypted = match credentials.filter(|_| is_remote) {
            Some(credentials) => {
                let text = serde_json::to_string(credentials).map_err(ControlError::internal)?;
                Some(self.0.encryption.encrypt(&text)?)
            }
            None => None,
        };
        let stored = if encrypted.is_some() { "stored" } else { "none" };
        let mut work = self.0.work(user.into());
        work.change(Change::PutRepo {
            repo,
            credentials: is_remote.then_some((user.id, encrypted)),
        });
        tell(
            &mut work,
            project,
            "initialized",
            name,
            &format!(". Credentials: {stored}"),
        );
        self.0.finish(work).await
    }

    /// Deletes repos with their diffs and credentials; unknown ones are ignored.
    ///
    /// # Errors
    /// The store refuses, or cannot be reached.
    pub async fn delete(&self, user: &UserRow, project: &ProjectRow, names: &[String]) -> Result<()> {
        let mut work = self.0.work(user.into());
        let distinct: BTreeSet<&String> = names.iter().collect();
        for name in distinct {
            if self.0.database.repo_by_name(project.id, name).await?.is_some() {
                tell(&mut work, project, "deleted", name, "");
            }
        }
        work.change(Change::DeleteRepos {
            project: project.id,
            names: names.to_vec(),
        });
        self.0.finish(work).await
    }

    /// Notes an uploaded diff; one with the same hash stays as it is.
    ///
    /// # Errors
    /// The store refuses, or cannot be reached.
    pub async fn put_code(
        &self,
        user: &UserRow,
        project: &ProjectRow,
        repo: &RepoRow,
        hash: String,
        content: Content,
    ) -> Result<()> {
        let mut work = self.0.work(user.into());
        tell(
            &mut work,
            project,
            "code uploaded",
            &repo.name,
            &format!(". Hash: {hash}"),
        );
        work.change(Change::PutCode {
            repo: repo.id,
            hash,
            content,
        });
        self.0.finish(work).await
    }
}

/// `Repo deleted. Repo: my-app`, and what more there is to say.
fn tell(work: &mut Work, project: &ProjectRow, what: &str, repo: &str, more: &str) {
    let message = format!("Repo {what}. Repo: {repo}{more}");
    work.event_for_managers(message, vec![events::project(project)]);
}
