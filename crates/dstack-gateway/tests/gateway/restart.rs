//! What is registered outlives the process.

use dstack_gateway::Gateway;
use dstack_gateway::gateway::StartError;
use serde_json::json;

use crate::support::app::App;
use crate::support::ssh::Ssh;
use crate::support::{Setup, ok, settings, until};

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
