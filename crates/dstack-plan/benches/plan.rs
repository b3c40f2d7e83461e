//! Planning a typical task, and placing a long queue.
#![allow(clippy::unwrap_used, clippy::disallowed_methods, clippy::indexing_slicing)]

mod common;

use std::collections::BTreeMap;
use std::hint::black_box;

use criterion::{Criterion, criterion_group, criterion_main};
use dstack_model::configurations::AnyRunConfiguration;
use dstack_model::runs::RunSpec;
use dstack_plan::fleets::new_capacity_outside_fleets;
use dstack_plan::jobs::{JobContext, Target, job_specs};
use dstack_plan::placement::Request;
use dstack_plan::validate::effective_run_spec;
use dstack_plan::{ServerDefaults, explain};
use serde_json::{Value, json};

fn plan_task(server: &ServerDefaults) -> usize {
    let (configuration, _) =
        dstack_model::yaml::parse::<AnyRunConfiguration>(common::TASK, "train.dstack.yml").unwrap();
    let spec = RunSpec {
        run_name: Some("train".to_owned()),
        ..RunSpec::new(configuration)
    };
    let spec = effective_run_spec(spec, Some("ssh-ed25519 AAAA user"), server).unwrap();
    let context = JobContext {
        server,
        images: &BTreeMap::new(),
        target: Target::Container,
    };
    let jobs = job_specs(&spec, 0, None, &context).unwrap();
    let queries = jobs
        .iter()
        .map(|job| new_capacity_outside_fleets(&Request::new(&spec, job)));
    queries.filter(Result::is_ok).count()
}

fn task(c: &mut Criterion) {
    let server = ServerDefaults::default();
    c.bench_function("parse, validate and plan a task", |b| {
        b.iter(|| black_box(plan_task(&server)));
    });
}

fn queue(c: &mut Criterion) {
    let world = common::World::new(10_000, 10_000, 100_000);
    let (queue, fleets) = (world.queue(), world.fleets());
    let mut group = c.benchmark_group("queue");
    group.sample_size(10);
    group.bench_function("10 000 jobs, 10 000 instances, 100 000 offers", |b| {
        b.iter(|| black_box(world.place(&queue, &fleets)));
    });
    group.finish();
}

/// All offers of the catalogue, for a job that takes none of them, and for one that takes most.
fn offers(c: &mut Criterion) {
    let world = common::World::new(0, 0, 30_000);
    let task = |resources: Value| {
        common::run_spec(&json!({"type": "task", "commands": ["train"], "resources": resources}))
    };
    let (server, images) = (ServerDefaults::default(), BTreeMap::new());
    let context = JobContext {
        server: &server,
        images: &images,
        target: Target::Container,
    };
    let specs = [
        ("none fits", task(json!({"gpu": "B200:64"}))),
        ("most fit", task(json!({"cpu": "1..", "memory": "1GB.."}))),
    ];
    for (name, spec) in &specs {
        let jobs = job_specs(spec, 0, None, &context).unwrap();
        let request = Request::new(spec, &jobs[0]);
        let query = new_capacity_outside_fleets(&request).unwrap();
        let decided = explain::Decided {
            fleet: None,
            fits: false,
        };
        c.bench_function(&format!("select of 30 000 offers, {name}"), |b| {
            b.iter(|| black_box(query.select([world.market.as_slice()], None)));
        });
        c.bench_function(&format!("explain 30 000 offers, {name}"), |b| {
            b.iter(|| black_box(explain::job(&request, &[], &query, &world.market, decided)));
        });
    }
}

criterion_group!(benches, task, queue, offers);
criterion_main!(benches);
