//! dstack 0.22.5's HTTP conventions, byte by byte.

use std::io::{Read, Write};

use crate::fake::{Agent, FakeRuntime};

/// One exchange; returns status, headers in lower case, body.
async fn exchange(url: &str, request: String) -> (u16, String, String) {
    let url = url.to_owned();
    dstack_system::task::blocking("exchange", move || {
        let mut stream = std::net::TcpStream::connect(url).unwrap();
        stream.write_all(request.as_bytes()).unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        (head[9..12].parse().unwrap(), head.to_lowercase(), body.to_owned())
    })
    .await
    .unwrap()
}

fn get(path: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nHost: %2Ftmp%2Fsocket\r\nConnection: close\r\n\r\n")
}

fn post(path: &str, kind: Option<&str>, body: &str) -> String {
    let kind = kind
        .map(|kind| format!("Content-Type: {kind}\r\n"))
        .unwrap_or_default();
    format!(
        "POST {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{kind}Content-Length: {}\r\n\r\n{body}",
        body.len()
    )
}

#[tokio::test]
async fn answers_and_errors() {
    let home = tempfile::tempdir().unwrap();
    let agent = Agent::start(home.path(), FakeRuntime::new(home.path())).await;
    let json = Some("application/json");
    let (status, head, body) = exchange(&agent.url, get("/api/healthcheck")).await;
    assert_eq!(
        (status, body.as_str()),
        (200, "{\"service\":\"dstack-shim\",\"version\":\"0.22.5\"}\n")
    );
    assert!(head.contains("content-type: application/json"), "{head}");
    for (request, wanted_status, wanted_body) in [
        (get("/api/tasks"), 200, "{\"tasks\":[]}\n"),
        (get("/api/instance/health"), 200, "{\"dcgm\":null}\n"),
        (
            get("/api/instance/info"),
            200,
            "{\"gpu_vendor\":\"nvidia\",\"gpu_driver_version\":\"570\"}\n",
        ),
        (get("/api/tasks/1"), 404, "Not Found\n"),
        (get("/nothing"), 404, "404 page not found\n"),
        (get("/metrics/tasks/1"), 404, "DCGM Exporter is not available\n"),
        (get("/api/shutdown"), 405, "Method Not Allowed\n"),
        (
            post("/api/tasks", Some("text/plain"), "{}"),
            415,
            "Content-Type header is not application/json\n",
        ),
        (post("/api/tasks", json, "{}"), 400, "empty id\n"),
        (
            post("/api/tasks", None, "{\"id\":\"1\",\"name\":null}"),
            400,
            "empty name\n",
        ),
        (
            post(
                "/api/tasks",
                Some("application/json; charset=utf-8"),
                "{\"id\":\"1\",\"name\":\"n\"}",
            ),
            400,
            "empty image_name\n",
        ),
        (
            post("/api/components/install", json, "{\"name\":\"\"}"),
            400,
            "empty name\n",
        ),
        (
            post(
                "/api/components/install",
                json,
                "{\"name\":\"dstack-shim\",\"url\":null}",
            ),
            400,
            "empty url\n",
        ),
        (post("/api/tasks/1/remove", None, ""), 404, "Not Found\n"),
    ] {
        let (status, head, body) = exchange(&agent.url, request.clone()).await;
        assert_eq!((status, body.as_str()), (wanted_status, wanted_body), "{request}");
        if status >= 400 {
            assert!(head.contains("content-type: text/plain; charset=utf-8"), "{head}");
            assert!(head.contains("x-content-type-options: nosniff"), "{head}");
        }
    }
    for body in [
        "",
        "nonsense",
        "{\"id\":1}",
        "{\"id\":\"1\"}{}",
        "{\"network_mode\":\"mesh\"}",
    ] {
        assert_eq!(
            exchange(&agent.url, post("/api/tasks", json, body)).await.0,
            400,
            "{body:?}"
        );
    }
    let large = format!("{{\"id\":\"{}\"}}", "x".repeat(17 << 20));
    let (status, _, body) = exchange(&agent.url, post("/api/tasks", json, &large)).await;
    assert_eq!(
        (status, body.as_str()),
        (413, "Request body must not be larger than 16MB\n")
    );
    let (_, head, _) = exchange(&agent.url, get("/api/shutdown")).await;
    assert!(head.contains("allow: post"), "{head}");
    let (status, head, body) = exchange(&agent.url, post("/api/shutdown", json, "{\"force\":null}")).await;
    assert_eq!((status, body.as_str()), (200, "\n"));
    assert!(head.contains("content-type: text/plain; charset=utf-8"), "{head}");
}
