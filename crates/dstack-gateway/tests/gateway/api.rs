//! What servers call, by the reference's description.

use dstack_agent_api::gateway::ServiceCounts;
use serde_json::json;

use crate::support::app::App;
use crate::support::held::Held;
use crate::support::ssh::{Ssh, new_key};
use crate::support::{Setup, detail, job, ok, replica_path, service};

const REGISTRY: &str = "/api/registry/main";

#[tokio::test(flavor = "multi_thread")]
async fn it_says_which_version_it_is_and_that_other_paths_are_none() {
    let setup = Setup::start().await;
    let (status, version) = setup.get("/").await;
    assert_eq!(
        (status, version["version"].as_str()),
        (200, Some(env!("CARGO_PKG_VERSION")))
    );
    assert_eq!(
        setup.get("/api/none").await,
        (404, json!({ "detail": "Not Found" }))
    );
    assert_eq!(
        setup.get("/api/services/list").await,
        (200, json!({ "services": [] }))
    );
    assert_eq!(setup.get("/api/stats/collect").await, (200, json!([])));
}

#[tokio::test(flavor = "multi_thread")]
async fn services_and_replicas_are_registered_listed_and_taken_away() {
    let (setup, ssh, app) = (Setup::start().await, Ssh::start().await, App::start("one").await);
    let mut body = service("Web", ssh.key());
    body["id"] = json!("5a3c");
    let register = "/api/registry/Main/services/register";
    assert_eq!(setup.post(register, &body).await, ok());
    assert_eq!(
        setup.post(register, &body).await,
        detail("Service main/web is already registered")
    );
    let replica = ssh.replica(1, app.port);
    let job = replica["job_id"].as_str().unwrap();
    let path = format!("{REGISTRY}/services/WEB/replicas/register");
    assert_eq!(setup.post(&path, &replica).await, ok());
    assert_eq!(
        setup.post(&path, &replica).await,
        detail(&format!("Replica {job} already exists in service main/web"))
    );
    let listed = json!({"services": [
        {"id": "5a3c", "project_name": "main", "run_name": "web", "replicas": [{"id": job}]}
    ]});
    assert_eq!(setup.get("/api/services/list").await, (200, listed));
    setup.unregister_replica("web", 1).await;
    let unregister = format!("{}/unregister", replica_path("web", 1));
    let (status, again) = setup.post(&unregister, &json!(null)).await;
    assert_eq!(status, 400);
    assert!(
        again["detail"]
            .as_str()
            .unwrap()
            .contains("does not exist in service main/web")
    );
    setup.unregister("web").await;
    let unregister = format!("{REGISTRY}/services/web/unregister");
    assert_eq!(
        setup.post(&unregister, &json!(null)).await,
        detail("Service main/web does not exist, cannot unregister")
    );
    assert_eq!(
        setup.get("/api/services/list").await,
        (200, json!({ "services": [] }))
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_host_name_belongs_to_one() {
    let (setup, ssh) = (Setup::start().await, Ssh::start().await);
    setup.register("web", json!({}), &ssh).await;
    let mut other = service("other", ssh.key());
    other["domain"] = json!("WEB.example.com");
    let path = format!("{REGISTRY}/services/register");
    assert_eq!(
        setup.post(&path, &other).await,
        detail("Domain web.example.com is already registered")
    );
    assert_eq!(
        setup.register_entrypoint("main", "Web.example.com").await,
        detail("Domain web.example.com is already registered")
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn of_projects_with_the_same_host_name_for_models_the_last_has_it() {
    let setup = Setup::start().await;
    let has = async |project: &str| {
        let state = setup.gateway.registry().state().await;
        let mut all = state.entrypoints();
        assert!(all.all(|(_, entrypoint)| entrypoint.domain == "gateway.example.com"));
        state
            .projects
            .get(project)
            .is_some_and(|project| project.entrypoint.is_some())
    };
    for (last, before) in [("main", "second"), ("main", "second"), ("second", "main")] {
        assert_eq!(setup.register_entrypoint(last, "gateway.example.com").await, ok());
        assert_eq!((has(last).await, has(before).await), (true, false), "{last}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_no_host_name_is_no_domain() {
    let (setup, key) = (Setup::start().await, new_key());
    for domain in ["../../etc", "web.example.com:8443", "a_b.example.com", ""] {
        let mut body = service("web", key.private.expose());
        body["domain"] = json!(domain);
        let expected = detail(&format!("{domain:?} is no host name"));
        assert_eq!(
            setup.post(&format!("{REGISTRY}/services/register"), &body).await,
            expected
        );
        assert_eq!(setup.register_entrypoint("main", domain).await, expected);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_service_that_is_registered_anew_gets_no_replica_of_the_one_before() {
    let (setup, ssh) = (Setup::start().await, Ssh::start().await);
    setup.register("web", json!({"id": "1"}), &ssh).await;
    let way = Held::before(ssh.port()).await;
    let mut replica = ssh.replica(1, 80);
    replica["ssh_port"] = json!(way.port());
    let path = format!("{REGISTRY}/services/web/replicas/register");
    let (answered, ()) = tokio::join!(setup.post(&path, &replica), async {
        way.is_asked().await;
        setup.unregister("web").await;
        setup.register("web", json!({"id": "2"}), &ssh).await;
        way.let_go();
    });
    assert_eq!(
        answered,
        detail("Service main/web was registered anew, cannot register replica")
    );
    assert!(setup.replicas("web").await.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn an_id_that_is_not_known_is_told_once() {
    let (setup, ssh) = (Setup::start().await, Ssh::start().await);
    setup.register("web", json!({}), &ssh).await;
    let path = format!("{REGISTRY}/services/web/set_id");
    for expected in [ok(), ok()] {
        assert_eq!(setup.post(&path, &json!({ "id": "5a3c" })).await, expected);
    }
    assert_eq!(setup.post(&path, &json!({ "id": "6" })).await.0, 400);
    let (_, listed) = setup.get("/api/services/list").await;
    assert_eq!(listed["services"][0]["id"], "5a3c");
    let path = format!("{REGISTRY}/services/none/set_id");
    assert_eq!(setup.post(&path, &json!({ "id": "6" })).await.0, 400);
}

#[tokio::test(flavor = "multi_thread")]
async fn bodies_that_do_not_fit_are_422() {
    let (setup, ssh) = (Setup::start().await, Ssh::start().await);
    let path = format!("{REGISTRY}/services/register");
    let mut without_domain = service("web", ssh.key());
    without_domain.as_object_mut().unwrap().remove("domain");
    let (status, said) = setup.post(&path, &without_domain).await;
    assert_eq!(status, 422);
    assert!(
        said["detail"][0]["msg"].as_str().unwrap().contains("domain"),
        "{said}"
    );
    for wrong in [json!([]), json!(null), json!({"run_name": 1})] {
        assert_eq!(setup.post(&path, &wrong).await.0, 422, "{wrong}");
    }
    let mut limited = service("web", ssh.key());
    limited["rate_limits"] = json!([{"prefix": "/", "key": {"type": "header", "header": "a b"}, "rps": 1.0}]);
    assert_eq!(setup.post(&path, &limited).await.0, 400);
    let large = json!({ "id": "a".repeat(5 << 20) });
    let path = format!("{REGISTRY}/services/web/set_id");
    assert_eq!(setup.post(&path, &large).await.0, 413);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replica_that_cannot_be_reached_is_refused_with_the_reason() {
    let (setup, ssh) = (Setup::start().await, Ssh::start().await);
    let path = format!("{REGISTRY}/services/web/replicas/register");
    let replica = ssh.replica(1, 80);
    let (status, said) = setup.post(&path, &replica).await;
    assert_eq!(
        (status, said["detail"].as_str().unwrap()),
        (400, "Service main/web does not exist, cannot register replica")
    );
    // The key of the project opens nothing there.
    let mut body = service("web", new_key().private.expose());
    body["id"] = json!("1");
    assert_eq!(
        setup.post(&format!("{REGISTRY}/services/register"), &body).await,
        ok()
    );
    let (status, said) = setup.post(&path, &replica).await;
    let said = said["detail"].as_str().unwrap();
    assert_eq!(status, 400);
    assert!(
        said.starts_with("Cannot connect to replica") && said.contains("permission denied"),
        "{said}"
    );
    let (_, listed) = setup.get("/api/services/list").await;
    assert_eq!(listed["services"][0]["replicas"], json!([]));
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_are_counted_for_autoscaling() {
    let (setup, ssh, app) = (Setup::start().await, Ssh::start().await, App::start("one").await);
    let run = job(77);
    setup.serve(json!({ "id": run }), &ssh, &app).await;
    setup.register("idle", json!({ "id": job(78) }), &ssh).await;
    for _ in 0..3 {
        assert_eq!(setup.ask("web.example.com", "/").await.status, 200);
    }
    let (_, stats) = setup.get("/api/stats/collect").await;
    let of = |run: &str| {
        let stats = stats.as_array().unwrap().iter();
        stats.clone().find(|one| one["run_name"] == run).unwrap()["stats"].clone()
    };
    for window in ["30", "60", "300"] {
        assert_eq!(of("web")[window]["requests"], 3, "{stats}");
        assert!(
            of("web")[window]["request_time"].as_f64().unwrap() > 0.0,
            "{stats}"
        );
        assert_eq!(of("idle")[window], json!({ "requests": 0, "request_time": 0.0 }));
    }
    let (_, counts) = setup.get("/api/v2/stats").await;
    let counts: Vec<ServiceCounts> = serde_json::from_value(counts).unwrap();
    let [web] = counts.as_slice() else {
        panic!("only those that were asked: {counts:?}")
    };
    assert_eq!(web.id, run, "as the server knows it");
    assert_eq!((web.by_class, web.under_way), ([0, 3, 0, 0, 0], 0));
    assert_eq!((web.head.count, web.total.count), (3, 3));
    assert_eq!(web.total.buckets.last(), Some(&(300.0, 3)));
    assert!(web.total.sum >= web.head.sum, "{web:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn settings_of_the_authority_are_kept() {
    let setup = Setup::start().await;
    let acme = json!({"acme_server": "https://ca/dir", "acme_eab_kid": "k", "acme_eab_hmac_key": "a_-b"});
    assert_eq!(setup.post("/api/config", &acme).await, ok());
    let wrong = json!({"acme_server": "https://ca/dir", "acme_eab_kid": "k", "acme_eab_hmac_key": "!"});
    assert_eq!(setup.post("/api/config", &wrong).await.0, 400);
    let setup = setup.killed_and_started().await;
    let acme = setup.gateway.registry().state().await.acme;
    assert_eq!(
        (acme.server.as_deref(), acme.eab_kid.as_deref()),
        (Some("https://ca/dir"), Some("k"))
    );
    assert_eq!(setup.post("/api/config", &json!({})).await, ok());
}
