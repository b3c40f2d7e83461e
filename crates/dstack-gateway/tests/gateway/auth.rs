//! Who may ask: servers know.

use std::sync::Arc;
use std::time::Duration;

use dstack_gateway::auth::{Auth, Verdict};
use dstack_system::Random;
use http::{HeaderMap, Request};
use serde_json::json;
use tokio::time::Instant;

use crate::support::app::App;
use crate::support::server::Server;
use crate::support::ssh::Ssh;
use crate::support::{Setup, model, ok};

async fn with_service() -> (Setup, Ssh, App) {
    Setup::serving(json!({"auth": true})).await
}

async fn asked(setup: &Setup, token: &str) -> u16 {
    let request = Request::get("/").header("authorization", format!("Bearer {token}"));
    setup.send("web.example.com", request).await.status
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_is_asked_once_for_all_that_ask_with_the_same_token() {
    let (setup, _ssh, _app) = with_service().await;
    let sockets = &setup.settings.server_connections;
    let answers = [("main", "good", 200), ("main", "odd", 404)];
    let server = Server::start(sockets, "a", &answers);
    server.is_silent(true);
    let asking = futures_util::future::join_all((0..20).map(|_| asked(&setup, "good")));
    let (all, ()) = tokio::join!(asking, async {
        server.is_asked(1).await;
        server.is_silent(false);
    });
    assert!(all.iter().all(|status| *status == 200), "{all:?}");
    assert_eq!(server.asked(), 1);
    assert_eq!(
        [asked(&setup, "bad").await, asked(&setup, "bad").await],
        [403, 403]
    );
    assert_eq!(server.asked(), 2, "what was denied is remembered as well");
    assert_eq!(asked(&setup, "odd").await, 500);
    assert_eq!(
        setup.ask("web.example.com", "/").await.status,
        403,
        "without a token nobody is asked"
    );
    assert_eq!(server.asked(), 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_token_stays_with_the_gateway() {
    let (setup, _ssh, _app) = with_service().await;
    let _server = Server::start(&setup.settings.server_connections, "a", &[("main", "good", 200)]);
    let request = Request::get("/").header("authorization", "Bearer good");
    let answer = setup.send("web.example.com", request).await;
    assert_eq!(answer.status, 200);
    assert_eq!(answer.json()["headers"]["authorization"], json!(null));
}

#[tokio::test(flavor = "multi_thread")]
async fn where_one_server_is_gone_another_is_asked() {
    let (setup, _ssh, _app) = with_service().await;
    let sockets = &setup.settings.server_connections;
    assert_eq!(asked(&setup, "good").await, 500, "there is none");
    let gone = Server::start(sockets, "a", &[]);
    gone.gone().await;
    let _server = Server::start(
        sockets,
        "b",
        &[
            ("main", "good1", 200),
            ("main", "good2", 200),
            ("main", "good3", 200),
        ],
    );
    for token in ["good1", "good2", "good3"] {
        assert_eq!(asked(&setup, token).await, 200);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn nginx_of_an_old_gateway_would_be_answered_the_same() {
    let (setup, _ssh, _app) = with_service().await;
    let _server = Server::start(&setup.settings.server_connections, "a", &[("main", "good", 200)]);
    let check = async |token: &str| {
        let request = Request::get("/api/auth/Main").header("authorization", format!("Bearer {token}"));
        let request = request.body(String::new()).unwrap();
        let answer = crate::support::client::ask(setup.gateway.addresses().api, request).await;
        (answer.status, answer.json())
    };
    assert_eq!(check("good").await, ok());
    assert_eq!(check("bad").await.0, 403);
}

#[tokio::test(flavor = "multi_thread")]
async fn models_are_asked_at_the_entrypoint_and_below_the_api() {
    let (setup, ssh, app) = (Setup::start().await, Ssh::start().await, App::start("one").await);
    setup.register("llm", json!({"options": model()}), &ssh).await;
    setup.register_replica("llm", 1, app.port, &ssh).await;
    let _server = Server::start(&setup.settings.server_connections, "a", &[("main", "good", 200)]);
    assert_eq!(
        setup.register_entrypoint("main", "Gateway.example.com").await,
        ok()
    );
    let ask = async |request: http::request::Builder, body: &str| {
        let request = request
            .header("host", "gateway.example.com")
            .header("authorization", "Bearer good")
            .body(body.to_owned())
            .unwrap();
        crate::support::client::ask(setup.http(), request).await
    };
    let listed = ask(Request::get("/models"), "").await;
    assert_eq!(
        (listed.status, listed.json()["data"][0]["id"].as_str()),
        (200, Some("m"))
    );
    assert_eq!(listed.header("access-control-allow-origin"), "*");
    let chat = r#"{"model": "m", "messages": []}"#;
    let answered = ask(Request::post("/chat/completions"), chat).await;
    assert_eq!(
        answered.json()["choices"][0]["message"]["content"],
        "one",
        "{answered:?}"
    );
    let unknown = ask(
        Request::post("/chat/completions"),
        r#"{"model": "x", "messages": []}"#,
    )
    .await;
    assert_eq!(
        (unknown.status, unknown.json()["detail"].as_str()),
        (404, Some("Model x not found in project main"))
    );
    assert_eq!(ask(Request::get("/none"), "").await.status, 404);
    assert_eq!(ask(Request::get("/chat/completions"), "").await.status, 405);
    assert_eq!(setup.ask("gateway.example.com", "/models").await.status, 403);
    let preflight = setup
        .send("gateway.example.com", Request::options("/models"))
        .await;
    assert_eq!(preflight.status, 204);
    assert_eq!(setup.get("/api/models/main/models").await.0, 403);
}

/// What is known of whoever has this token.
fn auth() -> (tempfile::TempDir, Arc<Auth>) {
    let dir = tempfile::tempdir().unwrap();
    let auth = Auth::new(dir.path().to_owned(), Random::system());
    (dir, Arc::new(auth))
}

async fn verdict(auth: &Arc<Auth>, token: &str) -> Verdict {
    let mut headers = HeaderMap::new();
    headers.insert("authorization", format!("Bearer {token}").parse().unwrap());
    auth.check("main", &headers).await
}

#[tokio::test(start_paused = true)]
async fn while_no_server_can_be_asked_those_who_were_let_in_are_for_ten_minutes() {
    let (dir, auth) = auth();
    let server = Server::start(dir.path(), "a", &[("main", "good", 200)]);
    assert_eq!(verdict(&auth, "good").await, Verdict::Allowed);
    assert_eq!(verdict(&auth, "bad").await, Verdict::Denied);
    server.gone().await;
    tokio::time::advance(Duration::from_secs(61)).await;
    assert_eq!(verdict(&auth, "good").await, Verdict::Allowed);
    assert_eq!(verdict(&auth, "bad").await, Verdict::Unknown);
    assert_eq!(verdict(&auth, "new").await, Verdict::Unknown);
    tokio::time::advance(Duration::from_secs(540)).await;
    assert_eq!(verdict(&auth, "good").await, Verdict::Unknown);
    let _server = Server::start(dir.path(), "b", &[("main", "good", 403)]);
    tokio::time::advance(Duration::from_secs(1)).await;
    assert_eq!(verdict(&auth, "good").await, Verdict::Denied);
}

#[tokio::test(start_paused = true)]
async fn a_server_that_fails_is_as_good_as_none() {
    let (dir, auth) = auth();
    let server = Server::start(dir.path(), "a", &[("main", "good", 200)]);
    assert_eq!(verdict(&auth, "good").await, Verdict::Allowed);
    server.gone().await;
    std::fs::remove_file(dir.path().join("a.sock")).unwrap();
    let failing = Server::start(dir.path(), "a", &[("main", "good", 502)]);
    tokio::time::advance(Duration::from_secs(61)).await;
    for _ in 0..10 {
        assert_eq!(verdict(&auth, "good").await, Verdict::Allowed);
    }
    assert_eq!(failing.asked(), 1, "it is not asked again at once");
}

#[tokio::test(start_paused = true)]
async fn a_socket_at_which_nobody_answers_for_two_minutes_is_deleted() {
    let (dir, auth) = auth();
    Server::start(dir.path(), "a", &[]).gone().await;
    let socket = dir.path().join("a.sock");
    for (seconds, is_there) in [(0, true), (60, true), (59, true), (2, false)] {
        tokio::time::advance(Duration::from_secs(seconds)).await;
        assert_eq!(verdict(&auth, "good").await, Verdict::Unknown);
        assert_eq!(socket.exists(), is_there, "{seconds}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn replicas_that_change_while_a_server_is_asked_are_known_then() {
    let (setup, ssh, _app) = with_service().await;
    let server = Server::start(&setup.settings.server_connections, "a", &[("main", "good", 200)]);
    server.is_silent(true);
    let second = App::start("two").await;
    let changing = async {
        server.is_asked(1).await;
        setup.register_replica("web", 2, second.port, &ssh).await;
        setup.unregister_replica("web", 1).await;
        server.is_silent(false);
    };
    let (status, ()) = tokio::join!(asked(&setup, "good"), changing);
    assert_eq!(status, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn models_at_the_entrypoint_have_the_limits_of_their_service() {
    let (setup, ssh, app) = (Setup::start().await, Ssh::start().await, App::start("one").await);
    let limits = json!({
        "options": model(),
        "rate_limits": [{"prefix": "/v1/", "key": {"type": "header", "header": "X-User"}, "rps": 0.02, "burst": 1}]
    });
    setup.serve(limits, &ssh, &app).await;
    let _server = Server::start(&setup.settings.server_connections, "a", &[("main", "good", 200)]);
    assert_eq!(
        setup.register_entrypoint("main", "gateway.example.com").await,
        ok()
    );
    let chat = async |user: &str, text: &str| {
        let request = Request::post("/chat/completions")
            .header("host", "gateway.example.com")
            .header("authorization", "Bearer good")
            .header("x-user", user)
            .body(json!({"model": "m", "messages": [], "text": text}).to_string());
        crate::support::client::ask(setup.http(), request.unwrap()).await
    };
    let mut statuses = Vec::new();
    for _ in 0..3 {
        statuses.push(chat("a", "").await.status);
    }
    assert_eq!(statuses, [200, 200, 429]);
    assert_eq!(chat("b", "").await.status, 200);
    // The service takes a kibibyte.
    let long = chat("c", &"x".repeat(1024)).await;
    assert_eq!(
        (long.status, long.header("access-control-allow-origin")),
        (413, "*")
    );
    let request = Request::post("/v1/chat/completions").header("x-user", "a");
    assert_eq!(
        setup.send("web.example.com", request).await.status,
        429,
        "it is the same limit"
    );
}

#[tokio::test(start_paused = true)]
async fn who_was_let_in_before_does_not_wait_for_a_server_that_hangs() {
    let (dir, auth) = auth();
    let server = Server::start(dir.path(), "a", &[("main", "good", 200)]);
    assert_eq!(verdict(&auth, "good").await, Verdict::Allowed);
    tokio::time::advance(Duration::from_secs(61)).await;
    server.is_silent(true);
    let started = Instant::now();
    for _ in 0..100 {
        assert_eq!(verdict(&auth, "good").await, Verdict::Allowed);
    }
    assert!(
        started.elapsed() < Duration::from_secs(2),
        "{:?}",
        started.elapsed()
    );
    assert_eq!(server.asked(), 2);
    server.is_silent(false);
    // Until then it has answered; no time passes as long as there is something to do.
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(verdict(&auth, "good").await, Verdict::Allowed);
    assert_eq!(server.asked(), 2, "what it has said at last is known");
    assert_eq!(verdict(&auth, "new").await, Verdict::Denied);
}

#[tokio::test(start_paused = true)]
async fn a_server_that_hangs_is_asked_after_all_others() {
    let (dir, auth) = auth();
    let hanging = Server::start(dir.path(), "a", &[]);
    hanging.is_silent(true);
    // The first question finds out, whenever it comes to that.
    while hanging.asked() == 0 {
        let other = Server::start(dir.path(), "b", &[]);
        for token in 0..10 {
            verdict(&auth, &format!("first{token}")).await;
        }
        other.gone().await;
        std::fs::remove_file(dir.path().join("b.sock")).unwrap();
    }
    let _other = Server::start(dir.path(), "b", &[]);
    let before = hanging.asked();
    for token in 0..20 {
        assert_eq!(verdict(&auth, &format!("next{token}")).await, Verdict::Denied);
    }
    assert_eq!(hanging.asked(), before);
}

#[tokio::test(start_paused = true)]
async fn a_socket_that_leads_to_somebody_stays() {
    let (dir, auth) = auth();
    let socket = dir.path().join("a.sock");
    // As the tunnel of a server that starts: whoever connects is let in, and nobody is behind it.
    let tunnel = tokio::net::UnixListener::bind(&socket).unwrap();
    let closing = tokio::spawn(async move {
        while let Ok((stream, _)) = tunnel.accept().await {
            drop(stream);
        }
    });
    for _ in 0..4 {
        assert_eq!(verdict(&auth, "good").await, Verdict::Unknown);
        assert!(socket.exists());
        tokio::time::advance(Duration::from_secs(121)).await;
    }
    closing.abort();
    assert!(closing.await.is_err());
    // Two failures, however many see them, are none of a server that is gone for long.
    for _ in 0..2 {
        for token in 0..5 {
            assert_eq!(verdict(&auth, &format!("token{token}")).await, Verdict::Unknown);
        }
        assert!(socket.exists());
        tokio::time::advance(Duration::from_secs(121)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn only_so_many_questions_wait() {
    let (dir, auth) = auth();
    let server = Server::start(dir.path(), "a", &[]);
    server.is_silent(true);
    let tokens: Vec<String> = (0..2000).map(|token| format!("token{token}")).collect();
    let started = Instant::now();
    let first = futures_util::future::select_all(tokens.iter().map(|token| Box::pin(verdict(&auth, token))));
    let (said, _, _) = first.await;
    assert_eq!(said, Verdict::Unknown);
    assert!(
        started.elapsed() < Duration::from_secs(1),
        "at once: {:?}",
        started.elapsed()
    );
}
