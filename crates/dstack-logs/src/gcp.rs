//! Logs in Google Cloud Logging: all of a project's under the name `dstack-run-logs`, told apart by the label `stream`,
//! `<project>-<run>-<job>-<producer>`.
//!
//! Written once: an entry's `insertId` says which job's it is, and Google drops what has the same id and time as an entry
//! it has. Of an entry, the time and the text are kept.

use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use dstack_credentials::google::Google;
use dstack_credentials::http_client;
use dstack_units::Time;
use percent_encoding::utf8_percent_encode;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::remote::batch::{Event, Limits};
use crate::remote::ends::Ends;
use crate::remote::retry::{Failure, Head, Patience, Said};
use crate::remote::{self, Remote};
use crate::{LogEntry, LogError, LogPage, LogStore, LogStream, PollQuery, Source};

const STORE: &str = "GCP Logging";
const LOG: &str = "dstack-run-logs";

/// Google takes 256 KiB for an entry and 10 MiB for a request, both with everything around the text. Escaping may make a
/// text longer, so we stay well below.
const LIMITS: Limits = Limits {
    events: 1000,
    bytes: 2 << 20,
    overhead: 512,
    text: 64 << 10,
    span: Duration::MAX,
};
/// For a whole call.
const TIMEOUT: Duration = Duration::from_secs(30);
/// Pages in a row that may be empty although there is more.
const EMPTY_PAGES: usize = 10;

/// The Google Cloud project for the logs, and the address of the service.
#[derive(Debug, Clone)]
pub struct GcpLoggingConfig {
    /// The id of the Google Cloud project.
    pub project: String,
    /// Another address than Google's.
    pub endpoint: Option<String>,
}

/// Logs in Cloud Logging.
#[derive(Debug)]
pub struct GcpLogStore {
    http: reqwest::Client,
    /// `None`: requests carry no token.
    google: Option<Google>,
    project: String,
    endpoint: String,
    ends: Ends,
}

impl GcpLogStore {
    /// Looks whether logs can be read and written.
    ///
    /// # Errors
    /// They cannot.
    pub async fn open(config: GcpLoggingConfig, google: Option<Google>) -> Result<Self, LogError> {
        let endpoint = config
            .endpoint
            .unwrap_or_else(|| "https://logging.googleapis.com".to_owned());
        let store = Self {
            http: http_client(TIMEOUT).map_err(LogError::remote(STORE))?,
            google,
            project: config.project,
            endpoint: endpoint.trim_end_matches('/').to_owned(),
            ends: Ends::default(),
        };
        let probe = json!({
            "logName": store.log_name(),
            "resource": {"type": "global"},
            "entries": [{"textPayload": "dstack looks whether it may write"}],
            "dryRun": true,
        });
        if let Err(said) = store.call::<Value>("write", &probe).await? {
            return Err(said.of(STORE));
        }
        store.list("", false, 1, None).await?;
        Ok(store)
    }

    fn log_name(&self) -> String {
        format!("projects/{}/logs/{LOG}", self.project)
    }

    async fn list(
        &self,
        filter: &str,
        descending: bool,
        limit: usize,
        token: Option<&str>,
    ) -> Result<Page, LogError> {
        let log = quoted(&self.log_name());
        let body = json!({
            "resourceNames": [format!("projects/{}", self.project)],
            "filter": format!("logName = {log}{filter}"),
            "orderBy": if descending { "timestamp desc" } else { "timestamp asc" },
            "pageSize": limit.clamp(1, 1000),
            "pageToken": token,
        });
        match self.call::<Page>("list", &body).await? {
            Ok(page) => Ok(page),
            Err(said) => match token {
                Some(token) if said.status == 400 => Err(LogError::UnknownToken(token.to_owned())),
                _ => Err(said.of(STORE)),
            },
        }
    }

    /// The first page with anything on it: a page may be empty while Google still searches.
    async fn filled_page(
        &self,
        filter: &str,
        descending: bool,
        limit: usize,
        token: Option<&str>,
    ) -> Result<Page, LogError> {
        let mut page = self.list(filter, descending, limit, token).await?;
        for _ in 1..EMPTY_PAGES {
            let Some(token) = page.next_page_token.clone().filter(|_| page.entries.is_empty()) else {
                break;
            };
            page = self.list(filter, descending, limit, Some(&token)).await?;
        }
        Ok(page)
    }

    /// Calls `entries:<method>`. The outer error is that it could not be done; the inner one is a refusal.
    async fn call<T: DeserializeOwned>(
        &self,
        method: &str,
        body: &Value,
    ) -> Result<Result<T, Said>, LogError> {
        let mut patience = Patience::new(STORE);
        loop {
            let failure = match self.call_once(method, body).await {
                Ok(answer) => return Ok(answer),
                Err(failure) => failure,
            };
            patience.wait(failure).await.map_err(|error| match error {
                LogError::Away { source, .. } if method == "list" && is_too_many(source.as_ref()) => {
                    LogError::ReadQuota
                }
                other => other,
            })?;
        }
    }

    async fn call_once<T: DeserializeOwned>(
        &self,
        method: &str,
        body: &Value,
    ) -> Result<Result<T, Said>, Failure> {
        let mut request = self
            .http
            .post(format!("{}/v2/entries:{method}", self.endpoint))
            .json(body);
        if let Some(google) = &self.google {
            let token = google
                .token()
                .await
                .map_err(|error| Failure::Lasting(LogError::remote(STORE)(error)))?;
            request = request.bearer_auth(token);
        }
        let response = request.send().await.map_err(Failure::of_transport)?;
        let head = Head::of(&response);
        let text = response.text().await.map_err(Failure::of_transport)?;
        if head.status.as_u16() == 400 {
            return Ok(Err(Said::new(400, &text)));
        }
        if !head.status.is_success() {
            return Err(Failure::of_status(STORE, head, &text));
        }
        match serde_json::from_str(&text) {
            Ok(answer) => Ok(Ok(answer)),
            Err(error) => Err(Failure::passing(error)),
        }
    }

    fn external_url(&self, stream: &LogStream) -> String {
        let query = format!(
            "logName={} AND labels.stream={}",
            quoted(&self.log_name()),
            quoted(&label(stream))
        );
        format!(
            "https://console.cloud.google.com/logs/query;query={}?project={}",
            utf8_percent_encode(&query, remote::UNQUOTED),
            self.project
        )
    }
}

fn is_too_many(error: &(dyn std::error::Error + Send + Sync + 'static)) -> bool {
    error
        .downcast_ref::<Said>()
        .is_some_and(|said| said.status == 429)
}

fn label(stream: &LogStream) -> String {
    format!(
        "{}-{}-{}-{}",
        stream.project,
        stream.run,
        stream.job,
        stream.producer.as_str()
    )
}

/// A text of Google's filter language. Names of runs come from requests.
fn quoted(text: &str) -> String {
    format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""))
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Page {
    #[serde(default)]
    entries: Vec<Stored>,
    next_page_token: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Stored {
    timestamp: Time,
    #[serde(default)]
    json_payload: Payload,
}

#[derive(Debug, Default, Deserialize)]
struct Payload {
    #[serde(default)]
    message: String,
}

#[async_trait]
impl Remote for GcpLogStore {
    fn limits(&self) -> &Limits {
        &LIMITS
    }

    /// Not asked: reads are few in Google's quota, and what is written twice is dropped there.
    async fn last(&self, _: &LogStream) -> Result<Option<Time>, LogError> {
        Ok(None)
    }

    async fn write(&self, stream: &LogStream, batch: &[Event]) -> Result<(), LogError> {
        let (label, producer) = (label(stream), stream.producer.as_str());
        let entry = |event: &Event| {
            json!({
                "timestamp": event.timestamp,
                // Entries of the same time are in the order of their ids.
                "insertId": format!("{}-{producer}-{}-{:06}", stream.job, event.timestamp.as_micros(), event.piece),
                "labels": {"stream": label},
                "jsonPayload": {"message": event.text},
            })
        };
        let body = json!({
            "logName": self.log_name(),
            "resource": {"type": "global"},
            "entries": batch.iter().map(entry).collect::<Vec<_>>(),
        });
        match self.call::<Value>("write", &body).await? {
            Ok(_) => Ok(()),
            Err(said) => Err(said.of(STORE)),
        }
    }
}

#[async_trait]
impl LogStore for GcpLogStore {
    async fn append(&self, stream: &LogStream, entries: Vec<LogEntry>) -> Result<(), LogError> {
        remote::append(self, &self.ends, stream, &entries).await
    }

    async fn last_timestamp(&self, stream: &LogStream) -> Result<Option<Time>, LogError> {
        let filter = format!(" AND labels.stream = {}", quoted(&label(stream)));
        let page = self.filled_page(&filter, true, 1, None).await?;
        Ok(page.entries.first().map(|entry| entry.timestamp))
    }

    async fn poll(&self, stream: &LogStream, query: &PollQuery) -> Result<LogPage, LogError> {
        let mut filter = format!(" AND labels.stream = {}", quoted(&label(stream)));
        if let Some(start) = query.start_time {
            filter.push_str(&format!(" AND timestamp > \"{start}\""));
        }
        if let Some(end) = query.end_time {
            let before = if query.descending { "<=" } else { "<" };
            filter.push_str(&format!(" AND timestamp {before} \"{end}\""));
        }
        let token = query.next_token.as_deref();
        let page = self
            .filled_page(&filter, query.descending, query.limit, token)
            .await?;
        let entry = |stored: Stored| LogEntry {
            timestamp: stored.timestamp,
            source: Source::Stdout,
            message: Bytes::from(stored.json_payload.message),
        };
        Ok(LogPage {
            next_token: page.next_page_token.filter(|_| !page.entries.is_empty()),
            entries: page.entries.into_iter().map(entry).collect(),
            external_url: Some(self.external_url(stream)),
        })
    }
}
