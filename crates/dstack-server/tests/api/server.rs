//! Info, health, logins.

use base64::Engine;
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

#[tokio::test]
async fn a_login_goes_back_to_the_command_line() {
    let server = Server::new().await;
    let next = |state: String| {
        let body = json!({"code": "a b", "state": state});
        let request = request("POST", "/api/auth/get_next_redirect", None, Some(&body));
        let server = &server;
        async move { server.send(request).await }
    };
    let state = base64::engine::general_purpose::STANDARD.encode(r#"{"value":"v","local_port":41001}"#);
    let answer = next(state.clone()).await.ok();
    let url = answer["redirect_url"].as_str().unwrap();
    assert!(
        url.starts_with("http://localhost:41001/auth/callback?code=a+b&state="),
        "{url}"
    );
    assert_eq!(next("???".to_owned()).await.refused().0, "Invalid state token");
}
