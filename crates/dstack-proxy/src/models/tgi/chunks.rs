//! From the events of Text Generation Inference to those of OpenAI.

use bytes::Bytes;
use serde::Deserialize;
use serde_json::{Value, json};

use super::Head;
use super::completion::{finish_reason, usage_json};
use super::stop::StopFilter;
use crate::models::failure::Failure;
use crate::models::usage::TokenUsage;

/// Makes chunks of a completion.
#[derive(Debug)]
pub(super) struct Chunks {
    head: Head,
    filter: StopFilter,
    include_usage: bool,
    is_finished: bool,
}

/// What follows from an event.
#[derive(Debug, Default)]
pub(super) struct Chunk {
    /// Events for the client.
    pub(super) text: Option<Bytes>,
    /// What the answer took, at its end.
    pub(super) usage: Option<TokenUsage>,
}

/// Why there is nothing more.
#[derive(Debug)]
pub(super) enum StreamError {
    /// The model says so.
    Refused {
        /// Its word for the kind of error.
        kind: String,
        message: String,
    },
    /// The event is not what it should be.
    Invalid(Failure),
}

#[derive(Debug, Deserialize)]
struct Event {
    token: Option<Token>,
    details: Option<Details>,
    error: Option<String>,
    error_type: Option<String>,
}

#[derive(Debug, Deserialize)]
struct Token {
    text: String,
    /// It is for the model, such as the one that ends a text.
    #[serde(default)]
    special: bool,
}

/// Of the last event.
#[derive(Debug, Deserialize)]
struct Details {
    finish_reason: String,
    generated_tokens: u64,
    /// Tokens of the prompt; older versions do not say.
    input_length: Option<u64>,
}

impl Chunks {
    pub(super) fn new(head: Head, stop: Vec<String>, include_usage: bool) -> Self {
        Self {
            head,
            filter: StopFilter::new(stop),
            include_usage,
            is_finished: false,
        }
    }

    /// Whether the last event has been there.
    pub(super) fn is_finished(&self) -> bool {
        self.is_finished
    }

    /// What follows from the data of an event.
    ///
    /// # Errors
    /// The model fails, or this is none of its events.
    pub(super) fn take(&mut self, data: &str) -> Result<Chunk, StreamError> {
        let event: Event = serde_json::from_str(data)
            .map_err(|error| invalid(Failure::upstream(format!("Invalid response from model: {error}"))))?;
        if let Some(message) = event.error {
            let kind = event.error_type.unwrap_or_default();
            return Err(StreamError::Refused { kind, message });
        }
        let token = event.token.filter(|token| !token.special);
        let mut content = token
            .map(|token| self.filter.push(&token.text))
            .unwrap_or_default();
        let Some(details) = event.details else {
            let text = Some(self.of_text(&content)).filter(|text| !text.is_empty());
            return Ok(Chunk {
                text: text.map(Bytes::from),
                usage: None,
            });
        };
        content += &self.filter.finish();
        let usage = TokenUsage {
            prompt: details.input_length.unwrap_or(0),
            completion: details.generated_tokens,
        };
        let reason = finish_reason(&details.finish_reason).map_err(invalid)?;
        self.is_finished = true;
        Ok(Chunk {
            text: Some(Bytes::from(self.of_text(&content) + &self.end(reason, usage))),
            usage: Some(usage),
        })
    }

    fn of_text(&self, content: &str) -> String {
        match content {
            "" => String::new(),
            content => event(&self.chunk(&json!({"role": "assistant", "content": content}), None)),
        }
    }

    fn end(&self, reason: &str, usage: TokenUsage) -> String {
        let mut text = event(&self.chunk(&json!({}), Some(reason)));
        if self.include_usage {
            let mut chunk = self.of_choices(&json!([]));
            if let Some(members) = chunk.as_object_mut() {
                members.insert("usage".to_owned(), usage_json(usage));
            }
            text += &event(&chunk);
        }
        text + "data: [DONE]\n\n"
    }

    fn chunk(&self, delta: &Value, reason: Option<&str>) -> Value {
        self.of_choices(&json!([{"index": 0, "delta": delta, "logprobs": null, "finish_reason": reason}]))
    }

    fn of_choices(&self, choices: &Value) -> Value {
        json!({
            "id": self.head.id,
            "object": "chat.completion.chunk",
            "created": self.head.created,
            "model": self.head.model,
            "system_fingerprint": "",
            "choices": choices,
        })
    }
}

fn invalid(failure: Failure) -> StreamError {
    StreamError::Invalid(failure)
}

fn event(value: &Value) -> String {
    format!("data: {value}\n\n")
}
