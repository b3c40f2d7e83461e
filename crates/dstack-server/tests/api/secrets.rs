//! Tests of secrets: how they are shown, encryption at rest, permissions, deletion.

use dstack_server::DefaultPermissions;
use serde_json::{Value, json};

use super::{ADMIN, Server, TestServer};

#[tokio::test]
async fn values_are_shown_only_one_at_a_time() {
    let server = Server::new().await;
    let put = |name: &str, value: &str| {
        server.main("secrets/create_or_update", json!({"name": name, "value": value}))
    };
    put("A", "one").await.ok();
    put("B", "").await.ok();
    put("A", "two").await.ok();
    let list = server.main("secrets/list", json!(null)).await.ok();
    assert_eq!(
        list.as_array()
            .unwrap()
            .iter()
            .map(|s| (s["name"].as_str().unwrap(), s["value"].is_null()))
            .collect::<Vec<_>>(),
        [("B", true), ("A", true)]
    );
    assert_eq!(
        server.main("secrets/get", json!({"name": "A"})).await.ok()["value"],
        "two"
    );
    assert_eq!(
        put("a.b", "x").await.refused().0,
        "Secret name should match regex '^[A-Za-z0-9-_]{1,200}$"
    );
    assert_eq!(
        put("C", &"x".repeat(5001)).await.refused().0,
        "Secret value length must not exceed 5000"
    );
    let answer = server
        .main("secrets/delete", json!({"secrets_names": ["A", "nope"]}))
        .await;
    assert_eq!(
        answer.refused(),
        ("Secrets not found: nope", Some("resource_not_exists"))
    );
    assert_eq!(
        server.main("secrets/get", json!({"name": "A"})).await.ok()["value"],
        "two",
        "nothing was deleted"
    );
    server
        .main("secrets/delete", json!({"secrets_names": ["A", "B"]}))
        .await
        .ok();
}

#[tokio::test]
async fn they_are_encrypted_at_rest() {
    let server = Server::new().await;
    server
        .main(
            "secrets/create_or_update",
            json!({"name": "A", "value": "c4n4ry"}),
        )
        .await
        .ok();
    let dir = server.folder.path();
    for entry in fs_err::read_dir(dir)
        .unwrap()
        .filter_map(Result::ok)
        .filter(|entry| entry.path().is_file())
    {
        let bytes = fs_err::read(entry.path()).unwrap();
        assert!(
            !bytes.windows(6).any(|window| window == b"c4n4ry"),
            "{}",
            entry.path().display()
        );
    }
}

#[tokio::test]
async fn managers_need_permission() {
    for (allowed, status) in [(false, 403), (true, 200)] {
        let permissions = DefaultPermissions {
            allow_managers_manage_secrets: allowed,
            ..DefaultPermissions::default()
        };
        let server = TestServer::new().permissions(permissions).start().await;
        let bob = server.user("bob").await;
        let member = json!({"members": [{"username": "bob", "project_role": "manager"}]});
        server
            .post(ADMIN, "/api/projects/main/add_members", member)
            .await
            .ok();
        let answer = server
            .post(&bob, "/api/project/main/secrets/list", json!(null))
            .await;
        assert_eq!(answer.status, status);
        if !allowed {
            assert_eq!(answer.body, json!({"msg": "Access denied", "code": null}));
        }
    }
}

#[tokio::test]
async fn a_name_that_is_said_twice_is_deleted_once() {
    let server = Server::new().await;
    let secret = json!({"name": "s", "value": "v"});
    server.main("secrets/create_or_update", secret).await.ok();
    let twice = json!({"secrets_names": ["s", "s"]});
    server.main("secrets/delete", twice).await.ok();
    let repo = json!({"repo_id": "r", "repo_info": {"repo_type": "virtual"}});
    server.main("repos/init", repo).await.ok();
    server
        .main("repos/delete", json!({"repos_ids": ["r", "r"]}))
        .await
        .ok();
    let all = server.post(ADMIN, "/api/events/list", json!({})).await.ok();
    let deleted = |event: &&Value| event["message"].as_str().unwrap().contains(" deleted");
    assert_eq!(all.as_array().unwrap().iter().filter(deleted).count(), 2, "{all}");
}
