//! Uploaded code and archives of files: in the database, or in a bucket if one is set.
//!
//! Rows are in the database in both cases. With a bucket, the content is stored there first, then the row without it:
//! whatever has a row can be read. A row that has its content is read from the database, also with a bucket.

mod bucket;
mod upload;

use dstack_store::queries::content::{self, Content};
use dstack_store::{Database, StoreError};
use dstack_units::{ArchiveId, ProjectId, UserId};

pub use bucket::{Bucket, BucketError};
pub use upload::UploadError;

/// Why content cannot be stored or read.
#[derive(Debug, thiserror::Error)]
pub enum BlobError {
    /// The database cannot be read or written.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The bucket cannot be read or written.
    #[error(transparent)]
    Bucket(#[from] BucketError),
    /// It was stored, but is not there any more.
    #[error(
        "the bucket has no object {0} any more: upload the files once more under another hash, or put it back"
    )]
    Gone(String),
    /// It was stored in a bucket.
    #[error(
        "the content is in a bucket, and none is set: set DSTACK_SERVER_S3_BUCKET or DSTACK_SERVER_GCS_BUCKET as before"
    )]
    NoBucket,
}

/// Where content is.
#[derive(Debug, Clone)]
pub struct Blobs {
    database: Database,
    bucket: Option<Bucket>,
}

/// A repo of a project, by its row and by its names.
#[derive(Debug, Clone, Copy)]
pub struct RepoOf<'a> {
    /// The project's name.
    pub project: &'a str,
    /// Id of the repo in the database.
    pub row: dstack_units::RepoRowId,
    /// The repo's id, as clients know it.
    pub repo: &'a str,
}

impl Blobs {
    /// In the database, or in this bucket.
    pub const fn new(database: Database, bucket: Option<Bucket>) -> Self {
        Self { database, bucket }
    }

    /// Whether the diff is there already.
    ///
    /// # Errors
    /// The database cannot be read.
    pub async fn has_code(&self, repo: dstack_units::RepoRowId, hash: &str) -> Result<bool, BlobError> {
        Ok(self.database.content().has_code(repo, hash).await?)
    }

    /// Puts a diff into the bucket where there is one; returns what its row has to hold. All members of the project run the code
    /// that is stored under a hash: it must have it.
    ///
    /// # Errors
    /// Another hash, or the bucket; nothing can be read then.
    pub async fn store_code(
        &self,
        project: &str,
        repo: &str,
        hash: &str,
        content: Vec<u8>,
    ) -> Result<Content, UploadError> {
        let content = upload::verified(hash, content).await?;
        let key = ["data", "projects", project, "codes", repo, hash];
        Ok(self.stored(&key, content).await?)
    }

    /// Returns uploaded code by its hash, from the database or the bucket; `None` when it is not stored.
    ///
    /// # Errors
    /// Bucket or database.
    pub async fn code(
        &self,
        project: ProjectId,
        repo: dstack_units::RepoRowId,
        hash: &str,
    ) -> Result<Option<Vec<u8>>, BlobError> {
        let database = &self.database;
        match database.content().code(repo, hash).await? {
            None => Ok(None),
            Some(Content::Here(content)) => Ok(Some(content)),
            Some(Content::Elsewhere) => {
                let project = database.projects().by_id(project).await?;
                let (Some(project), Some(name)) = (project, database.repos().name(repo).await?) else {
                    return Ok(None);
                };
                let key = ["data", "projects", &project.name, "codes", &name, hash];
                self.read(&key).await.map(Some)
            }
        }
    }

    /// Stores an archive and gives its id: that of the first upload with this hash.
    ///
    /// # Errors
    /// Bucket or database; nothing can be read then.
    pub async fn put_archive(
        &self,
        id: ArchiveId,
        user: UserId,
        hash: String,
        content: Vec<u8>,
    ) -> Result<ArchiveId, BlobError> {
        if let Some(id) = self.database.content().archive_by_hash(user, &hash).await? {
            return Ok(id);
        }
        let key = ["data", "users", &user.to_string(), "file_archives", &hash];
        let content = self.stored(&key, content).await?;
        let put = self.database.write(move |tx| {
            Box::pin(async move { content::put_archive(tx, id, user, &hash, content).await })
        });
        Ok(put.await?)
    }

    /// An archive that this user has uploaded; `None` also where it is somebody else's.
    ///
    /// # Errors
    /// Bucket or database.
    pub async fn archive(&self, id: ArchiveId) -> Result<Option<Vec<u8>>, BlobError> {
        let Some(archive) = self.database.content().archive(id).await? else {
            return Ok(None);
        };
        match archive.content {
            Content::Here(content) => Ok(Some(content)),
            Content::Elsewhere => {
                let user = archive.user.to_string();
                let key = ["data", "users", &user, "file_archives", &archive.hash];
                self.read(&key).await.map(Some)
            }
        }
    }

    /// Whether there is a bucket, and it answers.
    ///
    /// # Errors
    /// It does not, or refuses.
    pub async fn check_bucket(&self) -> Result<bool, BlobError> {
        match &self.bucket {
            None => Ok(false),
            Some(bucket) => {
                bucket.get(&["data", "no-such-object"]).await?;
                Ok(true)
            }
        }
    }

    /// What the row gets: the content, unless the bucket has it.
    async fn stored(&self, key: &[&str], content: Vec<u8>) -> Result<Content, BlobError> {
        match &self.bucket {
            None => Ok(Content::Here(content)),
            Some(bucket) => {
                bucket.put(key, content).await?;
                Ok(Content::Elsewhere)
            }
        }
    }

    async fn read(&self, key: &[&str]) -> Result<Vec<u8>, BlobError> {
        let bucket = self.bucket.as_ref().ok_or(BlobError::NoBucket)?;
        bucket
            .get(key)
            .await?
            .ok_or_else(|| BlobError::Gone(key.join("/")))
    }
}
