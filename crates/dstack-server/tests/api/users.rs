//! Users and public keys.

use serde_json::json;

use super::{ADMIN, Server, redacted};

#[tokio::test]
async fn names_are_unique_in_any_case_and_free_after_deletion() {
    let server = Server::new().await;
    server.user("alice").await;
    let create = |name: &str| {
        server.post(
            ADMIN,
            "/api/users/create",
            json!({"username": name, "global_role": "user"}),
        )
    };
    assert_eq!(
        create("ALICE").await.refused(),
        ("Resource exists", Some("resource_exists"))
    );
    assert_eq!(
        create("a b").await.refused().0,
        "Username should match regex '^[a-zA-Z0-9-_]{1,60}$'"
    );
    server
        .post(ADMIN, "/api/users/delete", json!({"users": ["alice"]}))
        .await
        .ok();
    server.seed_user("alice", "user", "another token").await;
    let answer = server
        .post(ADMIN, "/api/users/delete", json!({"users": ["admin"]}))
        .await;
    assert_eq!(answer.refused().0, "User 'admin' cannot be deleted");
    let answer = server
        .post(ADMIN, "/api/users/delete", json!({"users": ["alice", "nope"]}))
        .await;
    assert_eq!(answer.refused().0, "Failed to delete non-existent users");
}

#[tokio::test]
async fn users_who_are_no_admins_see_themselves() {
    let server = Server::new().await;
    let token = server.user("alice").await;
    let list = |token: &'static str, body| server.post(token, "/api/users/list", body);
    assert_eq!(list(ADMIN, json!(null)).await.ok().as_array().unwrap().len(), 2);
    let mine = server
        .post(&token, "/api/users/list", json!({"return_total_count": true}))
        .await
        .ok();
    insta::assert_json_snapshot!(redacted(&mine));
    let other = server
        .post(&token, "/api/users/get_user", json!({"username": "admin"}))
        .await;
    assert_eq!(other.refused().1, Some("resource_not_exists"));
    let found = list(ADMIN, json!({"name_pattern": "LIC"})).await.ok();
    assert_eq!(found.as_array().unwrap().len(), 1);
}

#[tokio::test]
async fn pages_follow_each_other() {
    let server = Server::new().await;
    for name in ["a1", "a2", "a3"] {
        server.user(name).await;
    }
    let mut names = Vec::new();
    let mut body = json!({"limit": 2});
    loop {
        let page = server.post(ADMIN, "/api/users/list", body).await.ok();
        let Some(last) = page.as_array().unwrap().last() else {
            break;
        };
        body = json!({"limit": 2, "prev_created_at": last["created_at"], "prev_id": last["id"]});
        names.extend(
            page.as_array()
                .unwrap()
                .iter()
                .map(|user| user["username"].as_str().unwrap().to_owned()),
        );
    }
    assert_eq!(names, ["a3", "a2", "a1", "admin"]);
}

#[tokio::test]
async fn public_keys_are_of_their_owner() {
    let server = Server::new().await;
    let token = server.user("alice").await;
    let key = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJZCqKJ4Wjjx4bWIhlFyJj5WVwKCYsXY7n5fJ3v3Pp0X me@here";
    let added = server
        .post(&token, "/api/users/public_keys/add", json!({"key": key}))
        .await
        .ok();
    insta::assert_json_snapshot!(redacted(&added));
    let again = server
        .post(&token, "/api/users/public_keys/add", json!({"key": key}))
        .await;
    assert_eq!(again.refused().1, Some("resource_exists"));
    // Somebody else's id is unknown to the admin.
    server
        .post(
            ADMIN,
            "/api/users/public_keys/delete",
            json!({"ids": [added["id"]]}),
        )
        .await
        .ok();
    let list = server
        .post(&token, "/api/users/public_keys/list", json!(null))
        .await
        .ok();
    assert_eq!(list.as_array().unwrap().len(), 1);
    server
        .post(
            &token,
            "/api/users/public_keys/delete",
            json!({"ids": [added["id"]]}),
        )
        .await
        .ok();
    let list = server
        .post(&token, "/api/users/public_keys/list", json!(null))
        .await
        .ok();
    assert!(list.as_array().unwrap().is_empty());
}
