//! HTTP on one connection.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use dstack_proxy::{BoxError, ProxyBody};
use http::{Request, Response};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::idle::Requests;
use super::{Front, Peer};

/// Time for the head of a request, and between two requests.
pub(super) const HEAD_LIMIT: Duration = Duration::from_secs(60);
/// As long as clients whose first request has not come have for it when the gateway stops.
const LAST_PATIENCE: Duration = Duration::from_secs(1);
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

/// Answers the requests of a connection; when the gateway stops, only those that are under way, and the first.
pub(super) async fn serve<S>(
    front: Arc<Front>,
    stream: S,
    peer: Peer,
    protocol: Protocol,
    stopping: CancellationToken,
) where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let limit = front.idle_limit();
    let answer = move |request| {
        let front = Arc::clone(&front);
        async move { front.answer(peer, request).await }
    };
    if let Err(error) = speak(stream, protocol, limit, stopping, answer).await {
        tracing::debug!(error, peer = %peer.address, "a connection broke");
    }
}

/// Speaks HTTP on a connection until it is closed: by the client, or because there are no requests for so long, or at the end of
/// the gateway.
async fn speak<S, F>(
    stream: S,
    protocol: Protocol,
    limit: Duration,
    stopping: CancellationToken,
    answer: impl Fn(Request<ProxyBody>) -> F + Clone + Send + 'static,
) -> Result<(), BoxError>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    F: Future<Output = Response<ProxyBody>> + Send + 'static,
{
    let requests = Requests::new();
    let counted = requests.clone();
    let service = service_fn(move |request: Request<Incoming>| {
        let under_way = counted.begin();
        let answered = answer(request.map(of_client));
        async move { Ok::<_, Infallible>(under_way.until_sent(answered.await)) }
    });
    let io = TokioIo::new(stream);
    match protocol {
        Protocol::Http1 => {
            let connection = http1(limit).serve_connection(io, service).with_upgrades();
            let end = http1::UpgradeableConnection::graceful_shutdown;
            until_over(connection, end, &requests, limit, &stopping).await
        }
        Protocol::Http2 => {
            let connection = http2().serve_connection(io, service);
            let end = http2::Connection::graceful_shutdown;
            until_over(connection, end, &requests, limit, &stopping).await
        }
    }
}

/// `end` lets a connection finish what is under way, and nothing more.
async fn until_over<C>(
    connection: C,
    end: impl Fn(Pin<&mut C>),
    requests: &Requests,
    limit: Duration,
    stopping: &CancellationToken,
) -> Result<(), BoxError>
where
    C: Future<Output = hyper::Result<()>>,
{
    tokio::pin!(connection);
    tokio::select! {
        ended = connection.as_mut() => return Ok(ended?),
        () = stopped(stopping, requests) => {}
        () = requests.idle(limit) => {}
    }
    end(connection.as_mut());
    tokio::select! {
        ended = connection => Ok(ended?),
        // A client that does not notice.
        () = requests.idle(limit) => Ok(()),
    }
}

/// Waits until the gateway stops. A client that is connected then, and has not asked yet, does so now.
async fn stopped(stopping: &CancellationToken, requests: &Requests) {
    stopping.cancelled().await;
    let _ = timeout(LAST_PATIENCE, requests.begun()).await;
}

/// What a client sends, as what is passed on.
fn of_client(body: Incoming) -> ProxyBody {
    body.map_err(BoxError::from).boxed_unsync()
}

/// `limit` is for the head of a request, and between two.
fn http1(limit: Duration) -> http1::Builder {
    let mut builder = http1::Builder::new();
    builder
        .timer(TokioTimer::new())
        .header_read_timeout(limit)
        .max_buf_size(MAX_HEAD);
    builder
}

fn http2() -> http2::Builder<TokioExecutor> {
    let mut builder = http2::Builder::new(TokioExecutor::new());
    builder
        .timer(TokioTimer::new())
        .max_header_list_size(MAX_HEAD as u32)
        .max_concurrent_streams(MAX_STREAMS)
        .keep_alive_interval(PING_INTERVAL)
        .keep_alive_timeout(PING_LIMIT);
    builder
}

#[cfg(test)]
mod tests {
    use dstack_proxy::{body, refusal};
    use dstack_system::task;
    use http::StatusCode;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream};
    use tokio::sync::oneshot;
    use tokio::task::JoinHandle;
    use tokio::time::{Instant, sleep};

    use super::*;

    type Client = hyper::client::conn::http2::SendRequest<http_body_util::Empty<bytes::Bytes>>;

    /// A client of HTTP/2, and when its connection is closed.
    async fn client(stream: DuplexStream) -> (Client, oneshot::Receiver<Instant>) {
        let handshake = hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream));
        let (sender, connection) = handshake.await.unwrap();
        let (closed, is_closed) = oneshot::channel();
        task::spawn("client", async move {
            let _ = connection.await;
            let _ = closed.send(Instant::now());
        });
        (sender, is_closed)
    }

    async fn ask(client: &mut Client) -> Response<Incoming> {
        let request = Request::get("http://localhost/").body(http_body_util::Empty::new());
        client.send_request(request.unwrap()).await.unwrap()
    }

    /// The other end of a connection on which this is answered.
    fn spoken<F>(
        protocol: Protocol,
        stopping: CancellationToken,
        answer: impl Fn(Request<ProxyBody>) -> F + Clone + Send + 'static,
    ) -> (DuplexStream, JoinHandle<Option<()>>)
    where
        F: Future<Output = Response<ProxyBody>> + Send + 'static,
    {
        let (ours, theirs) = tokio::io::duplex(64 * 1024);
        let speaking = task::spawn("connection", async move {
            let _ = speak(ours, protocol, HEAD_LIMIT, stopping, answer).await;
        });
        (theirs, speaking)
    }

    async fn nothing(_: Request<ProxyBody>) -> Response<ProxyBody> {
        refusal(StatusCode::NOT_FOUND, "none")
    }

    #[tokio::test(start_paused = true)]
    async fn who_is_connected_when_the_gateway_stops_has_a_second_to_ask() {
        let stopping = CancellationToken::new();
        stopping.cancel();
        let (mut stream, speaking) = spoken(Protocol::Http1, stopping.clone(), nothing);
        sleep(LAST_PATIENCE / 2).await;
        stream
            .write_all(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n")
            .await
            .unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        assert!(answer.starts_with("HTTP/1.1 404"), "{answer}");
        speaking.await.unwrap();
        let asked = Instant::now();
        let (_stream, speaking) = spoken(Protocol::Http1, stopping, nothing);
        speaking.await.unwrap();
        assert_eq!(asked.elapsed().as_secs(), LAST_PATIENCE.as_secs());
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_of_http2_without_requests_is_closed_after_a_minute() {
        let (stream, speaking) = spoken(Protocol::Http2, CancellationToken::new(), nothing);
        let (mut client, is_closed) = client(stream).await;
        sleep(HEAD_LIMIT / 2).await;
        let asked = Instant::now();
        assert_eq!(ask(&mut client).await.status(), 404);
        let closed = is_closed.await.unwrap();
        assert_eq!((closed - asked).as_secs(), HEAD_LIMIT.as_secs());
        speaking.await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn who_speaks_something_else_than_was_agreed_is_not_waited_for() {
        let (mut stream, speaking) = spoken(Protocol::Http2, CancellationToken::new(), nothing);
        let connected = Instant::now();
        stream
            .write_all(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n")
            .await
            .unwrap();
        speaking.await.unwrap();
        assert_eq!(connected.elapsed().as_secs(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_of_http2_may_take_longer() {
        let (stream, _speaking) = spoken(Protocol::Http2, CancellationToken::new(), |_| async {
            sleep(HEAD_LIMIT * 3).await;
            Response::new(body::full("late"))
        });
        let (mut client, _is_closed) = client(stream).await;
        let answer = ask(&mut client).await;
        sleep(HEAD_LIMIT * 3).await;
        let body = answer.into_body().collect().await.unwrap().to_bytes();
        assert_eq!(body, "late");
    }
}
