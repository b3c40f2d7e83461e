//! Requests to services that have no replicas until one comes.
#![allow(clippy::print_stdout)]

use std::sync::{Arc, Mutex, Weak};

use dstack_engine::Services as _;
use dstack_engine::services::RequestObserver;
use dstack_model::runs::RunTerminationReason;
use dstack_store::{Commit, EngineStore as _, Put};
use dstack_system::task;
use dstack_units::{JobId, RunId, Seconds};
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt as _;
use tokio_util::sync::CancellationToken;

use super::proxy::{change, get, reach, replica, until};
use super::services::{apply, run};
use super::{ADMIN, Server, TestServer, on_postgres};

const PATH: &str = "/proxy/services/main/web/x";

/// An engine, as far as it hears of requests.
#[derive(Debug, Default)]
struct Observed(Mutex<Vec<RunId>>);

impl RequestObserver for Observed {
    fn idle(&self, _: JobId) {}

    fn awaited(&self, run: RunId) {
        self.0.lock().unwrap().push(run);
    }

    fn published(&self, _: RunId) {}

    fn worker_changed(&self, _: RunId, _: JobId) {}
}

/// A service that may have no replicas, and has none at the moment.
struct AtRest {
    server: Server,
    run: RunId,
    observed: Arc<Observed>,
    _stop: tokio_util::sync::DropGuard,
}

impl AtRest {
    async fn on(server: Server, more: Value) -> Self {
        let mut scaling = json!({"replicas": "0..2", "scaling": {"metric": "rps", "target": 1}});
        let same = more.as_object().unwrap().clone();
        scaling.as_object_mut().unwrap().extend(same);
        reach(&server, replica().await);
        // A replica that has run is the one that is going to start.
        apply(&server, more).await.ok();
        run(&server).await;
        apply(&server, scaling).await.ok();
        change(&server, |job| job.registered = false).await;
        let services = &server.state.services;
        let stop = CancellationToken::new();
        services.follow(stop.clone());
        let id = services.routes().all().next().unwrap().run_id;
        let observed = Arc::new(Observed::default());
        let observer: Weak<dyn RequestObserver> = Arc::<Observed>::downgrade(&observed);
        services.report_to(observer);
        services.changed(id);
        until("it has no replicas", async || {
            let routes = services.routes();
            let service = routes.service("main", "web");
            service.is_some_and(|service| service.replicas.is_empty())
        })
        .await;
        Self {
            server,
            run: id,
            observed,
            _stop: stop.drop_guard(),
        }
    }

    fn is_awaited(&self) -> bool {
        self.server.state.services.is_awaited(self.run)
    }

    /// As an engine does once requests wait.
    async fn start_replica(&self) {
        until("a request waits", async || self.is_awaited()).await;
        assert_eq!(*self.observed.0.lock().unwrap(), [self.run]);
        change(&self.server, |job| job.registered = true).await;
        self.server.state.services.changed(self.run);
    }
}

#[tokio::test]
async fn a_request_waits_until_a_replica_is_registered() {
    let service = AtRest::on(Server::new().await, json!({})).await;
    let asked = get(&service.server, PATH, Some(ADMIN));
    let (answer, ()) = tokio::join!(asked, service.start_replica());
    assert_eq!(answer.ok()["uri"], "/x");
    assert!(!service.is_awaited());
}

#[tokio::test]
async fn a_call_of_a_model_waits_as_well() {
    let service = AtRest::on(Server::new().await, json!({"model": "org/m"})).await;
    let models = get(&service.server, "/proxy/models/main/models", Some(ADMIN))
        .await
        .ok();
    assert_eq!(models["data"][0]["id"], "org/m");
    let chat = json!({"model": "org/m", "messages": []});
    let asked = service
        .server
        .post(ADMIN, "/proxy/models/main/chat/completions", chat);
    let (answer, ()) = tokio::join!(asked, service.start_replica());
    assert_eq!(answer.ok()["uri"], "/v1/chat/completions");
}

#[tokio::test]
async fn nobody_who_may_not_ask_starts_a_replica() {
    let service = AtRest::on(Server::new().await, json!({})).await;
    for token in [None, Some("stale")] {
        assert_eq!(get(&service.server, PATH, token).await.status, 403);
    }
    assert_eq!(*service.observed.0.lock().unwrap(), []);
}

#[tokio::test]
async fn a_replica_that_does_not_come_in_time_is_said_to_be_late() {
    let server = TestServer::new().settings(|settings| settings.service_timeout = 1);
    let service = AtRest::on(server.start().await, json!({"model": "org/m"})).await;
    let late = json!("No replica of the service has become ready in time");
    let answer = get(&service.server, PATH, Some(ADMIN)).await;
    assert_eq!((answer.status, &answer.body["detail"]), (503, &late));
    assert_eq!(answer.headers["retry-after"], "1");
    let chat = json!({"model": "org/m", "messages": []});
    let answer = service
        .server
        .post(ADMIN, "/proxy/models/main/chat/completions", chat)
        .await;
    assert_eq!(
        (answer.status, &answer.headers["retry-after"]),
        (503, &"1".parse().unwrap())
    );
    assert!(!service.is_awaited());
}

#[tokio::test]
async fn requests_that_wait_are_among_those_that_may_be_under_way() {
    let server = TestServer::new().passed_on(dstack_proxy::Limits {
        requests: 1,
        tunnels: 0,
    });
    let service = AtRest::on(server.start().await, json!({})).await;
    let story = async {
        until("a request waits", async || service.is_awaited()).await;
        let refused = get(&service.server, PATH, Some(ADMIN)).await;
        assert_eq!(
            (refused.status, &refused.body["detail"]),
            (503, &json!("Too many requests to services are under way"))
        );
        service.start_replica().await;
    };
    let (answer, ()) = tokio::join!(get(&service.server, PATH, Some(ADMIN)), story);
    answer.ok();
}

/// Over a connection, as clients have them.
#[tokio::test]
async fn nobody_waits_for_a_client_that_has_gone() {
    let service = AtRest::on(Server::new().await, json!({"auth": false})).await;
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let serving = axum::serve(listener, service.server.router.clone());
    let _serving = task::spawn("server", async move { serving.await.unwrap() });
    let mut client = tokio::net::TcpStream::connect(address).await.unwrap();
    let head = format!("GET {PATH} HTTP/1.1\r\nhost: x\r\n\r\n");
    client.write_all(head.as_bytes()).await.unwrap();
    until("the request waits", async || service.is_awaited()).await;
    drop(client);
    until("it waits no more", async || !service.is_awaited()).await;
}

#[tokio::test]
async fn a_service_that_is_stopped_starts_no_more() {
    let service = AtRest::on(Server::new().await, json!({})).await;
    let server = &service.server;
    let story = async {
        until("a request waits", async || service.is_awaited()).await;
        let data = &server.state.data;
        let mut run = data.store().run(service.run).await.unwrap().unwrap().run;
        run.terminate(RunTerminationReason::StoppedByUser, data.clock.now())
            .unwrap();
        let commit = Commit::unchecked(vec![Put::Run(run)], Vec::new());
        data.store().commit(commit).await.unwrap();
        server.state.services.changed(service.run);
    };
    let (answer, ()) = tokio::join!(get(server, PATH, Some(ADMIN)), story);
    assert_eq!(
        (answer.status, &answer.body["detail"]),
        (503, &json!("The service has no replicas"))
    );
    assert_eq!(get(server, PATH, Some(ADMIN)).await.status, 404);
}

/// What a server does not know yet must not look like no requests.
#[tokio::test]
async fn requests_are_unknown_until_they_were_counted_for_a_while() {
    let service = AtRest::on(Server::new().await, json!({})).await;
    let services = &service.server.state.services;
    assert_eq!(
        dstack_engine::Services::load(services, service.run, None, Seconds(60)),
        None
    );
}

/// The server that drives a service hears of requests that wait at another one, and that one of the replica.
#[tokio::test]
async fn requests_count_and_wait_whatever_server_they_come_through() {
    if !on_postgres() {
        println!("skipped: needs PostgreSQL");
        return;
    }
    let service = AtRest::on(Server::new().await, json!({})).await;
    let other = service.server.beside();
    reach(&other, replica().await);
    let stop = CancellationToken::new();
    let _stop = stop.clone().drop_guard();
    let services = &other.state.services;
    services.follow(stop);
    until("the other server knows of it", async || {
        services.routes().all().next().is_some()
    })
    .await;
    let (answer, ()) = tokio::join!(get(&other, PATH, Some(ADMIN)), service.start_replica());
    assert_eq!(answer.ok()["uri"], "/x");
    until("nobody waits any more", async || !service.is_awaited()).await;
}
