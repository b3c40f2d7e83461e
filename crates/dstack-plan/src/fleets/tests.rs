#![allow(clippy::needless_pass_by_value)] // `json!` values

use dstack_model::backends::BackendType;
use dstack_model::instances::InstanceStatus;
use serde_json::{Value, json};
use uuid::Uuid;

use super::*;
use crate::offers::tests::offer;
use crate::placement::FleetOwner;
use crate::placement::tests::{Sample, run};
use crate::volumes::Location;

fn spec(configuration: Value) -> FleetSpec {
    let mut fleet = json!({"type": "fleet"});
    fleet
        .as_object_mut()
        .unwrap()
        .extend(configuration.as_object().unwrap().clone());
    serde_json::from_value(json!({"configuration": fleet, "profile": {}})).unwrap()
}

fn fleet<'a>(spec: &'a FleetSpec, name: &'a str, instances: Vec<Candidate<'a>>) -> Fleet<'a> {
    Fleet {
        id: Uuid::from_u128(u128::from(name.len() as u64)).into(),
        name,
        project: Some("main"),
        own: true,
        spec,
        master: None,
        anchor_pending: false,
        instances: instances
            .into_iter()
            .map(|instance| Candidate {
                fleet_name: name,
                fleet_owner: FleetOwner::OWN,
                ..instance
            })
            .collect(),
    }
}

fn task(more: Value) -> Value {
    let mut task = json!({"type": "task", "commands": ["x"]});
    task.as_object_mut()
        .unwrap()
        .extend(more.as_object().unwrap().clone());
    task
}

#[test]
fn rooms_are_counted() {
    let sample = Sample::new("any", 1.0);
    let (wide, jobs) = run(task(json!({"nodes": 3})));
    let request = Request::new(&wide, &jobs[0]);
    let one_busy = || {
        vec![Candidate {
            busy_blocks: 1,
            status: InstanceStatus::Busy,
            ..sample.candidate(1)
        }]
    };
    for (configuration, expected) in [
        (json!({"nodes": "0..4"}), Err(Skipped::NotCluster)),
        (json!({"nodes": "0..4", "placement": "cluster"}), Ok(())),
        (
            json!({"nodes": "0..3", "placement": "cluster"}),
            Err(Skipped::TooSmall { free: 2, needed: 3 }),
        ),
        (
            json!({"nodes": "0..3", "placement": "cluster", "blocks": 2}),
            Ok(()),
        ),
        (json!({"nodes": "0..", "placement": "cluster"}), Ok(())),
        (
            json!({"ssh_config": {"hosts": ["a"]}, "placement": "cluster"}),
            Err(Skipped::TooSmall { free: 0, needed: 3 }),
        ),
    ] {
        let spec = spec(configuration.clone());
        assert_eq!(
            check_room(&request, &fleet(&spec, "f", one_busy())),
            expected,
            "{configuration}"
        );
    }
}

#[test]
fn fleets_are_named_with_their_project() {
    let spec = spec(json!({"nodes": 1}));
    let own = fleet(&spec, "f", Vec::new());
    let imported = Fleet {
        project: Some("other"),
        own: false,
        ..own.clone()
    };
    for (named, expected) in [
        (json!(["f"]), [true, false]),
        (json!(["other/f"]), [false, true]),
        (json!(["g"]), [false, false]),
        (Value::Null, [true, true]),
    ] {
        let (run, jobs) = run(task(json!({"fleets": named})));
        let request = Request::new(&run, &jobs[0]);
        let found = [&own, &imported].map(|fleet| check_named(&request, fleet).is_ok());
        assert_eq!(found, expected, "{named}");
    }
    let (run, jobs) = run(task(json!({})));
    let somewhere = [Location {
        backend: BackendType::Aws,
        region: None,
        zone: None,
    }];
    let with_volumes = Request {
        volumes: &somewhere,
        ..Request::new(&run, &jobs[0])
    };
    let found = [&own, &imported].map(|fleet| check_named(&with_volumes, fleet));
    assert_eq!(found, [Ok(()), Err(Skipped::OthersWithVolume)]);
}

#[test]
fn idle_instances_come_before_cheaper_new_ones() {
    let (dear, cheap) = (Sample::new("any", 5.0), Sample::new("any", 3.0));
    let spec = spec(json!({"nodes": "0..9"}));
    let empty = fleet(&spec, "empty", Vec::new());
    let with_dear = fleet(&spec, "dear", vec![dear.candidate(1)]);
    let with_cheap = fleet(&spec, "cheapest", vec![cheap.candidate(2)]);
    let (run, jobs) = run(task(json!({})));
    let request = Request::new(&run, &jobs[0]);
    let new = |price| vec![offer("aws", "new", price)];

    let fleets = [empty.clone(), with_dear, with_cheap];
    let found = eligible(&request, &fleets);
    assert_eq!(best(&found, &[new(0.1), new(0.1), new(0.1)]), Some(2));
    let fleets = [empty.clone(), empty];
    let found = eligible(&request, &fleets);
    assert_eq!(best(&found, &[new(2.0), new(1.0)]), Some(1));
    assert_eq!(best(&found, &[Vec::new(), Vec::new()]), Some(0));
    assert_eq!(best(&[], &[]), None);
}

#[test]
fn what_can_be_made_anew() {
    let sample = Sample::new("any", 1.0);
    let query = |configuration: Value, more: Value| {
        let spec = spec(configuration);
        let fleet = fleet(&spec, "f", vec![sample.candidate(1)]);
        let (run, jobs) = run(task(more));
        new_capacity(&Request::new(&run, &jobs[0]), &fleet)
            .map(|query| query.requirements.resources.cpu.count.to_string())
            .map_err(|error| error.to_string())
    };
    assert_eq!(
        query(json!({"nodes": "0..2", "resources": {"cpu": "..8"}}), json!({})),
        Ok("2..8".to_owned())
    );
    assert_eq!(
        query(json!({"nodes": "0..1"}), json!({})),
        Err("has 1 instances already, its `nodes.max`".to_owned())
    );
    assert_eq!(
        query(json!({"ssh_config": {"hosts": ["a"]}}), json!({})),
        Err("is an SSH fleet: it gets no new instances".to_owned())
    );
    assert!(query(json!({"nodes": "0..2"}), json!({"creation_policy": "reuse"})).is_err());
    assert!(query(json!({"nodes": "0..2"}), json!({"instances": ["a"]})).is_err());
    assert_eq!(
        query(json!({"nodes": "0..2", "resources": {"cpu": "..8"}}), json!({"resources": {"cpu": 16}})),
        Err("cannot get instances for this run: `resources.cpu` of the fleet (..8) contradicts that of the run (16)"
            .to_owned())
    );
}

#[test]
fn named_instances_are_of_one_fleet() {
    let (dear, cheap) = (Sample::new("cluster", 5.0), Sample::new("cluster", 3.0));
    let spec = spec(json!({"nodes": "0..9", "placement": "cluster"}));
    let busy = Candidate {
        status: InstanceStatus::Busy,
        busy_blocks: 1,
        ..cheap.candidate(2)
    };
    let fleets = [
        fleet(&spec, "busy", vec![busy]),
        fleet(&spec, "dear", vec![dear.candidate(1)]),
    ];
    let prices = |more: Value| {
        let (run, jobs) = run(task(more));
        let offers = targeted(&Request::new(&run, &jobs[0]), &fleets);
        offers.iter().map(|offer| offer.price).collect::<Vec<_>>()
    };
    assert_eq!(prices(json!({"instances": ["fleet-0"]})), [5.0]);
    assert_eq!(
        prices(json!({"instances": ["fleet-0"], "fleets": ["busy"]})),
        [3.0]
    );
    assert!(prices(json!({"instances": ["other"]})).is_empty());
    assert!(prices(json!({"instances": ["fleet-0"], "nodes": 2})).is_empty());
}
