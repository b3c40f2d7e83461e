//! Connections of clients: how many at a time, and for how long without a request.

use std::future::Future;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::ConnectInfo;
use axum::http::Request;
use axum::serve::Listener;
use dstack_proxy::Limits;
use dstack_system::task;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tower::Service;

/// How long a client may take for the head of a request, and how long a connection may be without one. Load balancers give
/// up idle connections after a minute, and must do so first: a request that meets a closing connection is lost.
const HEAD_TIMEOUT: Duration = Duration::from_secs(75);

/// Most bytes of the head of a request, about.
const MAX_HEAD: usize = 32 * 1024;

/// Most bytes that are read before a handler takes them.
const MAX_READ: usize = 64 * 1024;

/// Most connections at a time unless a number is set.
const MAX_CONNECTIONS: usize = 10_000;

/// Serves clients on connections of theirs.
#[derive(Debug, Clone)]
pub(crate) struct Connections {
    /// Connections at a time.
    limit: usize,
    head_timeout: Duration,
}

impl Connections {
    /// As many at a time as set; `None`: as many as the number of files that may be open lets.
    pub(crate) fn new(set: Option<usize>, open_files: Option<u64>) -> Self {
        Self {
            limit: set.unwrap_or_else(|| default_limit(open_files)).max(1),
            head_timeout: HEAD_TIMEOUT,
        }
    }

    /// Connections at a time.
    pub(crate) const fn limit(&self) -> usize {
        self.limit
    }

    /// Accepts connections until `stop`, then waits until the requests under way are answered.
    pub(crate) async fn serve(self, mut listener: TcpListener, router: Router, stop: CancellationToken) {
        let places = Arc::new(Semaphore::new(self.limit.min(Semaphore::MAX_PERMITS)));
        let open = TaskTracker::new();
        while let Some((stream, address, place)) = accept(&mut listener, &places, &stop).await {
            let connection =
                open.track_future(self.connection(stream, address, router.clone(), stop.clone()));
            task::spawn("connection", async move {
                connection.await;
                drop(place);
            });
        }
        drop(listener);
        open.close();
        open.wait().await;
    }

    /// Serves one connection until it is closed; after `stop`, until the request under way is answered.
    fn connection(
        &self,
        stream: TcpStream,
        address: SocketAddr,
        router: Router,
        stop: CancellationToken,
    ) -> impl Future<Output = ()> + use<> {
        let service = service_fn(move |mut request: Request<Incoming>| {
            request.extensions_mut().insert(ConnectInfo(address));
            router.clone().call(request)
        });
        let connection = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(self.head_timeout)
            .max_header_size(MAX_HEAD)
            .max_buf_size(MAX_READ)
            .serve_connection(TokioIo::new(stream), service)
            .with_upgrades();
        async move {
            let mut connection = pin!(connection);
            tokio::select! {
                closed = connection.as_mut() => return log_end(closed),
                () = stop.cancelled() => connection.as_mut().graceful_shutdown(),
            }
            log_end(connection.await);
        }
    }
}

/// The next connection, once there is a place for it; `None` after `stop`.
async fn accept(
    listener: &mut TcpListener,
    places: &Arc<Semaphore>,
    stop: &CancellationToken,
) -> Option<(TcpStream, SocketAddr, OwnedSemaphorePermit)> {
    let next = async {
        // Never closed: an error cannot come.
        let place = Arc::clone(places).acquire_owned().await.ok()?;
        // Waits and tries again when no more files may be open.
        let (stream, address) = Listener::accept(listener).await;
        // Lines of a log are sent as they come, without waiting for more of them.
        stream.set_nodelay(true).ok(); // it may be gone
        Some((stream, address, place))
    };
    tokio::select! {
        next = next => next,
        () = stop.cancelled() => None,
    }
}

/// Logs how a connection ended. Clients may go at any time: that is no error of the server.
fn log_end(closed: hyper::Result<()>) {
    if let Err(error) = closed {
        tracing::debug!(%error, "a connection broke off");
    }
}

/// A request that is passed on takes a second file. A quarter of them is left for the database, hosts and logs.
fn default_limit(open_files: Option<u64>) -> usize {
    let files = open_files.and_then(|files| usize::try_from(files).ok());
    files.map_or(MAX_CONNECTIONS, |files| {
        MAX_CONNECTIONS.min((files - files / 4) / 2)
    })
}

/// As many requests may be passed on at a time, and as many of them be WebSockets, which hold no place of a connection.
pub(crate) fn passed_on(open_files: Option<u64>) -> Limits {
    let files = open_files.and_then(|files| usize::try_from(files).ok());
    Limits {
        requests: default_limit(open_files),
        tunnels: files.map_or(MAX_CONNECTIONS, |files| MAX_CONNECTIONS.min(files / 8)),
    }
}

#[cfg(test)]
mod tests {
    use axum::routing::get;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::sync::Notify;

    use super::*;

    const REQUEST: &[u8] = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n";

    struct Served {
        address: SocketAddr,
        stop: CancellationToken,
        /// Ends when all connections are closed.
        ended: tokio::task::JoinHandle<Option<()>>,
    }

    async fn served(limit: usize, head_timeout: Duration, router: Router) -> Served {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let stop = CancellationToken::new();
        let connections = Connections { limit, head_timeout };
        let ended = task::spawn("server", connections.serve(listener, router, stop.clone()));
        Served { address, stop, ended }
    }

    fn hello() -> Router {
        Router::new().route(
            "/",
            get(|ConnectInfo(from): ConnectInfo<SocketAddr>| async move { from.to_string() }),
        )
    }

    /// Sends bytes and reads one answer, up to its body's last letter.
    async fn ask(stream: &mut TcpStream, request: &[u8], last: &str) -> String {
        stream.write_all(request).await.unwrap();
        let mut answer = Vec::new();
        while !String::from_utf8_lossy(&answer).ends_with(last) {
            let mut chunk = [0; 1024];
            let size = stream.read(&mut chunk).await.unwrap();
            assert_ne!(size, 0, "closed after {}", String::from_utf8_lossy(&answer));
            answer.extend_from_slice(&chunk[..size]);
        }
        String::from_utf8_lossy(&answer).into_owned()
    }

    const PATIENT: Duration = Duration::from_secs(600);

    #[tokio::test]
    async fn requests_of_a_connection_are_answered_and_know_where_they_come_from() {
        let server = served(8, PATIENT, hello()).await;
        let mut client = TcpStream::connect(server.address).await.unwrap();
        let from = client.local_addr().unwrap().to_string();
        for _ in 0..2 {
            let answer = ask(&mut client, REQUEST, &from).await;
            assert!(answer.starts_with("HTTP/1.1 200 OK"), "{answer}");
        }
    }

    #[tokio::test]
    async fn clients_that_say_nothing_or_never_come_to_an_end_are_disconnected() {
        let server = served(8, Duration::from_secs(1), hello()).await;
        let answers = async |beginning: &[u8]| {
            let mut client = TcpStream::connect(server.address).await.unwrap();
            client.write_all(beginning).await.unwrap();
            let mut rest = Vec::new();
            // Ends when the server closes the connection.
            client.read_to_end(&mut rest).await.unwrap();
            String::from_utf8_lossy(&rest).matches("HTTP/1.1 200").count()
        };
        let slow = b"GET / HTTP/1.1\r\nx-slow: ";
        let counted = tokio::join!(answers(b""), answers(slow), answers(REQUEST));
        assert_eq!(counted, (0, 0, 1));
    }

    #[tokio::test]
    async fn heads_are_not_read_without_end() {
        let server = served(8, PATIENT, hello()).await;
        let mut client = TcpStream::connect(server.address).await.unwrap();
        let head = format!("GET / HTTP/1.1\r\nx-long: {}", "x".repeat(MAX_READ));
        let answer = ask(&mut client, head.as_bytes(), "\r\n\r\n").await;
        assert!(answer.starts_with("HTTP/1.1 431 "), "{answer}");
    }

    #[tokio::test]
    async fn a_connection_too_many_waits_until_another_is_closed() {
        let server = served(2, PATIENT, hello()).await;
        let connect = async || TcpStream::connect(server.address).await.unwrap();
        let (mut first, mut second, mut third) = (connect().await, connect().await, connect().await);
        for client in [&mut first, &mut second] {
            let from = client.local_addr().unwrap().to_string();
            ask(client, REQUEST, &from).await;
        }
        let from = third.local_addr().unwrap().to_string();
        let mut waits = pin!(ask(&mut third, REQUEST, &from));
        let early = tokio::time::timeout(Duration::from_millis(100), &mut waits).await;
        assert!(early.is_err(), "it was served although there was no place");
        drop(first);
        assert!(waits.await.starts_with("HTTP/1.1 200"));
    }

    #[tokio::test]
    async fn what_is_under_way_is_answered_when_the_server_stops() {
        let (begun, go_on) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
        let slow = {
            let (begun, go_on) = (Arc::clone(&begun), Arc::clone(&go_on));
            get(async move || {
                begun.notify_one();
                go_on.notified().await;
                "done"
            })
        };
        let server = served(8, PATIENT, Router::new().route("/", slow)).await;
        let mut idle = TcpStream::connect(server.address).await.unwrap();
        let mut client = TcpStream::connect(server.address).await.unwrap();
        let ((), answer) = tokio::join!(
            async {
                begun.notified().await;
                server.stop.cancel();
                // Connections without a request are closed at once.
                assert_eq!(idle.read(&mut [0]).await.unwrap(), 0);
                go_on.notify_one();
            },
            ask(&mut client, REQUEST, "done"),
        );
        assert!(answer.contains("connection: close"), "{answer}");
        assert_eq!(server.ended.await.unwrap(), Some(()));
        assert!(TcpStream::connect(server.address).await.is_err());
    }

    #[test]
    fn a_quarter_of_the_files_is_left_for_others() {
        assert_eq!(default_limit(Some(1024)), 384);
        assert_eq!(default_limit(Some(1_048_576)), MAX_CONNECTIONS);
        assert_eq!(default_limit(None), MAX_CONNECTIONS, "any number may be open");
        assert_eq!(Connections::new(Some(0), None).limit, 1);
        assert_eq!(Connections::new(Some(50_000), Some(1024)).limit, 50_000);
    }
}
