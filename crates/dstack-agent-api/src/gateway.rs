//! What servers send to a gateway, and what it answers: the API of gateways of dstack 0.22.5, and what ours has besides.

use std::collections::{BTreeMap, BTreeSet};

use dstack_system::Secret;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// TCP port of a gateway's API on the loopback interface of its host, where our servers set it up. That of dstack 0.22.5 is 8000,
/// which many services take.
pub const HOST_API_PORT: u16 = 10_997;

/// The certificate authority of a gateway; what is unset is as the gateway was started.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AcmeSettings {
    /// URL of its directory.
    pub acme_server: Option<String>,
    /// Id of the key of an account there.
    pub acme_eab_kid: Option<String>,
    /// The key itself, base64url, with which the account is bound (RFC 8555, 7.3.4).
    pub acme_eab_hmac_key: Option<Secret>,
}

/// A service as it is registered.
#[derive(Debug, Clone, Serialize)]
pub struct RegisterService {
    /// Id of the run, 32 hexadecimal digits.
    pub id: String,
    /// Name of the run.
    pub run_name: String,
    /// Host name of the service.
    pub domain: String,
    /// Whether the gateway speaks TLS for it.
    pub https: bool,
    /// Whether a token of a member of the project is asked for.
    pub auth: bool,
    /// Bytes that the body of a request may have.
    pub client_max_body_size: u64,
    /// Seconds that a replica may be silent.
    pub read_timeout: u64,
    /// What it is besides.
    pub options: ServiceOptions,
    /// The private key of the project, by which replicas are reached.
    pub ssh_private_key: Secret,
    /// How often clients may ask.
    pub rate_limits: Vec<Value>,
    /// Whether a replica routes requests to the others.
    pub has_router_replica: bool,
    /// How requests are spread over its replicas, as the configuration has it; unset: as ever. Gateways of dstack 0.22.5 know nothing of it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub balancing: Option<String>,
}

/// What a service is besides.
#[derive(Debug, Clone, Default, Serialize)]
pub struct ServiceOptions {
    /// The model that it serves.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub openai: Option<OpenAiOptions>,
}

/// A model that a service serves.
#[derive(Debug, Clone, Serialize)]
pub struct OpenAiOptions {
    /// As the configuration has it.
    pub model: Value,
}

/// An SSH server on the way to a replica.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SshHop {
    /// Host name or address.
    pub hostname: String,
    /// Who logs in.
    pub username: String,
    /// TCP port of its SSH server.
    pub port: u16,
}

/// A replica as it is registered.
#[derive(Debug, Clone, Serialize)]
pub struct RegisterReplica {
    /// Id of its job, 32 hexadecimal digits.
    pub job_id: String,
    /// Port on which it answers, as its host sees it.
    pub app_port: u16,
    /// `user@host` of its SSH server.
    pub ssh_host: String,
    /// Port of its SSH server.
    pub ssh_port: u16,
    /// The SSH server before that.
    pub ssh_proxy: Option<SshHop>,
    /// Its key, where it is another one than the project's.
    pub ssh_proxy_private_key: Option<Secret>,
    /// The first SSH server on the way.
    pub ssh_head_proxy: Option<SshHop>,
    /// The private key for the first SSH server, where it is another one than the project's.
    pub ssh_head_proxy_private_key: Option<Secret>,
}

/// Where the models of a project are answered.
#[derive(Debug, Clone, Serialize)]
pub struct RegisterEntrypoint {
    /// Host name at which the models are answered, such as `gateway.example.com`.
    pub domain: String,
    /// Whether the gateway speaks TLS there.
    pub https: bool,
    /// Seconds that a replica may be silent.
    pub read_timeout: u64,
}

/// All that is registered.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
pub struct Registered {
    /// In no order.
    pub services: Vec<RegisteredService>,
}

/// A service that is registered.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct RegisteredService {
    /// Id of its run, 32 hexadecimal digits; unset: an old server registered it.
    pub id: Option<String>,
    /// Name of its project, in small letters.
    pub project_name: String,
    /// Name of its run, in small letters.
    pub run_name: String,
    /// The replicas that get its requests; those that are drained are not among them.
    pub replicas: Vec<RegisteredReplica>,
    /// How its requests are split; gateways of other versions do not say.
    #[serde(default)]
    pub split: Option<Split>,
}

/// How the requests to a service are split while a new deployment stands beside the old one. Not of gateways of dstack 0.22.5.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Split {
    /// Number of the new deployment.
    pub deployment: i64,
    /// Ids of the jobs of the new replicas, 32 hexadecimal digits each.
    pub new: BTreeSet<String>,
    /// Of ten thousand requests, so many go to them.
    pub share: u16,
    /// Requests with this header go to them.
    pub header: Option<SplitHeader>,
}

/// A header that picks the new replicas.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SplitHeader {
    /// Its name.
    pub name: String,
    /// Its value.
    pub value: String,
}

/// How the requests to a service are split from now on.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct SetSplit {
    /// `None`: not at all.
    pub split: Option<Split>,
}

/// A replica that is registered.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct RegisteredReplica {
    /// Id of its job, 32 hexadecimal digits.
    pub id: String,
}

/// What is waited for when a replica is taken away.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Drain {
    /// Seconds that requests under way have.
    pub timeout: u32,
}

/// Requests to a service within the windows of its statistics.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct ServiceStatistics {
    /// Name of its project, in small letters.
    pub project_name: String,
    /// Name of its run, in small letters.
    pub run_name: String,
    /// By the seconds of the window.
    pub stats: BTreeMap<String, Counted>,
}

/// Requests of a window.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
pub struct Counted {
    /// Requests whose answers ended within the window.
    pub requests: u64,
    /// How busy the service was; gateways of dstack 0.22.5 do not say.
    #[serde(default)]
    pub strain: Option<Strained>,
}

/// How busy a service was within a window.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Strained {
    /// Seconds that requests were under way, of all together.
    pub busy: f64,
    /// Answers that are streams of events whose first piece came.
    pub first_pieces: u64,
    /// Seconds that their clients had waited for it, all together.
    pub waited: f64,
}

/// What was counted of the requests to a service since the gateway was started. Not of gateways of dstack 0.22.5.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ServiceCounts {
    /// Id of the run, 32 hexadecimal digits.
    pub id: String,
    /// Answers by the first digit of their status, 1 to 5.
    pub by_class: [u64; 5],
    /// Requests under way now.
    pub under_way: u64,
    /// Seconds until the head of the answer.
    pub head: Times,
    /// Seconds until the end of the answer.
    pub total: Times,
    /// Tokens of what models were asked, as far as they said so.
    pub prompt_tokens: u64,
    /// Tokens of what models answered.
    pub completion_tokens: u64,
    /// What both sides have answered while requests are split.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rollout: Option<RolloutCounts>,
}

/// What both sides of a roll-out have answered since whoever counts heard of it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RolloutCounts {
    /// Number of the new deployment.
    pub deployment: i64,
    /// Its replicas.
    pub new: SideCounts,
    /// All others.
    pub old: SideCounts,
}

/// What one side has answered.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SideCounts {
    /// Requests that are over, attempts without an answer among them.
    pub requests: u64,
    /// Those of status 5xx, those that broke off, and those that never began.
    pub failed: u64,
    /// Seconds until the head of the answer.
    pub head: Times,
}

/// How many requests took how long.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Times {
    /// Upper bounds in seconds, and how many took at most so long.
    pub buckets: Vec<(f64, u64)>,
    /// How many there were.
    pub count: u64,
    /// How long all took, in seconds.
    pub sum: f64,
}

/// How a gateway is.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct GatewayHealth {
    /// Version of the program that answers, such as `0.22.5`.
    pub version: String,
    /// Services that are registered.
    pub services: usize,
    /// Replicas of all services together.
    pub replicas: usize,
    /// Those of them to which there is a connection.
    pub replicas_connected: usize,
}
