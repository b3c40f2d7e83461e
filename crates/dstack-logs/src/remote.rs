//! What stores behind an API have in common: events of limited size in limited batches ([`batch`]), each of which is
//! written once ([`ends`]), with patience ([`retry`]).

pub(crate) mod batch;
pub(crate) mod ends;
pub(crate) mod retry;

use async_trait::async_trait;
use dstack_units::Time;

use crate::{LogEntry, LogError, LogStream};
use batch::{Event, Limits};
use ends::Ends;

/// All but what a URL may have anywhere.
#[cfg(any(feature = "cloudwatch", feature = "gcp-logging"))]
pub(crate) const UNQUOTED: &percent_encoding::AsciiSet = &percent_encoding::NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'_')
    .remove(b'.')
    .remove(b'~');

/// A store that takes batches of events.
#[async_trait]
pub(crate) trait Remote: Send + Sync {
    /// What a batch may be.
    fn limits(&self) -> &Limits;

    /// The time of the last event of a stream, as far as the store can tell. Asked before the first write to a stream,
    /// and after a write whose end is not known.
    async fn last(&self, stream: &LogStream) -> Result<Option<Time>, LogError>;

    /// Writes a batch; tried again by itself where that helps.
    async fn write(&self, stream: &LogStream, batch: &[Event]) -> Result<(), LogError>;
}

/// Appends what is not there yet, batch by batch.
pub(crate) async fn append(
    store: &impl Remote,
    ends: &Ends,
    stream: &LogStream,
    entries: &[LogEntry],
) -> Result<(), LogError> {
    if entries.is_empty() {
        return Ok(());
    }
    let end = ends.of(stream);
    // Appends to a stream go one after the other.
    let mut end = end.lock().await;
    if !end.certain {
        let last = store.last(stream).await?;
        end.confirmed = end.confirmed.max(last);
    }
    // Certain again when everything is written: this may also be dropped half-way.
    end.certain = false;
    let fresh = entries
        .iter()
        .filter(|entry| end.confirmed.is_none_or(|confirmed| entry.timestamp > confirmed));
    for batch in batch::batches(fresh, store.limits()) {
        store.write(stream, &batch).await?;
        end.confirmed = batch.last().map(|event| event.timestamp).or(end.confirmed);
    }
    end.confirmed = end.confirmed.max(entries.last().map(|entry| entry.timestamp));
    end.certain = true;
    Ok(())
}
