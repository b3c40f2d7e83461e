//! `GET /api/stream`: every task, then each change. While the tasks of before are still looked for, there are only ticks: who
//! follows knows that the agent lives, and must not take a task for lost.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::http::{HeaderValue, header};
use axum::response::Response;
use bytes::Bytes;
use dstack_agent_api::shim::StreamEvent;
use futures_util::stream;
use tokio::sync::broadcast::{self, error::RecvError};
use tokio::time::{Interval, MissedTickBehavior};
use tokio_util::sync::CancellationToken;

use super::Api;
use crate::self_termination::Hold;
use crate::tasks::Tasks;

const TICK: Duration = Duration::from_secs(5);

/// `hold` is kept until the stream ends.
pub(super) fn response(api: &Arc<Api>, hold: Hold) -> Response {
    let lines = stream::unfold(Follower::new(api, hold), |mut follower| async move {
        let event = follower.next().await?;
        Some((Ok::<_, Infallible>(line(&event)), follower))
    });
    let mut response = Response::new(Body::from_stream(lines));
    response.headers_mut().insert(
        header::CONTENT_TYPE,
        HeaderValue::from_static("application/x-ndjson"),
    );
    response
}

fn line(event: &StreamEvent) -> Bytes {
    let mut bytes = serde_json::to_vec(event).unwrap_or_default();
    bytes.push(b'\n');
    bytes.into()
}

/// One client of the stream, and what it has not been sent yet.
struct Follower {
    tasks: Tasks,
    /// `None` until the tasks of before are there.
    changes: Option<broadcast::Receiver<StreamEvent>>,
    queue: VecDeque<StreamEvent>,
    tick: Interval,
    shutdown: CancellationToken,
    _hold: Hold,
}

impl Follower {
    fn new(api: &Api, hold: Hold) -> Self {
        let mut tick = tokio::time::interval_at(tokio::time::Instant::now() + TICK, TICK);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Self {
            tasks: api.tasks.clone(),
            changes: None,
            queue: VecDeque::new(),
            tick,
            shutdown: api.shutdown.clone(),
            _hold: hold,
        }
    }

    /// `None`: the agent shuts down.
    async fn next(&mut self) -> Option<StreamEvent> {
        if let Some(event) = self.queue.pop_front() {
            return Some(event);
        }
        tokio::select! {
            biased;
            () = self.shutdown.cancelled() => None,
            change = change(&self.tasks, self.changes.as_mut()) => match change {
                Ok(event) => Some(event),
                Err(Interruption::Closed) => None,
                Err(Interruption::TellAll) => {
                    let (queue, changes) = everything(&self.tasks);
                    (self.queue, self.changes) = (queue, Some(changes));
                    self.queue.pop_front()
                }
            },
            _ = self.tick.tick() => Some(StreamEvent::Tick),
        }
    }
}

/// Why there is no next change.
enum Interruption {
    /// All tasks are to be told: for the first time, or because the reader was too slow and missed something.
    TellAll,
    Closed,
}

async fn change(
    tasks: &Tasks,
    changes: Option<&mut broadcast::Receiver<StreamEvent>>,
) -> Result<StreamEvent, Interruption> {
    let Some(changes) = changes else {
        tasks.restored().await;
        return Err(Interruption::TellAll);
    };
    changes.recv().await.map_err(|error| match error {
        RecvError::Closed => Interruption::Closed,
        RecvError::Lagged(_) => Interruption::TellAll,
    })
}

fn everything(tasks: &Tasks) -> (VecDeque<StreamEvent>, broadcast::Receiver<StreamEvent>) {
    let (now, changes) = tasks.subscribe();
    let queue = now
        .into_iter()
        .map(StreamEvent::Task)
        .chain([StreamEvent::Synced])
        .collect();
    (queue, changes)
}
