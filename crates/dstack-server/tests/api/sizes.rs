//! Compression of answers, and requests that are too large.

use std::io::Read;

use axum::body::Body;
use axum::http::Request;
use http_body_util::BodyExt;
use tower::ServiceExt;

use super::{ADMIN, Server};

/// Content encoding and body of a GET.
async fn get(server: &Server, path: &str, accepted: &str) -> (Option<String>, Vec<u8>) {
    let request = Request::get(path).header("accept-encoding", accepted);
    let request = request.body(Body::empty()).unwrap();
    let response = server.router.clone().oneshot(request).await.unwrap();
    let encoding = response.headers().get("content-encoding");
    let encoding = encoding.map(|value| value.to_str().unwrap().to_owned());
    let body = response.into_body().collect().await.unwrap();
    (encoding, body.to_bytes().to_vec())
}

#[tokio::test]
async fn large_answers_are_compressed_for_those_who_ask() {
    let server = Server::new().await;
    let (encoding, plain) = get(&server, "/openapi.json", "identity").await;
    assert_eq!(encoding, None);
    // What the Python client sends.
    let (encoding, small) = get(&server, "/openapi.json", "gzip, deflate").await;
    assert_eq!(encoding.as_deref(), Some("gzip"));
    assert!(
        small.len() < plain.len() / 4,
        "{} of {}",
        small.len(),
        plain.len()
    );
    let mut unpacked = Vec::new();
    flate2::read::GzDecoder::new(&small[..])
        .read_to_end(&mut unpacked)
        .unwrap();
    assert!(unpacked == plain, "another document");
    let (encoding, _) = get(&server, "/healthcheck", "gzip").await;
    assert_eq!(encoding, None, "not worth it");
}

#[tokio::test]
async fn too_large_a_body_is_refused_with_and_without_its_length() {
    let server = Server::new().await;
    let chunk = vec![b' '; 1024 * 1024];
    let chunks = || std::iter::repeat_n(chunk.clone(), 65).map(Ok::<_, std::io::Error>);
    for declared in [true, false] {
        let mut request = Request::post("/api/users/list")
            .header("authorization", format!("Bearer {ADMIN}"))
            .header("content-type", "application/json");
        if declared {
            request = request.header("content-length", 65 * 1024 * 1024);
        }
        let body = Body::from_stream(futures_util::stream::iter(chunks()));
        let answer = server.send(request.body(body).unwrap()).await;
        assert_eq!(answer.status, 413);
        assert!(answer.body["detail"].as_str().unwrap().contains("64 MiB"));
    }
}
