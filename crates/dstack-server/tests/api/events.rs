//! The audit trail.

use serde_json::{Value, json};

use super::{ADMIN, Server};

fn messages(list: &Value) -> Vec<&str> {
    list.as_array()
        .unwrap()
        .iter()
        .map(|event| event["message"].as_str().unwrap())
        .collect()
}

#[tokio::test]
async fn events_are_found_by_target_actor_and_type() {
    let server = Server::new().await;
    let alice = server.user("alice").await;
    let project = server
        .post(&alice, "/api/projects/create", json!({"project_name": "team"}))
        .await
        .ok();
    server
        .post(
            &alice,
            "/api/project/team/secrets/create_or_update",
            json!({"name": "S", "value": "v"}),
        )
        .await
        .ok();
    server
        .post(
            &alice,
            "/api/project/team/secrets/create_or_update",
            json!({"name": "S", "value": "v"}),
        )
        .await
        .ok();
    let list = |token: String, body: Value| {
        let server = &server;
        async move { server.post(&token, "/api/events/list", body).await.ok() }
    };
    assert_eq!(
        messages(&list(alice.clone(), json!({})).await),
        ["Secret created", "Project created"]
    );
    let within = json!({"within_projects": [project["project_id"]], "include_target_types": ["secret"]});
    let found = list(ADMIN.to_owned(), within).await;
    assert_eq!(messages(&found), ["Secret created"]);
    assert_eq!(found[0]["targets"][0]["project_name"], "team");
    assert_eq!(
        (
            found[0]["actor_user"].as_str(),
            found[0]["is_actor_user_deleted"].as_bool()
        ),
        (Some("alice"), Some(false))
    );
    let by_system = list(ADMIN.to_owned(), json!({"actors": [null]})).await;
    assert!(messages(&by_system).is_empty());
    let bob = server.user("bob").await;
    assert!(
        messages(&list(bob, json!({})).await).is_empty(),
        "strangers see nothing of the project"
    );
    let two = server
        .post(
            ADMIN,
            "/api/events/list",
            json!({"target_users": [project["project_id"]], "target_runs": [project["project_id"]]}),
        )
        .await;
    assert_eq!(
        (two.status, &two.body["detail"][0]["loc"]),
        (422, &json!(["body"]))
    );
}

#[tokio::test]
async fn names_of_the_deleted_stay() {
    let server = Server::new().await;
    let alice = server.user("alice").await;
    server.project(&alice, "team").await;
    server
        .post(
            &alice,
            "/api/projects/delete",
            json!({"projects_names": ["team"]}),
        )
        .await
        .ok();
    server
        .post(ADMIN, "/api/users/delete", json!({"users": ["alice"]}))
        .await
        .ok();
    let found = server
        .post(
            ADMIN,
            "/api/events/list",
            json!({"include_target_types": ["project"], "limit": 1}),
        )
        .await
        .ok();
    assert_eq!(messages(&found), ["Project deleted"]);
    assert_eq!(
        (&found[0]["actor_user"], &found[0]["is_actor_user_deleted"]),
        (&json!("alice"), &json!(true))
    );
    let target = &found[0]["targets"][0];
    assert_eq!(
        (&target["project_name"], &target["is_project_deleted"]),
        (&json!("team"), &json!(true))
    );
}

/// What dstack 0.22.5 writes no events of is shown to those who govern the project, with targets that its clients know.
#[tokio::test]
async fn who_changed_members_and_backends_is_for_those_who_govern() {
    let server = Server::new().await;
    let (alice, bob, carol) = (
        server.user("alice").await,
        server.user("bob").await,
        server.user("carol").await,
    );
    let post = async |token: &str, path: &str, body: Value| server.post(token, path, body).await.ok();
    let project = json!({"project_name": "team"});
    post(&alice, "/api/projects/create", project).await;
    let member = |name: &str, role: &str| json!({"username": name, "project_role": role});
    let added = json!({"members": [member("bob", "user"), member("carol", "manager")]});
    post(&alice, "/api/projects/team/add_members", added).await;
    let set =
        json!({"members": [member("alice", "admin"), member("carol", "user"), member("admin", "user")]});
    post(&alice, "/api/projects/team/set_members", set).await;
    let repo = json!({"repo_id": "code", "repo_info": {"repo_type": "virtual"}});
    post(&carol, "/api/project/team/repos/init", repo).await;
    let same = json!({"members": [member("carol", "manager")]});
    post(&alice, "/api/projects/team/add_members", same.clone()).await;
    post(&alice, "/api/projects/team/add_members", same).await;

    let all = [
        "Project members updated. Changes: <none>",
        "Project members updated. Changes: carol user -> manager",
        "Repo initialized. Repo: code. Credentials: none",
        "Project members updated. Changes: carol manager -> user, admin added as user, bob removed",
        "Project members updated. Changes: bob added as user, carol added as manager",
    ];
    let governs = |message: &&str| !message.starts_with("Project created") && !message.starts_with("User ");
    for token in [&alice, &carol, &ADMIN.to_owned()] {
        let list = post(token, "/api/events/list", json!({})).await;
        let seen: Vec<&str> = messages(&list).into_iter().filter(governs).collect();
        assert_eq!(seen, all);
    }
    let list = post(&bob, "/api/events/list", json!({})).await;
    assert_eq!(messages(&list).into_iter().filter(governs).count(), 0, "{list:#}");
    let list = post(ADMIN, "/api/events/list", json!({})).await;
    let by = |number: usize| list[number]["actor_user"].as_str();
    assert_eq!((by(0), by(2)), (Some("alice"), Some("carol")));
    let targets: Vec<(&str, &str)> = list[3]["targets"]
        .as_array()
        .unwrap()
        .iter()
        .map(|target| (target["type"].as_str().unwrap(), target["name"].as_str().unwrap()))
        .collect();
    let wanted = [
        ("project", "team"),
        ("user", "carol"),
        ("user", "admin"),
        ("user", "bob"),
    ];
    assert_eq!(targets, wanted, "alice stays what she was");
}

#[tokio::test]
async fn members_go_on_seeing_what_happened_in_a_project_that_was_deleted() {
    let server = Server::new().await;
    let (alice, bob) = (server.user("alice").await, server.user("bob").await);
    let team = json!({"project_name": "team"});
    server.post(&alice, "/api/projects/create", team).await.ok();
    let doomed = json!({"projects_names": ["team"]});
    server.post(&alice, "/api/projects/delete", doomed).await.ok();
    let all = json!({"include_target_types": ["project"]});
    let seen = server.post(&alice, "/api/events/list", all.clone()).await.ok();
    assert_eq!(messages(&seen), ["Project deleted", "Project created"]);
    let target = &seen[0]["targets"][0];
    assert_eq!(
        (&target["project_name"], &target["is_project_deleted"]),
        (&json!("team"), &json!(true))
    );
    assert_eq!(server.post(&bob, "/api/events/list", all).await.ok(), json!([]));
}
