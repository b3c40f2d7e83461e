//! What is registered outlives the process.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};

use dstack_gateway::Gateway;
use dstack_gateway::gateway::StartError;
use dstack_gateway::replicas::link::OPEN_LIMIT;
use http::Request;
use serde_json::json;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::support::app::App;
use crate::support::client::{ask, next_piece};
use crate::support::process::Place;
use crate::support::ssh::Ssh;
use crate::support::{Setup, job, old_replica, old_state, service, settings, soon, stream_at, until};

#[tokio::test(flavor = "multi_thread")]
async fn what_is_registered_serves_again_after_a_kill() {
    let (setup, _ssh, _app) = Setup::serving(json!({"id": "5a3c"})).await;
    let listed = setup.get("/api/services/list").await;
    // As a kill in the middle of a write leaves it.
    std::fs::write(setup.settings.dir.join("state.json.1.tmp"), "{").unwrap();
    let setup = setup.killed_and_started().await;
    assert_eq!(setup.get("/api/services/list").await, listed);
    until("the replica is reached", async || {
        setup.ask("web.example.com", "/").await.status == 200
    })
    .await;
    setup.unregister("web").await;
    let setup = setup.killed_and_started().await;
    assert_eq!(setup.get("/api/services/list").await.1, json!({ "services": [] }));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_change_that_cannot_be_written_is_none() {
    let (setup, ssh) = (Setup::start().await, Ssh::start().await);
    setup.register("web", json!({}), &ssh).await;
    let (dir, away) = (&setup.settings.dir, setup.dir.path().join("away"));
    std::fs::rename(dir, &away).unwrap();
    let (status, said) = setup
        .post("/api/registry/main/services/web/unregister", &json!(null))
        .await;
    assert_eq!(status, 500, "{said}");
    assert_eq!(
        setup.ask("web.example.com", "/").await.status,
        503,
        "it is still there"
    );
    std::fs::rename(&away, dir).unwrap();
    setup.unregister("web").await;
    assert_eq!(setup.ask("web.example.com", "/").await.status, 404);
}

#[tokio::test(flavor = "multi_thread")]
async fn two_gateways_do_not_share_a_directory() {
    let setup = Setup::start().await;
    let second = Gateway::start(setup.settings.clone()).await;
    assert!(matches!(second, Err(StartError::Taken(_))), "{second:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_state_that_is_not_understood_is_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    let settings = settings(dir.path());
    std::fs::create_dir_all(&settings.dir).unwrap();
    let path = settings.dir.join("state.json");
    std::fs::write(&path, r#"{"version": 7}"#).unwrap();
    let error = Gateway::start(settings).await.unwrap_err().to_string();
    assert!(error.contains("version 7"), "{error}");
    assert_eq!(std::fs::read_to_string(&path).unwrap(), r#"{"version": 7}"#);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gateway_of_the_reference_is_taken_over_once() {
    let (ssh, app) = (Ssh::start().await, App::start("one").await);
    let ssh_address = SocketAddr::from(([127, 0, 0, 1], ssh.port()));
    let replicas = json!([old_replica(1, app.port, ssh_address)]);
    let setup = Setup::start_with(|settings| {
        let dir = settings.dir.parent().unwrap();
        settings.import = Some(old_state(dir, false, &replicas, ssh.key()));
    })
    .await;
    until("the replica is reached", async || {
        setup.ask("web.example.com", "/").await.status == 200
    })
    .await;
    let listed = json!({"services": [
        {"id": "5a3c", "project_name": "main", "run_name": "web", "replicas": [{"id": job(1)}]}
    ]});
    assert_eq!(setup.get("/api/services/list").await.1, listed);
    setup.unregister("web").await;
    let setup = setup.killed_and_started().await;
    assert_eq!(
        setup.get("/api/services/list").await.1,
        json!({ "services": [] }),
        "not twice"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn hosts_that_are_not_reached_hold_up_no_other_connection() {
    let (ssh, app) = (Ssh::start().await, App::start("one").await);
    // More than are opened at the same time, each of which the system accepts.
    let silent: Vec<_> = (2..14)
        .map(|last| std::net::TcpListener::bind(SocketAddr::from(([127, 0, 0, last], 0))).unwrap())
        .collect();
    let hosts = silent.iter().map(|listener| listener.local_addr().unwrap());
    let hosts = hosts.chain([SocketAddr::from(([127, 0, 0, 1], ssh.port()))]);
    let replicas = hosts
        .zip(1..)
        .map(|(host, number)| old_replica(number, app.port, host));
    let replicas = json!(replicas.collect::<Vec<_>>());
    let setup = Setup::start_with(|settings| {
        let dir = settings.dir.parent().unwrap();
        settings.import = Some(old_state(dir, false, &replicas, ssh.key()));
    })
    .await;
    let started = Instant::now();
    until("the one that answers is reached", async || {
        setup.get("/api/v2/health").await.1["replicas_connected"] == 1
    })
    .await;
    assert!(started.elapsed() < OPEN_LIMIT, "{:?}", started.elapsed());
}

#[tokio::test(flavor = "multi_thread")]
async fn the_directory_is_for_its_user_only() {
    use std::os::unix::fs::PermissionsExt as _;

    let open = std::fs::Permissions::from_mode(0o755);
    let setup = Setup::start_with(|settings| {
        std::fs::create_dir_all(&settings.dir).unwrap();
        std::fs::set_permissions(&settings.dir, open).unwrap();
    })
    .await;
    let mode = |path: &std::path::Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&setup.settings.dir), 0o700);
    assert_eq!(mode(&setup.settings.dir.join("lock")), 0o600);
}

#[tokio::test(flavor = "multi_thread")]
async fn who_cannot_read_the_state_does_not_take_over() {
    let setup = Setup::start().await;
    std::fs::write(setup.settings.dir.join("state.json"), "{").unwrap();
    let mut settings = setup.settings.clone();
    settings.take_over = true;
    // The gateway that runs is in this process: it would be told to end.
    let second = Gateway::start(settings.clone()).await;
    assert!(matches!(second, Err(StartError::Store(_))), "{second:?}");
    std::fs::remove_file(setup.settings.dir.join("state.json")).unwrap();
    settings.import = Some(setup.dir.path().join("none"));
    let second = Gateway::start(settings).await;
    assert!(matches!(second, Err(StartError::Import(_))), "{second:?}");
    assert_eq!(setup.get("/").await.0, 200);
}

async fn post(address: SocketAddr, path: &str, body: &serde_json::Value) -> u16 {
    let request = Request::post(path).body(body.to_string()).unwrap();
    ask(address, request).await.status
}

#[tokio::test(flavor = "multi_thread")]
async fn a_process_that_is_killed_has_written_what_it_has_answered() {
    let dir = tempfile::tempdir().unwrap();
    let place = Place::in_dir(dir.path());
    let mut first = place.start().await;
    for number in 0..20 {
        let body = service(&format!("web{number}"), "key");
        assert_eq!(
            post(place.api, "/api/registry/main/services/register", &body).await,
            200
        );
    }
    first.child.kill().await.unwrap();
    let _second = place.start().await;
    let list = Request::get("/api/services/list").body(String::new()).unwrap();
    let listed = ask(place.api, list).await;
    assert_eq!(listed.json()["services"].as_array().unwrap().len(), 20);
}

#[tokio::test(flavor = "multi_thread")]
async fn another_process_takes_over_and_no_request_fails() {
    let (ssh, app) = (Ssh::start().await, App::start("one").await);
    let dir = tempfile::tempdir().unwrap();
    let place = Place::in_dir(dir.path());
    let mut before = place.start().await;
    let body = service("web", ssh.key());
    assert_eq!(
        post(place.api, "/api/registry/main/services/register", &body).await,
        200
    );
    let path = "/api/registry/main/services/web/replicas/register";
    assert_eq!(post(place.api, path, &ssh.replica(1, app.port)).await, 200);

    let (count, counted) = watch::channel(0);
    let is_over = AtomicBool::new(false);
    let load = async {
        while !is_over.load(Ordering::Relaxed) {
            let request = Request::get("/").header("host", "web.example.com");
            let answer = ask(place.http, request.body(String::new()).unwrap()).await;
            assert_eq!(answer.status, 200, "after {}: {answer:?}", *count.borrow());
            count.send_modify(|count| *count += 1);
        }
    };
    let more_requests = async || {
        let mut counted = counted.clone();
        let next = *counted.borrow() + 50;
        soon(counted.wait_for(|count| *count >= next)).await.unwrap();
    };
    let change = async {
        let mut long = stream_at(place.http).await;
        more_requests().await;
        let mut after = place.taking_over().start().await;
        more_requests().await;
        assert!(
            before.child.try_wait().unwrap().is_none(),
            "it has a request under way"
        );
        app.pieces.add_permits(1);
        assert_eq!(next_piece(&mut long).await.unwrap(), "piece");
        app.pieces.close();
        assert_eq!(next_piece(&mut long).await, None);
        assert!(soon(before.child.wait()).await.unwrap().success());
        more_requests().await;
        is_over.store(true, Ordering::Relaxed);
        assert!(after.child.try_wait().unwrap().is_none());
        after
    };
    let ((), _after) = tokio::join!(load, change);
}
