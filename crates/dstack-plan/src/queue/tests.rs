use std::collections::HashMap;
use std::sync::Arc;

use dstack_model::backends::BackendType;
use dstack_model::fleets::FleetSpec;
use dstack_model::instances::InstanceStatus;
use dstack_model::offers::InstanceOfferWithAvailability as Offer;
use dstack_model::profiles::SpotPolicy;
use dstack_model::runs::{JobSpec, RunSpec};
use dstack_units::{InstanceId, Time};
use proptest::prelude::*;
use serde_json::{Value, json};
use uuid::Uuid;

use super::*;
use crate::fleets::{best, eligible, new_capacity};
use crate::matching::{Defaults, Machine, check};
use crate::offers::tests::offer;
use crate::placement::tests::{Sample, run};
use crate::placement::{AWAY, Candidate, HostRules};

/// What a queue is placed on.
#[derive(Debug)]
struct World {
    samples: Vec<(Sample, i64, i64)>,
    fleet: FleetSpec,
    runs: Vec<(RunSpec, Vec<JobSpec>)>,
    market: Vec<Offer>,
}

impl World {
    /// The instances in two fleets by turns.
    fn fleets(&self) -> Vec<Fleet<'_>> {
        let numbered: Vec<_> = (1u128..).zip(&self.samples).collect();
        let of_fleet = |at: u128| {
            let own = numbered.iter().filter(move |(num, _)| num % 2 == at);
            own.map(|(num, (sample, total, busy))| Candidate {
                total_blocks: Some(*total),
                busy_blocks: *busy,
                status: if *busy > 0 {
                    InstanceStatus::Busy
                } else {
                    InstanceStatus::Idle
                },
                ..sample.candidate(*num)
            })
        };
        (0..2)
            .map(|at| fleet(at, &self.fleet, of_fleet(at).collect()))
            .collect()
    }

    fn place(&self) -> Vec<Placement> {
        let fleets = self.fleets();
        let (mut placer, mut market) = (Placer::new(&fleets), Market(&self.market));
        let requests = self.runs.iter().map(|(run, jobs)| Request::new(run, &jobs[0]));
        requests
            .map(|request| placer.place(&request, &mut market))
            .collect()
    }
}

/// All that backends offer, known at once.
struct Market<'a>(&'a [Offer]);

impl Market<'_> {
    /// Backends answer only what satisfies the requirements.
    fn answer(&self, query: &Query) -> Vec<Offer> {
        let satisfies = |offer: &&Offer| {
            let machine = Machine::whole(&offer.instance.resources, offer.price);
            check(&query.requirements, machine, Defaults::Enforced).is_ok()
        };
        let answer: Vec<Offer> = self.0.iter().filter(satisfies).cloned().collect();
        query.select([answer.as_slice()], None)
    }
}

impl OfferSource for Market<'_> {
    fn offers(&mut self, query: &Query, master: Option<&JobProvisioningData>) -> Option<AvailableOffers> {
        Some(AvailableOffers::select(
            &self.answer(query),
            master,
            query.volumes(),
            25,
        ))
    }
}

/// Backends that have not answered yet.
struct Unknown;

impl OfferSource for Unknown {
    fn offers(&mut self, _: &Query, _: Option<&JobProvisioningData>) -> Option<AvailableOffers> {
        None
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
        proptest::sample::select(vec![1, 1, 1, 2, 3]),
    )
        .prop_map(|(cpu, gpu, max_price, spot, region, reservation, nodes)| {
            json!({
                "type": "task", "commands": ["x"], "nodes": nodes, "max_price": max_price.map(|price| f64::from(price) + 0.5),
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
            let fleet = json!({"configuration": {"type": "fleet", "nodes": nodes, "spot_policy": "auto", "placement": "cluster"},
                               "profile": {}});
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
        for place in world.place() {
            if let Placement::Instance(choice) = place {
                let (blocks, jobs) = given.entry(choice.instance_id).or_default();
                *blocks += i64::from(choice.offer.blocks);
                *jobs += 1;
                prop_assert!(!choice.whole || *jobs == 1, "two on a whole instance");
            }
        }
        for one in world.fleets().iter().flat_map(|fleet| &fleet.instances) {
            let (blocks, _) = given.get(&one.instance_id).copied().unwrap_or_default();
            prop_assert!(blocks + one.busy_blocks <= one.total_blocks.unwrap());
        }
    }

    /// Price, place, spot policy and reservation are those that the run asks for.
    #[test]
    fn never_against_the_runs_profile(world in world()) {
        for (place, (run, _)) in world.place().iter().zip(&world.runs) {
            let params = run.merged_profile().params;
            let got = match place {
                Placement::Pending | Placement::Away(_) | Placement::Impossible(_) => continue,
                Placement::New(new) => {
                    prop_assert_eq!(&new.reservation, &params.reservation);
                    &new.offers.best[0]
                }
                Placement::Instance(choice) => &choice.offer,
            };
            prop_assert!(params.max_price.is_none_or(|max| got.price <= max));
            prop_assert!(params.regions.is_none_or(|regions| regions.iter().any(|one| *one == *got.region)));
            let spot = params.spot_policy.and_then(SpotPolicy::requirement);
            prop_assert!(spot.is_none_or(|spot| got.instance.resources.spot == spot));
        }
    }

    #[test]
    fn fleets_do_not_outgrow_their_limit(world in world()) {
        let placed = world.place();
        for fleet in world.fleets() {
            let made = placed.iter().filter(|one| matches!(one, Placement::New(new) if new.fleet == fleet.id)).count();
            if let Some(max) = world.fleet.configuration.nodes.unwrap().max {
                let before = i64::try_from(fleet.instances.len()).unwrap();
                prop_assert!(before + i64::try_from(made).unwrap() <= max.max(before));
            }
        }
    }

    /// What a plan shows is what the first job gets.
    #[test]
    fn the_first_job_gets_the_fleet_that_its_plan_names(world in world()) {
        let fleets = world.fleets();
        let Some((run, jobs)) = world.runs.first() else { return Ok(()) };
        let request = Request::new(run, &jobs[0]);
        let planned = eligible(&request, &fleets);
        let new: Vec<Vec<Offer>> = planned
            .iter()
            .map(|one| new_capacity(&request, one.fleet).map_or_else(|_| vec![], |query| Market(&world.market).answer(&query)))
            .collect();
        let planned_fleet = best(&planned, &new).map(|at| (&planned[at], &new[at]));
        let placed = Placer::new(&fleets).place(&request, &mut Market(&world.market));
        let price = |offers: &[Offer]| {
            offers.iter().filter(|offer| offer.availability.is_available()).map(|offer| offer.price).next()
        };
        match (placed, planned_fleet) {
            (Placement::Instance(choice), Some((one, _))) => {
                let cheapest = one.instance_offers.iter().find(|offer| offer.availability.is_available()).unwrap();
                prop_assert_eq!(choice.offer.price.to_bits(), cheapest.price.to_bits());
                // Fleets that are alike: the plan looks at what new instances cost, where idle ones cost the same.
                let other = planned.iter().find(|other| other.fleet.id == choice.fleet_id).unwrap();
                prop_assert_eq!(other.has_capacity, one.has_capacity);
            }
            (Placement::New(new), Some((one, offers))) => {
                prop_assert_eq!(new.fleet, one.fleet.id);
                prop_assert_eq!(price(&new.offers.best), price(offers));
            }
            (Placement::Impossible(_), None) => {}
            (Placement::Impossible(_), Some((one, offers))) => {
                prop_assert!(one.instance_offers.iter().all(|offer| !offer.availability.is_available()));
                prop_assert_eq!(price(offers), None);
            }
            (placed, planned) => prop_assert!(false, "{placed:?} {planned:?}"),
        }
    }
}

fn fleet_spec(configuration: &Value) -> FleetSpec {
    serde_json::from_value(json!({"configuration": configuration, "profile": {}})).unwrap()
}

fn fleet<'a>(number: u128, spec: &'a FleetSpec, instances: Vec<Candidate<'a>>) -> Fleet<'a> {
    let id = Uuid::from_u128(1000 + number).into();
    let own = |one: Candidate<'a>| Candidate {
        fleet_id: id,
        fleet_spec: spec,
        ..one
    };
    Fleet {
        id,
        name: "fleet",
        project: Some("main"),
        own: true,
        spec,
        master: None,
        anchor_pending: false,
        instances: instances.into_iter().map(own).collect(),
    }
}

fn task(nodes: i64) -> (RunSpec, Vec<JobSpec>) {
    run(json!({"type": "task", "commands": ["x"], "nodes": nodes}))
}

#[test]
fn cheap_instances_first_then_new_ones() {
    let (dear, cheap) = (Sample::new("any", 3.0), Sample::new("any", 2.0));
    let spec = fleet_spec(&json!({"type": "fleet", "nodes": "0..3"}));
    let fleets = [fleet(0, &spec, vec![dear.candidate(1), cheap.candidate(2)])];
    let offers = [offer("aws", "new", 0.5)];
    let (run, jobs) = task(1);
    let request = Request::new(&run, &jobs[0]);
    let mut placer = Placer::new(&fleets);
    let mut place = || match placer.place(&request, &mut Market(&offers)) {
        Placement::Instance(choice) => choice.instance_id.to_string(),
        Placement::New(new) => new.offers.best[0].instance.name.clone(),
        Placement::Pending => "pending".to_owned(),
        Placement::Away(_) => "away".to_owned(),
        Placement::Impossible(reason) => reason.split(".\n").next().unwrap().to_owned(),
    };
    let id = |number| Uuid::from_u128(number).to_string();
    assert_eq!(
        [place(), place(), place(), place()],
        [
            id(2),
            id(1),
            "new".to_owned(),
            "Fleet is at capacity: fleet has 3 instances already, its `nodes.max`".to_owned()
        ]
    );
}

/// What names something of a container is a process, which ignores that, only where there is no other place.
#[test]
fn a_machine_without_containers_is_the_last_resort_of_what_names_one() {
    let (cheap, dear) = (Sample::new("any", 0.0), Sample::new("any", 2.0));
    let spec = fleet_spec(&json!({"type": "fleet", "nodes": "0..3"}));
    let processes = HostRules {
        containers: false,
        ..HostRules::default()
    };
    let bare = Candidate {
        rules: Some(&processes),
        ..cheap.candidate(1)
    };
    let [bare_id, other_id] = [1, 2].map(|number| InstanceId::from(Uuid::from_u128(number)));
    let fleets = [
        fleet(0, &spec, vec![bare]),
        fleet(1, &spec, vec![dear.candidate(2)]),
    ];
    for (more, expected) in [
        (json!({}), [bare_id, other_id]),
        (json!({"python": "3.12"}), [bare_id, other_id]),
        (json!({"image": "x"}), [other_id, bare_id]),
        (json!({"docker": true}), [other_id, bare_id]),
        (json!({"user": "u"}), [other_id, bare_id]),
        (json!({"privileged": true}), [other_id, bare_id]),
        (json!({"volumes": ["/a:/b"]}), [other_id, bare_id]),
    ] {
        let mut configuration = json!({"type": "task", "commands": ["x"]});
        let fields = configuration.as_object_mut().unwrap();
        fields.extend(more.as_object().unwrap().clone());
        let (run, jobs) = run(configuration);
        let request = Request::new(&run, &jobs[0]);
        let mut placer = Placer::new(&fleets);
        let mut take = || placer.take_instance(&request).unwrap().instance_id;
        assert_eq!([take(), take()], expected, "{more}");
        let eligible = eligible(&request, &fleets);
        let best = best(&eligible, &[]).unwrap();
        let first = if expected[0] == bare_id { 0 } else { 1 };
        assert_eq!(best, first, "the plan names the same fleet: {more}");
    }
}

/// One of a job that names nothing of the kind does not say where the other goes.
#[test]
fn jobs_that_name_a_container_and_others_are_not_alike() {
    let (cheap, dear) = (Sample::new("any", 0.0), Sample::new("any", 2.0));
    let spec = fleet_spec(&json!({"type": "fleet", "nodes": "0..3"}));
    let processes = HostRules {
        containers: false,
        ..HostRules::default()
    };
    let bare = Candidate {
        rules: Some(&processes),
        total_blocks: Some(2),
        ..cheap.candidate(1)
    };
    let fleets = [fleet(0, &spec, vec![bare, dear.candidate(2)])];
    let (plain, of_user) = (
        run(json!({"type": "task", "commands": ["x"]})),
        run(json!({"type": "task", "commands": ["x"], "user": "u"})),
    );
    let mut placer = Placer::new(&fleets);
    let mut take = |(run, jobs): &(RunSpec, Vec<JobSpec>)| {
        let choice = placer.take_instance(&Request::new(run, &jobs[0]));
        choice.unwrap().instance_id
    };
    let expected = [2, 1].map(|number| InstanceId::from(Uuid::from_u128(number)));
    assert_eq!([take(&of_user), take(&plain)], expected);
}

#[test]
fn a_job_without_a_place_is_told_why() {
    let sample = Sample::new("any", 1.0);
    let busy = Candidate {
        status: InstanceStatus::Busy,
        busy_blocks: 1,
        ..sample.candidate(1)
    };
    let spec = fleet_spec(&json!({"type": "fleet", "ssh_config": {"hosts": ["h"]}}));
    let (run, jobs) = task(1);
    let request = Request::new(&run, &jobs[0]);
    let fleets = [fleet(0, &spec, vec![busy; 5])];
    let refused = Placer::new(&fleets).place(&request, &mut Unknown);
    let Placement::Impossible(reason) = refused else {
        panic!("{refused:?}");
    };
    let text = "No matching fleet found. fleet-0 is busy; fleet-0 is busy; fleet-0 is busy; and 2 more. ";
    assert!(reason.starts_with(text), "{reason}");
}

#[test]
fn several_nodes_go_where_there_are_enough_instances() {
    let (dear, cheap) = (Sample::new("cluster", 3.0), Sample::new("cluster", 1.0));
    let spec = fleet_spec(&json!({"type": "fleet", "nodes": "0..4", "placement": "cluster"}));
    let fleets = [
        fleet(0, &spec, vec![cheap.candidate(1)]),
        fleet(1, &spec, vec![dear.candidate(2), dear.candidate(3)]),
    ];
    let (run, jobs) = task(2);
    let mut placer = Placer::new(&fleets);
    let mut place = |run_fleet, job: usize| {
        let request = Request {
            run_fleet,
            master: (job > 0).then_some(&dear.place),
            ..Request::new(&run, &jobs[job])
        };
        match placer.place(&request, &mut Unknown) {
            Placement::Instance(choice) => choice.instance_id,
            other => panic!("{other:?}"),
        }
    };
    let places = [place(None, 0), place(Some(fleets[1].id), 1)];
    assert_eq!(
        places,
        [Uuid::from_u128(2).into(), Uuid::from_u128(3).into()],
        "the cheaper fleet has one only"
    );
}

#[test]
fn an_instance_that_is_away_for_a_moment_is_waited_for_and_no_longer() {
    let sample = Sample::new("any", 1.0);
    let spec = fleet_spec(&json!({"type": "fleet", "nodes": 1}));
    let since = Time::from_millis(1_000_000);
    let away = Candidate {
        unreachable: true,
        unreachable_since: Some(since),
        ..sample.candidate(1)
    };
    let fleets = [fleet(0, &spec, vec![away])];
    let (run, jobs) = task(1);
    let request = Request::new(&run, &jobs[0]);
    let place = |now: Option<Time>| {
        let placer = Placer::new(&fleets);
        let mut placer = match now {
            Some(now) => placer.waiting_at(now),
            None => placer,
        };
        placer.place(&request, &mut Market(&[]))
    };
    assert_eq!(place(Some(since + AWAY / 2)), Placement::Away(since + AWAY));
    for now in [Some(since + AWAY), None] {
        assert!(matches!(place(now), Placement::Impossible(_)), "{now:?}");
    }
}

#[test]
fn what_backends_have_not_said_yet_is_waited_for() {
    let spec = fleet_spec(&json!({"type": "fleet", "nodes": "0.."}));
    let fleets = [fleet(0, &spec, vec![])];
    let (run, jobs) = task(1);
    let mut placer = Placer::new(&fleets);
    let placed = placer.place(&Request::new(&run, &jobs[0]), &mut Unknown);
    assert_eq!(placed, Placement::Pending);
}

/// The backend of the one fleet has answered with these offers, that of the other is late.
struct OneLate<'a>(&'a [Offer]);

impl OfferSource for OneLate<'_> {
    fn offers(&mut self, query: &Query, _: Option<&JobProvisioningData>) -> Option<AvailableOffers> {
        let offers = AvailableOffers::select(&query.select([self.0], None), None, &[], 25);
        let late = BackendType::Gcp;
        Some(offers.without(if query.asks(late) {
            &[BackendType::Gcp]
        } else {
            &[]
        }))
    }
}

#[test]
fn where_one_backend_is_late_jobs_get_what_others_offer_and_nobody_is_refused() {
    let of = |backend: &str, nodes: &str| {
        fleet_spec(&json!({"type": "fleet", "nodes": nodes, "backends": [backend]}))
    };
    let (late, prompt) = (of("gcp", "0.."), of("aws", "0..1"));
    let fleets = [fleet(0, &late, vec![]), fleet(1, &prompt, vec![])];
    let (run, jobs) = task(1);
    let request = Request::new(&run, &jobs[0]);
    let offers = [offer("aws", "new", 0.5)];
    let mut placer = Placer::new(&fleets);
    let Placement::New(new) = placer.place(&request, &mut OneLate(&offers)) else {
        panic!("the fleet of the backend that has answered gets an instance");
    };
    assert_eq!((new.fleet, new.unanswered), (fleets[1].id, None));
    // That fleet is full now.
    let second = placer.place(&request, &mut OneLate(&offers));
    assert_eq!(second, Placement::Pending);
    let none = Placer::new(&fleets).place(&request, &mut OneLate(&[]));
    assert_eq!(none, Placement::Pending);
    // Once all have answered, it is known that there is nothing.
    let all = Placer::new(&fleets).place(&request, &mut Market(&[]));
    assert!(matches!(all, Placement::Impossible(_)), "{all:?}");
}

#[test]
fn what_is_made_before_all_backends_have_answered_says_who_had_not() {
    let spec = fleet_spec(&json!({"type": "fleet", "nodes": "0.."}));
    let fleets = [fleet(0, &spec, vec![])];
    let (run, jobs) = task(1);
    let request = Request::new(&run, &jobs[0]);
    let offers = [offer("aws", "new", 0.5)];
    let Placement::New(new) = Placer::new(&fleets).place(&request, &mut OneLate(&offers)) else {
        panic!("an instance is made of what is known");
    };
    let unanswered = new.unanswered.unwrap();
    assert_eq!(unanswered.backends, [BackendType::Gcp]);
    assert_eq!(unanswered.query, new_capacity(&request, &fleets[0]).unwrap());
}

#[test]
fn a_cluster_gets_its_second_instance_when_it_is_known_where_the_first_is() {
    let spec = fleet_spec(&json!({"type": "fleet", "nodes": "0..", "placement": "cluster"}));
    let fleets = [fleet(0, &spec, vec![])];
    let (run, jobs) = task(1);
    let request = Request::new(&run, &jobs[0]);
    let offers = [offer("aws", "new", 0.5)];
    let mut placer = Placer::new(&fleets);
    let first = placer.place(&request, &mut Market(&offers));
    assert!(matches!(first, Placement::New(_)), "{first:?}");
    assert_eq!(placer.place(&request, &mut Market(&offers)), Placement::Pending);
}
