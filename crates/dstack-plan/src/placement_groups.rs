//! In which placement group an instance of a cluster is made (dstack 0.22.5: pipelines §5.3, backends §3).
//!
//! A fleet with `placement: cluster` has one group at a time, in the region of its first machine; the others go beside that, and into
//! it. Two fleets never share one.

use dstack_model::fleets::FleetSpec;
use dstack_model::instances::InstanceRuntime;
use dstack_model::offers::InstanceOfferWithAvailability as Offer;
use dstack_model::placement::PlacementGroupConfiguration;
use dstack_units::PlacementGroupId;

use crate::fleets::is_cluster;
use crate::lifecycle::placement_group::PlacementGroupStatus;

/// A placement group of a fleet that is not over.
#[derive(Debug, Clone, Copy)]
pub struct Group<'a> {
    /// Id of its row.
    pub id: PlacementGroupId,
    /// Where it is in its life.
    pub status: PlacementGroupStatus,
    /// Where it was asked for.
    pub configuration: &'a PlacementGroupConfiguration,
    /// Type of the machine for which it was asked for.
    pub instance_type: &'a str,
    /// Other instances of the fleet that are, or are to be, in it.
    pub others: usize,
}

/// In which group an instance is to be made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Choice {
    /// Outside of any group.
    None,
    /// In this one of the fleet.
    Its(PlacementGroupId),
    /// In a new one.
    New {
        /// In place of this one, in which nothing is.
        replaces: Option<PlacementGroupId>,
    },
    /// It is not made of this offer: the other machines of the fleet are in a group elsewhere.
    Elsewhere(PlacementGroupId),
}

impl Group<'_> {
    /// Whether a machine of an offer may be made in it.
    fn is_for(&self, offer: &Offer) -> bool {
        is_there(self.configuration, offer) && suits(self.instance_type, self.others, offer)
    }
}

/// Whether a group is where the machines of an offer are.
pub fn is_there(group: &PlacementGroupConfiguration, offer: &Offer) -> bool {
    group.backend == offer.backend && group.region.eq_ignore_ascii_case(&offer.region)
}

/// Whether a group that was asked for with this type takes machines of an offer. Some clouds have groups for one type, and none for
/// others: as long as nothing else is in a group, it is that of the type that is being tried.
pub fn suits(instance_type: &str, others: usize, offer: &Offer) -> bool {
    others > 0 || instance_type == offer.instance.name
}

/// Whether instances of the fleet that are made of an offer are to be in a group; `can`: its backend has such.
pub fn are_needed(fleet: &FleetSpec, offer: &Offer, can: bool) -> bool {
    can && is_cluster(fleet) && offer.instance_runtime != InstanceRuntime::Runner
}

/// In which group an instance is made of an offer. `has_others_outside`: the fleet has machines that are in no group, such as those
/// that were made before there were groups.
pub fn choose(groups: &[Group<'_>], offer: &Offer, has_others_outside: bool) -> Choice {
    match groups.iter().find(|group| group.status.is_wanted()) {
        Some(group) if group.is_for(offer) => Choice::Its(group.id),
        Some(group) if group.others > 0 => Choice::Elsewhere(group.id),
        Some(group) => Choice::New {
            replaces: Some(group.id),
        },
        None if has_others_outside => Choice::None,
        None => Choice::New { replaces: None },
    }
}

#[cfg(test)]
mod tests {
    use dstack_model::decode::decode_strict;
    use dstack_model::placement::PlacementStrategy;
    use serde_json::{Value, json};
    use uuid::Uuid;

    use super::*;
    use crate::offers::tests::offer;

    fn configuration(offer: &Offer, region: &str) -> PlacementGroupConfiguration {
        PlacementGroupConfiguration {
            backend: offer.backend,
            region: region.to_owned(),
            placement_strategy: PlacementStrategy::Cluster,
        }
    }

    #[test]
    fn groups_are_for_machines_of_clusters_where_clouds_have_them() {
        let fleet = |more: Value| -> FleetSpec {
            let mut fleet = json!({"type": "fleet", "name": "f"});
            let fields = fleet.as_object_mut().unwrap();
            fields.extend(more.as_object().unwrap().clone());
            decode_strict(&json!({"configuration": fleet, "profile": {}})).unwrap()
        };
        let machine = offer("aws", "p5", 1.0);
        let container = Offer {
            instance_runtime: InstanceRuntime::Runner,
            ..machine.clone()
        };
        let cluster = fleet(json!({"nodes": 2, "placement": "cluster"}));
        assert!(are_needed(&cluster, &machine, true));
        assert!(!are_needed(&cluster, &machine, false) && !are_needed(&cluster, &container, true));
        assert!(!are_needed(&fleet(json!({"nodes": 2})), &machine, true));
        let hosts = fleet(json!({"ssh_config": {"hosts": ["h"]}, "placement": "cluster"}));
        assert!(!are_needed(&hosts, &machine, true));
    }

    #[test]
    fn a_fleet_has_one_group_where_its_first_machine_is() {
        let p5 = offer("aws", "p5", 1.0);
        let (here, there) = (
            configuration(&p5, &p5.region.to_uppercase()),
            configuration(&p5, "there"),
        );
        let id = PlacementGroupId::from(Uuid::from_u128(1));
        let group = |configuration, status, others| Group {
            id,
            status,
            configuration,
            instance_type: "p5",
            others,
        };
        use PlacementGroupStatus::{Active, Submitted, Unused};
        assert_eq!(choose(&[], &p5, false), Choice::New { replaces: None });
        assert_eq!(choose(&[], &p5, true), Choice::None);
        for status in [Submitted, Active] {
            assert_eq!(choose(&[group(&here, status, 3)], &p5, false), Choice::Its(id));
            assert_eq!(
                choose(&[group(&there, status, 1)], &p5, false),
                Choice::Elsewhere(id)
            );
            // The first machine was not to be had there.
            let moved = Choice::New { replaces: Some(id) };
            assert_eq!(choose(&[group(&there, status, 0)], &p5, false), moved);
        }
        let left = choose(&[group(&here, Unused, 0)], &p5, false);
        assert_eq!(left, Choice::New { replaces: None });
        let elsewhere = offer("gcp", "a3", 1.0);
        assert!(!is_there(&here, &elsewhere));
        // The p5 were sold out.
        let p4 = offer("aws", "p4d", 1.0);
        let replaced = Choice::New { replaces: Some(id) };
        assert_eq!(choose(&[group(&here, Active, 0)], &p4, false), replaced);
        assert_eq!(choose(&[group(&here, Active, 1)], &p4, false), Choice::Its(id));
    }
}
