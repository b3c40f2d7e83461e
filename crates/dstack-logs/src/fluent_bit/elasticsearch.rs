//! Reading from Elasticsearch or OpenSearch what Fluent Bit wrote there.

use std::time::Duration;

use bytes::Bytes;
use dstack_system::Secret;
use dstack_units::Time;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde::Deserialize;
use serde_json::{Value, json};

use super::ElasticsearchConfig;
use crate::remote::retry::{Failure, Head, Patience};
use crate::{LogEntry, LogError, LogPage, PollQuery, Source};

const STORE: &str = "Elasticsearch/OpenSearch";

/// For a whole request.
const TIMEOUT: Duration = Duration::from_secs(30);

#[derive(Debug)]
pub(super) struct Elasticsearch {
    client: reqwest::Client,
    host: String,
    index: String,
    api_key: Option<Secret>,
}

#[derive(Debug, Default, Deserialize)]
struct Answer {
    #[serde(default)]
    hits: Hits,
}

#[derive(Debug, Default, Deserialize)]
struct Hits {
    #[serde(default)]
    hits: Vec<Hit>,
}

#[derive(Debug, Deserialize)]
struct Hit {
    #[serde(rename = "_source", default)]
    source: Document,
    #[serde(default)]
    sort: Vec<Value>,
}

#[derive(Debug, Default, Deserialize)]
struct Document {
    /// Others may write to the index: what has no time that we can read is left out.
    #[serde(rename = "@timestamp", default)]
    timestamp: Value,
    #[serde(default)]
    message: String,
}

impl Elasticsearch {
    /// Looks whether it answers.
    pub(super) async fn open(config: ElasticsearchConfig) -> Result<Self, LogError> {
        let client = dstack_credentials::http_client(TIMEOUT).map_err(LogError::remote(STORE))?;
        let reader = Self {
            client,
            host: config.host.trim_end_matches('/').to_owned(),
            index: config.index,
            api_key: config.api_key,
        };
        let url = format!("{}/", reader.host);
        reader.ask(|| reader.client.get(&url)).await?;
        Ok(reader)
    }

    pub(super) async fn last(&self, stream: &str) -> Result<Option<Time>, LogError> {
        let query = PollQuery {
            descending: true,
            limit: 1,
            ..PollQuery::default()
        };
        let page = self.poll(stream, &query).await?;
        Ok(page.entries.first().map(|entry| entry.timestamp))
    }

    pub(super) async fn poll(&self, stream: &str, query: &PollQuery) -> Result<LogPage, LogError> {
        let limit = query.limit.clamp(1, 10_000);
        let body = search(stream, query, limit)?;
        let index = utf8_percent_encode(&self.index, &INDEX);
        let url = format!("{}/{index}/_search", self.host);
        let text = self.ask(|| self.client.post(&url).json(&body)).await?;
        // Nothing was written yet.
        let Some(text) = text else {
            return Ok(LogPage::default());
        };
        let answer: Answer = serde_json::from_str(&text).map_err(LogError::remote(STORE))?;
        let hits = answer.hits.hits;
        let next_token = (hits.len() == limit)
            .then(|| hits.last().and_then(|hit| token(&hit.sort)))
            .flatten();
        Ok(LogPage {
            entries: hits.into_iter().filter_map(entry).collect(),
            next_token,
            external_url: None,
        })
    }

    /// Asks until there is an answer; `None`: there is no such index.
    async fn ask(&self, request: impl Fn() -> reqwest::RequestBuilder) -> Result<Option<String>, LogError> {
        let mut patience = Patience::new(STORE);
        loop {
            match self.send(request()).await {
                Ok(answer) => return Ok(answer),
                Err(failure) => patience.wait(failure).await?,
            }
        }
    }

    /// The body of an answer; `None`: there is no such index.
    async fn send(&self, mut request: reqwest::RequestBuilder) -> Result<Option<String>, Failure> {
        if let Some(key) = &self.api_key {
            request = request.header("authorization", format!("ApiKey {}", key.expose()));
        }
        let response = request.send().await.map_err(Failure::of_transport)?;
        let head = Head::of(&response);
        let text = response.text().await.map_err(Failure::of_transport)?;
        match head.status.as_u16() {
            200 => Ok(Some(text)),
            404 if text.contains("index_not_found_exception") => Ok(None),
            _ => Err(Failure::of_status(STORE, head, &text)),
        }
    }
}

/// Names of indexes may be patterns.
const INDEX: percent_encoding::AsciiSet = NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'_')
    .remove(b'.')
    .remove(b'*')
    .remove(b',');

fn search(stream: &str, query: &PollQuery, limit: usize) -> Result<Value, LogError> {
    let order = if query.descending { "desc" } else { "asc" };
    let mut range = serde_json::Map::new();
    if let Some(start) = query.start_time {
        range.insert("gt".to_owned(), json!(start));
    }
    if let Some(end) = query.end_time {
        let before = if query.descending { "lte" } else { "lt" };
        range.insert(before.to_owned(), json!(end));
    }
    let mut filter = vec![json!({"term": {"stream.keyword": stream}})];
    if !range.is_empty() {
        filter.push(json!({"range": {"@timestamp": range}}));
    }
    let mut body = json!({
        "query": {"bool": {"filter": filter}},
        "sort": [{"@timestamp": {"order": order}}, {"_id": {"order": order}}],
        "size": limit,
    });
    if let (Some(token), Some(body)) = (&query.next_token, body.as_object_mut()) {
        let (time, id) = token
            .split_once(':')
            .filter(|(time, id)| !time.is_empty() && !id.is_empty())
            .ok_or_else(|| {
                LogError::UnknownToken(format!("{token}. Must be in format 'timestamp:document_id'."))
            })?;
        body.insert("search_after".to_owned(), json!([time, id]));
    }
    Ok(body)
}

/// `<time>:<id>` of the last hit.
fn token(sort: &[Value]) -> Option<String> {
    let text = |value: &Value| match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    match sort {
        [time, id, ..] => Some(format!("{}:{}", text(time), text(id))),
        _ => None,
    }
}

fn entry(hit: Hit) -> Option<LogEntry> {
    Some(LogEntry {
        timestamp: serde_json::from_value(hit.source.timestamp).ok()?,
        source: Source::Stdout,
        message: Bytes::from(hit.source.message),
    })
}
