//! What a small request costs: a replica, a server in front of it and clients in one process.
//!
//! `cargo run --release -p dstack-proxy --example load [CLIENTS [SECONDS]]` prints requests per second straight to the replica and
//! through the proxy, and how much processor time and how many allocations a request takes, clients and replica included.
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::disallowed_methods,
    unsafe_code
)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use dstack_agent_api::http::TcpConnector;
use dstack_proxy::body::full;
use dstack_proxy::{Balancing, Client, Forward, Forwarder, Paths, ProxyBody, Replica, Scheme, Service};
use dstack_system::task;
use dstack_units::{JobId, RunId};
use http::{Request, Response};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::Instant;
use uuid::Uuid;

struct Counting;

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

// SAFETY: all is passed on to the system's allocator as it is.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: as the caller promises.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: as the caller promises.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: as the caller promises.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[tokio::main]
async fn main() {
    let mut arguments = std::env::args().skip(1).map(|argument| argument.parse().unwrap());
    let clients = arguments.next().unwrap_or(32);
    let time = Duration::from_secs(arguments.next().unwrap_or(5));
    let replica = serve(|_| async { Response::new(full("hello")) }).await;
    let proxy = proxy(replica).await;
    for (name, address) in [("straight", replica), ("proxied", proxy)] {
        load(address, clients, Duration::from_millis(500)).await;
        let (before, used) = (ALLOCATIONS.load(Ordering::Relaxed), processor_time());
        let requests = load(address, clients, time).await;
        let allocations = ALLOCATIONS.load(Ordering::Relaxed) - before;
        let per_second = requests as f64 / time.as_secs_f64();
        let per_request = allocations as f64 / requests as f64;
        let micros = (processor_time() - used).as_secs_f64() * 1e6 / requests as f64;
        println!("{name}: {per_second:.0} requests/s, {micros:.1} µs and {per_request:.1} allocations each");
    }
}

/// Of this process, of all its threads, to 10 ms.
fn processor_time() -> Duration {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
    let fields = stat.rsplit(')').next().unwrap().split_whitespace();
    let ticks: u64 = fields
        .skip(11)
        .take(2)
        .map(|ticks| ticks.parse::<u64>().unwrap())
        .sum();
    Duration::from_millis(10 * ticks)
}

async fn proxy(replica: SocketAddr) -> SocketAddr {
    let connector = TcpConnector { address: replica };
    let replica = Replica::new(JobId::new(Uuid::from_u128(1)), Arc::new(connector));
    let service = Arc::new(Service {
        run_id: RunId::new(Uuid::from_u128(1)),
        project: "main".to_owned(),
        run: "service".to_owned(),
        created: 0,
        auth: false,
        strip_prefix: true,
        shares_origin: false,
        starts_on_request: false,
        split: None,
        paths: Paths::All,
        read_timeout: Duration::from_secs(60),
        model: None,
        balancing: Balancing::default(),
        replicas: vec![Arc::new(replica)],
    });
    let forwarder = Arc::new(Forwarder::default());
    let client = Client {
        address: [127, 0, 0, 1].into(),
        scheme: Scheme::Http,
        trusted: false,
    };
    serve(move |request| {
        let (service, forwarder) = (Arc::clone(&service), Arc::clone(&forwarder));
        let mut request = request.map(|body| body.map_err(Into::into).boxed_unsync());
        request.extensions_mut().insert(client);
        async move { forwarder.forward(&service, request).await }
    })
    .await
}

async fn serve<F>(answer: impl Fn(Request<Incoming>) -> F + Clone + Send + 'static) -> SocketAddr
where
    F: Future<Output = Response<ProxyBody>> + Send + 'static,
{
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    task::spawn("server", async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            stream.set_nodelay(true).unwrap();
            let answer = answer.clone();
            let service = service_fn(move |request| {
                let answered = answer(request);
                async move { Ok::<_, Infallible>(answered.await) }
            });
            let connection = hyper::server::conn::http1::Builder::new()
                .serve_connection(TokioIo::new(stream), service)
                .with_upgrades();
            task::spawn("connection", connection);
        }
    });
    address
}

/// How many requests so many clients get answered in this time.
async fn load(address: SocketAddr, clients: u64, time: Duration) -> u64 {
    let stop = Arc::new(AtomicBool::new(false));
    let clients: Vec<_> = (0..clients)
        .map(|_| task::spawn("client", ask(address, Arc::clone(&stop))))
        .collect();
    tokio::time::sleep_until(Instant::now() + time).await;
    stop.store(true, Ordering::Relaxed);
    let mut requests = 0;
    for client in clients {
        requests += client.await.unwrap().unwrap();
    }
    requests
}

async fn ask(address: SocketAddr, stop: Arc<AtomicBool>) -> u64 {
    const REQUEST: &[u8] =
        b"GET /v1/models HTTP/1.1\r\nHost: service.example\r\nUser-Agent: load\r\nAccept: */*\r\n\r\n";
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.set_nodelay(true).unwrap();
    let mut answer = [0; 1024];
    let mut answered = 0;
    while !stop.load(Ordering::Relaxed) {
        stream.write_all(REQUEST).await.unwrap();
        let length = stream.read(&mut answer).await.unwrap();
        assert!(answer.get(..length).unwrap().ends_with(b"hello"), "in one piece");
        answered += 1;
    }
    answered
}
