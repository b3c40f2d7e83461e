//! Single sign-on, with providers that are really asked.

use std::collections::HashMap;

use axum::body::Body;
use axum::http::Request;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use dstack_http::{ClientOptions, Redirects};
use dstack_login_doubles::{CLIENT_ID, CLIENT_SECRET, Fault, Idp};
use dstack_store::queries::logins;
use serde_json::{Value, json};
use url::Url;

use super::reload::OLD;
use super::{ADMIN, Answer, HandClock, Server, TestServer, request};

/// A login that was begun.
#[derive(Debug)]
pub(super) struct Begun {
    status: u16,
    body: Value,
    cookie: String,
}

/// What a browser came back with.
#[derive(Debug, Clone)]
pub(super) struct Back {
    query: HashMap<String, String>,
    cookie: String,
    url: Url,
}

impl Begun {
    pub(super) fn answer(&self) -> Answer {
        Answer {
            status: self.status,
            headers: axum::http::HeaderMap::new(),
            body: self.body.clone(),
        }
    }

    fn url(&self) -> Url {
        self.body["authorization_url"].as_str().unwrap().parse().unwrap()
    }

    /// Goes to the provider, as a browser does.
    pub(super) async fn visit(&self) -> Back {
        let options = ClientOptions {
            redirects: Redirects::Never,
            ..ClientOptions::default()
        };
        let client = options.build().unwrap();
        let answer = client.get(self.url()).send().await.unwrap();
        assert_eq!(answer.status(), 302, "{}", answer.text().await.unwrap());
        let url: Url = answer.headers()["location"].to_str().unwrap().parse().unwrap();
        Back {
            query: url.query_pairs().into_owned().collect(),
            cookie: self.cookie.clone(),
            url,
        }
    }
}

fn with_cookie(path: &str, cookie: &str, body: &Value) -> Request<Body> {
    let mut request = request("POST", path, None, Some(body));
    if !cookie.is_empty() {
        request.headers_mut().insert("cookie", cookie.parse().unwrap());
    }
    request
}

impl Server {
    pub(super) async fn log_in_with(&self, providers: &str) {
        let keys = format!("encryption:\n  keys:\n  - {OLD}\n");
        self.reload(&format!("{keys}login:\n  providers:\n{providers}"))
            .await
            .unwrap();
    }

    pub(super) async fn begin(&self, provider: &str, body: Value) -> Begun {
        let path = format!("/api/auth/{provider}/authorize");
        let answer = self.send(request("POST", &path, None, Some(&body))).await;
        let cookie = answer
            .headers
            .get("set-cookie")
            .map(|value| value.to_str().unwrap());
        Begun {
            status: answer.status,
            cookie: cookie.unwrap_or_default().split(';').next().unwrap().to_owned(),
            body: answer.body,
        }
    }

    pub(super) async fn finish(&self, provider: &str, back: &Back) -> Answer {
        let body = json!({"code": back.query.get("code"), "state": back.query["state"]});
        let path = format!("/api/auth/{provider}/callback");
        self.send(with_cookie(&path, &back.cookie, &body)).await
    }

    /// The whole way.
    pub(super) async fn log_in(&self, provider: &str) -> Answer {
        let begun = self.begin(provider, json!({})).await;
        assert_eq!(begun.status, 200, "{}", begun.body);
        let back = begun.visit().await;
        self.finish(provider, &back).await
    }

    async fn names(&self) -> Vec<String> {
        let users = self.post(ADMIN, "/api/users/list", json!({})).await.ok();
        let mut names: Vec<String> = users
            .as_array()
            .unwrap()
            .iter()
            .map(|user| user["username"].as_str().unwrap().to_owned())
            .collect();
        names.sort();
        names
    }
}

/// As a line of `login.providers`.
pub(super) fn okta(idp: &Idp, more: &str) -> String {
    format!(
        "  - {{type: okta, issuer: '{}', client_id: {CLIENT_ID}, client_secret: '{CLIENT_SECRET}'{more}}}\n",
        idp.url
    )
}

fn github(idp: &Idp, more: &str) -> String {
    format!(
        "  - {{type: github, url: '{}', client_id: {CLIENT_ID}, client_secret: '{CLIENT_SECRET}'{more}}}\n",
        idp.url
    )
}

fn grace() -> Value {
    json!({
        "sub": "00u1", "preferred_username": "grace.hopper@acme.com", "email": "grace.hopper@acme.com",
        "email_verified": true,
    })
}

pub(super) async fn with_okta(more: &str) -> (Server, Idp) {
    let (server, idp) = (Server::new().await, Idp::start().await);
    server.log_in_with(&okta(&idp, more)).await;
    idp.visitor(grace());
    (server, idp)
}

#[tokio::test]
async fn an_account_is_one_user_whatever_it_is_called_later() {
    let (server, idp) = with_okta(", projects: [main, gone]").await;
    let listed = server
        .send(request("POST", "/api/auth/list_providers", None, None))
        .await;
    assert_eq!(listed.ok(), json!([{"name": "okta", "enabled": true}]));
    let user = server.log_in("okta").await.ok();
    assert_eq!(
        (&user["username"], &user["email"], &user["global_role"]),
        (
            &json!("grace-hopper"),
            &json!("grace.hopper@acme.com"),
            &json!("user")
        )
    );
    let token = user["creds"]["token"].as_str().unwrap();
    let me = server
        .post(token, "/api/users/get_my_user", json!(null))
        .await
        .ok();
    assert_eq!(me["id"], user["id"]);
    let projects = server.post(token, "/api/projects/list", json!({})).await.ok();
    assert_eq!(projects[0]["project_name"], "main");

    idp.visitor(json!({"sub": "00u1", "preferred_username": "grace.murray@acme.com"}));
    let again = server.log_in("okta").await.ok();
    assert_eq!((&again["id"], &again["creds"]), (&user["id"], &user["creds"]));
    idp.visitor(json!({"sub": "00u2", "preferred_username": "grace.hopper@evil.com"}));
    let other = server.log_in("okta").await.ok();
    assert_eq!(
        (&other["username"], &other["email"]),
        (&json!("grace-hopper-2"), &Value::Null)
    );
    assert_eq!(server.names().await, ["admin", "grace-hopper", "grace-hopper-2"]);

    let question = json!({"target_users": [user["id"]], "ascending": true});
    let events = server.post(ADMIN, "/api/events/list", question).await.ok();
    let events: Vec<(&str, &str)> = events
        .as_array()
        .unwrap()
        .iter()
        .map(|event| {
            (
                event["message"].as_str().unwrap(),
                event["actor_user"].as_str().unwrap(),
            )
        })
        .collect();
    let of = |text| (text, "grace-hopper");
    assert_eq!(
        events,
        [
            of("User created"),
            of("User identity added. Provider: Okta"),
            of("User logged in. Provider: Okta"),
            of("User logged in. Provider: Okta"),
        ]
    );
}

#[tokio::test]
async fn what_goes_to_the_provider_and_to_the_browser() {
    let (server, idp) = with_okta("").await;
    let path = "/api/auth/okta/authorize";
    let answer = server
        .send(request("POST", path, None, Some(&json!({"local_port": 41001}))))
        .await;
    let cookie = answer.headers["set-cookie"].to_str().unwrap().to_owned();
    for part in ["oauth-state=", "; HttpOnly", "; SameSite=Strict", "; Max-Age=600"] {
        assert!(cookie.contains(part), "{cookie}");
    }
    assert!(!cookie.contains("Secure"), "{cookie}");
    // Browsers then send it to the callback beside, below whatever path a proxy has put the server.
    assert!(!cookie.to_lowercase().contains("path="), "{cookie}");
    let url: Url = answer.ok()["authorization_url"]
        .as_str()
        .unwrap()
        .parse()
        .unwrap();
    let query: HashMap<String, String> = url.query_pairs().into_owned().collect();
    assert!(url.as_str().starts_with(&format!("{}/authorize?", idp.url)));
    assert_eq!(query["client_id"], CLIENT_ID);
    assert_eq!(query["code_challenge_method"], "S256");
    assert_eq!(query["scope"], "openid email profile");
    assert_eq!(
        query["redirect_uri"],
        format!("{}/auth/okta/callback", server.state.edge.settings.server_url())
    );
    let state: Value = serde_json::from_slice(&STANDARD.decode(&query["state"]).unwrap()).unwrap();
    assert_eq!(
        (&state["local_port"], state["value"].as_str().unwrap().len()),
        (&json!(41001), 32)
    );
    assert!(
        !cookie.contains(state["value"].as_str().unwrap()),
        "who knows the state does not know the cookie"
    );

    let elsewhere = server
        .begin("okta", json!({"base_url": "https://dstack.example.com/"}))
        .await;
    let query: HashMap<String, String> = elsewhere.url().query_pairs().into_owned().collect();
    assert_eq!(
        query["redirect_uri"],
        "https://dstack.example.com/auth/okta/callback"
    );
    let refused = server
        .begin("okta", json!({"base_url": "http://evil.example"}))
        .await
        .answer();
    assert!(refused.refused().0.contains("must be the address of this server"));
}

#[tokio::test]
async fn the_browser_is_sent_on_to_the_command_line() {
    let (server, idp) = with_okta("").await;
    let page = |back: Back| {
        let path = format!("/auth/okta/callback?{}", back.url.query().unwrap());
        let server = &server;
        async move { server.send(request("GET", &path, None, None)).await }
    };
    let back = server
        .begin("okta", json!({"local_port": 41001}))
        .await
        .visit()
        .await;
    let (code, state) = (back.query["code"].clone(), back.query["state"].clone());
    let answer = page(back.clone()).await;
    assert_eq!(answer.status, 303);
    let url: Url = answer.headers["location"].to_str().unwrap().parse().unwrap();
    assert!(
        url.as_str().starts_with("http://localhost:41001/auth/callback?"),
        "{url}"
    );
    let query: HashMap<String, String> = url.query_pairs().into_owned().collect();
    assert_eq!((&query["code"], &query["state"]), (&code, &state));

    let next = json!({"code": "a b", "state": state});
    let next = server
        .send(request("POST", "/api/auth/get_next_redirect", None, Some(&next)))
        .await
        .ok();
    let next = next["redirect_url"].as_str().unwrap();
    assert!(
        next.starts_with("http://localhost:41001/auth/callback?code=a+b&state="),
        "{next}"
    );
    assert_eq!(server.finish("okta", &back).await.status, 200);

    idp.fault(Some(Fault::Denied));
    let back = server
        .begin("okta", json!({"local_port": 41001}))
        .await
        .visit()
        .await;
    let answer = page(back).await;
    let location = answer.headers["location"].to_str().unwrap();
    assert!(
        location.starts_with("http://localhost:41001/auth/callback?error=access_denied&"),
        "{location}"
    );
    let back = server.begin("okta", json!({})).await.visit().await;
    let answer = page(back).await;
    assert_eq!(answer.status, 400);
    assert!(answer.body.as_str().unwrap().contains("dstack login"));
}

#[tokio::test]
async fn only_the_one_who_began_finishes_and_only_once() {
    let (server, idp) = with_okta("").await;
    server
        .log_in_with(&format!("{}{}", okta(&idp, ""), github(&idp, ", sign_up: false")))
        .await;
    let back = server.begin("okta", json!({})).await.visit().await;
    let other = server.begin("okta", json!({})).await.visit().await;
    let invalid = |answer: Answer, what: &str| {
        let (msg, code) = answer.refused();
        assert!(
            msg.starts_with("Invalid state token") && code == Some("error"),
            "{what}: {msg}"
        );
    };
    let with = |change: &dyn Fn(&mut Back)| {
        let mut changed = back.clone();
        change(&mut changed);
        changed
    };
    let nobody = with(&|back| back.cookie.clear());
    invalid(server.finish("okta", &nobody).await, "without a cookie");
    let another = with(&|back| back.cookie.clone_from(&other.cookie));
    invalid(server.finish("okta", &another).await, "begun by somebody else");
    let forged = with(&|back| {
        back.query
            .insert("state".into(), STANDARD.encode(r#"{"value": "v"}"#));
    });
    invalid(server.finish("okta", &forged).await, "a state made up");
    let nonsense = with(&|back| {
        back.query.insert("state".into(), "???".into());
    });
    invalid(server.finish("okta", &nonsense).await, "no state at all");
    invalid(server.finish("github", &back).await, "another provider");
    assert_eq!(server.names().await, ["admin"]);
    // None of that spoiled it for the one who began.
    assert_eq!(server.finish("okta", &back).await.status, 200);
    invalid(server.finish("okta", &back).await, "again");
    // A code of one login is not good for another: it has another verifier.
    let mut mixed = server.begin("okta", json!({})).await.visit().await;
    mixed.query.insert("code".into(), other.query["code"].clone());
    let answer = server.finish("okta", &mixed).await;
    assert!(
        answer.refused().0.contains("does not accept the code"),
        "{}",
        answer.body
    );
}

#[tokio::test]
async fn a_login_ends_after_ten_minutes() {
    let clock = HandClock::stopped();
    let server = TestServer::new().clock(&clock).start().await;
    let idp = Idp::start().await;
    idp.visitor(grace());
    server.log_in_with(&okta(&idp, "")).await;
    let late = server.begin("okta", json!({})).await.visit().await;
    clock.advance(600);
    let answer = server.finish("okta", &late).await;
    assert!(answer.refused().0.contains("took too long"), "{}", answer.body);
}

#[tokio::test]
async fn nothing_is_believed_that_is_not_proven_and_every_failure_is_said() {
    let (server, idp) = with_okta("").await;
    for (fault, says) in [
        (Fault::WrongNonce, "cannot be verified"),
        (Fault::WrongAudience, "cannot be verified"),
        (Fault::WrongIssuer, "cannot be verified"),
        (Fault::Expired, "cannot be verified"),
        (Fault::ForeignKey, "cannot be verified"),
        (Fault::Unsigned, "cannot be verified"),
        (Fault::SharedSecret, "cannot be verified"),
        (Fault::UnknownClient, "client_id"),
        (Fault::Broken, "does not answer this server as it should"),
        (Fault::Page, "does not answer this server as it should"),
        (Fault::Endless, "cannot be reached"),
    ] {
        idp.fault(None);
        let back = server.begin("okta", json!({})).await.visit().await;
        idp.fault(Some(fault));
        let answer = server.finish("okta", &back).await;
        let (msg, _) = answer.refused();
        assert!(msg.contains(says) && msg.contains("Okta"), "{fault:?}: {msg}");
        assert!(!answer.body.to_string().contains(CLIENT_SECRET));
    }
    idp.fault(None);
    let mut wrong = server.begin("okta", json!({})).await.visit().await;
    wrong.query.insert("code".into(), "made-up".into());
    let answer = server.finish("okta", &wrong).await;
    assert!(
        answer.refused().0.contains("does not accept the code"),
        "{}",
        answer.body
    );
    assert_eq!(server.names().await, ["admin"]);
}

#[tokio::test]
async fn what_a_short_token_does_not_say_is_asked_for() {
    let (server, idp) = with_okta(", allowed_domains: [acme.com]").await;
    idp.thin();
    idp.fault(Some(Fault::OtherUserinfo));
    let answer = server.log_in("okta").await;
    assert!(
        answer.refused().0.contains("cannot be verified"),
        "{}",
        answer.body
    );
    idp.fault(None);
    let user = server.log_in("okta").await.ok();
    assert_eq!(user["email"], "grace.hopper@acme.com");
}

#[tokio::test]
async fn providers_that_are_down_or_slow() {
    let server = TestServer::new().settings(|settings| settings.login_timeout = 0);
    let server = server.start().await;
    let idp = Idp::start().await;
    idp.visitor(json!({"id": 1, "login": "octocat"}));
    idp.fault(Some(Fault::Silent));
    server
        .log_in_with(&format!("{}{}", okta(&idp, ""), github(&idp, ", sign_up: false")))
        .await;
    let slow = server.begin("okta", json!({})).await.answer();
    assert!(
        slow.refused().0.contains("did not answer this server in time"),
        "{}",
        slow.body
    );
    let slow = server.log_in("github").await;
    assert!(
        slow.refused().0.contains("GitHub did not answer"),
        "{}",
        slow.body
    );

    let (server, mut idp) = (Server::new().await, Idp::start().await);
    // Nobody listens there.
    idp.url = "http://127.0.0.1:1".to_owned();
    server.log_in_with(&okta(&idp, "")).await;
    let down = server.begin("okta", json!({})).await.answer();
    assert!(
        down.refused().0.contains("Okta cannot be reached"),
        "{}",
        down.body
    );
}

#[tokio::test]
async fn github_says_who_is_in_an_organization() {
    let (server, idp) = (Server::new().await, Idp::start().await);
    server
        .log_in_with(&github(
            &idp,
            ", allowed_organizations: [acme, umbrella], global_role: admin",
        ))
        .await;
    let visitor = |orgs: Value, verified: bool| {
        idp.visitor(json!({"id": 583231, "login": "octocat", "orgs": orgs, "emails": [
            {"email": "old@acme.com", "primary": false, "verified": true, "visibility": null},
            {"email": "octo@acme.com", "primary": true, "verified": verified, "visibility": "private"},
        ]}));
    };
    for orgs in [json!({}), json!({"other": "active"}), json!({"acme": "pending"})] {
        visitor(orgs, true);
        let answer = server.log_in("github").await;
        assert!(
            answer
                .refused()
                .0
                .contains("not known as a member of acme or umbrella"),
            "{}",
            answer.body
        );
    }
    visitor(json!({"umbrella": "active"}), false);
    let user = server.log_in("github").await.ok();
    assert_eq!(
        (&user["username"], &user["email"], &user["global_role"]),
        (&json!("octocat"), &Value::Null, &json!("admin"))
    );
    // Who leaves is not let in any more.
    visitor(json!({}), true);
    assert_eq!(server.log_in("github").await.status, 400);
    server
        .log_in_with(&github(&idp, ", allowed_domains: [acme.com]"))
        .await;
    assert_eq!(server.log_in("github").await.ok()["id"], user["id"]);
    idp.fault(Some(Fault::UnknownClient));
    let answer = server.log_in("github").await;
    assert!(answer.refused().0.contains("client_id"), "{}", answer.body);
}

#[tokio::test]
async fn users_that_may_not_log_in_any_more() {
    let (server, idp) = with_okta("").await;
    let user = server.log_in("okta").await.ok();
    let inactive = json!({"username": "grace-hopper", "global_role": "user", "active": false});
    server.post(ADMIN, "/api/users/update", inactive).await.ok();
    let answer = server.log_in("okta").await;
    assert!(
        answer.refused().0.contains("User grace-hopper is deactivated"),
        "{}",
        answer.body
    );
    assert!(
        !answer
            .body
            .to_string()
            .contains(user["creds"]["token"].as_str().unwrap())
    );

    server
        .post(ADMIN, "/api/users/delete", json!({"users": ["grace-hopper"]}))
        .await
        .ok();
    let anew = server.log_in("okta").await.ok();
    assert_eq!(anew["username"], "grace-hopper");
    assert_ne!(anew["id"], user["id"]);
    server
        .log_in_with(&okta(&idp, ", allowed_domains: [umbrella.com]"))
        .await;
    let answer = server.log_in("okta").await;
    assert!(
        answer
            .refused()
            .0
            .contains("no verified e-mail address at umbrella.com"),
        "{}",
        answer.body
    );
}

#[tokio::test]
async fn existing_users_are_linked_by_verified_addresses_only_where_that_is_said() {
    let (server, idp) = with_okta(", sign_up: false").await;
    // With the address alice@example.com.
    let alice = server.user("alice").await;
    let visitor = |sub: &str, email: &str, verified: bool| {
        idp.visitor(json!({
            "sub": sub, "preferred_username": "al", "email": email, "email_verified": verified,
        }));
    };
    visitor("1", "alice@example.com", true);
    let answer = server.log_in("okta").await;
    assert!(
        answer.refused().0.contains("al is no user of this server"),
        "{}",
        answer.body
    );
    server
        .log_in_with(&okta(&idp, ", sign_up: false, link_by_email: true"))
        .await;
    for (email, verified) in [("alice@example.com", false), ("bob@example.com", true)] {
        visitor("1", email, verified);
        assert!(
            server
                .log_in("okta")
                .await
                .refused()
                .0
                .contains("no user of this server")
        );
    }
    visitor("1", "Alice@Example.com", true);
    let user = server.log_in("okta").await.ok();
    assert_eq!(
        (&user["username"], &user["creds"]["token"]),
        (&json!("alice"), &json!(alice))
    );
    // From now on by the account, whatever its address.
    visitor("1", "other@example.com", false);
    assert_eq!(server.log_in("okta").await.ok()["username"], "alice");
    let twin = json!({"username": "twin", "global_role": "user", "email": "alice@example.com"});
    server.post(ADMIN, "/api/users/create", twin).await.ok();
    visitor("2", "alice@example.com", true);
    assert!(server.log_in("okta").await.refused().0.contains("Several users"));
}

#[tokio::test]
async fn unknown_providers_and_too_many_logins() {
    let server = Server::new().await;
    let answer = server.begin("okta", json!({})).await.answer();
    assert_eq!(
        answer.refused().0,
        "Login provider okta is not configured on this server. None is"
    );
    let (server, idp) = with_okta("").await;
    let answer = server.begin("github", json!({})).await.answer();
    assert!(answer.refused().0.ends_with("Available: okta"), "{}", answer.body);
    let begun = server.begin("okta", json!({})).await;
    let now = dstack_system::Clock::now(&dstack_system::SystemClock);
    let row = logins::LoginRow {
        state_hash: "another".into(),
        browser_hash: "x".into(),
        provider: "okta".into(),
        redirect_url: "x".into(),
        secrets: "x".into(),
        expires_at: now + std::time::Duration::from_secs(1),
    };
    let insert = |row: logins::LoginRow, most| {
        let work = server
            .state
            .data
            .database
            .write(move |tx| Box::pin(async move { logins::insert(tx, &row, now, most).await }));
        async move { work.await.unwrap() }
    };
    assert!(!insert(row.clone(), 1).await, "one is under way");
    assert!(insert(row, 2).await);
    let back = begun.visit().await;
    assert_eq!(server.finish("okta", &back).await.status, 200);
    // What the log of configuration changes says.
    let keys = format!("encryption:\n  keys:\n  - {OLD}\n");
    let both = format!(
        "{keys}login:\n  providers:\n{}{}",
        okta(&idp, ""),
        github(&idp, ", sign_up: false")
    );
    assert_eq!(
        server.reload(&both).await.unwrap(),
        ["login.providers: okta, github (was okta)"]
    );
    assert_eq!(
        server.reload(&keys).await.unwrap(),
        ["login.providers: none (was okta, github)"]
    );
}
