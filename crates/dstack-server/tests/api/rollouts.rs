//! Roll-outs in which the new deployment of a service stands beside the old one.

use std::net::SocketAddr;
use std::sync::Arc;

use axum::Router;
use dstack_agent_api::http::{Connector, TcpConnector};
use dstack_model::runs::JobStatus;
use dstack_plan::services::rollout::state::Phase;
use dstack_server::services::Ports;
use dstack_store::rows::{AgentAddress, JobRow, RunRow};
use dstack_store::{Commit, EngineStore as _, Put, Sealed};
use serde_json::{Value, json};

use super::services::{apply, run, spec};
use super::{ADMIN, Server, TestServer, request};

/// Jobs of the first deployment are at the first address, those of later ones at the second.
#[derive(Debug)]
struct ByDeployment([SocketAddr; 2]);

impl Ports for ByDeployment {
    fn port(&self, _: &AgentAddress, job: &JobRow, _: u16) -> Arc<dyn Connector> {
        let [old, new] = self.0;
        let address = if job.deployment_num == 0 { old } else { new };
        Arc::new(TcpConnector { address })
    }
}

async fn says(word: &'static str) -> SocketAddr {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let replica = axum::serve(
        listener,
        Router::new().fallback(move || async move { axum::Json(word) }),
    );
    dstack_system::task::spawn("replica", async move { replica.await.unwrap() });
    address
}

fn canary(share: &str) -> Value {
    let header = json!({"name": "x-canary", "value": "1"});
    let rollout = json!({"strategy": "canary", "share": share, "header": header});
    json!({"auth": false, "commands": ["serve anew"], "rollout": rollout})
}

async fn stored(server: &Server) -> (RunRow, Vec<JobRow>) {
    let project = server.main_project().await;
    let database = &server.state.data.database;
    let run = database.run_by_name(project, "web").await.unwrap().unwrap().run;
    let jobs = database.views().jobs(&[run.id]).await.unwrap();
    (run, jobs)
}

async fn commit(server: &Server, puts: Vec<Put>) {
    let commit = Commit::unchecked(puts, Vec::new());
    server.state.data.store().commit(commit).await.unwrap();
    server.state.services.load().await.unwrap();
}

/// A replica of the new deployment that gets requests, as an engine would make it; in another group than the first one, if that is said.
async fn add_new_replica(server: &Server, group: Option<&str>) {
    let (run, jobs) = stored(server).await;
    let (old, now) = (&jobs[0], server.state.data.clock.now());
    let mut spec = (*old.job_spec).clone();
    spec.replica_num = 1;
    spec.replica_group = group.map_or(spec.replica_group, str::to_owned);
    let id = uuid::Uuid::from_u128(99).into();
    let mut job = JobRow::submitted(id, &run, Sealed::new(spec), now);
    job.advance(JobStatus::Provisioning, now).unwrap();
    job.advance(JobStatus::Running, now).unwrap();
    job.instance_id = old.instance_id;
    job.registered = true;
    commit(server, vec![Put::Job(job)]).await;
}

async fn enter(server: &Server, phase: Phase) {
    let (mut run, _) = stored(server).await;
    run.enter_rollout(phase, server.state.data.clock.now());
    commit(server, vec![Put::Run(run)]).await;
}

/// A service with an old replica and a new one that is to get such a share.
async fn beside(share: &str) -> Server {
    let server = Server::new().await;
    let addresses = [says("old").await, says("new").await];
    server
        .state
        .services
        .reach_through(Arc::new(ByDeployment(addresses)));
    apply(&server, json!({"auth": false})).await.ok();
    run(&server).await;
    apply(&server, canary(share)).await.ok();
    add_new_replica(&server, None).await;
    server
}

async fn said(server: &Server, is_canary: bool) -> String {
    let mut asked = request("GET", "/proxy/services/main/web/", None, None);
    if is_canary {
        asked.headers_mut().insert("x-canary", "1".parse().unwrap());
    }
    server.send(asked).await.ok().as_str().unwrap().to_owned()
}

/// How many of so many requests the new replica answers.
async fn new_of(server: &Server, requests: usize) -> usize {
    let mut new = 0;
    for _ in 0..requests {
        new += usize::from(said(server, false).await == "new");
    }
    new
}

async fn state(server: &Server) -> Value {
    server.main("runs/get_rollout", json!({"name": "web"})).await.ok()
}

/// New replicas get a fifth of the requests once they are watched, and before that only those with the header. Returns how many
/// of 400 they got.
async fn a_fifth_goes_to_new_ones(server: &Server) -> usize {
    assert_eq!(new_of(server, 30).await, 0, "it is not watched yet");
    assert_eq!(said(server, true).await, "new");
    enter(server, Phase::Watching).await;
    let new = new_of(server, 400).await;
    // Four standard deviations.
    assert!((48..=112).contains(&new), "{new} of 400");
    new
}

#[tokio::test]
async fn requests_through_the_server_are_split_as_the_roll_out_says() {
    let server = beside("20%").await;
    let new = a_fifth_goes_to_new_ones(&server).await;
    assert_eq!(said(&server, true).await, "new");
    let shown = state(&server).await;
    assert_eq!(
        (&shown["phase"], &shown["strategy"]),
        (&json!("watching"), &json!("canary"))
    );
    let [newer, older] = shown["deployments"].as_array().unwrap().as_slice() else {
        panic!("{shown}")
    };
    assert_eq!(
        (&newer["deployment_num"], &newer["share_percent"]),
        (&json!(1), &json!(20.0))
    );
    assert_eq!((&newer["replicas"], &newer["ready"]), (&json!(1), &json!(1)));
    // Before it was watched, 30 of the old one and one with the header were counted as well.
    assert_eq!(newer["answers"]["requests"], new + 2, "{shown}");
    assert_eq!(older["answers"]["requests"], 30 + 400 - new, "{shown}");
    assert_eq!(newer["answers"]["failed"], 0);
    // Nobody listens here to what servers tell that share the database.
    let is_partial = json!(server.state.data.database.is_shared());
    assert_eq!(
        [&newer["answers"]["is_partial"], &older["answers"]["is_partial"]],
        [&is_partial; 2]
    );
    assert_eq!(shown["obstacle"], Value::Null);
    enter(&server, Phase::Kept).await;
    assert_eq!(new_of(&server, 30).await, 30);
    enter(&server, Phase::Following).await;
    let both = new_of(&server, 200).await;
    assert!(
        (60..=140).contains(&both),
        "{both} of 200: each of two replicas is as good"
    );
}

/// Groups `a` with an old replica and `b`, which has a new one only. The new deployment changes `a`, and makes `b` of this.
async fn beside_another_group(of_b: &str) -> Server {
    let server = Server::new().await;
    let addresses = [says("old").await, says("new").await];
    server
        .state
        .services
        .reach_through(Arc::new(ByDeployment(addresses)));
    let groups = |of_a: &str, of_b: &str| {
        let scaling = json!({"metric": "rps", "target": 10});
        json!([
            {"name": "a", "replicas": 1, "commands": [of_a]},
            {"name": "b", "replicas": "0..1", "scaling": scaling, "commands": [of_b]},
        ])
    };
    let first = json!({"auth": false, "commands": [], "groups": groups("serve", "serve")});
    apply(&server, first).await.ok();
    run(&server).await;
    let mut applied = canary("20%");
    applied["commands"] = json!([]);
    applied["groups"] = groups("serve anew", of_b);
    apply(&server, applied).await.ok();
    add_new_replica(&server, Some("b")).await;
    server
}

#[tokio::test]
async fn new_replicas_of_a_group_without_old_ones_get_their_share_only() {
    let server = beside_another_group("serve anew").await;
    a_fifth_goes_to_new_ones(&server).await;
}

#[tokio::test]
async fn replicas_of_a_group_that_stays_as_it_is_get_requests_as_ever() {
    let server = beside_another_group("serve").await;
    let both = new_of(&server, 200).await;
    assert!(
        (60..=140).contains(&both),
        "{both} of 200: each of two replicas is as good"
    );
}

#[tokio::test]
async fn what_is_asked_of_a_roll_out_is_done_later_and_refused_where_it_means_nothing() {
    let server = TestServer::new().start().await;
    apply(&server, json!({"auth": false})).await.ok();
    let ask = |action: &str| server.main("runs/rollout", json!({"run_name": "web", "action": action}));
    assert!(
        ask("promote")
            .await
            .refused()
            .0
            .starts_with("No roll-out of web is under way")
    );
    assert_eq!(state(&server).await["phase"], Value::Null);
    let updated = apply(&server, canary("10%")).await.ok();
    assert_eq!(updated["deployment_num"], 1);
    assert_eq!(state(&server).await["phase"], "preparing");
    assert_eq!(ask("promote").await.ok()["asked"], "promote");
    assert_eq!(ask("abort").await.ok()["asked"], "abort");
    enter(&server, Phase::Kept).await;
    assert!(
        ask("promote")
            .await
            .refused()
            .0
            .starts_with("All requests go to the new")
    );
    let other = json!({"auth": false, "commands": ["serve anew"], "rollout": {"strategy": "blue_green"}});
    assert!(
        apply(&server, other)
            .await
            .refused()
            .0
            .starts_with("A roll-out is under way")
    );
    // Only how it goes on is changed: it is the same deployment.
    let mut bounded = canary("50%");
    bounded["rollout"]["max_latency"] = json!("1500ms");
    let more = apply(&server, bounded).await.ok();
    assert_eq!(more["deployment_num"], 1);
    assert_eq!(state(&server).await["phase"], "kept");
    let listed = server.post(ADMIN, "/api/runs/list", json!({})).await.ok();
    let rollout = &listed[0]["run_spec"]["configuration"]["rollout"];
    assert_eq!(
        (&rollout["share"], &rollout["max_latency"]),
        (&json!("50%"), &json!("1500ms"))
    );
}

#[tokio::test]
async fn a_run_that_is_rolled_back_asks_again_for_what_it_asked_for_before() {
    let server = TestServer::new().start().await;
    apply(&server, json!({"auth": false})).await.ok();
    apply(&server, canary("10%")).await.ok();
    let (mut run, _) = stored(&server).await;
    assert!(run.roll_back("it was slow".to_owned(), server.state.data.clock.now()));
    commit(&server, vec![Put::Run(run)]).await;
    let back = server.main("runs/get", json!({"run_name": "web"})).await.ok();
    assert_eq!(back["deployment_num"], 2);
    assert_eq!(back["run_spec"]["configuration"]["commands"], json!(["serve"]));
    let shown = state(&server).await;
    assert_eq!(
        (&shown["phase"], &shown["reason"]),
        (&json!("rolled_back"), &json!("it was slow"))
    );
}

#[tokio::test]
async fn groups_that_have_no_replicas_yet_are_refused_by_the_plan_and_as_they_are_applied() {
    let server = Server::new().await;
    apply(&server, json!({"auth": false})).await.ok();
    let group = json!({"name": "a", "replicas": 1, "commands": ["serve anew"]});
    let grouped = |strategy: &str| json!({"auth": false, "commands": null, "groups": [group], "rollout": {"strategy": strategy}});
    let planned = server
        .main("runs/get_plan", json!({"run_spec": spec(grouped("canary"))}))
        .await;
    for refused in [planned, apply(&server, grouped("canary")).await] {
        assert_eq!(refused.status, 400);
        let said = refused.body.to_string();
        assert!(said.contains("Replica group `a` is new"), "{said}");
    }
    apply(&server, grouped("rolling")).await.ok();
}
