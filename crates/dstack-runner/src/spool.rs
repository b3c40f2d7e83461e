//! What the job did, on disk until the server has it: logs in order, state changes between them.
//!
//! One sequence numbers everything: strictly increasing milliseconds, `max(previous + 1, now)`, so that a cursor
//! never skips an event (dstack 0.22.5's counter saturates at 1000 events a second). Logs go to segment files;
//! an acknowledgement drops whole segments, and when the server does not come the oldest are dropped at a limit
//! and a gap event stands in their place. State changes are few and stay in memory: they are never lost.

mod segment;

use std::collections::VecDeque;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::watch;

use dstack_agent_api::runner::{JobStateEvent, LogEvent};
use dstack_agent_api::stream::{Gap, StreamLine};
use dstack_system::clock::SharedClock;

use segment::{Kind, Place, Segment, View};

/// Segments of this size are dropped as a whole.
const SEGMENT_BYTES: u64 = 4 * 1024 * 1024;
/// One log event is at most so long (dstack 0.22.5's limit).
pub const MAX_EVENT_BYTES: usize = 32 * 1024;

/// How far the sequence is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    /// Timestamp of the last event, ms; the spool's start when there is none.
    pub last: i64,
    /// No event follows.
    pub finished: bool,
}

/// Events of one read, in order.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Batch {
    /// States, logs, runner logs and gaps.
    pub events: Vec<StreamLine>,
    /// Everything that was there when the read began is in `events`.
    pub complete: bool,
    /// The spool was finished when the read began.
    pub finished: bool,
    /// Latest timestamp issued when the read began, ms; the spool's start when there was none.
    pub last: i64,
}

/// Nobody can have stored what was never read here.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("nothing up to {timestamp} was sent, only up to {sent}")]
pub struct NotSent {
    /// What was to be acknowledged, ms.
    pub timestamp: i64,
    /// Up to where events were read, ms.
    pub sent: i64,
}

/// A place in the sequence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cursor {
    /// Everything up to here has been read, ms.
    pub timestamp: i64,
    // Where that is on disk, when it was reached by reading.
    place: Option<Place>,
}

impl Cursor {
    /// Right after this timestamp, ms.
    pub const fn after(timestamp: i64) -> Self {
        Self {
            timestamp,
            place: None,
        }
    }
}

/// The spool of one job. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Spool {
    inner: Arc<Mutex<Inner>>,
    progress: Arc<watch::Sender<Progress>>,
}

#[derive(Debug)]
struct Inner {
    dir: PathBuf,
    clock: SharedClock,
    segment_bytes: u64,
    limit: u64,
    segments: VecDeque<Segment>,
    next_segment: u64,
    memory: Vec<StreamLine>,
    last: i64,
    acked: i64,
    // Everything up to here was read without a hole, by one reader or by several that went on where others stopped.
    sent: i64,
    // Log bytes written so far.
    total: u64,
    // Dropped segments that were not acknowledged, oldest first.
    dropped: VecDeque<Dropped>,
    // Log bytes that could not be written and have no gap event yet.
    unwritten: u64,
    finished: bool,
}

/// A segment that is gone.
#[derive(Debug, Clone, Copy)]
struct Dropped {
    last_timestamp: i64,
    bytes_before: u64,
    bytes_after: u64,
}

impl Spool {
    /// A new spool in `dir`, which is emptied. `limit`: bytes on disk before the oldest are dropped.
    pub fn create(dir: &Path, limit: u64, clock: SharedClock) -> io::Result<Self> {
        Self::with_segments(dir, limit, SEGMENT_BYTES, clock)
    }

    fn with_segments(dir: &Path, limit: u64, segment_bytes: u64, clock: SharedClock) -> io::Result<Self> {
        if dir.exists() {
            fs_err::remove_dir_all(dir)?;
        }
        fs_err::create_dir_all(dir)?;
        // As in dstack 0.22.5 the first `last_updated` is in whole seconds.
        let start = now_ms(&clock) / 1000 * 1000;
        let progress = watch::Sender::new(Progress {
            last: start,
            finished: false,
        });
        let inner = Inner {
            dir: dir.to_owned(),
            clock,
            segment_bytes,
            limit: limit.max(2 * segment_bytes),
            segments: VecDeque::new(),
            next_segment: 0,
            memory: Vec::new(),
            last: start,
            acked: 0,
            sent: start,
            total: 0,
            dropped: VecDeque::new(),
            unwritten: 0,
            finished: false,
        };
        Ok(Self {
            inner: Arc::new(Mutex::new(inner)),
            progress: Arc::new(progress),
        })
    }

    /// Appends job output (already filtered). Blocking.
    pub fn log(&self, message: &[u8]) {
        self.append(Kind::Log, message);
    }

    /// Appends a piece of the runner's own log. Blocking.
    pub fn runner_log(&self, message: &[u8]) {
        self.append(Kind::RunnerLog, message);
    }

    /// Appends a state change; its timestamp is set here.
    pub fn state(&self, event: JobStateEvent) {
        self.change(|inner| {
            inner.mark_unwritten();
            let timestamp = inner.next_timestamp();
            inner
                .memory
                .push(StreamLine::State(JobStateEvent { timestamp, ..event }));
        });
    }

    /// Nothing follows: later events are ignored.
    pub fn finish(&self) {
        self.change(|inner| {
            inner.mark_unwritten();
            inner.finished = true;
        });
    }

    fn append(&self, kind: Kind, message: &[u8]) {
        for piece in message.chunks(MAX_EVENT_BYTES) {
            self.change(|inner| inner.append(kind, piece));
        }
    }

    fn change(&self, change: impl FnOnce(&mut Inner)) {
        let mut inner = self.lock();
        if inner.finished {
            return;
        }
        change(&mut inner);
        // Under the lock, so that progress never runs backwards.
        self.progress.send_replace(Progress {
            last: inner.last,
            finished: inner.finished,
        });
    }

    /// Everything up to `timestamp` (ms) is stored elsewhere, and may be dropped here. Refused when not all of it was read.
    pub fn ack(&self, timestamp: i64) -> Result<(), NotSent> {
        self.lock().ack(timestamp)
    }

    /// The highest acknowledged timestamp, ms.
    pub fn acked(&self) -> i64 {
        self.lock().acked
    }

    /// How far the sequence is now.
    pub fn progress(&self) -> Progress {
        *self.progress.borrow()
    }

    /// Follows the sequence.
    pub fn watch(&self) -> watch::Receiver<Progress> {
        self.progress.subscribe()
    }

    /// Reads what follows the cursor, and moves it: about `max_bytes` of log at most. Blocking.
    pub fn read(&self, cursor: &mut Cursor, max_bytes: usize) -> Batch {
        let from = cursor.timestamp;
        let snapshot = self.lock().snapshot(*cursor);
        let batch = snapshot.read(cursor, max_bytes);
        let to = if batch.complete {
            batch.last
        } else {
            cursor.timestamp
        };
        self.lock().mark_sent(from, to);
        batch
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn now_ms(clock: &SharedClock) -> i64 {
    clock.now().as_millis()
}

impl Inner {
    fn next_timestamp(&mut self) -> i64 {
        self.last = now_ms(&self.clock).max(self.last + 1);
        self.last
    }

    fn append(&mut self, kind: Kind, message: &[u8]) {
        self.make_room();
        let mut written = self.write(kind, message);
        // A full disk: what the server does not need at once makes room for what is new.
        while written.is_err() && self.segments.len() > 1 {
            self.drop_oldest();
            written = self.write(kind, message);
        }
        match written {
            Ok(()) => self.total += message.len() as u64,
            Err(_) => self.unwritten += message.len() as u64,
        }
    }

    fn write(&mut self, kind: Kind, message: &[u8]) -> io::Result<()> {
        if self
            .segments
            .back()
            .is_none_or(|segment| segment.bytes() >= self.segment_bytes)
        {
            let path = self.dir.join(format!("{:08}", self.next_segment));
            self.segments
                .push_back(Segment::create(self.next_segment, &path, self.total)?);
            self.next_segment += 1;
        }
        // What is missing came before this event, so its mark must: written only if this event can be.
        let gap = (self.unwritten > 0).then(|| self.next_timestamp());
        let timestamp = self.next_timestamp();
        if let Some(segment) = self.segments.back_mut() {
            segment.append(kind, timestamp, message)?;
        }
        if let Some(timestamp) = gap {
            let lost_bytes = std::mem::take(&mut self.unwritten);
            self.memory.push(StreamLine::Gap(Gap {
                timestamp,
                lost_bytes,
            }));
        }
        Ok(())
    }

    fn mark_unwritten(&mut self) {
        let lost_bytes = std::mem::take(&mut self.unwritten);
        if lost_bytes > 0 {
            let timestamp = self.next_timestamp();
            self.memory.push(StreamLine::Gap(Gap {
                timestamp,
                lost_bytes,
            }));
        }
    }

    fn make_room(&mut self) {
        while self.segments.len() > 1 && self.segments.iter().map(Segment::bytes).sum::<u64>() >= self.limit {
            self.drop_oldest();
        }
    }

    fn drop_oldest(&mut self) {
        if let Some(segment) = self.segments.pop_front()
            && segment.last_timestamp() > self.acked
        {
            self.dropped.push_back(Dropped {
                last_timestamp: segment.last_timestamp(),
                bytes_before: segment.bytes_before(),
                bytes_after: segment.bytes_after(),
            });
        }
    }

    fn mark_sent(&mut self, from: i64, to: i64) {
        if from <= self.sent {
            self.sent = self.sent.max(to);
        }
    }

    fn ack(&mut self, timestamp: i64) -> Result<(), NotSent> {
        let sent = self.sent;
        if timestamp > sent {
            return Err(NotSent { timestamp, sent });
        }
        self.acked = self.acked.max(timestamp);
        let acked = self.acked;
        while self
            .segments
            .front()
            .is_some_and(|segment| segment.last_timestamp() <= acked)
        {
            self.segments.pop_front();
        }
        while self
            .dropped
            .front()
            .is_some_and(|dropped| dropped.last_timestamp <= acked)
        {
            self.dropped.pop_front();
        }
        Ok(())
    }

    fn snapshot(&self, cursor: Cursor) -> Snapshot {
        let mut beside: Vec<StreamLine> = self
            .memory
            .iter()
            .filter(|event| event.event_timestamp() > Some(cursor.timestamp))
            .cloned()
            .collect();
        if let Some(gap) = self.gap_after(cursor) {
            beside.push(StreamLine::Gap(gap));
            beside.sort_by_key(StreamLine::event_timestamp);
        }
        let segments = self
            .segments
            .iter()
            .filter(|segment| segment.last_timestamp() > cursor.timestamp);
        Snapshot {
            beside,
            segments: segments.map(Segment::view).collect(),
            finished: self.finished,
            last: self.last,
        }
    }

    /// The gap that somebody at this place runs into: what was dropped between it and the oldest segment.
    fn gap_after(&self, cursor: Cursor) -> Option<Gap> {
        let passed = self
            .dropped
            .partition_point(|dropped| dropped.last_timestamp <= cursor.timestamp);
        let (first, last) = (self.dropped.get(passed)?, self.dropped.back()?);
        // Somebody who did not read up to here may have had some of the first: rather too much than too little.
        let from = cursor.place.map_or(first.bytes_before, |place| {
            place.bytes_before.max(first.bytes_before)
        });
        Some(Gap {
            timestamp: last.last_timestamp,
            lost_bytes: last.bytes_after.saturating_sub(from),
        })
    }
}

/// What a read needs, taken under the lock; the reading itself is done outside.
#[derive(Debug)]
struct Snapshot {
    // States and gaps, in order.
    beside: Vec<StreamLine>,
    segments: Vec<View>,
    finished: bool,
    last: i64,
}

impl Snapshot {
    fn read(self, cursor: &mut Cursor, max_bytes: usize) -> Batch {
        let mut batch = Batch {
            events: Vec::new(),
            complete: false,
            finished: self.finished,
            last: self.last,
        };
        let mut beside = self.beside.into_iter().peekable();
        let mut left = max_bytes;
        for view in self.segments {
            let mut reader = view.reader(cursor);
            while let Some((event, place)) = reader.next() {
                let timestamp = event.event_timestamp();
                while let Some(earlier) = beside.next_if(|other| other.event_timestamp() < timestamp) {
                    batch.take(earlier, cursor);
                }
                let length = message_len(&event);
                if left < length && !batch.events.is_empty() {
                    return batch;
                }
                left = left.saturating_sub(length);
                batch.take(event, cursor);
                cursor.place = Some(place);
            }
        }
        for event in beside {
            batch.take(event, cursor);
        }
        batch.complete = true;
        batch
    }
}

impl Batch {
    fn take(&mut self, event: StreamLine, cursor: &mut Cursor) {
        if let Some(timestamp) = event.event_timestamp() {
            cursor.timestamp = timestamp;
        }
        self.events.push(event);
    }
}

fn message_len(event: &StreamLine) -> usize {
    match event {
        StreamLine::Log(LogEvent { message, .. }) | StreamLine::RunnerLog(LogEvent { message, .. }) => {
            message.len()
        }
        _ => 0,
    }
}

#[cfg(test)]
mod tests;
