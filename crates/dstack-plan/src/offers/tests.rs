use std::sync::Arc;

use dstack_model::decode::decode_strict;
use dstack_model::instances::InstanceAvailability;
use dstack_units::AcceleratorVendor;
use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;

pub(crate) fn offer(backend: &str, name: &str, price: f64) -> Offer {
    serde_json::from_value(json!({
        "backend": backend, "region": "us-east-1", "price": price, "availability": "available",
        "availability_zones": ["us-east-1a", "us-east-1b"],
        "instance": {"name": name, "resources": {"cpus": 8, "memory_mib": 32768, "gpus": [], "spot": false}},
    }))
    .unwrap()
}

fn query(profile: Value) -> Query {
    let requirements = serde_json::from_value(json!({"resources": {}})).unwrap();
    Query::new(&serde_json::from_value(profile).unwrap(), requirements)
}

fn names(offers: &[Offer]) -> Vec<&str> {
    offers.iter().map(|offer| offer.instance.name.as_str()).collect()
}

#[test]
fn merging_keeps_each_backends_order() {
    let by_score = vec![offer("vastai", "v1", 3.0), offer("vastai", "v2", 1.0)];
    let by_price = vec![offer("aws", "a1", 2.0), offer("aws", "a2", 3.0)];
    let merged: Vec<Offer> = merge([&*by_score, &*by_price]).cloned().collect();
    assert_eq!(names(&merged), ["a1", "v1", "v2", "a2"]);
}

#[test]
fn what_cannot_be_had_comes_last_after_the_cut() {
    let mut refused = offer("aws", "refused", 1.0);
    refused.availability = InstanceAvailability::NoQuota;
    let list = vec![refused, offer("aws", "b", 2.0), offer("aws", "c", 3.0)];
    let all = query(json!({}));
    assert_eq!(names(&all.select([&*list], None)), ["b", "c", "refused"]);
    assert_eq!(names(&all.select([&*list], Some(2))), ["b", "refused"]);
}

#[test]
fn what_is_made_as_one_is_for_runs_of_as_many_nodes() {
    let four = Offer {
        group_size: Some(4),
        ..offer("gcp", "v5litepod-16", 2.0)
    };
    let list = [offer("gcp", "a3", 3.0), four];
    let of = |nodes: u32| query(json!({})).for_nodes(nodes);
    assert_eq!(names(&of(4).select([&list[..]], None)), ["a3", "v5litepod-16"]);
    for other in [query(json!({})), of(1), of(2), of(8)] {
        assert_eq!(names(&other.select([&list[..]], None)), ["a3"]);
        assert_eq!(other.accept(&list[1]), Err(Unwanted::Nodes(4)));
    }
    let place = Location {
        backend: list[1].backend,
        region: None,
        zone: None,
    };
    assert_eq!(of(4).at(&[place]).accept(&list[1]), Err(Unwanted::Volume));
    let mut read: Query = decode_strict(&serde_json::to_value(of(4)).unwrap()).unwrap();
    assert_eq!(read.accept(&list[1]), Err(Unwanted::Nodes(4)), "it is not kept");
    read.set_nodes(4);
    assert!(read.accept(&list[1]).is_ok());
}

#[test]
fn profiles_filter() {
    let (aws, gcp) = ([offer("aws", "m5.large", 1.0)], [offer("gcp", "n1", 2.0)]);
    for (profile, expected) in [
        (json!({"backends": ["gcp"]}), vec!["n1"]),
        (json!({"regions": ["US-EAST-1"]}), vec!["m5.large", "n1"]),
        (json!({"regions": []}), vec![]),
        (json!({"instance_types": ["M5.LARGE"]}), vec!["m5.large"]),
        (json!({"availability_zones": ["us-east-1c"]}), vec![]),
    ] {
        assert_eq!(
            names(&query(profile.clone()).select([&aws[..], &gcp[..]], None)),
            expected,
            "{profile}"
        );
    }
    let zone = query(json!({"availability_zones": ["US-EAST-1B"]}));
    let narrowed = zone.accept(&offer("aws", "m5.large", 1.0)).unwrap();
    assert_eq!(narrowed.availability_zones, Some(vec!["us-east-1b".to_owned()]));
    let mut nowhere = offer("aws", "m5.large", 1.0);
    nowhere.availability_zones = None;
    assert_eq!(zone.accept(&nowhere), Err(Unwanted::Zone));
}

#[test]
fn volumes_restrict_to_their_places() {
    let at = |backend, region: Option<&str>| Location {
        backend,
        region: region.map(str::to_owned),
        zone: None,
    };
    let here = query(json!({})).at(&[at(BackendType::Aws, Some("us-east-1"))]);
    assert!(here.accept(&offer("aws", "a", 1.0)).is_ok());
    assert_eq!(here.accept(&offer("gcp", "a", 1.0)), Err(Unwanted::Volume));
    let anywhere = query(json!({})).at(&[at(BackendType::Gcp, None)]);
    assert!(anywhere.accept(&offer("gcp", "a", 1.0)).is_ok());
}

#[test]
fn nodes_stay_beside_the_first() {
    let master: JobProvisioningData = serde_json::from_value(json!({
        "backend": "aws", "instance_type": {"name": "x", "resources": {"cpus": 1, "memory_mib": 1, "gpus": [], "spot": false}},
        "instance_id": "i", "region": "us-east-1", "availability_zone": "us-east-1b", "price": 1.0, "username": "u",
        "dockerized": true,
    }))
    .unwrap();
    let beside = query(json!({"backends": ["aws", "gcp"]})).beside(Some(&master));
    assert!(beside.accept(&offer("aws", "a", 1.0)).is_ok());
    assert!(beside.accept(&offer("gcp", "a", 1.0)).is_err());
    assert!(
        beside.asks(BackendType::Aws) && !beside.asks(BackendType::Gcp) && !beside.asks(BackendType::Dstack)
    );
    let elsewhere = query(json!({"regions": ["eu-west-1"]})).beside(Some(&master));
    assert!(elsewhere.accept(&offer("aws", "a", 1.0)).is_err());
    let zone = in_zone_of(offer("aws", "a", 1.0), Some(&master));
    assert_eq!(zone.availability_zones, Some(vec!["us-east-1b".to_owned()]));
}

#[test]
fn blocks_divide_evenly() {
    let with_gpus = |count: usize, vendor| {
        let mut offer = offer("aws", "g", 1.0);
        let gpu = dstack_model::instances::Gpu {
            name: "X".to_owned(),
            memory_mib: 1024,
            vendor: Some(vendor),
        };
        Arc::make_mut(&mut offer.instance).resources.gpus = vec![gpu; count];
        offer
    };
    let total = |offer: Offer, blocks| total_blocks(&offer, blocks);
    let nvidia = AcceleratorVendor::Nvidia;
    assert_eq!(total(offer("aws", "c", 1.0), Blocks::Auto), Some(8));
    assert_eq!(total(with_gpus(4, nvidia), Blocks::Auto), Some(4));
    assert_eq!(total(with_gpus(4, nvidia), Blocks::Count(2)), Some(2));
    assert_eq!(total(with_gpus(4, nvidia), Blocks::Count(3)), None);
    assert_eq!(
        total(with_gpus(4, AcceleratorVendor::Google), Blocks::Auto),
        Some(1)
    );
    assert_eq!(total(with_gpus(3, nvidia), Blocks::Auto), None);
}

proptest! {
    #[test]
    fn merging_loses_nothing_and_keeps_orders(
        prices in proptest::collection::vec(proptest::collection::vec(0u8..9, 0..6), 0..4)
    ) {
        let lists: Vec<Vec<Offer>> = prices.iter().enumerate()
            .map(|(list, prices)| prices.iter().enumerate()
                .map(|(at, price)| offer("aws", &format!("{list}/{at}"), f64::from(*price))).collect())
            .collect();
        let merged: Vec<Offer> = merge(lists.iter().map(Vec::as_slice)).cloned().collect();
        for list in &lists {
            let own: Vec<&Offer> = merged.iter().filter(|offer| list.contains(offer)).collect();
            prop_assert_eq!(own, list.iter().collect::<Vec<_>>());
        }
        prop_assert_eq!(merged.len(), lists.iter().map(Vec::len).sum::<usize>());
        if lists.iter().all(|list| list.is_sorted_by(|a, b| a.price <= b.price)) {
            prop_assert!(merged.is_sorted_by(|a, b| a.price <= b.price));
        }
    }

    /// Whatever is selected satisfies the profile.
    #[test]
    fn selection_violates_no_profile(
        regions in proptest::option::of(proptest::collection::vec("us-east-1|eu", 0..2)),
        types in proptest::option::of(proptest::collection::vec("[ab]", 0..2)),
        limit in proptest::option::of(0usize..5),
        offers in proptest::collection::vec(("[ab]", "us-east-1|eu", 0u8..9), 0..8),
    ) {
        let query = query(json!({"regions": regions, "instance_types": types}));
        let list: Vec<Offer> = offers.iter().map(|(name, region, price)| Offer {
            region: region.as_str().into(), ..offer("aws", name, f64::from(*price))
        }).collect();
        let selected = query.select([&*list], limit);
        prop_assert!(limit.is_none_or(|limit| selected.len() <= limit));
        for offer in &selected {
            prop_assert!(regions.as_ref().is_none_or(|regions| regions.iter().any(|region| **region == *offer.region)));
            prop_assert!(types.as_ref().is_none_or(|types| types.contains(&offer.instance.name)));
        }
    }
}
