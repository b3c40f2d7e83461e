//! Services: what is stored of them, and which are refused.

use dstack_model::runs::{JobStatus, RunStatus};
use dstack_store::rows::JobRow;
use dstack_store::{Commit, EngineStore, Put};
use serde_json::{Value, json};

use super::{ADMIN, Answer, Server, TestServer};

pub(crate) fn spec(more: Value) -> Value {
    let mut configuration = json!({"type": "service", "port": 8000, "commands": ["serve"]});
    configuration
        .as_object_mut()
        .unwrap()
        .extend(more.as_object().unwrap().clone());
    let fields = configuration.as_object_mut().unwrap();
    fields.retain(|_, value| !value.is_null());
    json!({"run_name": "web", "configuration": configuration})
}

pub(crate) async fn apply(server: &Server, more: Value) -> Answer {
    let plan = json!({"plan": {"run_spec": spec(more)}, "force": true});
    server.main("runs/apply", plan).await
}

/// Makes the service run on the server's own machine, and get requests, as an engine would.
pub(crate) async fn run(server: &Server) {
    let project = server.main_project().await;
    let run = server.state.data.database.run_by_name(project, "web").await;
    let run = run.unwrap().unwrap().run;
    let jobs = server.state.data.database.views().jobs(&[run.id]).await.unwrap();
    let now = server.state.data.clock.now();
    server.own_machine("process", false).await;
    let placement = server.state.data.store().placement(project).await.unwrap();
    let machine = placement.instances.last().unwrap().id;
    let running = |mut job: JobRow| {
        job.advance(JobStatus::Provisioning, now).unwrap();
        job.advance(JobStatus::Running, now).unwrap();
        job.instance_id = Some(machine);
        job.registered = true;
        Put::Job(job)
    };
    let mut puts: Vec<Put> = jobs.into_iter().map(running).collect();
    let mut run = run;
    run.follow_jobs(RunStatus::Running).unwrap();
    puts.push(Put::Run(run));
    let commit = Commit::unchecked(puts, Vec::new());
    server.state.data.store().commit(commit).await.unwrap();
    server.state.services.load().await.unwrap();
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
    let refused = apply(&server, json!({"https": false})).await;
    assert!(refused.refused().0.starts_with("Cannot override active run"));
    let kept = server.main("runs/get", json!({"run_name": "web"})).await.ok();
    assert_eq!(kept["deployment_num"], 1);
    let scaling = json!({"replicas": "1..3", "scaling": {"metric": "rps", "target": 1}, "commands": ["serve --better"]});
    let scales = apply(&server, scaling).await.ok();
    assert_eq!(scales["deployment_num"], 2);
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
