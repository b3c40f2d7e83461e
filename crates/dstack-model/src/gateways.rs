//! Gateways: their configuration, certificates, load balancers and status.

use dstack_units::{GatewayId, Time};
use serde::Serialize;

use crate::backends::BackendType;
use crate::common::{ApplyAction, Tags, check_tags};
use crate::{Decode, string_enum, tag};

string_enum! {
    /// State of a gateway.
    pub enum GatewayStatus {
        /// To be made.
        Submitted = "submitted",
        /// The cloud has been asked for it.
        Provisioning = "provisioning",
        /// All that it needs exists, and it serves.
        Running = "running",
        /// Could not be made.
        Failed = "failed",
    }
}

string_enum! {
    /// State of a gateway's replica.
    pub enum GatewayReplicaStatus {
        /// To be made.
        Submitted = "submitted",
        /// The cloud has been asked for its instance.
        Provisioning = "provisioning",
        /// Its instance exists, and serves.
        Running = "running",
        /// Its instance is being deleted.
        Terminating = "terminating",
        /// Its instance does not exist any more.
        Terminated = "terminated",
    }
}

tag!(
    /// The value of `type` in the configuration of a gateway.
    pub GatewayTag = "gateway"
);
tag!(
    /// The value of `type` for [`LetsEncryptGatewayCertificate`].
    pub LetsEncryptTag = "lets-encrypt"
);
tag!(
    /// The value of `type` for [`AcmGatewayCertificate`].
    pub AcmTag = "acm"
);
tag!(
    /// The value of `type` for [`GcpCertificateManagerGatewayCertificate`].
    pub GcpCmTag = "gcp-cm"
);
tag!(
    /// The value of `type` for [`AlbGatewayLoadBalancer`].
    pub AlbTag = "alb"
);

/// Automatic certificates by Let's Encrypt.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Decode)]
pub struct LetsEncryptGatewayCertificate {
    /// The kind of certificate: `lets-encrypt`.
    #[serde(rename = "type")]
    #[decode(default)]
    pub kind: LetsEncryptTag,
}

/// Certificates by AWS Certificate Manager. Implies `load_balancer: { type: alb }`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Decode)]
pub struct AcmGatewayCertificate {
    /// The kind of certificate: `acm`.
    #[serde(rename = "type")]
    #[decode(default)]
    pub kind: AcmTag,
    /// The ARN of the wildcard ACM certificate for the domain.
    pub arn: String,
}

/// Certificates by Google Cloud Certificate Manager. Requires `load_balancer: { type: alb }`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Decode)]
pub struct GcpCertificateManagerGatewayCertificate {
    /// The kind of certificate: `gcp-cm`.
    #[serde(rename = "type")]
    #[decode(default)]
    pub kind: GcpCmTag,
    /// The full resource name of the Certificate Manager certificate for the domain.
    pub name: String,
}

/// Where a gateway's certificates come from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Decode)]
#[serde(untagged)]
#[decode(tag = "type")]
pub enum AnyGatewayCertificate {
    /// By Let's Encrypt, requested and renewed by the gateway itself.
    #[decode(rename = "lets-encrypt")]
    LetsEncrypt(LetsEncryptGatewayCertificate),
    /// By AWS Certificate Manager, on an Application Load Balancer.
    #[decode(rename = "acm")]
    Acm(AcmGatewayCertificate),
    /// By Google Cloud Certificate Manager, on an Application Load Balancer.
    #[decode(rename = "gcp-cm")]
    GcpCm(GcpCertificateManagerGatewayCertificate),
}

impl Default for AnyGatewayCertificate {
    fn default() -> Self {
        Self::LetsEncrypt(LetsEncryptGatewayCertificate::default())
    }
}

/// An Application Load Balancer.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Decode)]
pub struct AlbGatewayLoadBalancer {
    /// The kind of load balancer: `alb`.
    #[serde(rename = "type")]
    #[decode(default)]
    pub kind: AlbTag,
}

/// What stands before a gateway's replicas.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Decode)]
#[serde(untagged)]
#[decode(tag = "type")]
pub enum AnyGatewayLoadBalancer {
    /// An Application Load Balancer.
    #[decode(rename = "alb")]
    Alb(AlbGatewayLoadBalancer),
}

/// The configuration of a gateway: the entry for HTTPS requests to services.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Decode)]
pub struct GatewayConfiguration {
    /// The configuration type.
    #[serde(rename = "type")]
    #[decode(default)]
    pub kind: GatewayTag,
    /// The gateway name.
    pub name: Option<String>,
    /// Whether the gateway is the project's default.
    pub default: Option<bool>,
    /// The gateway backend.
    pub backend: BackendType,
    /// The gateway region.
    pub region: String,
    /// Backend-specific instance type to use for the gateway instance.
    #[decode(min_len = 1)]
    pub instance_type: Option<String>,
    /// The gateway wildcard domain name, e.g. `example.com`.
    pub domain: Option<String>,
    /// Allocate public IP for the gateway.
    #[decode(default = true)]
    pub public_ip: bool,
    /// The load balancer configuration.
    pub load_balancer: Option<AnyGatewayLoadBalancer>,
    /// The SSL certificate configuration. Set to `null` to disable. Defaults to `type: lets-encrypt`.
    #[decode(default = Some(AnyGatewayCertificate::default()))]
    pub certificate: Option<AnyGatewayCertificate>,
    /// The number of gateway replicas. Defaults to `1`.
    #[decode(ge = 1)]
    pub replicas: Option<i64>,
    /// The custom tags to associate with the gateway.
    #[decode(check = check_tags)]
    pub tags: Option<Tags>,
}

impl GatewayConfiguration {
    /// The SSH fleet on whose hosts its replicas run: its `region`, where its backend is that of SSH fleets.
    pub fn fleet(&self) -> Option<&str> {
        (self.backend == BackendType::Remote).then_some(self.region.as_str())
    }

    /// Whether a load balancer stands before its replicas: certificates by ACM imply one.
    pub const fn has_load_balancer(&self) -> bool {
        self.load_balancer.is_some() || matches!(self.certificate, Some(AnyGatewayCertificate::Acm(_)))
    }

    /// How many addresses its load balancer adds to `X-Forwarded-For`, that of the client first; `None`: it has no load balancer. Google's
    /// adds its own ("X-Forwarded-For header", Application Load Balancers), that of AWS does not.
    pub fn load_balancer_hops(&self) -> Option<u8> {
        let hops = if self.backend == BackendType::Gcp { 2 } else { 1 };
        self.has_load_balancer().then_some(hops)
    }
}

/// What a gateway is made from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Decode)]
pub struct GatewaySpec {
    /// The gateway's configuration, as the user wrote it.
    pub configuration: GatewayConfiguration,
    /// Where the configuration's file is.
    pub configuration_path: Option<String>,
}

/// A gateway's replica.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Decode)]
pub struct GatewayReplica {
    /// Address of its instance, a name or an IP; `null` until it has one.
    pub hostname: Option<String>,
    /// Number among the replicas of the gateway.
    pub replica_num: u32,
    /// Backend that its instance is created in.
    pub backend: Option<BackendType>,
    /// Region of the backend that its instance is in.
    pub region: Option<String>,
    /// When it was made.
    pub created_at: Time,
    /// How far its instance is.
    pub status: GatewayReplicaStatus,
    /// Why it is in this state.
    pub status_message: Option<String>,
}

/// A gateway with its replicas, as the API answers it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Decode)]
pub struct Gateway {
    /// Id of the gateway.
    pub id: GatewayId,
    /// Name, unique within the project: `^[a-z][a-z0-9-]{1,40}$`.
    pub name: String,
    /// Name of the project that owns it; others may have it imported.
    pub project_name: String,
    /// What it is made from.
    pub configuration: GatewayConfiguration,
    /// When it was made.
    pub created_at: Time,
    /// How far it is.
    pub status: GatewayStatus,
    /// Why it is in this state.
    pub status_message: Option<String>,
    /// Address of the load balancer, if there is one.
    pub hostname: Option<String>,
    /// The domain of its services.
    pub wildcard_domain: Option<String>,
    /// Whether it is the viewing project's default.
    pub default: bool,
    /// Its replicas; each has an instance of its own.
    #[decode(default)]
    pub replicas: Vec<GatewayReplica>,
    /// Deprecated, never set.
    pub backend: Option<BackendType>,
    /// Deprecated, never set.
    pub region: Option<String>,
    /// Deprecated, only set for clients before 0.20.25.
    pub ip_address: Option<String>,
    /// Deprecated, only set for clients before 0.20.25.
    pub instance_id: Option<String>,
}

/// What applying a gateway would do.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Decode)]
pub struct GatewayPlan {
    /// Name of the project that the plan is for.
    pub project_name: String,
    /// Name of the user who asked for the plan.
    pub user: String,
    /// The spec as it was sent.
    pub spec: GatewaySpec,
    /// With the server's defaults.
    pub effective_spec: GatewaySpec,
    /// The gateway of that name.
    pub current_resource: Option<Gateway>,
    /// Create or update.
    pub action: ApplyAction,
}

/// A plan as sent back to be applied.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Decode)]
pub struct ApplyGatewayPlanInput {
    /// What to apply.
    pub spec: GatewaySpec,
    /// The expected current resource. If the resource has changed, the apply fails unless `force: true`.
    pub current_resource: Option<Gateway>,
}

/// What a replica is made from (stored).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Decode)]
pub struct GatewayReplicaConfiguration {
    /// Name of the gateway's project.
    pub project_name: String,
    /// The instance's name.
    pub instance_name: String,
    /// Backend that the instance is created in.
    pub backend: BackendType,
    /// Region of the backend that the instance is created in.
    pub region: String,
    /// The instance's type.
    pub instance_type: Option<String>,
    /// Whether it gets a public address.
    pub public_ip: bool,
    /// The key that may log in.
    pub ssh_key_pub: String,
    /// Where its certificates come from.
    pub certificate: Option<AnyGatewayCertificate>,
    /// Tags of the cloud resources.
    pub tags: Option<Tags>,
}

/// What the backend answered for a replica.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Decode)]
pub struct GatewayReplicaProvisioningData {
    /// The backend's id of the instance.
    pub instance_id: String,
    /// Its address; a name on Kubernetes.
    pub ip_address: String,
    /// Region that the instance is in.
    pub region: String,
    /// Availability zone that the instance is in, where the backend has such.
    pub availability_zone: Option<String>,
    /// JSON of the backend.
    pub backend_data: Option<String>,
}

/// What a load balancer is made from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Decode)]
pub struct GatewayLoadBalancerConfiguration {
    /// Name of the gateway's project.
    pub project_name: String,
    /// The gateway's name.
    pub gateway_name: String,
    /// Region that the load balancer is created in.
    pub region: String,
    /// Whether it gets a public address.
    pub public_ip: bool,
    /// Where its certificates come from.
    pub certificate: Option<AnyGatewayCertificate>,
    /// Tags of the cloud resources.
    pub tags: Option<Tags>,
}

/// What the backend answered for a load balancer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Decode)]
pub struct GatewayLoadBalancerData {
    /// Name under which the load balancer is reached.
    pub hostname: String,
    /// JSON of the backend.
    pub backend_data: String,
}

/// A load balancer that was made (stored).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Decode)]
pub struct GatewayLoadBalancer {
    /// What its backend has answered.
    pub data: GatewayLoadBalancerData,
    /// Ids of the machines that may have requests of it, sorted.
    pub machines: Vec<String>,
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn a_certificate_of_acm_implies_a_load_balancer_and_google_adds_its_own_address() {
        let hops = |more: &Value| {
            let mut asked = json!({"type": "gateway", "backend": "aws", "region": "r"});
            for (name, value) in more.as_object().unwrap() {
                asked[name] = value.clone();
            }
            let configuration: GatewayConfiguration = crate::decode::decode_strict(&asked).unwrap();
            configuration.load_balancer_hops()
        };
        assert_eq!(hops(&json!({})), None);
        assert_eq!(
            hops(&json!({"certificate": {"type": "acm", "arn": "a"}})),
            Some(1)
        );
        let alb = json!({"backend": "gcp", "certificate": null, "load_balancer": {"type": "alb"}});
        assert_eq!(hops(&alb), Some(2));
    }
}
