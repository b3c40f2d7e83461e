//! Amazon CloudWatch Logs: `DescribeLogStreams`, `CreateLogStream`, `PutLogEvents`, `GetLogEvents`.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use dstack_system::{Clock, SystemClock};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::{Fault, Faults, serve};

const DAY: i64 = 24 * 3600 * 1000;

/// The emulator of CloudWatch Logs.
#[derive(Debug, Clone)]
pub struct CloudWatch {
    /// Base URL at which it is reached.
    pub url: String,
    /// Faults of the next calls, in order.
    pub faults: Faults,
    state: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    group: String,
    faults: Faults,
    streams: Mutex<BTreeMap<String, Vec<(i64, String)>>>,
    /// Pages that are empty although there is more.
    empty_pages: Mutex<usize>,
    puts: Mutex<usize>,
}

impl CloudWatch {
    /// With one group.
    pub async fn start(group: &str) -> Self {
        let faults = Faults::default();
        let state = Arc::new(Shared {
            group: group.to_owned(),
            faults: faults.clone(),
            streams: Mutex::default(),
            empty_pages: Mutex::default(),
            puts: Mutex::default(),
        });
        let router = Router::new()
            .route("/", post(answer))
            .with_state(Arc::clone(&state));
        let address = serve(router.layer(axum::extract::DefaultBodyLimit::max(16 << 20))).await;
        Self {
            url: format!("http://{address}"),
            faults,
            state,
        }
    }

    /// What is stored: time in milliseconds and text.
    pub fn stored(&self, stream: &str) -> Vec<(i64, String)> {
        self.state
            .streams
            .lock()
            .unwrap()
            .get(stream)
            .cloned()
            .unwrap_or_default()
    }

    /// The next pages are empty although there is more.
    pub fn empty_pages(&self, pages: usize) {
        *self.state.empty_pages.lock().unwrap() = pages;
    }

    /// Deletes a stream, as its retention does.
    pub fn delete(&self, stream: &str) {
        self.state.streams.lock().unwrap().remove(stream);
    }

    /// Batches that were stored.
    pub fn puts(&self) -> usize {
        *self.state.puts.lock().unwrap()
    }
}

type Refused = (&'static str, String);

async fn answer(State(state): State<Arc<Shared>>, headers: HeaderMap, body: Bytes) -> Response {
    if let Err((kind, message)) = signed(&headers, &body) {
        return refusal(StatusCode::FORBIDDEN, kind, &message);
    }
    let fault = state.faults.next();
    match fault {
        Some(Fault::Throttled) => {
            return refusal(StatusCode::BAD_REQUEST, "ThrottlingException", "Rate exceeded");
        }
        Some(Fault::Unavailable) => return StatusCode::SERVICE_UNAVAILABLE.into_response(),
        Some(Fault::Denied) => {
            return refusal(
                StatusCode::BAD_REQUEST,
                "AccessDeniedException",
                "User is not authorized",
            );
        }
        Some(Fault::AnswerLost) | None => {}
    }
    let target = headers
        .get("x-amz-target")
        .and_then(|value| value.to_str().ok())
        .unwrap_or_default();
    let request: Value = serde_json::from_slice(&body).unwrap_or_default();
    let done = match target.strip_prefix("Logs_20140328.").unwrap_or_default() {
        _ if request["logGroupName"] != state.group.as_str() => Err((
            "ResourceNotFoundException",
            "The specified log group does not exist.".to_owned(),
        )),
        "DescribeLogStreams" => Ok(json!({"logStreams": []})),
        "CreateLogStream" => state.create(&request),
        "PutLogEvents" => state.put(&request),
        "GetLogEvents" => state.get(&request),
        other => Err(("UnknownOperationException", other.to_owned())),
    };
    if fault == Some(Fault::AnswerLost) {
        return StatusCode::INTERNAL_SERVER_ERROR.into_response();
    }
    match done {
        Ok(value) => axum::Json(value).into_response(),
        Err((kind, message)) => refusal(StatusCode::BAD_REQUEST, kind, &message),
    }
}

fn refusal(status: StatusCode, kind: &str, message: &str) -> Response {
    (status, axum::Json(json!({"__type": kind, "message": message}))).into_response()
}

/// Signature Version 4, but for the signature itself.
fn signed(headers: &HeaderMap, body: &[u8]) -> Result<(), Refused> {
    let header = |name: &str| {
        headers
            .get(name)
            .and_then(|value| value.to_str().ok())
            .unwrap_or_default()
    };
    let authorization = header("authorization");
    let is_signed = authorization.starts_with("AWS4-HMAC-SHA256 Credential=")
        && authorization.contains("/logs/aws4_request")
        && authorization.contains("Signature=")
        && !header("x-amz-date").is_empty();
    if !is_signed {
        return Err(("MissingAuthenticationTokenException", authorization.to_owned()));
    }
    if header("x-amz-content-sha256") != hex::encode(Sha256::digest(body)) {
        return Err(("InvalidSignatureException", "the body is another".to_owned()));
    }
    Ok(())
}

fn invalid(message: &str) -> Refused {
    ("InvalidParameterException", message.to_owned())
}

fn no_stream() -> Refused {
    (
        "ResourceNotFoundException",
        "The specified log stream does not exist.".to_owned(),
    )
}

impl Shared {
    fn create(&self, request: &Value) -> Result<Value, Refused> {
        let name = request["logStreamName"].as_str().unwrap_or_default();
        if name.is_empty() || name.len() > 512 || name.contains([':', '*']) {
            return Err(invalid("logStreamName"));
        }
        let mut streams = self.streams.lock().unwrap();
        if streams.contains_key(name) {
            return Err((
                "ResourceAlreadyExistsException",
                "The specified log stream already exists".to_owned(),
            ));
        }
        streams.insert(name.to_owned(), Vec::new());
        Ok(json!({}))
    }

    fn put(&self, request: &Value) -> Result<Value, Refused> {
        let events: Vec<(i64, String)> = request["logEvents"]
            .as_array()
            .ok_or_else(|| invalid("logEvents"))?
            .iter()
            .map(|event| {
                let text = event["message"].as_str().unwrap_or_default().to_owned();
                (event["timestamp"].as_i64().unwrap_or(-1), text)
            })
            .collect();
        check(&events)?;
        let mut streams = self.streams.lock().unwrap();
        let name = request["logStreamName"].as_str().unwrap_or_default();
        let stream = streams.get_mut(name).ok_or_else(no_stream)?;
        let now = SystemClock.now().as_millis();
        let (old, new) = (now - 14 * DAY, now + 2 * 3600 * 1000);
        let rejected = events.iter().any(|(time, _)| *time < old || *time > new);
        stream.extend(events.into_iter().filter(|(time, _)| (old..=new).contains(time)));
        stream.sort_by_key(|(time, _)| *time);
        *self.puts.lock().unwrap() += 1;
        Ok(match rejected {
            true => json!({"rejectedLogEventsInfo": {"tooOldLogEventEndIndex": 1}}),
            false => json!({"nextSequenceToken": "0"}),
        })
    }

    fn get(&self, request: &Value) -> Result<Value, Refused> {
        let name = request["logStreamName"].as_str().unwrap_or_default();
        let limit = request["limit"].as_u64().unwrap_or(10_000);
        if !(1..=10_000).contains(&limit) {
            return Err(invalid("limit"));
        }
        let streams = self.streams.lock().unwrap();
        let stream = streams.get(name).ok_or_else(no_stream)?;
        let start = request["startTime"].as_i64().unwrap_or(i64::MIN);
        let end = request["endTime"].as_i64().unwrap_or(i64::MAX);
        let events: Vec<&(i64, String)> = stream
            .iter()
            .filter(|(time, _)| (start..end).contains(time))
            .collect();
        let from_head = request["startFromHead"].as_bool().unwrap_or(false);
        let limit = usize::try_from(limit).unwrap();
        let place = |token: &str, prefix: &str| -> Option<usize> {
            token.strip_prefix(prefix)?.split('#').next()?.parse().ok()
        };
        let (from, to) = match request["nextToken"].as_str() {
            None if from_head => (0, limit.min(events.len())),
            None => (events.len().saturating_sub(limit), events.len()),
            Some(token) => {
                if let Some(from) = place(token, "f/").filter(|from| *from <= events.len()) {
                    (from, (from + limit).min(events.len()))
                } else if let Some(to) = place(token, "b/").filter(|to| *to <= events.len()) {
                    (to.saturating_sub(limit), to)
                } else {
                    return Err(invalid("The specified nextToken is invalid."));
                }
            }
        };
        let mut empty = self.empty_pages.lock().unwrap();
        if *empty > 0 {
            // There is more: the token is another one, for the same place.
            *empty -= 1;
            return Ok(json!({
                "events": [],
                "nextForwardToken": format!("f/{from}#{empty}"),
                "nextBackwardToken": format!("b/{to}#{empty}"),
            }));
        }
        let shown: Vec<Value> = events[from..to]
            .iter()
            .map(|(time, text)| json!({"timestamp": time, "message": text, "ingestionTime": time}))
            .collect();
        Ok(json!({
            "events": shown,
            "nextForwardToken": format!("f/{to}"),
            "nextBackwardToken": format!("b/{from}"),
        }))
    }
}

/// The limits of a batch.
fn check(events: &[(i64, String)]) -> Result<(), Refused> {
    if events.is_empty() || events.len() > 10_000 {
        return Err(invalid("between 1 and 10000 log events"));
    }
    if events.iter().any(|(time, text)| text.is_empty() || *time < 0) {
        return Err(invalid("message and timestamp"));
    }
    if events.iter().any(|(_, text)| text.len() + 26 > 256 << 10) {
        return Err(invalid("Log event too large"));
    }
    let bytes: usize = events.iter().map(|(_, text)| text.len() + 26).sum();
    if bytes > 1 << 20 {
        return Err(invalid("Upload too large"));
    }
    if !events.is_sorted_by_key(|(time, _)| *time) {
        return Err(invalid(
            "Log events in a single PutLogEvents request must be in chronological order.",
        ));
    }
    match (events.first(), events.last()) {
        (Some((first, _)), Some((last, _))) if last - first > DAY => {
            Err(invalid("The batch of log events cannot span more than 24 hours."))
        }
        _ => Ok(()),
    }
}
