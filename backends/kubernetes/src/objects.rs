//! The objects of the API as far as they are read: core/v1.

use std::collections::BTreeMap;

use serde::Deserialize;

#[derive(Debug, Clone, Deserialize)]
pub(crate) struct List<T> {
    // Without a default: an answer that was cut off must not read as an empty list.
    pub(crate) items: Vec<T>,
    #[serde(default)]
    pub(crate) metadata: ListMetadata,
}

/// Where a list goes on. See <https://kubernetes.io/docs/reference/using-api/api-concepts/#retrieving-large-results-sets-in-chunks>.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(crate) struct ListMetadata {
    #[serde(rename = "continue")]
    pub(crate) next: Option<String>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Metadata {
    pub(crate) name: String,
    pub(crate) uid: String,
    pub(crate) labels: BTreeMap<String, String>,
    pub(crate) annotations: BTreeMap<String, String>,
    pub(crate) creation_timestamp: Option<String>,
    pub(crate) deletion_timestamp: Option<String>,
    pub(crate) resource_version: String,
    pub(crate) owner_references: Vec<OwnerReference>,
}

/// With what an object goes.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(crate) struct OwnerReference {
    pub(crate) uid: String,
}

/// What is needed of any object.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Object {
    pub(crate) metadata: Metadata,
}

#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Node {
    pub(crate) metadata: Metadata,
    #[serde(default)]
    pub(crate) spec: NodeSpec,
    #[serde(default)]
    pub(crate) status: NodeStatus,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(crate) struct NodeSpec {
    pub(crate) unschedulable: bool,
    pub(crate) taints: Vec<Taint>,
}

#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Taint {
    pub(crate) key: String,
    pub(crate) effect: String,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct NodeStatus {
    pub(crate) allocatable: BTreeMap<String, String>,
    pub(crate) addresses: Vec<Address>,
    pub(crate) conditions: Vec<Condition>,
    pub(crate) node_info: NodeInfo,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(crate) struct NodeInfo {
    pub(crate) architecture: String,
}

#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Address {
    #[serde(rename = "type")]
    pub(crate) kind: String,
    pub(crate) address: String,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Condition {
    #[serde(rename = "type")]
    pub(crate) kind: String,
    pub(crate) status: String,
    pub(crate) reason: String,
    pub(crate) message: String,
    pub(crate) last_transition_time: Option<String>,
}

#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Pod {
    pub(crate) metadata: Metadata,
    #[serde(default)]
    pub(crate) spec: PodSpec,
    #[serde(default)]
    pub(crate) status: PodStatus,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct PodSpec {
    pub(crate) node_name: Option<String>,
    pub(crate) containers: Vec<Container>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Container {
    pub(crate) resources: Asked,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Asked {
    pub(crate) requests: BTreeMap<String, String>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct PodStatus {
    pub(crate) phase: String,
    pub(crate) reason: String,
    pub(crate) message: String,
    #[serde(rename = "podIP")]
    pub(crate) pod_ip: Option<String>,
    pub(crate) start_time: Option<String>,
    pub(crate) conditions: Vec<Condition>,
    pub(crate) container_statuses: Vec<ContainerStatus>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct ContainerStatus {
    pub(crate) state: ContainerState,
    /// Before it was started again.
    pub(crate) last_state: ContainerState,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(crate) struct ContainerState {
    pub(crate) waiting: Option<Stopped>,
    pub(crate) terminated: Option<Stopped>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Stopped {
    pub(crate) reason: String,
    pub(crate) message: String,
    pub(crate) exit_code: i64,
}

#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Service {
    pub(crate) metadata: Metadata,
    #[serde(default)]
    pub(crate) spec: ServiceSpec,
    #[serde(default)]
    pub(crate) status: ServiceStatus,
}

impl Service {
    /// Where its load balancer is, if it has one yet: an IP address, or a host name.
    pub(crate) fn address(&self) -> Option<&str> {
        let mut ingress = self.status.load_balancer.ingress.iter();
        ingress.find_map(|one| one.ip.as_deref().or(one.hostname.as_deref()))
    }
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct ServiceStatus {
    pub(crate) load_balancer: LoadBalancer,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(crate) struct LoadBalancer {
    pub(crate) ingress: Vec<Ingress>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Ingress {
    pub(crate) ip: Option<String>,
    pub(crate) hostname: Option<String>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct ServiceSpec {
    #[serde(rename = "clusterIP")]
    pub(crate) cluster_ip: Option<String>,
    pub(crate) ports: Vec<ServicePort>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct ServicePort {
    pub(crate) node_port: Option<i64>,
}

#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Claim {
    pub(crate) metadata: Metadata,
    #[serde(default)]
    pub(crate) spec: ClaimSpec,
    #[serde(default)]
    pub(crate) status: ClaimStatus,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(crate) struct ClaimSpec {
    pub(crate) resources: Asked,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(crate) struct ClaimStatus {
    pub(crate) phase: String,
    pub(crate) capacity: BTreeMap<String, String>,
}
