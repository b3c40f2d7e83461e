#![allow(clippy::needless_pass_by_value)] // `json!` values

use std::sync::Arc;

use dstack_model::instances::{InstanceAvailability, InstanceRuntime};
use serde_json::{Value, json};
use uuid::Uuid;

use super::*;
use crate::jobs::{JobContext, Target, job_specs};

/// A fleet of one instance for tests.
#[derive(Debug)]
pub(crate) struct Sample {
    pub(crate) spec: FleetSpec,
    pub(crate) offer: InstanceOfferWithAvailability,
    pub(crate) place: JobProvisioningData,
}

impl Sample {
    pub(crate) fn new(placement: &str, price: f64) -> Self {
        let resources = json!({"cpus": 8, "memory_mib": 32768, "gpus": [{"name": "A100", "memory_mib": 40960}, {"name": "A100", "memory_mib": 40960}],
                               "spot": false});
        let instance = json!({"name": "big", "resources": resources});
        Self {
            spec: serde_json::from_value(
                json!({"configuration": {"type": "fleet", "nodes": 1, "placement": placement}, "profile": {}}),
            )
            .unwrap(),
            offer: serde_json::from_value(
                json!({"backend": "aws", "instance": instance, "region": "us-east-1", "price": price, "availability": "available"}),
            )
            .unwrap(),
            place: serde_json::from_value(
                json!({"backend": "aws", "instance_type": instance, "instance_id": "i", "region": "us-east-1",
                       "hostname": "1.2.3.4", "availability_zone": "us-east-1a", "price": price, "username": "u", "dockerized": true}),
            )
            .unwrap(),
        }
    }

    pub(crate) fn candidate(&self, num: u128) -> Candidate<'_> {
        Candidate {
            fleet_id: Uuid::from_u128(100 + num).into(),
            fleet_name: "fleet",
            fleet_owner: FleetOwner::OWN,
            fleet_spec: &self.spec,
            local: false,
            rules: None,
            instance_id: Uuid::from_u128(num).into(),
            instance_name: "fleet-0",
            instance_num: 0,
            status: InstanceStatus::Idle,
            unreachable: false,
            unreachable_since: None,
            leaving: false,
            health: HealthStatus::Healthy,
            total_blocks: Some(1),
            busy_blocks: 0,
            offer: Some(&self.offer),
            provisioning: Some(&self.place),
        }
    }
}

pub(crate) fn run(configuration: Value) -> (RunSpec, Vec<JobSpec>) {
    let run: RunSpec = serde_json::from_value(json!({"configuration": configuration})).unwrap();
    let server = crate::ServerDefaults::default();
    let context = JobContext {
        server: &server,
        images: &std::collections::BTreeMap::new(),
        target: Target::Container,
    };
    let jobs = job_specs(&run, 0, None, &context).unwrap();
    (run, jobs)
}

fn task(more: Value) -> Value {
    let mut task = json!({"type": "task", "commands": ["x"]});
    task.as_object_mut()
        .unwrap()
        .extend(more.as_object().unwrap().clone());
    task
}

fn verdict(configuration: Value, candidate: &Candidate<'_>) -> String {
    let (run, jobs) = run(configuration);
    match Wants::new(Request::new(&run, &jobs[0])).share_of(candidate) {
        Ok(share) => format!(
            "{}/{} {}",
            share.blocks,
            share.total,
            if share.idle { "idle" } else { "busy" }
        ),
        Err(unfit) => unfit.to_string(),
    }
}

#[test]
fn the_runs_profile_decides() {
    let sample = Sample::new("any", 1.0);
    let candidate = sample.candidate(1);
    for (more, expected) in [
        (json!({}), "1/1 idle"),
        (json!({"backends": ["gcp"]}), "is of another backend (aws)"),
        (json!({"regions": ["US-EAST-1"]}), "1/1 idle"),
        (json!({"regions": ["eu"]}), "is in another region (us-east-1)"),
        (
            json!({"instance_types": ["small"]}),
            "is of another instance type (big)",
        ),
        (
            json!({"availability_zones": ["us-east-1b"]}),
            "is in another zone (us-east-1a)",
        ),
        (json!({"fleets": ["other"]}), "is not in a fleet of `fleets`"),
        (json!({"instances": ["fleet-1"]}), "is not among `instances`"),
        (json!({"instances": [{"hostname": "1.2.3.4"}]}), "1/1 idle"),
        (
            json!({"instances": [{"fleet": "fleet", "instance": 0}]}),
            "1/1 idle",
        ),
        (json!({"nodes": 2}), "is not in a cluster fleet"),
        (json!({"max_price": 0.5}), "costs $1/h, more than max_price $0.5"),
        (json!({"spot_policy": "spot"}), "is not a spot instance"),
        (json!({"resources": {"gpu": "H100"}}), "has A100, wanted H100"),
    ] {
        assert_eq!(verdict(task(more.clone()), &candidate), expected, "{more}");
    }
}

#[test]
fn the_state_of_the_instance_decides() {
    let sample = Sample::new("any", 1.0);
    let fine = sample.candidate(1);
    let cases = [
        (
            Candidate {
                unreachable: true,
                ..fine
            },
            "is unreachable",
        ),
        (
            Candidate {
                leaving: true,
                ..fine
            },
            "is about to be taken away by its cloud",
        ),
        (
            Candidate {
                health: HealthStatus::Failure,
                ..fine
            },
            "has failed hardware",
        ),
        (
            Candidate {
                total_blocks: None,
                ..fine
            },
            "is still being set up",
        ),
        (
            Candidate {
                status: InstanceStatus::Terminating,
                ..fine
            },
            "is being terminated",
        ),
        (
            Candidate {
                status: InstanceStatus::Busy,
                busy_blocks: 1,
                ..fine
            },
            "1/1 busy",
        ),
        (
            Candidate {
                status: InstanceStatus::Provisioning,
                ..fine
            },
            "1/1 busy",
        ),
    ];
    for (candidate, expected) in cases {
        assert_eq!(verdict(task(json!({})), &candidate), expected);
    }
}

#[test]
fn the_smallest_share_is_taken() {
    let sample = Sample::new("cluster", 1.0);
    let divided = Candidate {
        total_blocks: Some(2),
        busy_blocks: 1,
        status: InstanceStatus::Busy,
        ..sample.candidate(1)
    };
    assert_eq!(
        verdict(task(json!({"resources": {"gpu": 1}})), &divided),
        "1/2 idle"
    );
    assert_eq!(
        verdict(task(json!({"resources": {"gpu": 2}})), &divided),
        "2/2 busy"
    );
    assert_eq!(
        verdict(task(json!({"nodes": 2})), &divided),
        "is shared with other jobs"
    );
    let free = Candidate {
        busy_blocks: 0,
        ..divided
    };
    assert_eq!(verdict(task(json!({"nodes": 2})), &free), "2/2 idle");
    let share = Share {
        blocks: 1,
        total: 2,
        idle: true,
    };
    let offer = share.offer(&divided).unwrap();
    let resources = &offer.instance.resources;
    assert_eq!(
        (resources.cpus, resources.memory_mib, resources.gpus.len()),
        (4, 16384, 1)
    );
    assert_eq!((offer.price, offer.blocks, offer.total_blocks), (1.0, 1, 2));
    assert_eq!(offer.availability, InstanceAvailability::Idle);
}

/// It ends with the job that it was made for, and is idle for a moment before.
#[test]
fn a_container_of_a_cloud_is_nobody_elses() {
    let mut sample = Sample::new("any", 1.0);
    assert_eq!(verdict(task(json!({})), &sample.candidate(1)), "1/1 idle");
    sample.offer.instance_runtime = InstanceRuntime::Runner;
    assert_eq!(verdict(task(json!({})), &sample.candidate(1)), "1/1 busy");
}

#[test]
fn a_share_of_the_servers_own_machine_has_what_was_asked_for() {
    let sample = Sample::new("any", 0.0);
    let local = Candidate {
        local: true,
        total_blocks: Some(8),
        ..sample.candidate(1)
    };
    // A block is one CPU and 4 GB; two CPUs and 8 GB are asked for where nothing is said.
    assert_eq!(verdict(task(json!({})), &local), "2/8 idle");
    let written = json!({"resources": {"cpu": "2..", "memory": "8GB.."}});
    assert_eq!(verdict(task(written), &local), "2/8 idle");
    let one = json!({"resources": {"cpu": "1..", "memory": "4GB.."}});
    assert_eq!(verdict(task(one), &local), "1/8 idle");
    let mut small = Sample::new("any", 0.0);
    Arc::make_mut(&mut small.offer.instance).resources.memory_mib = 4096;
    let small = Candidate {
        offer: Some(&small.offer),
        ..local
    };
    // What the machine does not have at all is not asked of its share; what it has is.
    assert_eq!(verdict(task(json!({})), &small), "2/8 idle");
    let one_free = Candidate {
        busy_blocks: 7,
        status: InstanceStatus::Busy,
        ..local
    };
    let (run, jobs) = run(task(json!({})));
    let wants = Wants::new(Request::new(&run, &jobs[0]));
    let missing = wants.nearest_free_share(&one_free, |_| 1.0).unwrap();
    assert_eq!(missing.len(), 2, "CPUs and memory: {missing:?}");
}

#[test]
fn volumes_and_the_first_node_bind() {
    let sample = Sample::new("cluster", 1.0);
    let candidate = sample.candidate(1);
    let (run, jobs) = run(task(json!({"nodes": 2})));
    let mut elsewhere = sample.place.clone();
    elsewhere.region = "eu".to_owned();
    let at = |zone: Option<&str>| Location {
        backend: BackendType::Aws,
        region: Some("us-east-1".to_owned()),
        zone: zone.map(str::to_owned),
    };
    let base = Request::new(&run, &jobs[0]);
    let verdict = |request: Request<'_>| Wants::new(request).share_of(&candidate).map(|_| ());
    assert_eq!(verdict(base), Ok(()));
    assert_eq!(
        verdict(Request {
            master: Some(&elsewhere),
            ..base
        }),
        Err(Unfit::NotWithMaster)
    );
    // An instance in a zone needs a volume of exactly that zone.
    for (zone, expected) in [
        (Some("us-east-1a"), Ok(())),
        (Some("us-east-1b"), Err(Unfit::NotWithVolume)),
        (None, Err(Unfit::NotWithVolume)),
    ] {
        assert_eq!(
            verdict(Request {
                volumes: &[at(zone)],
                ..base
            }),
            expected,
            "{zone:?}"
        );
    }
    let imported = Candidate {
        fleet_owner: FleetOwner {
            project: Some("other"),
            own: false,
        },
        ..candidate
    };
    let here = [at(Some("us-east-1a"))];
    for (volumes, expected) in [(&here[..], Err(Unfit::OthersWithVolume)), (&[], Ok(()))] {
        let wants = Wants::new(Request { volumes, ..base });
        assert_eq!(wants.share_of(&imported).map(|_| ()), expected);
    }
    assert_eq!(
        verdict(Request {
            multinode_backends: Some(&[BackendType::Gcp]),
            ..base
        }),
        Err(Unfit::NoClusters(BackendType::Aws))
    );
}

#[test]
fn offers_are_listed_by_price_busy_ones_too() {
    let (dear, cheap) = (Sample::new("any", 2.0), Sample::new("any", 1.0));
    let busy = Candidate {
        status: InstanceStatus::Busy,
        busy_blocks: 1,
        ..cheap.candidate(1)
    };
    let (run, jobs) = run(task(json!({})));
    let request = Request::new(&run, &jobs[0]);
    let offers: Vec<f64> = offers(&Wants::new(request), &[dear.candidate(2), busy])
        .iter()
        .map(|offer| offer.price)
        .collect();
    assert_eq!(offers, [1.0, 2.0]);
}
