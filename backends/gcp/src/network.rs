//! Networks of machines: those of the project or of another one that shares them. Names of rules are those of dstack 0.22.5.

use std::sync::Arc;

use dstack_backend::not_asked;
use dstack_compute::ComputeError;
use dstack_compute::config::GcpConfig;
use serde_json::json;
use sha2::{Digest as _, Sha256};

use crate::Gcp;
use crate::client::{Client, RegionSubnet, Subnet, last, plain, relative};
use crate::errors::GcpError;
use crate::machines::Purpose;

/// The network of configurations that name none.
const DEFAULT: &str = "default";

/// The tag of machines that the rule for their purpose lets in to.
pub(crate) const fn tag(purpose: Purpose<'_>) -> &'static str {
    match purpose {
        Purpose::Jobs | Purpose::Pod { .. } => "dstack-runner-instance",
        Purpose::Gateway { .. } => "dstack-gateway-instance",
    }
}

/// Where Google's health checks of load balancers come from, as dstack 0.22.5 has it.
const HEALTH_CHECKS: &str = "35.191.0.0/16";

/// Longest name of a resource.
const LONGEST: usize = 63;

/// Interfaces of a type of machines beyond the first one: such with an address of their own, and such for RDMA.
const INTERFACES: &[(&str, usize, usize)] = &[
    ("a3-megagpu-8g", 8, 0),
    ("a3-edgegpu-8g", 4, 0),
    ("a3-highgpu-8g", 4, 0),
    ("a4-highgpu-8g", 1, 8),
];

/// A network and a subnet of it, as requests have them.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Nic {
    pub(crate) network: String,
    pub(crate) subnet: Option<String>,
}

/// Where a machine is put.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Networks {
    pub(crate) first: Nic,
    /// With GVNIC.
    pub(crate) extra: Vec<Nic>,
    /// With RDMA.
    pub(crate) rdma: Vec<Nic>,
}

/// The project that has the networks.
pub(crate) fn project_of(config: &GcpConfig) -> &str {
    config.vpc_project_id.as_deref().unwrap_or(&config.project_id)
}

/// The name of the first network.
pub(crate) fn name_of(config: &GcpConfig) -> &str {
    config.vpc_name.as_deref().unwrap_or(DEFAULT)
}

fn link(config: &GcpConfig, name: &str) -> String {
    format!("projects/{}/global/networks/{name}", project_of(config))
}

/// Subnets that the account may use in the project of the networks.
#[derive(Debug)]
pub(crate) struct Subnets {
    all: Vec<Subnet>,
    /// Google has told of all its regions. Those that are out of reach hide no other.
    is_whole: bool,
}

impl Subnets {
    pub(crate) async fn usable(client: &Client, config: &GcpConfig) -> Result<Self, GcpError> {
        let project = Some(project_of(config));
        let (mut all, is_whole) = client
            .list_reached::<Subnet>(project, "aggregated/subnetworks/listUsable", None)
            .await?;
        // Others are for load balancers, NATs and services.
        all.retain(|subnet| {
            matches!(
                subnet.purpose.as_deref(),
                None | Some("PRIVATE" | "PRIVATE_RFC_1918")
            )
        });
        Ok(Self { all, is_whole })
    }

    /// Links of those of a network in a region.
    fn of(&self, network: &str, region: &str) -> Vec<&str> {
        let is_there = |subnet: &&Subnet| {
            last(&subnet.network) == network && relative(&subnet.subnetwork).split('/').nth(3) == Some(region)
        };
        self.all
            .iter()
            .filter(is_there)
            .map(|subnet| relative(&subnet.subnetwork))
            .collect()
    }

    /// The subnet of a network in a region: that of this name, or any.
    ///
    /// # Errors
    /// There is none, or it may be where Google does not reach it now.
    pub(crate) fn find(
        &self,
        network: &str,
        region: &str,
        name: Option<&str>,
    ) -> Result<String, ComputeError> {
        let found = self.of(network, region);
        let Some(name) = name else {
            return match found.first() {
                Some(subnet) => Ok((*subnet).to_owned()),
                None => Err(self.lacks(format!(
                    "the VPC {network} has no subnetwork in {region} that the account may use"
                ))),
            };
        };
        let is_it = |subnet: &&&str| last(subnet) == name;
        found.iter().find(is_it).map(|subnet| (*subnet).to_owned()).ok_or_else(|| {
            let names: Vec<&str> = found.iter().map(|subnet| last(subnet)).collect();
            self.lacks(format!(
                "the VPC {network} has no subnetwork {name} in {region} that the account may use, but {names:?}"
            ))
        })
    }

    /// What is wanted is not among them.
    fn lacks(&self, text: String) -> ComputeError {
        match self.is_whole {
            true => ComputeError::Configuration(text),
            false => ComputeError::NotReady(format!("Google does not reach all regions: {text}")),
        }
    }
}

impl Gcp {
    /// Networks of a machine of this type. The rule that lets in to it is made where it is missing. Gateways have one interface.
    pub(crate) async fn networks(
        &self,
        region: &str,
        machine_type: &str,
        purpose: Purpose<'_>,
    ) -> Result<Networks, ComputeError> {
        let config = &self.config;
        if config.vpc_project_id.is_none() {
            self.ensure_firewall(purpose).await.map_err(not_asked)?;
        }
        let first = Nic {
            network: link(config, name_of(config)),
            // Google itself finds that of the default network.
            subnet: match &config.vpc_name {
                None => None,
                Some(name) => {
                    let chosen = config.subnetworks.as_ref().and_then(|all| all.get(region));
                    let all = self.subnets().await?;
                    Some(all.find(name, region, chosen.map(String::as_str))?)
                }
            },
        };
        let is_it = |(name, ..): &&(&str, usize, usize)| *name == machine_type && !purpose.is_gateway();
        let found = INTERFACES.iter().find(is_it);
        let (most_extra, most_rdma) = found.map_or((0, 0), |(_, extra, rdma)| (*extra, *rdma));
        let (mut extra, mut rdma) = (Vec::new(), Vec::new());
        for name in config.extra_vpcs.iter().flatten().take(most_extra) {
            let all = self.subnets().await?;
            extra.push(Nic {
                network: link(config, name),
                subnet: Some(all.find(name, region, None)?),
            });
        }
        if let Some(name) = config.roce_vpcs.iter().flatten().next().filter(|_| most_rdma > 0) {
            let all = self.subnets().await?;
            let found = all.of(name, region);
            if found.len() < most_rdma {
                return Err(all.lacks(format!(
                    "{machine_type} needs {most_rdma} subnetworks for RDMA, and the VPC {name} has {} in {region}",
                    found.len()
                )));
            }
            rdma.extend(found.iter().take(most_rdma).map(|subnet| Nic {
                network: link(config, name),
                subnet: Some((*subnet).to_owned()),
            }));
        }
        Ok(Networks { first, extra, rdma })
    }

    async fn subnets(&self) -> Result<Arc<Subnets>, ComputeError> {
        let fetch = async || {
            let all = Subnets::usable(&self.client, &self.config).await;
            all.map_err(GcpError::compute_error)
        };
        self.subnets.get(fetch).await.map_err(not_asked)
    }

    /// Accounts may not be allowed to ask for it, so it is made, and there already where it is not new.
    async fn ensure_firewall(&self, purpose: Purpose<'_>) -> Result<(), ComputeError> {
        let (prefix, ports, description, is_there) = match purpose {
            Purpose::Jobs | Purpose::Pod { .. } => (
                "dstack-ssh-in",
                &["22"][..],
                "Allowing only SSH connections from Internet.",
                &self.firewall,
            ),
            Purpose::Gateway { .. } => (
                "dstack-gateway-in-all",
                &["22", "80", "443"][..],
                "Gateways of dstack: SSH, HTTP and HTTPS from everywhere.",
                &self.gateway_firewall,
            ),
        };
        let rule = Rule {
            prefix,
            description,
            ports,
            source: "0.0.0.0/0",
            target: tag(purpose),
        };
        is_there.get(|| self.make_rule(rule)).await.map(drop)
    }

    async fn make_rule(&self, rule: Rule<'_>) -> Result<(), ComputeError> {
        let network = link(&self.config, name_of(&self.config));
        let body = json!({
            "name": rule_name(rule.prefix, &network),
            "description": rule.description,
            "direction": "INGRESS",
            "allowed": [{"IPProtocol": "tcp", "ports": rule.ports}],
            "sourceRanges": [rule.source],
            "network": network,
            "targetTags": [rule.target],
        });
        match self.client.insert("global/firewalls", None, &body).await {
            Err(error) if !error.is_conflict() => Err(error.compute_error()),
            _ => Ok(()),
        }
    }

    /// The network of a load balancer, and the subnet that the address of a private one is in.
    pub(crate) async fn balancer_nic(&self, region: &str, is_public: bool) -> Result<Nic, ComputeError> {
        let config = &self.config;
        let network = name_of(config);
        let subnet = match is_public {
            true => None,
            false => {
                let chosen = config.subnetworks.as_ref().and_then(|all| all.get(region));
                let all = self.subnets().await?;
                Some(all.find(network, region, chosen.map(String::as_str))?)
            }
        };
        Ok(Nic {
            network: link(config, network),
            subnet,
        })
    }

    /// What a load balancer needs of the network: its proxies have a subnet, and reach the machines of gateways, as health checks do.
    ///
    /// # Errors
    /// There is no such subnet: making one is the user's.
    pub(crate) async fn balancer_network(&self, region: &str) -> Result<(), ComputeError> {
        let config = &self.config;
        let (project, network) = (project_of(config), name_of(config));
        let path = format!("regions/{}/subnetworks", plain(region)?);
        let listed = self.client.list::<RegionSubnet>(Some(project), &path, None).await;
        let subnets = listed.map_err(GcpError::compute_error)?;
        let Some(proxies) = subnets.iter().find(|subnet| is_for_proxies(subnet, network)) else {
            return Err(ComputeError::Configuration(no_proxies(project, network, region)));
        };
        if config.vpc_project_id.is_some() {
            return Ok(());
        }
        let target = tag(Purpose::Gateway { is_public: true });
        self.make_rule(Rule {
            prefix: "dstack-gateway-lb-healthcheck-in",
            description: "Gateways of dstack: health checks of load balancers.",
            ports: &["80"],
            source: HEALTH_CHECKS,
            target,
        })
        .await?;
        self.make_rule(Rule {
            prefix: &format!("dstack-gateway-lb-proxy-in-{region}"),
            description: "Gateways of dstack: load balancers of the region.",
            ports: &["80"],
            source: &proxies.ip_cidr_range,
            target,
        })
        .await
    }
}

/// A rule that lets TCP in to machines with a tag.
#[derive(Debug, Clone, Copy)]
struct Rule<'a> {
    prefix: &'a str,
    description: &'a str,
    ports: &'a [&'a str],
    source: &'a str,
    target: &'a str,
}

fn is_for_proxies(subnet: &RegionSubnet, network: &str) -> bool {
    subnet.purpose == "REGIONAL_MANAGED_PROXY" && subnet.role == "ACTIVE" && last(&subnet.network) == network
}

fn no_proxies(project: &str, network: &str, region: &str) -> String {
    format!(
        "the VPC {network} has no active proxy-only subnetwork in {region}, which load balancers need: make one, of a range that is \
         free, by `gcloud compute networks subnets create proxy-only-{region} --project={project} --network={network} \
         --region={region} --purpose=REGIONAL_MANAGED_PROXY --role=ACTIVE --range=10.129.0.0/23`"
    )
}

/// The name of the rule of a network.
fn rule_name(prefix: &str, network: &str) -> String {
    let is_name = |name: &str| {
        let is_plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"_-".contains(&byte);
        name.len() <= LONGEST && name.bytes().all(is_plain)
    };
    let whole = format!("{prefix}-{}", network.replace('/', "-"));
    if is_name(&whole) {
        return whole;
    }
    let short = format!("{prefix}-{}", last(network));
    if is_name(&short) {
        return short;
    }
    let digest = hex::encode(Sha256::digest(network));
    let suffix: String = digest.chars().take(8).collect();
    let begin: String = short.chars().take(LONGEST - 9).collect();
    format!("{begin}-{suffix}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_have_the_names_that_dstack_gave_them() {
        let name = |network: &str| rule_name("dstack-ssh-in", network);
        assert_eq!(
            name("projects/p/global/networks/default"),
            "dstack-ssh-in-projects-p-global-networks-default"
        );
        assert_eq!(
            name("projects/a-project-with-a-long-name/global/networks/default"),
            "dstack-ssh-in-default"
        );
        let long = format!("projects/p/global/networks/{}", "n".repeat(60));
        // Made by dstack 0.22.5.
        assert_eq!(name(&long), format!("dstack-ssh-in-{}-c43f5799", "n".repeat(40)));
    }

    #[test]
    fn subnets_are_those_of_the_network_in_the_region() {
        let subnet = |network: &str, region: &str, name: &str| Subnet {
            network: format!("https://www.googleapis.com/compute/v1/projects/p/global/networks/{network}"),
            subnetwork: format!(
                "https://www.googleapis.com/compute/v1/projects/p/regions/{region}/subnetworks/{name}"
            ),
            purpose: None,
        };
        let mut subnets = Subnets {
            all: vec![
                subnet("n", "r", "one"),
                subnet("n", "r", "two"),
                subnet("m", "r", "other"),
                subnet("n", "s", "far"),
            ],
            is_whole: true,
        };
        let found = |region, name| subnets.find("n", region, name);
        assert_eq!(found("r", None).unwrap(), "projects/p/regions/r/subnetworks/one");
        assert_eq!(
            found("r", Some("two")).unwrap(),
            "projects/p/regions/r/subnetworks/two"
        );
        let problem = |region, name| match found(region, name) {
            Err(ComputeError::Configuration(text)) => text,
            other => panic!("{other:?}"),
        };
        assert!(problem("r", Some("other")).contains("[\"one\", \"two\"]"));
        assert!(problem("t", None).contains("no subnetwork in t"));
        subnets.is_whole = false;
        let found = |region| subnets.find("n", region, None);
        assert_eq!(found("r").unwrap(), "projects/p/regions/r/subnetworks/one");
        assert!(matches!(found("t"), Err(ComputeError::NotReady(_))));
    }
}
