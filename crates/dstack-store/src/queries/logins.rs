//! Logins under way: whoever comes back from a provider must be who was sent there, once, and soon.

use dstack_units::Time;
use sqlx::Row;

use super::Reads;
use super::record;
use super::select::fetch_one;
use crate::{Result, Tx};

record! {
    /// A login that was begun.
    LoginRow in "logins" {
        /// Lower-case hex SHA-256 of the `state` that goes to the provider and back.
        state_hash: String,
        /// The same of what the browser or program keeps to itself.
        browser_hash: String,
        /// Name of the provider.
        provider: String,
        /// Where the provider sends the browser.
        redirect_url: String,
        /// Encrypted: what only this server may know.
        secrets: String,
        /// When it is too late to come back.
        expires_at: Time,
    }
}

/// Logins under way: see [`crate::Database::logins`].
#[derive(Debug, Clone, Copy)]
pub struct Logins<'a>(pub(crate) Reads<'a>);

impl Logins<'_> {
    /// The login with this state.
    pub async fn by_state(self, state_hash: &str) -> Result<Option<LoginRow>> {
        let sql = format!(
            "SELECT {} FROM logins l WHERE l.state_hash = $1",
            LoginRow::columns("l")
        );
        fetch_one(self.0, sql, &[state_hash], |row| LoginRow::read_at(row, 0)).await
    }
}

/// Adds a login and forgets those that came too late. Returns false, and adds nothing, when there are `most` already.
pub async fn insert(tx: &mut Tx, login: &LoginRow, now: Time, most: i64) -> Result<bool> {
    sqlx::query("DELETE FROM logins WHERE expires_at <= $1")
        .bind(now.as_micros())
        .execute(&mut *tx)
        .await?;
    let count: i64 = sqlx::query("SELECT COUNT(*) FROM logins")
        .fetch_one(&mut *tx)
        .await?
        .try_get(0)?;
    if count >= most {
        return Ok(false);
    }
    sqlx::query(
        "INSERT INTO logins (state_hash, browser_hash, provider, redirect_url, secrets, expires_at) \
         VALUES ($1, $2, $3, $4, $5, $6)",
    )
    .bind(login.state_hash.clone())
    .bind(login.browser_hash.clone())
    .bind(login.provider.clone())
    .bind(login.redirect_url.clone())
    .bind(login.secrets.clone())
    .bind(login.expires_at.as_micros())
    .execute(tx)
    .await?;
    Ok(true)
}

/// Removes a login. Returns false when somebody else was quicker.
pub async fn take(tx: &mut Tx, state_hash: &str) -> Result<bool> {
    let done = sqlx::query("DELETE FROM logins WHERE state_hash = $1")
        .bind(state_hash.to_owned())
        .execute(tx)
        .await?;
    Ok(done.rows_affected() > 0)
}
