//! A connection to a replica.

use std::io;
use std::time::Duration;

use dstack_agent_api::http::Connector;
use dstack_system::task;
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use tokio::time::timeout;

use crate::body::RequestBody;

/// Most bytes that are read of an answer before the client takes them, and most bytes that wait to be written.
const MAX_BUFFERED: usize = 64 * 1024;
/// Most bytes of the head of an answer, and of its trailers.
const MAX_HEAD: usize = 64 * 1024;

/// Sends requests over one connection, one after the other.
pub(crate) type Sender = SendRequest<RequestBody>;

/// Opens a connection, whose task ends when it is closed or its sender is dropped.
///
/// # Errors
/// The replica cannot be reached, or not within this time.
pub(crate) async fn open(connector: &dyn Connector, limit: Duration) -> io::Result<Sender> {
    let wire = match timeout(limit, connector.connect()).await {
        Ok(wire) => wire?,
        Err(_) => return Err(io::ErrorKind::TimedOut.into()),
    };
    let (sender, connection) = http1::Builder::new()
        .max_buf_size(MAX_BUFFERED)
        .max_header_size(MAX_HEAD)
        .handshake(TokioIo::new(wire))
        .await
        .map_err(io::Error::other)?;
    task::spawn("replica connection", async move {
        if let Err(error) = connection.with_upgrades().await {
            tracing::debug!(%error, "a connection to a replica broke");
        }
    });
    Ok(sender)
}
