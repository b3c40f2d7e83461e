//! Repos and credentials for them.

use std::collections::BTreeMap;

use dstack_units::{ProjectId, RepoRowId, UserId};
use sqlx::Row;

use super::Reads;
use super::record;
use super::select::{self, fetch_as, fetch_named, fetch_one};
use crate::reads::Named;
use crate::{Result, Tx};

record! {
    /// A repo that a client has made known to a project.
    RepoRow in "repos" {
        /// Id of the row; clients know the repo by its name.
        id: RepoRowId,
        /// The project that it was made known to.
        project_id: ProjectId,
        /// The text by which clients name it.
        name: String,
        /// `remote`, `local` or `virtual`.
        r#type: String,
        /// What it is, JSON.
        info: String,
    }
}

fn select() -> String {
    format!("SELECT {} FROM repos r", RepoRow::columns("r").replace("r#", ""))
}

/// Repos and credentials for them: see [`crate::Database::repos`].
#[derive(Debug, Clone, Copy)]
pub struct Repos<'a>(pub(crate) Reads<'a>);

impl Repos<'_> {
    /// All of a project.
    pub async fn list(self, project: ProjectId) -> Result<Vec<RepoRow>> {
        let sql = select() + " WHERE r.project_id = $1 ORDER BY r.name";
        fetch_as(self.0, sql, &[&project.to_string()], |row| {
            RepoRow::read_at(row, 0)
        })
        .await
    }

    /// By the client's names for them; see [`crate::Database::repo_by_name`].
    pub(crate) async fn named(self, names: &[Named]) -> Result<BTreeMap<Named, RepoRow>> {
        let one = select() + " WHERE r.project_id = $1 AND r.name = $2";
        let found = fetch_named(self.0, select::named(&one, names), names, |row| {
            RepoRow::read_at(row, 0)
        })
        .await?;
        Ok(found
            .into_iter()
            .map(|repo| ((repo.project_id, repo.name.clone()), repo))
            .collect())
    }
}

/// Adds a repo, or changes the one of the same name; returns the id it has.
pub async fn put(tx: &mut Tx, repo: &RepoRow) -> Result<RepoRowId> {
    let row = sqlx::query(
        "INSERT INTO repos (id, project_id, name, type, info) VALUES ($1, $2, $3, $4, $5) \
         ON CONFLICT (project_id, name) DO UPDATE SET type = excluded.type, info = excluded.info RETURNING id",
    )
    .bind(repo.id.to_string())
    .bind(repo.project_id.to_string())
    .bind(repo.name.clone())
    .bind(repo.r#type.clone())
    .bind(repo.info.clone())
    .fetch_one(tx)
    .await?;
    crate::entity::read_column(&row, 0, "repos", "id")
}

/// Deletes repos with their diffs and credentials.
pub async fn delete(tx: &mut Tx, project: ProjectId, names: &[String]) -> Result<()> {
    for name in names {
        // Runs keep pointing to nothing: their code is no longer needed.
        sqlx::query("UPDATE runs SET repo_id = NULL WHERE repo_id IN (SELECT id FROM repos WHERE project_id = $1 AND name = $2)")
            .bind(project.to_string())
            .bind(name.clone())
            .execute(&mut *tx)
            .await?;
        sqlx::query("DELETE FROM repos WHERE project_id = $1 AND name = $2")
            .bind(project.to_string())
            .bind(name.clone())
            .execute(&mut *tx)
            .await?;
    }
    Ok(())
}

impl Repos<'_> {
    /// The name of a repo, by which clients know it.
    pub async fn name(self, id: RepoRowId) -> Result<Option<String>> {
        let sql = "SELECT name FROM repos WHERE id = $1".to_owned();
        fetch_one(self.0, sql, &[&id.to_string()], |row| Ok(row.try_get(0)?)).await
    }

    /// A user's encrypted credentials for a repo.
    pub async fn creds(self, repo: RepoRowId, user: UserId) -> Result<Option<String>> {
        let sql = "SELECT creds FROM repo_creds WHERE repo_id = $1 AND user_id = $2".to_owned();
        fetch_one(self.0, sql, &[&repo.to_string(), &user.to_string()], |row| {
            Ok(row.try_get(0)?)
        })
        .await
    }
}

/// Stores or, with `None`, deletes a user's credentials.
pub async fn put_creds(tx: &mut Tx, repo: RepoRowId, user: UserId, encrypted: Option<&str>) -> Result<()> {
    let query = match encrypted {
        Some(encrypted) => sqlx::query(
            "INSERT INTO repo_creds (repo_id, user_id, creds) VALUES ($1, $2, $3) \
             ON CONFLICT (repo_id, user_id) DO UPDATE SET creds = excluded.creds",
        )
        .bind(repo.to_string())
        .bind(user.to_string())
        .bind(encrypted.to_owned()),
        None => sqlx::query("DELETE FROM repo_creds WHERE repo_id = $1 AND user_id = $2")
            .bind(repo.to_string())
            .bind(user.to_string()),
    };
    query.execute(tx).await?;
    Ok(())
}
