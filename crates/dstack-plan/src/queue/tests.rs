use std::collections::HashMap;
use std::sync::Arc;

use dstack_model::fleets::FleetSpec;
use dstack_model::instances::InstanceStatus;
use dstack_model::profiles::SpotPolicy;
use dstack_model::runs::{JobSpec, RunSpec};
use proptest::prelude::*;
use serde_json::{Value, json};
use uuid::Uuid;

use super::*;
use crate::offers::tests::offer;
use crate::placement::tests::{Sample, run};

/// What a queue is placed on.
#[derive(Debug)]
struct World {
    samples: Vec<(Sample, i64, i64)>,
    fleet: FleetSpec,
    runs: Vec<(RunSpec, Vec<JobSpec>)>,
    market: Vec<Offer>,
}

impl World {
    fn fleets(&self) -> Vec<Fleet<'_>> {
        let id = Uuid::from_u128(1000).into();
        let numbered = (1u128..).zip(&self.samples);
        let instances = numbered
            .map(|(num, (sample, total, busy))| Candidate {
                fleet_id: id,
                fleet_spec: &self.fleet,
                total_blocks: Some(*total),
                busy_blocks: *busy,
                status: if *busy > 0 {
                    InstanceStatus::Busy
                } else {
                    InstanceStatus::Idle
                },
                ..sample.candidate(num)
            })
            .collect();
        vec![Fleet {
            id,
            name: "fleet",
            project: Some("main"),
            own: true,
            spec: &self.fleet,
            master: None,
            instances,
        }]
    }

    fn queue(&self) -> Vec<Waiting<'_>> {
        let numbered = (1u128..).zip(&self.runs);
        numbered
            .map(|(num, (run, jobs))| Waiting {
                id: Uuid::from_u128(num).into(),
                request: Request::new(run, &jobs[0]),
            })
            .collect()
    }

    fn place(&self) -> Vec<(JobId, Place)> {
        place_all(&self.queue(), &self.fleets(), &self.market)
    }
}

fn job() -> impl Strategy<Value = Value> {
    (
        1i64..10,
        proptest::option::of(0i64..3),
        proptest::option::of(0u8..6),
        proptest::sample::select(vec!["spot", "on-demand", "auto"]),
        proptest::option::of(proptest::sample::select(vec!["us-east-1", "eu"])),
        proptest::option::of(proptest::sample::select(vec!["r1"])),
    )
        .prop_map(|(cpu, gpu, max_price, spot, region, reservation)| {
            json!({
                "type": "task", "commands": ["x"], "max_price": max_price.map(|price| f64::from(price) + 0.5),
                "spot_policy": spot, "regions": region.map(|region| vec![region]), "reservation": reservation,
                "resources": {"cpu": format!("{cpu}.."), "gpu": gpu.map_or_else(|| json!("0.."), |gpu| json!(gpu))},
            })
        })
}

fn world() -> impl Strategy<Value = World> {
    let instance = (1u8..6, 1i64..3, 0i64..3, any::<bool>());
    let market = proptest::collection::vec(
        (
            1u8..6,
            any::<bool>(),
            proptest::sample::select(vec!["us-east-1", "eu"]),
        ),
        0..4,
    );
    (
        proptest::collection::vec(instance, 0..6),
        proptest::option::of(0i64..8),
        proptest::collection::vec(job(), 0..12),
        market,
    )
        .prop_map(|(instances, max, jobs, market)| {
            let samples = instances
                .into_iter()
                .map(|(price, total, busy, spot)| {
                    let mut sample = Sample::new("any", f64::from(price));
                    Arc::make_mut(&mut sample.offer.instance).resources.spot = spot;
                    (sample, total, busy.min(total))
                })
                .collect();
            let mut market: Vec<Offer> = market
                .into_iter()
                .map(|(price, spot, region)| {
                    let mut one = offer("aws", "new", f64::from(price));
                    Arc::make_mut(&mut one.instance).resources.spot = spot;
                    one.region = region.into();
                    one
                })
                .collect();
            market.sort_by(|a, b| a.price.total_cmp(&b.price));
            let nodes = json!({"min": 0, "max": max.map(|max| max + 6)});
            let fleet = json!({"configuration": {"type": "fleet", "nodes": nodes, "spot_policy": "auto"}, "profile": {}});
            World {
                samples,
                fleet: serde_json::from_value(fleet).unwrap(),
                runs: jobs.into_iter().map(run).collect(),
                market,
            }
        })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn the_same_each_time(world in world()) {
        prop_assert_eq!(world.place(), world.place());
    }

    /// No instance gives more than it has, and what is given whole is given once.
    #[test]
    fn never_more_than_an_instance_has(world in world()) {
        let mut given: HashMap<InstanceId, (i64, i64)> = HashMap::new();
        for (_, place) in world.place() {
            if let Place::Instance { id, share } = place {
                let (blocks, jobs) = given.entry(id).or_default();
                *blocks += share.blocks;
                *jobs += 1;
                prop_assert!(share.blocks < share.total || *jobs == 1, "two on a whole instance");
            }
        }
        for fleet in world.fleets() {
            for one in fleet.instances {
                let (blocks, _) = given.get(&one.instance_id).copied().unwrap_or_default();
                prop_assert!(blocks + one.busy_blocks <= one.total_blocks.unwrap());
            }
        }
    }

    /// Price, place, spot policy and reservation are those that the run asks for.
    #[test]
    fn never_against_the_runs_profile(world in world()) {
        let fleets = world.fleets();
        for ((_, place), (run, _)) in world.place().iter().zip(&world.runs) {
            let params = run.merged_profile().params;
            let (got, region) = match place {
                Place::Nowhere => continue,
                Place::New { offer, .. } => {
                    prop_assert!(params.reservation.is_none() || world.fleet.configuration.reservation.is_none());
                    (&world.market[*offer], &*world.market[*offer].region)
                }
                Place::Instance { id, .. } => {
                    let one = fleets[0].instances.iter().find(|one| one.instance_id == *id).unwrap();
                    (one.offer.unwrap(), "us-east-1")
                }
            };
            prop_assert!(params.max_price.is_none_or(|max| got.price <= max));
            prop_assert!(params.regions.is_none_or(|regions| regions.iter().any(|one| one == region)));
            let spot = params.spot_policy.and_then(SpotPolicy::requirement);
            prop_assert!(spot.is_none_or(|spot| got.instance.resources.spot == spot));
        }
    }

    #[test]
    fn fleets_do_not_outgrow_their_limit(world in world()) {
        let fleets = world.fleets();
        let new = world.place().iter().filter(|(_, place)| matches!(place, Place::New { .. })).count();
        if let Some(max) = world.fleet.configuration.nodes.unwrap().max {
            let all = i64::try_from(fleets[0].instances.len() + new).unwrap();
            prop_assert!(all <= max.max(i64::try_from(fleets[0].instances.len()).unwrap()));
        }
    }
}

#[test]
fn cheap_instances_first_then_new_ones() {
    let sample = |price| (Sample::new("any", price), 1, 0);
    let fleet = json!({"configuration": {"type": "fleet", "nodes": "0..3"}, "profile": {}});
    let world = World {
        samples: vec![sample(3.0), sample(2.0)],
        fleet: serde_json::from_value(fleet).unwrap(),
        runs: (0..4)
            .map(|_| run(json!({"type": "task", "commands": ["x"]})))
            .collect(),
        market: vec![offer("aws", "new", 0.5)],
    };
    let places: Vec<Place> = world.place().into_iter().map(|(_, place)| place).collect();
    let instance = |num: u128| Place::Instance {
        id: Uuid::from_u128(num).into(),
        share: Share {
            blocks: 1,
            total: 1,
            idle: true,
        },
    };
    let new = Place::New {
        fleet: Uuid::from_u128(1000).into(),
        offer: 0,
    };
    assert_eq!(places, [instance(2), instance(1), new, Place::Nowhere]);
}
