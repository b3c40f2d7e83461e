//! The nodes of a run: each starts when it can know the others, in the order that the run asks for.

#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing)] // tests

use std::sync::Arc;
use std::time::Duration;

use dstack_agent_api::runner::SubmitBody;
use dstack_engine::failpoint::DieAt;
use dstack_model::runs::{JobStatus, JobTerminationReason, RunStatus};
use dstack_plan::lifecycle::WaitReason;
use dstack_plan::lifecycle::job::NODES_INTERVAL;
use dstack_sim::{Script, World, invariants, killed_everywhere};
use dstack_store::EngineStore;
use dstack_store::rows::{JobRow, RunRow};
use serde_json::{Value, json};

const MINUTE: Duration = Duration::from_secs(60);

async fn world(seed: u64) -> World {
    let world = World::new(seed, 1).await.unwrap();
    world.clouds.offer(&["small"]);
    world.cloud_fleet("cloud", "0..4").await.unwrap();
    world
}

fn nodes(extra: &Value) -> Value {
    let mut fields = json!({"fleets": ["cloud"], "nodes": 3});
    let base = fields.as_object_mut().unwrap();
    base.extend(extra.as_object().unwrap().clone());
    if extra.get("groups").is_some() {
        base.remove("nodes");
        base.insert("commands".to_owned(), Value::Null);
    }
    fields
}

async fn jobs(world: &World, run: &RunRow) -> Vec<JobRow> {
    world.store.run(run.id).await.unwrap().unwrap().jobs
}

/// What the runners of a run's nodes were told.
async fn told(world: &World, run: &RunRow) -> Vec<SubmitBody> {
    let jobs = jobs(world, run).await;
    let told = jobs.iter().map(|job| world.hosts.told(job.id));
    told.map(|body| body.unwrap()).collect()
}

fn addresses(jobs: &[JobRow]) -> Vec<String> {
    let place = |job: &JobRow| job.job_provisioning_data.as_ref().unwrap().internal_ip.clone();
    jobs.iter().map(|job| place(job).unwrap()).collect()
}

#[tokio::test(start_paused = true)]
async fn every_node_is_told_of_all() {
    for seed in 0..10 {
        let world = world(seed).await;
        let _engine = {
            let engine = world.start().await.unwrap();
            let run = world.submit(&engine, "train", &nodes(&json!({}))).await.unwrap();
            assert_eq!(world.finished(&run, 2 * MINUTE).await.unwrap(), RunStatus::Done);
            let all = addresses(&jobs(&world, &run).await);
            assert_eq!(all.len(), 3);
            assert!(all[0] != all[1] && all[1] != all[2], "{all:?}");
            for body in told(&world, &run).await {
                assert_eq!(body.cluster_info.job_ips, all, "seed {seed}");
                assert_eq!(body.cluster_info.master_job_ip, all[0]);
                assert_eq!(body.cluster_info.gpus_per_node, [0, 0, 0]);
            }
            engine
        };
    }
}

#[tokio::test(start_paused = true)]
async fn nodes_start_in_the_order_that_is_asked_for() {
    for (order, master_first, seed) in
        (30..36).flat_map(|seed| [("master-first", true, seed), ("workers-first", false, seed)])
    {
        let world = world(seed).await;
        // Whoever comes first still runs when the others come.
        let script = Script {
            lines: 100,
            ..Script::default()
        };
        world.hosts.script("train", script);
        let engine = world.start().await.unwrap();
        let order = nodes(&json!({"startup_order": order}));
        let run = world.submit(&engine, "train", &order).await.unwrap();
        let waits = |world: &World| {
            let tables = world.store.tables();
            let mut jobs = tables.jobs.values();
            jobs.any(|job| matches!(job.waiting_for(), Some(WaitReason::NodeRunning { .. })))
        };
        world
            .until("a node waits for others to run", MINUTE, waits)
            .await
            .unwrap();
        let all_run = |world: &World| {
            let tables = world.store.tables();
            let jobs = tables
                .jobs
                .values()
                .filter(|job| job.status() == JobStatus::Running);
            jobs.count() == 3
        };
        world.until("all run", MINUTE, all_run).await.unwrap();
        let jobs = jobs(&world, &run).await;
        let started: Vec<_> = jobs.iter().map(|job| job.running_at.unwrap()).collect();
        for worker in &started[1..] {
            assert_eq!(started[0] < *worker, master_first, "{started:?}");
        }
        // Who waits is woken, and does not only look now and then.
        let (first, last) = (started.iter().min().unwrap(), started.iter().max().unwrap());
        assert!(*last < *first + NODES_INTERVAL / 2, "seed {seed}: {started:?}");
        assert_eq!(world.finished(&run, 2 * MINUTE).await.unwrap(), RunStatus::Done);
        assert_eq!(invariants::always(&world), Vec::<String>::new(), "seed {seed}");
    }
}

#[tokio::test(start_paused = true)]
async fn commands_name_the_addresses_of_nodes() {
    let world = world(40).await;
    let engine = world.start().await.unwrap();
    let groups = json!({"groups": [
        {"name": "head", "commands": ["serve"], "resources": {"cpu": "1..", "memory": "1GB.."}},
        {"name": "workers", "nodes": 2, "resources": {"cpu": "1..", "memory": "1GB.."},
         "commands": ["join ${{ groups[0].nodes[0].IP_ADDRESS }} ${{ groups[1].nodes[1].IP_ADDRESS }}"]},
    ]});
    let run = world.submit(&engine, "train", &nodes(&groups)).await.unwrap();
    assert_eq!(world.finished(&run, 2 * MINUTE).await.unwrap(), RunStatus::Done);
    let all = addresses(&jobs(&world, &run).await);
    let told = told(&world, &run).await;
    let command = format!("join {} {}", all[0], all[2]);
    for worker in &told[1..] {
        let commands = &worker.job_spec.commands;
        assert!(
            commands.iter().any(|text| text.contains(&command)),
            "{commands:?}"
        );
    }
}

/// The machine of one node breaks while all run: what becomes of the run, and of its nodes' submissions.
async fn one_node_is_lost(extra: &Value) -> (RunStatus, Vec<JobRow>) {
    let world = world(60).await;
    let script = Script {
        lines: 2000,
        ..Script::default()
    };
    world.hosts.script("train", script);
    let engine = world.start().await.unwrap();
    let run = world.submit(&engine, "train", &nodes(extra)).await.unwrap();
    let three = |world: &World| {
        let tables = world.store.tables();
        let running = tables
            .jobs
            .values()
            .filter(|job| job.status() == JobStatus::Running);
        running.filter_map(|job| job.used_instance_id).collect::<Vec<_>>()
    };
    let all_run = |world: &World| three(world).len() == 3;
    world.until("all run", 2 * MINUTE, all_run).await.unwrap();
    world.lose(three(&world)[1]);
    let status = world.finished(&run, 30 * MINUTE).await.unwrap();
    assert_eq!(invariants::always(&world), Vec::<String>::new());
    (status, jobs(&world, &run).await)
}

#[tokio::test(start_paused = true)]
async fn when_a_node_is_lost_all_start_anew_if_the_run_retries_and_end_if_not() {
    let (status, jobs) =
        one_node_is_lost(&json!({"retry": {"on_events": ["interruption", "error"], "duration": "2h"}})).await;
    assert_eq!(status, RunStatus::Done);
    let latest: Vec<&JobRow> = jobs.iter().filter(|job| job.submission_num == 1).collect();
    assert_eq!((jobs.len(), latest.len()), (6, 3));
    assert!(latest.iter().all(|job| job.status() == JobStatus::Done));

    let (status, jobs) = one_node_is_lost(&json!({})).await;
    assert_eq!((status, jobs.len()), (RunStatus::Failed, 3));
    let reasons: Vec<_> = jobs.iter().map(JobRow::termination_reason).collect();
    assert!(
        reasons.contains(&Some(JobTerminationReason::InstanceUnreachable)),
        "{reasons:?}"
    );
}

/// Wherever the server dies: nodes that wait for one another do not wait for ever.
#[tokio::test(start_paused = true)]
async fn nodes_find_one_another_wherever_the_server_dies() {
    let points = killed_everywhere(1..=6, killed_at).await;
    assert!(points.contains("runner.submit.before"), "{points:?}");
}

async fn killed_at(point: &'static str, nth: u32) -> Arc<DieAt> {
    let world = world(50).await;
    let die = Arc::new(DieAt::new(point, nth));
    let engine = world.start_dying(&die).await.unwrap();
    let order = nodes(&json!({"startup_order": "workers-first"}));
    let run = world.submit(&engine, "train", &order).await.unwrap();
    tokio::select! {
        () = engine.stopped() => {}
        () = world.pass(MINUTE) => {}
    }
    engine.stop();
    world.leases_run_out().await;
    let _engine = world.start().await.unwrap();
    let status = world.finished(&run, 5 * MINUTE).await;
    let status = status.unwrap_or_else(|stuck| panic!("killed at {point} #{nth}: {stuck}"));
    assert_eq!(status, RunStatus::Done, "killed at {point} #{nth}");
    let all = addresses(&jobs(&world, &run).await);
    for body in told(&world, &run).await {
        assert_eq!(body.cluster_info.job_ips, all, "killed at {point} #{nth}");
    }
    assert_eq!(invariants::always(&world), Vec::<String>::new());
    die
}

fn with_dynamo() -> Value {
    json!({"type": "service", "port": 8000, "commands": null, "fleets": ["cloud"], "groups": [
        {"name": "worker", "replicas": 1, "commands": ["work"]},
        {"name": "router", "replicas": 1, "commands": ["route"], "router": {"type": "dynamo"}},
    ]})
}

#[tokio::test(start_paused = true)]
async fn workers_of_dynamo_are_told_where_their_router_is() {
    let world = world(80).await;
    world.hosts.script(
        "train",
        Script {
            lines: 1_000_000,
            ..Script::default()
        },
    );
    let engine = world.start().await.unwrap();
    let run = world.submit(&engine, "train", &with_dynamo()).await.unwrap();
    let all_run = |world: &World| {
        let tables = world.store.tables();
        let running = tables
            .jobs
            .values()
            .filter(|job| job.status() == JobStatus::Running);
        running.count() == 2
    };
    world.until("both run", 10 * MINUTE, all_run).await.unwrap();
    let jobs = jobs(&world, &run).await;
    let router = addresses(&jobs)[1].clone();
    let told = told(&world, &run).await;
    let address = |body: &SubmitBody| {
        body.job_spec
            .env
            .get("DSTACK_ROUTER_INTERNAL_IP")
            .map(|found| found.expose().to_owned())
    };
    assert_eq!(address(&told[0]), Some(router));
    assert_eq!(address(&told[1]), None);
}
