use dstack_model::gateways::{GatewayLoadBalancerData, GatewayReplicaProvisioningData};

use crate::lifecycle::Resource;
use crate::{Marks, Owner};

/// User who may log in to machines of gateways, and become root (as with dstack 0.22.5).
pub const GATEWAY_USER: &str = "ubuntu";

/// Machines of gateways: small ones, of the cloud's plain image, which are reached at their ports 22, 80 and 443; or containers. They need
/// an SSH server at port 22, to which the agent is brought, and no Docker. A container that is started again keeps the server's host key.
#[derive(Debug, Clone, PartialEq)]
pub enum GatewayMachine {}

impl Resource for GatewayMachine {
    type Want = GatewayRequest;
    /// Region.
    type Site = String;
    /// Its `ip_address` is where clients and servers reach it.
    type Place = GatewayReplicaProvisioningData;
}

/// A machine that is asked for.
#[derive(Debug, Clone, PartialEq)]
pub struct GatewayRequest {
    /// What it carries: whatever is made for the request is found by them.
    pub marks: Marks,
    /// For whom it is.
    pub owner: Owner,
    /// Region that it is made in.
    pub region: String,
    /// Type of the machine; unset: the smallest that will do.
    pub instance_type: Option<String>,
    /// It is reached from everywhere, and not from private networks only.
    pub is_public: bool,
    /// Public keys that may log in as [`GATEWAY_USER`], each a line `type base64`: that of the project first.
    pub authorized_keys: Vec<String>,
    /// The load balancer behind which it will be: some take machines of one zone only.
    pub load_balancer: Option<GatewayLoadBalancerData>,
}
