//! Wire types of the runner's HTTP API (port 10999).
//!
//! In every request body `null` and a missing field mean the zero value: the dstack 0.22.5 server sends `null` for
//! booleans, numbers and maps alike.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use dstack_system::Secret;

use crate::lenient;

/// The variable by which a runner is told the token that every call must bring; unset: calls need none.
pub const TOKEN_VARIABLE: &str = "DSTACK_RUNNER_TOKEN";

/// The variable by which a runner is told that the network around it is the job's alone; unset: it may be that of the host.
pub const OWN_NETWORK_VARIABLE: &str = "DSTACK_RUNNER_OWN_NETWORK";

/// The `service` of the runner's health check.
pub const SERVICE: &str = "dstack-runner";

/// Answer of `GET /api/healthcheck`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Healthcheck {
    /// `dstack-runner` or `dstack-shim`.
    #[serde(default, deserialize_with = "lenient::zero")]
    pub service: String,
    /// A PEP 440 version; anything unparseable counts as newest.
    #[serde(default, deserialize_with = "lenient::zero")]
    pub version: String,
}

/// Body of `POST /api/submit`: what the job is. Only these keys are sent.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct SubmitBody {
    /// The run the job belongs to.
    #[serde(default, deserialize_with = "lenient::zero")]
    pub run: SubmitRun,
    /// The same as `run.run_spec`, for agents up to 0.19.8.
    #[serde(default, deserialize_with = "lenient::zero")]
    pub run_spec: SubmitRunSpec,
    /// What the job is to do.
    #[serde(default, deserialize_with = "lenient::zero")]
    pub job_spec: SubmitJobSpec,
    /// Which try to do the job this is.
    #[serde(default, deserialize_with = "lenient::zero")]
    pub job_submission: SubmitJobSubmission,
    /// Addresses of all nodes of the replica.
    #[serde(default, deserialize_with = "lenient::zero")]
    pub cluster_info: ClusterInfo,
    /// Always empty from 0.22 servers, which interpolate secrets themselves.
    #[serde(default, deserialize_with = "lenient::map")]
    pub secrets: BTreeMap<String, Secret>,
    /// How to clone the repo.
    #[serde(default)]
    pub repo_credentials: Option<RepoCredentials>,
    /// Bytes of log per hour; `None` or not positive: unlimited.
    #[serde(default)]
    pub log_quota_hour: Option<i64>,
}

/// `run` of [`SubmitBody`].
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct SubmitRun {
    /// Run id (UUID).
    #[serde(default, deserialize_with = "lenient::zero")]
    pub id: String,
    /// The part of the run's spec that the runner may see.
    #[serde(default, deserialize_with = "lenient::zero")]
    pub run_spec: SubmitRunSpec,
}

/// `run.run_spec` of [`SubmitBody`].
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct SubmitRunSpec {
    /// Name of the run.
    #[serde(default, deserialize_with = "lenient::zero")]
    pub run_name: String,
    /// Id of the repo.
    #[serde(default, deserialize_with = "lenient::zero")]
    pub repo_id: String,
    /// Used when the job spec has none (servers before 0.19.17).
    #[serde(default)]
    pub repo_data: Option<RepoData>,
    /// The whole run configuration; only its `type` matters to a runner.
    #[serde(default)]
    pub configuration: serde_json::Value,
    /// Path of the configuration file in the repo.
    #[serde(default, deserialize_with = "lenient::zero")]
    pub configuration_path: String,
}

/// `job_spec` of [`SubmitBody`].
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct SubmitJobSpec {
    /// Replica of the run.
    #[serde(default, deserialize_with = "lenient::zero")]
    pub replica_num: i64,
    /// Node rank within the replica.
    #[serde(default, deserialize_with = "lenient::zero")]
    pub job_num: i64,
    /// Nodes of the replica.
    #[serde(default, deserialize_with = "lenient::zero")]
    pub jobs_per_replica: i64,
    /// `None`: the runner's own user.
    #[serde(default)]
    pub user: Option<UnixUser>,
    /// The argument vector to execute.
    #[serde(default, deserialize_with = "lenient::list")]
    pub commands: Vec<String>,
    /// Environment on top of the image's and `DSTACK_*`.
    #[serde(default, deserialize_with = "lenient::map")]
    pub env: BTreeMap<String, Secret>,
    /// Clone only the wanted branch.
    #[serde(default, deserialize_with = "lenient::zero")]
    pub single_branch: bool,
    /// Seconds from `running`; `None` or not positive: unlimited.
    #[serde(default)]
    pub max_duration: Option<i64>,
    /// Key pair shared by the nodes of a replica.
    #[serde(default)]
    pub ssh_key: Option<SshKey>,
    /// `None`: the runner's own working directory.
    #[serde(default)]
    pub working_dir: Option<String>,
    /// Where the repo goes; relative to `working_dir`.
    #[serde(default)]
    pub repo_dir: Option<String>,
    /// The repo to prepare; `None`: the run's.
    #[serde(default)]
    pub repo_data: Option<RepoData>,
    /// `error`, `skip` or `None` (skip).
    #[serde(default)]
    pub repo_exists_action: Option<String>,
    /// Archives uploaded with `POST /api/upload_archive`.
    #[serde(default, deserialize_with = "lenient::list")]
    pub file_archives: Vec<FileArchive>,
}

/// The user a job runs as, like Docker's `USER`: a uid or a name is required.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct UnixUser {
    /// Numeric user id.
    #[serde(default)]
    pub uid: Option<u32>,
    /// Name of the user, as the image knows it.
    #[serde(default)]
    pub username: Option<String>,
    /// Numeric group id.
    #[serde(default)]
    pub gid: Option<u32>,
    /// Name of the group, as the image knows it.
    #[serde(default)]
    pub groupname: Option<String>,
}

/// A key pair in OpenSSH text form.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SshKey {
    /// The private key.
    #[serde(default, deserialize_with = "lenient::zero")]
    pub private: Secret,
    /// The public key, one line.
    #[serde(default, deserialize_with = "lenient::zero")]
    pub public: String,
}

/// What repo to prepare.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct RepoData {
    /// `virtual`, `local` or `remote`.
    #[serde(default, deserialize_with = "lenient::zero")]
    pub repo_type: String,
    /// Directory on the user's machine (`local`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub repo_dir: Option<String>,
    /// Name of the repo.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub repo_name: Option<String>,
    /// Branch; `None`: the remote's default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub repo_branch: Option<String>,
    /// Commit to check out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub repo_hash: Option<String>,
    /// `user.name` for the clone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub repo_config_name: Option<String>,
    /// `user.email` for the clone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub repo_config_email: Option<String>,
}

/// How to clone a remote repo.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RepoCredentials {
    /// `https://…` or `ssh://…`.
    #[serde(default, deserialize_with = "lenient::zero")]
    pub clone_url: String,
    /// For ssh URLs, in OpenSSH or PEM form, without a passphrase.
    #[serde(default)]
    pub private_key: Option<Secret>,
    /// For https URLs.
    #[serde(default)]
    pub oauth_token: Option<Secret>,
}

/// An archive to unpack: `id` as uploaded, `path` as the user wrote it.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct FileArchive {
    /// UUID of the archive.
    #[serde(default, deserialize_with = "lenient::zero")]
    pub id: String,
    /// Absolute, `~/…` or relative to the working directory.
    #[serde(default, deserialize_with = "lenient::zero")]
    pub path: String,
}

/// `job_submission` of [`SubmitBody`].
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct SubmitJobSubmission {
    /// Id of the job submission: `DSTACK_JOB_ID`.
    #[serde(default, deserialize_with = "lenient::zero")]
    pub id: String,
}

/// Addresses and GPUs of the replica's nodes, by rank.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct ClusterInfo {
    /// Internal addresses; an entry is empty when unknown.
    #[serde(default, deserialize_with = "lenient::list")]
    pub job_ips: Vec<String>,
    /// Address of rank 0.
    #[serde(default, deserialize_with = "lenient::zero")]
    pub master_job_ip: String,
    /// GPUs of this job.
    #[serde(default, deserialize_with = "lenient::zero")]
    pub gpus_per_job: i64,
    /// GPUs by rank; empty from old servers.
    #[serde(default, deserialize_with = "lenient::list")]
    pub gpus_per_node: Vec<i64>,
}

/// Answer of `POST /api/run`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct JobInfo {
    /// Absolute working directory of the job.
    #[serde(default, deserialize_with = "lenient::zero")]
    pub working_dir: String,
    /// Name of the job's user; may be empty.
    #[serde(default, deserialize_with = "lenient::login_name")]
    pub username: String,
}

/// Where the runner stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RunnerState {
    /// Waits for `POST /api/submit`.
    #[default]
    WaitSubmit,
    /// Submitted; waits for uploads and `POST /api/run`.
    WaitRun,
    /// The executor works.
    ServeLogs,
    /// The executor returned; logs wait to be fetched.
    WaitLogsFinished,
}

/// Answer of `GET /api/job` (not in dstack 0.22.5): what a server that was restarted may have missed.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct JobStatus {
    /// Where the runner stands.
    pub state: RunnerState,
    /// Id of the submitted job submission; empty before a submit.
    #[serde(default)]
    pub job_id: String,
    /// Empty until `POST /api/run` determined it.
    #[serde(default)]
    pub working_dir: String,
    /// Empty until `POST /api/run` determined it, or when the user has no name.
    #[serde(default, deserialize_with = "lenient::login_name")]
    pub username: String,
    /// Latest timestamp issued, ms.
    #[serde(default)]
    pub last_updated: i64,
}

/// Body of `POST /api/ack` (not in dstack 0.22.5): everything up to here is stored by the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Ack {
    /// Timestamp of the last event that is stored, in ms.
    #[serde(default, deserialize_with = "lenient::zero")]
    pub timestamp: i64,
}

/// `GET /api/pull`: everything after the cursor.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct PullResponse {
    /// State changes, in order.
    #[serde(default, deserialize_with = "lenient::list")]
    pub job_states: Vec<JobStateEvent>,
    /// Output of the job, in order.
    #[serde(default, deserialize_with = "lenient::list")]
    pub job_logs: Vec<LogEvent>,
    /// The runner's own log, in order.
    #[serde(default, deserialize_with = "lenient::list")]
    pub runner_logs: Vec<LogEvent>,
    /// The next cursor, ms: latest issued timestamp, or the runner's start when there is none.
    #[serde(default, deserialize_with = "lenient::zero")]
    pub last_updated: i64,
    /// Seconds without a connection to the job's SSH server; `None` from runners before 0.18.41.
    #[serde(default)]
    pub no_connections_secs: Option<i64>,
    /// The executor has not finished; `None` from old runners.
    #[serde(default)]
    pub has_more: Option<bool>,
}

/// State of a job as its runner reports it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum JobState {
    /// The commands started.
    Running,
    /// Exit status 0.
    Done,
    /// Exit status not 0, or a reason.
    #[default]
    Failed,
    /// Stopped, or `max_duration` is over.
    Terminated,
}

impl JobState {
    /// Whether nothing follows.
    pub const fn is_final(self) -> bool {
        !matches!(self, Self::Running)
    }
}

/// A change of the job's state.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct JobStateEvent {
    /// The state that the job is in from now on.
    pub state: JobState,
    /// Timestamp of the runner's clock, in ms; later events have higher ones.
    #[serde(default, deserialize_with = "lenient::zero")]
    pub timestamp: i64,
    /// Lower-case termination reason; empty when there is none.
    #[serde(default, deserialize_with = "lenient::zero")]
    pub termination_reason: String,
    /// What to show the user; empty when there is none.
    #[serde(default, deserialize_with = "lenient::zero")]
    pub termination_message: String,
    /// Exit status of the commands; -1 when killed by a signal.
    #[serde(default)]
    pub exit_status: Option<i32>,
    /// Somebody was reading the output at the runner itself when the commands ended. dstack 0.22.5 does not know this field:
    /// only a server that follows the stream is told.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub watched: bool,
}

/// A piece of log: at most 32 KiB.
#[derive(Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct LogEvent {
    /// Raw bytes (base64 on the wire).
    #[serde(default, with = "crate::base64_bytes")]
    pub message: Vec<u8>,
    /// Timestamp of the runner's clock, in ms; later events have higher ones.
    #[serde(default, deserialize_with = "lenient::zero")]
    pub timestamp: i64,
}

impl fmt::Debug for LogEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = String::from_utf8_lossy(&self.message);
        f.debug_struct("LogEvent")
            .field("timestamp", &self.timestamp)
            .field("message", &text)
            .finish()
    }
}

/// Answer of `GET /api/metrics`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Metrics {
    /// When measured: microseconds since the epoch.
    pub timestamp_micro: i64,
    /// CPU time used so far, microseconds.
    pub cpu_usage_micro: i64,
    /// Memory in use, bytes.
    pub memory_usage_bytes: i64,
    /// Memory in use without reclaimable file cache, bytes.
    pub memory_working_set_bytes: i64,
    /// In the order of the vendor's tool.
    #[serde(default, deserialize_with = "lenient::list")]
    pub gpus: Vec<GpuMetrics>,
    /// Bytes that the job has received so far; `None`: its network is that of the host, or nobody knows (not in dstack 0.22.5).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network_receive_bytes: Option<i64>,
    /// Bytes that the job has sent so far; `None`: as above (not in dstack 0.22.5).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network_transmit_bytes: Option<i64>,
}

/// One GPU of [`Metrics`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct GpuMetrics {
    /// Memory of the GPU in use, in bytes.
    pub gpu_memory_usage_bytes: i64,
    /// Share of time in which the GPU worked, in percent: 0 to 100.
    pub gpu_util_percent: i64,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The name comes out of a container, and ends in a file of whoever attaches.
    #[test]
    fn a_user_name_that_is_none_is_left_out() {
        let name = |username: &str| {
            let text = serde_json::json!({"working_dir": "/w", "username": username}).to_string();
            serde_json::from_str::<JobInfo>(&text).unwrap().username
        };
        assert_eq!(name("x\n  ProxyCommand sh -c 'id'"), "");
        assert_eq!(name("-oProxyCommand=id"), "");
        assert_eq!(name("me"), "me");
        let status = r#"{"state": "serve_logs", "username": "a b"}"#;
        assert_eq!(serde_json::from_str::<JobStatus>(status).unwrap().username, "");
    }

    #[test]
    fn null_and_missing_are_zero_everywhere() {
        let nulls = r#"{"run":{"id":null,"run_spec":{"run_name":null,"repo_id":null,"repo_data":null,"configuration":null,
            "configuration_path":null}},"run_spec":null,"job_spec":{"replica_num":null,"job_num":null,"jobs_per_replica":null,
            "user":{"uid":null,"username":null,"gid":null,"groupname":null},"commands":["a",null],"env":{"A":null},
            "single_branch":null,"max_duration":null,"ssh_key":{"private":null,"public":null},"working_dir":null,
            "repo_dir":null,"repo_data":{"repo_type":null,"repo_branch":null},"repo_exists_action":null,
            "file_archives":[{"id":null,"path":null}]},"job_submission":{"id":null},
            "cluster_info":{"job_ips":null,"master_job_ip":null,"gpus_per_job":null,"gpus_per_node":[null]},
            "secrets":null,"repo_credentials":{"clone_url":null,"private_key":null,"oauth_token":null},"log_quota_hour":null}"#;
        let body: SubmitBody = serde_json::from_str(nulls).unwrap();
        assert_eq!(body.job_spec.commands, ["a", ""]);
        assert_eq!(body.job_spec.env["A"].expose(), "");
        assert_eq!(body.cluster_info.gpus_per_node, [0]);
        assert_eq!(body.job_spec.user, Some(UnixUser::default()));

        let all_null = r#"{"run":null,"run_spec":null,"job_spec":null,"job_submission":null,"cluster_info":null,
            "secrets":null,"repo_credentials":null,"log_quota_hour":null}"#;
        for text in ["{}", all_null, r#"{"unknown":1,"job_spec":{"unknown":{}}}"#] {
            let body: SubmitBody = serde_json::from_str(text).unwrap();
            assert_eq!(
                serde_json::to_value(&body).unwrap(),
                serde_json::to_value(SubmitBody::default()).unwrap()
            );
        }
    }

    /// Servers of dstack 0.22.5 get what they know, and their runners' answers are read.
    #[test]
    fn metrics_without_a_network_are_those_of_the_reference() {
        let text = r#"{"timestamp_micro":1,"cpu_usage_micro":2,"memory_usage_bytes":3,"memory_working_set_bytes":4,"gpus":[]}"#;
        let metrics: Metrics = serde_json::from_str(text).unwrap();
        assert_eq!(metrics.network_receive_bytes, None);
        assert_eq!(serde_json::to_string(&metrics).unwrap(), text);
    }

    #[test]
    fn wrong_types_are_refused() {
        for text in [
            r#"{"run":1}"#,
            r#"{"job_spec":{"commands":"a"}}"#,
            r#"{"log_quota_hour":"x"}"#,
        ] {
            assert!(serde_json::from_str::<SubmitBody>(text).is_err(), "{text}");
        }
    }

    #[test]
    fn secrets_do_not_print() {
        let body: SubmitBody = serde_json::from_str(
            r#"{"job_spec":{"env":{"T":"hunter2"}},"repo_credentials":{"clone_url":"x","oauth_token":"hunter2"}}"#,
        )
        .unwrap();
        assert!(!format!("{body:?}").contains("hunter2"));
    }

    #[test]
    fn pull_response_has_the_reference_shape() {
        let pull = PullResponse {
            job_states: vec![JobStateEvent {
                state: JobState::Running,
                timestamp: 5,
                ..Default::default()
            }],
            job_logs: vec![LogEvent {
                message: b"hi\n".to_vec(),
                timestamp: 6,
            }],
            last_updated: 6,
            no_connections_secs: Some(0),
            has_more: Some(true),
            ..Default::default()
        };
        assert_eq!(
            serde_json::to_value(&pull).unwrap(),
            serde_json::json!({
                "job_states": [{"state": "running", "timestamp": 5, "termination_reason": "",
                    "termination_message": "", "exit_status": null}],
                "job_logs": [{"message": "aGkK", "timestamp": 6}],
                "runner_logs": [], "last_updated": 6, "no_connections_secs": 0, "has_more": true
            })
        );
        let back: PullResponse = serde_json::from_str(&serde_json::to_string(&pull).unwrap()).unwrap();
        assert_eq!(back, pull);
    }
}
