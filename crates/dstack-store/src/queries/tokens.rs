//! Further tokens of users. The tokens themselves are not stored, only their hashes.

use dstack_units::{ProjectId, Time, TokenId, UserId};

use super::Reads;
use super::record;
use super::select::{fetch_as, fetch_one};
use super::users::UserRow;
use crate::{Result, Tx};

record! {
    /// An API token of a user.
    TokenRow in "user_tokens" {
        /// Id of the token.
        id: TokenId,
        /// The user who calls with it.
        user_id: UserId,
        /// Unique among the user's tokens.
        name: String,
        /// Lower-case hex SHA-256 of the token.
        token_hash: String,
        /// When it was created.
        created_at: Time,
        /// When it stops working.
        expires_at: Option<Time>,
        /// Good for reading only.
        read_only: bool,
        /// Good for this project only.
        project_id: Option<ProjectId>,
    }
}

impl TokenRow {
    /// Whether it does not work any more.
    pub fn is_expired(&self, now: Time) -> bool {
        self.expires_at.is_some_and(|end| end <= now)
    }
}

/// API tokens of users: see [`crate::Database::api_tokens`].
#[derive(Debug, Clone, Copy)]
pub struct ApiTokens<'a>(pub(crate) Reads<'a>);

impl ApiTokens<'_> {
    /// The token with this hash and its user. Neither tokens of inactive and deleted users nor those of a deleted project are
    /// found; expired ones are.
    pub async fn by_hash(self, hash: &str) -> Result<Option<(UserRow, TokenRow)>> {
        let sql = format!(
            "SELECT {}, {} FROM user_tokens t JOIN users u ON u.id = t.user_id LEFT JOIN projects p ON p.id = t.project_id \
             WHERE t.token_hash = $1 AND u.active = 1 AND u.deleted = 0 AND (t.project_id IS NULL OR p.deleted = 0)",
            UserRow::columns("u"),
            TokenRow::columns("t")
        );
        fetch_one(self.0, sql, &[hash], |row| {
            Ok((UserRow::read_at(row, 0)?, TokenRow::read_at(row, UserRow::WIDTH)?))
        })
        .await
    }

    /// A user's tokens by name, each with the name of its project.
    pub async fn list(self, user: UserId) -> Result<Vec<(TokenRow, Option<String>)>> {
        let sql = format!(
            "SELECT {}, p.name FROM user_tokens t LEFT JOIN projects p ON p.id = t.project_id \
             WHERE t.user_id = $1 AND (t.project_id IS NULL OR p.deleted = 0) ORDER BY t.name",
            TokenRow::columns("t")
        );
        fetch_as(self.0, sql, &[&user.to_string()], |row| {
            let project = crate::entity::read_column(row, TokenRow::WIDTH, "projects", "name")?;
            Ok((TokenRow::read_at(row, 0)?, project))
        })
        .await
    }
}

/// Adds a token.
pub async fn insert(tx: &mut Tx, token: &TokenRow) -> Result<()> {
    sqlx::query(
        "INSERT INTO user_tokens (id, user_id, name, token_hash, created_at, expires_at, read_only, project_id) \
         VALUES ($1, $2, $3, $4, $5, $6, $7, $8)",
    )
    .bind(token.id.to_string())
    .bind(token.user_id.to_string())
    .bind(token.name.clone())
    .bind(token.token_hash.clone())
    .bind(token.created_at.as_micros())
    .bind(token.expires_at.map(Time::as_micros))
    .bind(i64::from(token.read_only))
    .bind(token.project_id.map(|id| id.to_string()))
    .execute(tx)
    .await?;
    Ok(())
}

/// Deletes a token.
pub async fn delete(tx: &mut Tx, id: TokenId) -> Result<()> {
    sqlx::query("DELETE FROM user_tokens WHERE id = $1")
        .bind(id.to_string())
        .execute(tx)
        .await?;
    Ok(())
}

/// Deletes all tokens of a project that is deleted: their names become free.
pub async fn delete_of_project(tx: &mut Tx, project: ProjectId) -> Result<()> {
    sqlx::query("DELETE FROM user_tokens WHERE project_id = $1")
        .bind(project.to_string())
        .execute(tx)
        .await?;
    Ok(())
}
