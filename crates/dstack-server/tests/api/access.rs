//! Tests which tokens the API accepts, and when they stop working.

use std::time::Duration;

use axum::body::Body;
use axum::http::Request;
use dstack_store::raw;
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

/// A client that goes away in the middle of a call takes nothing back: what it asked for holds at once.
#[tokio::test]
async fn what_a_client_did_not_wait_for_holds_all_the_same() {
    let server = Server::new().await;
    let token = server.user("alice").await;
    let me = "/api/users/get_my_user";
    server.post(&token, me, json!(null)).await.ok();
    // Somebody else writes for a while.
    let (release, released) = tokio::sync::oneshot::channel::<()>();
    let (begun, has_begun) = tokio::sync::oneshot::channel::<()>();
    let database = server.state.data.database.clone();
    let writer = tokio::spawn(async move {
        database
            .write(move |tx| {
                Box::pin(async move {
                    // Also where several write at the same time.
                    raw::execute_in(tx, "UPDATE users SET active = active").await?;
                    begun.send(()).ok();
                    released.await.ok();
                    Ok(())
                })
            })
            .await
    });
    has_begun.await.unwrap();
    let update = json!({"username": "alice", "global_role": "user", "active": false});
    let call = server.post(ADMIN, "/api/users/update", update);
    let gone = tokio::time::timeout(Duration::from_millis(300), call).await;
    assert!(gone.is_err(), "the call waits for the writer");
    release.send(()).unwrap();
    writer.await.unwrap().unwrap();
    let refused = async {
        while server.post(&token, me, json!(null)).await.status != 403 {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), refused)
        .await
        .expect("the token of a deactivated user still works");
}
