//! Regions with their quotas, networks, rules of firewalls.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::lists::list;
use crate::{Answer, Ask, Cloud, Gcp, HOST_PROJECT, PROJECT, REGIONS, invalid, missing, refuse};

/// A network, which may have several subnets in each region.
#[derive(Debug, Clone)]
pub(crate) struct Network {
    project: String,
    name: String,
    /// Regions and names.
    subnets: Vec<(String, String)>,
    /// Its machines have interfaces of this type only, and it is in this zone.
    profile: Option<(&'static str, String)>,
}

/// How links begin.
pub(crate) const API: &str = "https://www.googleapis.com/compute/v1/";

pub(crate) fn usual() -> Vec<Network> {
    let network = |project: &str, name: &str| Network {
        project: project.to_owned(),
        name: name.to_owned(),
        subnets: REGIONS
            .iter()
            .map(|(region, _)| ((*region).to_owned(), format!("{name}-{region}")))
            .collect(),
        profile: None,
    };
    vec![network(PROJECT, "default"), network(HOST_PROJECT, "shared")]
}

impl Network {
    fn link(&self) -> String {
        format!("projects/{}/global/networks/{}", self.project, self.name)
    }

    fn subnet_link(&self, (region, name): &(String, String)) -> String {
        format!("projects/{}/regions/{region}/subnetworks/{name}", self.project)
    }
}

impl Gcp {
    /// A network of the project, with these subnets: regions and names.
    pub fn add_network(&self, name: &str, subnets: &[(&str, &str)]) {
        self.add(name, subnets, None);
    }

    /// A subnet of a network for the proxies of load balancers, in a region: names that begin with `proxy-backup` are not used yet.
    pub fn add_proxies(&self, network: &str, region: &str, name: &str) {
        assert!(name.starts_with("proxy-"), "{name}");
        let mut state = self.lock();
        let network = state.networks.iter_mut().find(|one| one.name == network);
        let subnets = &mut network.unwrap().subnets;
        subnets.push((region.to_owned(), name.to_owned()));
    }

    /// A network for RDMA, which is in one zone.
    pub fn add_rdma_network(&self, name: &str, zone: &str, subnets: &[(&str, &str)]) {
        self.add(name, subnets, Some(("MRDMA", zone.to_owned())));
    }

    fn add(&self, name: &str, subnets: &[(&str, &str)], profile: Option<(&'static str, String)>) {
        let subnets = subnets
            .iter()
            .map(|(region, name)| ((*region).to_owned(), (*name).to_owned()));
        self.lock().networks.push(Network {
            project: PROJECT.to_owned(),
            name: name.to_owned(),
            subnets: subnets.collect(),
            profile,
        });
    }

    pub(crate) fn networks(&self, state: &mut Cloud, ask: &Ask) -> Answer {
        match ask.called.name {
            "regions.list" => list(ask, REGIONS.iter().map(|one| region(state, one)).collect()),
            "regions.get" => {
                let found = REGIONS.iter().find(|(name, _)| *name == ask.at(1));
                found
                    .map(|one| region(state, one))
                    .ok_or_else(|| missing(ask.at(1)))
            }
            "subnetworks.list" => {
                let networks = state.networks.iter().filter(|one| one.project == ask.at(0));
                let subnets = networks.flat_map(|network| {
                    let there = network.subnets.iter().filter(|(region, _)| *region == ask.at(1));
                    there.map(|subnet| subnet_json(network, subnet))
                });
                list(ask, subnets.collect())
            }
            "subnetworks.listUsable" => {
                let unreached: BTreeSet<&str> = state
                    .unreachable
                    .iter()
                    .map(|zone| zone.rsplit_once('-').unwrap().0)
                    .collect();
                let networks = state.networks.iter().filter(|one| one.project == ask.at(0));
                let subnets = networks.flat_map(|network| {
                    let reached = network.subnets.iter().filter(|(region, _)| !unreached.contains(region.as_str()));
                    reached.map(|subnet| {
                        json!({"network": format!("{API}{}", network.link()), "ipCidrRange": "10.0.0.0/20",
                            "subnetwork": format!("{API}{}", network.subnet_link(subnet)), "purpose": purpose(&subnet.1)})
                    })
                });
                let mut told = list(ask, subnets.collect())?;
                if !unreached.is_empty() {
                    let scopes = unreached.iter().map(|region| format!("regions/{region}"));
                    told["unreachables"] = scopes.collect();
                }
                Ok(told)
            }
            "routers.list" => {
                let routers = state.with_nat.iter().filter(|region| *region == ask.at(1));
                let router = |region: &String| {
                    json!({"name": format!("router-{region}"), "network": format!("{API}projects/{PROJECT}/global/networks/default"),
                        "nats": [{"name": "nat"}]})
                };
                list(ask, routers.map(router).collect())
            }
            "firewalls.insert" => {
                let body = &ask.body;
                let name = body["name"].as_str().unwrap_or_default();
                if !is_name(name) {
                    return Err(invalid("Invalid value for field 'resource.name'"));
                }
                let network = body["network"].as_str().unwrap_or_default();
                if !state.networks.iter().any(|one| one.link() == network) {
                    return Err(missing(network));
                }
                if !network.starts_with(&format!("projects/{}/", ask.at(0))) {
                    return Err(refuse(
                        403,
                        "forbidden",
                        "Required 'compute.networks.updatePolicy' permission",
                    ));
                }
                if state.firewalls.iter().any(|one| one["name"] == *name) {
                    let message =
                        format!("The resource 'projects/{PROJECT}/global/firewalls/{name}' already exists");
                    return Err(refuse(409, "alreadyExists", message));
                }
                state.firewalls.push(body.clone());
                let target = format!("global/firewalls/{name}");
                Ok(self.begin(state, ask, "global", target, self.0.times.others, None))
            }
            other => Err(missing(other)),
        }
    }
}

/// Machines are not put into those of load balancers.
fn purpose(subnet: &str) -> &'static str {
    match subnet.starts_with("proxy-") {
        true => "REGIONAL_MANAGED_PROXY",
        false => "PRIVATE",
    }
}

fn subnet_json(network: &Network, subnet: &(String, String)) -> Value {
    let (region, name) = subnet;
    let mut told = json!({"name": name, "network": format!("{API}{}", network.link()), "state": "READY",
        "selfLink": format!("{API}{}", network.subnet_link(subnet)), "purpose": purpose(name),
        "region": format!("{API}projects/{}/regions/{region}", network.project), "ipCidrRange": "10.0.0.0/20"});
    if purpose(name) == "REGIONAL_MANAGED_PROXY" {
        told["role"] = if is_backup(name) { "BACKUP" } else { "ACTIVE" }.into();
        told["ipCidrRange"] = "10.129.0.0/23".into();
    }
    told
}

fn is_backup(subnet: &str) -> bool {
    subnet.starts_with("proxy-backup")
}

/// Whether there is a network of this link, in the project or in one that shares it.
pub(crate) fn is_network(state: &Cloud, link: &str) -> bool {
    state.networks.iter().any(|one| one.link() == link)
}

/// Whether load balancers of a network have a subnet for their proxies in a region.
pub(crate) fn has_proxies(state: &Cloud, network: &str, region: &str) -> bool {
    let networks = state.networks.iter().filter(|one| one.link() == network);
    let mut subnets = networks.flat_map(|one| &one.subnets);
    subnets.any(|(of, name)| of == region && name.starts_with("proxy-") && !is_backup(name))
}

/// What is wrong with the interfaces of a machine.
pub(crate) fn problem(state: &Cloud, zone: &str, interfaces: &[Value]) -> Option<String> {
    let region = zone.rsplit_once('-').unwrap().0;
    if interfaces.is_empty() {
        return Some("At least one network interface is required.".to_owned());
    }
    for (at, interface) in interfaces.iter().enumerate() {
        let link = interface["network"].as_str().unwrap_or_default();
        let Some(network) = state.networks.iter().find(|one| one.link() == link) else {
            return Some(format!("The referenced network resource cannot be found: {link}"));
        };
        if let Some((kind, of)) = &network.profile {
            if of != zone {
                return Some(format!(
                    "Network profile only allows resource creation in location {of}."
                ));
            }
            if interface["nicType"] != *kind || at == 0 {
                return Some("The network profile allows other interfaces only.".to_owned());
            }
        }
        if at > 0
            && interface["accessConfigs"]
                .as_array()
                .is_some_and(|configs| !configs.is_empty())
        {
            return Some("Only the first interface has an address.".to_owned());
        }
        if let Some(subnet) = interface["subnetwork"].as_str() {
            if subnet.contains("/proxy-") {
                return Some(format!("The subnetwork {subnet} is reserved for load balancers"));
            }
            let mut all = network.subnets.iter().filter(|(of, _)| of == region);
            if !all.any(|one| network.subnet_link(one) == subnet) {
                return Some(format!(
                    "The subnetwork {subnet} is not of the network {link} in {region}"
                ));
            }
        }
    }
    None
}

pub(crate) fn is_name(name: &str) -> bool {
    let bytes = name.as_bytes();
    let is_plain = |byte: &u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || *byte == b'-';
    (1..=63).contains(&bytes.len())
        && bytes[0].is_ascii_lowercase()
        && bytes.iter().all(is_plain)
        && !name.ends_with('-')
}

fn region(state: &Cloud, (name, zones): &(&str, &[&str])) -> Value {
    let quotas = state.quotas.iter().filter(|((region, _), _)| region == name);
    let quotas =
        quotas.map(|((_, metric), (limit, usage))| json!({"metric": metric, "limit": limit, "usage": usage}));
    let quotas: Vec<Value> = quotas
        .chain([json!({"metric": "CPUS", "limit": 72.0, "usage": 0.0})])
        .collect();
    let is_hidden = state.without_quotas.contains(*name);
    let zones: Vec<String> = zones
        .iter()
        .map(|zone| format!("{API}projects/{PROJECT}/zones/{zone}"))
        .collect();
    match is_hidden {
        true => json!({"kind": "compute#region", "name": name, "status": "UP", "zones": zones,
            "quotaStatusWarning": {"code": "QUOTA_INFO_UNAVAILABLE", "message": "m"}}),
        false => {
            json!({"kind": "compute#region", "name": name, "status": "UP", "quotas": quotas, "zones": zones})
        }
    }
}
