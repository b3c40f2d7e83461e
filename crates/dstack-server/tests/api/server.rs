//! Info, health.

use dstack_system::task;
use serde_json::json;

use super::{Server, TestServer, request};

#[tokio::test]
async fn anyone_may_ask() {
    let server = Server::new().await;
    let ask = |method: &'static str, path: &'static str| server.send(request(method, path, None, None));
    assert_eq!(
        ask("POST", "/api/server/get_info").await.ok(),
        json!({"server_version": "0.22.5"})
    );
    assert_eq!(
        ask("GET", "/healthcheck").await.ok(),
        json!({"status": "running"})
    );
    assert_eq!(ask("POST", "/api/auth/list_providers").await.ok(), json!([]));
}

#[tokio::test]
async fn a_server_that_cannot_write_any_more_is_not_healthy() {
    let server = Server::new().await;
    server.state.data.database.close().await;
    let answer = server.send(request("GET", "/healthcheck", None, None)).await;
    assert_eq!(answer.status, 503, "{}", answer.body);
}

#[tokio::test]
async fn panics_are_counted_in_the_metrics() {
    let server = TestServer::new().settings(|settings| {
        (settings.prometheus, settings.prometheus_token) = (true, None);
    });
    let server = server.start().await;
    task::contained("test", async { panic!("on purpose") })
        .await
        .unwrap_err();
    let answer = server.send(request("GET", "/metrics", None, None)).await;
    let text = answer.body.as_str().unwrap();
    let count = text
        .lines()
        .find_map(|line| line.strip_prefix("dstack_server_panics_total{} "));
    assert!(count.unwrap().parse::<f64>().unwrap() >= 1.0, "{text}");
}
