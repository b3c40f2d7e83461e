//! What of a call to a model is looked at: which model, and whether the answer is a stream. Everything else is the model's.

use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;

use super::failure::{Failure, Problem};

/// What models can be asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Endpoint {
    /// The next message of a chat.
    ChatCompletions,
    /// The rest of a text.
    Completions,
    /// Vectors of texts.
    Embeddings,
    /// OpenAI's responses.
    Responses,
}

impl Endpoint {
    /// All of them.
    pub const ALL: [Self; 4] = [
        Self::ChatCompletions,
        Self::Completions,
        Self::Embeddings,
        Self::Responses,
    ];

    /// Below the prefix of a model, as below that of a project.
    pub fn path(self) -> &'static str {
        match self {
            Self::ChatCompletions => "/chat/completions",
            Self::Completions => "/completions",
            Self::Embeddings => "/embeddings",
            Self::Responses => "/responses",
        }
    }
}

/// What is looked at.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Asked {
    /// Name of the model.
    pub(super) model: String,
}

#[derive(Debug, Deserialize)]
struct Members<'b> {
    #[serde(borrow)]
    model: Option<&'b RawValue>,
    #[serde(borrow)]
    stream: Option<&'b RawValue>,
    #[serde(borrow)]
    messages: Option<&'b RawValue>,
}

impl Asked {
    /// Reads a body.
    ///
    /// # Errors
    /// It is no JSON object, or `model`, `stream` or the `messages` of a chat are not what they must be.
    pub(super) fn read(endpoint: Endpoint, body: &[u8]) -> Result<Self, Failure> {
        let members = members(body)?;
        let model = member("model", members.model)?;
        let model = serde_json::from_str(model.get())
            .map_err(|_| wrong("model", "string_type", "Input should be a valid string", model))?;
        if let Some(stream) = members.stream
            && serde_json::from_str::<bool>(stream.get()).is_err()
        {
            return Err(wrong(
                "stream",
                "bool_type",
                "Input should be a valid boolean",
                stream,
            ));
        }
        if endpoint == Endpoint::ChatCompletions {
            let messages = member("messages", members.messages)?;
            if !messages.get().starts_with('[') {
                return Err(wrong(
                    "messages",
                    "list_type",
                    "Input should be a valid list",
                    messages,
                ));
            }
        }
        Ok(Self { model })
    }
}

fn members(body: &[u8]) -> Result<Members<'_>, Failure> {
    let whole = |kind, message: &str| {
        Failure::invalid(&Problem {
            kind,
            message,
            member: None,
            input: Value::Null,
        })
    };
    let Some(first) = body.iter().find(|byte| !byte.is_ascii_whitespace()) else {
        return Err(whole("missing", "Field required"));
    };
    let read = serde_json::from_slice::<Members<'_>>(body);
    // A list would be read as the members in their order.
    match read {
        Ok(members) if *first == b'{' => Ok(members),
        Err(error) if *first == b'{' || !error.is_data() => {
            Err(whole("json_invalid", &format!("JSON decode error: {error}")))
        }
        _ => Err(whole(
            "model_attributes_type",
            "Input should be a valid dictionary or object to extract fields from",
        )),
    }
}

fn member<'b>(name: &'static str, found: Option<&'b RawValue>) -> Result<&'b RawValue, Failure> {
    found.ok_or_else(|| {
        Failure::invalid(&Problem {
            kind: "missing",
            message: "Field required",
            member: Some(name),
            input: Value::Null,
        })
    })
}

/// What is repeated of a wrong value at most, in bytes.
const MAX_INPUT_BYTES: usize = 1024;

/// A member is not of its type.
pub(super) fn wrong(member: &str, kind: &str, message: &str, found: &RawValue) -> Failure {
    let text = found.get();
    let input = match text.len() <= MAX_INPUT_BYTES {
        true => serde_json::from_str(text).unwrap_or_default(),
        false => Value::Null,
    };
    Failure::invalid(&Problem {
        kind,
        message,
        member: Some(member),
        input,
    })
}

#[cfg(test)]
mod tests {
    use http::StatusCode;
    use http_body_util::BodyExt;

    use super::*;

    async fn problem(endpoint: Endpoint, body: &str) -> (String, String, String) {
        let response = Asked::read(endpoint, body.as_bytes())
            .unwrap_err()
            .into_response();
        assert_eq!(response.status(), StatusCode::UNPROCESSABLE_ENTITY, "{body}");
        let bytes = response.into_body().collect().await.unwrap().to_bytes();
        let value: Value = serde_json::from_slice(&bytes).unwrap();
        let detail = &value["detail"][0];
        let loc: Vec<&str> = detail["loc"]
            .as_array()
            .unwrap()
            .iter()
            .map(|part| part.as_str().unwrap())
            .collect();
        let message = value["error"]["message"].as_str().unwrap().to_owned();
        assert_eq!(value["error"]["type"], "invalid_request_error");
        (
            detail["type"].as_str().unwrap().to_owned(),
            loc.join("."),
            message,
        )
    }

    #[tokio::test]
    async fn bodies_that_are_wrong_are_told_where() {
        for (body, kind, at) in [
            ("", "missing", "body"),
            (" \n", "missing", "body"),
            ("{", "json_invalid", "body"),
            (r#"{"model": "m"} x"#, "json_invalid", "body"),
            (r#"["m", true, []]"#, "model_attributes_type", "body"),
            (r#""m""#, "model_attributes_type", "body"),
            (r#"{"messages": []}"#, "missing", "body.model"),
            (r#"{"model": 1, "messages": []}"#, "string_type", "body.model"),
            (
                r#"{"model": "m", "messages": [], "stream": "yes"}"#,
                "bool_type",
                "body.stream",
            ),
            (r#"{"model": "m"}"#, "missing", "body.messages"),
            (r#"{"model": "m", "messages": {}}"#, "list_type", "body.messages"),
        ] {
            let (found, loc, message) = problem(Endpoint::ChatCompletions, body).await;
            assert_eq!((found.as_str(), loc.as_str()), (kind, at), "{body}: {message}");
        }
    }

    #[test]
    fn nothing_but_the_model_is_looked_at_elsewhere() {
        let deep = format!(
            r#"{{"input": {}1{}, "model": "mé"}}"#,
            "[".repeat(100_000),
            "]".repeat(100_000)
        );
        for body in [r#"{"model": "mé", "messages": 1, "stream": null}"#, deep.as_str()] {
            let asked = Asked::read(Endpoint::Embeddings, body.as_bytes()).unwrap();
            assert_eq!(asked.model, "mé");
        }
    }

    #[tokio::test]
    async fn of_a_large_value_nothing_is_repeated() {
        let body = format!(r#"{{"model": [{}1]}}"#, "1, ".repeat(10_000));
        let response = Asked::read(Endpoint::Embeddings, body.as_bytes())
            .unwrap_err()
            .into_response();
        let bytes = response.into_body().collect().await.unwrap().to_bytes();
        assert!(bytes.len() < 2 * MAX_INPUT_BYTES, "{bytes:?}");
    }
}
