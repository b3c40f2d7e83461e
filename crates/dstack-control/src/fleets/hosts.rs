//! Hosts of SSH fleets: their keys at rest, and the instances made of them.

use std::collections::BTreeSet;
use std::sync::Arc;

use dstack_model::backends::BackendType;
use dstack_model::fleets::{Blocks, FleetSpec, SshHost, SshHostParams, SshParams};
use dstack_model::instances::{Disk, InstanceAvailability, InstanceRuntime, InstanceType, Resources, SshKey};
use dstack_model::offers::{InstanceOffer, InstanceOfferWithAvailability};
use dstack_model::runs::JobProvisioningData;
use dstack_plan::hosts::HostKey;
use dstack_store::StoreError;
use dstack_store::encryption::Encryption;
use dstack_units::FleetId;

use crate::error::{ControlError, Result};

/// Until the host tells what it has.
const UNKNOWN: Resources = Resources {
    cpus: 2,
    memory_mib: 8,
    gpus: Vec::new(),
    spot: false,
    disk: Disk { size_mib: 102_400 },
    cpu_arch: None,
    description: String::new(),
};

/// Changes every private key of a fleet.
fn with_keys(
    mut spec: FleetSpec,
    change: &dyn Fn(&str) -> Result<String, StoreError>,
) -> Result<FleetSpec, StoreError> {
    let one = |key: &mut Option<SshKey>| -> Result<(), StoreError> {
        if let Some(private) = key.as_mut().and_then(|key| key.private.as_mut()) {
            *private = change(private)?;
        }
        Ok(())
    };
    if let Some(ssh) = &mut spec.configuration.ssh_config {
        one(&mut ssh.ssh_key)?;
        if let Some(proxy) = &mut ssh.proxy_jump {
            one(&mut proxy.ssh_key)?;
        }
        for host in &mut ssh.hosts {
            if let SshHost::Params(params) = host {
                one(&mut params.ssh_key)?;
                if let Some(proxy) = &mut params.proxy_jump {
                    one(&mut proxy.ssh_key)?;
                }
            }
        }
    }
    Ok(spec)
}

/// For storing: private keys are encrypted.
pub fn sealed(spec: FleetSpec, encryption: &Encryption) -> Result<FleetSpec, StoreError> {
    with_keys(spec, &|key| encryption.encrypt(key))
}

/// As it was before [`sealed`].
pub fn opened(spec: FleetSpec, encryption: &Encryption) -> Result<FleetSpec, StoreError> {
    with_keys(spec, &|key| Ok(encryption.decrypt(key)?.expose().to_owned()))
}

/// Refuses hosts that another fleet has. `used` are the hosts of all fleets, `own` is the fleet that is changed.
pub(super) fn check_free(
    spec: &FleetSpec,
    own: Option<FleetId>,
    used: &[(Option<FleetId>, HostKey)],
) -> Result<()> {
    let Some(ssh) = &spec.configuration.ssh_config else {
        return Ok(());
    };
    let others = used.iter().filter(|(fleet, _)| *fleet != own);
    let others: BTreeSet<&HostKey> = others.map(|(_, host)| host).collect();
    let is_taken = |host: &&SshHost| others.contains(&HostKey::of(ssh, host));
    let taken = ssh.hosts.iter().filter(is_taken);
    let taken: Vec<&str> = taken.map(SshHost::hostname).collect();
    if taken.is_empty() {
        return Ok(());
    }
    Err(ControlError::refused(format!(
        "Instances [{}] are already assigned to a fleet.",
        taken.join(", ")
    )))
}

/// The specification without private keys, as it is shown.
pub fn without_keys(mut spec: FleetSpec) -> FleetSpec {
    let Some(ssh) = &mut spec.configuration.ssh_config else {
        return spec;
    };
    ssh.ssh_key = None;
    if let Some(proxy) = &mut ssh.proxy_jump {
        proxy.ssh_key = None;
    }
    for host in &mut ssh.hosts {
        if let SshHost::Params(params) = host {
            params.ssh_key = None;
            if let Some(proxy) = &mut params.proxy_jump {
                proxy.ssh_key = None;
            }
        }
    }
    spec
}

/// What is known of a host before it was ever reached.
pub(super) struct NewHost {
    pub(super) offer: InstanceOfferWithAvailability,
    pub(super) provisioning: JobProvisioningData,
    pub(super) total_blocks: Option<i64>,
}

/// A host as an instance of the given name.
pub(super) fn new_host(ssh: &SshParams, host: &SshHost, blocks: Blocks, instance_name: &str) -> NewHost {
    let params = match host {
        SshHost::Params(params) => SshHostParams::clone(params),
        SshHost::Hostname(name) => SshHostParams::with_hostname(name),
    };
    let instance_type = InstanceType {
        name: "ssh".to_owned(),
        resources: UNKNOWN,
    };
    let offer = InstanceOffer {
        backend: BackendType::Remote,
        instance: Arc::new(instance_type.clone()),
        region: "remote".into(),
        price: 0.0,
        backend_data: Arc::default(),
    };
    let provisioning = JobProvisioningData {
        backend: BackendType::Remote,
        base_backend: None,
        instance_type,
        instance_id: instance_name.to_owned(),
        hostname: Some(params.hostname),
        internal_ip: params.internal_ip,
        public_ip_enabled: true,
        instance_network: ssh.network.clone(),
        region: "remote".to_owned(),
        availability_zone: None,
        reservation: None,
        price: 0.0,
        username: params.user.or_else(|| ssh.user.clone()).unwrap_or_default(),
        ssh_port: Some(params.port.or(ssh.port).unwrap_or(22)),
        dockerized: true,
        ssh_proxy: None,
        backend_data: Some(String::new()),
        gpu_driver: None,
    };
    NewHost {
        offer: offer.with_availability(InstanceAvailability::Available, InstanceRuntime::Shim),
        provisioning,
        total_blocks: match params.blocks.unwrap_or(blocks) {
            Blocks::Auto => None,
            Blocks::Count(count) => Some(count),
        },
    }
}
