//! Uploaded diffs and archives.

use dstack_units::{ArchiveId, RepoRowId, UserId};
use sqlx::Row;
use sqlx::any::AnyRow;

use super::Reads;
use super::select::{Select, fetch_one};
use crate::{Result, Tx};

/// Where content is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Content {
    /// In the row.
    Here(Vec<u8>),
    /// In a bucket.
    Elsewhere,
}

impl Content {
    fn of_row(row: &AnyRow, column: usize) -> Result<Self> {
        let content: Option<Vec<u8>> = row.try_get(column)?;
        Ok(content.map_or(Self::Elsewhere, Self::Here))
    }

    fn into_row(self) -> Option<Vec<u8>> {
        match self {
            Self::Here(content) => Some(content),
            Self::Elsewhere => None,
        }
    }
}

/// An archive of files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Archive {
    /// Whose it is.
    pub user: UserId,
    /// Its hash, as its first uploader said.
    pub hash: String,
    /// What is in it.
    pub content: Content,
}

/// Diffs of repos and archives of files: see [`crate::Database::content`].
#[derive(Debug, Clone, Copy)]
pub struct StoredContent<'a>(pub(crate) Reads<'a>);

impl StoredContent<'_> {
    /// A diff of a repo.
    pub async fn code(self, repo: RepoRowId, hash: &str) -> Result<Option<Content>> {
        let sql = "SELECT content FROM codes WHERE repo_id = $1 AND blob_hash = $2".to_owned();
        fetch_one(self.0, sql, &[&repo.to_string(), hash], |row| {
            Content::of_row(row, 0)
        })
        .await
    }

    /// Whether the diff is there.
    pub async fn has_code(self, repo: RepoRowId, hash: &str) -> Result<bool> {
        let sql = "SELECT 1 FROM codes WHERE repo_id = $1 AND blob_hash = $2".to_owned();
        Ok(fetch_one(self.0, sql, &[&repo.to_string(), hash], |_| Ok(()))
            .await?
            .is_some())
    }
}

/// Stores a diff; one with the same hash stays as it is.
pub async fn put_code(tx: &mut Tx, repo: RepoRowId, hash: &str, content: Content) -> Result<()> {
    sqlx::query("INSERT INTO codes (repo_id, blob_hash, content) VALUES ($1, $2, $3) ON CONFLICT (repo_id, blob_hash) DO NOTHING")
        .bind(repo.to_string())
        .bind(hash.to_owned())
        .bind(content.into_row())
        .execute(tx)
        .await?;
    Ok(())
}

impl StoredContent<'_> {
    /// Id of a user's archive.
    pub async fn archive_by_hash(self, user: UserId, hash: &str) -> Result<Option<ArchiveId>> {
        let sql = "SELECT id FROM file_archives WHERE user_id = $1 AND blob_hash = $2".to_owned();
        fetch_one(self.0, sql, &[&user.to_string(), hash], |row| {
            crate::entity::read_column(row, 0, "file_archives", "id")
        })
        .await
    }

    /// An archive, whoever has uploaded it.
    pub async fn archive(self, id: ArchiveId) -> Result<Option<Archive>> {
        let sql = "SELECT content, user_id, blob_hash FROM file_archives WHERE id = $1".to_owned();
        fetch_one(self.0, sql, &[&id.to_string()], |row| {
            Ok(Archive {
                user: crate::entity::read_column(row, 1, "file_archives", "user_id")?,
                hash: row.try_get(2)?,
                content: Content::of_row(row, 0)?,
            })
        })
        .await
    }

    /// Those of these archives that the user has not uploaded.
    pub async fn foreign_archives(self, user: UserId, ids: &[ArchiveId]) -> Result<Vec<ArchiveId>> {
        let mut query = Select::new("SELECT id FROM file_archives");
        let list = query.bind_list(ids.iter().copied());
        let user = query.bind(user.to_string());
        query.filter(format_args!("id IN {list} AND user_id = {user}"));
        let rows = query.fetch(self.0).await?;
        let own: Vec<ArchiveId> = rows
            .iter()
            .map(|row| crate::entity::read_column(row, 0, "file_archives", "id"))
            .collect::<Result<_>>()?;
        Ok(ids.iter().copied().filter(|id| !own.contains(id)).collect())
    }
}

/// Stores an archive and returns its id: that of the first upload of the same hash.
pub async fn put_archive(
    tx: &mut Tx,
    id: ArchiveId,
    user: UserId,
    hash: &str,
    content: Content,
) -> Result<ArchiveId> {
    sqlx::query(
        "INSERT INTO file_archives (id, user_id, blob_hash, content) VALUES ($1, $2, $3, $4) \
         ON CONFLICT (user_id, blob_hash) DO NOTHING",
    )
    .bind(id.to_string())
    .bind(user.to_string())
    .bind(hash.to_owned())
    .bind(content.into_row())
    .execute(&mut *tx)
    .await?;
    let row = sqlx::query("SELECT id FROM file_archives WHERE user_id = $1 AND blob_hash = $2")
        .bind(user.to_string())
        .bind(hash.to_owned())
        .fetch_one(tx)
        .await?;
    crate::entity::read_column(&row, 0, "file_archives", "id")
}
