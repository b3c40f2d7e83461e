//! One line of a log file: `{"timestamp":"…","log_source":"stdout","message":"…"}`.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use dstack_units::Time;
use serde::{Deserialize, Serialize};

use crate::{LogEntry, Source};

#[derive(Serialize, Deserialize)]
struct Line<'a> {
    timestamp: Time,
    log_source: Pipe,
    message: std::borrow::Cow<'a, str>,
    /// The bytes themselves where they are no UTF-8. dstack 0.22.5 ignores the field and shows the replaced text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    raw: Option<String>,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Pipe {
    Stdout,
    Stderr,
}

/// Appends the line, with its line end.
pub(super) fn encode(entry: &LogEntry, buffer: &mut Vec<u8>) {
    let message = String::from_utf8_lossy(&entry.message);
    let raw = matches!(message, std::borrow::Cow::Owned(_)).then(|| STANDARD.encode(&entry.message));
    let log_source = match entry.source {
        Source::Stdout => Pipe::Stdout,
        Source::Stderr => Pipe::Stderr,
    };
    let line = Line {
        timestamp: entry.timestamp,
        log_source,
        message,
        raw,
    };
    // Texts and times always serialize, and a vector always takes them.
    if serde_json::to_writer(&mut *buffer, &line).is_ok() {
        buffer.push(b'\n');
    }
}

/// `None` for what is no such line.
pub(super) fn decode(line: &[u8]) -> Option<LogEntry> {
    let line: Line<'_> = serde_json::from_slice(line).ok()?;
    let message = match line.raw {
        Some(raw) => Bytes::from(STANDARD.decode(raw).ok()?),
        None => Bytes::from(line.message.into_owned()),
    };
    let source = match line.log_source {
        Pipe::Stdout => Source::Stdout,
        Pipe::Stderr => Source::Stderr,
    };
    Some(LogEntry {
        timestamp: line.timestamp,
        source,
        message,
    })
}
