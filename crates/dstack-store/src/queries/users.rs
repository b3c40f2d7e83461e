//! Users and their public keys.

use dstack_model::users::GlobalRole;
use dstack_units::{PublicKeyId, Time, UserId};

use super::Reads;
use super::select::{Select, contains_pattern, fetch_as, fetch_one};
use super::{Page, record};
use crate::{Result, StoreError, Tx};

crate::text_columns!(GlobalRole);

record! {
    /// A user. The token is kept encrypted; it is found by its hash.
    UserRow in "users" {
        /// Id of the user.
        id: UserId,
        /// Name; renamed when deleted.
        name: String,
        /// When it was created.
        created_at: Time,
        /// Role in the whole server.
        global_role: GlobalRole,
        /// E-mail address, which several users may share.
        email: Option<String>,
        /// Inactive users cannot authenticate.
        active: bool,
        /// The user's own token, encrypted.
        token: String,
        /// Encrypted private key; `None` until first needed.
        ssh_private_key: Option<String>,
        /// The public key.
        ssh_public_key: Option<String>,
        /// How many projects the user may own.
        projects_quota: i64,
        /// Deleted; kept for history.
        deleted: bool,
        /// The name before deletion.
        original_name: Option<String>,
    }
}

record! {
    /// A public key of a user.
    PublicKeyRow in "user_public_keys" {
        /// Id of the key.
        id: PublicKeyId,
        /// The user who added it.
        user_id: UserId,
        /// When it was added.
        created_at: Time,
        /// A name for people.
        name: String,
        /// `ssh-ed25519`, `ssh-rsa`, …
        r#type: String,
        /// `SHA256:` and the unpadded base64 of the key's hash.
        fingerprint: String,
        /// The key, one line.
        key: String,
    }
}

fn select() -> String {
    format!("SELECT {} FROM users u", UserRow::columns("u"))
}

fn read(row: &sqlx::any::AnyRow) -> Result<UserRow> {
    UserRow::read_at(row, 0)
}

/// Users and their public keys: see [`crate::Database::users`].
#[derive(Debug, Clone, Copy)]
pub struct Users<'a>(pub(crate) Reads<'a>);

impl Users<'_> {
    /// The active user with this token hash (lower-case hex SHA-256).
    pub async fn by_token_hash(self, hash: &str) -> Result<Option<UserRow>> {
        fetch_one(
            self.0,
            select() + " WHERE u.token_hash = $1 AND u.active = 1 AND u.deleted = 0",
            &[hash],
            read,
        )
        .await
    }

    /// By name, exactly.
    pub async fn by_name(self, name: &str) -> Result<Option<UserRow>> {
        fetch_one(
            self.0,
            select() + " WHERE u.name = $1 AND u.deleted = 0",
            &[name],
            read,
        )
        .await
    }

    /// By id, also deleted ones.
    pub async fn by_id(self, id: UserId) -> Result<Option<UserRow>> {
        fetch_one(self.0, select() + " WHERE u.id = $1", &[&id.to_string()], read).await
    }

    /// By name or e-mail.
    pub async fn by_name_or_email(self, text: &str) -> Result<Vec<UserRow>> {
        let mut found = fetch_as(
            self.0,
            select() + " WHERE (u.name = $1 OR u.email = $2) AND u.deleted = 0",
            &[text, text],
            read,
        )
        .await?;
        if found.iter().any(|user| user.name == text) {
            found.retain(|user| user.name == text);
        }
        Ok(found)
    }

    /// The users with this e-mail address in any case.
    pub async fn by_email(self, email: &str) -> Result<Vec<UserRow>> {
        let sql = select() + " WHERE LOWER(u.email) = $1 AND u.deleted = 0 ORDER BY u.created_at, u.id";
        fetch_as(self.0, sql, &[&email.to_lowercase()], read).await
    }

    /// Whether some user has this name in any case.
    pub async fn name_taken(self, name: &str) -> Result<bool> {
        let sql = select() + " WHERE LOWER(u.name) = $1 AND u.deleted = 0";
        Ok(fetch_one(self.0, sql, &[&name.to_lowercase()], read)
            .await?
            .is_some())
    }
}

/// Which users to list.
#[derive(Debug, Clone, Default)]
pub struct UserFilter {
    /// Part of the name, in any case.
    pub name_part: Option<String>,
    /// Only this user.
    pub only: Option<UserId>,
}

impl UserFilter {
    fn apply(&self, select: &mut Select) {
        select.filter("u.deleted = 0");
        if let Some(only) = self.only {
            let id = select.bind(only);
            select.filter(format_args!("u.id = {id}"));
        }
        if let Some(part) = &self.name_part {
            let pattern = select.bind(contains_pattern(part));
            select.filter(format_args!("LOWER(u.name) LIKE {pattern} ESCAPE '\\'"));
        }
    }
}

impl Users<'_> {
    /// Returns a page of the users that the filter finds.
    pub async fn list(self, filter: &UserFilter, page: &Page) -> Result<Vec<UserRow>> {
        let mut query = Select::new(select());
        filter.apply(&mut query);
        query.page("u.created_at", "u.id", page);
        query.fetch_as(self.0, read).await
    }

    /// How many users the filter finds.
    pub async fn count(self, filter: &UserFilter) -> Result<i64> {
        let mut query = Select::new("SELECT COUNT(*) FROM users u");
        filter.apply(&mut query);
        query.fetch_count(self.0).await
    }
}

/// Adds a user.
pub async fn insert(tx: &mut Tx, user: &UserRow, token_hash: &str) -> Result<()> {
    use crate::Column;
    sqlx::query(
        "INSERT INTO users (id, name, created_at, global_role, email, active, token, token_hash, ssh_private_key, \
         ssh_public_key, projects_quota, deleted) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, 0)",
    )
    .bind(user.id.to_string())
    .bind(user.name.clone())
    .bind(user.created_at.as_micros())
    .bind(user.global_role.to_raw())
    .bind(user.email.clone())
    .bind(i64::from(user.active))
    .bind(user.token.clone())
    .bind(token_hash.to_owned())
    .bind(user.ssh_private_key.clone())
    .bind(user.ssh_public_key.clone())
    .bind(user.projects_quota)
    .execute(tx)
    .await?;
    Ok(())
}

/// Changes role, e-mail and activity.
pub async fn update(
    tx: &mut Tx,
    id: UserId,
    role: GlobalRole,
    email: Option<&str>,
    active: bool,
) -> Result<()> {
    use crate::Column;
    let done = sqlx::query(
        "UPDATE users SET global_role = $2, email = $3, active = $4 WHERE id = $1 AND deleted = 0",
    )
    .bind(id.to_string())
    .bind(role.to_raw())
    .bind(email.map(str::to_owned))
    .bind(i64::from(active))
    .execute(tx)
    .await?;
    match done.rows_affected() {
        0 => Err(StoreError::conflict("users", &id)),
        _ => Ok(()),
    }
}

/// Replaces the token.
pub async fn set_token(tx: &mut Tx, id: UserId, encrypted: &str, hash: &str) -> Result<()> {
    sqlx::query("UPDATE users SET token = $2, token_hash = $3 WHERE id = $1")
        .bind(id.to_string())
        .bind(encrypted.to_owned())
        .bind(hash.to_owned())
        .execute(tx)
        .await?;
    Ok(())
}

/// Replaces the key pair; with `only_missing`, not if there is one. Returns whether it was stored.
pub async fn set_ssh_keys(
    tx: &mut Tx,
    id: UserId,
    private: &str,
    public: &str,
    only_missing: bool,
) -> Result<bool> {
    let guard = if only_missing {
        " AND ssh_private_key IS NULL"
    } else {
        ""
    };
    let sql = format!("UPDATE users SET ssh_private_key = $2, ssh_public_key = $3 WHERE id = $1{guard}");
    let done = sqlx::query(sqlx::AssertSqlSafe(sql))
        .bind(id.to_string())
        .bind(private.to_owned())
        .bind(public.to_owned())
        .execute(tx)
        .await?;
    Ok(done.rows_affected() > 0)
}

/// Deletes a user: the row stays for history under `renamed`, its memberships, API tokens and accounts of login
/// providers vanish.
///
/// # Errors
/// [`StoreError::Conflict`]: somebody else has deleted them.
pub async fn delete(tx: &mut Tx, user: &UserRow, renamed: &str) -> Result<()> {
    let done = sqlx::query(
        "UPDATE users SET deleted = 1, active = 0, original_name = name, name = $2 WHERE id = $1 AND deleted = 0",
    )
    .bind(user.id.to_string())
    .bind(renamed.to_owned())
    .execute(&mut *tx)
    .await?;
    if done.rows_affected() == 0 {
        return Err(StoreError::conflict("users", &user.id));
    }
    for sql in [
        "DELETE FROM members WHERE user_id = $1",
        "DELETE FROM user_tokens WHERE user_id = $1",
        "DELETE FROM identities WHERE user_id = $1",
    ] {
        sqlx::query(sql)
            .bind(user.id.to_string())
            .execute(&mut *tx)
            .await?;
    }
    Ok(())
}

impl Users<'_> {
    /// A user's public keys, newest first.
    pub async fn public_keys(self, user: UserId) -> Result<Vec<PublicKeyRow>> {
        let sql = format!(
            "SELECT {} FROM user_public_keys k WHERE k.user_id = $1 ORDER BY k.created_at DESC, k.id",
            public_key_columns()
        );
        fetch_as(self.0, sql, &[&user.to_string()], |row| {
            PublicKeyRow::read_at(row, 0)
        })
        .await
    }
}

// `r#type` is the field's name in Rust, not the column's.
fn public_key_columns() -> String {
    PublicKeyRow::columns("k").replace("r#", "")
}

/// Adds a public key.
pub async fn insert_public_key(tx: &mut Tx, key: &PublicKeyRow) -> Result<()> {
    sqlx::query(
        "INSERT INTO user_public_keys (id, user_id, created_at, name, type, fingerprint, key) \
         VALUES ($1, $2, $3, $4, $5, $6, $7)",
    )
    .bind(key.id.to_string())
    .bind(key.user_id.to_string())
    .bind(key.created_at.as_micros())
    .bind(key.name.clone())
    .bind(key.r#type.clone())
    .bind(key.fingerprint.clone())
    .bind(key.key.clone())
    .execute(tx)
    .await?;
    Ok(())
}

/// Deletes a public key.
pub async fn delete_public_key(tx: &mut Tx, id: PublicKeyId) -> Result<()> {
    sqlx::query("DELETE FROM user_public_keys WHERE id = $1")
        .bind(id.to_string())
        .execute(tx)
        .await?;
    Ok(())
}
