//! What of a request makes its prompt, block by block.

use std::hash::{DefaultHasher, Hasher as _};

use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;

/// Bytes of text of a block, about two blocks of vLLM's cache.
pub(super) const BLOCK: usize = 128;

/// Most blocks that are looked at of a prompt.
const MAX_BLOCKS: usize = 2048;

/// The blocks of a prompt: each one stands for itself and all before it, as in the cache of vLLM.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Prompt(Vec<u64>);

/// What prompts are made of, in the order in which templates of chats have it: those of OpenAI's API and Anthropic's, and of SGLang's and
/// Text Generation Inference's own.
#[derive(Debug, Deserialize)]
struct Members<'b> {
    #[serde(borrow)]
    model: Option<&'b RawValue>,
    #[serde(borrow)]
    tools: Option<&'b RawValue>,
    #[serde(borrow)]
    system: Option<&'b RawValue>,
    #[serde(borrow)]
    instructions: Option<&'b RawValue>,
    #[serde(borrow)]
    prompt: Option<&'b RawValue>,
    #[serde(borrow)]
    text: Option<&'b RawValue>,
    #[serde(borrow)]
    inputs: Option<&'b RawValue>,
    #[serde(borrow)]
    input: Option<&'b RawValue>,
    #[serde(borrow)]
    messages: Option<&'b RawValue>,
}

impl Prompt {
    /// That of a request with this body; `None`: it is none, or too short.
    pub(crate) fn read(body: &[u8]) -> Option<Self> {
        let members: Members<'_> = serde_json::from_slice(body).ok()?;
        let parts = [
            members.model,
            members.tools,
            members.system,
            members.instructions,
            members.prompt,
            members.text,
            members.inputs,
            members.input,
            members.messages,
        ];
        let mut text = String::new();
        for part in parts.into_iter().flatten() {
            append(&mut text, part)?;
        }
        let blocks = blocks(text.as_bytes());
        (!blocks.is_empty()).then_some(Self(blocks))
    }

    pub(super) fn blocks(&self) -> &[u64] {
        &self.0
    }
}

/// So that what is longer begins as what is shorter: lists and texts are left open.
fn append(text: &mut String, part: &RawValue) -> Option<()> {
    match serde_json::from_str(part.get()).ok()? {
        Value::Array(elements) => {
            for element in elements {
                text.push_str(&element.to_string());
                text.push('\n');
            }
        }
        Value::String(string) => text.push_str(&string),
        other => text.push_str(&other.to_string()),
    }
    text.push('\n');
    Some(())
}

/// What is left at the end is no block.
fn blocks(text: &[u8]) -> Vec<u64> {
    let mut before = 0;
    let chained = text.chunks_exact(BLOCK).take(MAX_BLOCKS).map(|block| {
        let mut hasher = DefaultHasher::new();
        hasher.write_u64(before);
        hasher.write(block);
        before = hasher.finish();
        before
    });
    chained.collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(body: &Value) -> Vec<u64> {
        let prompt = Prompt::read(body.to_string().as_bytes());
        prompt.map(|prompt| prompt.0).unwrap_or_default()
    }

    fn message(text: &str) -> Value {
        json!({"role": "user", "content": text.repeat(100)})
    }

    #[test]
    fn a_conversation_begins_as_it_did_before() {
        let chat = |messages: &[Value]| read(&json!({"messages": messages, "model": "m", "temperature": 1}));
        let (a, b, c) = (message("abc"), message("def"), message("ghi"));
        let before = chat(&[a.clone(), b.clone()]);
        let after = chat(&[a.clone(), b, c.clone()]);
        assert!(before.len() >= 4 && after.len() > before.len());
        // The last block before the end may have both messages in it.
        assert_eq!(after[..before.len() - 1], before[..before.len() - 1]);
        let other = chat(&[c, a]);
        assert!(
            other.iter().all(|block| !after.contains(block)),
            "blocks stand for all before them"
        );
    }

    #[test]
    fn what_is_asked_besides_and_how_it_is_written_makes_no_difference_but_the_model_does() {
        let plain = read(&json!({"model": "m", "messages": [message("abc")]}));
        let spaced = format!(
            "{{\"stream\" : true,\n \"messages\": [ {} ], \"model\":\"m\"}}",
            serde_json::to_string_pretty(&message("abc")).unwrap()
        );
        assert_eq!(Prompt::read(spaced.as_bytes()).unwrap().0, plain);
        let other = read(&json!({"model": "n", "messages": [message("abc")]}));
        assert_ne!(other[0], plain[0]);
    }

    #[test]
    fn prompts_are_found_in_all_apis() {
        let long = "x".repeat(BLOCK * 2);
        for body in [
            json!({"prompt": long}),
            json!({"prompt": [long, long]}),
            json!({"text": long}),
            json!({"inputs": long}),
            json!({"input": [{"role": "user", "content": long}]}),
            json!({"system": long, "messages": []}),
        ] {
            assert!(read(&body).len() >= 2, "{body}");
        }
        let longer = read(&json!({"prompt": format!("{long}{long}")}));
        assert_eq!(longer[..2], read(&json!({"prompt": long}))[..2]);
    }

    #[test]
    fn what_is_no_prompt_has_none() {
        let deep = format!("{{\"prompt\": {}{}}}", "[".repeat(1000), "]".repeat(1000));
        for body in [
            "",
            "[1]",
            "{}",
            "{\"prompt\": \"short\"}",
            "{\"messages\": ",
            &deep,
        ] {
            assert_eq!(Prompt::read(body.as_bytes()), None, "{body}");
        }
        let endless = json!({"prompt": "x".repeat(BLOCK * MAX_BLOCKS * 2)});
        assert_eq!(read(&endless).len(), MAX_BLOCKS);
    }
}
