//! A request that is under way at a replica.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use tokio::time::Instant;

use super::Replica;
use super::health::Trial;

/// Counts as in flight until it is dropped.
#[derive(Debug)]
pub(crate) struct Visit {
    replica: Arc<Replica>,
    /// It finds out whether the replica works again.
    trial: Option<Trial>,
}

impl Visit {
    /// One more request at this replica; `None`: it gets no more.
    pub(crate) fn begin(replica: &Arc<Replica>) -> Option<Self> {
        replica.in_flight.fetch_add(1, Ordering::SeqCst);
        let mut visit = Self {
            replica: Arc::clone(replica),
            trial: None,
        };
        // After it is counted: whoever retires the replica and then finds it idle has seen all that got there.
        if replica.is_retired() {
            return None;
        }
        if replica.is_troubled() {
            visit.trial = replica.health.lock().sent(Instant::now());
        }
        Some(visit)
    }

    pub(crate) fn replica(&self) -> &Arc<Replica> {
        &self.replica
    }

    /// The replica could not be reached, or its answer broke.
    pub(crate) fn failed(&mut self) {
        self.trial = None;
        self.replica.note_failure();
    }

    /// The replica has begun an answer.
    pub(crate) fn answered(&mut self) {
        self.trial = None;
        self.replica.note_answer();
    }

    /// The replica has ended an answer.
    pub(crate) fn completed(&self) {
        self.replica.note_completion();
    }
}

impl Drop for Visit {
    fn drop(&mut self) {
        if let Some(trial) = self.trial {
            self.replica.health.lock().given_up(trial);
        }
        if self.replica.in_flight.fetch_sub(1, Ordering::SeqCst) == 1 {
            self.replica.ended.notify_waiters();
        }
    }
}
