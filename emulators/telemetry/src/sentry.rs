//! What Sentry was sent.

use serde_json::Value;

use crate::{Received, Receiver};

/// The key to write to the project.
pub const KEY: &str = "0123456789abcdef0123456789abcdef";

/// The address of a project at this receiver.
pub fn dsn(receiver: &Receiver) -> String {
    receiver.url.replace("http://", &format!("http://{KEY}@")) + "/42"
}

/// All items of a kind (`event`, `transaction`) in all envelopes.
pub fn items(received: &[Received], kind: &str) -> Vec<Value> {
    let envelopes = received
        .iter()
        .filter(|request| request.path == "/api/42/envelope/");
    envelopes
        .flat_map(|request| of_envelope(&request.body))
        .filter(|(of_kind, _)| of_kind == kind)
        .map(|(_, item)| item)
        .collect()
}

/// An envelope is a line of JSON, and two of them for each item: what it is, and the item.
fn of_envelope(body: &[u8]) -> Vec<(String, Value)> {
    let lines: Vec<Value> = body
        .split(|byte| *byte == b'\n')
        .filter(|line| !line.is_empty())
        .map(|line| serde_json::from_slice(line).expect("JSON"))
        .collect();
    lines[1..]
        .chunks_exact(2)
        .map(|pair| {
            (
                pair[0]["type"].as_str().unwrap_or_default().to_owned(),
                pair[1].clone(),
            )
        })
        .collect()
}
