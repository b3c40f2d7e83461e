//! Receivers of telemetry on a port of this machine: an OpenTelemetry collector (OTLP over HTTP, protobuf) and Sentry, as far as
//! they take things in. They keep what they are sent.

// Doubles are part of tests, which may panic.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

pub mod otlp;
pub mod sentry;

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, Method, StatusCode, Uri};
use tokio::sync::watch;

/// How long something expected may take. Only a test that fails waits so long.
const PATIENCE: Duration = Duration::from_secs(60);

/// A request that was received.
#[derive(Debug, Clone)]
pub struct Received {
    pub path: String,
    pub headers: HeaderMap,
    /// Its body, unpacked.
    pub body: Vec<u8>,
}

impl Received {
    /// Returns the value of a header; `None` when it is missing or not text.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name)?.to_str().ok()
    }
}

/// A receiver that takes everything.
#[derive(Debug, Clone)]
pub struct Receiver {
    /// Where it is, without a slash at the end.
    pub url: String,
    received: Arc<Mutex<Vec<Received>>>,
    count: watch::Sender<usize>,
    status: Arc<Mutex<StatusCode>>,
}

impl Receiver {
    /// Starts it; it lives as long as the runtime.
    pub async fn start() -> Self {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let receiver = Self {
            url: format!("http://{}", listener.local_addr().unwrap()),
            received: Arc::default(),
            count: watch::Sender::new(0),
            status: Arc::new(Mutex::new(StatusCode::OK)),
        };
        let router = Router::new().fallback(take).with_state(receiver.clone());
        dstack_system::task::spawn("receiver of telemetry", async move {
            axum::serve(listener, router).await.unwrap();
        });
        receiver
    }

    /// From now on, everything is answered so.
    pub fn answer(&self, status: u16) {
        *self.status.lock().unwrap() = StatusCode::from_u16(status).unwrap();
    }

    /// Returns the socket address that it listens on.
    pub fn address(&self) -> SocketAddr {
        self.url.trim_start_matches("http://").parse().unwrap()
    }

    /// All that was received so far.
    pub fn received(&self) -> Vec<Received> {
        self.received.lock().unwrap().clone()
    }

    /// Waits until `find` finds something in what was received.
    pub async fn wait_for<T>(&self, what: &str, find: impl Fn(&[Received]) -> Option<T>) -> T {
        let mut count = self.count.subscribe();
        let found = async {
            loop {
                count.borrow_and_update();
                if let Some(found) = find(&self.received()) {
                    return found;
                }
                count.changed().await.unwrap();
            }
        };
        match tokio::time::timeout(PATIENCE, found).await {
            Ok(found) => found,
            Err(_) => panic!("not received within {PATIENCE:?}: {what}"),
        }
    }
}

async fn take(
    State(receiver): State<Receiver>,
    method: Method,
    uri: Uri,
    headers: HeaderMap,
    body: Bytes,
) -> StatusCode {
    assert_eq!(method, Method::POST, "{uri}");
    let body = match headers.get("content-encoding") {
        Some(encoding) if encoding == "gzip" => gunzip(&body),
        _ => body.to_vec(),
    };
    let received = Received {
        path: uri.path().to_owned(),
        headers,
        body,
    };
    let status = *receiver.status.lock().unwrap();
    receiver.received.lock().unwrap().push(received);
    receiver.count.send_modify(|count| *count += 1);
    status
}

fn gunzip(body: &[u8]) -> Vec<u8> {
    use std::io::Read;
    let mut unpacked = Vec::new();
    flate2::read::GzDecoder::new(body)
        .read_to_end(&mut unpacked)
        .unwrap();
    unpacked
}
