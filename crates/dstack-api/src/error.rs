//! The shapes of error answers.

pub use dstack_model::ErrorCode;
use serde::{Deserialize, Serialize};

/// One item of `detail`. The Python client refuses any other key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ErrorDetail {
    /// What is wrong.
    pub msg: String,
    /// The code by which programs tell refusals apart; `None` where there is only a sentence.
    pub code: Option<ErrorCode>,
    /// The request's field that is to blame.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fields: Option<Vec<String>>,
}

/// Body of an answer 400.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BadRequest {
    /// What is wrong; one item per field, or just one.
    pub detail: Vec<ErrorDetail>,
}
