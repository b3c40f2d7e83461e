//! `GET /logs_ws`: raw output for people who watch.

use std::sync::Arc;

use axum::extract::ws::{CloseFrame, Message, WebSocket, WebSocketUpgrade};
use axum::extract::{Query, State};
use axum::response::Response;
use bytes::Bytes;
use futures_util::stream::SplitSink;
use futures_util::{SinkExt, StreamExt};
use serde::Deserialize;

use dstack_system::task;

use crate::shared::Core;

use super::Api;

/// "Unsupported data": what dstack 0.22.5's runner closes with when the start time is no time.
const UNSUPPORTED: u16 = 1003;

#[derive(Deserialize)]
pub(super) struct Start {
    #[serde(default)]
    start_time: Option<String>,
}

pub(super) async fn logs_ws(
    State(api): State<Api>,
    Query(start): Query<Start>,
    upgrade: WebSocketUpgrade,
) -> Response {
    let start = start
        .start_time
        .filter(|time| !time.is_empty())
        .map(|time| time.parse::<jiff::Timestamp>());
    upgrade.on_upgrade(async move |socket| match start.transpose() {
        Ok(start) => watch(api.core, socket, start.map(jiff::Timestamp::as_second)).await,
        Err(error) => refuse(socket, error.to_string()).await,
    })
}

async fn refuse(mut socket: WebSocket, why: String) {
    let frame = CloseFrame {
        code: UNSUPPORTED,
        reason: format!("start_time: {why}").into(),
    };
    let _ = socket.send(Message::Close(Some(frame))).await;
}

/// Sends everything from the start on, until the job is over or the client is gone.
async fn watch(core: Arc<Core>, socket: WebSocket, start: Option<i64>) {
    let _watching = core.begin_watching();
    let (sink, mut incoming) = socket.split();
    // Reading answers pings, and tells when the client goes.
    let gone = async { while let Some(Ok(_)) = incoming.next().await {} };
    tokio::select! {
        sent = send_all(&core, sink, start) => if sent.is_some() {
            core.served_watcher();
        },
        () = gone => {}
    }
}

/// `None`: the client is gone.
async fn send_all(core: &Core, mut sink: SplitSink<WebSocket, Message>, start: Option<i64>) -> Option<()> {
    let mut extent = core.history.watch();
    // Not known while the start lies in the future.
    let mut offset = None;
    loop {
        let now = *extent.borrow_and_update();
        offset = offset.or_else(|| start.map_or(Some(0), |second| core.history.offset_at(second)));
        if let Some(offset) = &mut offset {
            send_up_to(core, &mut sink, offset, now.end).await?;
        }
        if now.finished {
            return sink.send(Message::Close(None)).await.ok();
        }
        extent.changed().await.ok()?;
    }
}

async fn send_up_to(
    core: &Core,
    sink: &mut SplitSink<WebSocket, Message>,
    offset: &mut u64,
    end: u64,
) -> Option<()> {
    while *offset < end {
        let (history, mut position) = (core.history.clone(), *offset);
        let read = move || history.read(&mut position).map(|frame| (frame, position));
        // A disk that cannot be read ends the watching, not the job.
        let (frame, position) = task::blocking("watch", read).await.ok()?.ok()?;
        if position == *offset {
            return Some(());
        }
        *offset = position;
        sink.send(Message::Binary(Bytes::from(frame))).await.ok()?;
    }
    Some(())
}
