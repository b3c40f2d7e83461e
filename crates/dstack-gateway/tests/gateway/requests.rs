//! Requests by host name, and what is checked before a service gets them.

use dstack_proxy::routes::Routes;
use http::Request;
use serde_json::json;

use crate::support::app::App;
use crate::support::client::{ask, ask_from};
use crate::support::ssh::Ssh;
use crate::support::{Setup, job, model, ok, until};

#[tokio::test(flavor = "multi_thread")]
async fn a_service_is_asked_by_its_host_name() {
    let (setup, _ssh, _app) = Setup::serving(json!({})).await;
    let request = Request::post("/a%2Fb?q=1")
        .header("x-own", "v")
        .header("x-forwarded-for", "6.6.6.6");
    let answer = setup.send("WEB.example.com:8080", request).await;
    assert_eq!(answer.status, 200);
    let said = answer.json();
    assert_eq!(
        (&said["app"], &said["method"], &said["path"]),
        (&json!("one"), &json!("POST"), &json!("/a%2Fb?q=1"))
    );
    let headers = &said["headers"];
    assert_eq!(headers["host"], "WEB.example.com:8080");
    assert_eq!(headers["x-own"], "v");
    assert_eq!(headers["x-real-ip"], "127.0.0.1");
    assert_eq!(
        headers["x-forwarded-for"], "127.0.0.1",
        "what the client says of itself is not believed"
    );
    assert_eq!(headers["x-forwarded-proto"], "http");
}

#[tokio::test(flavor = "multi_thread")]
async fn of_hosts_that_are_not_known_nothing_is_said() {
    let (setup, ssh) = (Setup::start().await, Ssh::start().await);
    setup.register("web", json!({}), &ssh).await;
    let answer = setup.ask("other.example.com", "/").await;
    assert_eq!(
        (answer.status, answer.body.as_str()),
        (404, r#"{"detail":"Not Found"}"#)
    );
    let without_host = Request::get("/").body(String::new()).unwrap();
    assert_eq!(ask(setup.http(), without_host).await.status, 400);
    let empty = setup.ask("web.example.com", "/").await;
    assert_eq!(empty.status, 503, "there is no replica");
    let challenge = setup
        .ask("other.example.com", "/.well-known/acme-challenge/x")
        .await;
    assert_eq!(challenge.status, 404);
}

#[tokio::test(flavor = "multi_thread")]
async fn of_two_replicas_the_one_that_lives_answers() {
    let setup = Setup::start().await;
    let (ssh, other) = (Ssh::start().await, App::start("other").await);
    let dying = App::start("dying").await;
    setup.register("web", json!({}), &ssh).await;
    setup.register_replica("web", 1, dying.port, &ssh).await;
    setup.register_replica("web", 2, other.port, &ssh).await;
    until("both are asked", async || {
        setup.ask("web.example.com", "/").await.json()["app"] == "dying"
    })
    .await;
    dying.stop();
    for _ in 0..20 {
        let answer = setup.ask("web.example.com", "/").await;
        assert_eq!(answer.status, 200, "{answer:?}");
    }
    assert_eq!(setup.ask("web.example.com", "/").await.json()["app"], "other");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_to_a_replica_that_breaks_is_opened_anew() {
    let (setup, ssh, _app) = Setup::serving(json!({})).await;
    assert_eq!(setup.ask("web.example.com", "/").await.status, 200);
    let ssh = ssh.restarted().await;
    until("it is reached again", async || {
        setup.ask("web.example.com", "/").await.status == 200
    })
    .await;
    let (_, health) = setup.get("/api/v2/health").await;
    assert_eq!(
        (
            &health["services"],
            &health["replicas"],
            &health["replicas_connected"]
        ),
        (&json!(1), &json!(1), &json!(1))
    );
    drop(ssh);
    until("it is known to be gone", async || {
        setup.get("/api/v2/health").await.1["replicas_connected"] == 0
    })
    .await;
    assert_eq!(setup.ask("web.example.com", "/").await.status, 502);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replica_behind_another_ssh_server_is_reached_with_its_key() {
    let (setup, jump, host) = (Setup::start().await, Ssh::start().await, Ssh::start().await);
    let app = App::start("inner").await;
    setup.register("web", json!({}), &host).await;
    let mut replica = host.replica(1, app.port);
    replica["ssh_proxy"] = json!({"hostname": "127.0.0.1", "username": "ubuntu", "port": jump.port()});
    let path = "/api/registry/main/services/web/replicas/register";
    let (status, said) = setup.post(path, &replica).await;
    assert_eq!(status, 400, "the project's key does not open it: {said}");
    replica["ssh_proxy_private_key"] = json!(jump.key());
    assert_eq!(setup.post(path, &replica).await.0, 200);
    assert_eq!(setup.ask("web.example.com", "/").await.json()["app"], "inner");
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_that_ask_too_often_are_429() {
    let (setup, ssh, app) = (Setup::start().await, Ssh::start().await, App::start("one").await);
    let limits = json!({"rate_limits": [
        {"prefix": "/", "key": {"type": "ip_address"}, "rps": 0.02, "burst": 1},
        {"prefix": "/by-key", "key": {"type": "header", "header": "X-Key"}, "rps": 0.02, "burst": 0}
    ]});
    setup.serve(limits, &ssh, &app).await;
    let mut statuses = Vec::new();
    for _ in 0..3 {
        statuses.push(setup.ask("web.example.com", "/").await.status);
    }
    assert_eq!(statuses, [200, 200, 429]);
    assert_eq!(
        setup.ask("web.example.com", "/x/../").await.status,
        429,
        "by any path that means the same"
    );
    let by_key = async |key: Option<&str>| {
        let mut request = Request::get("/by-key");
        if let Some(key) = key {
            request = request.header("x-key", key);
        }
        setup.send("web.example.com", request).await.status
    };
    assert_eq!(
        [
            by_key(Some("a")).await,
            by_key(Some("b")).await,
            by_key(Some("a")).await
        ],
        [200, 200, 429]
    );
    assert_eq!(
        [by_key(None).await, by_key(None).await],
        [200, 200],
        "without the header nobody is limited"
    );
    // What was used is remembered when replicas change.
    setup.register_replica("web", 2, app.port, &ssh).await;
    assert_eq!(setup.ask("web.example.com", "/").await.status, 429);
}

#[tokio::test(flavor = "multi_thread")]
async fn bodies_that_are_too_long_are_413() {
    let (setup, ssh, app) = (Setup::start().await, Ssh::start().await, App::start("one").await);
    setup.register("web", json!({}), &ssh).await;
    setup
        .register("any", json!({"client_max_body_size": 0}), &ssh)
        .await;
    for (run, number) in [("web", 1), ("any", 2)] {
        setup.register_replica(run, number, app.port, &ssh).await;
    }
    let post = async |host: &str, length: usize| {
        let request = Request::post("/")
            .header("host", host)
            .body("x".repeat(length))
            .unwrap();
        ask(setup.http(), request).await
    };
    assert_eq!(post("web.example.com", 1024).await.json()["body"], 1024);
    assert_eq!(post("web.example.com", 1025).await.status, 413);
    assert_eq!(post("any.example.com", 100_000).await.json()["body"], 100_000);
    // One whose length is not told before.
    let chunked = format!(
        "POST / HTTP/1.1\r\nhost: web.example.com\r\nconnection: close\r\ntransfer-encoding: chunked\r\n\r\n800\r\n{}\r\n0\r\n\r\n",
        "x".repeat(2048)
    );
    let answer = raw(&setup, &chunked).await;
    assert!(answer.starts_with("HTTP/1.1 413"), "{answer}");
}

/// What is answered to these bytes.
async fn raw(setup: &Setup, text: &str) -> String {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    let mut stream = tokio::net::TcpStream::connect(setup.http()).await.unwrap();
    stream.write_all(text.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer).await;
    String::from_utf8_lossy(&answer).into_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_router_is_asked_for_models_only() {
    let (setup, ssh, app) = (
        Setup::start().await,
        Ssh::start().await,
        App::start("router").await,
    );
    setup.serve(json!({"has_router_replica": true}), &ssh, &app).await;
    for (path, expected) in [
        ("/v1/models", 200),
        ("/generate", 200),
        ("/workers", 403),
        ("/v1/../workers", 403),
        ("/v1/%2e%2e/workers", 403),
        ("/", 403),
    ] {
        assert_eq!(
            setup.ask("web.example.com", path).await.status,
            expected,
            "{path}"
        );
    }
}

/// As a server of this version registers it; what a newer one may ask for besides is no reason to refuse a service.
#[tokio::test(flavor = "multi_thread")]
async fn conversations_go_on_where_they_began_where_the_service_wants_it() {
    let (setup, ssh) = (Setup::start().await, Ssh::start().await);
    let (one, other) = (App::start("one").await, App::start("other").await);
    setup
        .register("newer", json!({"balancing": "by_the_moon"}), &ssh)
        .await;
    setup
        .register(
            "llm",
            json!({"balancing": "prefix", "client_max_body_size": 100_000}),
            &ssh,
        )
        .await;
    setup.register_replica("llm", 1, one.port, &ssh).await;
    setup.register_replica("llm", 2, other.port, &ssh).await;
    let chat = async |conversation: usize, turns: usize| {
        let said = format!("{conversation} {}", "why? ".repeat(60 * turns));
        let body = json!({"model": "m", "messages": [{"role": "user", "content": said}]});
        let request = Request::post("/v1/chat/completions")
            .header("host", "llm.example.com")
            .header("content-type", "application/json")
            .body(body.to_string())
            .unwrap();
        let answer = ask(setup.http(), request).await.json();
        answer["choices"][0]["message"]["content"].clone()
    };
    let mut began = Vec::new();
    for conversation in 0..20 {
        began.push(chat(conversation, 1).await);
    }
    assert!(
        began.contains(&json!("one")) && began.contains(&json!("other")),
        "{began:?}"
    );
    for (conversation, name) in began.iter().enumerate() {
        assert_eq!(chat(conversation, 2).await, *name);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn models_are_asked_from_pages_of_any_origin() {
    let (setup, ssh, app) = (Setup::start().await, Ssh::start().await, App::start("one").await);
    setup
        .register("llm", json!({"auth": true, "options": model()}), &ssh)
        .await;
    setup.register("web", json!({}), &ssh).await;
    for (run, number) in [("llm", 1), ("web", 2)] {
        setup.register_replica(run, number, app.port, &ssh).await;
    }
    let preflight = setup
        .send("llm.example.com", Request::options("/v1/chat/completions"))
        .await;
    assert_eq!(preflight.status, 204, "before it is known who asks");
    assert_eq!(preflight.header("access-control-allow-origin"), "*");
    assert_eq!(
        preflight.header("access-control-allow-methods"),
        "GET, POST, PUT, DELETE, PATCH, OPTIONS, HEAD"
    );
    assert_eq!(preflight.header("access-control-max-age"), "600");
    let denied = setup.ask("llm.example.com", "/").await;
    assert_eq!(
        (denied.status, denied.header("access-control-allow-origin")),
        (403, "*")
    );
    let other = setup.ask("web.example.com", "/").await;
    assert_eq!(
        other.header("access-control-allow-origin"),
        "https://own.example.com",
        "its own affair"
    );
    let routes: &Routes = &setup.gateway.registry().sites().load().routes;
    assert!(routes.service("main", "llm").unwrap().model.is_some());
}

#[tokio::test(flavor = "multi_thread")]
async fn strangers_are_sent_to_https_and_this_machine_is_not() {
    let (setup, _authority) = crate::acme::with_authority().await;
    let (ssh, app) = (Ssh::start().await, App::start("one").await);
    setup.serve(json!({"https": true}), &ssh, &app).await;
    let request = || {
        Request::get("/a?b=1")
            .header("host", "web.example.com")
            .body(String::new())
            .unwrap()
    };
    let moved = ask_from([127, 0, 0, 2], setup.http(), request()).await;
    let expected = format!("https://web.example.com:{}/a?b=1", setup.https().port());
    assert_eq!((moved.status, moved.header("location")), (301, expected.as_str()));
    assert_eq!(ask(setup.http(), request()).await.status, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_proxy_that_is_trusted_tells_who_asks() {
    let setup =
        Setup::start_with(|settings| settings.trusted_proxies = vec!["127.0.0.1/32".parse().unwrap()]).await;
    let (ssh, app) = (Ssh::start().await, App::start("one").await);
    let limits =
        json!({"rate_limits": [{"prefix": "/", "key": {"type": "ip_address"}, "rps": 0.02, "burst": 0}]});
    setup.serve(limits, &ssh, &app).await;
    let from = async |client: &str| {
        let request = Request::get("/")
            .header("x-forwarded-for", client)
            .header("x-forwarded-proto", "https");
        setup.send("web.example.com", request).await
    };
    let first = from("203.0.113.7").await;
    assert_eq!(
        first.json()["headers"]["x-forwarded-for"],
        "203.0.113.7, 127.0.0.1"
    );
    assert_eq!(first.json()["headers"]["x-forwarded-proto"], "https");
    assert_eq!(
        [from("203.0.113.7").await.status, from("203.0.113.8").await.status],
        [429, 200]
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_are_split_between_old_and_new_replicas_as_the_server_says() {
    let (setup, ssh) = (Setup::start().await, Ssh::start().await);
    let (old, new) = (App::start("old").await, App::start("new").await);
    setup.register("web", json!({ "id": job(77) }), &ssh).await;
    setup.register_replica("web", 1, old.port, &ssh).await;
    let path = "/api/v2/registry/main/services/web/split";
    let split = |share: u64| {
        let header = json!({"name": "x-canary", "value": "1"});
        json!({"split": {"deployment": 3, "new": [job(2)], "share": share, "header": header}})
    };
    // Before the new replica comes.
    assert_eq!(setup.post(path, &split(0)).await, ok());
    setup.register_replica("web", 2, new.port, &ssh).await;
    let said =
        async |setup: &Setup, request| setup.send("web.example.com", request).await.json()["app"].clone();
    for _ in 0..20 {
        assert_eq!(said(&setup, Request::get("/")).await, "old");
    }
    let canary = || Request::get("/").header("x-canary", "1");
    assert_eq!(said(&setup, canary()).await, "new");
    let listed = setup.get("/api/services/list").await.1;
    assert_eq!(listed["services"][0]["split"], split(0)["split"]);
    assert_eq!(setup.post(path, &split(10_000)).await, ok());
    assert_eq!(said(&setup, Request::get("/")).await, "new");
    until("all is counted", async || {
        let counted = setup.get("/api/v2/stats").await.1;
        let rollout = &counted[0]["rollout"];
        let requests = |side: &str| rollout[side]["requests"].clone();
        counted[0]["id"] == job(77)
            && rollout["deployment"] == 3
            && requests("old") == 20
            && requests("new") == 2
    })
    .await;
    let setup = setup.killed_and_started().await;
    until("the new replica is reached again", async || {
        setup.ask("web.example.com", "/").await.status == 200
    })
    .await;
    assert_eq!(said(&setup, Request::get("/")).await, "new", "it is remembered");
    assert_eq!(setup.post(path, &json!({"split": null})).await, ok());
    assert_eq!(
        setup.get("/api/services/list").await.1["services"][0].get("split"),
        None
    );
}
