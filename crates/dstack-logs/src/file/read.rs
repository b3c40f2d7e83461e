//! Reading pages, forwards by line number and backwards by byte offset.

use std::collections::VecDeque;
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use dstack_system::Locked;
use fs_err::File;

use super::line;
use crate::{LogEntry, LogError, LogPage, PollQuery};

/// Where lines begin, for the last pages read: without it page n would read all pages before it.
#[derive(Debug, Default)]
pub(super) struct LineOffsets {
    recent: Locked<VecDeque<(PathBuf, u64, u64)>>,
}

impl LineOffsets {
    const KEPT: usize = 256;

    fn find(&self, path: &Path, line: u64) -> Option<u64> {
        let recent = self.recent.lock();
        recent
            .iter()
            .find(|(known, number, _)| *number == line && known == path)
            .map(|(_, _, offset)| *offset)
    }

    fn remember(&self, path: &Path, line: u64, offset: u64) {
        let mut recent = self.recent.lock();
        if recent.len() >= Self::KEPT {
            recent.pop_front();
        }
        recent.push_back((path.to_owned(), line, offset));
    }
}

pub(super) fn poll(
    path: &Path,
    query: &PollQuery,
    start: Option<u64>,
    offsets: &LineOffsets,
) -> Result<LogPage, LogError> {
    let read = File::open(path).and_then(|file| match query.descending {
        true => descending(file, query, start),
        false => ascending(file, path, query, start.unwrap_or(0), offsets),
    });
    read.or_else(|source| match source.kind() {
        io::ErrorKind::NotFound => Ok(LogPage::default()),
        io::ErrorKind::InvalidFilename => Err(LogError::NameTooLong),
        _ => Err(LogError::Read {
            path: path.to_owned(),
            source,
        }),
    })
}

fn ascending(
    file: File,
    path: &Path,
    query: &PollQuery,
    start_line: u64,
    offsets: &LineOffsets,
) -> io::Result<LogPage> {
    let mut reader = BufReader::with_capacity(1 << 16, file);
    let mut page = LogPage::default();
    let limit = query.limit.max(1);
    let (mut number, mut offset) = (0, 0);
    if let Some(known) = offsets.find(path, start_line) {
        (number, offset) = (start_line, reader.seek(SeekFrom::Start(known))?);
    }
    let mut bytes = Vec::new();
    while let Some(length) = next_line(&mut reader, &mut bytes)? {
        number += 1;
        offset += length;
        if number <= start_line {
            continue;
        }
        let Some(entry) = line::decode(&bytes) else {
            continue;
        };
        if query.start_time.is_some_and(|start| entry.timestamp <= start) {
            continue;
        }
        if query.end_time.is_some_and(|end| entry.timestamp >= end) {
            break;
        }
        page.entries.push(entry);
        if page.entries.len() >= limit {
            if next_line(&mut reader, &mut bytes)?.is_some() {
                page.next_token = Some(number.to_string());
                offsets.remember(path, number, offset);
            }
            break;
        }
    }
    Ok(page)
}

/// Reads one complete line without its end; a last line without end is still being written.
fn next_line(reader: &mut impl BufRead, bytes: &mut Vec<u8>) -> io::Result<Option<u64>> {
    bytes.clear();
    let length = reader.read_until(b'\n', bytes)?;
    if bytes.pop() != Some(b'\n') {
        return Ok(None);
    }
    Ok(Some(u64::try_from(length).unwrap_or(0)))
}

fn descending(file: File, query: &PollQuery, start: Option<u64>) -> io::Result<LogPage> {
    let limit = query.limit.max(1);
    let size = file.metadata()?.len();
    // Tokens point to the begin of the last line returned: the next page ends before it.
    let mut lines = ReversedLines::new(file, start.map_or(size, |start| start.min(size)));
    let mut found: Vec<(LogEntry, u64)> = Vec::new();
    while let Some((bytes, offset)) = lines.next()? {
        let Some(entry) = line::decode(&bytes) else {
            continue;
        };
        if query.end_time.is_some_and(|end| entry.timestamp > end) {
            continue;
        }
        if query.start_time.is_some_and(|start| entry.timestamp <= start) {
            break;
        }
        found.push((entry, offset));
        if found.len() > limit {
            break;
        }
    }
    let more = found.len() > limit;
    found.truncate(limit);
    let next_token = found
        .last()
        .filter(|_| more)
        .map(|(_, offset)| offset.to_string());
    Ok(LogPage {
        external_url: None,
        entries: found.into_iter().map(|(entry, _)| entry).collect(),
        next_token,
    })
}

/// Complete lines before a byte offset, last first, with their offsets.
struct ReversedLines {
    file: File,
    /// What of the file before `cursor + buffer.len()` is not returned yet: bytes from `cursor` on are in `buffer`.
    cursor: u64,
    buffer: Vec<u8>,
    /// The end of the last line has been found: what is behind it is incomplete.
    aligned: bool,
}

impl ReversedLines {
    const STEP: u64 = 1 << 16;

    fn new(file: File, end: u64) -> Self {
        Self {
            file,
            cursor: end,
            buffer: Vec::new(),
            aligned: false,
        }
    }

    fn next(&mut self) -> io::Result<Option<(Vec<u8>, u64)>> {
        loop {
            if !self.aligned
                && let Some(end) = memchr::memrchr(b'\n', &self.buffer)
            {
                self.buffer.truncate(end);
                self.aligned = true;
            }
            if self.aligned {
                if let Some(before) = memchr::memrchr(b'\n', &self.buffer) {
                    let line = self.buffer.split_off(before + 1);
                    self.buffer.truncate(before);
                    return Ok(Some((line, self.cursor + u64::try_from(before + 1).unwrap_or(0))));
                }
                if self.cursor == 0 {
                    self.aligned = false;
                    return Ok(Some((std::mem::take(&mut self.buffer), 0)));
                }
            }
            if self.cursor == 0 {
                return Ok(None);
            }
            self.fill()?;
        }
    }

    fn fill(&mut self) -> io::Result<()> {
        let from = self.cursor.saturating_sub(Self::STEP);
        let mut chunk = vec![0; usize::try_from(self.cursor - from).unwrap_or(0)];
        self.file.seek(SeekFrom::Start(from))?;
        self.file.read_exact(&mut chunk)?;
        chunk.append(&mut self.buffer);
        self.buffer = chunk;
        self.cursor = from;
        Ok(())
    }
}
