//! The network of machines in a region: one that the configuration names, or one that is made with the first machine, has no costs, and
//! stays; and the security groups, one for jobs and one for gateways. Names and rules are those of dstack 0.22.5.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex as StdMutex, PoisonError};
use std::time::Duration;

use dstack_backend::not_asked;
use dstack_compute::ComputeError;
use dstack_compute::config::AzureConfig;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::Mutex;
use tokio::time::Instant;

use crate::Azure;
use crate::client::{Client, NETWORK, Reference, Thing};
use crate::errors::AzureError;
use crate::machines::Purpose;
use crate::{names, tags};

/// Of all networks that are made.
const NETWORK_CIDR: &str = "10.0.0.0/16";
const SUBNET_CIDR: &str = "10.0.0.0/20";

/// Where a machine is put: the ids of both.
#[derive(Debug, Clone)]
pub(crate) struct Network {
    pub(crate) subnet: String,
    pub(crate) security_group: String,
}

/// What was found of networks, each looked for once at a time.
#[derive(Debug, Default)]
pub(crate) struct Networks(StdMutex<HashMap<(String, Purpose), Slot>>);

type Slot = Arc<Mutex<Option<Found>>>;

/// A network, or why there was none, and when.
type Found = (Instant, Result<Network, ComputeError>);

/// How long an error holds: many machines may ask at the same time.
const ERROR_LIFETIME: Duration = Duration::from_secs(3);

impl Networks {
    fn slot(&self, region: &str, purpose: Purpose) -> Slot {
        let mut slots = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(slots.entry((region.to_owned(), purpose)).or_default())
    }

    /// It is looked for again.
    pub(crate) fn forget(&self, region: &str, purpose: Purpose) {
        let mut slots = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        slots.remove(&(region.to_owned(), purpose));
    }
}

/// Why there is no subnet.
#[derive(Debug)]
pub(crate) enum NoSubnet {
    /// The configuration is wrong; the text names the field.
    Wrong(String),
    Azure(AzureError),
}

impl From<AzureError> for NoSubnet {
    fn from(error: AzureError) -> Self {
        Self::Azure(error)
    }
}

#[derive(Debug, Clone, Deserialize)]
struct Subnet {
    id: String,
    #[serde(default)]
    properties: SubnetProperties,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct SubnetProperties {
    nat_gateway: Option<Reference>,
}

/// Of networks, and of security groups, which have no subnets that are read.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Shared {
    provisioning_state: String,
    subnets: Vec<Value>,
}

/// The id of the subnet that the configuration has for a region, for machines with public addresses or without; `None`: it has none, and
/// the default network is taken.
pub(crate) async fn configured_subnet(
    client: &Client,
    config: &AzureConfig,
    region: &str,
    is_public: bool,
) -> Result<Option<String>, NoSubnet> {
    if let Some(text) = config.subnet_ids.as_ref().and_then(|ids| ids.get(region)) {
        let [group, network, subnet] = names::parts::<3>(text).ok_or_else(|| {
            NoSubnet::Wrong(format!(
                "`subnet_ids`: {text} is not of the form resourceGroup/network/subnet"
            ))
        })?;
        check_region(client, group, network, region, "subnet_ids").await?;
        let path = client.in_group(
            group,
            format_args!("Network/virtualNetworks/{network}/subnets/{subnet}"),
        );
        let found = client.find::<Subnet>(&path, NETWORK).await?;
        let found = found.ok_or_else(|| {
            NoSubnet::Wrong(format!(
                "`subnet_ids`: subnet {subnet} not found in network {network} in resource group {group}"
            ))
        })?;
        return match is_public || reaches_out(client, group, network, &found).await? {
            true => Ok(Some(found.id)),
            false => Err(NoSubnet::Wrong(format!(
                "`subnet_ids`: subnet {subnet} in network {network} does not reach the internet: it needs a NAT gateway, \
                 or its network a peering"
            ))),
        };
    }
    let Some(ids) = &config.vpc_ids else {
        return match is_public {
            true => Ok(None),
            false => Err(NoSubnet::Wrong(
                "`vpc_ids` or `subnet_ids` must be specified if `public_ips: false`".to_owned(),
            )),
        };
    };
    let text = ids
        .get(region)
        .ok_or_else(|| NoSubnet::Wrong(format!("`vpc_ids`: no network is configured for {region}")))?;
    let [group, network] = names::parts::<2>(text).ok_or_else(|| {
        NoSubnet::Wrong(format!(
            "`vpc_ids`: {text} is not of the form resourceGroup/network"
        ))
    })?;
    check_region(client, group, network, region, "vpc_ids").await?;
    let path = client.in_group(group, format_args!("Network/virtualNetworks/{network}/subnets"));
    let subnets = match client.list::<Subnet>(&path, NETWORK, None).await {
        Err(error) if error.is_missing() => {
            return Err(NoSubnet::Wrong(format!(
                "`vpc_ids`: network {network} not found in resource group {group}"
            )));
        }
        subnets => subnets?,
    };
    for subnet in subnets {
        if is_public || reaches_out(client, group, network, &subnet).await? {
            return Ok(Some(subnet.id));
        }
    }
    Err(NoSubnet::Wrong(match is_public {
        true => format!("`vpc_ids`: network {network} has no subnets"),
        false => format!(
            "`vpc_ids`: no subnet of network {network} reaches the internet: one needs a NAT gateway, or the network a peering"
        ),
    }))
}

/// Machines are in networks of their own region only. Whoever may see subnets and not networks finds out with a machine.
async fn check_region(
    client: &Client,
    group: &str,
    network: &str,
    region: &str,
    field: &str,
) -> Result<(), NoSubnet> {
    let path = client.in_group(group, format_args!("Network/virtualNetworks/{network}"));
    let found = match client.find::<Thing<Value>>(&path, NETWORK).await {
        Err(error) if error.is_forbidden() => return Ok(()),
        found => found?,
    };
    // "West Europe" is westeurope.
    let plain = |text: &str| text.replace(' ', "").to_ascii_lowercase();
    match found.filter(|found| plain(&found.location) != plain(region)) {
        Some(found) => Err(NoSubnet::Wrong(format!(
            "`{field}`: network {network} is in {}, and not in {region}",
            found.location
        ))),
        None => Ok(()),
    }
}

/// Whether machines without public addresses have a way to the internet: a NAT gateway, or perhaps by a network that is connected.
async fn reaches_out(
    client: &Client,
    group: &str,
    network: &str,
    subnet: &Subnet,
) -> Result<bool, AzureError> {
    if subnet.properties.nat_gateway.is_some() {
        return Ok(true);
    }
    let path = client.in_group(
        group,
        format_args!("Network/virtualNetworks/{network}/virtualNetworkPeerings"),
    );
    Ok(!client.list::<Value>(&path, NETWORK, None).await?.is_empty())
}

/// What there is of a thing that Azure could not make or change, with what is missing of it.
fn completed(mut found: Value, wanted: Value) -> Value {
    let has = |value: Option<&Value>| match value {
        Some(Value::Array(list)) => !list.is_empty(),
        value => value.is_some_and(|value| !value.is_null()),
    };
    if let (Some(found), Value::Object(wanted)) = (found.as_object_mut(), wanted) {
        for (field, value) in wanted {
            if !has(found.get(&field)) {
                found.insert(field, value);
            }
        }
    }
    found
}

impl Azure {
    /// Found, or made.
    ///
    /// # Errors
    /// [`ComputeError::NotReady`] as long as Azure is at it.
    pub(crate) async fn network(&self, region: &str, purpose: Purpose) -> Result<Network, ComputeError> {
        let slot = self.networks.slot(region, purpose);
        let mut known = slot.lock().await;
        match &*known {
            Some((_, Ok(network))) => return Ok(network.clone()),
            Some((at, Err(error))) if at.elapsed() < ERROR_LIFETIME => return Err(error.clone()),
            _ => {}
        }
        let found = self.find_network(region, purpose).await;
        *known = Some((Instant::now(), found.clone()));
        found
    }

    async fn find_network(&self, region: &str, purpose: Purpose) -> Result<Network, ComputeError> {
        let configured = configured_subnet(&self.client, &self.config, region, self.is_public(purpose)).await;
        let configured = configured.map_err(|error| match error {
            NoSubnet::Wrong(text) => ComputeError::Configuration(text),
            NoSubnet::Azure(error) => not_asked(error.compute_error()),
        })?;
        let subnet = match configured {
            Some(subnet) => Some(subnet),
            None => self.default_subnet(region).await?,
        };
        let security_group = self.security_group(region, purpose).await?;
        let (Some(subnet), Some(security_group)) = (subnet, security_group) else {
            return Err(ComputeError::NotReady(format!(
                "Azure makes the network of {region}"
            )));
        };
        Ok(Network {
            subnet,
            security_group,
        })
    }

    async fn default_subnet(&self, region: &str) -> Result<Option<String>, ComputeError> {
        let name = names::shared(&self.group, region, "default-network");
        let ask = json!({"addressSpace": {"addressPrefixes": [NETWORK_CIDR]}, "subnets": [{
            "name": names::shared(&self.group, region, "default-subnet"),
            "properties": {"addressPrefix": SUBNET_CIDR},
        }]});
        let path = format!("Network/virtualNetworks/{name}");
        let Some((_, network)) = self.shared(&path, region, &ask).await? else {
            return Ok(None);
        };
        let mut subnets = network.subnets.into_iter();
        let first: Option<Subnet> = subnets.find_map(|subnet| serde_json::from_value(subnet).ok());
        let first =
            first.ok_or_else(|| ComputeError::Configuration(format!("the network {name} has no subnet")))?;
        Ok(Some(first.id))
    }

    /// SSH is let in from everywhere, and to gateways their clients; machines of a network reach each other anyway.
    async fn security_group(&self, region: &str, purpose: Purpose) -> Result<Option<String>, ComputeError> {
        let (what, rule, ports, priority) = match purpose {
            Purpose::Jobs => ("default-security-group", "runner_ssh", &["22"][..], 100),
            Purpose::Gateway => (
                "gateway-security-group",
                "gateway_all",
                &["22", "80", "443"][..],
                101,
            ),
        };
        let name = names::shared(&self.group, region, what);
        let ask = json!({"securityRules": [{"name": rule, "properties": {
            "protocol": "Tcp", "sourceAddressPrefix": "Internet", "sourcePortRange": "*", "destinationAddressPrefix": "*",
            "destinationPortRanges": ports, "access": "Allow", "priority": priority, "direction": "Inbound",
        }}]});
        let path = format!("Network/networkSecurityGroups/{name}");
        Ok(self.shared(&path, region, &ask).await?.map(|(id, _)| id))
    }

    /// What all machines of a region share; `None`: Azure is at it. What somebody has changed there stays as it is.
    async fn shared(
        &self,
        path: &str,
        region: &str,
        properties: &Value,
    ) -> Result<Option<(String, Shared)>, ComputeError> {
        let path = self.client.in_group(&self.group, path);
        let found = self.client.find::<Thing<Value>>(&path, NETWORK).await;
        let found = found.map_err(|error| not_asked(error.compute_error()))?;
        let (mut properties, mut tags) = (properties.clone(), BTreeMap::new());
        if let Some(Thing {
            properties: Some(found),
            tags: found_tags,
            ..
        }) = found
        {
            let state: Shared = serde_json::from_value(found.clone()).unwrap_or_default();
            match state.provisioning_state.as_str() {
                "Succeeded" => return Ok(Some((path, state))),
                "Failed" | "Canceled" => properties = completed(found, properties),
                _ => return Ok(None),
            }
            tags.extend(found_tags.into_iter().flatten());
        }
        tags::add_shared(&mut tags, self.config.tags.as_ref());
        let ask = json!({"location": region, "tags": tags, "properties": properties});
        // The same under the same name, however often it is asked for.
        let asked = self.client.put(&path, NETWORK, &ask).await;
        asked.map_err(|error| not_asked(error.compute_error()))?;
        Ok(None)
    }
}
