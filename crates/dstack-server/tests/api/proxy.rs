//! Requests that the server passes on to services.
#![allow(clippy::print_stdout)]

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::Request;
use dstack_agent_api::http::{Connector, TcpConnector};
use dstack_engine::Services as _;
use dstack_server::services::Ports;
use dstack_store::rows::{AgentAddress, JobRow};
use dstack_store::{Commit, EngineStore as _, Json, Put};
use http_body_util::BodyExt as _;
use serde_json::{Value, json};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use super::services::{apply, run};
use super::{ADMIN, Answer, Server, TestServer, on_postgres, request};

pub(crate) async fn get(server: &Server, path: &str, token: Option<&str>) -> Answer {
    server.send(request("GET", path, token, None)).await
}

/// All ports of all jobs are this one.
#[derive(Debug)]
struct OnePort(SocketAddr);

impl Ports for OnePort {
    fn port(&self, _: &AgentAddress, _: &JobRow, port: u16) -> Arc<dyn Connector> {
        assert_eq!(port, 8000);
        Arc::new(TcpConnector { address: self.0 })
    }
}

/// A replica that answers with the request that it got.
async fn echo(request: Request) -> axum::Json<Value> {
    let headers: Vec<(String, String)> = request
        .headers()
        .iter()
        .map(|(name, value)| (name.to_string(), value.to_str().unwrap().to_owned()))
        .collect();
    let (method, uri) = (request.method().to_string(), request.uri().to_string());
    let body = request.into_body().collect().await.unwrap().to_bytes();
    let usage = serde_json::from_slice::<Value>(&body).unwrap_or_default()["usage"].take();
    axum::Json(json!({"method": method, "uri": uri, "headers": headers, "usage": usage}))
}

/// Starts a replica in this process.
pub(crate) async fn replica() -> SocketAddr {
    replica_of(Router::new().fallback(echo)).await
}

pub(crate) async fn replica_of(router: Router) -> SocketAddr {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let replica = axum::serve(listener, router);
    dstack_system::task::spawn("replica", async move { replica.await.unwrap() });
    address
}

/// A server whose services all run in this process.
async fn serving(more: Value) -> Server {
    serving_on(Server::new().await, more).await
}

pub(crate) async fn serving_on(server: Server, more: Value) -> Server {
    reach(&server, replica().await);
    apply(&server, more).await.ok();
    run(&server).await;
    server
}

/// The same with all replicas at this address, on a server that exists.
pub(crate) fn reach(server: &Server, address: SocketAddr) {
    server.state.services.reach_through(Arc::new(OnePort(address)));
}

pub(crate) async fn until(what: &str, is_so: impl AsyncFn() -> bool) {
    let waited = async {
        while !is_so().await {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let waited = tokio::time::timeout(Duration::from_secs(20), waited).await;
    assert!(waited.is_ok(), "{what}");
}

/// Changes the jobs of the service, as an engine would.
pub(crate) async fn change(server: &Server, change: impl Fn(&mut JobRow)) -> Vec<JobRow> {
    let project = server.main_project().await;
    let run = server.state.data.database.run_by_name(project, "web").await;
    let run = run.unwrap().unwrap().run;
    let mut jobs = server.state.data.database.views().jobs(&[run.id]).await.unwrap();
    jobs.iter_mut().for_each(change);
    let puts = jobs.iter().cloned().map(Put::Job).collect();
    let commit = Commit::unchecked(puts, Vec::new());
    server.state.data.store().commit(commit).await.unwrap();
    jobs
}

#[tokio::test]
async fn the_proxy_checks_in_the_order_of_the_reference() {
    let server = serving(json!({})).await;
    let path = "/proxy/services/main/web/index.html";
    let unknown = get(&server, "/proxy/services/main/other/", None).await;
    assert_eq!(
        (unknown.status, &unknown.body["detail"]),
        (404.try_into().unwrap(), &json!("Service main/other not found"))
    );
    for token in [None, Some("stale")] {
        let refused = get(&server, path, token).await;
        assert_eq!(
            (refused.status, &refused.body["detail"]),
            (
                403.try_into().unwrap(),
                &json!("Unauthenticated or unauthorized to access project main")
            )
        );
    }
    assert_eq!(get(&server, path, Some(ADMIN)).await.status, 200);
    let upgrade = axum::http::Request::get(path).header("upgrade", "websocket");
    let upgrade = upgrade.body(axum::body::Body::empty()).unwrap();
    let refused = server.send(upgrade).await;
    assert_eq!(
        (refused.status, &refused.body["detail"]),
        (
            400.try_into().unwrap(),
            &json!("Upgrading connections is not supported")
        )
    );
}

#[tokio::test]
async fn a_request_reaches_the_replica_as_it_is_but_without_the_token() {
    let server = serving(json!({})).await;
    let request = axum::http::Request::put("/proxy/services/main/web/a%2Fb/?q=%20x")
        .header("authorization", format!("Bearer {ADMIN}"))
        .header("host", "dstack.example.com")
        .header("cookie", "a=b")
        .header("x-of-client", "1");
    let answer = server.send(request.body("text".into()).unwrap()).await.ok();
    assert_eq!(
        (&answer["method"], &answer["uri"]),
        (&json!("PUT"), &json!("/a%2Fb/?q=%20x"))
    );
    let headers: Vec<(String, String)> = serde_json::from_value(answer["headers"].clone()).unwrap();
    let header = |wanted: &str| {
        let found = headers.iter().find(|(name, _)| name == wanted);
        found.map(|(_, value)| value.as_str())
    };
    assert_eq!(header("authorization"), None, "{headers:?}");
    assert_eq!(header("host"), Some("dstack.example.com"));
    assert_eq!(header("cookie"), Some("a=b"));
    assert_eq!(header("x-of-client"), Some("1"));
}

#[tokio::test]
async fn a_service_without_auth_is_for_everybody_and_checks_its_own_tokens() {
    let server = serving(json!({"auth": false, "strip_prefix": false})).await;
    let path = "/proxy/services/main/web/x";
    let answer = get(&server, path, Some("of-the-service")).await.ok();
    assert_eq!(answer["uri"], path);
    let own = json!(["authorization", "Bearer of-the-service"]);
    assert!(answer["headers"].as_array().unwrap().contains(&own), "{answer}");
    assert_eq!(get(&server, path, None).await.status, 200);
}

#[tokio::test]
async fn what_is_taken_away_is_gone_at_once_and_comes_back_when_it_is_read() {
    let server = serving(json!({})).await;
    let path = "/proxy/services/main/web/";
    let services = server.state.services.clone();
    let jobs = change(&server, |job| job.registered = false).await;
    let id = jobs[0].id;
    assert!(services.serves(id, None));
    // As the engine says after its commit; nothing is read for it.
    services.unregistered(id, jobs[0].run_id);
    assert_eq!(get(&server, path, Some(ADMIN)).await.status, 404);
    until("no request is under way", async || !services.serves(id, None)).await;
    change(&server, |job| job.registered = true).await;
    services.load().await.unwrap();
    assert_eq!(get(&server, path, Some(ADMIN)).await.status, 200);
    assert!(services.serves(id, None));
}

/// A job whose connections have changed meanwhile is not asked to stop before the answers over the old ones are over.
#[tokio::test]
async fn requests_over_former_connections_of_a_job_are_waited_for() {
    let server = Server::new().await;
    let (came, goes_on) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let slow = {
        let (came, goes_on) = (Arc::clone(&came), Arc::clone(&goes_on));
        move || async move {
            came.notify_one();
            goes_on.notified().await;
        }
    };
    reach(&server, replica_of(Router::new().fallback(slow)).await);
    apply(&server, json!({"auth": false})).await.ok();
    run(&server).await;
    let services = server.state.services.clone();
    let asking = get(&server, "/proxy/services/main/web/", None);
    let leaving = async {
        came.notified().await;
        let jobs = change(&server, |job| {
            let data = json!({"network_mode": "bridge", "ports": {"8000": 8000}});
            job.job_runtime_data = Some(Json::new(serde_json::from_value(data).unwrap()));
        })
        .await;
        services.load().await.unwrap();
        services.unregistered(jobs[0].id, jobs[0].run_id);
        // What finds that nothing is under way has had its turn.
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }
        assert!(services.serves(jobs[0].id, None));
        goes_on.notify_one();
        jobs[0].id
    };
    let (answer, job) = tokio::join!(asking, leaving);
    assert_eq!(answer.status, 200);
    until("no request is under way", async || !services.serves(job, None)).await;
}

/// Of what one server changes the others hear, on PostgreSQL.
#[tokio::test]
async fn servers_that_share_a_database_pass_on_to_the_same_replicas() {
    if !on_postgres() {
        println!("skipped: needs PostgreSQL");
        return;
    }
    let first = Server::new().await;
    let second = first.beside();
    let stop = CancellationToken::new();
    let _stop = stop.clone().drop_guard();
    let address = replica().await;
    for server in [&first, &second] {
        reach(server, address);
        server.state.services.follow(stop.clone());
    }
    apply(&first, json!({})).await.ok();
    run(&first).await;
    let path = "/proxy/services/main/web/";
    let answers = async || get(&second, path, Some(ADMIN)).await.status;
    let run = first.state.services.routes().all().next().unwrap().run_id;
    first.state.services.changed(run);
    until("the other server hears of the replica", async || {
        answers().await == 200
    })
    .await;
    let jobs = change(&first, |job| job.registered = false).await;
    first.state.services.unregistered(jobs[0].id, jobs[0].run_id);
    // It is not asked to stop before the other server has had time to hear.
    assert!(first.state.services.serves(jobs[0].id, None));
    until("the other server hears that it is gone", async || {
        answers().await == 404
    })
    .await;
}

#[tokio::test]
async fn a_replica_that_is_not_reached_is_said_to_be() {
    let server = Server::new().await;
    apply(&server, json!({})).await.ok();
    run(&server).await;
    let answer = get(&server, "/proxy/services/main/web/", Some(ADMIN)).await;
    assert_eq!(
        (answer.status, &answer.body["detail"]),
        (502.try_into().unwrap(), &json!("Error requesting upstream"))
    );
}

/// Behind a proxy that speaks TLS, a URL with the scheme of this server would lead away from it.
#[tokio::test]
async fn the_root_of_a_service_is_found_on_the_same_server() {
    let server = Server::new().await;
    let request =
        axum::http::Request::get("/proxy/services/main/web?a=b").header("host", "dstack.example.com");
    let answer = server
        .send(request.body(axum::body::Body::empty()).unwrap())
        .await;
    assert_eq!(answer.status, 308);
    assert_eq!(answer.headers["location"], "/proxy/services/main/web/?a=b");
}

/// What is wrong with a chat is told before it is told that nobody has the model.
#[tokio::test]
async fn chats_are_checked_before_their_model_is_looked_for() {
    let server = Server::new().await;
    let path = "/proxy/models/main/chat/completions";
    let hello = json!([{"role": "user", "content": "hello"}]);
    for (chat, place) in [
        (json!({"model": "m"}), json!(["body", "messages"])),
        (json!({"messages": hello}), json!(["body", "model"])),
    ] {
        let answer = server.post(ADMIN, path, chat).await;
        assert_eq!(
            (answer.status, &answer.body["detail"][0]["loc"]),
            (422.try_into().unwrap(), &place),
            "{}",
            answer.body
        );
    }
    let full = json!({"model": "m", "messages": hello, "of_tomorrow": [1], "stream_options": {}});
    let unknown = server.post(ADMIN, path, full).await;
    let message = json!("Model m not found in project main");
    assert_eq!(
        (
            unknown.status,
            &unknown.body["detail"],
            &unknown.body["error"]["message"]
        ),
        (404, &message, &message)
    );
    assert_eq!(server.post("stale", path, json!({})).await.status, 403);
}

#[tokio::test]
async fn models_are_listed_and_called_through_their_service() {
    let server = serving(json!({"model": "org/m", "auth": false})).await;
    let models = get(&server, "/proxy/models/main/models", Some(ADMIN)).await.ok();
    assert_eq!(models["data"][0]["id"], "org/m");
    for (endpoint, body) in [
        ("chat/completions", json!({"model": "org/m", "messages": []})),
        ("embeddings", json!({"model": "org/m", "input": "text"})),
    ] {
        let path = format!("/proxy/models/main/{endpoint}");
        let answer = server.post(ADMIN, &path, body).await.ok();
        assert_eq!(answer["uri"], format!("/v1/{endpoint}"));
        let headers = answer["headers"].as_array().unwrap();
        assert!(
            headers.iter().all(|header| header[0] != "authorization"),
            "{answer}"
        );
    }
    assert_eq!(get(&server, "/proxy/models/main/models", None).await.status, 403);
}

#[tokio::test]
async fn who_asks_is_looked_up_as_calls_of_the_api_are() {
    use dstack_api::{Endpoint, routes};
    use dstack_server::overload::Limits;
    let limits = Limits {
        reads: 1,
        plans: 1,
        ..Limits::default()
    };
    let server = TestServer::new().limits(limits).start().await;
    let paths = [
        "/proxy/services/main/web/",
        "/proxy/models/main/models",
        "/metrics",
    ];
    let enter = |route| server.state.edge.overload.enter(&route).unwrap();
    let places = [enter(routes::RunsList::ROUTE), enter(routes::RunsGetPlan::ROUTE)];
    for path in paths {
        let answer = get(&server, path, Some(ADMIN)).await;
        assert_eq!(answer.status, 429, "{path}");
        assert_eq!(answer.headers["retry-after"], "1");
    }
    drop(places);
    for path in paths {
        let answer = get(&server, path, Some(ADMIN)).await;
        assert_ne!(answer.status, 429, "{path}");
    }
}

#[tokio::test]
async fn a_token_for_reading_only_gets_no_further_than_reading() {
    let server = serving(json!({"model": "org/m"})).await;
    let made = server
        .post(
            ADMIN,
            "/api/users/tokens/create",
            json!({"name": "reader", "read_only": true}),
        )
        .await
        .ok();
    let reader = made["token"].as_str().unwrap();
    let path = "/proxy/services/main/web/";
    for (method, status) in [
        ("GET", 200),
        ("HEAD", 200),
        ("OPTIONS", 200),
        ("POST", 403),
        ("DELETE", 403),
    ] {
        let answer = server.send(request(method, path, Some(reader), None)).await;
        assert_eq!(answer.status, status, "{method}: {}", answer.body);
    }
    // A model that answers changes nothing here.
    let chat = json!({"model": "org/m", "messages": []});
    let answer = server
        .post(reader, "/proxy/models/main/chat/completions", chat)
        .await;
    assert_eq!(answer.status, 200, "{}", answer.body);
}

#[tokio::test]
async fn names_of_projects_count_in_any_case() {
    let server = serving(json!({"model": "org/m"})).await;
    let answer = get(&server, "/proxy/services/MAIN/web/x", Some(ADMIN)).await.ok();
    assert_eq!(answer["uri"], "/x");
    let models = get(&server, "/proxy/models/Main/models", Some(ADMIN)).await.ok();
    assert_eq!(models["data"][0]["id"], "org/m");
}

#[tokio::test]
async fn pages_of_services_can_be_kept_from_the_page_of_the_server() {
    let policy = async |server: Server| {
        let server = serving_on(server, json!({"auth": false})).await;
        let answer = get(&server, "/proxy/services/main/web/", None).await;
        assert_eq!(answer.status, 200);
        answer.headers.get("content-security-policy").cloned()
    };
    assert_eq!(policy(Server::new().await).await, None);
    let server = TestServer::new().settings(|settings| settings.sandbox_services = true);
    let sandboxed = policy(server.start().await).await.unwrap();
    let sandboxed = sandboxed.to_str().unwrap();
    assert!(
        sandboxed.starts_with("sandbox ") && !sandboxed.contains("same-origin"),
        "{sandboxed}"
    );
}
