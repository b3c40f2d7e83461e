//! From entries of any size to batches that a store accepts.

use std::time::Duration;

use dstack_units::Time;

use crate::LogEntry;

/// What a store accepts.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    /// Events in a batch.
    pub(crate) events: usize,
    /// Bytes of a batch: texts, with `overhead` for each.
    pub(crate) bytes: usize,
    /// Counted besides the bytes of each text.
    pub(crate) overhead: usize,
    /// Bytes of a text; longer ones are split.
    pub(crate) text: usize,
    /// Time between the first and the last event of a batch.
    pub(crate) span: Duration,
}

/// An entry, or a piece of one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Event {
    /// Of the entry.
    pub(crate) timestamp: Time,
    /// Which piece of the entry.
    pub(crate) piece: usize,
    /// Never empty. What was no UTF-8 is replaced, as dstack 0.22.5 does.
    pub(crate) text: String,
}

/// Batches in order. The pieces of an entry are in one batch if one can hold them, so that it is stored whole or not at
/// all; empty entries are left out.
pub(crate) fn batches<'a>(
    entries: impl IntoIterator<Item = &'a LogEntry>,
    limits: &Limits,
) -> Vec<Vec<Event>> {
    let mut done = Vec::new();
    let mut batch = Batch::default();
    for entry in entries {
        let pieces = split(entry, limits.text);
        if !batch.has_room(&pieces, limits) {
            done.extend(batch.take());
        }
        for piece in pieces {
            if !batch.has_room(std::slice::from_ref(&piece), limits) {
                done.extend(batch.take());
            }
            batch.push(piece, limits);
        }
    }
    done.extend(batch.take());
    done
}

#[derive(Debug, Default)]
struct Batch {
    events: Vec<Event>,
    bytes: usize,
}

impl Batch {
    fn has_room(&self, pieces: &[Event], limits: &Limits) -> bool {
        let bytes: usize = pieces
            .iter()
            .map(|piece| piece.text.len() + limits.overhead)
            .sum();
        let span = match (self.events.first(), pieces.last()) {
            (Some(first), Some(last)) => last.timestamp.since(first.timestamp),
            _ => Duration::ZERO,
        };
        self.events.len() + pieces.len() <= limits.events
            && self.bytes + bytes <= limits.bytes
            && span <= limits.span
    }

    fn push(&mut self, piece: Event, limits: &Limits) {
        self.bytes += piece.text.len() + limits.overhead;
        self.events.push(piece);
    }

    fn take(&mut self) -> Option<Vec<Event>> {
        let batch = std::mem::take(self);
        (!batch.events.is_empty()).then_some(batch.events)
    }
}

fn split(entry: &LogEntry, most: usize) -> Vec<Event> {
    let text = String::from_utf8_lossy(&entry.message);
    let mut rest = text.as_ref();
    let mut pieces = Vec::new();
    while !rest.is_empty() {
        // A character has four bytes at most, and a limit is never that small.
        let (piece, after) = rest.split_at(rest.floor_char_boundary(most.max(4)));
        pieces.push(Event {
            timestamp: entry.timestamp,
            piece: pieces.len(),
            text: piece.to_owned(),
        });
        rest = after;
    }
    pieces
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use proptest::prelude::*;

    use super::*;
    use crate::Source;

    fn entry(millis: i64, message: &[u8]) -> LogEntry {
        LogEntry {
            timestamp: Time::from_millis(millis),
            source: Source::Stdout,
            message: Bytes::copy_from_slice(message),
        }
    }

    const LIMITS: Limits = Limits {
        events: 4,
        bytes: 64,
        overhead: 6,
        text: 20,
        span: Duration::from_millis(100),
    };

    #[test]
    fn an_entry_that_fits_into_a_batch_is_not_spread_over_two() {
        let entries = [entry(1, &[b'a'; 20]), entry(2, &[b'b'; 39])];
        let batches = batches(&entries, &LIMITS);
        let sizes: Vec<Vec<usize>> = batches
            .iter()
            .map(|batch| batch.iter().map(|event| event.text.len()).collect())
            .collect();
        assert_eq!(sizes, [vec![20], vec![20, 19]]);
    }

    proptest! {
        #[test]
        fn nothing_is_lost_and_every_limit_is_kept(
            messages in prop::collection::vec((1_i64..80, ".{0,90}"), 0..20)
        ) {
            let mut now = 0;
            let entries: Vec<LogEntry> = messages
                .iter()
                .map(|(later, text)| {
                    now += later;
                    entry(now, text.as_bytes())
                })
                .collect();
            let batches = batches(&entries, &LIMITS);
            for batch in &batches {
                prop_assert!(!batch.is_empty() && batch.len() <= LIMITS.events);
                let bytes: usize = batch.iter().map(|event| event.text.len() + LIMITS.overhead).sum();
                prop_assert!(bytes <= LIMITS.bytes);
                prop_assert!(batch.iter().all(|event| !event.text.is_empty() && event.text.len() <= LIMITS.text));
                let span = batch[batch.len() - 1].timestamp.since(batch[0].timestamp);
                prop_assert!(span <= LIMITS.span);
            }
            let text: String = batches.iter().flatten().map(|event| event.text.as_str()).collect();
            let all: String = messages.iter().map(|(_, text)| text.as_str()).collect();
            prop_assert_eq!(text, all);
        }
    }
}
