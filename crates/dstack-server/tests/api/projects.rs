//! Projects and members.

use dstack_server::DefaultPermissions;
use serde_json::{Value, json};

use super::{ADMIN, Server, TestServer, redacted};

fn names(list: &Value) -> Vec<&str> {
    list.as_array()
        .unwrap()
        .iter()
        .map(|project| project["project_name"].as_str().unwrap())
        .collect()
}

#[tokio::test]
async fn a_creator_owns_and_administers() {
    let server = Server::new().await;
    let alice = server.user("alice").await;
    let project = server
        .post(&alice, "/api/projects/create", json!({"project_name": "Team"}))
        .await
        .ok();
    insta::assert_json_snapshot!(redacted(&project));
    let again = server
        .post(ADMIN, "/api/projects/create", json!({"project_name": "TEAM"}))
        .await;
    assert_eq!(again.refused().1, Some("resource_exists"));
    assert_eq!(
        names(&server.post(&alice, "/api/projects/list", json!({})).await.ok()),
        ["Team"]
    );
    assert_eq!(
        names(&server.post(ADMIN, "/api/projects/list", json!(null)).await.ok()),
        ["Team", "main"]
    );
}

#[tokio::test]
async fn creation_can_be_reserved_and_is_limited() {
    let permissions = DefaultPermissions {
        allow_non_admins_create_projects: false,
        ..DefaultPermissions::default()
    };
    let server = TestServer::new().permissions(permissions).start().await;
    let alice = server.user("alice").await;
    let answer = server
        .post(&alice, "/api/projects/create", json!({"project_name": "x"}))
        .await;
    assert_eq!(
        (answer.status, answer.body),
        (403, json!({"msg": "User cannot create projects", "code": null}))
    );
    let server = Server::new().await;
    let alice = server.user("alice").await;
    for number in 0..10 {
        let body = json!({"project_name": format!("p{number}")});
        server.post(&alice, "/api/projects/create", body).await.ok();
    }
    let answer = server
        .post(&alice, "/api/projects/create", json!({"project_name": "p10"}))
        .await;
    assert_eq!(answer.refused().0, "User project quota exceeded");
}

#[tokio::test]
async fn public_projects_can_be_joined_and_left() {
    let server = Server::new().await;
    let (alice, bob) = (server.user("alice").await, server.user("bob").await);
    server
        .post(
            &alice,
            "/api/projects/create",
            json!({"project_name": "open", "is_public": true}),
        )
        .await
        .ok();
    let join = |role: &str| json!({"members": [{"username": "bob", "project_role": role}]});
    let answer = server
        .post(&bob, "/api/projects/open/add_members", join("admin"))
        .await;
    assert_eq!(
        answer.body["msg"],
        "Access denied: can only join public projects as user role"
    );
    let project = server
        .post(&bob, "/api/projects/open/add_members", join("user"))
        .await
        .ok();
    assert_eq!(project["members"].as_array().unwrap().len(), 2);
    let twice = json!({"members": [{"username": "bob", "project_role": "user"}, {"username": "bob", "project_role": "user"}]});
    let answer = server.post(&alice, "/api/projects/open/add_members", twice).await;
    assert_eq!(answer.refused().0, "Cannot add same user multiple times");
    let answer = server
        .post(
            &bob,
            "/api/projects/open/remove_members",
            json!({"usernames": ["alice"]}),
        )
        .await;
    assert_eq!(
        answer.body["msg"],
        "Access denied: insufficient permissions to remove members"
    );
    server
        .post(
            &bob,
            "/api/projects/open/remove_members",
            json!({"usernames": ["bob"]}),
        )
        .await
        .ok();
    let answer = server
        .post(
            &alice,
            "/api/projects/open/remove_members",
            json!({"usernames": ["alice"]}),
        )
        .await;
    assert_eq!(answer.refused().0, "Cannot leave project: you are the last admin");
}

#[tokio::test]
async fn deleted_names_are_free_again() {
    let server = Server::new().await;
    let alice = server.user("alice").await;
    server.project(ADMIN, "team").await;
    let delete = json!({"projects_names": ["team"]});
    assert_eq!(
        server
            .post(&alice, "/api/projects/delete", delete.clone())
            .await
            .status,
        403
    );
    server
        .post(ADMIN, "/api/projects/delete", delete.clone())
        .await
        .ok();
    assert_eq!(
        server
            .post(ADMIN, "/api/projects/team/get", json!(null))
            .await
            .status,
        404
    );
    let answer = server.post(ADMIN, "/api/projects/delete", delete).await;
    assert_eq!(answer.refused().0, "Failed to delete non-existent projects");
    server.project(ADMIN, "team").await;
}

/// A manager may not make an admin less than that: neither by adding them again, nor by any of their names.
#[tokio::test]
async fn managers_cannot_demote_admins() {
    let server = Server::new().await;
    let mallory = server.user("mallory").await;
    server.user("alice").await;
    let user =
        json!({"username": "alice", "global_role": "user", "email": "alice@example.com", "active": true});
    server.post(ADMIN, "/api/users/update", user).await.ok();
    let member = |name: &str, role: &str| json!({"username": name, "project_role": role});
    let members = json!({"members": [member("alice", "admin"), member("mallory", "manager")]});
    server
        .post(ADMIN, "/api/projects/main/add_members", members)
        .await
        .ok();
    let roles = async || {
        let project = server
            .post(ADMIN, "/api/projects/main/get", json!(null))
            .await
            .ok();
        let mut roles: Vec<String> = project["members"]
            .as_array()
            .unwrap()
            .iter()
            .map(|member| {
                let name = member["user"]["username"].as_str().unwrap();
                format!("{name} {}", member["project_role"].as_str().unwrap())
            })
            .collect();
        roles.sort();
        roles
    };
    let before = roles().await;
    assert_eq!(before, ["admin admin", "alice admin", "mallory manager"]);
    for (path, members) in [
        ("add_members", vec![member("alice", "user")]),
        ("add_members", vec![member("alice@example.com", "manager")]),
        (
            "set_members",
            vec![
                member("admin", "admin"),
                member("alice", "admin"),
                member("alice@example.com", "user"),
                member("mallory", "manager"),
            ],
        ),
        (
            "set_members",
            vec![member("admin", "admin"), member("mallory", "manager")],
        ),
    ] {
        let answer = server
            .post(
                &mallory,
                &format!("/api/projects/main/{path}"),
                json!({"members": members}),
            )
            .await;
        assert!([400, 403].contains(&answer.status), "{path}: {}", answer.status);
        assert_eq!(roles().await, before, "{path}");
    }
    // By whatever name they are listed, admins who stay admins are no change.
    let same = json!({"members": [
        member("admin", "admin"), member("alice@example.com", "admin"), member("mallory", "manager"),
    ]});
    server
        .post(&mallory, "/api/projects/main/set_members", same)
        .await
        .ok();
    assert_eq!(roles().await, before);
}

/// E-mail addresses need not be unique: what one may do to oneself is not done to somebody else of the same address.
#[tokio::test]
async fn a_shared_address_gives_no_rights() {
    let server = Server::new().await;
    let twin = server.user("twin").await;
    server.user("jane").await;
    for name in ["jane", "twin"] {
        let user =
            json!({"username": name, "global_role": "user", "email": "jane@example.com", "active": true});
        server.post(ADMIN, "/api/users/update", user).await.ok();
    }
    let jane = json!({"members": [{"username": "jane", "project_role": "admin"}]});
    server
        .post(ADMIN, "/api/projects/main/add_members", jane)
        .await
        .ok();
    let address = json!({"usernames": ["jane@example.com"]});
    let refused = server
        .post(&twin, "/api/projects/main/remove_members", address)
        .await;
    assert!([400, 403].contains(&refused.status), "{}", refused.status);
    let project = server
        .post(ADMIN, "/api/projects/main/get", json!(null))
        .await
        .ok();
    assert_eq!(project["members"].as_array().unwrap().len(), 2);
    let member = json!({"members": [{"username": "jane@example.com", "project_role": "user"}]});
    let refused = server.post(ADMIN, "/api/projects/main/add_members", member).await;
    assert_eq!(
        refused.refused().0,
        "Several users have the e-mail address jane@example.com. Name them by their user names"
    );
}

#[tokio::test]
async fn a_project_keeps_an_admin() {
    let server = Server::new().await;
    let alice = server.user("alice").await;
    server.project(&alice, "team").await;
    let members = json!({"members": [{"username": "alice", "project_role": "user"}]});
    for path in ["add_members", "set_members"] {
        let refused = server
            .post(&alice, &format!("/api/projects/team/{path}"), members.clone())
            .await;
        assert_eq!(refused.refused().0, "Cannot remove all project admins", "{path}");
    }
    server
        .post(ADMIN, "/api/projects/team/add_members", members)
        .await
        .ok();
}

/// A server of git repos: `/full` has something in it, `/empty` nothing, `/private` only for those with a password.
async fn git_server() -> String {
    use axum::http::{HeaderMap, header};
    let kind = || {
        [(
            header::CONTENT_TYPE,
            "application/x-git-upload-pack-advertisement",
        )]
    };
    let full = "001e# service=git-upload-pack\n00000050a0b0 HEAD\0multi_ack\n0000";
    let empty = "001e# service=git-upload-pack\n0000";
    let private = async move |headers: HeaderMap| match headers.get("authorization") {
        // me:pass
        Some(value) if value == "Basic bWU6cGFzcw==" => Ok((kind(), full)),
        _ => Err(axum::http::StatusCode::UNAUTHORIZED),
    };
    let app = axum::Router::new()
        .route(
            "/full/info/refs",
            axum::routing::get(async move || (kind(), full)),
        )
        .route(
            "/empty/info/refs",
            axum::routing::get(async move || (kind(), empty)),
        )
        .route("/private/info/refs", axum::routing::get(private))
        .route("/page/info/refs", axum::routing::get(async || "hello HEAD\0"));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    dstack_system::task::spawn(
        "git-server",
        async move { axum::serve(listener, app).await.unwrap() },
    );
    address
}

#[tokio::test]
async fn templates_repos_that_cannot_be_read_are_refused() {
    let git = git_server().await;
    let server = TestServer::new();
    let server = server.settings(|settings| settings.outbound_allow = Some("127.0.0.1".to_owned()));
    let server = server.start().await;
    let at = |repo: &str| format!("http://{git}/{repo}");
    let full = at("full");
    let made = json!({"project_name": "good", "templates_repo": format!("  {full} ")});
    let made = server.post(ADMIN, "/api/projects/create", made).await.ok();
    assert_eq!(made["templates_repo"], full.as_str());
    let update = async |repo: &str| {
        let body = json!({"templates_repo": repo});
        server.post(ADMIN, "/api/projects/good/update", body).await
    };
    for (repo, named) in [
        (at("empty"), at("empty")),
        (at("missing"), at("missing")),
        (at("page"), at("page")),
        (at("private"), at("private")),
        (
            "http://127.0.0.1:1/x".to_owned(),
            "http://127.0.0.1:1/x".to_owned(),
        ),
    ] {
        let text = format!("Cannot access templates repo: {named}");
        assert_eq!(update(&repo).await.refused().0, text);
        let new = json!({"project_name": "bad", "templates_repo": repo});
        let answer = server.post(ADMIN, "/api/projects/create", new).await;
        assert_eq!(answer.refused().0, text);
    }
    for (repo, why) in [
        ("/etc", "HTTPS"),
        ("git@host:repo", "HTTPS"),
        ("http://10.0.0.1/x", "10.0.0.1 is on a private network"),
    ] {
        let answer = update(repo).await;
        let text = answer.refused().0;
        assert!(
            text.starts_with("Cannot access templates repo: ") && text.contains(why),
            "{text}"
        );
    }
    let all = server.post(ADMIN, "/api/projects/list", json!({})).await.ok();
    assert_eq!(names(&all), ["good", "main"]);
    // Blank changes nothing; to have none is asked for otherwise.
    assert_eq!(update(" ").await.ok()["templates_repo"], full.as_str());
    let private = update(&format!("http://me:pass@{git}/private")).await;
    let text = private.refused().0;
    assert!(
        text.contains("all members of the project would see") && !text.contains("pass@"),
        "{text}"
    );
    let reset = json!({"reset_templates_repo": true});
    let none = server.post(ADMIN, "/api/projects/good/update", reset).await.ok();
    assert_eq!(none["templates_repo"], json!(null));
}
