//! Replicas that answer garbage, die in the middle, or are not there.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use dstack_proxy::replica::Standing;
use dstack_system::task;
use http_body_util::BodyExt;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::harness::*;

#[tokio::test]
async fn what_is_no_answer_is_a_bad_gateway() {
    for garbage in [
        &b""[..],
        b"\x16\x03\x01\x00\x05hello",
        b"SSH-2.0-OpenSSH_9.6\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 5",
        b"HTTP/1.1 20x OK\r\n\r\n",
        b"HTTP/3.0 200 OK\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nbad header\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\nab",
        b"HTTP/1.1 200 OK\r\ncontent-length: -1\r\n\r\nab",
        b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
        b"HTTP/1.0 200 OK\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n",
        b"HTTP/1.1 100 Continue\r\n\r\n",
    ] {
        let peer = Peer::writes(garbage).await;
        let proxy = Proxy::of(&[&peer]).await;
        let text = String::from_utf8_lossy(garbage);
        let (status, body) = soon(proxy.get("/")).await;
        assert_eq!(
            (status, body.as_str()),
            (502, r#"{"detail":"Error requesting upstream"}"#),
            "{text}"
        );
        soon(proxy.replica(0).idle()).await;
        assert!(!matches!(proxy.replica(0).standing(), Standing::Up), "{text}");
        assert_eq!(proxy.by_class(), [0, 0, 0, 0, 1]);
    }
}

#[tokio::test]
async fn an_answer_that_breaks_breaks_for_the_client() {
    for broken in [
        &b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nabc"[..],
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\nzz\r\nabc\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabcdef\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n-1\r\nabc\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nfffffffffffffffff\r\nabc\r\n0\r\n\r\n",
    ] {
        let peer = Peer::writes(broken).await;
        let proxy = Proxy::of(&[&peer]).await;
        let text = String::from_utf8_lossy(broken);
        let raw = soon(proxy.raw("GET / HTTP/1.1\r\nHost: a\r\n\r\n")).await;
        // What breaks at once may break before its head is written.
        assert!(
            raw.is_empty() || raw.starts_with("HTTP/1.1 200 OK\r\n"),
            "{text}: {raw}"
        );
        assert!(!raw.ends_with("0\r\n\r\n"), "{text}: {raw}");
        let answer = soon(proxy.send(get("/"))).await;
        let body = match answer {
            Ok(answer) => soon(whole(answer.into_body())).await,
            Err(_) => None,
        };
        assert_eq!(body, None, "{text}");
        soon(proxy.replica(0).idle()).await;
        assert!(!matches!(proxy.replica(0).standing(), Standing::Up), "{text}");
    }
}

/// A peer that never stops writing the same, once it was asked.
async fn endless(begin: &'static [u8], again: &'static [u8]) -> (Peer, Arc<AtomicUsize>) {
    let written = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&written);
    let peer = Peer::tcp(move |_, mut stream| {
        let count = Arc::clone(&count);
        async move {
            read_head(&mut stream).await;
            stream.write_all(begin).await.unwrap();
            while stream.write_all(again).await.is_ok() {
                count.fetch_add(again.len(), Ordering::SeqCst);
            }
        }
    })
    .await;
    (peer, written)
}

#[tokio::test]
async fn a_head_without_end_is_read_to_its_limit_only() {
    const LINE: &[u8] = b"x-more: xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx\r\n";
    let (peer, written) = endless(b"HTTP/1.1 200 OK\r\n", LINE).await;
    let proxy = Proxy::of(&[&peer]).await;
    assert_eq!(soon(proxy.get("/")).await.0, 502);
    assert!(
        written.load(Ordering::SeqCst) < 16 * 1024 * 1024,
        "what sockets hold"
    );
    let (peer, _) = endless(b"HTTP/1.1 200 OK\r\nx-long: ", &[b'x'; 1024]).await;
    let proxy = Proxy::of(&[&peer]).await;
    assert_eq!(soon(proxy.get("/")).await.0, 502);
}

#[tokio::test]
async fn a_service_without_replicas_is_unavailable_and_the_request_counts() {
    let proxy = Proxy::of(&[]).await;
    assert_eq!(proxy.get("/").await.0, 503);
    assert_eq!(proxy.by_class(), [0, 0, 0, 0, 1]);
}

#[tokio::test]
async fn nothing_else_is_disturbed_by_a_replica_that_breaks() {
    let good = Peer::says("good").await;
    let proxy = Proxy::of(&[&good]).await;
    let bad = Peer::writes(b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nabc").await;
    let broken = Proxy::of(&[&bad]).await;
    for _ in 0..10 {
        let (answer, broken) = tokio::join!(proxy.get("/"), broken.send(get("/")));
        assert_eq!(answer, (200, "good".to_owned()));
        if let Ok(broken) = broken {
            assert_eq!(whole(broken.into_body()).await, None);
        }
    }
}

#[tokio::test]
async fn a_dead_replica_is_left_out_at_once_and_taken_again_later() {
    let again = Peer::says("again").await;
    let dead = Arc::new(Switched {
        on: AtomicBool::new(false),
        to: Arc::clone(&again.connector),
    });
    let good = Peer::says("good").await;
    let replicas = [
        good.replica(),
        dstack_proxy::Replica::new(
            dstack_units::JobId::new(uuid::Uuid::from_u128(9)),
            Arc::clone(&dead) as _,
        ),
    ];
    let proxy = Proxy::new(service(replicas, Duration::from_secs(5))).await;
    while matches!(proxy.replica(1).standing(), Standing::Up) {
        assert_eq!(proxy.get("/").await, (200, "good".to_owned()));
    }
    for _ in 0..5 {
        assert_eq!(proxy.get("/").await, (200, "good".to_owned()));
    }
    dead.on.store(true, Ordering::SeqCst);
    soon(async {
        while proxy.get("/").await.1 != "again" {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await;
    assert!(matches!(proxy.replica(1).standing(), Standing::Up));
    assert!(again.accepted() > 0);
    assert_eq!(proxy.by_class()[4], 0);
}

/// Two replicas that take 2 ms for each request, and a proxy in front of them.
async fn two_slow(seen: &Arc<Mutex<Vec<String>>>) -> ([Peer; 2], Arc<Proxy>) {
    let slow = || {
        let seen = Arc::clone(seen);
        Peer::http(move |request: http::Request<hyper::body::Incoming>| {
            seen.lock().unwrap().push(request.uri().to_string());
            async move {
                tokio::time::sleep(Duration::from_millis(2)).await;
                http::Response::new(dstack_proxy::body::full("ok"))
            }
        })
    };
    let peers = [slow().await, slow().await];
    let proxy = Arc::new(Proxy::of(&[&peers[0], &peers[1]]).await);
    (peers, proxy)
}

/// Statuses of requests of 16 clients, each with a path of its own, while the first replica is killed in the middle.
async fn killed_under_load(method: &'static str, peers: &[Peer; 2], proxy: &Arc<Proxy>) -> Vec<u16> {
    const REQUESTS: usize = 25;
    let clients: Vec<_> = (0..16)
        .map(|client| {
            let proxy = Arc::clone(proxy);
            task::spawn("client", async move {
                let mut statuses = Vec::new();
                for number in 0..REQUESTS {
                    let path = format!("/{client}/{number}");
                    let answer = proxy
                        .send(request(method, &path, dstack_proxy::body::empty()))
                        .await;
                    let answer = answer.unwrap();
                    statuses.push(answer.status().as_u16());
                    whole(answer.into_body()).await.unwrap();
                }
                statuses
            })
        })
        .collect();
    let half = 16 * REQUESTS as u64 / 2;
    soon(async {
        while proxy.by_class().iter().sum::<u64>() < half {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    })
    .await;
    peers[0].kill();
    let mut statuses = Vec::new();
    for client in clients {
        statuses.extend(soon(client).await.unwrap().unwrap());
    }
    assert!(peers[0].accepted() > 0, "it was used before");
    statuses
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_get_fails_when_a_replica_is_killed_under_load() {
    let (peers, proxy) = two_slow(&Arc::default()).await;
    let statuses = killed_under_load("GET", &peers, &proxy).await;
    assert!(statuses.iter().all(|status| *status == 200), "{statuses:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_post_arrives_twice_when_a_replica_is_killed_under_load() {
    let seen = Arc::default();
    let (peers, proxy) = two_slow(&seen).await;
    let statuses = killed_under_load("POST", &peers, &proxy).await;
    let failed = statuses.iter().filter(|status| **status == 502).count();
    let served = statuses.iter().filter(|status| **status == 200).count();
    assert_eq!(failed + served, statuses.len(), "{statuses:?}");
    assert!(failed < served, "what was under way at the replica: {failed}");
    let mut seen = seen.lock().unwrap().clone();
    let arrived = seen.len();
    seen.sort_unstable();
    seen.dedup();
    assert_eq!(seen.len(), arrived, "none twice");
    assert!(arrived >= served, "{arrived}");
}

#[tokio::test]
async fn a_client_that_breaks_its_request_off_is_not_the_fault_of_the_replica() {
    let peer = Peer::tcp(|_, mut stream| async move {
        stream.read_to_end(&mut Vec::new()).await.ok();
    })
    .await;
    let proxy = Proxy::of(&[&peer]).await;
    for request in [
        "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\nabc",
        "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n",
        "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\nzz\r\n",
    ] {
        let mut stream = proxy.connect().await;
        stream.write_all(request.as_bytes()).await.unwrap();
        while proxy.replica(0).in_flight() == 0 {
            tokio::task::yield_now().await;
        }
        stream.shutdown().await.unwrap();
        soon(stream.read_to_end(&mut Vec::new())).await.ok();
        soon(proxy.replica(0).idle()).await;
        assert!(matches!(proxy.replica(0).standing(), Standing::Up), "{request}");
    }
    assert_eq!(proxy.by_class(), [0, 0, 0, 3, 0]);
}

#[tokio::test]
async fn nor_is_it_when_the_answer_has_begun() {
    let peer = Peer::http(|request| async move {
        http::Response::new(request.into_body().map_err(Into::into).boxed_unsync())
    })
    .await;
    let proxy = Proxy::of(&[&peer]).await;
    let mut stream = proxy.connect().await;
    let begin = "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n";
    stream.write_all(begin.as_bytes()).await.unwrap();
    soon(read_head(&mut stream)).await;
    stream.write_all(b"zz\r\n").await.unwrap();
    let mut rest = String::new();
    soon(stream.read_to_string(&mut rest)).await.ok();
    assert!(!rest.ends_with("0\r\n\r\n"), "{rest}");
    soon(proxy.replica(0).idle()).await;
    assert!(matches!(proxy.replica(0).standing(), Standing::Up));
}
