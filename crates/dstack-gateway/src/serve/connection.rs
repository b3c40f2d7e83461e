//! HTTP on one connection.

use std::sync::Arc;
use std::time::Duration;

use dstack_proxy::{BoxError, ProxyBody};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_util::sync::CancellationToken;

use super::{Front, Peer};

/// Time for the head of a request, and between two requests.
const HEAD_LIMIT: Duration = Duration::from_secs(60);
/// Bytes of the head of a request.
const MAX_HEAD: usize = 64 * 1024;
/// Requests at a time on one connection of HTTP/2.
const MAX_STREAMS: u32 = 128;
/// A silent client of HTTP/2 is asked for a sign of life this often, and has so long for one.
const PING_INTERVAL: Duration = Duration::from_secs(30);
const PING_LIMIT: Duration = Duration::from_secs(20);

/// What is spoken on a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Protocol {
    Http1,
    Http2,
}

/// Answers the requests of a connection; when the gateway stops, only those that are under way.
pub(super) async fn serve<S>(
    front: Arc<Front>,
    stream: S,
    peer: Peer,
    protocol: Protocol,
    stopping: CancellationToken,
) where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let service = service_fn(move |request: http::Request<Incoming>| {
        let front = Arc::clone(&front);
        async move {
            let request = request.map(of_client);
            Ok::<_, std::convert::Infallible>(front.answer(peer, request).await)
        }
    });
    let builder = builder(protocol);
    let connection = builder.serve_connection_with_upgrades(TokioIo::new(stream), service);
    tokio::pin!(connection);
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        () = stopping.cancelled() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%error, peer = %peer.address, "a connection broke");
    }
}

/// What a client sends, as what is passed on.
fn of_client(body: Incoming) -> ProxyBody {
    body.map_err(BoxError::from).boxed_unsync()
}

fn builder(protocol: Protocol) -> Builder<TokioExecutor> {
    let mut builder = Builder::new(TokioExecutor::new());
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_LIMIT)
        .max_buf_size(MAX_HEAD);
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_header_list_size(MAX_HEAD as u32)
        .max_concurrent_streams(MAX_STREAMS)
        .keep_alive_interval(PING_INTERVAL)
        .keep_alive_timeout(PING_LIMIT);
    // What is spoken is known: waiting for the first bytes to find out would have no limit.
    match protocol {
        Protocol::Http1 => builder.http1_only(),
        Protocol::Http2 => builder.http2_only(),
    }
}
