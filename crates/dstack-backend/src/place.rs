use dstack_model::offers::InstanceOfferWithAvailability;
use dstack_model::runs::JobProvisioningData;

/// The place of a machine with a public address, whose agent runs containers: what is more of it is for the backend to fill in.
pub fn machine_place(
    offer: &InstanceOfferWithAvailability,
    id: String,
    hostname: String,
    username: &str,
    ssh_port: i64,
) -> JobProvisioningData {
    JobProvisioningData {
        backend: offer.backend,
        base_backend: None,
        instance_type: (*offer.instance).clone(),
        instance_id: id,
        hostname: Some(hostname),
        internal_ip: None,
        public_ip_enabled: true,
        instance_network: None,
        region: offer.region.to_string(),
        availability_zone: None,
        reservation: None,
        price: offer.price,
        username: username.to_owned(),
        ssh_port: Some(ssh_port),
        dockerized: true,
        ssh_proxy: None,
        backend_data: None,
        gpu_driver: None,
    }
}
