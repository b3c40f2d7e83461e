//! `/`: where somebody arrives who only knows the server's address.

use axum::body::Body;
use axum::http::{HeaderMap, Request};
use dstack_server::site::{File, Site};
use http_body_util::BodyExt;
use tower::ServiceExt;

use super::{Server, TestServer};

async fn root(server: &Server, accept: Option<&str>) -> (String, String) {
    let mut request = Request::builder().uri("/");
    if let Some(accept) = accept {
        request = request.header("accept", accept);
    }
    let response = server
        .router
        .clone()
        .oneshot(request.body(Body::empty()).unwrap())
        .await
        .unwrap();
    assert_eq!(response.status(), 200);
    let kind = response.headers()["content-type"].to_str().unwrap().to_owned();
    let bytes = response.into_body().collect().await.unwrap().to_bytes();
    (kind, String::from_utf8(bytes.to_vec()).unwrap())
}

#[tokio::test]
async fn browsers_get_a_page_and_programs_are_told_where_the_api_is_described() {
    let server = Server::new().await;
    let (kind, page) = root(&server, Some("text/html,application/xhtml+xml,*/*;q=0.8")).await;
    assert_eq!(kind, "text/html; charset=utf-8");
    assert!(
        page.contains("href=\"/api/docs\"") && page.contains("dstack apply"),
        "{page}"
    );
    for accept in [None, Some("*/*"), Some("application/json")] {
        let (kind, body) = root(&server, accept).await;
        assert_eq!(kind, "application/json");
        let body: serde_json::Value = serde_json::from_str(&body).unwrap();
        assert_eq!(
            (&body["docs"], &body["openapi"]),
            (&"/api/docs".into(), &"/openapi.json".into())
        );
    }
}

/// A page with one file, as a build would have it.
fn site() -> Site {
    let file = |path, plain, brotli| File {
        path,
        plain,
        brotli,
        gzip: None,
    };
    Site::of([
        file(
            "index.html",
            b"<head><base href=\"/\" /><title>page</title>".as_slice(),
            None,
        ),
        file(
            "assets/a-1.js",
            b"plain script".as_slice(),
            Some(b"packed".as_slice()),
        ),
        file("favicon.svg", b"<svg/>".as_slice(), None),
    ])
}

struct Found {
    status: u16,
    headers: HeaderMap,
    body: String,
}

async fn get(server: &Server, method: &str, path: &str, headers: &[(&str, &str)]) -> Found {
    let mut request = Request::builder().method(method).uri(path);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let request = request.body(Body::empty()).unwrap();
    let response = server.router.clone().oneshot(request).await.unwrap();
    let (status, headers) = (response.status().as_u16(), response.headers().clone());
    let bytes = response.into_body().collect().await.unwrap().to_bytes();
    Found {
        status,
        headers,
        body: String::from_utf8(bytes.to_vec()).unwrap(),
    }
}

const BROWSER: (&str, &str) = ("accept", "text/html,*/*;q=0.8");

#[tokio::test]
async fn links_into_the_page_work_wherever_it_is_served() {
    let server = TestServer::new().site(site()).start().await;
    for (path, base) in [
        ("/", "./"),
        ("/runs", "./"),
        ("/projects/main/runs/0af?x=1", "../../../"),
        ("/auth/github/callback?code=c", "../../"),
    ] {
        let found = get(&server, "GET", path, &[BROWSER]).await;
        assert_eq!(found.status, 200, "{path}");
        assert_eq!(
            found.body,
            format!("<head><base href=\"{base}\" /><title>page</title>")
        );
        assert_eq!(found.headers["cache-control"], "no-cache");
        let policy = found.headers["content-security-policy"].to_str().unwrap();
        assert!(
            policy.contains("default-src 'none'; script-src 'self'") && !policy.contains("unsafe"),
            "{policy}"
        );
    }
    // Also for those who do not say that they are browsers, as with dstack 0.22.5.
    assert_eq!(get(&server, "HEAD", "/fleets", &[]).await.status, 200);
}

#[tokio::test]
async fn paths_of_the_api_are_not_the_pages() {
    let server = TestServer::new().site(site()).start().await;
    let from_service = [
        ("referer", "http://host:3000/proxy/services/p/r/"),
        ("host", "host:3000"),
    ];
    let from_elsewhere = [
        ("referer", "http://other/proxy/services/p/r/"),
        ("host", "host:3000"),
    ];
    for (path, headers) in [
        ("/api/server/nope", &[][..]),
        ("/apix", &[]),
        ("/metrics/x", &[]),
        ("/assets/gone.js", &[]),
        ("/style.css", &from_service),
    ] {
        let found = get(&server, "GET", path, headers).await;
        assert_eq!(
            (found.status, found.body.as_str()),
            (404, r#"{"detail":"Not Found"}"#),
            "{path}"
        );
    }
    assert_eq!(
        get(&server, "GET", "/style.css", &from_elsewhere).await.status,
        200
    );
    assert_eq!(get(&server, "POST", "/runs", &[]).await.status, 405);
    assert_eq!(
        get(&server, "GET", "/healthcheck", &[]).await.body,
        r#"{"status":"running"}"#
    );
}

#[tokio::test]
async fn files_are_packed_and_kept_for_good() {
    let server = TestServer::new().site(site()).start().await;
    let packed = get(
        &server,
        "GET",
        "/assets/a-1.js",
        &[("accept-encoding", "gzip, br")],
    )
    .await;
    assert_eq!(
        (
            packed.body.as_str(),
            packed.headers["content-encoding"].to_str().unwrap()
        ),
        ("packed", "br")
    );
    assert_eq!(packed.headers["content-type"], "text/javascript; charset=utf-8");
    assert_eq!(
        packed.headers["cache-control"],
        "public, max-age=31536000, immutable"
    );
    assert_eq!(packed.headers["vary"], "accept-encoding");
    let plain = get(&server, "GET", "/assets/a-1.js", &[]).await;
    assert_eq!(
        (plain.body.as_str(), plain.headers.get("content-encoding")),
        ("plain script", None)
    );
    let icon = get(&server, "GET", "/favicon.svg", &[]).await;
    assert_eq!(icon.headers["cache-control"], "public, max-age=3600");
}

#[tokio::test]
async fn without_the_page_nothing_but_the_root_says_so() {
    let server = Server::new().await;
    let found = get(&server, "GET", "/", &[BROWSER]).await;
    assert!(found.body.contains("cargo xtask ui"), "{}", found.body);
    assert_eq!(get(&server, "GET", "/runs", &[BROWSER]).await.status, 404);
}
