//! Requests that two readers could take for different ones.

use std::sync::{Arc, Mutex};

use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::harness::*;

/// Keeps all that it gets, and answers nothing but the first request of each connection.
async fn recording() -> (Peer, Arc<Mutex<Vec<u8>>>) {
    let all = Arc::new(Mutex::new(Vec::new()));
    let kept = Arc::clone(&all);
    let peer = Peer::tcp(move |_, mut stream| {
        let kept = Arc::clone(&kept);
        async move {
            let mut piece = [0; 4096];
            let mut answered = false;
            while let Ok(length @ 1..) = stream.read(&mut piece).await {
                let whole = {
                    let mut kept = kept.lock().unwrap();
                    kept.extend_from_slice(&piece[..length]);
                    kept.ends_with(b"0\r\n\r\n") || !kept.windows(8).any(|window| window == b"chunked\r")
                };
                if whole && !std::mem::replace(&mut answered, true) {
                    stream
                        .write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok")
                        .await
                        .unwrap();
                }
            }
        }
    })
    .await;
    (peer, all)
}

/// What a replica got of a request, and what the client was answered until its connection was closed.
async fn sent(request: &str) -> (String, String) {
    let (peer, all) = recording().await;
    let proxy = Proxy::of(&[&peer]).await;
    let mut stream = proxy.connect().await;
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    soon(stream.read_to_end(&mut answer)).await.ok();
    let got = all.lock().unwrap().clone();
    (
        String::from_utf8_lossy(&got).into_owned(),
        String::from_utf8_lossy(&answer).into_owned(),
    )
}

#[tokio::test]
async fn what_is_unclear_never_reaches_a_replica() {
    for lines in [
        "Content-Length: 3\r\nContent-Length: 4\r\n\r\nabcd",
        "Content-Length: 3, 4\r\n\r\nabcd",
        "Content-Length: 3, 3\r\n\r\nabc",
        "Content-Length: +3\r\n\r\nabc",
        "Content-Length: -1\r\n\r\nabc",
        "Content-Length: 0x3\r\n\r\nabc",
        "Content-Length: 3 \u{b}\r\n\r\nabc",
        "Content-Length: 99999999999999999999\r\n\r\nabc",
        "Content-Length : 3\r\n\r\nabc",
        " Content-Length: 3\r\n\r\nabc",
        "X: y\r\n Content-Length: 3\r\n\r\nabc",
        "Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n",
        "Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n",
        "Transfer-Encoding: identity\r\n\r\nabc",
        "Transfer-Encoding: identity, chunked\r\n\r\n0\r\n\r\n",
        "Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
        "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        "Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n0\r\n\r\n",
        "Transfer-Encoding: \"chunked\"\r\n\r\n0\r\n\r\n",
        "Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
        "Transfer-Encoding: chunked\u{b}\r\n\r\n0\r\n\r\n",
        "Host: b\r\n\r\n",
        "X\u{0}: y\r\n\r\n",
        "X: a\rb\r\n\r\n",
        "Content-Length: 3\u{0}\r\n\r\nabc",
    ] {
        let (got, answer) = sent(&format!(
            "POST / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n{lines}"
        ))
        .await;
        assert_eq!(got, "", "{lines:?}");
        let status = answer.get(9..12).unwrap_or_default();
        assert!(matches!(status, "400" | "501"), "{lines:?}: {answer}");
    }
    for request in [
        "POST / HTTP/1.0\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        "POST /a b HTTP/1.1\r\nHost: a\r\n\r\n",
        "CONNECT a:1 HTTP/1.1\r\nHost: a:1\r\nConnection: close\r\n\r\n",
        "GET / HTTP/2.0\r\nHost: a\r\n\r\n",
    ] {
        let (got, answer) = sent(request).await;
        assert_eq!(got, "", "{request:?}: {answer}");
    }
}

#[tokio::test]
async fn what_follows_a_request_and_is_none_never_reaches_a_replica() {
    let (got, answer) = sent("POST / HTTP/1.1\r\n\r\nHost: a\r\n\r\n\u{0}").await;
    assert!(got.starts_with("POST / HTTP/1.1\r\n"), "{got}");
    assert_eq!(got.matches("\r\n\r\n").count(), 1, "{got}");
    assert!(got.ends_with("\r\n\r\n") && !got.contains("host: a\r"), "{got}");
    assert_eq!(answer.matches(" 200 OK\r\n").count(), 1, "{answer}");
}

#[tokio::test]
async fn a_body_in_chunks_that_ends_as_it_should_arrives() {
    let head = "POST / HTTP/1.1\r\nHost: a\r\nConnection: close\r\nTransfer-Encoding: chunked";
    let (got, answer) = sent(&format!("{head}\r\n\r\n3\r\nabc\r\n0\r\n\r\n")).await;
    assert!(got.ends_with("\r\n\r\n3\r\nabc\r\n0\r\n\r\n"), "{got}");
    assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
}

#[tokio::test]
async fn bad_chunks_break_the_request_and_are_never_its_end() {
    for body in [
        "zz\r\nabc\r\n0\r\n\r\n",
        "-1\r\n\r\n",
        "3\r\nabcd\r\n0\r\n\r\n",
        "3\nabc\n0\n\n",
        "0x3\r\nabc\r\n0\r\n\r\n",
        "fffffffffffffffff\r\nabc\r\n0\r\n\r\n",
    ] {
        let request = format!(
            "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n{body}GET /smuggled HTTP/1.1\r\n\r\n"
        );
        let (got, answer) = sent(&request).await;
        assert!(
            !got.contains("0\r\n\r\n") && !got.contains("GET"),
            "{body:?}: {got}"
        );
        assert!(!answer.contains("200 OK"), "{body:?}: {answer}");
    }
}

#[tokio::test]
async fn a_length_beside_chunks_is_forgotten_and_the_connection_closed() {
    for lines in [
        "Content-Length: 4\r\nTransfer-Encoding: chunked",
        "Transfer-Encoding: chunked\r\nContent-Length: 4",
        "Transfer-Encoding: chunked\r\nContent-Length: 4\r\nConnection: transfer-encoding",
    ] {
        let request = format!(
            "POST / HTTP/1.1\r\nHost: a\r\n{lines}\r\n\r\n3\r\nabc\r\n0\r\n\r\nGET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n"
        );
        let (peer, all) = recording().await;
        let proxy = Proxy::of(&[&peer]).await;
        let answer = soon(proxy.raw(&request)).await;
        assert_eq!(answer.matches("HTTP/1.1 ").count(), 1, "{lines:?}: {answer}");
        let got = String::from_utf8(all.lock().unwrap().clone()).unwrap();
        let (_, headers) = parse(&got);
        assert_eq!(headers.get("content-length"), None, "{lines:?}");
        assert_eq!(headers["transfer-encoding"], "chunked");
        assert!(got.ends_with("\r\n\r\n3\r\nabc\r\n0\r\n\r\n"), "{got}");
    }
}

#[tokio::test]
async fn equal_lengths_are_one_and_what_follows_is_the_next_request() {
    let (peer, all) = recording().await;
    let proxy = Proxy::of(&[&peer]).await;
    let mut stream = proxy.connect().await;
    let request = "POST /1 HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\nContent-Length: 3\r\n\r\nabc";
    stream.write_all(request.as_bytes()).await.unwrap();
    soon(read_head(&mut stream)).await;
    let got = String::from_utf8(all.lock().unwrap().clone()).unwrap();
    assert_eq!(got.matches("content-length: 3").count(), 1, "{got}");
    assert!(got.ends_with("\r\n\r\nabc"), "{got}");
}

#[tokio::test]
async fn what_a_replica_sends_after_its_answer_is_nobodys() {
    let peer = Peer::tcp(|_, mut stream| async move {
        while !read_head(&mut stream).await.is_empty() {
            let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nokHTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nevil";
            if stream.write_all(answer).await.is_err() {
                return;
            }
        }
    })
    .await;
    let proxy = Proxy::of(&[&peer]).await;
    for _ in 0..10 {
        let (status, body) = soon(proxy.get("/")).await;
        assert_eq!((status, body.as_str()), (200, "ok"));
    }
}
