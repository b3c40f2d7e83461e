use dstack_model::explanations::{OfferCheck, RefusedOffers};
use dstack_model::instances::InstanceAvailability;
use serde_json::{Value, json};

use super::*;
use crate::fleets::new_capacity_outside_fleets;
use crate::matching::{Defaults, Machine, mismatches};
use crate::offers::tests::offer;
use crate::placement::tests::{Sample, run};

/// A fleet that may get more instances.
fn growing() -> Value {
    json!({"configuration": {"type": "fleet", "nodes": {"min": 0, "max": 9}, "spot_policy": "auto"}, "profile": {}})
}

fn explained(more: &Value, market: &[Offer]) -> JobExplanation {
    explained_in(&growing(), |_| (), more, market)
}

/// In a fleet of one instance of a sample's size, which may be changed before.
fn explained_in(
    fleet: &Value,
    change: impl FnOnce(&mut Candidate<'_>),
    more: &Value,
    market: &[Offer],
) -> JobExplanation {
    let mut task = json!({"type": "task", "commands": ["x"]});
    task.as_object_mut()
        .unwrap()
        .extend(more.as_object().unwrap().clone());
    let (run, jobs) = run(task);
    let request = Request::new(&run, &jobs[0]);
    let sample = Sample::new("any", 1.0);
    let spec = &serde_json::from_value(fleet.clone()).unwrap();
    let mut candidate = sample.candidate(1);
    candidate.fleet_spec = spec;
    change(&mut candidate);
    let fleets = [Fleet {
        id: sample.candidate(1).fleet_id,
        name: "fleet",
        project: Some("main"),
        own: true,
        spec,
        master: None,
        anchor_pending: false,
        instances: vec![candidate],
    }];
    let query = new_capacity_outside_fleets(&request).unwrap();
    let decided = Decided {
        fleet: None,
        fits: false,
    };
    job(&request, &fleets, &query, market, decided)
}

fn changes(more: &Value, market: &[Offer]) -> Vec<String> {
    texts_of(&explained(more, market).changes)
}

fn texts_of(sets: &[ChangeSet]) -> Vec<String> {
    sets.iter()
        .map(|set| {
            let fields = set.fields.iter().map(|change| {
                format!(
                    "{} {} -> {}",
                    change.field,
                    change.from.clone().unwrap_or_default(),
                    change.to
                )
            });
            format!("{}: {}", fields.collect::<Vec<_>>().join(" & "), set.gives)
        })
        .collect()
}

#[test]
fn the_smallest_change_is_found() {
    let market = [offer("aws", "m5.large", 0.1), offer("aws", "m5.xlarge", 0.2)];
    for (more, expected) in [
        (
            json!({"resources": {"memory": "64GB.."}}),
            vec!["resources.memory 64GB.. -> 32GB..: aws m5.large in us-east-1"],
        ),
        (
            json!({"max_price": 0.05}),
            vec!["max_price 0.05 -> 0.1: aws m5.large in us-east-1"],
        ),
        (
            json!({"regions": ["eu"]}),
            vec!["regions eu -> eu, us-east-1: aws m5.large in us-east-1"],
        ),
        (
            json!({"resources": {"gpu": "H100"}}),
            vec![
                "resources.gpu H100:1.. -> 0: aws m5.large in us-east-1",
                "resources.gpu.name H100 -> H100, A100: instance fleet-0",
            ],
        ),
        (
            json!({"backends": ["gcp"], "spot_policy": "spot"}),
            vec!["spot_policy spot -> auto & backends gcp -> gcp, aws: aws m5.large in us-east-1"],
        ),
    ] {
        let found = changes(&more, &market);
        for expected in &expected {
            assert!(
                found.iter().any(|one| one == expected),
                "{more}: {found:?} lacks {expected}"
            );
        }
    }
}

#[test]
fn every_refusal_has_its_reasons() {
    let dear = offer("aws", "dear", 9.0);
    let fine = offer("aws", "fine", 0.1);
    let full = json!({"configuration": {"type": "fleet", "nodes": 1}, "profile": {}});
    let wanted = json!({"max_price": 1, "resources": {"cpu": 16, "gpu": 1}});
    let explanation = explained_in(&full, |_| (), &wanted, &[dear, fine]);
    let reasons: Vec<usize> = explanation
        .refused_offers
        .iter()
        .map(|one| one.reasons.len())
        .collect();
    assert_eq!(reasons, [2, 3], "nearest first");
    assert_eq!(explanation.total_refused_offers, 2);
    let instance = &explanation.instances[0];
    assert!(!instance.available);
    assert_eq!(
        instance.reasons,
        ["has 8 CPUs, wanted 16", "has 2 GPUs, wanted 1"]
    );
    assert!(explanation.fleets[0].reason.is_none());
    assert_eq!(
        explanation.fleets[0].no_new_instances.as_deref(),
        Some("has 1 instances already, its `nodes.max`")
    );
}

#[test]
fn offers_are_counted_at_the_first_check_that_they_do_not_pass() {
    let elsewhere = offer("gcp", "also too dear", 9.0);
    let dear = offer("aws", "dear", 9.0);
    let (fine, finer) = (offer("aws", "fine", 0.2), offer("aws", "finer", 0.1));
    let mut gone = offer("aws", "gone", 0.05);
    gone.availability = InstanceAvailability::NotAvailable;
    let wanted = json!({"max_price": 1, "backends": ["aws"]});
    let found = explained(&wanted, &[elsewhere, dear, fine, finer, gone]).backends;
    let refused = |check, offers| RefusedOffers { check, offers };
    let [aws, gcp] = &found[..] else {
        panic!("{found:?}");
    };
    assert_eq!((aws.total, aws.fit, aws.cheapest), (4, 2, Some(0.1)));
    let by_price_or_gone = [
        refused(OfferCheck::Price, 1),
        refused(OfferCheck::Availability, 1),
    ];
    assert_eq!(aws.refused, by_price_or_gone);
    assert_eq!((gcp.total, gcp.fit, gcp.cheapest), (1, 0, None));
    assert_eq!(gcp.refused, [refused(OfferCheck::Place, 1)]);
}

#[test]
fn requirements_are_loosened_but_for_the_disk() {
    let (_, jobs) = run(
        json!({"type": "task", "commands": ["x"], "resources": {"cpu": 64, "gpu": "H100:8", "disk": "1TB"}}),
    );
    let loose = loosened(&jobs[0].requirements);
    let machine = Sample::new("any", 1.0).offer.instance.resources.clone();
    let found: Vec<String> = mismatches(&loose, Machine::whole(&machine, 99.0), Defaults::Enforced)
        .map(|mismatch| mismatch.to_string())
        .collect();
    assert_eq!(found, ["has 100GB of disk, wanted 1024GB"]);
}

#[test]
fn two_places_need_two_changes() {
    let market = [offer("aws", "m5.large", 0.1)];
    let found = changes(&json!({"backends": ["gcp"], "regions": ["eu"]}), &market);
    let expected = "backends gcp -> gcp, aws & regions eu -> eu, us-east-1: ";
    assert!(found.iter().any(|text| text.starts_with(expected)), "{found:?}");
}

#[test]
fn what_no_fleet_would_get_is_not_advised() {
    let market = [offer("aws", "m5.large", 0.1)];
    let wanted = json!({"max_price": 0.05});
    let of = |fleet: &Value| {
        let found = texts_of(&explained_in(fleet, |_| (), &wanted, &market).changes);
        found.iter().any(|text| text.contains("m5.large"))
    };
    assert!(of(&growing()));
    for fleet in [
        json!({"type": "fleet", "nodes": 1}),
        json!({"type": "fleet", "ssh_config": {"hosts": ["a"]}}),
        json!({"type": "fleet", "nodes": {"min": 0, "max": 9}, "backends": ["gcp"]}),
        json!({"type": "fleet", "nodes": {"min": 0, "max": 9}, "resources": {"cpu": "512.."}}),
    ] {
        let fleet = json!({"configuration": fleet, "profile": {}});
        assert!(!of(&fleet), "{fleet}");
    }
}

/// Follows advice as a person would: writes it into the configuration.
fn follow(configuration: &mut Value, set: &ChangeSet) {
    for change in &set.fields {
        let (path, key) = change.field.rsplit_once('.').unwrap_or(("", &change.field));
        let mut at = &mut *configuration;
        for part in path.split('.').filter(|part| !part.is_empty()) {
            at = at
                .as_object_mut()
                .unwrap()
                .entry(part)
                .or_insert_with(|| json!({}));
            if at.is_string() {
                // A short form, of which the count is a part.
                *at = json!({"count": at.take()});
            }
        }
        let fields = at.as_object_mut().unwrap();
        match change.to.as_str() {
            "unset" => fields.remove(key),
            list if list.contains(", ") => {
                fields.insert(key.to_owned(), list.split(", ").collect::<Vec<_>>().into())
            }
            value => fields.insert(key.to_owned(), value.into()),
        };
    }
}

/// Advice that is written into the configuration lets the planner that gave it place the job.
#[test]
fn advice_that_is_followed_places_the_job() {
    let cases = [
        json!({"resources": {"disk": "500GB..", "gpu": {"count": 1}}}),
        json!({"resources": {"gpu": {"name": ["H100"], "count": 8}, "disk": "100GB.."}}),
        json!({"resources": {"gpu": "0", "memory": "64GB..128GB"}}),
        json!({"resources": {"memory": "1GB..2GB", "cpu": {"count": "1..2"}, "gpu": "0.."}}),
        json!({"resources": {"gpu": {"memory": "80GB", "count": 2}, "cpu": {"count": "32.."}}}),
        json!({"resources": {"gpu": {"count": "1..", "total_memory": "500GB.."}}}),
        json!({"backends": ["gcp"], "regions": ["eu"], "instance_types": ["tiny"], "max_price": 0.01}),
        json!({"availability_zones": ["us-east-1b"], "spot_policy": "spot"}),
        json!({"resources": {"cpu": {"count": "6.."}, "gpu": "0.."}}),
    ];
    let odd = |candidate: &mut Candidate<'_>, offer: &'static mut Offer| {
        // As machines are: no whole gigabytes, a part of it taken.
        let resources = &mut std::sync::Arc::make_mut(&mut offer.instance).resources;
        (resources.memory_mib, resources.disk.size_mib) = (24_105, 71_762);
        (candidate.total_blocks, candidate.busy_blocks) = (Some(2), 1);
        candidate.status = dstack_model::instances::InstanceStatus::Busy;
        candidate.offer = Some(offer);
    };
    for (case, local) in cases.iter().flat_map(|case| [(case, true), (case, false)]) {
        let place = |more: &Value| {
            let machine = |candidate: &mut Candidate<'_>| {
                let offer: &'static mut Offer = Box::leak(Box::new(Sample::new("any", 1.23456).offer));
                offer.price = 1.234_56;
                odd(candidate, offer);
                candidate.local = local;
            };
            explained_in(&growing(), machine, more, &[])
        };
        let explanation = place(case);
        let instance = &explanation.instances[0];
        assert!(!instance.available, "{case}");
        assert!(!explanation.changes.is_empty(), "{case}: {instance:?}");
        for set in &explanation.changes {
            let mut changed = case.clone();
            follow(&mut changed, set);
            let verdict = &place(&changed).instances[0];
            assert!(verdict.available, "{case} with {set:?}: {verdict:?}");
            for size in set.fields.iter().filter(|change| change.to.contains("GB")) {
                assert!(!size.to.contains('.') || size.to.contains(".."), "{size:?}");
            }
        }
    }
}

/// Advice that gives an offer lets the fleet get it: by the function that scheduling asks.
#[test]
fn advice_that_is_followed_gets_the_offer() {
    let market = [
        offer("aws", "m5.large", 0.1),
        offer("aws", "m5.xlarge", 0.2),
        offer("gcp", "n2", 0.3),
    ];
    let of_fleet = |more: Value| {
        let mut fleet = growing();
        let fields = fleet["configuration"].as_object_mut().unwrap();
        fields.extend(more.as_object().unwrap().clone());
        fleet
    };
    // With the advice that is expected for each: none where nothing that an offer is like stands in the way.
    let cases = [
        (of_fleet(json!({})), json!({"max_price": 0.05}), true),
        (
            of_fleet(json!({})),
            json!({"backends": ["gcp"], "regions": ["eu"]}),
            true,
        ),
        (
            of_fleet(json!({})),
            json!({"resources": {"memory": "64GB.."}}),
            true,
        ),
        (
            of_fleet(json!({"spot_policy": "on-demand"})),
            json!({"spot_policy": "spot"}),
            true,
        ),
        (
            of_fleet(json!({"resources": {"cpu": "..8"}})),
            json!({"resources": {"cpu": "16.."}}),
            true,
        ),
        (
            of_fleet(json!({"reservation": "r2"})),
            json!({"reservation": "r1", "max_price": 0.05}),
            false,
        ),
        (
            of_fleet(json!({"reservation": "r2", "spot_policy": "on-demand"})),
            json!({"reservation": "r1", "spot_policy": "spot"}),
            false,
        ),
    ];
    for (fleet, case, is_advised) in cases {
        let explanation = explained_in(&fleet, |_| (), &case, &market);
        let gives_offer = |set: &&ChangeSet| !set.gives.starts_with("instance ");
        let advised: Vec<&ChangeSet> = explanation.changes.iter().filter(gives_offer).collect();
        assert_eq!(!advised.is_empty(), is_advised, "{fleet} {case}: {advised:?}");
        for set in advised {
            let mut changed = case.clone();
            follow(&mut changed, set);
            assert!(
                gets_offer(&fleet, &changed, &market),
                "{fleet} {case} with {set:?}"
            );
        }
    }
}

/// Whether the fleet may get one of the offers for the run.
fn gets_offer(fleet: &Value, configuration: &Value, market: &[Offer]) -> bool {
    let mut task = json!({"type": "task", "commands": ["x"]});
    let fields = task.as_object_mut().unwrap();
    fields.extend(configuration.as_object().unwrap().clone());
    let (run, jobs) = run(task);
    let request = Request::new(&run, &jobs[0]);
    let spec = &serde_json::from_value(fleet.clone()).unwrap();
    let sample = Sample::new("any", 1.0);
    let fleet = Fleet {
        id: sample.candidate(1).fleet_id,
        name: "fleet",
        project: Some("main"),
        own: true,
        spec,
        master: None,
        anchor_pending: false,
        instances: Vec::new(),
    };
    let query = new_capacity(&request, &fleet);
    query.is_ok_and(|query| {
        market.iter().any(|offer| {
            let machine = Machine::whole(&offer.instance.resources, offer.price);
            query.counts(offer).is_ok() && check(&query.requirements, machine, Defaults::Enforced).is_ok()
        })
    })
}

#[test]
fn what_only_waits_needs_no_change() {
    let busy = |candidate: &mut Candidate<'_>| {
        candidate.busy_blocks = 1;
        candidate.status = dstack_model::instances::InstanceStatus::Busy;
    };
    let full = json!({"configuration": {"type": "fleet", "nodes": 1}, "profile": {}});
    let explanation = explained_in(&full, busy, &json!({"resources": {"disk": "9TB"}}), &[]);
    assert_eq!(texts_of(&explanation.changes), [""; 0]);
    let explanation = explained_in(&full, busy, &json!({"resources": {"gpu": "0.."}}), &[]);
    assert_eq!(explanation.instances[0].reasons, ["is busy"]);
    assert_eq!(texts_of(&explanation.changes), [""; 0]);
}
