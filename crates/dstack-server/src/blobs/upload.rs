//! Uploads that are named by the hash of their content.

use dstack_store::StoreError;
use dstack_system::task;
use sha2::{Digest, Sha256};

use super::BlobError;
use crate::error::ApiError;

/// Why an upload is not stored.
#[derive(Debug, thiserror::Error)]
pub enum UploadError {
    /// It has another hash than its name says.
    #[error(
        "The upload is named {named}, but the SHA-256 of its content is {found}. It was damaged on the way or is not what it \
         says it is, and was not stored: upload it again"
    )]
    Hash {
        /// The hash that the client named it by.
        named: String,
        /// What the name should be.
        found: String,
    },
    /// The place where it is to be stored.
    #[error(transparent)]
    Blob(#[from] BlobError),
    /// The check of the hash.
    #[error(transparent)]
    Panicked(#[from] task::Panicked),
}

impl From<StoreError> for UploadError {
    fn from(error: StoreError) -> Self {
        Self::Blob(error.into())
    }
}

impl From<UploadError> for ApiError {
    fn from(error: UploadError) -> Self {
        match error {
            UploadError::Hash { .. } => Self::client(error.to_string()),
            UploadError::Blob(error) => error.into(),
            UploadError::Panicked(error) => error.into(),
        }
    }
}

/// Returns the content, if it has the hash it is named by. Names that are no SHA-256 say nothing of the content: dstack 0.22.5
/// takes them, and its clients never ask for them.
pub(super) async fn verified(name: &str, content: Vec<u8>) -> Result<Vec<u8>, UploadError> {
    if name.len() != 64 || !name.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return Ok(content);
    }
    let hashed = task::blocking("hash an upload", move || {
        (hex::encode(Sha256::digest(&content)), content)
    });
    let (found, content) = hashed.await?;
    if found.eq_ignore_ascii_case(name) {
        return Ok(content);
    }
    Err(UploadError::Hash {
        named: name.to_owned(),
        found,
    })
}
