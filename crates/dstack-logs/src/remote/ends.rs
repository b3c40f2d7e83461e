//! Where streams end: what is later is new, everything else was written before.

use std::collections::HashMap;
use std::sync::Arc;

use dstack_system::Locked;
use dstack_units::Time;

use crate::LogStream;

/// Streams that are remembered. Of one that is forgotten the store is asked again.
const REMEMBERED: usize = 4096;

/// The end of a stream.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct End {
    /// Everything up to here is stored.
    pub(crate) confirmed: Option<Time>,
    /// Nothing later is stored.
    pub(crate) certain: bool,
}

type SharedEnd = Arc<tokio::sync::Mutex<End>>;

/// The ends of all streams that are written to.
#[derive(Debug, Default)]
pub(crate) struct Ends {
    streams: Locked<HashMap<LogStream, SharedEnd>>,
}

impl Ends {
    /// The end of a stream; locked while the stream is written to.
    pub(crate) fn of(&self, stream: &LogStream) -> SharedEnd {
        let mut streams = self.streams.lock();
        if streams.len() >= REMEMBERED && !streams.contains_key(stream) {
            // Half of those that nobody writes to; which ones does not matter.
            let mut keep = false;
            streams.retain(|_, end| {
                keep = !keep;
                keep || Arc::strong_count(end) > 1
            });
        }
        Arc::clone(streams.entry(stream.clone()).or_default())
    }
}
