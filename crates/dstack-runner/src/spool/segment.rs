//! One file of the spool: records of a kind, a timestamp and a message, appended only.

use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use fs_err::os::unix::fs::OpenOptionsExt;

use dstack_agent_api::runner::LogEvent;
use dstack_agent_api::stream::{Gap, StreamLine};

use super::{Cursor, MAX_EVENT_BYTES};

/// kind (1), timestamp (8), length (4), all little-endian.
const HEADER_BYTES: usize = 13;
/// Read at once: some records of the largest size.
const READ_BYTES: usize = 8 * (HEADER_BYTES + MAX_EVENT_BYTES);

/// What a record holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// Output of the job.
    Log,
    /// The runner's own log.
    RunnerLog,
}

/// A place within a segment, right after a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Place {
    segment: u64,
    offset: u64,
    /// Log bytes of the whole spool up to here.
    pub(super) bytes_before: u64,
}

/// A segment that is written; its file is removed when it and all views of it are gone.
#[derive(Debug)]
pub(super) struct Segment {
    number: u64,
    file: Arc<Removed>,
    bytes: u64,
    bytes_before: u64,
    log_bytes: u64,
    last_timestamp: i64,
}

/// An open file that was unlinked at once: nothing stays behind when the process dies.
#[derive(Debug)]
struct Removed(std::fs::File);

impl Segment {
    /// A new file; `bytes_before`: log bytes in the segments before it.
    pub(super) fn create(number: u64, path: &Path, bytes_before: u64) -> io::Result<Self> {
        let file = fs_err::OpenOptions::new()
            .create_new(true)
            .read(true)
            .write(true)
            .mode(0o600)
            .open(path)?;
        fs_err::remove_file(path)?;
        Ok(Self {
            number,
            file: Arc::new(Removed(file.into_file())),
            bytes: 0,
            bytes_before,
            log_bytes: 0,
            last_timestamp: 0,
        })
    }

    /// Bytes on disk.
    pub(super) const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Log bytes of the spool before this segment.
    pub(super) const fn bytes_before(&self) -> u64 {
        self.bytes_before
    }

    /// Log bytes of the spool up to the end of this segment.
    pub(super) const fn bytes_after(&self) -> u64 {
        self.bytes_before + self.log_bytes
    }

    /// Timestamp of its last record; 0 when it is empty.
    pub(super) const fn last_timestamp(&self) -> i64 {
        self.last_timestamp
    }

    /// Appends a record; after an error the segment is as before.
    pub(super) fn append(&mut self, kind: Kind, timestamp: i64, message: &[u8]) -> io::Result<()> {
        let length = u32::try_from(message.len()).map_err(io::Error::other)?;
        let mut record = Vec::with_capacity(HEADER_BYTES + message.len());
        record.push(match kind {
            Kind::Log => 0,
            Kind::RunnerLog => 1,
        });
        record.extend_from_slice(&timestamp.to_le_bytes());
        record.extend_from_slice(&length.to_le_bytes());
        record.extend_from_slice(message);
        self.file.0.write_all_at(&record, self.bytes)?;
        self.bytes += record.len() as u64;
        self.log_bytes += message.len() as u64;
        self.last_timestamp = timestamp;
        Ok(())
    }

    /// What is written so far, for reading while more is appended.
    pub(super) fn view(&self) -> View {
        View {
            number: self.number,
            file: Arc::clone(&self.file),
            bytes: self.bytes,
            bytes_before: self.bytes_before,
            bytes_after: self.bytes_after(),
            last_timestamp: self.last_timestamp,
        }
    }
}

/// The written part of a segment at one moment.
#[derive(Debug)]
pub(super) struct View {
    number: u64,
    file: Arc<Removed>,
    bytes: u64,
    bytes_before: u64,
    bytes_after: u64,
    last_timestamp: i64,
}

impl View {
    /// Reads the records after the cursor.
    pub(super) fn reader(self, cursor: &Cursor) -> Reader {
        let start = Place {
            segment: self.number,
            offset: 0,
            bytes_before: self.bytes_before,
        };
        let place = cursor
            .place
            .filter(|place| place.segment == self.number)
            .unwrap_or(start);
        Reader {
            after: cursor.timestamp,
            place,
            view: self,
            buffer: Vec::new(),
            position: 0,
        }
    }
}

/// Reads records in order.
#[derive(Debug)]
pub(super) struct Reader {
    view: View,
    after: i64,
    place: Place,
    buffer: Vec<u8>,
    position: usize,
}

impl Reader {
    /// The next record after the cursor, and the place behind it. A file that cannot be read is a gap.
    pub(super) fn next(&mut self) -> Option<(StreamLine, Place)> {
        while self.place.offset < self.view.bytes {
            let Some((kind, timestamp, message)) = self.record() else {
                return Some(self.unreadable());
            };
            if timestamp > self.after {
                let event = LogEvent { message, timestamp };
                let event = if kind == 0 {
                    StreamLine::Log(event)
                } else {
                    StreamLine::RunnerLog(event)
                };
                return Some((event, self.place));
            }
        }
        None
    }

    fn record(&mut self) -> Option<(u8, i64, Vec<u8>)> {
        let whole = match parse(self.buffer.get(self.position..).unwrap_or_default()) {
            Some(record) => record,
            None => {
                self.fill().ok()?;
                parse(&self.buffer)?
            }
        };
        let length = HEADER_BYTES + whole.2.len();
        self.position += length;
        self.place.offset += length as u64;
        self.place.bytes_before += whole.2.len() as u64;
        Some(whole)
    }

    fn fill(&mut self) -> io::Result<()> {
        let left = usize::try_from(self.view.bytes - self.place.offset).unwrap_or(usize::MAX);
        self.buffer.resize(left.min(READ_BYTES), 0);
        self.position = 0;
        self.view
            .file
            .0
            .read_exact_at(&mut self.buffer, self.place.offset)
    }

    fn unreadable(&mut self) -> (StreamLine, Place) {
        let lost_bytes = self.view.bytes_after.saturating_sub(self.place.bytes_before);
        self.place.offset = self.view.bytes;
        self.place.bytes_before = self.view.bytes_after;
        (
            StreamLine::Gap(Gap {
                timestamp: self.view.last_timestamp,
                lost_bytes,
            }),
            self.place,
        )
    }
}

fn parse(bytes: &[u8]) -> Option<(u8, i64, Vec<u8>)> {
    let (kind, rest) = bytes.split_first()?;
    let (timestamp, rest) = rest.split_first_chunk::<8>()?;
    let (length, rest) = rest.split_first_chunk::<4>()?;
    let length = usize::try_from(u32::from_le_bytes(*length)).ok()?;
    Some((
        *kind,
        i64::from_le_bytes(*timestamp),
        rest.get(..length)?.to_vec(),
    ))
}
