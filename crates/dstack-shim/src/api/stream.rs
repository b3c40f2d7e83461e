//! `GET /api/stream`: every task, then each change.

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
use crate::tasks::Tasks;

const TICK: Duration = Duration::from_secs(5);

pub(super) fn response(api: &Arc<Api>) -> Response {
    let lines = stream::unfold(Follower::new(api), |mut follower| async move {
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

/// One listener.
struct Follower {
    tasks: Tasks,
    changes: broadcast::Receiver<StreamEvent>,
    queue: VecDeque<StreamEvent>,
    tick: Interval,
    shutdown: CancellationToken,
}

impl Follower {
    fn new(api: &Api) -> Self {
        let mut tick = tokio::time::interval_at(tokio::time::Instant::now() + TICK, TICK);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let (queue, changes) = everything(&api.tasks);
        Self {
            tasks: api.tasks.clone(),
            changes,
            queue,
            tick,
            shutdown: api.shutdown.clone(),
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
            change = self.changes.recv() => match change {
                Ok(event) => Some(event),
                Err(RecvError::Closed) => None,
                Err(RecvError::Lagged(_)) => {
                    // Too slow: what was missed is covered by telling everything again.
                    (self.queue, self.changes) = everything(&self.tasks);
                    self.queue.pop_front()
                }
            },
            _ = self.tick.tick() => Some(StreamEvent::Tick),
        }
    }
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
