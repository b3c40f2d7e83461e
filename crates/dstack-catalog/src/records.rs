//! Splits CSV text into records and fields, reading as it goes.
//!
//! The dialect is that of the published files' reader: lines end with LF, CRLF or CR; a quote opens a quoted field
//! only at its start, is doubled inside, and whatever follows the closing one is appended; blank lines are skipped.

use std::io::{self, Read};
use std::ops::Range;

use memchr::{memchr, memchr3};

/// Bytes of one record, at most. Longer ones cannot be offers.
pub(crate) const MAX_RECORD: usize = 1 << 20;

/// Splits a stream into records.
pub(crate) struct Records<R> {
    source: R,
    buffer: Vec<u8>,
    start: usize,
    filled: usize,
    finished: bool,
    line: u64,
}

/// A record inside the reader's buffer.
#[derive(Debug)]
pub(crate) struct Record {
    pub(crate) bytes: Range<usize>,
    /// Number of the last line of the record; the first of the file is 1.
    pub(crate) line: u64,
    /// Longer than [`MAX_RECORD`]: `bytes` holds only its beginning.
    pub(crate) too_long: bool,
}

impl<R: Read> Records<R> {
    pub(crate) fn new(source: R) -> Self {
        Self {
            source,
            buffer: vec![0; 1 << 17],
            start: 0,
            filled: 0,
            finished: false,
            line: 0,
        }
    }

    /// The bytes of a record just returned.
    pub(crate) fn bytes(&self, record: &Record) -> &[u8] {
        self.buffer.get(record.bytes.clone()).unwrap_or(&[])
    }

    /// The next record that is not blank.
    pub(crate) fn next(&mut self) -> io::Result<Option<Record>> {
        loop {
            self.skip_newlines();
            let Some(record) = self.next_or_blank()? else {
                return Ok(None);
            };
            if !record.bytes.is_empty() {
                return Ok(Some(record));
            }
        }
    }

    /// Blank lines cost next to nothing, however many there are.
    fn skip_newlines(&mut self) {
        let pending = self.buffer.get(self.start..self.filled).unwrap_or(&[]);
        let blank = pending
            .iter()
            .position(|byte| *byte != b'\n')
            .unwrap_or(pending.len());
        self.start += blank;
        self.line += blank as u64;
    }

    fn next_or_blank(&mut self) -> io::Result<Option<Record>> {
        let mut scan = Scan::default();
        loop {
            let pending = self.buffer.get(self.start..self.filled).unwrap_or(&[]);
            if let Some((length, terminator)) = scan.find_end(pending, self.finished) {
                let bytes = self.start..self.start + length;
                self.start = bytes.end + terminator;
                self.line += scan.newlines + 1;
                return Ok(Some(Record {
                    bytes,
                    line: self.line,
                    too_long: false,
                }));
            }
            if self.finished {
                if pending.is_empty() {
                    return Ok(None);
                }
                let bytes = self.start..self.filled;
                self.start = self.filled;
                self.line += scan.newlines + 1;
                return Ok(Some(Record {
                    bytes,
                    line: self.line,
                    too_long: false,
                }));
            }
            if pending.len() > MAX_RECORD {
                return self.skip_long_line().map(Some);
            }
            self.fill()?;
        }
    }

    /// Drops the rest of a line that is too long, whatever quotes it has.
    fn skip_long_line(&mut self) -> io::Result<Record> {
        loop {
            let pending = self.buffer.get(self.start..self.filled).unwrap_or(&[]);
            if let Some(at) = memchr(b'\n', pending) {
                self.start += at + 1;
                break;
            }
            self.start = self.filled;
            if self.finished {
                break;
            }
            self.fill()?;
        }
        self.line += 1;
        Ok(Record {
            bytes: 0..1.min(self.filled),
            line: self.line,
            too_long: true,
        })
    }

    fn fill(&mut self) -> io::Result<()> {
        self.buffer.copy_within(self.start..self.filled, 0);
        self.filled -= self.start;
        self.start = 0;
        if self.filled == self.buffer.len() {
            self.buffer.resize(self.buffer.len() * 2, 0);
        }
        let free = self.buffer.get_mut(self.filled..).unwrap_or_default();
        loop {
            match self.source.read(free) {
                Ok(0) => self.finished = true,
                Ok(count) => self.filled += count.min(free.len()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(error),
            }
            return Ok(());
        }
    }
}

/// Looks for the end of a record; remembers how far it got when more bytes are needed.
#[derive(Default)]
struct Scan {
    at: usize,
    quoted: bool,
    newlines: u64,
}

impl Scan {
    /// Length of the record and of its line end; `None` when the end is not in `bytes`.
    fn find_end(&mut self, bytes: &[u8], finished: bool) -> Option<(usize, usize)> {
        loop {
            let rest = bytes.get(self.at..)?;
            if self.quoted {
                let Some(step) = memchr(b'"', rest) else {
                    self.count_newlines(rest);
                    self.at = bytes.len();
                    return None;
                };
                self.count_newlines(rest.get(..step).unwrap_or(&[]));
                match rest.get(step + 1) {
                    Some(b'"') => self.at += step + 2,
                    Some(_) => {
                        self.quoted = false;
                        self.at += step + 1;
                    }
                    None if finished => {
                        self.quoted = false;
                        self.at += step + 1;
                    }
                    None => {
                        self.at += step; // look at this quote again with what follows it
                        return None;
                    }
                }
                continue;
            }
            let Some(step) = memchr3(b'\n', b'\r', b'"', rest) else {
                self.at = bytes.len();
                return None;
            };
            let found = self.at + step;
            match rest.get(step) {
                Some(b'"') => {
                    let before = found.checked_sub(1).and_then(|before| bytes.get(before));
                    self.quoted = before.is_none_or(|byte| *byte == b',');
                    self.at = found + 1;
                }
                Some(b'\n') => return Some((found, 1)),
                _ => match rest.get(step + 1) {
                    Some(b'\n') => return Some((found, 2)),
                    None if !finished => {
                        self.at = found;
                        return None;
                    }
                    _ => return Some((found, 1)),
                },
            }
        }
    }

    fn count_newlines(&mut self, bytes: &[u8]) {
        self.newlines += memchr::memchr_iter(b'\n', bytes).count() as u64;
    }
}

/// Splits a record into fields: their unquoted bytes end to end in `text`, and where each ends in `ends`.
pub(crate) fn split_fields(record: &[u8], text: &mut Vec<u8>, ends: &mut Vec<usize>) {
    text.clear();
    ends.clear();
    let mut rest = record;
    loop {
        if let Some(quoted) = rest.strip_prefix(b"\"") {
            rest = unquote(quoted, text);
        }
        match memchr(b',', rest) {
            Some(comma) => {
                text.extend_from_slice(rest.get(..comma).unwrap_or(&[]));
                rest = rest.get(comma + 1..).unwrap_or(&[]);
                ends.push(text.len());
            }
            None => {
                text.extend_from_slice(rest);
                ends.push(text.len());
                return;
            }
        }
    }
}

/// Copies a quoted field without its quotes; returns what follows the closing one.
fn unquote<'a>(mut rest: &'a [u8], text: &mut Vec<u8>) -> &'a [u8] {
    loop {
        let Some(quote) = memchr(b'"', rest) else {
            text.extend_from_slice(rest);
            return &[];
        };
        text.extend_from_slice(rest.get(..quote).unwrap_or(&[]));
        rest = rest.get(quote + 1..).unwrap_or(&[]);
        match rest.strip_prefix(b"\"") {
            Some(after) => {
                text.push(b'"');
                rest = after;
            }
            None => return rest,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Hands out one byte at a time, to try every place where a buffer may end.
    struct Slowly<'a>(&'a [u8]);

    impl Read for Slowly<'_> {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            let count = self.0.len().min(1).min(buffer.len());
            buffer[..count].copy_from_slice(&self.0[..count]);
            self.0 = &self.0[count..];
            Ok(count)
        }
    }

    fn parse<R: Read>(source: R) -> Vec<(u64, Vec<String>)> {
        let mut records = Records::new(source);
        let (mut text, mut ends) = (Vec::new(), Vec::new());
        let mut found = Vec::new();
        while let Some(record) = records.next().unwrap() {
            split_fields(records.bytes(&record), &mut text, &mut ends);
            let mut start = 0;
            let fields = ends.iter().map(|end| {
                let field = String::from_utf8(text[start..*end].to_vec()).unwrap();
                start = *end;
                field
            });
            found.push((record.line, fields.collect()));
        }
        found
    }

    #[test]
    fn records_follow_the_dialect() {
        let text = "a,b\r\n\r\n1,\"x\"\"y\"\n\"p\nq\",\"z\"w,it\"s\r,\r\n\"open,\nend";
        let expected: Vec<(u64, Vec<String>)> = [
            (1, vec!["a", "b"]),
            (3, vec!["1", "x\"y"]),
            (5, vec!["p\nq", "zw", "it\"s"]),
            (6, vec!["", ""]),
            (8, vec!["open,\nend"]),
        ]
        .map(|(line, fields)| (line, fields.into_iter().map(str::to_owned).collect()))
        .to_vec();
        assert_eq!(parse(text.as_bytes()), expected);
        assert_eq!(parse(Slowly(text.as_bytes())), expected);
    }

    #[test]
    fn a_record_without_end_is_dropped_without_keeping_it() {
        let mut text = b"ok\n".to_vec();
        text.extend(std::iter::repeat_n(b'x', 3 * MAX_RECORD));
        text.extend(b"\nlast\n");
        let mut records = Records::new(text.as_slice());
        let mut seen = Vec::new();
        while let Some(record) = records.next().unwrap() {
            seen.push((record.line, record.too_long));
        }
        assert_eq!(seen, [(1, false), (2, true), (3, false)]);
        assert!(records.buffer.len() <= 4 * MAX_RECORD);
    }
}
