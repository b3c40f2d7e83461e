//! `type: preset`: how the CLI is to find a good way to serve a model. The server never sees it.

use serde::Serialize;
use serde_json::{Map, Value, json};

use super::service::GatewayChoice;
use crate::decode::Cx;
use crate::envs::Env;
use crate::profiles::ProfileParams;
use crate::schema::{Schema, Schemas, any_of};
use crate::{Decode, string_enum, tag};

/// Tokens of a benchmark request unless said otherwise.
pub const DEFAULT_INPUT_TOKENS: i64 = 1024;
/// Tokens of a benchmark answer unless said otherwise.
pub const DEFAULT_OUTPUT_TOKENS: i64 = 1024;
/// The longest inline prompt, in characters.
pub const MAX_PROMPT_LENGTH: usize = 10_000;

tag!(
    /// The value of `type` in the configuration of a preset.
    pub PresetTag = "preset"
);

/// Exactly this model.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Decode)]
pub struct PresetModelRepo {
    /// The exact model repo or path to deploy.
    #[decode(check = check_repo)]
    pub repo: String,
    /// The client-facing model name. Defaults to `repo`.
    #[decode(check = check_name)]
    pub name: Option<String>,
}

/// This model or a compatible variant.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Decode)]
pub struct PresetModelBase {
    /// The base model for which the agent may select a compatible variant.
    #[decode(check = check_base)]
    pub base: String,
}

fn not_blank(text: &str, field: &str) -> Result<(), String> {
    if text.trim().is_empty() {
        Err(format!("Preset model {field} must be a non-empty string"))
    } else {
        Ok(())
    }
}

fn check_repo(repo: String) -> Result<String, String> {
    not_blank(&repo, "repo").map(|()| repo)
}

fn check_base(base: String) -> Result<String, String> {
    not_blank(&base, "base").map(|()| base)
}

fn check_name(name: Option<String>) -> Result<Option<String>, String> {
    name.as_deref()
        .map_or(Ok(()), |name| not_blank(name, "name"))
        .map(|()| name)
}

/// The model to serve.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum PresetModel {
    /// Exactly this one.
    Repo(PresetModelRepo),
    /// This one or a compatible variant.
    Base(PresetModelBase),
}

impl PresetModel {
    /// The name under which clients ask for it.
    pub fn api_name(&self) -> &str {
        match self {
            Self::Repo(model) => model
                .name
                .as_deref()
                .filter(|name| !name.is_empty())
                .unwrap_or(&model.repo),
            Self::Base(model) => &model.base,
        }
    }
}

impl crate::decode::Decode for PresetModel {
    fn decode(value: &Value, cx: &mut Cx) -> Option<Self> {
        cx.union(&[
            ("PresetModelRepo", &|cx: &mut Cx| {
                PresetModelRepo::decode(value, cx).map(Self::Repo)
            }),
            ("PresetModelBase", &|cx: &mut Cx| {
                PresetModelBase::decode(value, cx).map(Self::Base)
            }),
        ])
    }
}

impl Schema for PresetModel {
    fn schema(schemas: &mut Schemas) -> Value {
        any_of(vec![
            PresetModelRepo::schema(schemas),
            PresetModelBase::schema(schemas),
            json!({"type": "string"}),
        ])
    }
}

string_enum! {
    /// Whose agent CLI is used.
    literal pub enum PresetAgentProvider {
        /// Claude.
        Claude = "claude",
        /// Codex.
        Codex = "codex",
    }
}

string_enum! {
    /// How hard the agent thinks.
    literal pub enum PresetAgentEffort {
        /// Low.
        Low = "low",
        /// Medium.
        Medium = "medium",
        /// High.
        High = "high",
        /// Very high.
        XHigh = "xhigh",
        /// As high as it goes.
        Max = "max",
    }
}

/// The agent that creates the preset.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Decode)]
#[decode(after = check_agent)]
pub struct PresetAgentConfig {
    /// The agent CLI that creates the preset: `claude` or `codex`.
    pub provider: PresetAgentProvider,
    /// The model the agent runs with.
    pub model: Option<String>,
    /// The reasoning effort. `max` is supported by `claude` only.
    pub effort: Option<PresetAgentEffort>,
}

fn check_agent(agent: PresetAgentConfig) -> Result<PresetAgentConfig, String> {
    if agent.provider == PresetAgentProvider::Codex && agent.effort == Some(PresetAgentEffort::Max) {
        return Err("effort `max` is not supported by `codex`".to_owned());
    }
    Ok(agent)
}

/// A prompt in a file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Decode)]
pub struct PresetPromptFile {
    /// The path to a prompt file, relative to the configuration file.
    #[decode(check = check_prompt_path)]
    pub path: String,
}

fn check_prompt_path(path: String) -> Result<String, String> {
    if path.trim().is_empty() {
        Err("Prompt path must be a non-empty string".to_owned())
    } else {
        Ok(path)
    }
}

/// Instructions for the agent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum PresetPrompt {
    /// The prompt itself.
    Text(String),
    /// In a file.
    File(PresetPromptFile),
}

impl crate::decode::Decode for PresetPrompt {
    fn decode(value: &Value, cx: &mut Cx) -> Option<Self> {
        let prompt = cx.union(&[
            ("str", &|cx: &mut Cx| String::decode(value, cx).map(Self::Text)),
            ("PresetPromptFile", &|cx: &mut Cx| {
                PresetPromptFile::decode(value, cx).map(Self::File)
            }),
        ])?;
        match &prompt {
            Self::Text(text) if text.trim().is_empty() => {
                cx.value_error("Prompt must be a non-empty string", value)
            }
            Self::Text(text) if text.chars().count() > MAX_PROMPT_LENGTH => cx.value_error(
                format!("Prompt must be at most {MAX_PROMPT_LENGTH} characters"),
                value,
            ),
            _ => Some(prompt),
        }
    }
}

impl Schema for PresetPrompt {
    fn schema(schemas: &mut Schemas) -> Value {
        any_of(vec![String::schema(schemas), PresetPromptFile::schema(schemas)])
    }
}

/// A preset to be created.
#[derive(Debug, Clone, PartialEq, Serialize, Decode)]
#[decode(before = model_shorthand, after = check)]
pub struct PresetConfiguration {
    /// The configuration type.
    #[serde(rename = "type")]
    #[decode(default)]
    pub kind: PresetTag,
    /// The preset name.
    pub name: Option<String>,
    /// The model to serve.
    #[decode(before = model_from_text, implied)]
    pub model: PresetModel,
    /// The base model repo; compatible variants are allowed. Shorthand for `model.base`.
    pub base: Option<String>,
    /// The exact model repo/path to serve. Shorthand for `model.repo`.
    pub repo: Option<String>,
    /// Additional instructions for the preset creation agent, inline or as a file `path`.
    pub prompt: Option<PresetPrompt>,
    /// The minimum required context length. Required for creation.
    #[decode(gt = 0)]
    pub min_context_length: Option<i64>,
    /// The maximum p50 time to first token, in milliseconds. Required for creation.
    #[decode(gt = 0)]
    pub max_ttft: Option<i64>,
    /// The number of benchmarked trials. Required for creation.
    #[decode(gt = 0)]
    pub trials: Option<i64>,
    /// The IDs of previous presets whose results the agent improves on.
    pub previous: Option<Vec<String>>,
    /// The number of simultaneous requests used for benchmarks. Required for creation.
    #[decode(gt = 0)]
    pub concurrency: Option<i64>,
    /// The number of input tokens per request used for benchmarks. Defaults to `1024`.
    #[decode(gt = 0)]
    pub input_tokens: Option<i64>,
    /// The number of output tokens per request used for benchmarks. Defaults to `1024`.
    #[decode(ge = 2)]
    pub output_tokens: Option<i64>,
    /// How many of `input_tokens` are a prefix identical in every benchmark request. Defaults to `0`.
    #[decode(ge = 0)]
    pub shared_prefix_tokens: Option<i64>,
    /// The benchmark dataset.
    #[decode(check = check_dataset)]
    pub dataset: Option<String>,
    /// Whether the first trial must be a baseline. Defaults to `true`.
    pub baseline: Option<bool>,
    /// The name of the gateway.
    #[decode(with = decode_gateway)]
    pub gateway: Option<PresetGateway>,
    /// The agent that creates the preset. Defaults to `claude`.
    pub agent: Option<PresetAgentConfig>,
    /// The mapping or the list of environment variables.
    #[decode(default)]
    pub env: Env,
    /// Where and how its runs may be placed.
    #[serde(flatten)]
    #[decode(flatten)]
    pub params: ProfileParams,
}

/// A preset's gateway.
pub type PresetGateway = GatewayChoice;

fn decode_gateway(value: &Value, cx: &mut Cx) -> Option<Option<PresetGateway>> {
    Option::<GatewayChoice>::decode(value, cx)
}

fn model_shorthand(value: &Value) -> Result<Option<Value>, String> {
    let Value::Object(map) = value else {
        return Ok(None);
    };
    let given = |key: &str| {
        map.get(key)
            .filter(|found| !found.is_null() && found.as_str() != Some(""))
    };
    let (key, source) = match (given("base"), given("repo")) {
        (Some(_), Some(_)) => return Err("`base` and `repo` are mutually exclusive".to_owned()),
        (Some(base), None) => ("base", base),
        (None, Some(repo)) => ("repo", repo),
        (None, None) => return Ok(None),
    };
    if map.get("model").is_some_and(|model| !model.is_null()) {
        return Err("`model` cannot be combined with the `base`/`repo` shorthand".to_owned());
    }
    let mut replaced = map.clone();
    replaced.shift_remove("base");
    replaced.shift_remove("repo");
    replaced.insert("model".to_owned(), json!({ key: source }));
    Ok(Some(Value::Object(replaced)))
}

fn model_from_text(value: &Value, _: &Map<String, Value>) -> Result<Option<Value>, String> {
    let Value::String(text) = value else {
        return Ok(None);
    };
    not_blank(text, "model")?;
    Ok(Some(json!({"repo": text})))
}

fn check_dataset(dataset: Option<String>) -> Result<Option<String>, String> {
    let Some(name) = dataset else {
        return Ok(None);
    };
    match name.trim() {
        "" => Err("dataset must be a non-empty string".to_owned()),
        "random" => Err("`random` is not a dataset; omit `dataset` for synthetic prompts".to_owned()),
        name => Ok(Some(name.to_owned())),
    }
}

fn check(preset: PresetConfiguration) -> Result<PresetConfiguration, String> {
    let shapes = [
        ("input_tokens", preset.input_tokens),
        ("output_tokens", preset.output_tokens),
        ("shared_prefix_tokens", preset.shared_prefix_tokens),
    ];
    let set: Vec<&str> = shapes
        .iter()
        .filter(|(_, value)| value.is_some())
        .map(|(name, _)| *name)
        .collect();
    if preset.dataset.is_some() && !set.is_empty() {
        return Err(format!(
            "{} shape synthetic prompts and cannot be set together with `dataset`; a dataset defines its own request shape",
            set.join(", ")
        ));
    }
    let input = preset.input_tokens.unwrap_or(DEFAULT_INPUT_TOKENS);
    if preset.shared_prefix_tokens.is_some_and(|shared| shared >= input) {
        return Err(format!(
            "shared_prefix_tokens must be less than input_tokens ({input})"
        ));
    }
    Ok(preset)
}
