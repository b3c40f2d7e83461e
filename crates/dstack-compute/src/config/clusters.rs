//! Clusters: Kubernetes and Slurm; and dstack Sky.

use dstack_decode::Decode;
use dstack_decode::schema::{Schema, Schemas, any_of};
use dstack_decode::{Cx, Value};
use dstack_model::tag;
use serde::Serialize;

use super::Credential;

tag!(
    /// `kubernetes`.
    pub KubernetesTag = "kubernetes"
);
tag!(
    /// `slurm`.
    pub SlurmTag = "slurm"
);
tag!(
    /// `dstack`.
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
    /// The kubeconfig.
    pub kubeconfig: Kubeconfig,
}

/// A context by name, or with options.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum KubernetesContext {
    /// Its name.
    Name(String),
    /// With options.
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

/// A context.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Decode)]
pub struct KubernetesContextOptions {
    /// Its name.
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

/// A kubeconfig.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Decode)]
pub struct Kubeconfig {
    /// Where it was read from.
    #[decode(default)]
    pub filename: String,
    /// Its content.
    pub data: Credential,
}

/// Slurm clusters.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Decode)]
pub struct SlurmConfig {
    /// The type of the backend.
    #[serde(rename = "type")]
    #[decode(default)]
    pub kind: SlurmTag,
    /// The clusters.
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
    /// `[vendor:]name[:memory]`.
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
    /// Its content.
    pub content: Credential,
}

/// dstack Sky.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Decode)]
pub struct DstackConfig {
    /// The type of the backend.
    #[serde(rename = "type")]
    #[decode(default)]
    pub kind: DstackTag,
    /// Backends behind it.
    pub base_backends: Vec<String>,
}
