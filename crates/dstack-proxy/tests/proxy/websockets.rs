//! Connections that become WebSockets.

use std::sync::Arc;
use std::time::Duration;

use dstack_proxy::replica::Standing;
use dstack_system::task;
use http::{HeaderValue, Response, StatusCode};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};
use tokio::time::{Instant, sleep, timeout};

use crate::harness::*;

pub(crate) const HANDSHAKE: &str = "GET /ws HTTP/1.1\r\nHost: a\r\nConnection: keep-alive, Upgrade\r\nUpgrade: websocket\r\n\
    Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n";

/// Sends back what comes, and `end` once the client's half is closed.
pub(crate) async fn echo() -> Peer {
    Peer::http(|mut request| async move {
        assert_eq!(request.headers()["upgrade"], "websocket");
        assert_eq!(request.headers()["connection"], "upgrade");
        let upgrade = hyper::upgrade::on(&mut request);
        task::spawn("echo", async move {
            let mut stream = TokioIo::new(upgrade.await.unwrap());
            let mut piece = [0; 64];
            loop {
                match stream.read(&mut piece).await.unwrap() {
                    0 => break,
                    length => stream.write_all(&piece[..length]).await.unwrap(),
                }
            }
            stream.write_all(b"end").await.unwrap();
            stream.shutdown().await.unwrap();
        });
        let mut answer = Response::new(dstack_proxy::body::empty());
        *answer.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
        for (name, value) in [
            ("connection", "upgrade"),
            ("upgrade", "websocket"),
            ("sec-websocket-accept", "x"),
        ] {
            answer.headers_mut().insert(name, HeaderValue::from_static(value));
        }
        answer
    })
    .await
}

#[tokio::test]
async fn bytes_go_both_ways_until_both_halves_are_closed() {
    let peer = echo().await;
    let proxy = Proxy::of(&[&peer]).await;
    let mut stream = proxy.connect().await;
    stream.write_all(HANDSHAKE.as_bytes()).await.unwrap();
    let (line, headers) = parse(&soon(read_head(&mut stream)).await);
    assert_eq!(line, "HTTP/1.1 101 Switching Protocols");
    let of = |name: &str| headers.get(name).map(String::as_str);
    assert_eq!(
        (of("connection"), of("upgrade"), of("sec-websocket-accept")),
        (Some("upgrade"), Some("websocket"), Some("x"))
    );
    for piece in [&b"one"[..], b"two"] {
        stream.write_all(piece).await.unwrap();
        let mut back = [0; 3];
        soon(stream.read_exact(&mut back)).await.unwrap();
        assert_eq!(back, piece);
    }
    assert_eq!(proxy.replica(0).in_flight(), 1);
    assert_eq!(proxy.by_class(), [0; 5], "it has not ended yet");
    stream.shutdown().await.unwrap();
    let mut rest = String::new();
    soon(stream.read_to_string(&mut rest)).await.unwrap();
    assert_eq!(rest, "end", "the other half went on");
    soon(proxy.replica(0).idle()).await;
    assert_eq!(proxy.by_class(), [1, 0, 0, 0, 0]);
}

#[tokio::test]
async fn a_replica_that_says_no_is_heard() {
    let peer = Peer::says("no WebSockets here").await;
    let proxy = Proxy::of(&[&peer]).await;
    let mut stream = proxy.connect().await;
    stream.write_all(HANDSHAKE.as_bytes()).await.unwrap();
    let (line, headers) = parse(&soon(read_head(&mut stream)).await);
    assert_eq!(
        (line.as_str(), headers["content-length"].as_str()),
        ("HTTP/1.1 200 OK", "18")
    );
}

#[tokio::test]
async fn what_is_no_handshake_is_an_ordinary_request() {
    let (heads, mut seen) = tokio::sync::mpsc::unbounded_channel();
    let peer = Peer::tcp(move |_, mut stream| {
        let heads = heads.clone();
        async move {
            heads.send(read_head(&mut stream).await).unwrap();
            let answer =
                b"HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: h2c\r\n\r\nxxx";
            stream.write_all(answer).await.unwrap();
            stream.read_to_end(&mut Vec::new()).await.ok();
        }
    })
    .await;
    let proxy = Proxy::of(&[&peer]).await;
    for head in [
        HANDSHAKE.replace("Sec-WebSocket-Key", "X-Key"),
        HANDSHAKE.replace("websocket", "h2c"),
        HANDSHAKE.replace("keep-alive, Upgrade", "keep-alive"),
        HANDSHAKE.replace("GET", "POST"),
    ] {
        let answer = soon(proxy.raw(&head.replace("Host: a", "Host: a\r\nConnection: close"))).await;
        assert!(
            answer.starts_with("HTTP/1.1 502 "),
            "an upgrade that nobody asked for: {answer}"
        );
        let (_, headers) = parse(&seen.recv().await.unwrap());
        assert_eq!((headers.get("upgrade"), headers.get("connection")), (None, None));
        while seen.try_recv().is_ok() {}
    }
}

#[tokio::test]
async fn a_handshake_with_a_body_is_refused() {
    let peer = echo().await;
    let proxy = Proxy::of(&[&peer]).await;
    let head = HANDSHAKE.replace("Host: a", "Host: a\r\nContent-Length: 30");
    let mut stream = proxy.connect().await;
    stream
        .write_all(format!("{head}GET /smuggled HTTP/1.1\r\n\r\n....").as_bytes())
        .await
        .unwrap();
    assert!(soon(read_head(&mut stream)).await.starts_with("HTTP/1.1 400 "));
    assert_eq!(peer.accepted(), 0);
}

#[tokio::test]
async fn a_replica_that_dies_ends_the_connection_of_the_client() {
    let closed = Peer::tcp(|_, mut stream| async move {
        let head = read_head(&mut stream).await;
        assert!(!head.is_empty());
        let answer =
            b"HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\nhello";
        stream.write_all(answer).await.unwrap();
    })
    .await;
    let proxy = Proxy::of(&[&closed]).await;
    let mut stream = proxy.connect().await;
    stream.write_all(HANDSHAKE.as_bytes()).await.unwrap();
    soon(read_head(&mut stream)).await;
    let mut rest = String::new();
    soon(stream.read_to_string(&mut rest)).await.unwrap();
    assert_eq!(rest, "hello");
    drop(stream);
    soon(proxy.replica(0).idle()).await;
}

const SWITCHES: &[u8] =
    b"HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n";

/// A service with one replica in memory, each of whose connections becomes a WebSocket that sends back what comes.
fn in_memory(read_timeout: Duration) -> Arc<dstack_proxy::Service> {
    let (replica, mut connections) = memory();
    task::spawn("peer", async move {
        while let Some(stream) = connections.recv().await {
            task::spawn("peer connection", send_back(stream));
        }
    });
    Arc::new(service([replica], read_timeout))
}

async fn send_back(mut stream: DuplexStream) {
    read_head(&mut stream).await;
    stream.write_all(SWITCHES).await.unwrap();
    while let Ok(byte) = stream.read_u8().await {
        stream.write_all(&[byte]).await.unwrap();
    }
}

async fn begin(client: &mut DuplexStream) {
    client.write_all(HANDSHAKE.as_bytes()).await.unwrap();
    assert!(read_head(client).await.starts_with("HTTP/1.1 101 "));
}

#[tokio::test(start_paused = true)]
async fn a_tunnel_that_nobody_uses_is_closed_after_the_read_timeout() {
    let service = in_memory(Duration::from_secs(60));
    let mut client = client_of(&service, 4096);
    begin(&mut client).await;
    let started = Instant::now();
    for _ in 0..3 {
        sleep(Duration::from_secs(40)).await;
        client.write_all(b"x").await.unwrap();
        assert_eq!(client.read_u8().await.unwrap(), b'x');
    }
    assert_eq!(client.read(&mut [0; 1]).await.unwrap(), 0);
    assert_eq!(started.elapsed().as_secs(), 3 * 40 + 60);
    service.replicas[0].idle().await;
}

#[tokio::test(start_paused = true)]
async fn a_read_timeout_may_be_as_long_as_can_be_written() {
    let service = in_memory(Duration::MAX);
    let mut client = client_of(&service, 4096);
    begin(&mut client).await;
    sleep(Duration::from_secs(24 * 3600)).await;
    client.write_all(b"x").await.unwrap();
    assert_eq!(client.read_u8().await.unwrap(), b'x');
}

#[tokio::test(start_paused = true)]
async fn a_client_that_never_takes_the_answer_to_its_handshake_is_given_up() {
    let service = in_memory(Duration::from_secs(3600));
    let mut client = client_of(&service, 16);
    client.write_all(HANDSHAKE.as_bytes()).await.unwrap();
    let started = Instant::now();
    let idle = timeout(Duration::from_secs(300), async {
        while service.replicas[0].in_flight() == 0 {
            sleep(Duration::from_millis(1)).await;
        }
        service.replicas[0].idle().await;
    });
    idle.await.expect("it ends");
    assert_eq!(started.elapsed().as_secs(), 30);
}

#[tokio::test(start_paused = true)]
async fn a_replica_whose_tunnel_stands_has_done_well() {
    let (replica, mut connections) = memory();
    let service = Arc::new(service([replica], Duration::from_secs(60)));
    let replica = &service.replicas[0];
    task::spawn("peer", async move {
        drop(connections.recv().await);
        task::spawn("peer connection", send_back(connections.recv().await.unwrap()));
        drop(connections.recv().await);
    });
    let pause = async || {
        let answer = send_over(client_of(&service, 4096), get("/")).await;
        assert_eq!(answer.status(), 502);
        match replica.standing() {
            Standing::Out { until } => until - Instant::now(),
            other => panic!("{other:?}"),
        }
    };
    let first = pause().await;
    let mut client = client_of(&service, 4096);
    begin(&mut client).await;
    client.write_all(b"x").await.unwrap();
    client.read_u8().await.unwrap();
    assert_eq!(pause().await, first, "as if it had never failed");
}
