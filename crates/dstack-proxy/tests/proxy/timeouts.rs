//! Replicas and clients that are silent, in virtual time.

use std::time::Duration;

use dstack_proxy::body::{empty, full};
use dstack_proxy::replica::{PoolSettings, Standing};
use dstack_proxy::{Forward, Forwarder};
use dstack_system::task;
use http_body_util::BodyExt;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};
use tokio::time::{Instant, sleep};

use crate::harness::*;

const READ_TIMEOUT: Duration = Duration::from_secs(60);

/// As much as a client has to send in nearly a minute.
fn a_minute_of_bytes() -> &'static str {
    "x".repeat(60 * 1024).leak()
}

/// A service with one replica, of whose first connection the peer takes care.
fn peer<F>(serve: impl FnOnce(DuplexStream) -> F + Send + 'static) -> dstack_proxy::Service
where
    F: Future<Output = ()> + Send + 'static,
{
    let (replica, mut connections) = memory();
    task::spawn("peer", async move {
        let stream = connections.recv().await.unwrap();
        serve(stream).await;
    });
    service([replica], READ_TIMEOUT)
}

#[tokio::test(start_paused = true)]
async fn a_replica_that_does_not_answer_is_given_up_after_the_read_timeout() {
    let (read, what_was_read) = tokio::sync::oneshot::channel();
    let service = peer(|mut stream| async move {
        read_head(&mut stream).await;
        read.send(stream.read(&mut [0; 1]).await.unwrap()).unwrap();
    });
    let started = Instant::now();
    let answer = Forwarder::default().forward(&service, get("/")).await;
    assert_eq!((answer.status().as_u16(), started.elapsed()), (504, READ_TIMEOUT));
    assert_eq!(
        whole(answer.into_body()).await.unwrap(),
        r#"{"detail":"Timed out requesting upstream"}"#
    );
    assert!(
        matches!(service.replicas[0].standing(), Standing::Up),
        "it may be slow only"
    );
    service.replicas[0].idle().await;
    assert_eq!(
        what_was_read.await.unwrap(),
        0,
        "it is told that nobody waits any more"
    );
}

#[tokio::test(start_paused = true)]
async fn limits_may_be_as_long_as_can_be_written() {
    let (replica, mut connections) = memory();
    task::spawn("peer", async move {
        let mut stream = connections.recv().await.unwrap();
        while !read_head(&mut stream).await.is_empty() {
            sleep(READ_TIMEOUT).await;
            let head = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\na";
            stream.write_all(head).await.unwrap();
            sleep(READ_TIMEOUT).await;
            stream.write_all(b"b").await.unwrap();
        }
    });
    let replica = replica.with_pool(PoolSettings {
        connect_timeout: Duration::MAX,
        idle_limit: Duration::MAX,
        idle_limit_once: Duration::MAX,
        ..PoolSettings::default()
    });
    let service = service([replica], Duration::MAX);
    let forwarder = Forwarder::default();
    for method in ["GET", "POST"] {
        let answer = forwarder.forward(&service, request(method, "/", empty())).await;
        assert_eq!(whole(answer.into_body()).await.unwrap(), "ab");
    }
}

#[tokio::test(start_paused = true)]
async fn an_answer_may_take_as_long_as_it_likes_if_it_is_not_silent() {
    let service = peer(|mut stream| async move {
        read_head(&mut stream).await;
        sleep(READ_TIMEOUT - Duration::from_secs(1)).await;
        stream
            .write_all(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
            .await
            .unwrap();
        for _ in 0..20 {
            sleep(READ_TIMEOUT - Duration::from_secs(1)).await;
            stream.write_all(b"1\r\nx\r\n").await.unwrap();
        }
        sleep(READ_TIMEOUT + Duration::from_secs(1)).await;
        stream.write_all(b"0\r\n\r\n").await.ok();
    });
    let started = Instant::now();
    let answer = Forwarder::default().forward(&service, get("/")).await;
    assert_eq!(answer.status(), 200);
    let mut body = answer.into_body();
    for _ in 0..20 {
        assert_eq!(body.frame().await.unwrap().unwrap().into_data().unwrap(), "x");
    }
    assert!(started.elapsed() > READ_TIMEOUT * 20);
    let waited = Instant::now();
    let error = body.frame().await.unwrap().unwrap_err();
    assert_eq!(error.to_string(), "the replica has been silent for 60 s");
    assert_eq!(waited.elapsed(), READ_TIMEOUT);
    assert!(body.frame().await.is_none());
    service.replicas[0].idle().await;
}

#[tokio::test(start_paused = true)]
async fn a_client_that_reads_slowly_is_no_silent_replica() {
    let service = peer(|mut stream| async move {
        read_head(&mut stream).await;
        stream
            .write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\na")
            .await
            .unwrap();
        sleep(READ_TIMEOUT * 3 + Duration::from_secs(30)).await;
        stream.write_all(b"b").await.unwrap();
    });
    let mut body = Forwarder::default().forward(&service, get("/")).await.into_body();
    assert_eq!(body.frame().await.unwrap().unwrap().into_data().unwrap(), "a");
    sleep(READ_TIMEOUT * 3).await;
    assert_eq!(whole(body).await.unwrap(), "b");
}

#[tokio::test(start_paused = true)]
async fn a_request_may_take_as_long_as_it_likes_and_its_answer_has_time_after_it() {
    let service = peer(|mut stream| async move {
        read_head(&mut stream).await;
        let mut body = Vec::new();
        while !body.ends_with(b"0\r\n\r\n") {
            body.push(stream.read_u8().await.unwrap());
        }
        sleep(READ_TIMEOUT - Duration::from_secs(1)).await;
        stream
            .write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")
            .await
            .unwrap();
    });
    let (pieces, body) = piecewise();
    task::spawn("client", async move {
        for _ in 0..5 {
            sleep(READ_TIMEOUT - Duration::from_secs(1)).await;
            pieces.send(a_minute_of_bytes()).await.unwrap();
        }
    });
    let answer = Forwarder::default()
        .forward(&service, request("POST", "/", body))
        .await;
    assert_eq!(answer.status(), 200);
}

#[tokio::test(start_paused = true)]
async fn a_client_that_trickles_its_request_is_told_so_after_a_minute() {
    let service = peer(|mut stream| async move {
        stream.read_to_end(&mut Vec::new()).await.unwrap();
    });
    let (pieces, body) = piecewise();
    task::spawn("client", async move {
        while pieces.send("piece").await.is_ok() {
            sleep(Duration::from_secs(1)).await;
        }
    });
    let started = Instant::now();
    let answer = Forwarder::default()
        .forward(&service, request("POST", "/", body))
        .await;
    assert_eq!((answer.status().as_u16(), started.elapsed().as_secs()), (408, 60));
    assert!(
        matches!(service.replicas[0].standing(), Standing::Up),
        "it has done nothing wrong"
    );
    service.replicas[0].idle().await;
}

#[tokio::test(start_paused = true)]
async fn a_client_may_be_slow_once_it_is_answered() {
    let service = peer(|mut stream| async move {
        read_head(&mut stream).await;
        stream.read_exact(&mut [0; 5]).await.unwrap();
        stream
            .write_all(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
            .await
            .unwrap();
        while stream.read_u8().await.is_ok() {}
    });
    let (pieces, body) = piecewise();
    let client = task::spawn("client", async move {
        for _ in 0..100 {
            pieces.send("piece").await.unwrap();
            sleep(Duration::from_secs(2)).await;
        }
    });
    let answer = Forwarder::default()
        .forward(&service, request("POST", "/", body))
        .await;
    assert_eq!(answer.status(), 200);
    let reading = task::spawn("reader", whole(answer.into_body()));
    client.await.unwrap().unwrap();
    drop(reading);
}

#[tokio::test(start_paused = true)]
async fn a_replica_that_answers_early_may_be_silent_while_it_gets_the_request() {
    let service = peer(|mut stream| async move {
        read_head(&mut stream).await;
        let head = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n";
        stream.write_all(head).await.unwrap();
        stream.read_to_end(&mut Vec::new()).await.unwrap();
    });
    let (pieces, body) = piecewise();
    let answer = Forwarder::default()
        .forward(&service, request("POST", "/", body))
        .await;
    let started = Instant::now();
    let client = task::spawn("client", async move {
        for _ in 0..5 {
            sleep(READ_TIMEOUT - Duration::from_secs(1)).await;
            pieces.send("piece").await.unwrap();
        }
        pieces.closed().await;
        started.elapsed()
    });
    assert_eq!(whole(answer.into_body()).await, None);
    assert_eq!(
        started.elapsed(),
        (READ_TIMEOUT - Duration::from_secs(1)) * 5 + READ_TIMEOUT
    );
    assert_eq!(
        client.await.unwrap().unwrap(),
        started.elapsed(),
        "the rest of the request is not read"
    );
}

#[tokio::test(start_paused = true)]
async fn a_client_that_is_silent_in_its_request_is_told_so() {
    let service = peer(|mut stream| async move {
        stream.read_to_end(&mut Vec::new()).await.unwrap();
    });
    let (pieces, body) = piecewise();
    pieces.send("piece").await.unwrap();
    let answer = Forwarder::default()
        .forward(&service, request("POST", "/", body))
        .await;
    assert_eq!(answer.status(), 408);
    assert!(pieces.is_closed(), "nobody reads on");
    service.replicas[0].idle().await;
}

#[tokio::test(start_paused = true)]
async fn a_replica_that_does_not_read_is_given_up_as_well() {
    let service = peer(|stream| async move {
        std::future::pending::<()>().await;
        drop(stream);
    });
    let answer = Forwarder::default()
        .forward(&service, request("POST", "/", full(vec![0; 10_000_000])))
        .await;
    assert_eq!(answer.status(), 504);
}

#[tokio::test(start_paused = true)]
async fn a_replica_that_cannot_be_connected_to_is_given_up_after_ten_seconds() {
    #[derive(Debug)]
    struct Never;
    #[async_trait::async_trait]
    impl dstack_agent_api::http::Connector for Never {
        async fn connect(&self) -> std::io::Result<Box<dyn dstack_agent_api::http::Wire>> {
            std::future::pending().await
        }
    }
    let replica = dstack_proxy::Replica::new(
        dstack_units::JobId::new(uuid::Uuid::from_u128(1)),
        std::sync::Arc::new(Never),
    );
    let service = service([replica], READ_TIMEOUT);
    let started = Instant::now();
    let answer = Forwarder::default()
        .forward(&service, request("GET", "/", empty()))
        .await;
    assert_eq!((answer.status().as_u16(), started.elapsed().as_secs()), (502, 10));
}
