//! Bodies go through piece by piece, and no faster than they are taken.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use dstack_proxy::body::full;
use dstack_proxy::{BoxError, ProxyBody};
use http::{HeaderMap, HeaderValue, Request, Response};
use http_body_util::{BodyExt, StreamBody};
use hyper::body::{Frame, Incoming};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::harness::*;

#[tokio::test]
async fn pieces_of_an_answer_arrive_as_they_are_sent() {
    let (pieces, body) = piecewise();
    let body = std::sync::Mutex::new(Some(body));
    let peer = Peer::http(move |_| {
        let body = body.lock().unwrap().take().unwrap();
        async move { Response::new(body) }
    })
    .await;
    let proxy = Proxy::of(&[&peer]).await;
    let mut answer = soon(proxy.send(get("/events"))).await.unwrap().into_body();
    for piece in ["data: 1\n\n", "data: 2\n\n", "data: 3\n\n"] {
        // The next one is sent only after this one has arrived.
        pieces.send(piece).await.unwrap();
        assert_eq!(soon(next(&mut answer)).await, piece);
    }
    assert_eq!(proxy.replica(0).in_flight(), 1);
    drop(pieces);
    assert!(soon(answer.frame()).await.is_none());
    soon(proxy.replica(0).idle()).await;
}

#[tokio::test]
async fn pieces_of_a_request_arrive_as_they_are_sent_while_the_answer_comes() {
    let peer =
        Peer::http(
            |request| async move { Response::new(request.into_body().map_err(Into::into).boxed_unsync()) },
        )
        .await;
    let proxy = Proxy::of(&[&peer]).await;
    let (pieces, body) = piecewise();
    let mut answer = soon(proxy.send(request("POST", "/echo", body)))
        .await
        .unwrap()
        .into_body();
    for piece in ["one", "two", "three"] {
        pieces.send(piece).await.unwrap();
        assert_eq!(soon(next(&mut answer)).await, piece);
    }
    drop(pieces);
    assert!(soon(answer.frame()).await.is_none());
}

#[tokio::test]
async fn a_client_that_asks_first_is_told_to_go_on() {
    let peer = Peer::http(|request| async move {
        assert!(!request.headers().contains_key("expect"));
        Response::new(request.into_body().map_err(Into::into).boxed_unsync())
    })
    .await;
    let proxy = Proxy::of(&[&peer]).await;
    let mut stream = proxy.connect().await;
    let head = "POST / HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 4\r\n\r\n";
    stream.write_all(head.as_bytes()).await.unwrap();
    assert_eq!(
        soon(read_head(&mut stream)).await,
        "HTTP/1.1 100 Continue\r\n\r\n"
    );
    stream.write_all(b"body").await.unwrap();
    assert!(
        soon(read_head(&mut stream))
            .await
            .starts_with("HTTP/1.1 200 OK\r\n")
    );
    let mut body = [0; 4];
    stream.read_exact(&mut body).await.unwrap();
    assert_eq!(&body, b"body");
}

fn with_trailers(data: &'static str, trailers: HeaderMap) -> ProxyBody {
    let frames = [
        Frame::data(Bytes::from_static(data.as_bytes())),
        Frame::trailers(trailers),
    ];
    StreamBody::new(futures_util::stream::iter(frames.map(Ok::<_, BoxError>))).boxed_unsync()
}

#[tokio::test]
async fn trailers_go_both_ways() {
    let peer = Peer::http(|request| async move {
        let announced = request.headers()["trailer"].clone();
        let asked = request.headers()["te"].clone();
        let body = request.into_body().collect().await.unwrap();
        let mut trailers = body.trailers().unwrap().clone();
        assert_eq!(
            (&announced, &asked),
            (
                &HeaderValue::from_static("x-sum, x-forwarded-for, cookie"),
                &HeaderValue::from_static("trailers")
            )
        );
        assert_eq!(trailers.len(), 1, "{trailers:?}");
        trailers.insert("x-back", HeaderValue::from_static("2"));
        let mut answer = Response::new(with_trailers("answer", trailers));
        answer
            .headers_mut()
            .insert("trailer", HeaderValue::from_static("x-sum, x-back"));
        answer
    })
    .await;
    let proxy = Proxy::of(&[&peer]).await;
    let mut trailers = HeaderMap::new();
    for name in ["x-sum", "x-forwarded-for", "cookie"] {
        trailers.insert(name, HeaderValue::from_static("1"));
    }
    let mut request = request("POST", "/", with_trailers("request", trailers));
    request.headers_mut().insert(
        "trailer",
        HeaderValue::from_static("x-sum, x-forwarded-for, cookie"),
    );
    request
        .headers_mut()
        .insert("te", HeaderValue::from_static("trailers"));
    let answer = soon(proxy.send(request)).await.unwrap();
    let body = soon(answer.into_body().collect()).await.unwrap();
    let trailers = body.trailers().unwrap();
    assert_eq!(
        (&trailers["x-sum"], &trailers["x-back"]),
        (&HeaderValue::from_static("1"), &HeaderValue::from_static("2"))
    );
    assert_eq!(body.to_bytes(), "answer");
}

#[tokio::test]
async fn a_get_with_a_body_in_chunks_is_passed_on_with_it() {
    let peer = Peer::http(|request| async move {
        Response::new(full(request.into_body().collect().await.unwrap().to_bytes()))
    })
    .await;
    let proxy = Proxy::of(&[&peer]).await;
    let answer = proxy
        .raw("GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n3;x=y\r\nabc\r\n0\r\n\r\n")
        .await;
    assert!(answer.ends_with("\r\n\r\nabc"), "{answer}");
}

const MIB: u64 = 1024 * 1024;

/// So many bytes in pieces of 64 KiB, counted as they are taken.
fn counted(bytes: u64) -> (Arc<AtomicU64>, ProxyBody) {
    const PIECE: u64 = 64 * 1024;
    static ZEROS: [u8; PIECE as usize] = [0; PIECE as usize];
    let taken = Arc::new(AtomicU64::new(0));
    let count = Arc::clone(&taken);
    let frames = (0..bytes / PIECE).map(move |_| {
        count.fetch_add(PIECE, Ordering::SeqCst);
        Ok::<_, BoxError>(Frame::data(Bytes::from_static(&ZEROS)))
    });
    (
        taken,
        StreamBody::new(futures_util::stream::iter(frames)).boxed_unsync(),
    )
}

/// Waits in virtual time until no more is taken.
async fn settled(taken: &AtomicU64) -> u64 {
    let mut before = u64::MAX;
    loop {
        let now = taken.load(Ordering::SeqCst);
        if now == before && now > 0 {
            return now;
        }
        before = now;
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
}

/// What the server in front, the forwarder and the replica hold together at most, with some pieces on their way.
const HELD: u64 = 4 * MIB;

/// A service with a replica in memory whose first connection speaks HTTP as it should.
fn in_memory<F>(answer: impl Fn(Request<Incoming>) -> F + Send + 'static) -> Arc<dstack_proxy::Service>
where
    F: Future<Output = Response<ProxyBody>> + Send + 'static,
{
    let (replica, mut connections) = memory();
    dstack_system::task::spawn("peer", async move {
        serve_http(connections.recv().await.unwrap(), answer).await;
    });
    Arc::new(service([replica], Duration::from_secs(3600)))
}

#[tokio::test(start_paused = true)]
async fn a_large_answer_waits_for_a_client_that_does_not_read() {
    let (taken, body) = counted(100 * MIB);
    let body = std::sync::Mutex::new(Some(body));
    let service = in_memory(move |_| {
        let body = body.lock().unwrap().take().unwrap();
        async move { Response::new(body) }
    });
    let answer = send_over(client_of(&service, 16 * 1024), get("/")).await;
    let held = settled(&taken).await;
    assert!(held < HELD, "{held}");
    let got = whole(answer.into_body()).await.unwrap();
    assert_eq!(got.len() as u64, 100 * MIB);
}

#[tokio::test(start_paused = true)]
async fn a_large_request_waits_for_a_replica_that_does_not_read() {
    let read = Arc::new(tokio::sync::Notify::new());
    let may_read = Arc::clone(&read);
    let service = in_memory(move |request| {
        let read = Arc::clone(&may_read);
        async move {
            read.notified().await;
            let length = request.into_body().collect().await.unwrap().to_bytes().len();
            Response::new(full(length.to_string()))
        }
    });
    let (taken, body) = counted(100 * MIB);
    let check = async {
        let held = settled(&taken).await;
        assert!(held < HELD, "{held}");
        read.notify_one();
    };
    let sent = send_over(client_of(&service, 16 * 1024), request("POST", "/", body));
    let (answer, ()) = tokio::join!(sent, check);
    assert_eq!(whole(answer.into_body()).await.unwrap(), (100 * MIB).to_string());
}

#[tokio::test]
async fn a_client_that_goes_takes_its_request_to_the_replica_with_it() {
    let (gone, is_gone) = tokio::sync::oneshot::channel::<()>();
    let gone = std::sync::Mutex::new(Some(gone));
    let peer = Peer::http(move |_| {
        let gone = gone.lock().unwrap().take();
        async move {
            let _dropped_with_the_request = gone;
            std::future::pending().await
        }
    })
    .await;
    let proxy = Proxy::of(&[&peer]).await;
    let mut stream = proxy.connect().await;
    stream
        .write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
        .await
        .unwrap();
    while proxy.replica(0).in_flight() == 0 {
        tokio::task::yield_now().await;
    }
    drop(stream);
    assert!(soon(is_gone).await.is_err());
    soon(proxy.replica(0).idle()).await;
    assert_eq!(proxy.by_class(), [0, 0, 0, 1, 0]);
    assert!(matches!(
        proxy.replica(0).standing(),
        dstack_proxy::replica::Standing::Up
    ));
}
