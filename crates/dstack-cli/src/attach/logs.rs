//! A job's output as it comes, from the job itself.

use std::time::Duration;

use dstack_units::Time;
use futures_util::{SinkExt, StreamExt};
use tokio_tungstenite::client_async;
use tokio_tungstenite::tungstenite::Message;

use super::tunnel::Tunnel;
use super::urls::Rewriter;
use crate::ui::Ui;

/// Port of the job agent's API.
const RUNNER_PORT: u16 = 10999;
/// A quiet job is asked for a sign of life this often.
const PING: Duration = Duration::from_secs(60);

/// How much of a job's output was printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Printed {
    /// Bytes, counted from where the printing began.
    pub bytes: usize,
    /// The job agent said that this was all. Otherwise the connection broke, and the server has the rest.
    pub all: bool,
}

/// Prints the job's output until it ends or the connection is lost. A job that ends at this very moment takes its
/// agent with it: that is no error, but output of which nothing was printed yet.
pub async fn print(tunnel: &Tunnel, since: Option<Time>, rewriter: &Rewriter, ui: &Ui) -> Printed {
    let mut printed = Printed { bytes: 0, all: false };
    let Ok(stream) = tunnel.stream(RUNNER_PORT).await else {
        return printed;
    };
    let query = since
        .map(|since| format!("?start_time={since}"))
        .unwrap_or_default();
    let url = format!("ws://localhost:{RUNNER_PORT}/logs_ws{query}");
    let Ok((mut socket, _)) = client_async(url, stream).await else {
        return printed;
    };
    loop {
        let message = tokio::select! {
            message = socket.next() => message,
            () = tokio::time::sleep(PING) => {
                if socket.send(Message::Ping(Vec::new().into())).await.is_err() {
                    return printed;
                }
                continue;
            }
        };
        let mut print = |bytes: &[u8]| {
            printed.bytes += bytes.len();
            ui.raw(&rewriter.rewrite(bytes));
        };
        match message {
            Some(Ok(Message::Binary(bytes))) => print(&bytes),
            Some(Ok(Message::Text(text))) => print(text.as_bytes()),
            Some(Ok(Message::Ping(_) | Message::Pong(_) | Message::Frame(_))) => {}
            Some(Ok(Message::Close(_))) => return Printed { all: true, ..printed },
            Some(Err(_)) | None => return printed,
        }
    }
}
