//! What is answered instead of a model's answer: `detail`, as everywhere at the proxy, and `error`, as clients of OpenAI read it.

use bytes::Bytes;
use http::{Response, StatusCode};
use serde_json::{Value, json};

use super::json::json_response;
use crate::body::ProxyBody;

/// OpenAI's word for what is wrong with a request.
const INVALID_REQUEST: &str = "invalid_request_error";
/// And for what is not the client's fault.
const SERVER_ERROR: &str = "server_error";

/// Why there is no answer of a model.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Failure {
    status: StatusCode,
    /// OpenAI's word for the kind of error.
    kind: String,
    message: String,
    /// The member of the request that is wrong.
    param: Option<String>,
    form: Form,
}

/// What a failure looks like.
#[derive(Debug, Clone, PartialEq)]
enum Form {
    /// The message as `detail`, and `error`.
    Both,
    /// Problems as `detail`, and `error`.
    Problems(Value),
}

impl Failure {
    fn new(status: StatusCode, kind: &str, message: impl Into<String>) -> Self {
        Self {
            status,
            kind: kind.to_owned(),
            message: message.into(),
            param: None,
            form: Form::Both,
        }
    }

    /// The model, or whatever is before it, did something that it should not.
    pub(super) fn upstream(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_GATEWAY, SERVER_ERROR, message)
    }

    /// The request cannot be carried out as it is.
    pub(super) fn bad_request(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, INVALID_REQUEST, message)
    }

    /// What a model answered in a form of its own; without a kind, it follows from the status.
    pub(super) fn of_model(status: StatusCode, kind: Option<&str>, message: impl Into<String>) -> Self {
        let default = match status.is_client_error() {
            true => INVALID_REQUEST,
            false => SERVER_ERROR,
        };
        Self::new(status, kind.unwrap_or(default), message)
    }

    /// No service of the project has a model of this name.
    pub(super) fn no_model(project: &str, model: &str) -> Self {
        let message = format!("Model {model} not found in project {project}");
        Self::new(StatusCode::NOT_FOUND, INVALID_REQUEST, message)
    }

    /// The model's API has no such call.
    pub(super) fn no_endpoint(model: &str, path: &str) -> Self {
        let message =
            format!("Model {model} answers /chat/completions only, since its format is tgi; not {path}");
        Self::new(StatusCode::NOT_FOUND, INVALID_REQUEST, message)
    }

    /// There are services, but none of them has a replica.
    pub(super) fn no_replica(project: &str, model: &str) -> Self {
        let message = format!("Model {model} in project {project} has no replica that runs at the moment");
        Self::new(StatusCode::SERVICE_UNAVAILABLE, SERVER_ERROR, message)
    }

    /// The body is not what it should be, at a member of it or as a whole.
    pub(super) fn invalid(problem: &Problem<'_>) -> Self {
        let text = problem.message;
        let message = match problem.member {
            Some(member) => format!("{member}: {text}"),
            None => text.to_owned(),
        };
        Self {
            param: problem.member.map(str::to_owned),
            form: Form::Problems(json!([problem.to_json()])),
            ..Self::new(StatusCode::UNPROCESSABLE_ENTITY, INVALID_REQUEST, message)
        }
    }

    fn error(&self) -> Value {
        json!({"message": self.message, "type": self.kind, "param": self.param, "code": null})
    }

    /// As an answer.
    pub(super) fn into_response(self) -> Response<ProxyBody> {
        let detail = match &self.form {
            Form::Both => Value::String(self.message.clone()),
            Form::Problems(problems) => problems.clone(),
        };
        json_response(self.status, &json!({"detail": detail, "error": self.error()}))
    }

    /// At the end of a stream of events: a comment, which is where clients of dstack 0.22.5 look, and an event as OpenAI
    /// sends it.
    pub(super) fn into_event(self) -> Bytes {
        let comment = Value::String(self.message.clone());
        let event = json!({ "error": self.error() });
        Bytes::from(format!(": {comment}\n\ndata: {event}\n\n"))
    }
}

/// What is wrong with a body, in the words of dstack 0.22.5.
#[derive(Debug)]
pub(super) struct Problem<'p> {
    /// The kind: `missing`, `string_type`.
    pub(super) kind: &'p str,
    pub(super) message: &'p str,
    /// The member of the body that is wrong; none when it is the body itself.
    pub(super) member: Option<&'p str>,
    /// What was found there.
    pub(super) input: Value,
}

impl Problem<'_> {
    fn to_json(&self) -> Value {
        let loc: Vec<&str> = ["body"].into_iter().chain(self.member).collect();
        json!({"type": self.kind, "loc": loc, "msg": self.message, "input": self.input})
    }
}
