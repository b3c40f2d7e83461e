//! Google Cloud Logging: `entries:write` and `entries:list`.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::Bytes;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use dstack_units::Time;
use serde_json::{Value, json};

use crate::{Fault, Faults, serve};

/// The emulator of Google Cloud Logging.
#[derive(Debug, Clone)]
pub struct GcpLogging {
    /// Base URL at which it is reached.
    pub url: String,
    /// Faults of the next calls, in order.
    pub faults: Faults,
    state: Arc<Shared>,
}

/// What makes an entry another one, in the order of the answers.
type Key = (Time, String);

#[derive(Debug)]
struct Shared {
    project: String,
    token: String,
    faults: Faults,
    entries: Mutex<BTreeMap<Key, Value>>,
    /// Pages that are empty although there is more.
    empty_pages: Mutex<usize>,
}

impl GcpLogging {
    /// With one project, and a token that may do everything in it; empty: no token is wanted.
    pub async fn start(project: &str, token: &str) -> Self {
        let faults = Faults::default();
        let state = Arc::new(Shared {
            project: project.to_owned(),
            token: token.to_owned(),
            faults: faults.clone(),
            entries: Mutex::default(),
            empty_pages: Mutex::default(),
        });
        let router = Router::new()
            .route("/v2/{method}", post(answer))
            .layer(axum::extract::DefaultBodyLimit::disable())
            .with_state(Arc::clone(&state));
        Self {
            url: format!("http://{}", serve(router).await),
            faults,
            state,
        }
    }

    /// Entries that are stored.
    pub fn count(&self) -> usize {
        self.state.entries.lock().unwrap().len()
    }

    /// The next pages are empty although there is more.
    pub fn empty_pages(&self, pages: usize) {
        *self.state.empty_pages.lock().unwrap() = pages;
    }
}

fn refusal(status: StatusCode, name: &str, message: &str) -> Response {
    let error = json!({"code": status.as_u16(), "message": message, "status": name});
    (status, axum::Json(json!({"error": error}))).into_response()
}

async fn answer(
    State(state): State<Arc<Shared>>,
    Path(method): Path<String>,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    let bearer = format!("Bearer {}", state.token);
    let is_allowed = match headers.get("authorization") {
        Some(value) => value == bearer.as_str(),
        None => state.token.is_empty(),
    };
    if !is_allowed {
        return refusal(StatusCode::UNAUTHORIZED, "UNAUTHENTICATED", "no valid credential");
    }
    let fault = state.faults.next();
    match fault {
        Some(Fault::Throttled) => {
            return refusal(
                StatusCode::TOO_MANY_REQUESTS,
                "RESOURCE_EXHAUSTED",
                "Quota exceeded",
            );
        }
        Some(Fault::Unavailable) => {
            return refusal(StatusCode::SERVICE_UNAVAILABLE, "UNAVAILABLE", "try again");
        }
        Some(Fault::Denied) => return refusal(StatusCode::FORBIDDEN, "PERMISSION_DENIED", "denied"),
        Some(Fault::AnswerLost) | None => {}
    }
    let request: Value = serde_json::from_slice(&body).unwrap_or_default();
    let done = match method.as_str() {
        "entries:write" => state.write(&request, body.len()),
        "entries:list" => state.list(&request),
        other => Err(format!("no method {other}")),
    };
    match (done, fault) {
        (_, Some(Fault::AnswerLost)) => refusal(StatusCode::INTERNAL_SERVER_ERROR, "INTERNAL", "oops"),
        (Ok(value), _) => axum::Json(value).into_response(),
        (Err(message), _) => refusal(StatusCode::BAD_REQUEST, "INVALID_ARGUMENT", &message),
    }
}

impl Shared {
    fn write(&self, request: &Value, size: usize) -> Result<Value, String> {
        if size > 10 << 20 {
            return Err("the request is larger than 10 MiB".to_owned());
        }
        let log = request["logName"].as_str().unwrap_or_default();
        if !log.starts_with(&format!("projects/{}/logs/", self.project))
            || request["resource"]["type"].is_null()
        {
            return Err("logName or resource".to_owned());
        }
        let mut stored = Vec::new();
        for entry in request["entries"].as_array().ok_or("entries")? {
            if entry.to_string().len() > 256 << 10 {
                return Err("a log entry is larger than 256 KiB".to_owned());
            }
            let mut entry = entry.clone();
            entry["logName"] = log.into();
            stored.push(entry);
        }
        if request["dryRun"] == true {
            return Ok(json!({}));
        }
        let mut entries = self.entries.lock().unwrap();
        for entry in stored {
            let time = entry["timestamp"]
                .as_str()
                .and_then(|text| text.parse().ok())
                .ok_or("timestamp")?;
            let id = entry["insertId"].as_str().ok_or("the test wants an insertId")?;
            entries.entry((time, id.to_owned())).or_insert(entry);
        }
        Ok(json!({}))
    }

    fn list(&self, request: &Value) -> Result<Value, String> {
        if request["resourceNames"][0] != format!("projects/{}", self.project) {
            return Err("resourceNames".to_owned());
        }
        let filter = request["filter"].as_str().unwrap_or_default();
        let conditions = conditions(filter)?;
        let entries = self.entries.lock().unwrap();
        let mut found: Vec<&Value> = entries
            .iter()
            .filter(|((time, _), entry)| conditions.iter().all(|condition| condition.holds(*time, entry)))
            .map(|(_, entry)| entry)
            .collect();
        match request["orderBy"].as_str() {
            Some("timestamp asc") | None => {}
            Some("timestamp desc") => found.reverse(),
            Some(other) => return Err(format!("orderBy {other}")),
        }
        let from = match request["pageToken"].as_str() {
            None => 0,
            Some(token) => {
                let place = token
                    .strip_suffix(&format!("|{filter}"))
                    .and_then(|place| place.parse().ok());
                place.ok_or("page_token")?
            }
        };
        let size = usize::try_from(request["pageSize"].as_u64().unwrap_or(50)).unwrap();
        let mut empty = self.empty_pages.lock().unwrap();
        if *empty > 0 {
            *empty -= 1;
            return Ok(json!({"nextPageToken": format!("{from}|{filter}")}));
        }
        let page: Vec<&Value> = found.iter().skip(from).take(size).copied().collect();
        let next = from + page.len();
        let mut answer = json!({"entries": page});
        if next < found.len() {
            answer["nextPageToken"] = format!("{next}|{filter}").into();
        }
        Ok(answer)
    }
}

#[derive(Debug)]
struct Condition {
    field: String,
    comparison: String,
    value: String,
}

impl Condition {
    fn holds(&self, time: Time, entry: &Value) -> bool {
        let bound = || self.value.parse::<Time>().expect("a time");
        match (self.field.as_str(), self.comparison.as_str()) {
            ("logName", "=") => entry["logName"] == self.value.as_str(),
            ("labels.stream", "=") => entry["labels"]["stream"] == self.value.as_str(),
            ("timestamp", ">") => time > bound(),
            ("timestamp", "<") => time < bound(),
            ("timestamp", "<=") => time <= bound(),
            other => panic!("a condition that the double does not know: {other:?}"),
        }
    }
}

/// `field comparison "text" AND …`, with escapes in the text.
fn conditions(filter: &str) -> Result<Vec<Condition>, String> {
    let mut conditions = Vec::new();
    let mut rest = filter.trim();
    while !rest.is_empty() {
        let (head, text) = rest.split_once('"').ok_or("a text is missing")?;
        let mut words = head.split_whitespace();
        let (field, comparison) = (words.next().ok_or("field")?, words.next().ok_or("comparison")?);
        let mut value = String::new();
        let mut characters = text.char_indices();
        let end = loop {
            match characters.next().ok_or("a text does not end")? {
                (_, '\\') => value.push(characters.next().ok_or("a text does not end")?.1),
                (place, '"') => break place + 1,
                (_, other) => value.push(other),
            }
        };
        conditions.push(Condition {
            field: field.to_owned(),
            comparison: comparison.to_owned(),
            value,
        });
        let after = text[end..].trim_start();
        rest = match after.strip_prefix("AND ") {
            Some(rest) => rest.trim_start(),
            None if after.is_empty() => after,
            None => return Err(format!("unexpected: {after}")),
        };
    }
    Ok(conditions)
}
