//! Connections to replicas are used again, and not when they should not be.

use std::time::Duration;

use dstack_proxy::Forward;
use dstack_proxy::body::{empty, full};
use dstack_proxy::replica::PoolSettings;
use http::Response;
use http_body_util::BodyExt;
use tokio::io::AsyncWriteExt;

use crate::harness::*;

#[tokio::test]
async fn one_connection_serves_requests_one_after_the_other() {
    let peer = Peer::http(|request| async move {
        let method = request.method().clone();
        let body = request.into_body().collect().await.unwrap().to_bytes();
        let mut answer = Response::new(match method.as_str() {
            "DELETE" => empty(),
            _ => full(body),
        });
        if method == "DELETE" {
            *answer.status_mut() = http::StatusCode::NO_CONTENT;
        }
        answer
    })
    .await;
    let proxy = Proxy::of(&[&peer]).await;
    for _ in 0..5 {
        let (pieces, body) = piecewise();
        pieces.send("in pieces").await.unwrap();
        drop(pieces);
        for (method, body, answer) in [
            ("GET", empty(), ""),
            ("HEAD", empty(), ""),
            ("PUT", full("abc"), "abc"),
            ("PUT", body, "in pieces"),
            ("DELETE", empty(), ""),
        ] {
            let got = proxy.send(request(method, "/", body)).await.unwrap();
            assert_eq!(whole(got.into_body()).await.unwrap(), answer, "{method}");
        }
    }
    assert_eq!(peer.accepted(), 1);
    assert_eq!(proxy.by_class(), [0, 25, 0, 0, 0]);
    soon(proxy.replica(0).idle()).await;
}

#[tokio::test]
async fn requests_at_the_same_time_have_connections_of_their_own() {
    let both = std::sync::Arc::new(tokio::sync::Barrier::new(2));
    let peer = Peer::http(move |_| {
        let both = std::sync::Arc::clone(&both);
        async move {
            both.wait().await;
            Response::new(empty())
        }
    })
    .await;
    let proxy = Proxy::of(&[&peer]).await;
    for _ in 0..3 {
        let answers = soon(async { tokio::join!(proxy.get("/1"), proxy.get("/2")) }).await;
        assert_eq!((answers.0.0, answers.1.0), (200, 200));
    }
    assert_eq!(peer.accepted(), 2);
}

#[tokio::test]
async fn a_connection_whose_replica_says_close_is_not_used_again() {
    let peer = Peer::writes(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\nok").await;
    let proxy = Proxy::of(&[&peer]).await;
    for _ in 0..3 {
        assert_eq!(proxy.get("/").await, (200, "ok".to_owned()));
    }
    assert_eq!(peer.accepted(), 3);
}

/// A replica in memory answers each request on each connection, which it counts.
fn counted(
    settings: PoolSettings,
) -> (
    dstack_proxy::Service,
    std::sync::Arc<std::sync::atomic::AtomicUsize>,
) {
    let (replica, mut connections) = memory();
    let count = std::sync::Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let counted = std::sync::Arc::clone(&count);
    dstack_system::task::spawn("peer", async move {
        while let Some(stream) = connections.recv().await {
            counted.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
            dstack_system::task::spawn("peer connection", async move {
                serve_http(stream, |_| async { Response::new(full("ok")) }).await;
            });
        }
    });
    (
        service([replica.with_pool(settings)], Duration::from_secs(20)),
        count,
    )
}

async fn ask(forwarder: &dstack_proxy::Forwarder, service: &dstack_proxy::Service, method: &str) {
    let answer = forwarder.forward(service, request(method, "/", empty())).await;
    assert_eq!(whole(answer.into_body()).await.unwrap(), "ok");
}

#[tokio::test(start_paused = true)]
async fn connections_wait_for_half_a_minute_and_for_requests_that_are_sent_once_for_less() {
    let (service, count) = counted(PoolSettings::default());
    let opened = || count.load(std::sync::atomic::Ordering::SeqCst);
    let forwarder = dstack_proxy::Forwarder::default();
    for (pause, method, connections) in [
        (0.0, "GET", 1),
        (29.0, "GET", 1),
        (1.4, "POST", 1),
        (1.6, "POST", 2),
        (1.6, "GET", 2),
        (31.0, "GET", 3),
    ] {
        tokio::time::sleep(Duration::from_secs_f64(pause)).await;
        ask(&forwarder, &service, method).await;
        assert_eq!(opened(), connections, "{method} after {pause} s");
    }
}

#[tokio::test(start_paused = true)]
async fn connections_that_wait_are_closed_after_their_time_and_with_their_replica() {
    let (replica, mut connections) = memory();
    let service = service([replica], Duration::from_secs(20));
    let forwarder = dstack_proxy::Forwarder::default();
    let started = tokio::time::Instant::now();
    let closed = dstack_system::task::spawn("peer", async move {
        let mut times = Vec::new();
        for _ in 0..2 {
            let stream = connections.recv().await.unwrap();
            serve_http(stream, |_| async { Response::new(full("ok")) }).await;
            times.push(started.elapsed().as_secs());
        }
        times
    });
    ask(&forwarder, &service, "GET").await;
    tokio::time::sleep(Duration::from_secs(31)).await;
    ask(&forwarder, &service, "GET").await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    drop(service);
    assert_eq!(closed.await.unwrap().unwrap(), [30, 32]);
}

#[tokio::test(start_paused = true)]
async fn what_the_replica_says_of_its_patience_is_believed() {
    let (replica, mut connections) = memory();
    let service = service([replica], Duration::from_secs(20));
    let forwarder = dstack_proxy::Forwarder::default();
    let peer = dstack_system::task::spawn("peer", async move {
        for _ in 0..2 {
            let mut stream = connections.recv().await.unwrap();
            dstack_system::task::spawn("peer connection", async move {
                while !read_head(&mut stream).await.is_empty() {
                    let answer = b"HTTP/1.1 200 OK\r\nkeep-alive: timeout=5\r\ncontent-length: 2\r\n\r\nok";
                    stream.write_all(answer).await.unwrap();
                }
            });
        }
    });
    ask(&forwarder, &service, "GET").await;
    tokio::time::sleep(Duration::from_millis(3900)).await;
    ask(&forwarder, &service, "GET").await;
    assert!(!peer.is_finished(), "the same connection");
    tokio::time::sleep(Duration::from_millis(4100)).await;
    ask(&forwarder, &service, "GET").await;
    soon(peer).await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn no_more_connections_wait_than_set() {
    let settings = PoolSettings {
        most_idle: 2,
        ..PoolSettings::default()
    };
    let (service, count) = counted(settings);
    let forwarder = dstack_proxy::Forwarder::default();
    for _ in 0..2 {
        futures_util::future::join_all((0..5).map(|_| ask(&forwarder, &service, "GET"))).await;
    }
    assert_eq!(count.load(std::sync::atomic::Ordering::SeqCst), 5 + 3);
}

#[tokio::test]
async fn the_replica_is_told_who_asks_and_the_client_not_who_answers() {
    let (heads, mut seen) = tokio::sync::mpsc::unbounded_channel();
    let peer = Peer::tcp(move |_, mut stream| {
        let heads = heads.clone();
        async move {
            heads.send(read_head(&mut stream).await).unwrap();
            let answer =
                b"HTTP/1.1 200 Fine\r\nserver: x\r\ndate: y\r\nkeep-alive: timeout=5\r\nx-of: replica\r\n\
                content-length: 0\r\n\r\n";
            stream.write_all(answer).await.unwrap();
        }
    })
    .await;
    let proxy = Proxy::of(&[&peer]).await;
    let answer = proxy
        .raw("GET //a%2Fb/..;/%e4?q=%20&& HTTP/1.1\r\nHost: service.example:80\r\nX-Forwarded-For: 1.2.3.4\r\nConnection: close\r\n\r\n")
        .await;
    let (line, headers) = parse(&seen.recv().await.unwrap());
    assert_eq!(line, "GET //a%2Fb/..;/%e4?q=%20&& HTTP/1.1");
    let mut told: Vec<String> = headers
        .iter()
        .map(|(name, value)| format!("{name}: {value}"))
        .collect();
    told.sort_unstable();
    assert_eq!(
        told,
        [
            "host: service.example:80",
            "x-forwarded-for: 127.0.0.1",
            "x-forwarded-host: service.example:80",
            "x-forwarded-proto: http",
            "x-real-ip: 127.0.0.1",
        ]
    );
    let (line, mut headers) = parse(&answer);
    assert_eq!(line, "HTTP/1.1 200 Fine");
    let date = headers.remove("date").unwrap();
    assert!(date.ends_with("GMT"), "{date}");
    let mut told: Vec<String> = headers
        .iter()
        .map(|(name, value)| format!("{name}: {value}"))
        .collect();
    told.sort_unstable();
    assert_eq!(told, ["connection: close", "content-length: 0", "x-of: replica"]);
}

#[tokio::test]
async fn what_an_answer_says_of_the_whole_address_stays_there_if_services_share_it() {
    let peer = Peer::http(|_| async {
        let mut answer = Response::new(empty());
        for name in [
            "service-worker-allowed",
            "clear-site-data",
            "strict-transport-security",
            "x-of",
        ] {
            let value = http::HeaderValue::from_static("x");
            answer.headers_mut().insert(name, value);
        }
        answer
    })
    .await;
    for (shares_origin, passed_on) in [(true, 1), (false, 4)] {
        let of_one = service([peer.replica()], Duration::from_secs(20));
        let service = dstack_proxy::Service {
            shares_origin,
            ..of_one
        };
        let answer = dstack_proxy::Forwarder::default()
            .forward(&service, get("/"))
            .await;
        let lines = answer.headers().values().filter(|value| *value == "x");
        assert_eq!(lines.count(), passed_on);
    }
}

#[tokio::test]
async fn the_host_of_an_absolute_uri_counts() {
    let peer = Peer::http(|request| async move {
        let host = request.headers()["host"].to_str().unwrap();
        Response::new(full(format!("{} {host}", request.uri())))
    })
    .await;
    let proxy = Proxy::of(&[&peer]).await;
    let head = "GET http://b:81/x?y HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";
    let answer = soon(proxy.raw(head)).await;
    assert!(answer.ends_with("\r\n\r\n/x?y b:81"), "{answer}");
    let answer = soon(proxy.raw("GET / HTTP/1.0\r\n\r\n")).await;
    assert!(answer.ends_with("\r\n\r\n/ localhost"), "{answer}");
}

#[tokio::test]
async fn a_replica_of_http_1_0_is_read_to_its_end() {
    let peer = Peer::writes(b"HTTP/1.0 200 OK\r\n\r\nall of it").await;
    let proxy = Proxy::of(&[&peer]).await;
    for _ in 0..2 {
        assert_eq!(proxy.get("/").await, (200, "all of it".to_owned()));
    }
    assert_eq!(peer.accepted(), 2);
}

#[tokio::test]
async fn an_answer_may_come_before_the_request_is_complete() {
    let peer = Peer::http(|_| async move {
        let mut answer = Response::new(full("too much"));
        *answer.status_mut() = http::StatusCode::PAYLOAD_TOO_LARGE;
        answer
    })
    .await;
    let proxy = Proxy::of(&[&peer]).await;
    let (pieces, body) = piecewise();
    pieces.send("piece").await.unwrap();
    let answer = soon(proxy.send(request("POST", "/", body))).await.unwrap();
    assert_eq!(answer.status(), 413);
    assert_eq!(whole(answer.into_body()).await.unwrap(), "too much");
    soon(proxy.replica(0).idle()).await;
    assert_eq!(proxy.get("/").await.0, 413, "over another connection");
    assert_eq!(peer.accepted(), 2);
    assert_eq!(proxy.by_class(), [0, 0, 0, 2, 0]);
}

#[tokio::test]
async fn the_length_of_an_answer_without_a_body_is_passed_on() {
    let peer = Peer::writes(b"HTTP/1.1 200 OK\r\ncontent-length: 12345\r\n\r\n").await;
    let proxy = Proxy::of(&[&peer]).await;
    let answer = proxy
        .raw("HEAD / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
        .await;
    assert_eq!(parse(&answer).1["content-length"], "12345");
    assert!(answer.ends_with("\r\n\r\n"), "{answer}");
}

#[tokio::test]
async fn a_retired_replica_gets_nothing_more_also_of_those_who_still_know_it() {
    let peers = [Peer::says("first").await, Peer::says("second").await];
    let proxy = Proxy::of(&[&peers[0], &peers[1]]).await;
    proxy.replica(0).retire();
    for _ in 0..10 {
        assert_eq!(proxy.get("/").await, (200, "second".to_owned()));
    }
    assert_eq!(peers[0].accepted(), 0);
    proxy.replica(1).retire();
    assert_eq!(proxy.get("/").await.0, 503);
    soon(async { tokio::join!(proxy.replica(0).idle(), proxy.replica(1).idle()) }).await;
    proxy.replica(0).readmit();
    assert_eq!(proxy.get("/").await, (200, "first".to_owned()));
}
