//! Appending: one writer per file, all of a batch or nothing.

use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use dstack_units::Time;
use fs_err::os::unix::fs::OpenOptionsExt;
use fs_err::{File, OpenOptions};

use super::{Durability, line};
use crate::{LogEntry, LogError};

/// Written at a time: bounds the copy of a batch that is in memory.
const CHUNK: usize = 1 << 20;

/// The end of one file. Opened when first needed; closed after an error, so that the next use looks at the file again.
#[derive(Debug)]
pub(super) struct Writer {
    path: PathBuf,
    open: Option<Open>,
}

#[derive(Debug)]
struct Open {
    file: File,
    length: u64,
    last: Option<Time>,
}

impl Writer {
    pub(super) const fn closed(path: PathBuf) -> Self {
        Self { path, open: None }
    }

    /// Timestamp of the last entry in the file.
    pub(super) fn last(&mut self) -> Result<Option<Time>, LogError> {
        if self.open.is_none() && !self.path.exists() {
            return Ok(None);
        }
        self.opened()
            .map(|open| open.last)
            .map_err(|source| self.error(source))
    }

    pub(super) fn append(&mut self, entries: &[LogEntry], durability: Durability) -> Result<(), LogError> {
        self.opened()
            .and_then(|open| open.append(entries, durability))
            .map_err(|source| {
                self.open = None;
                self.error(source)
            })
    }

    fn opened(&mut self) -> io::Result<&mut Open> {
        if self.open.is_none() {
            self.open = Some(Open::at(&self.path)?);
        }
        self.open
            .as_mut()
            .ok_or_else(|| io::Error::other("the log is closed"))
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
    /// Opens the file and cuts off a line that a crash left incomplete.
    fn at(path: &Path) -> io::Result<Self> {
        if let Some(parent) = path.parent() {
            fs_err::create_dir_all(parent)?;
        }
        let mut file = OpenOptions::new()
            .read(true)
            .append(true)
            .create(true)
            // Jobs print what only their users are to see.
            .mode(0o600)
            .open(path)?;
        let size = file.metadata()?.len();
        let end = find_end(&mut file, size)?;
        if end.length < size {
            file.set_len(end.length)?;
        }
        Ok(Self {
            file,
            length: end.length,
            last: end.last,
        })
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
                // A full disk may have taken a part: nothing of the batch may stay.
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
                length += flush(&mut self.file, &mut buffer)?;
            }
        }
        length += flush(&mut self.file, &mut buffer)?;
        if durability == Durability::Synced && length > self.length {
            self.file.sync_data()?;
        }
        Ok((length, last))
    }
}

fn flush(file: &mut File, buffer: &mut Vec<u8>) -> io::Result<u64> {
    file.write_all(buffer)?;
    let written = u64::try_from(buffer.len()).unwrap_or(0);
    buffer.clear();
    Ok(written)
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
