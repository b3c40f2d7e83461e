//! Clients that go before a replica has begun its answer.

use std::time::Duration;

use tokio::time::Instant;

use crate::body::Sendable;
use crate::split::Tally;

/// A client that goes sooner says nothing of the replica.
const PATIENCE: Duration = Duration::from_secs(1);

/// A replica is asked, and its answer waited for. Dropped before that is over, it counts as an answer that did not come.
#[derive(Debug)]
pub(super) struct Waiting {
    tally: Option<Tally>,
    since: Instant,
    body: Sendable,
}

impl Waiting {
    pub(super) fn begin(tally: Tally, body: &Sendable) -> Self {
        Self {
            tally: Some(tally),
            since: Instant::now(),
            body: body.clone(),
        }
    }

    /// There is an answer, or none is waited for.
    pub(super) fn over(mut self) {
        self.tally = None;
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        let Some(tally) = self.tally.take() else {
            return;
        };
        // The replica has time since it was given the last piece of the request.
        let waited = self
            .body
            .progress()
            .unwrap_or(self.since)
            .max(self.since)
            .elapsed();
        if waited >= PATIENCE && !self.body.waits_for_client() {
            tally.abandoned(waited);
        }
    }
}
