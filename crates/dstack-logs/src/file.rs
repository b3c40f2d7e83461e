//! Logs in files: `<root>/projects/<project>/logs/<run>/<job submission>/{job,runner}.log`, one JSON object a line.

mod line;
mod read;
mod write;

#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use dstack_system::task;
use dstack_units::Time;
use tokio::sync::Semaphore;

use crate::{LogEntry, LogError, LogPage, LogStore, LogStream, PollQuery};
use read::LineOffsets;
use write::Writer;

/// Writers kept open. A closed one is opened again at the cost of reading the end of its file.
const OPEN_WRITERS: usize = 256;
/// Writes under way at a time: bounds threads and memory, and keeps one loud job from starving the others.
const CONCURRENT_WRITES: usize = 8;

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
        }
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
        let mut writers = self.writers.lock().unwrap_or_else(PoisonError::into_inner);
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
        Arc::clone(
            writers
                .entry(path.to_owned())
                .or_insert_with(|| Arc::new(Mutex::new(Writer::closed(path.to_owned())))),
        )
    }

    async fn with_writer<T: Send + 'static>(
        &self,
        stream: &LogStream,
        work: impl FnOnce(&mut Writer) -> Result<T, LogError> + Send + 'static,
    ) -> Result<T, LogError> {
        let writer = self.writer(&self.path(stream)?);
        // The semaphore is never closed.
        let _slot = self.slots.acquire().await.ok();
        task::blocking("write log", move || {
            work(&mut writer.lock().unwrap_or_else(PoisonError::into_inner))
        })
        .await?
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
}

/// Python's `int()`: blanks around, a sign and underscores between digits are accepted.
fn parse_token(token: &str) -> Result<u64, LogError> {
    let text = token.trim();
    let digits = text.strip_prefix('+').unwrap_or(text);
    digits.parse().map_err(|_| LogError::Token(token.to_owned()))
}
