//! Fleets: their configuration, SSH hosts, status and plans.

use std::net::IpAddr;

use dstack_units::{FleetId, IdleDuration, Time};
use serde::ser::SerializeStruct;
use serde::{Serialize, Serializer};
use serde_json::{Map, Value, json};

use crate::backends::BackendType;
use crate::common::{ApplyAction, Tags, check_tags};
use crate::decode::units::idle_duration;
use crate::decode::{Cx, constraint, enums};
use crate::envs::Env;
use crate::instances::{Instance, SshKey};
use crate::offers::InstanceOfferWithAvailability;
use crate::profiles::{
    Profile, ProfileParams, RetrySetting, SpotPolicy, VastAiProfileOptions, check_backend_options,
};
use crate::resources::ResourcesSpec;
use crate::schema::{Schema, Schemas};
use crate::unix::{check_host_name, check_login_name, check_optional_login_name};
use crate::{Decode, limits, string_enum, tag};

string_enum! {
    /// State of a fleet.
    pub enum FleetStatus {
        /// Not used by the reference.
        Submitted = "submitted",
        /// Its instances can be used.
        Active = "active",
        /// Its instances are being deleted.
        Terminating = "terminating",
        /// Has no instances any more, and is over.
        Terminated = "terminated",
        /// Not used by the reference.
        Failed = "failed",
    }
}

string_enum! {
    /// How a fleet's instances are placed.
    pub enum InstanceGroupPlacement {
        /// In any of the backends, regions and zones that are allowed.
        Any = "any",
        /// Close to each other, with a fast network.
        Cluster = "cluster",
    }
}

tag!(
    /// The value of `type` for [`FleetConfiguration`].
    pub FleetTag = "fleet"
);

/// Into how many blocks an instance is split.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Blocks {
    /// As many as possible.
    Auto,
    /// So many, at least 1.
    Count(i64),
}

impl Default for Blocks {
    fn default() -> Self {
        Self::Count(1)
    }
}

impl Serialize for Blocks {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Auto => serializer.serialize_str("auto"),
            Self::Count(count) => serializer.serialize_i64(*count),
        }
    }
}

impl crate::decode::Decode for Blocks {
    fn decode(value: &Value, cx: &mut Cx) -> Option<Self> {
        if value.as_str() == Some("auto") {
            return Some(Self::Auto);
        }
        cx.union(&[
            ("literal['auto']", &|cx: &mut Cx| {
                enums::refuse("literal_error", &["auto"], value, cx)
            }),
            ("constrained-int", &|cx: &mut Cx| {
                let count = i64::decode(value, cx)?;
                constraint::ge(&count, 1, value, cx)?;
                Some(Self::Count(count))
            }),
        ])
    }
}

impl Schema for Blocks {
    fn schema(_: &mut Schemas) -> Value {
        json!({"anyOf": [{"const": "auto", "type": "string"}, {"type": "integer", "minimum": 1}]})
    }
}

/// A host that connections to other hosts go through.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Decode)]
pub struct SshProxyParams {
    /// The IP address or domain of proxy host.
    #[decode(check = check_host_name)]
    pub hostname: String,
    /// The SSH port of proxy host.
    pub port: Option<i64>,
    /// The user to log in with for proxy host.
    #[decode(check = check_login_name)]
    pub user: String,
    /// The private key to use for proxy host.
    pub identity_file: String,
    /// Filled in by the client from `identity_file`.
    pub ssh_key: Option<SshKey>,
}

/// A host of an SSH fleet.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Decode)]
pub struct SshHostParams {
    /// The IP address or domain to connect to.
    #[decode(check = check_host_name)]
    pub hostname: String,
    /// The SSH port to connect to for this host.
    pub port: Option<i64>,
    /// The user to log in with for this host.
    #[decode(check = check_optional_login_name)]
    pub user: Option<String>,
    /// The private key to use for this host.
    pub identity_file: Option<String>,
    /// The SSH proxy configuration for this host.
    pub proxy_jump: Option<SshProxyParams>,
    /// The internal IP of the host used for communication inside the cluster.
    #[decode(check = check_internal_ip)]
    pub internal_ip: Option<String>,
    /// Filled in by the client from `identity_file`.
    pub ssh_key: Option<SshKey>,
    /// The amount of blocks to split the instance into. Defaults to the top-level `blocks` value.
    pub blocks: Option<Blocks>,
}

impl SshHostParams {
    /// Only its address.
    pub fn with_hostname(hostname: impl Into<String>) -> Self {
        Self {
            hostname: hostname.into(),
            port: None,
            user: None,
            identity_file: None,
            proxy_jump: None,
            internal_ip: None,
            ssh_key: None,
            blocks: None,
        }
    }
}

fn check_internal_ip(ip: Option<String>) -> Result<Option<String>, String> {
    let Some(text) = &ip else {
        return Ok(None);
    };
    let address: IpAddr = text.parse().map_err(|_| "Invalid IP address".to_owned())?;
    if is_private(address) {
        Ok(ip)
    } else {
        Err("IP address is not private".to_owned())
    }
}

/// Python's `ipaddress.is_private`: everything that IANA does not mark as globally reachable.
fn is_private(address: IpAddr) -> bool {
    const V4: &[(u32, u32)] = &[
        (0x0000_0000, 8),
        (0x0a00_0000, 8),
        (0x7f00_0000, 8),
        (0xa9fe_0000, 16),
        (0xac10_0000, 12),
        (0xc000_0000, 24),
        (0xc000_00aa, 31),
        (0xc000_0200, 24),
        (0xc0a8_0000, 16),
        (0xc612_0000, 15),
        (0xc633_6400, 24),
        (0xcb00_7100, 24),
        (0xf000_0000, 4),
        (0xffff_ffff, 32),
    ];
    /// Inside a private network, yet public.
    const V4_PUBLIC: &[(u32, u32)] = &[(0xc000_0009, 32), (0xc000_000a, 32)];
    let within = |address: u32, networks: &[(u32, u32)]| {
        networks.iter().any(|(network, length)| {
            let mask = u32::MAX.checked_shl(32_u32.saturating_sub(*length)).unwrap_or(0);
            address & mask == *network
        })
    };
    match address {
        IpAddr::V4(v4) => within(v4.to_bits(), V4) && !within(v4.to_bits(), V4_PUBLIC),
        IpAddr::V6(v6) => match v6.to_ipv4_mapped() {
            Some(v4) => is_private(IpAddr::V4(v4)),
            None => {
                let bits = v6.to_bits();
                let starts = |network: u128, length: u32| bits >> 128_u32.saturating_sub(length) == network;
                v6.is_loopback()
                    || v6.is_unspecified()
                    || v6.is_unique_local()
                    || v6.is_unicast_link_local()
                    || starts(0x2001_0db8, 32)
                    || starts(0x3_fff0, 20)
                    || starts(0x0064_ff9b_0001, 48)
                    || starts(0x0100_0000_0000_0000, 64)
                    || starts(0x2002, 16)
                    || (starts(0x2001_0000 >> 9, 23) && !is_public_2001(bits))
            }
        },
    }
}

/// Parts of 2001::/23 that are public.
fn is_public_2001(bits: u128) -> bool {
    let starts = |network: u128, length: u32| bits >> 128_u32.saturating_sub(length) == network;
    let single = |last: u128| bits == (0x2001_0001_u128 << 96) | last;
    single(1)
        || single(2)
        || starts(0x2001_0003, 32)
        || starts(0x2001_0004_0112, 48)
        || starts(0x2001_0020 >> 4, 28)
        || starts(0x2001_0030 >> 4, 28)
}

/// A host by its address, or in detail.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum SshHost {
    /// By its address, with settings of its own.
    Params(Box<SshHostParams>),
    /// By its address.
    Hostname(String),
}

impl SshHost {
    /// Returns the address, a name or an IP.
    pub fn hostname(&self) -> &str {
        match self {
            Self::Params(params) => &params.hostname,
            Self::Hostname(hostname) => hostname,
        }
    }

    /// Returns the host with its settings; those that are not given are unset.
    pub fn to_params(&self) -> SshHostParams {
        match self {
            Self::Params(params) => (**params).clone(),
            Self::Hostname(hostname) => SshHostParams::with_hostname(hostname),
        }
    }
}

impl crate::decode::Decode for SshHost {
    fn decode(value: &Value, cx: &mut Cx) -> Option<Self> {
        cx.union(&[
            ("SSHHostParams", &|cx: &mut Cx| {
                Box::<SshHostParams>::decode(value, cx).map(Self::Params)
            }),
            ("str", &|cx: &mut Cx| {
                let host = String::decode(value, cx)?;
                cx.after(value, host, check_host_name).map(Self::Hostname)
            }),
        ])
    }
}

impl Schema for SshHost {
    fn schema(schemas: &mut Schemas) -> Value {
        crate::schema::any_of(vec![SshHostParams::schema(schemas), String::schema(schemas)])
    }
}

/// The hosts of an SSH fleet.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Decode)]
pub struct SshParams {
    /// The user to log in with on all hosts.
    #[decode(check = check_optional_login_name)]
    pub user: Option<String>,
    /// The SSH port to connect to.
    pub port: Option<i64>,
    /// The private key to use for all hosts.
    pub identity_file: Option<String>,
    /// Filled in by the client from `identity_file`.
    pub ssh_key: Option<SshKey>,
    /// The SSH proxy configuration for all hosts.
    pub proxy_jump: Option<SshProxyParams>,
    /// The per host connection parameters: a hostname or an object that overrides default ssh parameters.
    pub hosts: Vec<SshHost>,
    /// The network address for cluster setup in the format `<ip>/<netmask>`.
    #[decode(check = check_network)]
    pub network: Option<String>,
}

fn check_network(network: Option<String>) -> Result<Option<String>, String> {
    let Some(text) = &network else {
        return Ok(None);
    };
    let Some((first, last)) = network_bounds(text) else {
        return Err(format!("Failed to parse network: {text}"));
    };
    if is_private(first) && is_private(last) {
        return Ok(network);
    }
    Err("Public network is specified when private network is required".to_owned())
}

/// First and last address of `address[/length]`; the length may be a netmask.
pub fn network_bounds(text: &str) -> Option<(IpAddr, IpAddr)> {
    let (address, length) = text
        .split_once('/')
        .map_or((text, None), |(address, length)| (address, Some(length)));
    match address.parse().ok()? {
        IpAddr::V4(address) => {
            let length = match length {
                None => 32,
                Some(length) => prefix_length(length)?,
            };
            let mask = u32::MAX.checked_shl(32_u32.checked_sub(length)?).unwrap_or(0);
            let first = address.to_bits() & mask;
            Some((IpAddr::V4(first.into()), IpAddr::V4((first | !mask).into())))
        }
        IpAddr::V6(address) => {
            let length: u32 = length.map_or(Some(128), |length| length.parse().ok())?;
            let mask = u128::MAX.checked_shl(128_u32.checked_sub(length)?).unwrap_or(0);
            let first = address.to_bits() & mask;
            Some((IpAddr::V6(first.into()), IpAddr::V6((first | !mask).into())))
        }
    }
}

/// `24` or `255.255.255.0`.
fn prefix_length(text: &str) -> Option<u32> {
    if let Ok(length) = text.parse::<u32>() {
        return Some(length);
    }
    let mask = text.parse::<std::net::Ipv4Addr>().ok()?.to_bits();
    (mask.leading_ones().checked_add(mask.trailing_zeros())? == 32).then(|| mask.leading_ones())
}

/// How many nodes a fleet has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Decode)]
#[decode(before = min_and_target, after = check_nodes)]
pub struct FleetNodesSpec {
    /// The minimum number of instances to maintain in the fleet.
    #[decode(check = check_min, limit = limits::fleet_instances)]
    pub min: i64,
    /// The number of instances to provision on fleet apply. Defaults to `min`.
    #[decode(sometimes, limit = limits::fleet_instances)]
    pub target: i64,
    /// The maximum number of instances allowed in the fleet. Unlimited if not specified.
    #[decode(limit = limits::fleet_upper_bound)]
    pub max: Option<i64>,
}

/// `target` is left out when it is `min`: old clients do not know it.
impl Serialize for FleetNodesSpec {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let with_target = self.target != self.min;
        let mut object = serializer.serialize_struct("FleetNodesSpec", if with_target { 3 } else { 2 })?;
        object.serialize_field("min", &self.min)?;
        if with_target {
            object.serialize_field("target", &self.target)?;
        }
        object.serialize_field("max", &self.max)?;
        object.end()
    }
}

fn min_and_target(value: &Value) -> Result<Option<Value>, String> {
    let Value::Object(map) = value else {
        return Ok(None);
    };
    let mut map = map.clone();
    if map.get("min").is_none_or(Value::is_null) {
        map.insert("min".to_owned(), json!(0));
    }
    if map.get("target").is_none_or(Value::is_null) {
        let min = map.get("min").cloned().unwrap_or_default();
        map.insert("target".to_owned(), min);
    }
    Ok(Some(Value::Object(map)))
}

fn check_min(min: i64) -> Result<i64, String> {
    if min < 0 {
        Err("min cannot be negative".to_owned())
    } else {
        Ok(min)
    }
}

fn check_nodes(nodes: FleetNodesSpec) -> Result<FleetNodesSpec, String> {
    if nodes.target < nodes.min {
        return Err("target must not be be less than min".to_owned());
    }
    if nodes.max.is_some_and(|max| max < nodes.min) {
        return Err("max must not be less than min".to_owned());
    }
    if nodes.max.is_some_and(|max| max < nodes.target) {
        return Err("max must not be less than target".to_owned());
    }
    Ok(nodes)
}

/// `4`, `"0..4"`, `"1.."`.
fn nodes_from_scalar(value: &Value, _: &Map<String, Value>) -> Result<Option<Value>, String> {
    if let Value::String(text) = value {
        let split = dstack_units::range::split(text).map_err(dstack_units::ParseError::into_message)?;
        if let Some((min, max)) = split {
            let end = |text: String| {
                if text.is_empty() {
                    Value::Null
                } else {
                    Value::String(text)
                }
            };
            return Ok(Some(json!({"min": end(min), "max": end(max)})));
        }
    }
    let scalar = value.is_string() || value.is_boolean() || value.as_i64().is_some();
    Ok(scalar.then(|| json!({"min": value, "max": value})))
}

/// The configuration of a fleet: instances of backends, or hosts reached over SSH.
#[derive(Debug, Clone, PartialEq, Serialize, Decode)]
pub struct FleetConfiguration {
    /// The configuration type.
    #[serde(rename = "type")]
    #[decode(default)]
    pub kind: FleetTag,
    /// The fleet name.
    pub name: Option<String>,
    /// The placement of instances: `any` or `cluster`.
    pub placement: Option<InstanceGroupPlacement>,
    /// The amount of blocks to split the instance into, a number or `auto`. Defaults to `1`, i.e. do not split.
    #[decode(default)]
    pub blocks: Blocks,
    /// The number of instances.
    #[decode(before = nodes_from_scalar)]
    pub nodes: Option<FleetNodesSpec>,
    /// The existing reservation to use for instance provisioning (AWS and GCP).
    pub reservation: Option<String>,
    /// The resources requirements. Unset: unconstrained.
    pub resources: Option<ResourcesSpec>,
    /// The backends to consider for provisioning (e.g., `[aws, gcp]`).
    pub backends: Option<Vec<BackendType>>,
    /// The regions to consider for provisioning (e.g., `[eu-west-1, us-west4, westeurope]`).
    pub regions: Option<Vec<String>>,
    /// The availability zones to consider for provisioning (e.g., `[eu-west-1a, us-west4-a]`).
    pub availability_zones: Option<Vec<String>>,
    /// The cloud-specific instance types to consider for provisioning.
    pub instance_types: Option<Vec<String>>,
    /// The policy for provisioning spot or on-demand instances. Defaults to `on-demand`.
    pub spot_policy: Option<SpotPolicy>,
    /// The policy for provisioning retry. Defaults to `false`.
    pub retry: Option<RetrySetting>,
    /// The maximum instance price per hour, in dollars.
    #[decode(gt = 0.0)]
    pub max_price: Option<f64>,
    /// Time to wait before terminating idle instances. Defaults to `3d`.
    #[decode(with = idle_duration)]
    pub idle_duration: Option<IdleDuration>,
    /// The custom tags to associate with the resource.
    #[decode(check = check_tags)]
    pub tags: Option<Tags>,
    /// Backend-specific options, applied only to offers from that backend.
    #[decode(check = check_backend_options)]
    pub backend_options: Option<Vec<VastAiProfileOptions>>,
    /// The parameters for adding instances via SSH.
    pub ssh_config: Option<SshParams>,
    /// The mapping or the list of environment variables.
    #[decode(default)]
    pub env: Env,
}

impl FleetConfiguration {
    /// The profile parameters that are set in the configuration itself.
    pub fn params(&self) -> ProfileParams {
        ProfileParams {
            backends: self.backends.clone(),
            regions: self.regions.clone(),
            availability_zones: self.availability_zones.clone(),
            instance_types: self.instance_types.clone(),
            reservation: self.reservation.clone(),
            spot_policy: self.spot_policy,
            retry: self.retry.clone(),
            max_price: self.max_price,
            idle_duration: self.idle_duration,
            tags: self.tags.clone(),
            backend_options: self.backend_options.clone(),
            ..ProfileParams::default()
        }
    }
}

/// What a fleet is made from.
#[derive(Debug, Clone, PartialEq, Serialize, Decode)]
#[decode(hide("merged_profile"))]
pub struct FleetSpec {
    /// The fleet's configuration, as the user wrote it.
    pub configuration: FleetConfiguration,
    /// Where the configuration's file is.
    pub configuration_path: Option<String>,
    /// The chosen profile.
    pub profile: Profile,
    /// Whether a run of a version before 0.20 made the fleet, which ends with that run. False of all others.
    #[decode(default)]
    pub autocreated: bool,
}

impl FleetSpec {
    /// The profile overlaid with what the configuration sets, spot policy and retry defaulted.
    pub fn merged_profile(&self) -> Profile {
        let mut merged = self.profile.clone();
        merged.params = merged.params.overlaid(&self.configuration.params());
        merged.params.spot_policy.get_or_insert(SpotPolicy::OnDemand);
        merged.params.retry.get_or_insert(RetrySetting::Flag(false));
        merged
    }
}

/// A fleet with its instances, as the API answers it.
#[derive(Debug, Clone, PartialEq, Serialize, Decode)]
pub struct Fleet {
    /// Id of the fleet.
    pub id: FleetId,
    /// Name, unique among the fleets of the project: `^[a-z][a-z0-9-]{1,40}$`.
    pub name: String,
    /// Name of the project that owns it; others may have it imported.
    pub project_name: String,
    /// What it is made from.
    pub spec: FleetSpec,
    /// When it was made.
    pub created_at: Time,
    /// How far it is.
    pub status: FleetStatus,
    /// Why it is in this state.
    pub status_message: Option<String>,
    /// Its instances.
    pub instances: Vec<Instance>,
}

/// What applying a fleet would do.
#[derive(Debug, Clone, PartialEq, Serialize, Decode)]
pub struct FleetPlan {
    /// Name of the project that the plan is for.
    pub project_name: String,
    /// Name of the user who asked for the plan.
    pub user: String,
    /// The spec as it was sent.
    pub spec: FleetSpec,
    /// With the server's defaults.
    pub effective_spec: Option<FleetSpec>,
    /// The fleet of that name.
    pub current_resource: Option<Fleet>,
    /// The first offers.
    pub offers: Vec<InstanceOfferWithAvailability>,
    /// How many offers there are in all.
    pub total_offers: u64,
    /// The highest price of all offers.
    pub max_offer_price: Option<f64>,
    /// Create or update.
    pub action: Option<ApplyAction>,
    /// What is missing of the offers, in sentences; left out when nothing is, and not known to dstack 0.22.5.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[decode(default)]
    pub notices: Vec<String>,
}

/// A plan as sent back to be applied.
#[derive(Debug, Clone, PartialEq, Serialize, Decode)]
pub struct ApplyFleetPlanInput {
    /// What to apply.
    pub spec: FleetSpec,
    /// The expected current resource. If the resource has changed, the apply fails unless `force: true`.
    pub current_resource: Option<Fleet>,
}
