//! Hosts of SSH fleets: the way to them, and what they offer once their agent has told what they have.

pub mod gpu;

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use dstack_agent_api::shim::HostInfo;
use dstack_model::fleets::{
    Blocks, FleetSpec, SshHost, SshHostParams, SshParams, SshProxyParams, network_bounds,
};
use dstack_model::instances::{
    Disk, Gpu, InstanceAvailability, InstanceRuntime, InstanceType, Resources, SshConnectionParams,
};
use dstack_model::offers::{InstanceOffer, InstanceOfferWithAvailability};
use dstack_model::reach::{Hop, KeyRef, Reach};
use dstack_model::runs::JobProvisioningData;
use dstack_units::{AcceleratorVendor, CpuArchitecture, FleetId, ProjectId};

use serde_json::Value;

use gpu::{catalog_name, marketed_memory};

/// Port of SSH servers where none is given.
const SSH_PORT: u16 = 22;

/// A host whose agent has told what it has.
#[derive(Debug, Clone, PartialEq)]
pub struct PreparedHost {
    /// What it offers, as a whole.
    pub offer: InstanceOfferWithAvailability,
    /// How clients and jobs reach it.
    pub place: JobProvisioningData,
    /// Blocks it is divided into.
    pub total_blocks: i64,
}

/// Why a host cannot be used as its fleet says. The first sentence is that of dstack 0.22.5.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum HostProblem {
    /// None of its addresses is within `network`.
    #[error(
        "Failed to locate internal IP address on the given network. The host has {}, `network` is {network}",
        listed(.addresses)
    )]
    NoAddress {
        /// What `ssh_config` has.
        network: String,
        /// What the host has.
        addresses: Vec<String>,
    },
    /// It does not have the address that `internal_ip` names.
    #[error(
        "Specified internal IP not found among instance interfaces. The host has {}, `internal_ip` is {internal_ip}",
        listed(.addresses)
    )]
    OtherAddress {
        /// What `ssh_config` has.
        internal_ip: String,
        /// What the host has.
        addresses: Vec<String>,
    },
    /// It says to have more than any machine has.
    #[error("The host says that it has {cpus} CPUs, {gpus} GPUs and {addresses} addresses: that cannot be")]
    Implausible {
        /// CPUs by its own account.
        cpus: u32,
        /// GPUs by its own account.
        gpus: u32,
        /// Number of its addresses by its own account.
        addresses: usize,
    },
    /// CPUs or GPUs cannot be shared out equally.
    #[error("Cannot split into blocks. {cpus} CPUs and {gpus} GPUs do not divide by {blocks}")]
    Blocks {
        /// Blocks that were asked for.
        blocks: i64,
        /// CPUs of the host.
        cpus: i64,
        /// GPUs of the host.
        gpus: i64,
    },
}

fn listed(addresses: &[String]) -> String {
    match addresses {
        [] => "no addresses".to_owned(),
        some => some.join(", "),
    }
}

/// What tells hosts from one another: several may be behind one address.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HostKey {
    /// Name or address, as [`normalised`] makes it.
    pub name: String,
    /// TCP port of its SSH server.
    pub port: u16,
}

impl HostKey {
    /// A host of a list.
    pub fn of(ssh: &SshParams, host: &SshHost) -> Self {
        Self {
            name: normalised(host.hostname()),
            port: port_of(ssh, host),
        }
    }

    /// The host of an instance; `None`: it is not known where it is.
    pub fn of_place(place: &JobProvisioningData) -> Option<Self> {
        Some(Self {
            name: normalised(place.hostname.as_deref()?),
            port: port(place.ssh_port),
        })
    }
}

/// As keys and errors name it.
impl fmt::Display for HostKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.port {
            SSH_PORT => f.write_str(&self.name),
            port => write!(f, "{}:{port}", self.name),
        }
    }
}

/// Whether two hosts whose machines say the same of themselves are one. Of a host of another project that is believed only where both
/// show the same host key, which nobody can make up: what a machine says of itself, its owner decides.
pub fn are_one_machine(own: (ProjectId, &Reach), other: (ProjectId, Option<&Reach>)) -> bool {
    let ((project, way), (other_project, other_way)) = (own, other);
    project == other_project || other_way.is_some_and(|other_way| show_same_key(way, other_way))
}

/// Whether the hosts at the ends of two ways show one host key.
pub fn show_same_key(one: &Reach, other: &Reach) -> bool {
    let mut keys = one.host.host_keys.iter();
    keys.any(|key| other.host.host_keys.contains(key))
}

/// Two hosts of one list that are the same: the place of the second, and that of the first, both from 0.
pub fn twice(ssh: &SshParams) -> Option<(usize, usize)> {
    let mut seen: BTreeMap<HostKey, usize> = BTreeMap::new();
    for (place, host) in ssh.hosts.iter().enumerate() {
        if let Some(first) = seen.insert(HostKey::of(ssh, host), place) {
            return Some((place, first));
        }
    }
    None
}

/// A host name or address as it is compared: `Host.Example.` is `host.example`, `::0001` is `::1`.
pub fn normalised(hostname: &str) -> String {
    let name = hostname.trim();
    let bare = name.strip_prefix('[').and_then(|name| name.strip_suffix(']'));
    if let Ok(address) = bare.unwrap_or(name).parse::<IpAddr>() {
        return address.to_canonical().to_string();
    }
    let name = name.strip_suffix('.').unwrap_or(name);
    name.to_ascii_lowercase()
}

fn port_of(ssh: &SshParams, host: &SshHost) -> u16 {
    let own = match host {
        SshHost::Params(params) => params.port,
        SshHost::Hostname(_) => None,
    };
    port(own.or(ssh.port))
}

/// The host of a list that an instance is.
fn find<'a>(ssh: &'a SshParams, place: &JobProvisioningData) -> Option<&'a SshHost> {
    let wanted = HostKey::of_place(place)?;
    ssh.hosts.iter().find(|host| HostKey::of(ssh, host) == wanted)
}

/// Names the key of a host, whatever else its list has.
fn key_name(ssh: &SshParams, host: &SshHost) -> String {
    match port_of(ssh, host) {
        SSH_PORT => host.hostname().to_owned(),
        port => format!("{}:{port}", host.hostname()),
    }
}

/// What a fleet says of the host of an instance: its place as it was before anything was found out, and the blocks it is to be
/// divided into (`None`: `auto`).
pub fn as_configured(spec: &FleetSpec, place: &JobProvisioningData) -> (JobProvisioningData, Option<i64>) {
    let host = spec.configuration.ssh_config.as_ref().and_then(|ssh| {
        let found = find(ssh, place)?;
        Some(params_of(found))
    });
    let blocks = host.as_ref().and_then(|host| host.blocks);
    let place = JobProvisioningData {
        internal_ip: host.and_then(|host| host.internal_ip),
        ..place.clone()
    };
    match blocks.unwrap_or(spec.configuration.blocks) {
        Blocks::Auto => (place, None),
        Blocks::Count(blocks) => (place, Some(blocks)),
    }
}

/// The way to the host of an instance that is not set up yet, still without host keys; `None`: the fleet has no such host.
///
/// Only the fleet's own keys are offered: the project's opens its jobs, and is shown to hosts that have it.
pub fn reach(fleet: FleetId, spec: &FleetSpec, place: &JobProvisioningData) -> Option<Reach> {
    let ssh = spec.configuration.ssh_config.as_ref()?;
    let found = find(ssh, place)?;
    let (params, name) = (params_of(found), key_name(ssh, found));
    let of_host = || KeyRef::Host {
        fleet,
        hostname: name.clone(),
    };
    let jump = jump_params(ssh, &params).map(|jump| Hop {
        host: jump.hostname.clone(),
        port: port(jump.port),
        user: jump.user.clone(),
        keys: vec![KeyRef::JumpHost {
            fleet,
            hostname: name.clone(),
        }],
        host_keys: Vec::new(),
    });
    Some(Reach {
        jumps: jump.into_iter().collect(),
        host: Hop {
            host: params.hostname.clone(),
            port: port_of(ssh, found),
            user: params
                .user
                .clone()
                .or_else(|| ssh.user.clone())
                .unwrap_or_default(),
            keys: vec![of_host()],
            host_keys: Vec::new(),
        },
    })
}

/// The public key that the SSH server of a place's `ssh_proxy` shows: backends that have made it say so in `backend_data`, under
/// `ssh_proxy_host_key`, as a line `type base64`.
pub fn proxy_host_key(place: &JobProvisioningData) -> Option<String> {
    let data: Value = serde_json::from_str(place.backend_data.as_deref()?).ok()?;
    Some(data.get("ssh_proxy_host_key")?.as_str()?.to_owned())
}

/// The way to a machine that a cloud has made, without host keys but those that the cloud's backend knows; `None`: its address is not
/// known yet.
pub fn cloud_reach(project: ProjectId, place: &JobProvisioningData) -> Option<Reach> {
    let keys = || vec![KeyRef::Project { project }];
    let jump = place.ssh_proxy.as_ref().map(|proxy| Hop {
        host: proxy.hostname.clone(),
        port: port(Some(proxy.port)),
        user: proxy.username.clone(),
        keys: keys(),
        host_keys: proxy_host_key(place).into_iter().collect(),
    });
    Some(Reach {
        jumps: jump.into_iter().collect(),
        host: Hop {
            host: place.hostname.clone()?,
            port: port(place.ssh_port),
            user: place.username.clone(),
            keys: keys(),
            host_keys: Vec::new(),
        },
    })
}

/// A specification with no host but that of an instance, as the instance's reach names its keys; `None`: it has no such host.
pub fn only(spec: &FleetSpec, place: &JobProvisioningData) -> Option<FleetSpec> {
    let mut spec = spec.clone();
    let ssh = spec.configuration.ssh_config.as_mut()?;
    let host = find(ssh, place)?.clone();
    ssh.hosts = vec![host];
    Some(spec)
}

/// The way to a host that is set up: the project's key opens it as well, whatever becomes of the key of the fleet's owner.
#[must_use]
pub fn with_project_key(mut reach: Reach, project: ProjectId) -> Reach {
    let key = KeyRef::Project { project };
    if !reach.host.keys.contains(&key) {
        reach.host.keys.insert(0, key);
    }
    reach
}

/// The private key that a fleet's `ssh_config` gives where a [`KeyRef`] names it.
pub fn private_key<'a>(spec: &'a FleetSpec, key: &KeyRef) -> Option<&'a str> {
    let ssh = spec.configuration.ssh_config.as_ref()?;
    let of_host = |hostname: &str| {
        let own = named(ssh, hostname).and_then(|params| params.ssh_key.as_ref());
        own.or(ssh.ssh_key.as_ref())?.private.as_deref()
    };
    match key {
        KeyRef::Project { .. } => None,
        KeyRef::Host { hostname, .. } => of_host(hostname),
        KeyRef::JumpHost { hostname, .. } => {
            let own = named(ssh, hostname).and_then(|params| params.proxy_jump.as_ref());
            let jump = own.or(ssh.proxy_jump.as_ref());
            let key = jump.and_then(|jump| jump.ssh_key.as_ref()?.private.as_deref());
            key.or_else(|| of_host(hostname))
        }
    }
}

fn named<'a>(ssh: &'a SshParams, name: &str) -> Option<&'a SshHostParams> {
    match with_key(ssh, name)? {
        SshHost::Params(params) => Some(&**params),
        SshHost::Hostname(_) => None,
    }
}

/// The host whose key is named so. Rows of earlier versions have the host's name alone.
fn with_key<'a>(ssh: &'a SshParams, name: &str) -> Option<&'a SshHost> {
    let by_key = ssh.hosts.iter().find(|host| key_name(ssh, host) == name);
    by_key.or_else(|| ssh.hosts.iter().find(|host| host.hostname() == name))
}

/// Whether a [`KeyRef`] may name the host of an instance, or its jump host: told without its list, which says for sure.
pub fn may_be_named(place: &JobProvisioningData, key: &KeyRef) -> bool {
    let (KeyRef::Host { hostname, .. } | KeyRef::JumpHost { hostname, .. }) = key else {
        return false;
    };
    let Some(own) = place.hostname.as_deref() else {
        return false;
    };
    hostname == own || *hostname == format!("{own}:{}", port(place.ssh_port))
}

/// Whether a list has the host that a [`KeyRef`] names.
pub fn names_key(spec: &FleetSpec, key: &KeyRef) -> bool {
    let (KeyRef::Host { hostname, .. } | KeyRef::JumpHost { hostname, .. }) = key else {
        return false;
    };
    let ssh = spec.configuration.ssh_config.as_ref();
    ssh.is_some_and(|ssh| with_key(ssh, hostname).is_some())
}

/// What is said of a host; a bare name is a host of that name.
fn params_of(host: &SshHost) -> SshHostParams {
    match host {
        SshHost::Params(params) => SshHostParams::clone(params),
        SshHost::Hostname(name) => SshHostParams::with_hostname(name),
    }
}

fn jump_params<'a>(ssh: &'a SshParams, host: &'a SshHostParams) -> Option<&'a SshProxyParams> {
    host.proxy_jump.as_ref().or(ssh.proxy_jump.as_ref())
}

fn port(given: Option<i64>) -> u16 {
    given
        .and_then(|port| u16::try_from(port).ok())
        .unwrap_or(SSH_PORT)
}

/// The jump host as clients are told of it.
pub fn ssh_proxy(reach: &Reach) -> Option<SshConnectionParams> {
    reach.jumps.last().map(|jump| SshConnectionParams {
        hostname: jump.host.clone(),
        username: jump.user.clone(),
        port: jump.port.into(),
    })
}

/// The host as an instance.
///
/// `before` is what was known of it when the fleet was made; `blocks` is `None` for `auto`. `arch` is `amd64` or `arm64`.
///
/// # Errors
/// It has not the address that its fleet wants, or cannot be divided so.
pub fn prepared(
    reach: &Reach,
    before: &JobProvisioningData,
    blocks: Option<i64>,
    info: &HostInfo,
    arch: &str,
) -> Result<PreparedHost, HostProblem> {
    check_plausible(info)?;
    let instance_type = InstanceType {
        name: "instance".to_owned(),
        resources: resources(info, arch),
    };
    let gpus = i64::from(info.gpu_count);
    let total_blocks = total_blocks(blocks, i64::from(info.cpus), gpus)?;
    let place = JobProvisioningData {
        internal_ip: internal_ip(before, &info.addresses)?,
        instance_type: instance_type.clone(),
        ssh_proxy: ssh_proxy(reach),
        ..before.clone()
    };
    let offer = InstanceOffer {
        backend: place.backend,
        instance: Arc::new(instance_type),
        region: place.region.as_str().into(),
        price: 0.0,
        backend_data: Arc::default(),
    };
    let mut offer = offer.with_availability(InstanceAvailability::Available, InstanceRuntime::Shim);
    offer.total_blocks = u32::try_from(total_blocks).unwrap_or(1);
    Ok(PreparedHost {
        offer,
        place,
        total_blocks,
    })
}

/// More than machines have. What a host says of itself is not believed beyond.
const MAX_CPUS: u32 = 16_384;
const MAX_GPUS: u32 = 256;
const MAX_ADDRESSES: usize = 256;
const MAX_NAME_BYTES: usize = 256;

fn check_plausible(info: &HostInfo) -> Result<(), HostProblem> {
    let texts = info.addresses.iter().chain([&info.gpu_name, &info.gpu_vendor]);
    let is_plausible = info.cpus <= MAX_CPUS
        && info.gpu_count <= MAX_GPUS
        && info.addresses.len() <= MAX_ADDRESSES
        && texts.into_iter().all(|text| text.len() <= MAX_NAME_BYTES);
    match is_plausible {
        true => Ok(()),
        false => Err(HostProblem::Implausible {
            cpus: info.cpus,
            gpus: info.gpu_count,
            addresses: info.addresses.len(),
        }),
    }
}

/// What a machine has, as offers tell it.
pub fn resources(info: &HostInfo, arch: &str) -> Resources {
    let vendor = vendor(&info.gpu_vendor);
    let name = catalog_name(&info.gpu_vendor, &info.gpu_name);
    let gpu = Gpu {
        memory_mib: as_i64(marketed_memory(&name, info.gpu_memory)),
        name,
        vendor,
    };
    let is_arm = arch.starts_with("arm") || arch.starts_with("aarch");
    Resources {
        cpus: info.cpus.into(),
        memory_mib: as_i64(info.memory / MIB),
        gpus: vec![gpu; usize::try_from(info.gpu_count).unwrap_or(0)],
        spot: false,
        disk: Disk {
            size_mib: as_i64(info.disk_size / MIB),
        },
        cpu_arch: Some(if is_arm {
            CpuArchitecture::Arm
        } else {
            CpuArchitecture::X86
        }),
        description: String::new(),
    }
}

const MIB: u64 = 1024 * 1024;

fn as_i64(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

fn vendor(name: &str) -> Option<AcceleratorVendor> {
    match name {
        "nvidia" => Some(AcceleratorVendor::Nvidia),
        "amd" => Some(AcceleratorVendor::Amd),
        "intel" => Some(AcceleratorVendor::Intel),
        "tenstorrent" => Some(AcceleratorVendor::Tenstorrent),
        _ => None,
    }
}

/// `auto` is a block for each GPU, or for each CPU where there are no GPUs, or fewer CPUs than GPUs.
fn total_blocks(wanted: Option<i64>, cpus: i64, gpus: i64) -> Result<i64, HostProblem> {
    let blocks = wanted.unwrap_or(match gpus {
        0 => cpus,
        gpus => gpus.min(cpus),
    });
    let blocks = blocks.max(1);
    match cpus % blocks == 0 && gpus % blocks == 0 {
        true => Ok(blocks),
        false => Err(HostProblem::Blocks { blocks, cpus, gpus }),
    }
}

/// The address by which other nodes reach the host: the one that is given, the first within the network, or else its first of
/// IPv4.
fn internal_ip(before: &JobProvisioningData, addresses: &[String]) -> Result<Option<String>, HostProblem> {
    let has: Vec<IpAddr> = addresses.iter().filter_map(|text| address(text)).collect();
    if let Some(given) = &before.internal_ip {
        let known = given.parse().is_ok_and(|given: IpAddr| has.contains(&given));
        return match known {
            true => Ok(Some(given.clone())),
            false => Err(HostProblem::OtherAddress {
                internal_ip: given.clone(),
                addresses: addresses.to_vec(),
            }),
        };
    }
    let mut of_ipv4 = has.iter().filter(|address| address.is_ipv4());
    let Some(network) = &before.instance_network else {
        return Ok(of_ipv4.next().map(ToString::to_string));
    };
    let bounds = network_bounds(network);
    let is_within = |address: &IpAddr| bounds.is_some_and(|(first, last)| (first..=last).contains(address));
    let found = of_ipv4.find(|address| is_within(address));
    found
        .map(|found| Some(found.to_string()))
        .ok_or_else(|| HostProblem::NoAddress {
            network: network.clone(),
            addresses: addresses.to_vec(),
        })
}

/// An address of an interface, with or without its prefix.
fn address(text: &str) -> Option<IpAddr> {
    text.split('/').next()?.parse().ok()
}

#[cfg(test)]
mod tests;
