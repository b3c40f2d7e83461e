//! Machines of gateways, for clouds that make them as they make machines for jobs.

use std::sync::Arc;

use dstack_compute::{
    GATEWAY_USER, GatewayMachine, GatewayRequest, Known, Machine, MachineRequest, Sign, Step,
};
use dstack_model::backends::BackendType;
use dstack_model::gateways::GatewayReplicaProvisioningData;
use dstack_model::instances::{Disk, InstanceAvailability, InstanceRuntime, InstanceType, Resources};
use dstack_model::offers::InstanceOfferWithAvailability;
use dstack_model::runs::JobProvisioningData;

const SSH_PORT: i64 = 22;

/// The machine of a gateway, asked for as one for jobs: of the type that is wanted, or else of `default_type`. What its type has and
/// costs is not known.
pub fn gateway_machine(
    want: &GatewayRequest,
    backend: BackendType,
    default_type: &str,
    disk_gib: i64,
) -> MachineRequest {
    MachineRequest {
        marks: want.marks.clone(),
        owner: want.owner.clone(),
        reservation: None,
        offer: InstanceOfferWithAvailability {
            backend,
            instance: Arc::new(instance_type(
                want.instance_type.as_deref().unwrap_or(default_type),
                disk_gib,
            )),
            region: want.region.as_str().into(),
            price: 0.0,
            backend_data: Arc::default(),
            availability: InstanceAvailability::Unknown,
            availability_zones: None,
            instance_runtime: InstanceRuntime::Shim,
            blocks: 1,
            total_blocks: 1,
            group_size: None,
        },
        authorized_keys: want.authorized_keys.clone(),
        placement_group: None,
    }
}

fn instance_type(name: &str, disk_gib: i64) -> InstanceType {
    InstanceType {
        name: name.to_owned(),
        resources: Resources {
            cpus: 0,
            memory_mib: 0,
            gpus: Vec::new(),
            spot: false,
            disk: Disk {
                size_mib: disk_gib * 1024,
            },
            cpu_arch: None,
            description: String::new(),
        },
    }
}

/// What is known of the machine of a gateway, as of one for jobs.
pub fn known_gateway_machine(known: &Known<GatewayMachine>, backend: BackendType) -> Known<Machine> {
    Known {
        marks: known.marks.clone(),
        site: known.site.clone(),
        place: known.place.as_ref().map(|place| as_place(place, backend)),
    }
}

fn as_place(place: &GatewayReplicaProvisioningData, backend: BackendType) -> JobProvisioningData {
    JobProvisioningData {
        backend,
        base_backend: None,
        instance_type: instance_type("", 0),
        instance_id: place.instance_id.clone(),
        hostname: Some(place.ip_address.clone()),
        internal_ip: None,
        public_ip_enabled: true,
        instance_network: None,
        region: place.region.clone(),
        availability_zone: place.availability_zone.clone(),
        reservation: None,
        price: 0.0,
        username: GATEWAY_USER.to_owned(),
        ssh_port: Some(SSH_PORT),
        dockerized: true,
        ssh_proxy: None,
        backend_data: place.backend_data.clone(),
        gpu_driver: None,
    }
}

fn gateway_place(place: JobProvisioningData) -> GatewayReplicaProvisioningData {
    GatewayReplicaProvisioningData {
        instance_id: place.instance_id,
        ip_address: place.hostname.unwrap_or_default(),
        region: place.region,
        availability_zone: place.availability_zone,
        backend_data: place.backend_data,
    }
}

/// How far the machine of a gateway is that is made as one for jobs.
pub fn gateway_step(step: Step<JobProvisioningData>) -> Step<GatewayReplicaProvisioningData> {
    match step {
        Step::Ready(place) => Step::Ready(gateway_place(place)),
        Step::Underway { seen, doing, again } => Step::Underway {
            seen: seen.map(gateway_place),
            doing,
            again,
        },
    }
}

/// How the machine of a gateway is that is looked at as one for jobs.
pub fn gateway_sign(sign: Sign<JobProvisioningData>) -> Sign<GatewayReplicaProvisioningData> {
    match sign {
        Sign::Well => Sign::Well,
        Sign::Moved(place) => Sign::Moved(gateway_place(place)),
        Sign::Ending { at, why } => Sign::Ending { at, why },
        Sign::Lost(why) => Sign::Lost(why),
    }
}
