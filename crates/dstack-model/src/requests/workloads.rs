//! Runs, offers, repos, files, logs.

use dstack_units::{JobId, RunId, Time};
use indexmap::IndexMap;
use serde::Serialize;
use serde_json::Map;

use crate::decode::scalars::id4;
use crate::decode::{Cx, Value};
use crate::offers::{CpuGroup, GpuGroup};
use crate::repos::{AnyRepoInfo, RemoteRepoCreds};
use crate::rollouts::RolloutAction;
use crate::runs::{ApplyRunPlanInput, RunSpec};
use crate::schema::{Schema, Schemas, any_of, texts};
use crate::{Decode, string_enum};

/// Request of `/api/runs/list`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Decode)]
pub struct ListRunsRequest {
    /// Only of this project.
    pub project_name: Option<String>,
    /// Only of this repo.
    pub repo_id: Option<String>,
    /// Only of this user.
    pub username: Option<String>,
    /// Without finished and deleted ones.
    #[decode(default)]
    pub only_active: bool,
    /// Whether to include `jobs` in the response.
    #[decode(default = true)]
    pub include_jobs: bool,
    /// Newest submissions of each job to include.
    #[decode(ge = 0, le = 10)]
    pub job_submissions_limit: Option<i64>,
    /// The last run's `submitted_at` of the page before.
    pub prev_submitted_at: Option<Time>,
    /// The last run's `id` of the page before.
    pub prev_run_id: Option<RunId>,
    /// Limit number of runs returned.
    #[decode(default = 100, ge = 0, le = 100)]
    pub limit: i64,
    /// Lists the oldest first; `false`: the newest first.
    #[decode(default)]
    pub ascending: bool,
}

impl Default for ListRunsRequest {
    fn default() -> Self {
        Self {
            project_name: None,
            repo_id: None,
            username: None,
            only_active: false,
            include_jobs: true,
            job_submissions_limit: None,
            prev_submitted_at: None,
            prev_run_id: None,
            limit: 100,
            ascending: false,
        }
    }
}

/// Request of `runs/get`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Decode)]
pub struct GetRunRequest {
    /// Name of the run; finds no deleted ones.
    pub run_name: Option<String>,
    /// By id, which wins.
    pub id: Option<RunId>,
}

/// Request of `runs/get_plan`.
#[derive(Debug, Clone, PartialEq, Serialize, Decode)]
pub struct GetRunPlanRequest {
    /// What is to be applied.
    pub run_spec: RunSpec,
    /// The maximum number of offers to return.
    #[decode(ge = 1, le = 10000)]
    pub max_offers: Option<i64>,
    /// Dearest offers first, available ones before.
    #[decode(default)]
    pub reverse_offers: bool,
    /// Return full offers not adjusted by requirements.
    #[decode(default)]
    pub full_offers: bool,
    /// Subtract allocated resources to return only unallocated resources.
    #[decode(default)]
    pub unallocated_resources: bool,
    /// The plan is requested for its offers only, not for a run.
    #[decode(default)]
    pub for_offers_only: bool,
    /// Say why each job would be placed where it would. Left out when not asked for: dstack 0.22.5 does not know it.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    #[decode(default)]
    pub explain: bool,
}

/// Request of `runs/apply`.
#[derive(Debug, Clone, PartialEq, Serialize, Decode)]
pub struct ApplyRunPlanRequest {
    /// What is applied, and what is there by the plan.
    pub plan: ApplyRunPlanInput,
    /// Apply even if the expected resource does not match.
    pub force: bool,
}

/// Request of `runs/stop`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Decode)]
pub struct StopRunsRequest {
    /// Names of the runs; unknown and finished ones are ignored.
    pub runs_names: Vec<String>,
    /// Do not wait for a graceful shutdown.
    pub abort: bool,
}

/// Request of `runs/delete`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Decode)]
pub struct DeleteRunsRequest {
    /// Names of the runs; unknown ones are ignored. When one of them is active, none is deleted.
    pub runs_names: Vec<String>,
}

/// Request of `runs/rollout`. Not part of dstack 0.22.5's API.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Decode)]
pub struct RolloutRequest {
    /// Name of the run.
    pub run_name: String,
    /// What becomes of its roll-out.
    pub action: RolloutAction,
}

string_enum! {
    /// What groups of offers have in common.
    literal pub enum OfferGrouping {
        /// Offers of the same backend.
        Backend = "backend",
        /// The region; only together with the backend.
        Region = "region",
        /// The number of GPUs.
        Count = "count",
    }
}

/// Request of `gpus/list`.
#[derive(Debug, Clone, PartialEq, Serialize, Decode)]
pub struct ListGpusRequest {
    /// What is asked for.
    pub run_spec: RunSpec,
    /// List of fields to group by.
    pub group_by: Option<Vec<OfferGrouping>>,
    /// Dearest groups first, available ones before.
    #[decode(default)]
    pub reverse: bool,
    /// Don't adjust backend offers by requirements.
    #[decode(default)]
    pub full_offers: bool,
    /// Subtract allocated resources to return only unallocated resources.
    #[decode(default)]
    pub unallocated_resources: bool,
}

/// Answer of `gpus/list`. Unset fields are left out.
#[derive(Debug, Clone, PartialEq, Serialize, Decode)]
pub struct ListGpusResponse {
    /// The groups of offers with GPUs.
    pub gpus: Vec<GpuGroup>,
    /// CPU groups, only when the GPU count is constrained to zero.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpus: Option<Vec<CpuGroup>>,
    /// What is missing of the offers, in sentences; left out when nothing is, and not known to dstack 0.22.5.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[decode(default)]
    pub notices: Vec<String>,
}

/// Request of `repos/get`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Decode)]
pub struct GetRepoRequest {
    /// Id of the repo in the project.
    pub repo_id: String,
    /// With the user's credentials.
    pub include_creds: bool,
}

/// Request of `repos/init`, which creates or updates a repo.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Decode)]
pub struct SaveRepoCredsRequest {
    /// Id of the repo in the project.
    pub repo_id: String,
    /// What kind of repo it is, and its name or directory.
    pub repo_info: AnyRepoInfo,
    /// The repo creds for accessing private remote repo.
    pub repo_creds: Option<RemoteRepoCreds>,
}

/// Request of `repos/delete`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Decode)]
pub struct DeleteReposRequest {
    /// Ids of the repos in the project.
    pub repos_ids: Vec<String>,
}

/// Request of `files/get_archive_by_hash`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Decode)]
pub struct GetFileArchiveByHashRequest {
    /// Hash of the archive's content, as it was uploaded.
    pub hash: String,
}

/// Request of `logs/poll`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Decode)]
pub struct PollLogsRequest {
    /// Name of the run.
    pub run_name: String,
    /// The job submission.
    #[decode(with = id4)]
    pub job_submission_id: JobId,
    /// Only later ones.
    pub start_time: Option<Time>,
    /// Only earlier ones.
    pub end_time: Option<Time>,
    /// Answers the newest lines first.
    #[decode(default)]
    pub descending: bool,
    /// From the page before.
    pub next_token: Option<String>,
    /// Most lines to answer; 0 counts as 1.
    #[decode(default = 100, ge = 0, le = 1000)]
    pub limit: i64,
    /// The runner's log instead of the job's.
    #[decode(default)]
    pub diagnose: bool,
}

/// A message of a chat.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Decode)]
pub struct ChatMessage {
    /// Who says it: `system`, `user`, `assistant` or `tool`; not checked.
    pub role: String,
    /// The text of the message.
    pub content: String,
}

/// `/proxy/models/{project_name}/chat/completions`: what the OpenAI API knows, as far as dstack 0.22.5 takes it.
#[derive(Debug, Clone, PartialEq, Serialize, Decode)]
pub struct ChatCompletionsRequest {
    /// The chat so far, oldest message first.
    pub messages: Vec<ChatMessage>,
    /// Name of the model, as services of the project publish it.
    pub model: String,
    /// By how much words that are frequent already become less likely.
    pub frequency_penalty: Option<f64>,
    /// By how much tokens become more or less likely, by their ids.
    #[decode(default)]
    pub logit_bias: IndexMap<String, f64>,
    /// Most tokens of an answer.
    pub max_tokens: Option<i64>,
    /// How many answers are wanted.
    #[decode(default = 1)]
    pub n: i64,
    /// By how much words that are there already become less likely.
    #[decode(default)]
    pub presence_penalty: f64,
    /// The form of the answer, such as `{"type": "json_object"}`.
    pub response_format: Option<Map<String, Value>>,
    /// Seed of the sampling: the same one gives the same answer, as far as the model can.
    pub seed: Option<i64>,
    /// Texts at which the answer ends.
    pub stop: Option<StopSequences>,
    /// Whether the answer is sent in pieces while it is made.
    #[decode(default)]
    pub stream: bool,
    /// Temperature of the sampling, 0 to 2; the range is the model's to check.
    pub temperature: Option<f64>,
    /// Share of the probability mass that tokens are taken from, 0 to 1.
    pub top_p: Option<f64>,
    /// Functions that the model may call.
    #[decode(default)]
    pub tools: Vec<Value>,
    /// Whether it calls one of them, and which.
    #[decode(default)]
    pub tool_choice: ToolChoice,
    /// Id of the end user, for the model's provider.
    pub user: Option<String>,
}

/// `stop`: a text, or several.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum StopSequences {
    /// A single text.
    One(String),
    /// A list of texts, any of which ends the answer.
    Many(Vec<String>),
}

/// `tool_choice`: `none`, `auto`, or one of them.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(untagged)]
pub enum ToolChoice {
    /// `none` or `auto`.
    Mode(String),
    /// A tool; nothing is said where it is empty.
    Tool(Map<String, Value>),
}

impl Default for ToolChoice {
    fn default() -> Self {
        Self::Tool(Map::new())
    }
}

impl crate::decode::Decode for StopSequences {
    fn decode(value: &Value, cx: &mut Cx) -> Option<Self> {
        match value {
            Value::Array(_) => Vec::decode(value, cx).map(Self::Many),
            _ => String::decode(value, cx).map(Self::One),
        }
    }
}

impl Schema for StopSequences {
    fn schema(schemas: &mut Schemas) -> Value {
        any_of(vec![String::schema(schemas), Vec::<String>::schema(schemas)])
    }
}

impl Schema for ToolChoice {
    fn schema(schemas: &mut Schemas) -> Value {
        any_of(vec![texts(&["none", "auto"]), Map::schema(schemas)])
    }
}

impl crate::decode::Decode for ToolChoice {
    fn decode(value: &Value, cx: &mut Cx) -> Option<Self> {
        match value {
            Value::String(mode) if mode == "none" || mode == "auto" => Some(Self::Mode(mode.clone())),
            Value::String(_) => cx.problem("literal_error", "Input should be 'none' or 'auto'", value),
            _ => Map::decode(value, cx).map(Self::Tool),
        }
    }
}
