//! Services and their replicas, as the server tells of them.

use dstack_agent_api::gateway::Split;
use dstack_system::Secret;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

/// A service.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ServiceRecord {
    /// Under which its requests are counted; never changes.
    pub key: Uuid,
    /// Its run, as the server told it: servers of old versions do not at first.
    pub id: Option<String>,
    /// When it was registered, in seconds since 1970.
    pub created: i64,
    /// Its host name.
    pub domain: String,
    /// Over TLS, with a certificate of this gateway.
    pub https: bool,
    /// Requests need a token of a member of the project.
    pub auth: bool,
    /// Bytes of a request's body; 0: any.
    pub client_max_body_size: u64,
    /// Of no meaning at a gateway, where a service has a host name of its own; kept for whoever reads the file.
    #[serde(default = "yes")]
    pub strip_prefix: bool,
    /// As long as a replica may be silent, in seconds.
    #[serde(default = "default_read_timeout")]
    pub read_timeout: u64,
    /// How often clients may ask.
    #[serde(default)]
    pub rate_limits: Vec<RateLimitRecord>,
    /// Only the paths of a model are passed on.
    #[serde(default)]
    pub has_router_replica: bool,
    /// Which replica gets a request.
    #[serde(default, skip_serializing_if = "BalancingRecord::is_default")]
    pub balancing: BalancingRecord,
    /// The model that it serves.
    #[serde(default)]
    pub model: Option<ModelRecord>,
    /// How its requests are split while a new deployment stands beside the old one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub split: Option<Split>,
    /// Where it answers.
    #[serde(default)]
    pub replicas: Vec<ReplicaRecord>,
}

impl ServiceRecord {
    /// The replica of a job.
    pub fn replica(&self, job: &str) -> Option<&ReplicaRecord> {
        self.replicas.iter().find(|replica| replica.job_id == job)
    }

    /// Browsers may ask it from any page: models are asked so.
    pub fn allows_any_origin(&self) -> bool {
        let is_openai = |model: &ModelRecord| matches!(model.format, ModelFormat::Openai { .. });
        self.model.as_ref().is_some_and(is_openai)
    }
}

/// Which replica of a service gets a request.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BalancingRecord {
    /// The one that has seen most of the beginning of the prompt, unless it is too busy.
    Prefix,
    /// The less busy one of two chosen at random; so also where a newer server asks for something else.
    #[default]
    #[serde(other)]
    LeastRequests,
}

impl BalancingRecord {
    fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

const fn yes() -> bool {
    true
}

pub(crate) const fn default_read_timeout() -> u64 {
    300
}

/// How often clients may ask below a path.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RateLimitRecord {
    /// How the path begins.
    #[serde(default = "root")]
    pub prefix: String,
    /// By what clients are told apart.
    #[serde(default)]
    pub key: RateKey,
    /// Requests per second.
    pub rps: f64,
    /// Requests that may come at once besides.
    #[serde(default)]
    pub burst: u64,
}

fn root() -> String {
    "/".to_owned()
}

/// By what clients are told apart.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum RateKey {
    /// By their address.
    #[default]
    IpAddress,
    /// By the value of a header.
    Header {
        /// Its name.
        header: String,
    },
}

/// A model that a service serves.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModelRecord {
    /// As clients name it.
    pub name: String,
    /// What its API looks like.
    #[serde(flatten)]
    pub format: ModelFormat,
}

/// What the API of a model looks like.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "format", rename_all = "snake_case")]
pub enum ModelFormat {
    /// That of OpenAI.
    Openai {
        /// Path before `/chat/completions`.
        prefix: String,
    },
    /// That of Text Generation Inference.
    Tgi {
        /// Makes a prompt of messages.
        chat_template: String,
        /// Ends a text.
        eos_token: String,
    },
}

/// A replica of a service.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ReplicaRecord {
    /// Its job.
    pub job_id: String,
    /// Port on which it answers, as its host sees it.
    pub app_port: u16,
    /// `user@host` of its SSH server.
    pub ssh_host: String,
    /// Port of its SSH server.
    pub ssh_port: u16,
    /// The SSH server before that.
    #[serde(default)]
    pub ssh_proxy: Option<SshHop>,
    /// Its key, where it is another one than the project's.
    #[serde(default)]
    pub ssh_proxy_private_key: Option<Secret>,
    /// The first SSH server on the way.
    #[serde(default)]
    pub ssh_head_proxy: Option<SshHop>,
    /// Its key.
    #[serde(default)]
    pub ssh_head_proxy_private_key: Option<Secret>,
    /// Address in the network of its machines.
    #[serde(default)]
    pub internal_ip: Option<String>,
}

/// An SSH server on the way to a replica.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SshHop {
    /// Host name or address.
    pub hostname: String,
    /// User that logs in.
    pub username: String,
    /// Its port.
    pub port: u16,
}
