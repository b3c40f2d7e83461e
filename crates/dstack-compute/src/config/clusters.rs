//! Clusters: Kubernetes and Slurm; and other dstack servers.

use dstack_decode::Decode;
use dstack_decode::schema::{Schema, Schemas, any_of};
use dstack_decode::{Cx, Value};
use dstack_model::tag;
use serde::Serialize;

use super::{ApiTokenCreds, Credential};

tag!(
    /// The value of `type` for [`KubernetesConfig`].
    pub KubernetesTag = "kubernetes"
);
tag!(
    /// The value of `type` for [`SlurmConfig`].
    pub SlurmTag = "slurm"
);
tag!(
    /// The value of `type` for [`DstackConfig`].
    pub DstackTag = "dstack"
);

/// Kubernetes clusters of one kubeconfig.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Decode)]
pub struct KubernetesConfig {
    /// The type of the backend.
    #[serde(rename = "type")]
    #[decode(default)]
    pub kind: KubernetesTag,
    /// Contexts to use, each a region; the current one when unset.
    pub contexts: Option<Vec<KubernetesContext>>,
    /// How nodes are reached from outside.
    pub proxy_jump: Option<KubernetesProxyJump>,
    /// The namespace of everything that is created.
    pub namespace: Option<String>,
    /// The image of gateways' pods; `ubuntu:22.04` when unset. dstack 0.22.5 does not have it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gateway_image: Option<String>,
    /// How the clusters are reached, with credentials.
    pub kubeconfig: Kubeconfig,
}

/// A context by name, or with options.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum KubernetesContext {
    /// The context of this name.
    Name(String),
    /// A context with settings of its own.
    Options(KubernetesContextOptions),
}

impl dstack_decode::Decode for KubernetesContext {
    fn decode(value: &Value, cx: &mut Cx) -> Option<Self> {
        match value {
            Value::Object(_) => KubernetesContextOptions::decode(value, cx).map(Self::Options),
            _ => String::decode(value, cx).map(Self::Name),
        }
    }
}

impl Schema for KubernetesContext {
    fn schema(schemas: &mut Schemas) -> Value {
        any_of(vec![
            KubernetesContextOptions::schema(schemas),
            String::schema(schemas),
        ])
    }
}

/// A context of the kubeconfig, which names a cluster and a user.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Decode)]
pub struct KubernetesContextOptions {
    /// Name of the context in the kubeconfig.
    pub name: String,
    /// How its nodes are reached from outside.
    pub proxy_jump: Option<KubernetesProxyJump>,
}

/// How nodes are reached from outside.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Decode)]
pub struct KubernetesProxyJump {
    /// Address of any node.
    pub hostname: Option<String>,
    /// A port that can be reached from outside.
    pub port: Option<i64>,
}

/// A kubeconfig, with the credentials in it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Decode)]
pub struct Kubeconfig {
    /// Where it was read from.
    #[decode(default)]
    pub filename: String,
    /// The kubeconfig's text, in YAML.
    pub data: Credential,
}

/// The configuration of the backend for Slurm.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Decode)]
pub struct SlurmConfig {
    /// The type of the backend.
    #[serde(rename = "type")]
    #[decode(default)]
    pub kind: SlurmTag,
    /// The clusters, each of which is a region.
    pub clusters: Vec<SlurmCluster>,
}

/// A Slurm cluster, reached through its login node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Decode)]
pub struct SlurmCluster {
    /// Its name, which is its region.
    pub name: String,
    /// Partitions by GPU; without it there are no jobs with GPUs.
    pub gpu_partitions: Option<Vec<SlurmGpuPartitions>>,
    /// Partitions for jobs without GPUs; all others when unset.
    pub cpu_partitions: Option<Vec<String>>,
    /// Address of the login node.
    pub hostname: String,
    /// SSH port of the login node.
    pub port: Option<i64>,
    /// User on the login node.
    pub user: String,
    /// The user's key.
    pub private_key: SlurmPrivateKey,
}

/// Partitions with a GPU.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Decode)]
pub struct SlurmGpuPartitions {
    /// The GPU of the partitions' nodes: `[vendor:]name[:memory]`.
    pub gpu: String,
    /// Names of the partitions.
    pub partitions: Vec<String>,
}

/// A private key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Decode)]
pub struct SlurmPrivateKey {
    /// Where it was read from.
    #[decode(default)]
    pub path: String,
    /// The text of the key.
    pub content: Credential,
}

// dstack 0.22.5 has no such backend; what it says of dstack Sky's own (`base_backends`) is no configuration.
/// The configuration of the backend for another dstack server, such as dstack Sky.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Decode)]
pub struct DstackConfig {
    /// The type of the backend.
    #[serde(rename = "type")]
    #[decode(default)]
    pub kind: DstackTag,
    /// Address of the other server.
    pub url: String,
    /// The project there, in which runs are made.
    pub project: String,
    /// Backends of that project to use; all when unset.
    pub backends: Option<Vec<String>>,
    /// How the server authenticates: the token of a user there.
    pub creds: ApiTokenCreds,
}
