//! From a whole answer of Text Generation Inference to OpenAI's.

use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::{Value, json};

use super::Head;
use super::stop::without_stop;
use crate::models::failure::Failure;
use crate::models::usage::TokenUsage;

#[derive(Debug, Deserialize)]
struct Generated {
    generated_text: String,
    details: Details,
}

#[derive(Debug, Deserialize)]
struct Details {
    finish_reason: String,
    generated_tokens: u64,
    seed: Option<u64>,
    /// The tokens of the prompt.
    #[serde(default)]
    prefill: Vec<IgnoredAny>,
    best_of_sequences: Option<Vec<Sequence>>,
}

/// Another answer to the same.
#[derive(Debug, Deserialize)]
struct Sequence {
    generated_text: String,
    finish_reason: String,
    generated_tokens: u64,
}

/// A `chat.completion`, and what it took.
///
/// # Errors
/// This is no such answer.
pub(super) fn completion(head: &Head, stop: &[String], bytes: &[u8]) -> Result<(Value, TokenUsage), Failure> {
    let generated: Generated = serde_json::from_slice(bytes)
        .map_err(|error| Failure::upstream(format!("Invalid response from model: {error}")))?;
    let Generated {
        generated_text,
        details,
    } = generated;
    let others = details.best_of_sequences.unwrap_or_default();
    let usage = TokenUsage {
        prompt: u64::try_from(details.prefill.len()).unwrap_or(u64::MAX),
        completion: others.iter().fold(details.generated_tokens, |sum, other| {
            sum.saturating_add(other.generated_tokens)
        }),
    };
    let first = (generated_text, details.finish_reason);
    let others = others
        .into_iter()
        .map(|other| (other.generated_text, other.finish_reason));
    let mut choices = Vec::new();
    for (index, (text, reason)) in [first].into_iter().chain(others).enumerate() {
        let message = json!({"role": "assistant", "content": without_stop(&text, stop)});
        choices.push(json!({
            "index": index,
            "message": message,
            "logprobs": null,
            "finish_reason": finish_reason(&reason)?,
        }));
    }
    let completion = json!({
        "id": head.id,
        "object": "chat.completion",
        "created": head.created,
        "model": head.model,
        "system_fingerprint": details.seed.map(|seed| format!("fp_{seed}")).unwrap_or_default(),
        "choices": choices,
        "usage": usage_json(usage),
    });
    Ok((completion, usage))
}

/// What an answer took, as OpenAI says it.
pub(super) fn usage_json(usage: TokenUsage) -> Value {
    json!({
        "prompt_tokens": usage.prompt,
        "completion_tokens": usage.completion,
        "total_tokens": usage.prompt.saturating_add(usage.completion),
    })
}

/// Why an answer ended, in OpenAI's words.
///
/// # Errors
/// There is no word for it.
pub(super) fn finish_reason(reason: &str) -> Result<&'static str, Failure> {
    match reason {
        "stop_sequence" | "eos_token" => Ok("stop"),
        "length" => Ok("length"),
        other => Err(Failure::upstream(format!("Unknown finish reason: {other}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head() -> Head {
        Head {
            id: "chatcmpl-1".to_owned(),
            created: 1_700_000_000,
            model: "m".to_owned(),
        }
    }

    #[test]
    fn an_answer_becomes_a_completion_without_its_stop_sequences() {
        let answer = json!({
            "generated_text": "Hello</s>",
            "details": {
                "finish_reason": "eos_token",
                "generated_tokens": 2,
                "seed": 42,
                "prefill": [{"id": 1, "text": "<s>", "logprob": null}, {"id": 2, "text": "hi", "logprob": -1.5}],
                "tokens": [],
                "best_of_sequences": [{"generated_text": "Hi there", "finish_reason": "length", "generated_tokens": 3, "seed": 1, "prefill": [], "tokens": []}],
            },
        });
        let (completion, usage) =
            completion(&head(), &["</s>".to_owned()], answer.to_string().as_bytes()).unwrap();
        let choice = |index: u64, text: &str, reason: &str| json!({"index": index, "message": {"role": "assistant", "content": text}, "logprobs": null, "finish_reason": reason});
        let expected = json!({
            "id": "chatcmpl-1",
            "object": "chat.completion",
            "created": 1_700_000_000,
            "model": "m",
            "system_fingerprint": "fp_42",
            "choices": [choice(0, "Hello", "stop"), choice(1, "Hi there", "length")],
            "usage": {"prompt_tokens": 2, "completion_tokens": 5, "total_tokens": 7},
        });
        assert_eq!(completion, expected);
        assert_eq!((usage.prompt, usage.completion), (2, 5));
    }

    #[test]
    fn other_answers_are_refused() {
        let unknown =
            r#"{"generated_text": "", "details": {"finish_reason": "tired", "generated_tokens": 1}}"#;
        for answer in [unknown, "", "[]", r#"{"generated_text": "x"}"#] {
            completion(&head(), &[], answer.as_bytes()).unwrap_err();
        }
    }
}
