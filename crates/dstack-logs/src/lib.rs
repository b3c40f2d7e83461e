//! Where the output of jobs is kept.
//!
//! [`LogStore`] is what the engine appends to and the API reads from; [`FileLogStore`] keeps it in files of the
//! server's directory, in the layout and line format of dstack 0.22.5. Stores elsewhere are behind cargo features:
//! [`cloudwatch`], [`gcp`], [`fluent_bit`]; they share [`remote`].

#[cfg(feature = "cloudwatch")]
pub mod cloudwatch;
mod file;
#[cfg(feature = "fluent-bit")]
pub mod fluent_bit;
#[cfg(feature = "gcp-logging")]
pub mod gcp;
#[cfg(feature = "remote")]
mod remote;

use std::fmt;
use std::io;
use std::path::PathBuf;

use async_trait::async_trait;
use bytes::Bytes;
use dstack_system::Random;
use dstack_units::{JobId, Time};

pub use file::{Durability, FileLogStore};

/// Who wrote the lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Producer {
    /// The job's commands.
    Job,
    /// The runner itself: shown by `logs --diagnose`.
    Runner,
}

impl Producer {
    /// As in file names.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Job => "job",
            Self::Runner => "runner",
        }
    }
}

/// Names one log.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct LogStream {
    /// Name of the run's project.
    pub project: String,
    pub run: String,
    /// Id of the job submission that wrote the log.
    pub job: JobId,
    /// Who wrote the log.
    pub producer: Producer,
}

impl fmt::Display for LogStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}/{}/{}/{}",
            self.project,
            self.run,
            self.job,
            self.producer.as_str()
        )
    }
}

/// Which pipe a message came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Source {
    /// Standard output, and everything of a pty.
    #[default]
    Stdout,
    /// Standard error.
    Stderr,
}

/// One message: usually a line with its line end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogEntry {
    /// When. Strictly increasing within a stream.
    pub timestamp: Time,
    /// From which pipe.
    pub source: Source,
    /// The bytes as they came.
    pub message: Bytes,
}

/// Which part of a log is asked for.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PollQuery {
    /// Only later entries.
    pub start_time: Option<Time>,
    /// Only earlier entries (descending: or as late).
    pub end_time: Option<Time>,
    /// Return the newest entries first.
    pub descending: bool,
    /// Where the previous page ended.
    pub next_token: Option<String>,
    /// Most entries to return; 0 is taken as 1.
    pub limit: usize,
}

/// Part of a log.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct LogPage {
    /// Entries of this page.
    pub entries: Vec<LogEntry>,
    /// Where the next page begins; `None` when there is none now.
    pub next_token: Option<String>,
    /// Where people can read the log besides.
    pub external_url: Option<String>,
}

/// Why a log cannot be written or read.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    /// Refused before anything was read.
    #[error("Invalid next_token: {0}. Must be a non-negative integer.")]
    Token(String),
    /// The name of the run or project is longer than the file system permits.
    #[error("Filename too long")]
    NameTooLong,
    /// The name of the run or project cannot be part of a path.
    #[error("`{0}` cannot be used as the name of a log")]
    Name(String),
    /// Nothing was stored: the entries may be appended again.
    #[error("cannot write the log {path}: check free space and permissions")]
    Write {
        path: PathBuf,
        /// Error of the file system.
        #[source]
        source: io::Error,
    },
    /// Another server has been writing to the file all the time: the entries may be appended again.
    #[error("the log {path} has been locked by another server for too long")]
    Locked {
        /// Where the log is kept.
        path: PathBuf,
    },
    /// The file cannot be read.
    #[error("cannot read the log {path}")]
    Read {
        path: PathBuf,
        /// Error of the file system.
        #[source]
        source: io::Error,
    },
    /// The token is none that the store gave out.
    #[error("Invalid next_token: {0}")]
    UnknownToken(String),
    /// Google's quota of reads is used up.
    #[error(
        "GCP Logging read request limit exceeded. It's recommended to increase default entries.list request quota from 60 per minute."
    )]
    ReadQuota,
    /// A store elsewhere cannot be used as it is configured.
    #[error("cannot use {store}: {reason}")]
    Unusable {
        /// Its name, for people.
        store: &'static str,
        /// What to change.
        reason: String,
    },
    /// A store elsewhere does not answer, or not now: the same may succeed later. All, some or none of appended entries are
    /// stored.
    #[error("{store} does not answer")]
    Away {
        /// Its name, for people.
        store: &'static str,
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// A store elsewhere failed. After an append that failed so, all, some or none of the entries are stored.
    #[error("{store} failed")]
    Remote {
        /// Its name, for people.
        store: &'static str,
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// A task panicked.
    #[error(transparent)]
    Panicked(#[from] dstack_system::task::Panicked),
}

impl LogError {
    /// [`LogError::Remote`] of a store, for `map_err`.
    pub fn remote<E>(store: &'static str) -> impl Fn(E) -> Self
    where
        E: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        move |error| Self::Remote {
            store,
            source: error.into(),
        }
    }
}

/// Keeps the output of jobs.
#[async_trait]
pub trait LogStore: Send + Sync + fmt::Debug {
    /// Stores entries. They are durable when this returns `Ok`; after an error the same entries are to be appended again.
    ///
    /// Entries not later than the last one stored are dropped, so a batch may be appended again. How sure that is after
    /// an error, and after the server was started again, is told by each store.
    async fn append(&self, stream: &LogStream, entries: Vec<LogEntry>) -> Result<(), LogError>;

    /// Timestamp of the last stored entry: everything up to it need not be sent again.
    async fn last_timestamp(&self, stream: &LogStream) -> Result<Option<Time>, LogError>;

    /// Reads a page. A log that does not exist is empty.
    async fn poll(&self, stream: &LogStream, query: &PollQuery) -> Result<LogPage, LogError>;

    /// Looks whether output can be stored and read, as far as that leaves nothing behind. What was done, for people, such as
    /// `a log was read; nothing was written`.
    ///
    /// # Errors
    /// It cannot.
    async fn check(&self) -> Result<&'static str, LogError> {
        // Who answers that there is no such log can be reached, and takes the credentials.
        let nobodys = LogStream {
            project: "doctor".to_owned(),
            run: "no-such-run".to_owned(),
            job: Random::system().uuid().into(),
            producer: Producer::Job,
        };
        let query = PollQuery {
            limit: 1,
            ..PollQuery::default()
        };
        self.poll(&nobodys, &query).await?;
        Ok("a log was read; nothing was written")
    }

    /// Nothing more is appended to the logs of this job for now: what is kept open for them is closed.
    fn release(&self, _job: JobId) {}
}
