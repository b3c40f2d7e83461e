//! What models are asked: it reaches the model as it is, or is refused in OpenAI's form. The first byte chooses the call.
#![no_main]

use dstack_fuzz::models::{Answer, PROMPT, call};
use dstack_proxy::models::Endpoint;
use serde_json::Value;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let Some((choice, body)) = bytes.split_first() else { return };
    let endpoint = Endpoint::ALL[usize::from(*choice) % Endpoint::ALL.len()];
    let answer = Answer {
        content_type: "application/json",
        bytes: br#"{"generated_text": "text", "details": {"finish_reason": "length", "generated_tokens": 1}}"#,
        piece_bytes: 16,
        breaks: false,
    };
    let outcome = call(endpoint, body, &answer);
    for asked in &outcome.asked {
        let is_prompt = serde_json::from_slice::<Value>(asked).is_ok_and(|asked| asked["inputs"] == PROMPT);
        assert!(asked == body || is_prompt, "the model was asked {asked:?}");
    }
    assert!(outcome.asked.len() <= 1 && !outcome.is_broken, "{outcome:?}");
    if outcome.status != 200 {
        let refusal: Value = serde_json::from_slice(&outcome.body).unwrap();
        assert!(refusal["error"]["message"].is_string(), "{refusal}");
        assert!(!refusal["detail"].is_null(), "{refusal}");
    }
});
