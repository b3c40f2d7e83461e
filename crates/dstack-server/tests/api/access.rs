//! Tokens.

use axum::body::Body;
use axum::http::Request;
use serde_json::json;

use super::{ADMIN, Server};

#[tokio::test]
async fn only_bearer_tokens_count() {
    let server = Server::new().await;
    for value in ["Basic YTpi", "Bearer", "Bearer ", "admin-token"] {
        let request = Request::post("/api/users/get_my_user")
            .header("authorization", value)
            .body(Body::empty())
            .unwrap();
        let answer = server.send(request).await;
        assert_eq!(
            (
                answer.status,
                answer.headers["www-authenticate"].to_str().unwrap()
            ),
            (401, "Bearer"),
            "{value}"
        );
    }
}

#[tokio::test]
async fn an_old_token_stops_working_at_once_and_so_do_those_of_inactive_and_deleted_users() {
    let server = Server::new().await;
    let token = server.user("alice").await;
    let me = "/api/users/get_my_user";
    assert_eq!(
        server.post(&token, me, json!(null)).await.ok()["username"],
        "alice"
    );
    let fresh = server
        .post(&token, "/api/users/refresh_token", json!({"username": "alice"}))
        .await
        .ok();
    let fresh = fresh["creds"]["token"].as_str().unwrap().to_owned();
    assert_eq!(server.post(&token, me, json!(null)).await.status, 403);
    assert_eq!(server.post(&fresh, me, json!(null)).await.status, 200);
    let update = json!({"username": "alice", "global_role": "user", "active": false});
    server.post(ADMIN, "/api/users/update", update).await.ok();
    assert_eq!(server.post(&fresh, me, json!(null)).await.status, 403);
    let update = json!({"username": "alice", "global_role": "user"});
    server.post(ADMIN, "/api/users/update", update).await.ok();
    assert_eq!(server.post(&fresh, me, json!(null)).await.status, 200);
    server
        .post(ADMIN, "/api/users/delete", json!({"users": ["alice"]}))
        .await
        .ok();
    assert_eq!(server.post(&fresh, me, json!(null)).await.status, 403);
}
