//! Why the server cannot run.

use std::io;
use std::path::PathBuf;

use dstack_control::ControlError;
use dstack_store::StoreError;

use super::listening;
use crate::blobs::BucketError;
use crate::config::ConfigError;
use crate::error::ApiError;

/// Why the server cannot run.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// The state directory cannot be used.
    #[error("cannot use the server's directory {path}: it must be writable, or set DSTACK_SERVER_DIR")]
    Dir {
        /// The directory that cannot be used.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// Another server uses the database.
    #[error(
        "another server uses {path}: stop it, or use another DSTACK_SERVER_DIR (several servers need PostgreSQL)"
    )]
    InUse {
        /// The lock file.
        path: PathBuf,
    },
    /// `config.yml` cannot be read, or says what cannot be.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The database cannot be opened, read or written.
    #[error("the database cannot be used")]
    Store(#[from] StoreError),
    /// The admin's token cannot be read.
    #[error(
        "the admin's token cannot be decrypted: put the encryption key back (encryption.key or encryption.keys in config.yml)"
    )]
    AdminToken,
    /// A project of config.yml has a name that none can have.
    #[error(
        "the project `{0}` of config.yml: names of projects are made of 1 to 50 letters, digits, - and _"
    )]
    ProjectName(String),
    /// The keys of config.yml do not decrypt everything that is stored.
    #[error("encryption.keys lacks a key that is still needed by {0}: put it back, after the new one")]
    KeysMissing(String),
    /// The admin user or the project main cannot be created.
    #[error("cannot set up the first user and project")]
    Bootstrap(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// Host and port cannot be listened on.
    #[error("cannot listen on {address}: {}", listening::remedy(source))]
    Listen {
        /// Host and port.
        address: String,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// The bucket for code and files.
    #[error(transparent)]
    Bucket(#[from] BucketError),
    /// The engine cannot be started.
    #[error("cannot start the engine")]
    Engine(#[source] Box<dyn std::error::Error + Send + Sync>),
}

impl From<ControlError> for ServerError {
    fn from(error: ControlError) -> Self {
        ApiError::from(error).into()
    }
}

impl From<ApiError> for ServerError {
    fn from(error: ApiError) -> Self {
        match error {
            ApiError::Internal(cause) => Self::Bootstrap(cause),
            other => Self::Bootstrap(other.into()),
        }
    }
}
