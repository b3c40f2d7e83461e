//! What is registered outlives the process.

use std::net::SocketAddr;
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use clap::Parser as _;
use dstack_gateway::gateway::StartError;
use dstack_gateway::{Gateway, Settings};
use http::Request;
use serde_json::json;
use tokio::process::{Child, Command};

use crate::changes::next_piece;
use crate::support::app::App;
use crate::support::client::{ask, send};
use crate::support::ssh::Ssh;
use crate::support::{Setup, ok, service, settings, until};

#[tokio::test(flavor = "multi_thread")]
async fn what_is_registered_serves_again_after_a_kill() {
    let (setup, ssh, app) = (Setup::start().await, Ssh::start().await, App::start("one").await);
    setup.register("web", json!({"id": "5a3c"}), &ssh).await;
    setup.register_replica("web", 1, app.port, &ssh).await;
    let listed = setup.get("/api/services/list").await;
    // As a kill in the middle of a write leaves it.
    std::fs::write(setup.settings.dir.join("state.json.1.tmp"), "{").unwrap();
    let setup = setup.killed_and_started().await;
    assert_eq!(setup.get("/api/services/list").await, listed);
    until("the replica is reached", async || {
        setup.ask("web.example.com", "/").await.status == 200
    })
    .await;
    assert_eq!(
        setup
            .post("/api/registry/main/services/web/unregister", &json!(null))
            .await,
        ok()
    );
    let setup = setup.killed_and_started().await;
    assert_eq!(setup.get("/api/services/list").await.1, json!({ "services": [] }));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_change_that_cannot_be_written_is_none() {
    let (setup, ssh) = (Setup::start().await, Ssh::start().await);
    setup.register("web", json!({}), &ssh).await;
    let temporary = setup
        .settings
        .dir
        .join(format!("state.json.{}.tmp", std::process::id()));
    std::fs::create_dir(&temporary).unwrap();
    let (status, said) = setup
        .post("/api/registry/main/services/web/unregister", &json!(null))
        .await;
    assert_eq!(status, 500, "{said}");
    assert_eq!(
        setup.ask("web.example.com", "/").await.status,
        503,
        "it is still there"
    );
    std::fs::remove_dir(&temporary).unwrap();
    assert_eq!(
        setup
            .post("/api/registry/main/services/web/unregister", &json!(null))
            .await,
        ok()
    );
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
    let job = "b7d7e15c4c6a4d0a9d6f3ddc2f2e1c01";
    let old = json!({
        "services": {"main": {"web": {
            "id": "5a3c", "project_name": "main", "run_name": "web", "domain": "web.example.com", "https": false,
            "rate_limits": [], "auth": false, "client_max_body_size": 1024, "strip_prefix": true,
            "replicas": [{
                "id": job, "app_port": app.port, "ssh_destination": "root@127.0.0.1", "ssh_port": ssh.port(),
                "ssh_proxy": null, "ssh_proxy_private_key": null, "ssh_head_proxy": null,
                "ssh_head_proxy_private_key": null, "internal_ip": null
            }],
            "has_router_replica": false, "cors_enabled": false, "proxy_buffering": true, "read_timeout": 300
        }}},
        "models": {}, "entrypoints": {}, "projects": {"main": {"name": "main", "ssh_private_key": ssh.key()}},
        "config": {"acme_settings": {"server": null, "eab_kid": null, "eab_hmac_key": null}}
    });
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("state-v2.json");
    std::fs::write(&path, old.to_string()).unwrap();
    let setup = Setup::start_with(|settings| settings.import = Some(path.clone())).await;
    until("the replica is reached", async || {
        setup.ask("web.example.com", "/").await.status == 200
    })
    .await;
    let listed = json!({"services": [
        {"id": "5a3c", "project_name": "main", "run_name": "web", "replicas": [{"id": job}]}
    ]});
    assert_eq!(setup.get("/api/services/list").await.1, listed);
    assert_eq!(
        setup
            .post("/api/registry/main/services/web/unregister", &json!(null))
            .await,
        ok()
    );
    let setup = setup.killed_and_started().await;
    assert_eq!(
        setup.get("/api/services/list").await.1,
        json!({ "services": [] }),
        "not twice"
    );
}

/// What a process of its own is told.
const ARGUMENTS: &str = "GATEWAY_ARGUMENTS";

/// No test: the other processes of the tests below.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "runs until it is told to end"]
async fn a_process_of_its_own() {
    let Ok(arguments) = std::env::var(ARGUMENTS) else {
        return;
    };
    let words = std::iter::once("gateway").chain(arguments.split(' '));
    dstack_gateway::run(Settings::try_parse_from(words).unwrap())
        .await
        .unwrap();
}

fn process(arguments: &str) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args([
            "restart::a_process_of_its_own",
            "--exact",
            "--ignored",
            "--nocapture",
        ])
        .env(ARGUMENTS, arguments)
        .stdout(Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .unwrap()
}

/// A port that nobody listens on.
fn free_port() -> u16 {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().port()
}

async fn is_listening(address: SocketAddr) -> bool {
    tokio::net::TcpStream::connect(address).await.is_ok()
}

async fn post(address: SocketAddr, path: &str, body: &serde_json::Value) -> u16 {
    let request = Request::post(path).body(body.to_string()).unwrap();
    ask(address, request).await.status
}

#[tokio::test(flavor = "multi_thread")]
async fn a_process_that_is_killed_has_written_what_it_has_answered() {
    let dir = tempfile::tempdir().unwrap();
    let [http, https, api] = [free_port(), free_port(), free_port()];
    let (dir, at) = (dir.path().display(), SocketAddr::from(([127, 0, 0, 1], api)));
    let arguments =
        format!("--dir {dir} --http 127.0.0.1:{http} --https 127.0.0.1:{https} --api 127.0.0.1:{api}");
    let mut first = process(&arguments);
    until("it serves", async || is_listening(at).await).await;
    for number in 0..20 {
        let body = service(&format!("web{number}"), "key");
        assert_eq!(post(at, "/api/registry/main/services/register", &body).await, 200);
    }
    first.kill().await.unwrap();
    let _second = process(&arguments);
    until("it serves again", async || is_listening(at).await).await;
    let listed = ask(
        at,
        Request::get("/api/services/list").body(String::new()).unwrap(),
    )
    .await;
    assert_eq!(listed.json()["services"].as_array().unwrap().len(), 20);
}

#[tokio::test(flavor = "multi_thread")]
async fn another_process_takes_over_and_no_request_fails() {
    let (ssh, app) = (Ssh::start().await, App::start("one").await);
    let dir = tempfile::tempdir().unwrap();
    let [http, https, api] = [free_port(), free_port(), free_port()];
    let (dir, at) = (dir.path().display(), SocketAddr::from(([127, 0, 0, 1], api)));
    let arguments =
        format!("--dir {dir} --http 127.0.0.1:{http} --https 127.0.0.1:{https} --api 127.0.0.1:{api}");
    let mut before = process(&arguments);
    until("it serves", async || is_listening(at).await).await;
    let body = service("web", ssh.key());
    assert_eq!(post(at, "/api/registry/main/services/register", &body).await, 200);
    let path = "/api/registry/main/services/web/replicas/register";
    assert_eq!(post(at, path, &ssh.replica(1, app.port)).await, 200);

    let (front, lock) = (SocketAddr::from(([127, 0, 0, 1], http)), format!("{dir}/lock"));
    let is_over = AtomicBool::new(false);
    let load = async {
        let mut count = 0;
        while !is_over.load(Ordering::Relaxed) {
            let request = Request::get("/").header("host", "web.example.com");
            let answer = ask(front, request.body(String::new()).unwrap()).await;
            assert_eq!(answer.status, 200, "after {count}: {answer:?}");
            count += 1;
        }
        count
    };
    let change = async {
        let stream = tokio::net::TcpStream::connect(front).await.unwrap();
        let request = Request::get("/stream").header("host", "web.example.com");
        let mut long = send(stream, request.body(String::new()).unwrap())
            .await
            .into_body();
        let mut after = process(&format!("{arguments} --take-over"));
        let pid = after.id().unwrap().to_string();
        until("the second has the directory", async || {
            std::fs::read_to_string(&lock).unwrap() == pid
        })
        .await;
        tokio::time::sleep(Duration::from_millis(500)).await;
        assert!(before.try_wait().unwrap().is_none(), "it has a request under way");
        app.pieces.add_permits(1);
        assert_eq!(next_piece(&mut long).await.unwrap(), "piece");
        app.pieces.close();
        assert_eq!(next_piece(&mut long).await, None);
        assert!(before.wait().await.unwrap().success());
        tokio::time::sleep(Duration::from_millis(200)).await;
        is_over.store(true, Ordering::Relaxed);
        assert!(after.try_wait().unwrap().is_none());
        after
    };
    let (count, _after) = tokio::join!(load, change);
    assert!(count > 10, "{count}");
}
