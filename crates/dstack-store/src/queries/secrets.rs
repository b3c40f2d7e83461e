//! Secrets of a project.

use dstack_units::{ProjectId, SecretId, Time};

use super::Reads;
use super::record;
use super::select::{fetch_as, fetch_one};
use crate::{Result, Tx};

record! {
    /// A secret; its value is encrypted.
    SecretRow in "secrets" {
        /// Id of the secret.
        id: SecretId,
        /// The project whose runs may use it.
        project_id: ProjectId,
        /// When it was created.
        created_at: Time,
        /// When its value changed last.
        updated_at: Time,
        /// Unique in the project.
        name: String,
        /// The value, encrypted.
        value: String,
    }
}

fn select() -> String {
    format!("SELECT {} FROM secrets s", SecretRow::columns("s"))
}

/// Secrets of projects: see [`crate::Database::secrets`].
#[derive(Debug, Clone, Copy)]
pub struct Secrets<'a>(pub(crate) Reads<'a>);

impl Secrets<'_> {
    /// All of a project, newest first.
    pub async fn list(self, project: ProjectId) -> Result<Vec<SecretRow>> {
        let sql = select() + " WHERE s.project_id = $1 ORDER BY s.created_at DESC, s.id";
        fetch_as(self.0, sql, &[&project.to_string()], |row| {
            SecretRow::read_at(row, 0)
        })
        .await
    }

    /// Returns the project's secret of this name, exactly.
    pub async fn by_name(self, project: ProjectId, name: &str) -> Result<Option<SecretRow>> {
        let sql = select() + " WHERE s.project_id = $1 AND s.name = $2";
        fetch_one(self.0, sql, &[&project.to_string(), name], |row| {
            SecretRow::read_at(row, 0)
        })
        .await
    }
}

/// Adds a secret, or replaces the value of the one with this id.
pub async fn put(tx: &mut Tx, secret: &SecretRow) -> Result<()> {
    sqlx::query(
        "INSERT INTO secrets (id, project_id, created_at, updated_at, name, value) VALUES ($1, $2, $3, $4, $5, $6) \
         ON CONFLICT (id) DO UPDATE SET value = excluded.value, updated_at = excluded.updated_at",
    )
    .bind(secret.id.to_string())
    .bind(secret.project_id.to_string())
    .bind(secret.created_at.as_micros())
    .bind(secret.updated_at.as_micros())
    .bind(secret.name.clone())
    .bind(secret.value.clone())
    .execute(tx)
    .await?;
    Ok(())
}

/// Deletes a secret.
pub async fn delete(tx: &mut Tx, id: SecretId) -> Result<()> {
    sqlx::query("DELETE FROM secrets WHERE id = $1")
        .bind(id.to_string())
        .execute(tx)
        .await?;
    Ok(())
}
