//! Uploaded diffs and archives.

use dstack_units::{ArchiveId, RepoRowId, UserId};
use sqlx::{AnyPool, Row};

use super::select::fetch_one;
use crate::{Result, Tx};

/// A diff of a repo.
pub async fn code(pool: &AnyPool, repo: RepoRowId, hash: &str) -> Result<Option<Vec<u8>>> {
    let sql = "SELECT content FROM codes WHERE repo_id = $1 AND blob_hash = $2".to_owned();
    fetch_one(pool, sql, &[&repo.to_string(), hash], |row| {
        Ok(row.try_get::<Option<Vec<u8>>, _>(0)?)
    })
    .await
    .map(Option::flatten)
}

/// Whether the diff is there.
pub async fn has_code(pool: &AnyPool, repo: RepoRowId, hash: &str) -> Result<bool> {
    let sql = "SELECT 1 FROM codes WHERE repo_id = $1 AND blob_hash = $2".to_owned();
    Ok(fetch_one(pool, sql, &[&repo.to_string(), hash], |_| Ok(()))
        .await?
        .is_some())
}

/// Stores a diff; one with the same hash stays as it is.
pub async fn put_code(tx: &mut Tx, repo: RepoRowId, hash: &str, content: Vec<u8>) -> Result<()> {
    sqlx::query("INSERT INTO codes (repo_id, blob_hash, content) VALUES ($1, $2, $3) ON CONFLICT (repo_id, blob_hash) DO NOTHING")
        .bind(repo.to_string())
        .bind(hash.to_owned())
        .bind(content)
        .execute(tx)
        .await?;
    Ok(())
}

/// Id of a user's archive.
pub async fn archive_by_hash(pool: &AnyPool, user: UserId, hash: &str) -> Result<Option<ArchiveId>> {
    let sql = "SELECT id FROM file_archives WHERE user_id = $1 AND blob_hash = $2".to_owned();
    fetch_one(pool, sql, &[&user.to_string(), hash], |row| {
        crate::entity::read_column(row, 0, "file_archives", "id")
    })
    .await
}

/// Content of an archive.
pub async fn archive(pool: &AnyPool, id: ArchiveId) -> Result<Option<Vec<u8>>> {
    let sql = "SELECT content FROM file_archives WHERE id = $1".to_owned();
    fetch_one(pool, sql, &[&id.to_string()], |row| {
        Ok(row.try_get::<Option<Vec<u8>>, _>(0)?)
    })
    .await
    .map(Option::flatten)
}

/// Stores an archive and returns its id: that of the first upload of the same hash.
pub async fn put_archive(
    tx: &mut Tx,
    id: ArchiveId,
    user: UserId,
    hash: &str,
    content: Vec<u8>,
) -> Result<ArchiveId> {
    sqlx::query(
        "INSERT INTO file_archives (id, user_id, blob_hash, content) VALUES ($1, $2, $3, $4) \
         ON CONFLICT (user_id, blob_hash) DO NOTHING",
    )
    .bind(id.to_string())
    .bind(user.to_string())
    .bind(hash.to_owned())
    .bind(content)
    .execute(&mut *tx)
    .await?;
    let row = sqlx::query("SELECT id FROM file_archives WHERE user_id = $1 AND blob_hash = $2")
        .bind(user.to_string())
        .bind(hash.to_owned())
        .fetch_one(tx)
        .await?;
    crate::entity::read_column(&row, 0, "file_archives", "id")
}
