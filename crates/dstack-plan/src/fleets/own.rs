//! What a fleet asks for by itself: instances that are made to keep it at its size, for no job (dstack 0.22.5: pipelines
//! §8, §9).

use std::time::Duration;

use dstack_model::fleets::{FleetSpec, InstanceGroupPlacement};
use dstack_model::offers::InstanceOfferWithAvailability as Offer;
use dstack_model::profiles::DEFAULT_FLEET_IDLE_DURATION;
use dstack_model::runs::JobProvisioningData;

use crate::combine::fleet_requirements;
use crate::matching::{Defaults, Machine, check};
use crate::offers::Query;

/// Whether the instances of a fleet are those of clouds, which are made and ended as the fleet wants them.
pub fn is_of_clouds(spec: &FleetSpec) -> bool {
    spec.configuration.nodes.is_some() && spec.configuration.ssh_config.is_none()
}

/// Whether they are to be made beside each other.
pub fn is_cluster(spec: &FleetSpec) -> bool {
    is_of_clouds(spec) && spec.configuration.placement == Some(InstanceGroupPlacement::Cluster)
}

/// Which offers could become an instance of the fleet; `master`: beside that one.
pub fn own_capacity(spec: &FleetSpec, master: Option<&JobProvisioningData>) -> Query {
    let mut query = Query::new(&spec.merged_profile(), fleet_requirements(spec)).beside(master);
    query.blocks = spec.configuration.blocks;
    query.needs.create_instance = true;
    query
}

/// How long an instance that is made for the fleet itself may be idle; `None`: for ever.
pub fn own_idle_for(spec: &FleetSpec) -> Option<Duration> {
    let set = spec.merged_profile().params.idle_duration;
    let seconds = set.map_or(DEFAULT_FLEET_IDLE_DURATION.0, |idle| idle.0);
    // Off is negative.
    u64::try_from(seconds).ok().map(Duration::from_secs)
}

/// Whether an instance is what the fleet asks for now; one that is nothing yet may still become it.
pub fn fits(spec: &FleetSpec, offer: Option<&Offer>, place: Option<&JobProvisioningData>) -> bool {
    let Some(offer) = offer else { return true };
    let whole = Machine::whole(&offer.instance.resources, offer.price);
    check(&fleet_requirements(spec), whole, Defaults::Enforced).is_ok()
        && place.is_none_or(|place| may_be_at(spec, place))
}

fn may_be_at(spec: &FleetSpec, place: &JobProvisioningData) -> bool {
    let params = spec.merged_profile().params;
    let backend = place.base_backend();
    let zone = place.availability_zone.as_deref();
    params.backends.is_none_or(|backends| backends.contains(&backend))
        && named(params.regions.as_deref(), &place.region)
        && named(params.instance_types.as_deref(), &place.instance_type.name)
        && zone.is_none_or(|zone| named(params.availability_zones.as_deref(), zone))
}

/// Names match in any case; unset names everything.
fn named(names: Option<&[String]>, name: &str) -> bool {
    names.is_none_or(|names| names.iter().any(|other| other.eq_ignore_ascii_case(name)))
}

#[cfg(test)]
mod tests {
    use dstack_model::backends::BackendType;
    use dstack_model::decode::decode_strict;
    use dstack_model::instances::InstanceAvailability;
    use serde_json::{Value, json};

    use super::*;
    use crate::offers::AvailableOffers;
    use crate::offers::tests::offer;

    fn spec(more: &Value) -> FleetSpec {
        let mut fleet = json!({"type": "fleet", "name": "f", "nodes": 2});
        fleet
            .as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        decode_strict(&json!({"configuration": fleet, "profile": {}})).unwrap()
    }

    fn place(offer: &Offer, zone: Option<&str>) -> JobProvisioningData {
        let place = json!({"backend": offer.backend, "instance_type": offer.instance, "instance_id": "i", "hostname": "h",
            "region": offer.region, "price": offer.price, "username": "u", "ssh_port": 22, "dockerized": true,
            "availability_zone": zone});
        decode_strict(&place).unwrap()
    }

    #[test]
    fn clouds_are_asked_for_machines_as_the_fleet_wants_them() {
        let fleet =
            spec(&json!({"placement": "cluster", "blocks": 2, "reservation": "r", "backends": ["aws"]}));
        let query = own_capacity(&fleet, None);
        assert!(query.needs.create_instance && query.needs.multinode && query.needs.reservations);
        assert!(query.asks(BackendType::Aws) && !query.asks(BackendType::Gcp));
        assert_eq!(query.blocks, dstack_model::fleets::Blocks::Count(2));
        let any = own_capacity(&spec(&json!({})), None);
        assert!(any.needs.create_instance && !any.needs.multinode && any.asks(BackendType::Gcp));
    }

    #[test]
    fn those_after_the_first_are_made_where_it_is() {
        let cheap = Offer {
            availability_zones: None,
            ..offer("aws", "m5", 1.0)
        };
        let query = own_capacity(
            &spec(&json!({"placement": "cluster"})),
            Some(&place(&cheap, None)),
        );
        assert!(query.asks(BackendType::Aws) && !query.asks(BackendType::Gcp));
        let elsewhere = Offer {
            region: "elsewhere".into(),
            ..cheap.clone()
        };
        assert!(query.admits(&cheap).is_ok() && query.admits(&elsewhere).is_err());
        let zones = |zones: &[&str]| Offer {
            availability_zones: Some(zones.iter().map(|zone| (*zone).to_owned()).collect()),
            ..cheap.clone()
        };
        let full = Offer {
            availability: InstanceAvailability::NotAvailable,
            ..cheap.clone()
        };
        let offers = [full, zones(&["a", "b"]), zones(&["b"]), cheap.clone()];
        let in_zone = AvailableOffers::select(&offers, Some(&place(&cheap, Some("a"))), &[], 25);
        assert_eq!(in_zone.best, [zones(&["a"]), zones(&["a"])]);
        let few = AvailableOffers::select(&offers, None, &[], 2);
        assert_eq!((few.best.len(), few.total), (2, 3));
    }

    #[test]
    fn idle_durations_are_the_fleets() {
        let of = |more| own_idle_for(&spec(&more)).map(|idle| idle.as_secs());
        assert_eq!(of(json!({})), Some(3 * 24 * 3600));
        assert_eq!(of(json!({"idle_duration": "1h"})), Some(3600));
        assert_eq!(of(json!({"idle_duration": "off"})), None);
    }

    #[test]
    fn what_is_no_longer_asked_for_is_told_apart() {
        let made = offer("aws", "m5", 1.0);
        let at = place(&made, Some("a"));
        let fits = |more| fits(&spec(&more), Some(&made), Some(&at));
        assert!(fits(json!({})));
        assert!(fits(
            json!({"max_price": 1, "availability_zones": ["A"], "instance_types": ["M5"]})
        ));
        for other in [
            json!({"max_price": 0.5}),
            json!({"spot_policy": "spot"}),
            json!({"backends": ["gcp"]}),
            json!({"regions": ["elsewhere"]}),
            json!({"instance_types": ["t3"]}),
            json!({"availability_zones": ["b"]}),
            json!({"resources": {"cpu": 999}}),
        ] {
            assert!(!fits(other.clone()), "{other}");
        }
        assert!(super::fits(&spec(&json!({"max_price": 0.5})), None, None));
    }

    #[test]
    fn hosts_are_no_clouds() {
        let hosts = json!({"configuration": {"type": "fleet", "ssh_config": {"hosts": ["h"]}, "placement": "cluster"},
            "profile": {}});
        let hosts: FleetSpec = decode_strict(&hosts).unwrap();
        assert!(!is_of_clouds(&hosts) && !is_cluster(&hosts));
        assert!(is_of_clouds(&spec(&json!({}))) && !is_cluster(&spec(&json!({}))));
        assert!(is_cluster(&spec(&json!({"placement": "cluster"}))));
    }
}
