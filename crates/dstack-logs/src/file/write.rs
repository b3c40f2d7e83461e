//! Appending: all of a batch or nothing, by one server at a time.

use std::fs::{DirBuilder, TryLockError};
#[cfg(not(test))]
use std::io::Write as _;
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
#[cfg(test)]
use std::sync::Arc;

use dstack_units::Time;
use fs_err::os::unix::fs::OpenOptionsExt;
use fs_err::{File, OpenOptions};

use super::{Durability, line};
use crate::{LogEntry, LogError};

/// Written at a time: bounds the copy of a batch that is in memory.
const CHUNK: usize = 1 << 20;

/// Output often has secrets in it: it is for the server's user only.
const FILE_MODE: u32 = 0o600;
const FOLDER_MODE: u32 = 0o700;

/// The end of one file. Opened when first needed; closed after an error, so that the next use looks at the file again.
#[derive(Debug)]
pub(super) struct Writer {
    path: PathBuf,
    open: Option<Open>,
    #[cfg(test)]
    disk: Arc<super::tests::Disk>,
}

#[derive(Debug)]
struct Open {
    file: File,
    /// As far as it was looked at.
    length: u64,
    last: Option<Time>,
    #[cfg(test)]
    disk: Arc<super::tests::Disk>,
}

impl Writer {
    pub(super) const fn closed(path: PathBuf, #[cfg(test)] disk: Arc<super::tests::Disk>) -> Self {
        Self {
            path,
            open: None,
            #[cfg(test)]
            disk,
        }
    }

    /// Timestamp of the last entry in the file; outer `None`: another server is writing to it.
    pub(super) fn last(&mut self) -> Result<Option<Option<Time>>, LogError> {
        if self.open.is_none() && !self.path.exists() {
            return Ok(Some(None));
        }
        self.locked(|open| Ok(open.last))
    }

    /// Appends all of the entries, or nothing; `None`: another server is writing to the file.
    pub(super) fn append(
        &mut self,
        entries: &[LogEntry],
        durability: Durability,
    ) -> Result<Option<()>, LogError> {
        self.locked(|open| open.append(entries, durability))
    }

    /// Does some work while no other server appends, knowing all that others have appended. The file is closed after a
    /// failure.
    fn locked<T>(&mut self, work: impl FnOnce(&mut Open) -> io::Result<T>) -> Result<Option<T>, LogError> {
        let done = self.try_locked(work);
        if done.is_err() {
            self.open = None;
        }
        done.map_err(|source| self.error(source))
    }

    fn try_locked<T>(&mut self, work: impl FnOnce(&mut Open) -> io::Result<T>) -> io::Result<Option<T>> {
        let mut open = match self.open.take() {
            Some(open) if !open.is_deleted()? => open,
            _ => Open::at(
                &self.path,
                #[cfg(test)]
                Arc::clone(&self.disk),
            )?,
        };
        if !open.lock()? {
            self.open = Some(open);
            return Ok(None);
        }
        // The lock ends with the file where this fails.
        open.catch_up()?;
        let done = work(&mut open)?;
        // Closing the file ends the lock as well.
        if open.file.file().unlock().is_ok() {
            self.open = Some(open);
        }
        Ok(Some(done))
    }

    fn error(&self, source: io::Error) -> LogError {
        if source.kind() == io::ErrorKind::InvalidFilename {
            return LogError::NameTooLong;
        }
        LogError::Write {
            path: self.path.clone(),
            source,
        }
    }
}

impl Open {
    fn at(path: &Path, #[cfg(test)] disk: Arc<super::tests::Disk>) -> io::Result<Self> {
        if let Some(parent) = path.parent() {
            DirBuilder::new()
                .recursive(true)
                .mode(FOLDER_MODE)
                .create(parent)?;
        }
        let file = OpenOptions::new()
            .read(true)
            .append(true)
            .create(true)
            .mode(FILE_MODE)
            .open(path)?;
        Ok(Self {
            file,
            length: 0,
            last: None,
            #[cfg(test)]
            disk,
        })
    }

    /// Whether somebody has deleted the file since it was opened: what is written to it would be lost.
    fn is_deleted(&self) -> io::Result<bool> {
        Ok(self.file.metadata()?.nlink() == 0)
    }

    /// Locks the file; false when another server has it. A file system without locks is no place for several servers.
    fn lock(&self) -> io::Result<bool> {
        match self.file.file().try_lock() {
            Ok(()) => Ok(true),
            Err(TryLockError::WouldBlock) => Ok(false),
            Err(TryLockError::Error(error)) if has_no_locks(&error) => Ok(true),
            Err(TryLockError::Error(error)) => Err(error),
        }
    }

    /// Takes in what others have appended, and cuts off a line that a crash left incomplete. Nobody is writing: the file is
    /// locked.
    fn catch_up(&mut self) -> io::Result<()> {
        let size = self.file.metadata()?.len();
        if size == self.length {
            return Ok(());
        }
        let end = find_end(&mut self.file, size)?;
        if end.length < size {
            self.file.set_len(end.length)?;
        }
        (self.length, self.last) = (end.length, end.last);
        Ok(())
    }

    fn append(&mut self, entries: &[LogEntry], durability: Durability) -> io::Result<()> {
        let written = self.write(entries, durability);
        match written {
            Ok((length, last)) => {
                self.length = length;
                self.last = last;
                Ok(())
            }
            Err(error) => {
                // A full disk may have taken a part: nothing of the batch may stay. All before it does, whoever wrote it.
                self.file.set_len(self.length)?;
                Err(error)
            }
        }
    }

    fn write(&mut self, entries: &[LogEntry], durability: Durability) -> io::Result<(u64, Option<Time>)> {
        let (mut length, mut last) = (self.length, self.last);
        let mut buffer = Vec::new();
        for entry in entries {
            if last.is_some_and(|last| entry.timestamp <= last) {
                continue;
            }
            line::encode(entry, &mut buffer);
            last = Some(entry.timestamp);
            if buffer.len() >= CHUNK {
                length += self.flush(&mut buffer)?;
            }
        }
        length += self.flush(&mut buffer)?;
        if durability == Durability::Synced && length > self.length {
            self.file.sync_data()?;
        }
        Ok((length, last))
    }

    fn flush(&mut self, buffer: &mut Vec<u8>) -> io::Result<u64> {
        #[cfg(test)]
        self.disk.write(&mut self.file, buffer)?;
        #[cfg(not(test))]
        self.file.write_all(buffer)?;
        let written = u64::try_from(buffer.len()).unwrap_or(0);
        buffer.clear();
        Ok(written)
    }
}

fn has_no_locks(error: &io::Error) -> bool {
    /// `ENOLCK`: no locks available, as on NFS without a lock daemon.
    const NO_LOCKS: i32 = 37;
    error.kind() == io::ErrorKind::Unsupported || error.raw_os_error() == Some(NO_LOCKS)
}

struct End {
    length: u64,
    last: Option<Time>,
}

/// Reads backwards until the last complete line that is one of ours.
fn find_end(file: &mut File, size: u64) -> io::Result<End> {
    const STEP: u64 = 1 << 16;
    let mut tail: Vec<u8> = Vec::new();
    let mut start = size;
    let mut length = None;
    while start > 0 {
        let from = start.saturating_sub(STEP);
        let mut chunk = vec![0; usize::try_from(start - from).unwrap_or(0)];
        file.seek(SeekFrom::Start(from))?;
        file.read_exact(&mut chunk)?;
        chunk.extend_from_slice(&tail);
        tail = chunk;
        start = from;
        if length.is_none() {
            let complete = memchr::memrchr(b'\n', &tail).map(|position| position + 1);
            if let Some(complete) = complete {
                tail.truncate(complete);
                length = Some(start + u64::try_from(complete).unwrap_or(0));
            }
        }
        if length.is_some()
            && let Some(last) = last_entry(&tail, start == 0)
        {
            return Ok(End {
                length: length.unwrap_or(0),
                last: Some(last),
            });
        }
    }
    Ok(End {
        length: length.unwrap_or(0),
        last: None,
    })
}

/// Timestamp of the last readable line of `tail`, whose first line is incomplete unless `whole`.
fn last_entry(tail: &[u8], whole: bool) -> Option<Time> {
    let first = match whole {
        true => 0,
        false => memchr::memchr(b'\n', tail)? + 1,
    };
    let lines = tail.get(first..)?;
    lines
        .split(|byte| *byte == b'\n')
        .rev()
        .find_map(line::decode)
        .map(|entry| entry.timestamp)
}
