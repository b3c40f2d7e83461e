use dstack_model::fleets::FleetSpec;
use dstack_model::profiles::{Profile, SpotPolicy};
use dstack_model::runs::Requirements;
use dstack_units::IdleDuration;
use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;

fn profile(json: Value) -> Profile {
    serde_json::from_value(json).unwrap()
}

fn wanted(json: Value) -> Requirements {
    serde_json::from_value(json).unwrap()
}

fn combined(fleet: Value, run: Value) -> Result<Value, String> {
    profiles(&profile(fleet), &profile(run))
        .map(|profile| serde_json::to_value(profile).unwrap())
        .map_err(|conflict| conflict.to_string())
}

#[test]
fn lists_are_intersected() {
    let both = combined(
        json!({"regions": ["US-East-1", "eu-west-1"], "backends": ["aws", "gcp"]}),
        json!({"regions": ["us-east-1", "us-west-2"], "backends": ["runpod"], "instance_types": ["m5.large"]}),
    )
    .unwrap();
    assert_eq!(both["regions"], json!(["US-East-1"]));
    assert_eq!(both["backends"], json!([]));
    assert_eq!(both["instance_types"], json!(["m5.large"]));
    assert_eq!(both["availability_zones"], Value::Null);
}

#[test]
fn limits_tags_and_policies() {
    let both = combined(
        json!({"max_price": 3, "idle_duration": "1h", "tags": {"a": "1", "b": "1"}, "spot_policy": "auto"}),
        json!({"max_price": 2, "idle_duration": "off", "tags": {"b": "2"}, "spot_policy": "spot"}),
    )
    .unwrap();
    assert_eq!(both["max_price"], json!(2.0));
    assert_eq!(both["idle_duration"], json!(3600));
    assert_eq!(both["tags"], json!({"a": "1", "b": "2"}));
    assert_eq!(both["spot_policy"], json!("spot"));
    assert_eq!(
        combined(
            json!({"spot_policy": "spot"}),
            json!({"spot_policy": "on-demand"})
        ),
        Err("`spot_policy` of the fleet (spot) contradicts that of the run (on-demand)".to_owned())
    );
    assert!(combined(json!({"reservation": "a"}), json!({"reservation": "b"})).is_err());
}

#[test]
fn resources_are_narrowed() {
    let fleet = wanted(
        json!({"resources": {"cpu": "4..8", "gpu": {"name": ["A100", "H100"], "compute_capability": 8.0}}}),
    );
    let run = wanted(
        json!({"resources": {"cpu": "6..", "memory": "32GB..", "gpu": {"name": "a100", "count": 2, "compute_capability": 7.0}},
                            "multinode": true}),
    );
    let both = requirements(&fleet, &run).unwrap();
    let json = serde_json::to_value(&both).unwrap();
    assert_eq!(json["resources"]["cpu"]["count"], json!({"min": 6, "max": 8}));
    assert_eq!(json["resources"]["memory"], json!({"min": 32.0, "max": null}));
    assert_eq!(json["resources"]["gpu"]["name"], json!(["A100"]));
    assert_eq!(json["resources"]["gpu"]["compute_capability"], json!([8, 0]));
    assert_eq!(both.multinode, Some(true));
    let conflict = requirements(&fleet, &wanted(json!({"resources": {"cpu": "16.."}}))).unwrap_err();
    assert_eq!(
        conflict.to_string(),
        "`resources.cpu` of the fleet (4..8) contradicts that of the run (16..)"
    );
}

#[test]
fn options_of_a_backend() {
    let with = |options: Value| json!({"backend_options": options});
    let both = combined(
        with(json!([{"type": "vastai", "min_reliability": 0.5, "min_score": 10}])),
        with(json!([{"type": "vastai", "offer_order": "price", "min_reliability": 0.9}])),
    )
    .unwrap();
    assert_eq!(
        both["backend_options"],
        json!([{"type": "vastai", "offer_order": "price", "min_reliability": 0.9, "min_score": 10}])
    );
    assert!(
        combined(
            with(json!([{"type": "vastai", "offer_order": "score"}])),
            with(json!([{"type": "vastai", "offer_order": "price"}])),
        )
        .is_err()
    );
}

#[test]
fn a_fleet_asks_for_little_unless_it_says_more() {
    let spec: FleetSpec =
        serde_json::from_value(json!({"configuration": {"type": "fleet", "nodes": 1}, "profile": {}}))
            .unwrap();
    let asked = fleet_requirements(&spec);
    assert_eq!(asked.spot, Some(false));
    assert_eq!(asked.resources.disk, None);
    assert_eq!(asked.multinode, Some(false));
}

fn arbitrary() -> impl Strategy<Value = Profile> {
    let regions = proptest::option::of(proptest::collection::vec("[ab]", 0..3));
    let spot = proptest::option::of(proptest::sample::select(vec![
        SpotPolicy::Spot,
        SpotPolicy::OnDemand,
        SpotPolicy::Auto,
    ]));
    let idle = proptest::option::of((-1i64..5).prop_map(IdleDuration));
    (regions, spot, proptest::option::of(0.1f64..9.0), idle).prop_map(
        |(regions, spot_policy, max_price, idle_duration)| Profile {
            params: ProfileParams {
                regions,
                spot_policy,
                max_price,
                idle_duration,
                ..ProfileParams::default()
            },
            ..Profile::default()
        },
    )
}

proptest! {
    /// Nothing that the combination allows is forbidden by either side.
    #[test]
    fn never_wider_than_either(fleet in arbitrary(), run in arbitrary()) {
        let Ok(both) = profiles(&fleet, &run) else { return Ok(()) };
        for side in [&fleet, &run] {
            let (both, side) = (&both.params, &side.params);
            if let Some(max) = side.max_price {
                prop_assert!(both.max_price.unwrap() <= max);
            }
            if let Some(regions) = &side.regions {
                prop_assert!(both.regions.as_ref().unwrap().iter().all(|region| regions.contains(region)));
            }
            if let Some(spot) = side.spot_policy.and_then(SpotPolicy::requirement) {
                prop_assert_eq!(both.spot_policy.and_then(SpotPolicy::requirement), Some(spot));
            }
        }
    }

    #[test]
    fn with_itself_is_itself(one in arbitrary()) {
        prop_assert_eq!(profiles(&one, &one).unwrap().params, one.params);
    }
}
