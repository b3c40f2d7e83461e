//! Further tokens of users.

use dstack_api::{Effect, Guard, Method, ROUTES, RouteInfo};
use serde_json::{Value, json};

use super::{ADMIN, Answer, HandClock, Server, TestServer, request};

const CREATE: &str = "/api/users/tokens/create";

impl Server {
    pub(crate) async fn token(&self, own: &str, body: Value) -> String {
        let made = self.post(own, CREATE, body).await.ok();
        made["token"].as_str().unwrap().to_owned()
    }

    /// The route below project `project`, with a body that no route accepts.
    async fn try_route(&self, token: &str, route: &RouteInfo, project: &str) -> Answer {
        let path = route
            .path
            .replace("{project_name}", project)
            .replace("{backend_name}", "aws")
            .replace("{run_name}", "x");
        let method = match route.method {
            Method::Get => "GET",
            Method::Post => "POST",
        };
        let body = json!({"no such field": 1});
        self.send(request(method, &path, Some(token), Some(&body))).await
    }
}

/// The reason why the token is not good for a route.
fn refused(answer: &Answer) -> Option<&str> {
    (answer.status == 403).then(|| answer.body["detail"]["msg"].as_str().unwrap_or_default())
}

fn routes_with_tokens() -> impl Iterator<Item = &'static RouteInfo> {
    ROUTES.iter().filter(|route| {
        !matches!(
            route.guard,
            Guard::Anyone | Guard::SshProxyToken | Guard::MetricsToken
        )
    })
}

#[tokio::test]
async fn a_read_only_token_is_good_for_exactly_the_routes_that_only_read() {
    let server = Server::new().await;
    let token = server
        .token(ADMIN, json!({"name": "reader", "read_only": true}))
        .await;
    for route in routes_with_tokens() {
        let answer = server.try_route(&token, route, "main").await;
        let what = format!("{} -> {} {}", route.path, answer.status, answer.body);
        match route.effect {
            Effect::Reads => assert_ne!(answer.status, 403, "{what}"),
            Effect::Account => assert!(refused(&answer).unwrap().contains("own token"), "{what}"),
            _ => assert_eq!(
                refused(&answer),
                Some("The token reader is for reading only"),
                "{what}"
            ),
        }
    }
}

/// Whoever adds a route that changes something cannot call it reading by mistake.
#[test]
fn routes_that_only_read_are_called_so() {
    for route in ROUTES.iter().filter(|route| route.effect == Effect::Reads) {
        let last = route.path.rsplit('/').next().unwrap();
        let reads = ["get", "list", "poll", "follow", "healthcheck", "{run_name}"];
        assert!(reads.iter().any(|word| last.starts_with(word)), "{}", route.path);
        assert!(
            !last.contains("yaml") && !last.contains("config"),
            "{}",
            route.path
        );
    }
}

#[tokio::test]
async fn a_token_of_a_project_is_good_for_that_project_only() {
    let server = Server::new().await;
    server.project(ADMIN, "team").await;
    let token = server
        .token(ADMIN, json!({"name": "team", "project_name": "TEAM"}))
        .await;
    for route in routes_with_tokens() {
        let (inside, outside) = (
            server.try_route(&token, route, "team").await,
            server.try_route(&token, route, "main").await,
        );
        let what = |answer: &Answer| format!("{} -> {} {}", route.path, answer.status, answer.body);
        match route.effect {
            Effect::Account | Effect::Governs => assert!(refused(&inside).is_some(), "{}", what(&inside)),
            _ if route.guard == Guard::GlobalAdmin => {
                assert!(refused(&inside).is_some(), "{}", what(&inside));
            }
            _ => assert!(refused(&inside).is_none(), "{}", what(&inside)),
        }
        if route.path.contains("{project_name}") {
            let reason = refused(&outside);
            assert_eq!(
                reason,
                Some("The token team is for another project"),
                "{}",
                what(&outside)
            );
        }
    }
}

/// Routes without a project are not stopped by the project in their path: what they show is looked at here, one by one.
#[tokio::test]
async fn lists_show_a_token_of_a_project_nothing_of_others() {
    let server = Server::new().await;
    server.user("alice").await;
    let team = server
        .post(ADMIN, "/api/projects/create", json!({"project_name": "team"}))
        .await
        .ok();
    let all = json!({"project_name": "all"});
    server.post(ADMIN, "/api/projects/create", all).await.ok();
    for project in ["team", "main"] {
        let fleet = json!({"plan": {"spec": {
            "configuration": {"type": "fleet", "name": "fleet", "nodes": 0}, "profile": {"name": "default"},
        }}, "force": false});
        let path = format!("/api/project/{project}/fleets/apply");
        server.post(ADMIN, &path, fleet).await.ok();
    }
    let token = server
        .token(ADMIN, json!({"name": "t", "project_name": "team"}))
        .await;
    let mut looked_at = Vec::new();
    for route in routes_with_tokens() {
        let is_refused =
            matches!(route.effect, Effect::Account | Effect::Governs) || route.guard == Guard::GlobalAdmin;
        if route.path.contains("{project_name}") || is_refused {
            continue;
        }
        looked_at.push(route.name);
        let answer = server.post(&token, route.path, json!({})).await;
        let found = answer.body.as_array().cloned().unwrap_or_default();
        match route.name {
            "ProjectsList" | "ProjectsListOnlyNoFleets" => {
                assert!(
                    found.iter().all(|project| project["project_name"] == "team"),
                    "{found:?}"
                );
            }
            "FleetsList" => {
                assert_eq!(found.len(), 1);
                assert_eq!(found[0]["project_name"], "team");
            }
            "InstancesList" | "RunsList" | "VolumesList" => {
                assert!(found.iter().all(|item| item["project_name"] == "team"));
            }
            "EventsList" => {
                assert!(found.len() >= 2);
                let of_team = |event: &Value| {
                    let targets = event["targets"].as_array().unwrap();
                    targets
                        .iter()
                        .all(|target| target["project_id"] == team["project_id"])
                };
                assert!(found.iter().all(of_team), "{found:?}");
            }
            "UsersList" => {
                assert_eq!(found.len(), 1);
                assert_eq!(found[0]["username"], "admin");
            }
            // `changes::a_token_of_a_project_hears_of_that_alone` looks at it.
            "ChangesFollow" => {}
            // The caller's own, without a project.
            "UsersGetMyUser" | "PublicKeysList" | "FilesGetArchiveByHash" | "FilesUploadArchive" => {}
            other => panic!("{other} is not looked at: does it show or change anything of other projects?"),
        }
    }
    assert!(looked_at.len() >= 12, "{looked_at:?}");
    for body in [json!({}), json!({"project_name": "main"})] {
        let runs = server.post(&token, "/api/runs/list", body).await.ok();
        assert_eq!(runs, json!([]));
    }
}

#[tokio::test]
async fn no_further_token_shows_the_users_own_credentials() {
    let server = Server::new().await;
    let token = server.token(ADMIN, json!({"name": "full"})).await;
    let me = server
        .post(&token, "/api/users/get_my_user", json!(null))
        .await
        .ok();
    assert_eq!(
        (&me["username"], &me["creds"]["token"], &me["ssh_private_key"]),
        (&json!("admin"), &json!(token), &Value::Null)
    );
    for (path, body) in [
        ("/api/users/get_user", json!({"username": "admin"})),
        ("/api/users/refresh_token", json!({"username": "admin"})),
        ("/api/users/refresh_ssh_key", json!({"username": "admin"})),
        (CREATE, json!({"name": "another"})),
        ("/api/users/tokens/list", json!({})),
    ] {
        let answer = server.post(&token, path, body).await;
        assert!(refused(&answer).unwrap().contains("own token"), "{path}");
        assert!(!answer.body.to_string().contains(ADMIN), "{path}");
    }
}

#[tokio::test]
async fn tokens_are_stored_hashed_listed_without_themselves_and_stop_working_when_deleted() {
    let server = Server::new().await;
    let alice = server.user("alice").await;
    let made = server
        .post(
            &alice,
            CREATE,
            json!({"name": "ci", "read_only": true, "expires_in": 60}),
        )
        .await
        .ok();
    let token = made["token"].as_str().unwrap();
    let listed = server
        .post(&alice, "/api/users/tokens/list", json!(null))
        .await
        .ok();
    assert_eq!(listed.as_array().unwrap().len(), 1);
    assert_eq!(
        (&listed[0]["name"], &listed[0]["read_only"]),
        (&json!("ci"), &json!(true))
    );
    assert!(!listed.to_string().contains(token));
    let again = server.post(&alice, CREATE, json!({"name": "ci"})).await;
    assert_eq!(again.refused(), ("Resource exists", Some("resource_exists")));
    for name in ["", "a b", &"x".repeat(61)] {
        let answer = server.post(&alice, CREATE, json!({"name": name})).await;
        assert!(
            answer.refused().0.starts_with("Token name should match"),
            "{name}"
        );
    }
    let elsewhere = server
        .post(&alice, CREATE, json!({"name": "x", "project_name": "main"}))
        .await;
    assert_eq!(
        elsewhere.refused(),
        ("Project main not found", Some("resource_not_exists"))
    );

    // Admins see and delete tokens of others; others do not.
    let bob = server.user("bob").await;
    let of_alice = json!({"username": "alice", "names": ["ci"]});
    assert_eq!(
        server
            .post(&bob, "/api/users/tokens/delete", of_alice.clone())
            .await
            .status,
        403
    );
    let seen = server
        .post(ADMIN, "/api/users/tokens/list", json!({"username": "alice"}))
        .await
        .ok();
    assert_eq!(seen, listed);
    let me = "/api/users/get_my_user";
    assert_eq!(server.post(token, me, json!(null)).await.status, 200);
    server
        .post(ADMIN, "/api/users/tokens/delete", of_alice.clone())
        .await
        .ok();
    let gone = server.post(token, me, json!(null)).await;
    assert_eq!(
        (gone.status, &gone.body["detail"]["msg"]),
        (403, &json!("Invalid token"))
    );
    let missing = server.post(ADMIN, "/api/users/tokens/delete", of_alice).await;
    assert_eq!(
        missing.refused(),
        ("Token ci not found", Some("resource_not_exists"))
    );

    let events = server.post(&alice, "/api/events/list", json!({})).await.ok();
    let messages: Vec<&str> = events
        .as_array()
        .unwrap()
        .iter()
        .map(|e| e["message"].as_str().unwrap())
        .collect();
    assert_eq!(
        messages,
        ["User token deleted. Name: ci", "User token created. Name: ci"]
    );
    assert!(!events.to_string().contains(token));
}

#[tokio::test]
async fn tokens_end_with_their_user_and_their_project() {
    let server = Server::new().await;
    let alice = server.user("alice").await;
    server.project(&alice, "team").await;
    let full = server.token(&alice, json!({"name": "full"})).await;
    let team = server
        .token(&alice, json!({"name": "team", "project_name": "team"}))
        .await;
    let works = |token: String| {
        let server = &server;
        async move {
            server
                .post(&token, "/api/users/get_my_user", json!(null))
                .await
                .status
        }
    };
    assert_eq!((works(full.clone()).await, works(team.clone()).await), (200, 200));
    server
        .post(
            &alice,
            "/api/projects/delete",
            json!({"projects_names": ["team"]}),
        )
        .await
        .ok();
    assert_eq!((works(full.clone()).await, works(team).await), (200, 403));
    let inactive = json!({"username": "alice", "global_role": "user", "active": false});
    server.post(ADMIN, "/api/users/update", inactive).await.ok();
    assert_eq!(works(full.clone()).await, 403);
    server
        .post(ADMIN, "/api/users/delete", json!({"users": ["alice"]}))
        .await
        .ok();
    assert_eq!(works(full).await, 403);
}

#[tokio::test]
async fn an_expired_token_is_answered_like_a_wrong_one() {
    let clock = HandClock::stopped();
    let server = TestServer::new().clock(&clock).start().await;
    let token = server
        .token(ADMIN, json!({"name": "short", "expires_in": 60}))
        .await;
    let me = "/api/users/get_my_user";
    assert_eq!(server.post(&token, me, json!(null)).await.status, 200);
    clock.advance(60);
    let expired = server.post(&token, me, json!(null)).await;
    let wrong = server.post("nobody's", me, json!(null)).await;
    assert_eq!((expired.status, &expired.body), (wrong.status, &wrong.body));
    assert_eq!(expired.status, 403);
}

#[tokio::test]
async fn failed_logins_are_slowed_down_and_valid_ones_never() {
    let clock = HandClock::stopped();
    let server = TestServer::new().clock(&clock).start().await;
    let me = "/api/users/get_my_user";
    for number in 0..super::LOGINS {
        assert_eq!(
            server.post("stale", me, json!(null)).await.status,
            403,
            "{number}"
        );
    }
    let refused = server.post("stale", me, json!(null)).await;
    assert_eq!(refused.status, 429);
    assert_eq!(refused.headers["retry-after"], "60");
    assert_eq!(server.post(ADMIN, me, json!(null)).await.status, 200);
    assert_eq!(server.post("another", me, json!(null)).await.status, 403);
    clock.advance(60);
    assert_eq!(server.post("stale", me, json!(null)).await.status, 403);
}

#[tokio::test]
async fn failed_logins_are_counted_at_the_proxy_and_at_the_metrics_as_well() {
    let server = TestServer::new().settings(|settings| {
        (settings.prometheus, settings.prometheus_token) = (true, Some("scrape".to_owned()));
    });
    let server = server.start().await;
    let get =
        |path: &'static str, token: &'static str| server.send(super::request("GET", path, Some(token), None));
    let models = "/proxy/models/main/models";
    for number in 0..super::LOGINS {
        assert_eq!(get(models, "stale").await.status, 403, "{number}");
    }
    for path in [models, "/metrics"] {
        let refused = get(path, "stale").await;
        assert_eq!(refused.status, 429, "{path}");
        let seconds: u64 = refused.headers["retry-after"].to_str().unwrap().parse().unwrap();
        assert!((1..=60).contains(&seconds), "{path}: {seconds}");
    }
    assert_eq!(get(models, ADMIN).await.status, 200);
    assert_eq!(get("/metrics", "scrape").await.status, 200);
}
