//! Sending a suite's requests in order.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::Result;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use dstack_conformance::{Document, Exchange};
use serde_json::Value;

use super::case::{Case, Poll, Request};
use super::compare::{Difference, compare};
use super::pairs::Pairs;
use crate::http::{Answer, Client};
use crate::server::document;

/// How the replay of one case went.
#[derive(Debug)]
pub struct Outcome {
    pub case: String,
    /// Empty: the answer matches.
    pub differences: Vec<Difference>,
}

/// Replays cases, in the order given, against a server at `url`; `each` sees every outcome as it comes.
pub fn replay(cases: &[Case], url: &str, mut each: impl FnMut(&Outcome)) -> Vec<Outcome> {
    let client = Client::default();
    // A server of another kind is only compared.
    let document = document(&client, url);
    let mut pairs = Pairs::default();
    let mut outcomes = Vec::new();
    for case in cases {
        let differences = match exchange(&client, case, url, &pairs) {
            Ok(answer) => {
                let mut differences = compare(case, &answer, &mut pairs);
                differences.extend(undocumented(document.as_ref(), case, &answer));
                differences
            }
            Err(error) => vec![no_answer(&error)],
        };
        let outcome = Outcome {
            case: case.name.clone(),
            differences,
        };
        each(&outcome);
        outcomes.push(outcome);
    }
    outcomes
}

/// Whether the answer is not as the server's document says. What older clients get is not in the document.
fn undocumented(document: Option<&Document>, case: &Case, answer: &Answer) -> Option<Difference> {
    let version = case.request.headers.get("x-api-version");
    if version.is_some_and(|version| version != "0.22.5") {
        return None;
    }
    let exchange = Exchange {
        method: &case.request.method,
        path: &case.request.path,
        status: answer.status,
        body: &answer.body,
    };
    let problem = document?.check(exchange).err()?;
    Some(Difference {
        at: "openapi".into(),
        recorded: "an answer as documented".into(),
        actual: problem,
    })
}

fn no_answer(error: &anyhow::Error) -> Difference {
    Difference {
        at: "exchange".into(),
        recorded: "an answer".into(),
        actual: format!("{error:#}"),
    }
}

fn exchange(client: &Client, case: &Case, url: &str, pairs: &Pairs) -> Result<Answer> {
    let Some(poll) = &case.poll else {
        return send(client, &case.request, url, pairs);
    };
    let end = Instant::now() + Duration::from_secs_f64(poll.timeout);
    loop {
        let answer = send(client, &case.request, url, pairs)?;
        if reached(poll, &answer) || Instant::now() > end {
            return Ok(answer);
        }
        thread::sleep(Duration::from_millis(100));
    }
}

fn reached(poll: &Poll, answer: &Answer) -> bool {
    let Some(body) = answer.json() else { return false };
    let pointer = format!("/{}", poll.path.replace('.', "/"));
    body.pointer(&pointer)
        .is_some_and(|value| poll.values.contains(value))
}

/// Sends a recorded request with everything remembered put in its place.
fn send(client: &Client, request: &Request, url: &str, pairs: &Pairs) -> Result<Answer> {
    let mut headers: Vec<(String, String)> = request
        .headers
        .iter()
        .map(|(name, value)| (name.clone(), pairs.translate(value)))
        .collect();
    let body = body(request, pairs, &mut headers)?;
    let url = format!(
        "{url}{}{}",
        pairs.translate(&request.path),
        query(&request.query, pairs)
    );
    client.send(&request.method, &url, &headers, body)
}

fn body(request: &Request, pairs: &Pairs, headers: &mut Vec<(String, String)>) -> Result<Option<Vec<u8>>> {
    if let Some(json) = &request.json {
        return Ok(Some(serde_json::to_vec(&pairs.translate_value(json))?));
    }
    if let Some(text) = &request.text {
        return Ok(Some(pairs.translate(text).into_bytes()));
    }
    if let Some(text) = &request.base64 {
        return Ok(Some(STANDARD.decode(text)?));
    }
    if let Some((field, file, length)) = &request.multipart_zeros {
        return Ok(Some(multipart(field, file, *length, headers)));
    }
    Ok(None)
}

/// A form with one file of zero bytes, written as the recorded ones were: limits count its frame, too.
fn multipart(field: &str, file: &str, length: usize, headers: &mut Vec<(String, String)>) -> Vec<u8> {
    const BOUNDARY: &str = "golden-boundary-7d1f";
    headers.retain(|(name, _)| name != "content-type");
    headers.push((
        "content-type".into(),
        format!("multipart/form-data; boundary={BOUNDARY}"),
    ));
    let head = format!(
        "--{BOUNDARY}\r\nContent-Disposition: form-data; name=\"{field}\"; filename=\"{file}\"\r\n\r\n"
    );
    let tail = format!("\r\n--{BOUNDARY}--\r\n");
    [head.as_bytes(), &vec![0; length], tail.as_bytes()].concat()
}

fn query(recorded: &Value, pairs: &Pairs) -> String {
    let pair = |name: &str, value: &Value| match value {
        Value::String(text) => format!("{}={}", encoded(name), encoded(&pairs.translate(text))),
        other => format!("{}={}", encoded(name), encoded(&other.to_string())),
    };
    let parts: Vec<String> = match recorded {
        Value::Object(fields) => fields.iter().map(|(name, value)| pair(name, value)).collect(),
        Value::String(text) if !text.is_empty() => vec![pairs.translate(text)],
        _ => Vec::new(),
    };
    if parts.is_empty() {
        String::new()
    } else {
        format!("?{}", parts.join("&"))
    }
}

fn encoded(text: &str) -> String {
    text.bytes()
        .map(|byte| match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' => {
                char::from(byte).to_string()
            }
            other => format!("%{other:02X}"),
        })
        .collect()
}
