//! A client's connection to a server that passes requests on to a replica in memory.

use std::convert::Infallible;
use std::io;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use dstack_agent_api::http::{Connector, Wire};
use dstack_proxy::{Balancing, BoxError, Forward, Forwarder, ProxyBody, Service};
use dstack_system::Random;
use http::{Method, Request, Response, Uri};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

/// More than any input, so that a client can always write.
const CONNECTION_BYTES: usize = 1024 * 1024;
/// Of virtual time: longer than whatever a server or a replica waits for.
const SILENCE: Duration = Duration::from_secs(3600);

/// A request with what there was of its body.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Seen {
    method: Method,
    /// Path and query.
    target: String,
    body: Vec<u8>,
    /// The end of its body was there.
    is_whole: bool,
}

impl Seen {
    fn new(method: &Method, uri: &Uri) -> Self {
        let target = uri.path_and_query().map_or("/", |target| target.as_str());
        Self {
            method: method.clone(),
            target: match target.starts_with('/') || target == "*" {
                true => target.to_owned(),
                // A query without a path is one of the root.
                false => format!("/{target}"),
            },
            body: Vec::new(),
            is_whole: false,
        }
    }
}

type Book = Arc<Mutex<Vec<Seen>>>;

/// What a client sends is passed on. Whatever the replica gets as a whole was one request of the client's, as a whole, and comes in
/// the client's order.
///
/// # Panics
/// It is not so.
pub fn pass_on(bytes: &[u8], balancing: Balancing) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .unwrap();
    let (asked, received) = (Book::default(), Book::default());
    runtime.block_on(talk(bytes, balancing, &asked, &received));
    drop(runtime);
    let asked = asked.lock().unwrap();
    let mut rest = asked.iter();
    for request in received.lock().unwrap().iter().filter(|seen| seen.is_whole) {
        assert!(
            rest.any(|other| other == request),
            "the replica got {request:?}, the client asked {asked:?}"
        );
    }
}

/// A client's connection from its first byte until nothing comes any more.
async fn talk(bytes: &[u8], balancing: Balancing, asked: &Book, received: &Book) {
    let (opened, connections) = unbounded_channel();
    let mut service = crate::service(1, Arc::new(Memory { opened }));
    service.balancing = balancing;
    let (mut client, server) = duplex(CONNECTION_BYTES);
    tokio::spawn(replica(connections, Arc::clone(received)));
    tokio::spawn(front(server, service, Arc::clone(asked)));
    client.write_all(bytes).await.unwrap();
    let mut answer = Vec::new();
    while let Ok(Ok(1..)) = tokio::time::timeout(SILENCE, client.read_buf(&mut answer)).await {}
    assert!(
        answer.is_empty() || answer.starts_with(b"HTTP/1."),
        "{}",
        String::from_utf8_lossy(&answer)
    );
}

/// As servers and gateways read requests.
async fn front(stream: DuplexStream, service: Service, asked: Book) {
    let forwarder = Arc::new(Forwarder::new(Random::seeded(1)));
    let service = Arc::new(service);
    let answer = service_fn(move |request: Request<Incoming>| {
        let (forwarder, service) = (Arc::clone(&forwarder), Arc::clone(&service));
        let request = noted(request, &asked);
        async move { Ok::<_, Infallible>(forwarder.forward(&service, request).await) }
    });
    let connection = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(Duration::from_secs(10))
        .max_buf_size(64 * 1024)
        .serve_connection(TokioIo::new(stream), answer)
        .with_upgrades();
    let _ = connection.await; // most are broken
}

/// The request; what passes of its body is written down.
fn noted(request: Request<Incoming>, book: &Book) -> Request<ProxyBody> {
    let number = {
        let mut book = book.lock().unwrap();
        book.push(Seen::new(request.method(), request.uri()));
        book.len() - 1
    };
    request.map(|body| {
        let is_over = hyper::body::Body::is_end_stream(&body);
        book.lock().unwrap()[number].is_whole = is_over;
        let noted = Noted {
            body,
            number,
            book: Arc::clone(book),
        };
        noted.boxed_unsync()
    })
}

/// A body that is written down as it passes.
struct Noted {
    body: Incoming,
    number: usize,
    book: Book,
}

impl hyper::body::Body for Noted {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: std::pin::Pin<&mut Self>,
        context: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Result<hyper::body::Frame<Bytes>, BoxError>>> {
        let polled = std::pin::Pin::new(&mut self.body).poll_frame(context);
        let mut book = self.book.lock().unwrap();
        let seen = &mut book[self.number];
        polled.map(|frame| match frame {
            Some(Ok(frame)) => {
                seen.body.extend(frame.data_ref().into_iter().flatten());
                // Nothing comes after trailers.
                seen.is_whole = frame.is_trailers() || self.body.is_end_stream();
                Some(Ok(frame))
            }
            Some(Err(error)) => Some(Err(error.into())),
            None => {
                seen.is_whole = true;
                None
            }
        })
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> hyper::body::SizeHint {
        self.body.size_hint()
    }
}

/// Answers everything, once it is there, and writes down what came.
async fn replica(mut connections: UnboundedReceiver<DuplexStream>, received: Book) {
    while let Some(stream) = connections.recv().await {
        let received = Arc::clone(&received);
        let answer = service_fn(move |request: Request<Incoming>| {
            let received = Arc::clone(&received);
            async move {
                let mut seen = Seen::new(request.method(), request.uri());
                if let Ok(body) = request.into_body().collect().await {
                    seen.body = body.to_bytes().to_vec();
                    seen.is_whole = true;
                }
                received.lock().unwrap().push(seen);
                Ok::<_, Infallible>(Response::new(dstack_proxy::body::full("answer")))
            }
        });
        tokio::spawn(async move {
            let connection = hyper::server::conn::http1::Builder::new()
                .serve_connection(TokioIo::new(stream), answer)
                .await;
            let _ = connection; // closed in the middle of a request that breaks off
        });
    }
}

/// Connections in memory.
#[derive(Debug)]
struct Memory {
    opened: UnboundedSender<DuplexStream>,
}

#[async_trait]
impl Connector for Memory {
    async fn connect(&self) -> io::Result<Box<dyn Wire>> {
        let (ours, theirs) = duplex(CONNECTION_BYTES);
        self.opened
            .send(theirs)
            .map_err(|_| io::Error::from(io::ErrorKind::ConnectionRefused))?;
        Ok(Box::new(ours))
    }
}
