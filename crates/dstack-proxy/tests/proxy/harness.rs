//! A proxy in front of peers.

use std::collections::HashMap;
use std::convert::Infallible;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use dstack_agent_api::http::{Connector, TcpConnector, Wire};
use dstack_proxy::{Balancing, Client, Forward, Forwarder, Paths, ProxyBody, Replica, Scheme, Service};
use dstack_system::{Random, task};
use dstack_units::{JobId, RunId};
use http::{Request, Response};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};
use tokio::net::{TcpListener, TcpStream};
use uuid::Uuid;

pub(crate) const RUN: RunId = RunId::new(Uuid::from_u128(7));

/// A peer that counts its connections.
pub(crate) struct Peer {
    pub(crate) connector: Arc<dyn Connector>,
    pub(crate) accepted: Arc<AtomicUsize>,
    listening: tokio::task::JoinHandle<Option<()>>,
}

impl Peer {
    /// On a port of this machine; each connection is a task.
    pub(crate) async fn tcp<F>(serve: impl Fn(usize, TcpStream) -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        Self::listening(listener, serve)
    }

    pub(crate) fn listening<F>(
        listener: TcpListener,
        serve: impl Fn(usize, TcpStream) -> F + Send + Sync + 'static,
    ) -> Self
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let address = listener.local_addr().unwrap();
        let accepted = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&accepted);
        let listening = task::spawn("peer", async move {
            let mut connections = tokio::task::JoinSet::new();
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                stream.set_nodelay(true).unwrap();
                connections.spawn(serve(count.fetch_add(1, Ordering::SeqCst), stream));
            }
        });
        Self {
            connector: Arc::new(TcpConnector { address }),
            accepted,
            listening,
        }
    }

    /// That speaks HTTP as it should.
    pub(crate) async fn http<F>(answer: impl Fn(Request<Incoming>) -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = Response<ProxyBody>> + Send + 'static,
    {
        let answer = Arc::new(answer);
        Self::tcp(move |_, stream| {
            let answer = Arc::clone(&answer);
            serve_http(stream, move |request| answer(request))
        })
        .await
    }

    /// That says the same to each request, over and over.
    pub(crate) async fn says(answer: &'static str) -> Self {
        Self::http(move |_| async move { Response::new(dstack_proxy::body::full(answer)) }).await
    }

    /// That writes these bytes after the head of a request, and closes the connection.
    pub(crate) async fn writes(bytes: &'static [u8]) -> Self {
        Self::tcp(move |_, mut stream| async move {
            read_head(&mut stream).await;
            let _ = stream.write_all(bytes).await; // it may have been closed on purpose
            let _ = stream.shutdown().await;
            let _ = stream.read_to_end(&mut Vec::new()).await;
        })
        .await
    }

    pub(crate) fn accepted(&self) -> usize {
        self.accepted.load(Ordering::SeqCst)
    }

    pub(crate) fn replica(&self) -> Replica {
        Replica::new(JobId::new(Uuid::from_u128(1)), Arc::clone(&self.connector))
    }

    /// Ends it with all its connections.
    pub(crate) fn kill(&self) {
        self.listening.abort();
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        self.kill();
    }
}

pub(crate) async fn serve_http<S, F>(stream: S, answer: impl Fn(Request<Incoming>) -> F + Send + 'static)
where
    S: Wire + 'static,
    F: Future<Output = Response<ProxyBody>> + Send + 'static,
{
    let service = service_fn(move |request| {
        let answered = answer(request);
        async move { Ok::<_, Infallible>(answered.await) }
    });
    let connection = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        // Who closes a connection first is for the proxy to say here.
        .header_read_timeout(None)
        .serve_connection(TokioIo::new(stream), service)
        .with_upgrades();
    let _ = connection.await; // broken on purpose by some
}

/// Connections in memory, for virtual time.
#[derive(Debug)]
pub(crate) struct Memory {
    opened: tokio::sync::mpsc::UnboundedSender<DuplexStream>,
}

#[async_trait]
impl Connector for Memory {
    async fn connect(&self) -> io::Result<Box<dyn Wire>> {
        let (ours, theirs) = duplex(16 * 1024);
        self.opened
            .send(theirs)
            .map_err(|_| io::Error::from(io::ErrorKind::ConnectionRefused))?;
        Ok(Box::new(ours))
    }
}

/// A replica in memory, and its ends of the connections to it.
pub(crate) fn memory() -> (Replica, tokio::sync::mpsc::UnboundedReceiver<DuplexStream>) {
    let (opened, connections) = tokio::sync::mpsc::unbounded_channel();
    let replica = Replica::new(JobId::new(Uuid::from_u128(2)), Arc::new(Memory { opened }));
    (replica, connections)
}

/// Refuses connections until it is switched on.
#[derive(Debug)]
pub(crate) struct Switched {
    pub(crate) on: AtomicBool,
    pub(crate) to: Arc<dyn Connector>,
}

#[async_trait]
impl Connector for Switched {
    async fn connect(&self) -> io::Result<Box<dyn Wire>> {
        match self.on.load(Ordering::SeqCst) {
            true => self.to.connect().await,
            false => Err(io::ErrorKind::ConnectionRefused.into()),
        }
    }
}

/// A replica in memory whose connections are refused.
pub(crate) fn refusing() -> Replica {
    memory().0
}

pub(crate) fn service(replicas: impl IntoIterator<Item = Replica>, read_timeout: Duration) -> Service {
    Service {
        run_id: RUN,
        project: "main".to_owned(),
        run: "service".to_owned(),
        created: 0,
        auth: false,
        strip_prefix: true,
        shares_origin: false,
        starts_on_request: false,
        split: None,
        paths: Paths::All,
        read_timeout,
        model: None,
        balancing: Balancing::default(),
        replicas: replicas.into_iter().map(Arc::new).collect(),
    }
}

/// A client's connection in memory to a server that passes all requests on, for virtual time. It holds so many bytes on each way.
pub(crate) fn client_of(service: &Arc<Service>, bytes: usize) -> DuplexStream {
    let (client, server) = duplex(bytes);
    let forwarder = Arc::new(Forwarder::new(Random::seeded(1)));
    let localhost = IpAddr::V4(Ipv4Addr::LOCALHOST);
    task::spawn("proxy", front(server, localhost, Arc::clone(service), forwarder));
    client
}

/// A request over such a connection.
pub(crate) async fn send_over(client: DuplexStream, request: Request<ProxyBody>) -> Response<Incoming> {
    let handshake = hyper::client::conn::http1::handshake(TokioIo::new(client)).await;
    let (mut sender, connection) = handshake.unwrap();
    task::spawn("client", connection);
    sender.send_request(request).await.unwrap()
}

/// A server that passes all requests on.
pub(crate) struct Proxy {
    pub(crate) address: SocketAddr,
    pub(crate) service: Arc<Service>,
    pub(crate) forwarder: Arc<Forwarder>,
    serving: tokio::task::JoinHandle<Option<()>>,
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

impl Proxy {
    pub(crate) async fn of(peers: &[&Peer]) -> Self {
        Self::new(service(
            peers.iter().map(|peer| peer.replica()),
            Duration::from_secs(20),
        ))
        .await
    }

    pub(crate) async fn new(service: Service) -> Self {
        Self::with(service, Forwarder::new(Random::seeded(1))).await
    }

    pub(crate) async fn with(service: Service, forwarder: Forwarder) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (service, forwarder) = (Arc::new(service), Arc::new(forwarder));
        let (to, through) = (Arc::clone(&service), Arc::clone(&forwarder));
        let serving = task::spawn("proxy", async move {
            let mut connections = tokio::task::JoinSet::new();
            loop {
                let (stream, peer) = listener.accept().await.unwrap();
                stream.set_nodelay(true).unwrap();
                connections.spawn(front(stream, peer.ip(), Arc::clone(&to), Arc::clone(&through)));
            }
        });
        Self {
            address,
            service,
            forwarder,
            serving,
        }
    }

    pub(crate) async fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address).await.unwrap();
        stream.set_nodelay(true).unwrap();
        stream
    }

    /// Sends these bytes, and returns all that comes back until the connection is closed.
    pub(crate) async fn raw(&self, request: &str) -> String {
        let mut stream = self.connect().await;
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut all = Vec::new();
        let _ = stream.read_to_end(&mut all).await; // reset by some
        String::from_utf8_lossy(&all).into_owned()
    }

    /// A request over a connection of its own.
    pub(crate) async fn send(&self, request: Request<ProxyBody>) -> hyper::Result<Response<Incoming>> {
        let stream = TokioIo::new(self.connect().await);
        let (mut sender, connection) = hyper::client::conn::http1::handshake(stream).await?;
        task::spawn("client", connection.with_upgrades());
        sender.send_request(request).await
    }

    pub(crate) async fn get(&self, path: &str) -> (u16, String) {
        let answer = self.send(get(path)).await.unwrap();
        let status = answer.status().as_u16();
        let body = answer.into_body().collect().await.unwrap().to_bytes();
        (status, String::from_utf8(body.to_vec()).unwrap())
    }

    pub(crate) fn replica(&self, place: usize) -> &Arc<Replica> {
        &self.service.replicas[place]
    }

    /// Requests by the first digit of their status.
    pub(crate) fn by_class(&self) -> [u64; 5] {
        let snapshot = self.forwarder.stats().snapshot(RUN);
        snapshot.map(|snapshot| snapshot.by_class).unwrap_or_default()
    }
}

pub(crate) fn get(path: &str) -> Request<ProxyBody> {
    request("GET", path, dstack_proxy::body::empty())
}

pub(crate) fn request(method: &str, path: &str, body: ProxyBody) -> Request<ProxyBody> {
    Request::builder()
        .method(method)
        .uri(path)
        .header("host", "service.example")
        .body(body)
        .unwrap()
}

async fn front(stream: impl Wire + 'static, address: IpAddr, to: Arc<Service>, through: Arc<Forwarder>) {
    let client = Client {
        address,
        scheme: Scheme::Http,
        trusted: false,
    };
    let answer = move |request: Request<Incoming>| {
        let (to, through) = (Arc::clone(&to), Arc::clone(&through));
        let mut request = request.map(|body| body.map_err(Into::into).boxed_unsync());
        request.extensions_mut().insert(client);
        async move { through.forward(&to, request).await }
    };
    serve_http(stream, answer).await;
}

/// The head of a message, with its empty line.
pub(crate) async fn read_head(stream: &mut (impl AsyncRead + Unpin)) -> String {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        match stream.read_u8().await {
            Ok(byte) => head.push(byte),
            Err(_) => break,
        }
    }
    String::from_utf8(head).unwrap()
}

/// The first line, and the headers in lower case.
pub(crate) fn parse(head: &str) -> (String, HashMap<String, String>) {
    let mut lines = head.split("\r\n");
    let first = lines.next().unwrap().to_owned();
    let headers = lines.filter_map(|line| line.split_once(": "));
    let lower = |(name, value): (&str, &str)| (name.to_lowercase(), value.to_owned());
    (first, headers.map(lower).collect())
}

/// A body whose pieces are sent one by one.
pub(crate) fn piecewise() -> (tokio::sync::mpsc::Sender<&'static str>, ProxyBody) {
    let (sender, receiver) = tokio::sync::mpsc::channel(1);
    let frames = futures_util::stream::unfold(receiver, |mut receiver| async move {
        let piece: &'static str = receiver.recv().await?;
        let frame = hyper::body::Frame::data(Bytes::from_static(piece.as_bytes()));
        Some((Ok::<_, dstack_proxy::BoxError>(frame), receiver))
    });
    (sender, http_body_util::StreamBody::new(frames).boxed_unsync())
}

/// The next piece of a body.
pub(crate) async fn next(body: &mut Incoming) -> String {
    let frame = body.frame().await.unwrap().unwrap();
    String::from_utf8(frame.into_data().unwrap().to_vec()).unwrap()
}

/// The whole body, or `None` if it broke off.
pub(crate) async fn whole<B: hyper::body::Body>(body: B) -> Option<Bytes> {
    body.collect().await.ok().map(http_body_util::Collected::to_bytes)
}

/// Whether a test goes on within half a minute: machines may be busy.
pub(crate) async fn soon<T>(what: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(30), what)
        .await
        .expect("within half a minute")
}
