//! Elasticsearch: `GET /` and `_search` of one index, with `search_after`.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use axum::body::Bytes;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use dstack_units::Time;
use serde_json::{Value, json};

use crate::{Fault, Faults, serve};

/// The emulator of Elasticsearch.
#[derive(Debug, Clone)]
pub struct Elasticsearch {
    /// Base URL at which it is reached.
    pub url: String,
    /// Faults of the next calls, in order.
    pub faults: Faults,
    state: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    index: String,
    api_key: String,
    faults: Faults,
    documents: Mutex<BTreeMap<String, Value>>,
}

impl Elasticsearch {
    /// With one index, which is there once something is in it.
    pub async fn start(index: &str, api_key: &str) -> Self {
        let faults = Faults::default();
        let state = Arc::new(Shared {
            index: index.to_owned(),
            api_key: api_key.to_owned(),
            faults: faults.clone(),
            documents: Mutex::default(),
        });
        let router = Router::new()
            .route("/", get(info))
            .route("/{index}/_search", post(search))
            .with_state(Arc::clone(&state));
        Self {
            url: format!("http://{}", serve(router).await),
            faults,
            state,
        }
    }

    /// Takes a record as Fluent Bit's output with `Id_Key dstack_id` sends it.
    pub fn index(&self, record: Value) {
        let id = record["dstack_id"].as_str().expect("a dstack_id").to_owned();
        self.state.documents.lock().unwrap().insert(id, record);
    }

    /// Documents that are stored.
    pub fn count(&self) -> usize {
        self.state.documents.lock().unwrap().len()
    }
}

impl Shared {
    fn refuses(&self, headers: &HeaderMap) -> Option<Response> {
        let key = format!("ApiKey {}", self.api_key);
        if headers
            .get("authorization")
            .is_none_or(|value| value != key.as_str())
        {
            return Some(StatusCode::UNAUTHORIZED.into_response());
        }
        self.faults.next().map(|fault| match fault {
            Fault::Throttled => StatusCode::TOO_MANY_REQUESTS.into_response(),
            Fault::Denied => StatusCode::FORBIDDEN.into_response(),
            Fault::Unavailable | Fault::AnswerLost => StatusCode::SERVICE_UNAVAILABLE.into_response(),
        })
    }
}

async fn info(State(state): State<Arc<Shared>>, headers: HeaderMap) -> Response {
    state
        .refuses(&headers)
        .unwrap_or_else(|| Json(json!({"version": {"number": "8.19.0"}})).into_response())
}

async fn search(
    State(state): State<Arc<Shared>>,
    Path(index): Path<String>,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    if let Some(refusal) = state.refuses(&headers) {
        return refusal;
    }
    let documents = state.documents.lock().unwrap();
    if index != state.index || documents.is_empty() {
        let error =
            json!({"type": "index_not_found_exception", "reason": format!("no such index [{index}]")});
        return (
            StatusCode::NOT_FOUND,
            Json(json!({"error": error, "status": 404})),
        )
            .into_response();
    }
    let request: Value = serde_json::from_slice(&body).unwrap();
    let size = usize::try_from(request["size"].as_u64().unwrap()).unwrap();
    if size > 10_000 {
        return (StatusCode::BAD_REQUEST, "Result window is too large").into_response();
    }
    let mut found: Vec<(i64, &String, &Value)> = documents
        .iter()
        .map(|(id, document)| (time(&document["@timestamp"]).as_millis(), id, document))
        .filter(|(_, _, document)| holds(&request["query"], document))
        .collect();
    let descending = request["sort"][0]["@timestamp"]["order"] == "desc";
    let order = |a: &(i64, &str), b: &(i64, &str)| match descending {
        true => b.cmp(a),
        false => a.cmp(b),
    };
    found.sort_by(|a, b| order(&(a.0, a.1), &(b.0, b.1)));
    if let Some(after) = request["search_after"].as_array() {
        let Ok(millis) = after[0].as_str().unwrap().parse::<i64>() else {
            return (StatusCode::BAD_REQUEST, "failed to parse date field").into_response();
        };
        let after = (millis, after[1].as_str().unwrap());
        found.retain(|hit| order(&(hit.0, hit.1), &after) == Ordering::Greater);
    }
    let hits: Vec<Value> = found
        .into_iter()
        .take(size)
        .map(|(millis, id, document)| json!({"_id": id, "_source": document, "sort": [millis, id]}))
        .collect();
    Json(json!({"hits": {"hits": hits}})).into_response()
}

fn time(value: &Value) -> Time {
    value.as_str().and_then(|text| text.parse().ok()).expect("a time")
}

fn holds(query: &Value, document: &Value) -> bool {
    query["bool"]["filter"]
        .as_array()
        .unwrap()
        .iter()
        .all(|condition| {
            if let Some(stream) = condition["term"]["stream.keyword"].as_str() {
                return document["stream"] == stream;
            }
            let at = time(&document["@timestamp"]);
            let bounds = condition["range"]["@timestamp"]
                .as_object()
                .expect("a condition that the double knows");
            bounds
                .iter()
                .all(|(comparison, bound)| match comparison.as_str() {
                    "gt" => at > time(bound),
                    "lt" => at < time(bound),
                    "lte" => at <= time(bound),
                    other => panic!("a comparison that the double does not know: {other}"),
                })
        })
}
