//! Which account of a login provider is which user.

use dstack_units::{Time, UserId};

use super::Reads;
use super::select::fetch_one;
use super::users::UserRow;
use crate::{Result, Tx};

/// An account of a login provider.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// Who vouches for it: the URL of the provider.
    pub issuer: String,
    /// What the account is called there for ever.
    pub subject: String,
}

/// Accounts of login providers: see [`crate::Database::identities`].
#[derive(Debug, Clone, Copy)]
pub struct Identities<'a>(pub(crate) Reads<'a>);

impl Identities<'_> {
    /// The user of this account, also inactive ones.
    pub async fn user(self, identity: &Identity) -> Result<Option<UserRow>> {
        let sql = format!(
            "SELECT {} FROM identities i JOIN users u ON u.id = i.user_id \
             WHERE i.issuer = $1 AND i.subject = $2 AND u.deleted = 0",
            UserRow::columns("u")
        );
        fetch_one(self.0, sql, &[&identity.issuer, &identity.subject], |row| {
            UserRow::read_at(row, 0)
        })
        .await
    }
}

/// Makes the account the user's. Refused as not unique when it is somebody's already.
pub async fn insert(tx: &mut Tx, identity: &Identity, user: UserId, now: Time) -> Result<()> {
    sqlx::query("INSERT INTO identities (issuer, subject, user_id, created_at) VALUES ($1, $2, $3, $4)")
        .bind(identity.issuer.clone())
        .bind(identity.subject.clone())
        .bind(user.to_string())
        .bind(now.as_micros())
        .execute(tx)
        .await?;
    Ok(())
}
