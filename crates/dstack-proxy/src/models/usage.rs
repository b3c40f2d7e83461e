//! Tokens that answers took, read from what passes.

use std::fmt;
use std::sync::Arc;

use serde::Deserialize;

use crate::routes::Service;

/// What an answer took.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TokenUsage {
    /// Tokens of what was asked.
    pub prompt: u64,
    /// Tokens of the answer.
    pub completion: u64,
}

/// Is told what answers took, once for each that said so, when it is over or the client has gone.
pub trait Accounting: Send + Sync + fmt::Debug {
    /// An answer of a model of this service took so many tokens. Called where answers are passed on: must not block.
    fn used(&self, service: &Service, usage: TokenUsage);
}

/// Forgets what it is told: for where nobody asks for sums.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoAccounting;

impl Accounting for NoAccounting {
    fn used(&self, _service: &Service, _usage: TokenUsage) {}
}

/// Where the tokens of an answer are counted.
#[derive(Debug)]
pub(super) struct Meter {
    service: Arc<Service>,
    accounting: Arc<dyn Accounting>,
}

impl Meter {
    pub(super) fn new(service: Arc<Service>, accounting: Arc<dyn Accounting>) -> Self {
        Self { service, accounting }
    }

    pub(super) fn used(&self, usage: TokenUsage) {
        self.accounting.used(&self.service, usage);
    }
}

/// Bytes at the end of an answer in which its usage is looked for: it is among the last members of a JSON answer, and in one of
/// the last events of a stream.
const TAIL_BYTES: usize = 8 * 1024;

/// The last bytes of what has passed.
#[derive(Debug, Default)]
pub(super) struct Tail {
    // At most twice what is needed, so that bytes are seldom moved.
    bytes: Vec<u8>,
}

impl Tail {
    pub(super) fn push(&mut self, piece: &[u8]) {
        let from = piece.len().saturating_sub(TAIL_BYTES);
        self.bytes.extend_from_slice(piece.get(from..).unwrap_or(piece));
        if self.bytes.len() > 2 * TAIL_BYTES {
            self.bytes.drain(..self.bytes.len() - TAIL_BYTES);
        }
    }

    /// Whether a stream of events could go on here with an event: nothing has passed, or a whole number of events.
    pub(super) fn is_between_events(&self) -> bool {
        let ends = [&b"\n\n"[..], b"\r\n\r\n", b"\r\r"];
        self.bytes.is_empty() || ends.iter().any(|end| self.bytes.ends_with(end))
    }

    /// The last usage in it.
    pub(super) fn usage(&self) -> Option<TokenUsage> {
        // Not part of a text, where its second quote would be escaped.
        const KEY: &[u8] = b"\"usage\"";
        let mut before = self.bytes.as_slice();
        while let Some(at) = before.windows(KEY.len()).rposition(|window| window == KEY) {
            let usage = counts(self.bytes.get(at + KEY.len()..).unwrap_or_default());
            if usage.is_some() {
                return usage;
            }
            before = before.get(..at).unwrap_or_default();
        }
        None
    }
}

/// Of chats and of responses.
#[derive(Debug, Deserialize)]
struct Counts {
    prompt_tokens: Option<u64>,
    completion_tokens: Option<u64>,
    input_tokens: Option<u64>,
    output_tokens: Option<u64>,
}

/// The counts after a key, with whatever follows them.
fn counts(after_key: &[u8]) -> Option<TokenUsage> {
    let value = after_key
        .trim_ascii_start()
        .strip_prefix(b":")?
        .trim_ascii_start();
    if !value.starts_with(b"{") {
        return None;
    }
    let mut values = serde_json::Deserializer::from_slice(value).into_iter::<Counts>();
    let counts = values.next()?.ok()?;
    Some(TokenUsage {
        prompt: counts.prompt_tokens.or(counts.input_tokens)?,
        completion: counts.completion_tokens.or(counts.output_tokens).unwrap_or(0),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn usage_of(pieces: &[&str]) -> Option<TokenUsage> {
        let mut tail = Tail::default();
        pieces.iter().for_each(|piece| tail.push(piece.as_bytes()));
        assert!(tail.bytes.capacity() <= 8 * TAIL_BYTES);
        tail.usage()
    }

    const fn used(prompt: u64, completion: u64) -> Option<TokenUsage> {
        Some(TokenUsage { prompt, completion })
    }

    #[test]
    fn usage_is_found_in_answers_of_every_kind() {
        let chat = r#"{"choices": [{"message": {"content": "\"usage\": {\"prompt_tokens\": 9}"}}], "usage" : {"prompt_tokens": 3, "completion_tokens": 4, "prompt_tokens_details": null}, "x": 1}"#;
        assert_eq!(usage_of(&[chat]), used(3, 4));
        let stream = [
            "data: {\"choices\":[{}],\"usage\":null}\n\n",
            "data: {\"choices\":[],\"us",
            "age\":{\"prompt_tokens\":3,\"total_tokens\":5,\"completion_tokens\":2}}\n\ndata: {\"usage\":null}\n\n",
            "data: [DONE]\n\n",
        ];
        assert_eq!(usage_of(&stream), used(3, 2));
        let embeddings = r#"{"data": [], "usage": {"prompt_tokens": 8, "total_tokens": 8}}"#;
        assert_eq!(usage_of(&[embeddings]), used(8, 0));
        let responses =
            r#"data: {"response": {"usage": {"input_tokens": 1, "output_tokens": 2}, "user": null}}"#;
        assert_eq!(usage_of(&[responses]), used(1, 2));
    }

    #[test]
    fn without_usage_there_is_none() {
        for answer in [
            "",
            r#"{"usage": null}"#,
            r#"{"usage": {"prompt_tokens": "#,
            r#"{"a": "\"usage\":{\"prompt_tokens\":1}"}"#,
            r#"{"usage": [1, 2, 3, 4]}"#,
        ] {
            assert_eq!(usage_of(&[answer]), None, "{answer}");
        }
    }

    #[test]
    fn the_end_of_a_large_answer_is_kept_and_no_more() {
        let long = "x".repeat(1_000_000);
        let end = r#","usage":{"prompt_tokens":3,"completion_tokens":4}}"#;
        assert_eq!(usage_of(&[&long, &format!("{long}{end}")]), used(3, 4));
        let pieces: Vec<&str> = std::iter::repeat_n("abcdefg", 10_000).chain([end]).collect();
        assert_eq!(usage_of(&pieces), used(3, 4));
    }

    #[test]
    fn a_stream_is_between_events_after_an_empty_line() {
        for (passed, is_between) in [
            ("", true),
            ("data: 1\n\n", true),
            ("data: 1\r\n\r\n", true),
            ("data: 1\n", false),
            ("dat", false),
        ] {
            let mut tail = Tail::default();
            tail.push(passed.as_bytes());
            assert_eq!(tail.is_between_events(), is_between, "{passed:?}");
        }
    }
}
