use serde_json::{Value, json};

use super::*;
use crate::fleets::new_capacity_outside_fleets;
use crate::matching::{Defaults, Machine, mismatches};
use crate::offers::tests::offer;
use crate::placement::tests::{Sample, run};

fn explained(more: &Value, market: &[Offer]) -> JobExplanation {
    let mut task = json!({"type": "task", "commands": ["x"]});
    task.as_object_mut()
        .unwrap()
        .extend(more.as_object().unwrap().clone());
    let (run, jobs) = run(task);
    let request = Request::new(&run, &jobs[0]);
    let sample = Sample::new("any", 1.0);
    let spec = &sample.spec;
    let fleets = [Fleet {
        id: sample.candidate(1).fleet_id,
        name: "fleet",
        project: Some("main"),
        own: true,
        spec,
        master: None,
        anchor_pending: false,
        instances: vec![sample.candidate(1)],
    }];
    let query = new_capacity_outside_fleets(&request).unwrap();
    let decided = Decided {
        fleet: None,
        fits: false,
    };
    job(&request, &fleets, &query, market, decided)
}

fn changes(more: &Value, market: &[Offer]) -> Vec<String> {
    let sets = explained(more, market).changes;
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
    let explanation = explained(
        &json!({"max_price": 1, "resources": {"cpu": 16, "gpu": 1}}),
        &[dear, fine],
    );
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
