//! A job's output as it comes, from the job itself.

use std::time::Duration;

use dstack_units::Time;
use futures_util::{SinkExt, StreamExt};
use tokio_tungstenite::client_async;
use tokio_tungstenite::tungstenite::Message;

use super::tunnel::Tunnel;
use super::urls::Rewriter;
use crate::error::CliError;
use crate::ui::Ui;

/// Port of the job agent's API.
const RUNNER_PORT: u16 = 10999;
/// A quiet job is asked for a sign of life this often.
const PING: Duration = Duration::from_secs(60);

/// Prints the job's output until it ends or the connection is lost.
///
/// # Errors
/// The job agent does not answer.
pub async fn print(
    tunnel: &Tunnel,
    since: Option<Time>,
    rewriter: &Rewriter,
    ui: &Ui,
) -> Result<(), CliError> {
    let failed = |error: &dyn std::error::Error| {
        CliError::new(format!(
            "cannot read the job's output: {}",
            CliError::from_chain(error).message().unwrap_or_default()
        ))
    };
    let stream = tunnel.stream(RUNNER_PORT).await.map_err(|error| failed(&error))?;
    let query = since
        .map(|since| format!("?start_time={since}"))
        .unwrap_or_default();
    let url = format!("ws://localhost:{RUNNER_PORT}/logs_ws{query}");
    let (mut socket, _) = client_async(url, stream).await.map_err(|error| failed(&error))?;
    loop {
        let message = tokio::select! {
            message = socket.next() => message,
            () = tokio::time::sleep(PING) => {
                if socket.send(Message::Ping(Vec::new().into())).await.is_err() {
                    return Ok(());
                }
                continue;
            }
        };
        match message {
            Some(Ok(Message::Binary(bytes))) => ui.raw(&rewriter.rewrite(&bytes)),
            Some(Ok(Message::Text(text))) => ui.raw(&rewriter.rewrite(text.as_bytes())),
            Some(Ok(Message::Ping(_) | Message::Pong(_) | Message::Frame(_))) => {}
            // Whether the job ended or only the connection is seen from the run's state afterwards.
            Some(Ok(Message::Close(_)) | Err(_)) | None => return Ok(()),
        }
    }
}
