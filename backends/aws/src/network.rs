//! Where machines are placed: the VPC of a region, and those of its subnets that lead where they have to.

use std::sync::Arc;

use dstack_compute::ComputeError;
use dstack_compute::config::AwsConfig;
use serde::{Deserialize, Serialize};

use crate::Aws;
use crate::client::{Client, Form};
use crate::ec2::{Route, RouteTable, RouteTables, Subnet, Subnets, Vpc, Vpcs};
use crate::errors::AwsError;

/// The VPC of a region, and its subnets in which machines may be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Network {
    pub(crate) vpc: String,
    /// At least one, in the order in which AWS lists them.
    pub(crate) subnets: Vec<Place>,
}

/// A subnet and its zone.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Place {
    pub(crate) subnet: String,
    pub(crate) zone: String,
}

/// Why a region has no network for machines.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum NetworkError {
    /// AWS does not tell.
    Aws(AwsError),
    /// There is none that fits the configuration; for users.
    None(String),
}

impl From<AwsError> for NetworkError {
    fn from(error: AwsError) -> Self {
        Self::Aws(error)
    }
}

impl Aws {
    /// The network of a region, as it was a few minutes ago at most.
    pub(crate) async fn network(&self, region: &str, is_public: bool) -> Result<Arc<Network>, ComputeError> {
        let fetch = async || {
            let found = find_network(&self.client, &self.config, region, is_public).await;
            found.map_err(|error| match error {
                NetworkError::Aws(error) => error.compute_error(),
                NetworkError::None(text) => ComputeError::Configuration(text),
            })
        };
        self.networks.get(format!("{region} {is_public}"), fetch).await
    }
}

/// Looks the network of a region up, with subnets for machines that are reached from everywhere, or from private networks only.
pub(crate) async fn find_network(
    client: &Client,
    config: &AwsConfig,
    region: &str,
    is_public: bool,
) -> Result<Network, NetworkError> {
    let vpc = find_vpc(client, config, region).await?.vpc_id;
    let of_vpc = |action| Form::new(action).filter("vpc-id", [vpc.as_str()]);
    let subnets = client.list::<Subnets>(region, of_vpc("DescribeSubnets")).await?;
    let tables = client
        .list::<RouteTables>(region, of_vpc("DescribeRouteTables"))
        .await?;
    let subnets = eligible_subnets(subnets, &tables, is_public);
    if subnets.is_empty() {
        return Err(NetworkError::None(no_subnets(&vpc, region, is_public)));
    }
    Ok(Network { vpc, subnets })
}

fn no_subnets(vpc: &str, region: &str, is_public: bool) -> String {
    match is_public {
        true => format!(
            "Failed to find public subnets in VPC {vpc} in region {region}: give one of its subnets a route to an internet \
             gateway, or set `public_ips: false`"
        ),
        false => format!(
            "Failed to find private subnets with outbound internet access in VPC {vpc} in region {region}: route 0.0.0.0/0 of \
             one of its subnets to a NAT gateway, a transit gateway or a VPC peering connection"
        ),
    }
}

async fn find_vpc(client: &Client, config: &AwsConfig, region: &str) -> Result<Vpc, NetworkError> {
    let form = Form::new("DescribeVpcs");
    let own = config.vpc_ids.as_ref().and_then(|ids| ids.get(region));
    let (form, missing) = match (own, &config.vpc_name) {
        (Some(id), _) => (
            form.filter("vpc-id", [id.as_str()]),
            format!("Failed to find VPC {id} in region {region}: check `vpc_ids`"),
        ),
        (None, Some(name)) => (
            form.filter("tag:Name", [name.as_str()]),
            format!("Failed to find VPC with name {name} in region {region}: check `vpc_name` and `regions`"),
        ),
        (None, None) if !config.default_vpcs.unwrap_or(true) => {
            let text = format!("No VPC is configured for region {region}: name one in `vpc_ids`");
            return Err(NetworkError::None(text));
        }
        (None, None) => (
            form.filter("isDefault", ["true"]),
            format!(
                "Failed to find default VPC in region {region}: create it (`aws ec2 create-default-vpc --region {region}`), \
                 name another in `vpc_ids`, or leave the region out of `regions`"
            ),
        ),
    };
    let found = client.list::<Vpcs>(region, form).await?;
    found.into_iter().next().ok_or(NetworkError::None(missing))
}

/// Subnets that are open to the internet, or lead there without being open.
///
/// The table of a subnet is that which is associated with it, or else the main one of the VPC ("Subnet route tables", VPC User Guide).
fn eligible_subnets(subnets: Vec<Subnet>, tables: &[RouteTable], is_public: bool) -> Vec<Place> {
    let leads = |route: &Route| match is_public {
        true => route
            .gateway_id
            .as_deref()
            .is_some_and(|id| id.starts_with("igw-")),
        false => {
            let via = [
                &route.nat_gateway_id,
                &route.transit_gateway_id,
                &route.vpc_peering_connection_id,
            ];
            route.destination_cidr_block.as_deref() == Some("0.0.0.0/0") && via.iter().any(|id| id.is_some())
        }
    };
    let table_of = |subnet: &Subnet| {
        let is_own = |table: &&RouteTable| {
            let mut associations = table.association_set.item.iter();
            associations.any(|one| one.subnet_id.as_ref() == Some(&subnet.subnet_id))
        };
        let is_main = |table: &&RouteTable| table.association_set.item.iter().any(|one| one.main);
        tables.iter().find(is_own).or_else(|| tables.iter().find(is_main))
    };
    let eligible = subnets
        .into_iter()
        .filter(|subnet| table_of(subnet).is_some_and(|table| table.route_set.item.iter().any(leads)));
    eligible
        .map(|subnet| Place {
            subnet: subnet.subnet_id,
            zone: subnet.availability_zone,
        })
        .collect()
}

/// Of these subnets the first in each zone, of zones that may be used: `zones` if there is something in it, without those tried.
pub(crate) fn places_to_try<'a>(
    network: &'a Network,
    zones: Option<&[String]>,
    reserved: Option<&str>,
    tried: &[String],
) -> Vec<&'a Place> {
    let mut places: Vec<&Place> = Vec::new();
    for place in &network.subnets {
        let may_be = zones.is_none_or(|zones| zones.contains(&place.zone))
            && reserved.is_none_or(|zone| zone == place.zone)
            && !tried.contains(&place.zone);
        if may_be && !places.iter().any(|known| known.zone == place.zone) {
            places.push(place);
        }
    }
    places
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ec2::{Items, RouteTableAssociation};

    fn subnet(id: &str, zone: &str) -> Subnet {
        Subnet {
            subnet_id: id.to_owned(),
            availability_zone: zone.to_owned(),
        }
    }

    fn table(route: Route, of: Option<&str>) -> RouteTable {
        let association = RouteTableAssociation {
            subnet_id: of.map(str::to_owned),
            main: of.is_none(),
        };
        RouteTable {
            route_set: Items { item: vec![route] },
            association_set: Items {
                item: vec![association],
            },
        }
    }

    fn to(field: &str, destination: &str) -> Route {
        let some = |name: &str| (field == name).then(|| format!("{name}-1"));
        Route {
            destination_cidr_block: Some(destination.to_owned()),
            gateway_id: some("igw").or_else(|| some("vgw")),
            nat_gateway_id: some("nat"),
            transit_gateway_id: some("tgw"),
            vpc_peering_connection_id: some("pcx"),
        }
    }

    fn eligible(tables: &[RouteTable], is_public: bool) -> bool {
        !eligible_subnets(vec![subnet("s", "a")], tables, is_public).is_empty()
    }

    #[test]
    fn a_subnet_is_what_its_routes_make_it() {
        for (field, destination, public, private) in [
            ("igw", "0.0.0.0/0", true, false),
            ("igw", "198.51.100.0/24", true, false),
            ("vgw", "0.0.0.0/0", false, false),
            ("nat", "0.0.0.0/0", false, true),
            ("tgw", "0.0.0.0/0", false, true),
            ("pcx", "0.0.0.0/0", false, true),
            ("nat", "10.0.0.0/8", false, false),
        ] {
            for of in [Some("s"), None] {
                let tables = [table(to(field, destination), of)];
                assert_eq!(eligible(&tables, true), public, "{field} {destination} {of:?}");
                assert_eq!(eligible(&tables, false), private, "{field} {destination} {of:?}");
            }
        }
        assert!(!eligible(&[], true));
    }

    #[test]
    fn the_main_table_counts_only_for_subnets_without_one_of_their_own() {
        let tables = [
            table(to("igw", "0.0.0.0/0"), None),
            table(to("nat", "0.0.0.0/0"), Some("s")),
        ];
        assert!(!eligible(&tables, true));
        assert!(eligible(&tables, false));
    }

    #[test]
    fn each_zone_is_tried_once_in_the_order_of_its_subnets() {
        let place = |subnet: &str, zone: &str| Place {
            subnet: subnet.to_owned(),
            zone: zone.to_owned(),
        };
        let network = Network {
            vpc: "v".to_owned(),
            subnets: vec![place("1", "b"), place("2", "a"), place("3", "b"), place("4", "c")],
        };
        let tried = |zones: Option<&[&str]>, reserved: Option<&str>, tried: &[&str]| {
            let owned = |all: &[&str]| all.iter().map(|one| (*one).to_owned()).collect::<Vec<_>>();
            let zones = zones.map(owned);
            let places = places_to_try(&network, zones.as_deref(), reserved, &owned(tried));
            places
                .iter()
                .map(|place| place.subnet.clone())
                .collect::<Vec<_>>()
        };
        assert_eq!(tried(None, None, &[]), ["1", "2", "4"]);
        assert_eq!(tried(None, None, &["b"]), ["2", "4"]);
        assert_eq!(tried(Some(&["c", "b"]), None, &[]), ["1", "4"]);
        assert_eq!(tried(None, Some("a"), &[]), ["2"]);
        assert_eq!(tried(Some(&["c"]), Some("a"), &[]), Vec::<String>::new());
    }
}
