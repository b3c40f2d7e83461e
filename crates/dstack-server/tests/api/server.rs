//! Info, health.

use serde_json::json;

use super::{Server, request};

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
