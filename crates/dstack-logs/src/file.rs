//! Logs in files: `<root>/projects/<project>/logs/<run>/<job submission>/{job,runner}.log`, one JSON object a line.
//!
//! Several servers may have the same directory: whoever appends to a file has a lock on it meanwhile, and looks first
//! whether another has appended since.

mod line;
mod probe;
mod read;
mod write;

#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use dstack_system::task;
use dstack_units::{JobId, Time};
use tokio::sync::Semaphore;
use tokio::time::{Instant, sleep};

use crate::{LogEntry, LogError, LogPage, LogStore, LogStream, PollQuery};
use read::LineOffsets;
use write::Writer;

/// Writers kept open. A closed one is opened again at the cost of reading the end of its file.
const OPEN_WRITERS: usize = 256;
/// Writes under way at a time: bounds threads and memory, and keeps one loud job from starving the others.
const CONCURRENT_WRITES: usize = 8;
/// Pause before a file that another server has locked is tried again, and how long it is tried. Both write to the same file
/// only while a job passes from one to the other. The system tells only a waiting thread that a lock is free, and such a thread
/// cannot be told to give up.
const LOCK_RETRY: Duration = Duration::from_millis(20);
const LOCK_PATIENCE: Duration = Duration::from_secs(10);

/// When an append counts as durable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Durability {
    /// Handed to the operating system: survives the server being killed.
    Written,
    /// On disk: survives a power cut.
    Synced,
}

type SharedWriter = Arc<Mutex<Writer>>;

/// Logs in files.
#[derive(Debug)]
pub struct FileLogStore {
    root: PathBuf,
    durability: Durability,
    writers: Mutex<HashMap<PathBuf, SharedWriter>>,
    slots: Semaphore,
    offsets: Arc<LineOffsets>,
    #[cfg(test)]
    disk: Arc<tests::Disk>,
}

impl FileLogStore {
    /// In this directory (the server's own).
    pub fn new(root: impl Into<PathBuf>, durability: Durability) -> Self {
        Self {
            root: root.into(),
            durability,
            writers: Mutex::default(),
            slots: Semaphore::new(CONCURRENT_WRITES),
            offsets: Arc::default(),
            #[cfg(test)]
            disk: Arc::default(),
        }
    }

    fn writers(&self) -> MutexGuard<'_, HashMap<PathBuf, SharedWriter>> {
        self.writers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn path(&self, stream: &LogStream) -> Result<PathBuf, LogError> {
        Ok(self
            .root
            .join("projects")
            .join(segment(&stream.project)?)
            .join("logs")
            .join(segment(&stream.run)?)
            .join(stream.job.to_string())
            .join(format!("{}.log", stream.producer.as_str())))
    }

    fn writer(&self, path: &Path) -> SharedWriter {
        let mut writers = self.writers();
        if writers.len() >= OPEN_WRITERS && !writers.contains_key(path) {
            // One that nobody holds is idle; which one does not matter.
            let idle = writers
                .iter()
                .find(|(_, writer)| Arc::strong_count(writer) == 1)
                .map(|(path, _)| path.clone());
            if let Some(idle) = idle {
                writers.remove(&idle);
            }
        }
        let closed = || {
            Writer::closed(
                path.to_owned(),
                #[cfg(test)]
                Arc::clone(&self.disk),
            )
        };
        let writer = writers.entry(path.to_owned());
        Arc::clone(writer.or_insert_with(|| Arc::new(Mutex::new(closed()))))
    }

    /// Does some work with the file, as soon as no other server does. The work gives `None` when it found the file locked.
    async fn with_writer<T: Send + 'static>(
        &self,
        stream: &LogStream,
        work: impl Fn(&mut Writer) -> Result<Option<T>, LogError> + Send + Sync + 'static,
    ) -> Result<T, LogError> {
        let (path, work) = (self.path(stream)?, Arc::new(work));
        let patience = Instant::now() + LOCK_PATIENCE;
        loop {
            let (writer, work) = (self.writer(&path), Arc::clone(&work));
            // The semaphore is never closed.
            let slot = self.slots.acquire().await.ok();
            let done = task::blocking("write log", move || {
                work(&mut writer.lock().unwrap_or_else(PoisonError::into_inner))
            });
            let done = done.await??;
            drop(slot);
            match done {
                Some(done) => return Ok(done),
                None if Instant::now() < patience => sleep(LOCK_RETRY).await,
                None => return Err(LogError::Locked { path }),
            }
        }
    }
}

/// A part of a path that cannot lead elsewhere.
fn segment(name: &str) -> Result<&str, LogError> {
    if name.len() > 255 {
        return Err(LogError::NameTooLong);
    }
    if name.is_empty() || name.starts_with('.') || name.contains(['/', '\\', '\0']) {
        return Err(LogError::Name(name.to_owned()));
    }
    Ok(name)
}

#[async_trait]
impl LogStore for FileLogStore {
    async fn append(&self, stream: &LogStream, entries: Vec<LogEntry>) -> Result<(), LogError> {
        if entries.is_empty() {
            return Ok(());
        }
        let durability = self.durability;
        let entries: Arc<[LogEntry]> = entries.into();
        self.with_writer(stream, move |writer| writer.append(&entries, durability))
            .await
    }

    async fn last_timestamp(&self, stream: &LogStream) -> Result<Option<Time>, LogError> {
        self.with_writer(stream, Writer::last).await
    }

    async fn poll(&self, stream: &LogStream, query: &PollQuery) -> Result<LogPage, LogError> {
        let start = query.next_token.as_deref().map(parse_token).transpose()?;
        let path = match self.path(stream) {
            Ok(path) => path,
            // No run can have such a name, so it has no log.
            Err(LogError::Name(_)) => return Ok(LogPage::default()),
            Err(error) => return Err(error),
        };
        let (query, offsets) = (query.clone(), Arc::clone(&self.offsets));
        task::blocking("read log", move || read::poll(&path, &query, start, &offsets)).await?
    }

    async fn check(&self) -> Result<&'static str, LogError> {
        let folder = self.root.join("projects");
        task::blocking("check the log store", move || probe::probe(&folder)).await??;
        Ok("a file was written, read and deleted")
    }

    fn release(&self, job: JobId) {
        let folder = job.to_string();
        let of_job = |path: &Path| path.parent().is_some_and(|parent| parent.ends_with(&folder));
        self.writers().retain(|path, _| !of_job(path));
    }
}

/// Python's `int()`: blanks around, a sign and underscores between digits are accepted.
fn parse_token(token: &str) -> Result<u64, LogError> {
    let text = token.trim();
    let digits = text.strip_prefix('+').unwrap_or(text);
    digits.parse().map_err(|_| LogError::Token(token.to_owned()))
}
