//! `GET /api/stream`: events as they happen.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::{Query, State};
use axum::http::{HeaderValue, header};
use axum::response::Response;
use bytes::Bytes;
use futures_util::stream::try_unfold;
use serde::Deserialize;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

use dstack_agent_api::stream::{End, StreamLine, Tick};
use dstack_system::task;

use crate::shared::Core;
use crate::spool::{Cursor, Progress};

use super::reply::Error;
use super::{After, Api};

const TICK_EVERY: Duration = Duration::from_secs(5);
/// Read at once: enough to be quick, little enough for many streams.
const BATCH_BYTES: usize = 256 * 1024;

/// Until when the server reads.
#[derive(Deserialize)]
pub(super) struct Until {
    /// Until no client that reads output is to be expected any more, instead of the end of the job.
    #[serde(default)]
    clients_left: bool,
}

pub(super) async fn stream(
    State(api): State<Api>,
    Query(from): Query<After>,
    Query(until): Query<Until>,
) -> Result<Response, Error> {
    api.core.expect_server();
    let events = Events {
        progress: api.core.spool.watch(),
        cursor: from.cursor()?,
        next_tick: Instant::now() + TICK_EVERY,
        ended: false,
        waits_for_clients: until.clients_left,
        core: api.core,
    };
    let pieces = try_unfold(events, async |mut events| {
        let piece = events.next().await?;
        Ok::<_, Broken>(piece.map(|piece| (piece, events)))
    });
    let mut response = Response::new(Body::from_stream(pieces));
    response.headers_mut().insert(
        header::CONTENT_TYPE,
        HeaderValue::from_static("application/x-ndjson"),
    );
    Ok(response)
}

/// Breaks the answer off, which the client sees.
#[derive(Debug, thiserror::Error)]
#[error("the log stream broke")]
struct Broken;

struct Events {
    core: Arc<Core>,
    progress: watch::Receiver<Progress>,
    cursor: Cursor,
    next_tick: Instant,
    ended: bool,
    waits_for_clients: bool,
}

impl Events {
    /// The next lines; `None` after the end.
    async fn next(&mut self) -> Result<Option<Bytes>, Broken> {
        while !self.ended {
            // Seen before reading: what comes during the read wakes the wait below.
            self.progress.borrow_and_update();
            let lines = self.read().await?;
            if !lines.is_empty() {
                return Ok(Some(lines));
            }
            tokio::select! {
                changed = self.progress.changed() => changed.map_err(|_| Broken)?,
                () = sleep_until(self.next_tick) => return self.tick().map(Some),
            }
        }
        if self.waits_for_clients {
            let mut served = self.core.watch_served();
            served.wait_for(|served| served.left).await.map_err(|_| Broken)?;
        }
        Ok(None)
    }

    async fn read(&mut self) -> Result<Bytes, Broken> {
        let (spool, mut cursor) = (self.core.spool.clone(), self.cursor);
        let (lines, cursor, end) = task::blocking("stream", move || {
            let batch = spool.read(&mut cursor, BATCH_BYTES);
            let end = (batch.complete && batch.finished).then_some(batch.last);
            let mut lines = Vec::new();
            for event in &batch.events {
                write_line(&mut lines, event)?;
            }
            Ok((lines, cursor, end))
        })
        .await
        .map_err(|_| Broken)??;
        self.cursor = cursor;
        let mut lines: Vec<u8> = lines;
        if let Some(timestamp) = end {
            write_line(&mut lines, &StreamLine::End(End { timestamp }))?;
            self.ended = true;
        } else if self.next_tick <= Instant::now() {
            lines.extend_from_slice(&self.tick()?);
        }
        Ok(lines.into())
    }

    fn tick(&mut self) -> Result<Bytes, Broken> {
        self.next_tick = Instant::now() + TICK_EVERY;
        let (timestamp, no_connections_secs) = (self.cursor.timestamp, self.core.inactivity.seconds());
        let mut line = Vec::new();
        write_line(
            &mut line,
            &StreamLine::Tick(Tick {
                timestamp,
                no_connections_secs,
            }),
        )?;
        Ok(line.into())
    }
}

fn write_line(lines: &mut Vec<u8>, line: &StreamLine) -> Result<(), Broken> {
    serde_json::to_writer(&mut *lines, line).map_err(|_| Broken)?;
    lines.push(b'\n');
    Ok(())
}
