//! What is sent again, and what never is.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use dstack_proxy::body::{empty, full};
use dstack_proxy::{Forward, Forwarder, NotReceived};
use dstack_system::Random;
use http_body_util::BodyExt;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::harness::*;

/// Answers the first request of each connection. The second closes it without an answer, counted.
async fn closing() -> (Peer, Arc<AtomicUsize>) {
    let unanswered = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&unanswered);
    let peer = Peer::tcp(move |_, mut stream| {
        let count = Arc::clone(&count);
        async move {
            read_head(&mut stream).await;
            stream
                .write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok")
                .await
                .unwrap();
            if !read_head(&mut stream).await.is_empty() {
                count.fetch_add(1, Ordering::SeqCst);
            }
        }
    })
    .await;
    (peer, unanswered)
}

async fn status(proxy: &Proxy, method: &str) -> u16 {
    let answer = soon(proxy.send(request(method, "/", empty()))).await.unwrap();
    let status = answer.status().as_u16();
    soon(whole(answer.into_body())).await.unwrap();
    status
}

#[tokio::test]
async fn idempotent_requests_are_sent_again_when_a_used_connection_is_closed() {
    for method in ["GET", "HEAD", "OPTIONS", "PUT", "DELETE"] {
        let (peer, unanswered) = closing().await;
        let proxy = Proxy::of(&[&peer]).await;
        // HEAD would leave the peer's body on the connection.
        assert_eq!(status(&proxy, "GET").await, 200);
        assert_eq!(status(&proxy, method).await, 200, "{method}");
        assert_eq!(
            unanswered.load(Ordering::SeqCst),
            1,
            "the connection was used again"
        );
    }
}

#[tokio::test]
async fn what_is_not_idempotent_is_never_sent_twice() {
    for method in ["POST", "PATCH"] {
        let (peer, unanswered) = closing().await;
        let other = Peer::says("other").await;
        let proxy = Proxy::of(&[&peer]).await;
        assert_eq!(status(&proxy, "GET").await, 200);
        assert_eq!(status(&proxy, method).await, 502, "{method}");
        assert_eq!(unanswered.load(Ordering::SeqCst), 1);
        assert_eq!((peer.accepted(), other.accepted()), (1, 0));
    }
}

#[tokio::test]
async fn a_request_that_cannot_have_arrived_goes_to_another_replica() {
    let echo = Peer::http(|request| async move {
        http::Response::new(full(request.into_body().collect().await.unwrap().to_bytes()))
    })
    .await;
    let proxy = Proxy::new(service(
        [refusing(), refusing(), echo.replica()],
        Duration::from_secs(5),
    ))
    .await;
    for _ in 0..5 {
        let (pieces, body) = piecewise();
        pieces.send("in pieces").await.unwrap();
        drop(pieces);
        let answer = soon(proxy.send(request("POST", "/", body))).await.unwrap();
        assert_eq!(whole(answer.into_body()).await.unwrap(), "in pieces");
    }
    let all_dead = Proxy::new(service(
        [refusing(), refusing(), refusing(), refusing()],
        Duration::from_secs(5),
    ))
    .await;
    assert_eq!(status(&all_dead, "GET").await, 502);
    let out = |place: &usize| {
        !matches!(
            all_dead.replica(*place).standing(),
            dstack_proxy::replica::Standing::Up
        )
    };
    assert_eq!(
        (0..4).filter(out).count(),
        3,
        "three attempts, each on another replica"
    );
}

/// Status, and whether it is certain that no replica has got the request.
async fn received(replicas: Vec<dstack_proxy::Replica>, method: &str) -> (u16, bool) {
    let service = service(replicas, Duration::from_secs(5));
    let forwarder = Forwarder::new(Random::seeded(1));
    let answer = forwarder.forward(&service, request(method, "/", empty())).await;
    let not_received = answer.extensions().get::<NotReceived>().is_some();
    (answer.status().as_u16(), !not_received)
}

#[tokio::test]
async fn an_answer_of_the_proxy_tells_whether_a_replica_may_have_got_the_request() {
    let broken = Peer::writes(b"").await;
    assert_eq!(received(vec![], "GET").await, (503, false));
    assert_eq!(received(vec![refusing(), refusing()], "POST").await, (502, false));
    assert_eq!(received(vec![broken.replica()], "POST").await, (502, true));
    assert_eq!(
        received(vec![broken.replica(), refusing()], "GET").await,
        (502, true),
        "whatever the last one says"
    );
    let answers = Peer::http(|_| async {
        let mut answer = http::Response::new(empty());
        *answer.status_mut() = http::StatusCode::BAD_GATEWAY;
        answer
    })
    .await;
    assert_eq!(received(vec![answers.replica()], "GET").await, (502, true));
}

/// Reads so many bytes of the body, and breaks the connection.
async fn breaking(bytes: usize) -> Peer {
    Peer::tcp(move |_, mut stream| async move {
        read_head(&mut stream).await;
        let mut body = vec![0; bytes];
        stream.read_exact(&mut body).await.unwrap();
    })
    .await
}

async fn put_of(size: usize, first: usize) -> (u16, usize) {
    let broken = breaking(first).await;
    let whole_body = Peer::http(|request| async move {
        let body = request.into_body().collect().await.unwrap().to_bytes();
        assert!(body.iter().all(|byte| *byte == b'x'));
        http::Response::new(full(body.len().to_string()))
    })
    .await;
    let proxy = Proxy::of(&[&broken, &whole_body]).await;
    // Until one of them was sent to the one that breaks it first.
    loop {
        // Without a connection of the client, which would break while it still sends.
        let put = request("PUT", "/", full(vec![b'x'; size]));
        let answer = soon(proxy.forwarder.forward(&proxy.service, put)).await;
        let status = answer.status().as_u16();
        let length = whole(answer.into_body()).await.unwrap();
        if broken.accepted() > 0 {
            return (status, String::from_utf8_lossy(&length).parse().unwrap_or(0));
        }
    }
}

#[tokio::test]
async fn a_small_body_that_was_sent_in_part_is_sent_again_from_its_beginning() {
    assert_eq!(put_of(10_000, 5_000).await, (200, 10_000));
}

#[tokio::test]
async fn a_body_of_which_more_was_sent_than_is_kept_is_not_sent_again() {
    assert_eq!(put_of(2_000_000, 500_000).await, (502, 0));
}

#[tokio::test]
async fn an_answer_that_has_begun_is_never_asked_for_again() {
    let broken = Peer::writes(b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nabc").await;
    let proxy = Proxy::of(&[&broken]).await;
    let answer = soon(proxy.raw("GET / HTTP/1.1\r\nHost: a\r\n\r\n")).await;
    assert!(answer.ends_with("\r\n\r\nabc"), "{answer}");
    assert_eq!(broken.accepted(), 1);
}
