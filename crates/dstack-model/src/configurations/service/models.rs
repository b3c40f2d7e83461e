//! Models that a service serves.

use serde::Serialize;
use serde_json::{Map, Value, json};

use crate::schema::{Schema as _, Schemas, any_of};
use crate::{Decode, tag};

tag!(
    /// The value of `type` for chat models.
    pub ChatTag = "chat"
);
tag!(
    /// The value of `format` for [`TgiChatModel`].
    pub TgiTag = "tgi"
);
tag!(
    /// The value of `format` for [`OpenAiChatModel`].
    pub OpenAiTag = "openai"
);

/// A model served through the interface of Text Generation Inference.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Decode)]
pub struct TgiChatModel {
    /// The type of the model.
    #[serde(rename = "type")]
    #[decode(default)]
    pub kind: ChatTag,
    /// The name of the model.
    pub name: String,
    /// The serving format. Must be set to `tgi`.
    pub format: TgiTag,
    /// The custom prompt template for the model.
    pub chat_template: Option<String>,
    /// The custom end of sentence token.
    pub eos_token: Option<String>,
}

/// A model served through OpenAI's interface.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Decode)]
pub struct OpenAiChatModel {
    /// The type of the model.
    #[serde(rename = "type")]
    #[decode(default)]
    pub kind: ChatTag,
    /// The name of the model.
    pub name: String,
    /// The serving format. Must be set to `openai`.
    pub format: OpenAiTag,
    /// The `base_url` prefix (after hostname).
    #[decode(default = "/v1".to_owned())]
    pub prefix: String,
}

/// A model, told apart by `format`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Decode)]
#[serde(untagged)]
#[decode(tag = "format")]
pub enum AnyModel {
    /// A model that speaks the API of Text Generation Inference (`format: tgi`).
    #[decode(rename = "tgi")]
    Tgi(TgiChatModel),
    /// A model that speaks the API of OpenAI (`format: openai`).
    #[decode(rename = "openai")]
    OpenAi(OpenAiChatModel),
}

impl AnyModel {
    /// The name of the model.
    pub fn name(&self) -> &str {
        match self {
            Self::Tgi(model) => &model.name,
            Self::OpenAi(model) => &model.name,
        }
    }
}

/// A name alone is a model with OpenAI's interface.
pub(super) fn from_name(value: &Value, _: &Map<String, Value>) -> Result<Option<Value>, String> {
    Ok(value
        .as_str()
        .map(|name| json!({"type": "chat", "name": name, "format": "openai"})))
}

/// A model, or its name.
pub(super) fn schema(schemas: &mut Schemas) -> Value {
    any_of(vec![Option::<AnyModel>::schema(schemas), String::schema(schemas)])
}
