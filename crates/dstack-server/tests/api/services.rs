//! Services: what is stored of them, which are refused, and what the proxy answers.

use dstack_model::runs::{JobStatus, RunStatus};
use dstack_store::rows::JobRow;
use dstack_store::{Commit, EngineStore, Put};
use serde_json::{Value, json};

use super::{ADMIN, Answer, Server, TestServer, request};

fn spec(more: Value) -> Value {
    let mut configuration = json!({"type": "service", "port": 8000, "commands": ["serve"]});
    configuration
        .as_object_mut()
        .unwrap()
        .extend(more.as_object().unwrap().clone());
    json!({"run_name": "web", "configuration": configuration})
}

async fn apply(server: &Server, more: Value) -> Answer {
    let plan = json!({"plan": {"run_spec": spec(more)}, "force": true});
    server.main("runs/apply", plan).await
}

/// Makes the service run, as an engine would.
async fn run(server: &Server) {
    let project = server.main_project().await;
    let run = server.state.data.database.run_by_name(project, "web").await;
    let run = run.unwrap().unwrap().run;
    let jobs = server.state.data.database.views().jobs(&[run.id]).await.unwrap();
    let now = server.state.data.clock.now();
    let running = |mut job: JobRow| {
        job.advance(JobStatus::Provisioning, now).unwrap();
        job.advance(JobStatus::Running, now).unwrap();
        Put::Job(job)
    };
    let mut puts: Vec<Put> = jobs.into_iter().map(running).collect();
    let mut run = run;
    run.follow_jobs(RunStatus::Running).unwrap();
    puts.push(Put::Run(run));
    let commit = Commit::unchecked(puts, Vec::new());
    server.state.data.store().commit(commit).await.unwrap();
}

async fn get(server: &Server, path: &str, token: Option<&str>) -> Answer {
    server.send(request("GET", path, token, None)).await
}

#[tokio::test]
async fn a_service_has_its_replicas_and_an_address() {
    let server = Server::new().await;
    let groups = json!([
        {"name": "small", "replicas": 2, "commands": ["small"]},
        {"name": "large", "replicas": 1, "commands": ["large"]},
    ]);
    let run = apply(
        &server,
        json!({"commands": [], "groups": groups, "model": "org/m"}),
    )
    .await
    .ok();
    let place = |job: &Value| {
        (
            job["job_spec"]["replica_num"].clone(),
            job["job_spec"]["replica_group"].clone(),
        )
    };
    let jobs: Vec<_> = run["jobs"].as_array().unwrap().iter().map(place).collect();
    assert_eq!(
        jobs,
        [
            (json!(0), json!("small")),
            (json!(1), json!("small")),
            (json!(2), json!("large"))
        ]
    );
    assert_eq!(run["service"]["url"], "/proxy/services/main/web/");
    assert_eq!(run["service"]["model"]["base_url"], "/proxy/services/main/web/v1");
}

#[tokio::test]
async fn a_service_is_changed_in_place() {
    let server = Server::new().await;
    apply(&server, json!({})).await.ok();
    let updated = apply(&server, json!({"replicas": 3, "commands": ["serve --better"]}))
        .await
        .ok();
    assert_eq!(updated["deployment_num"], 1);
    assert_eq!(updated["run_spec"]["configuration"]["replicas"]["min"], 3);
    let scaling = json!({"replicas": "1..3", "scaling": {"metric": "rps", "target": 1}});
    let refused = apply(&server, scaling).await;
    assert!(refused.refused().0.starts_with("Auto-scaling is not supported"));
    let kept = server.main("runs/get", json!({"run_name": "web"})).await.ok();
    assert_eq!(kept["deployment_num"], 1);
}

#[tokio::test]
async fn what_cannot_be_published_is_refused_and_leaves_nothing() {
    let server = Server::new().await;
    for (more, text) in [
        (
            json!({"gateway": true}),
            "The service requires a gateway, but there is no default gateway in the project",
        ),
        (
            json!({"gateway": "gw"}),
            "Gateway gw does not exist in project main",
        ),
        (json!({"https": false}), "Setting `https: False` is not allowed"),
        (
            json!({"rate_limits": [{"rps": 1}]}),
            "Rate limits are not supported",
        ),
        (
            json!({"commands": [], "groups": [
                {"name": "router", "replicas": 1, "commands": ["r"], "router": {"type": "sglang"}},
                {"name": "worker", "replicas": 1, "commands": ["w"]},
            ]}),
            "A `router` in `groups` is not supported by this server version yet",
        ),
    ] {
        let answer = apply(&server, more).await;
        let refusal = answer.refused().0;
        assert!(refusal.starts_with(text), "{refusal}");
    }
    assert_eq!(
        server.post(ADMIN, "/api/runs/list", json!({})).await.ok(),
        json!([])
    );
}

#[tokio::test]
async fn services_without_a_gateway_can_be_forbidden() {
    let server = TestServer::new();
    let server = server.settings(|settings| settings.forbid_services_without_gateway = true);
    let server = server.start().await;
    let refused = apply(&server, json!({})).await;
    assert!(
        refused
            .refused()
            .0
            .starts_with("This dstack-server installation forbids")
    );
}

#[tokio::test]
async fn the_proxy_lets_in_whom_it_should_and_says_that_it_goes_no_further() {
    let server = Server::new().await;
    apply(&server, json!({"model": "org/m"})).await.ok();
    let path = "/proxy/services/main/web/index.html";
    let waiting = get(&server, path, Some(ADMIN)).await;
    assert_eq!(
        (waiting.status, &waiting.body["detail"]),
        (404.try_into().unwrap(), &json!("Service main/web not found"))
    );
    run(&server).await;
    assert_eq!(get(&server, path, None).await.status, 403);
    assert_eq!(get(&server, path, Some("stale")).await.status, 403);
    let answer = get(&server, path, Some(ADMIN)).await;
    assert_eq!(answer.status, 503);
    assert!(answer.body["detail"].as_str().unwrap().contains("dstack attach"));

    let models = get(&server, "/proxy/models/main/models", Some(ADMIN)).await.ok();
    assert_eq!(models["data"][0]["id"], "org/m");
    let ask = |model: &str| {
        server.post(
            ADMIN,
            "/proxy/models/main/chat/completions",
            json!({"model": model, "messages": []}),
        )
    };
    assert_eq!(ask("org/m").await.status, 503);
    assert_eq!(ask("other").await.status, 404);
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
        (
            json!({"model": "m", "messages": [{"role": "user"}]}),
            json!(["body", "messages", 0, "content"]),
        ),
        (
            json!({"model": "m", "messages": hello, "n": "many"}),
            json!(["body", "n"]),
        ),
        (
            json!({"model": "m", "messages": hello, "stream_options": {}}),
            json!(["body", "stream_options"]),
        ),
        (
            json!({"model": "m", "messages": hello, "tool_choice": "all"}),
            json!(["body", "tool_choice"]),
        ),
    ] {
        let answer = server.post(ADMIN, path, chat).await;
        assert_eq!(
            (answer.status, &answer.body["detail"][0]["loc"]),
            (422, &place),
            "{}",
            answer.body
        );
    }
    let full = json!({
        "model": "m", "messages": hello, "stop": ["a"], "temperature": 0.5, "stream": true, "tools": [{}],
        "tool_choice": {"type": "function"}, "logit_bias": {"1": 2},
    });
    assert_eq!(server.post(ADMIN, path, full).await.status, 404);
    assert_eq!(server.post("stale", path, json!({})).await.status, 403);
}

#[tokio::test]
async fn the_plan_for_a_change_of_an_active_service_shows_offers() {
    let server = Server::new().await;
    let hosts = super::effects::ssh_fleet(&["192.0.2.1", "192.0.2.2"]);
    let plan = json!({"plan": {"spec": hosts}, "force": true});
    server.main("fleets/apply", plan).await.ok();
    // As much as is known of hosts that nobody has looked at yet.
    let resources = json!({"cpu": "1..", "memory": "0..", "disk": null});
    apply(&server, json!({"resources": resources})).await.ok();
    run(&server).await;
    let changed = spec(json!({"resources": resources, "commands": ["serve --better"]}));
    let plan = server
        .main("runs/get_plan", json!({"run_spec": changed}))
        .await
        .ok();
    assert_eq!(
        (&plan["action"], &plan["current_resource"]["status"]),
        (&json!("update"), &json!("running"))
    );
    assert_eq!(plan["job_plans"][0]["total_offers"], 2);
    assert_eq!(plan["job_plans"][0]["offers"].as_array().unwrap().len(), 2);
}

#[tokio::test]
async fn a_service_without_auth_is_for_everybody() {
    let server = Server::new().await;
    apply(&server, json!({"auth": false})).await.ok();
    run(&server).await;
    assert_eq!(get(&server, "/proxy/services/main/web/", None).await.status, 503);
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

#[tokio::test]
async fn the_proxy_and_the_metrics_compete_with_other_calls() {
    use dstack_api::{Endpoint, routes};
    use dstack_server::overload::Limits;
    let limits = Limits {
        reads: 1,
        plans: 1,
        ..Limits::default()
    };
    let server = TestServer::new().limits(limits).start().await;
    let paths = [
        "/proxy/services/main/web",
        "/proxy/services/main/web/",
        "/proxy/services/main/web/x",
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
