//! Logs in Amazon CloudWatch: one log stream for each of ours, `<project>/<run>/<job>/<producer>`, in a group that exists.
//!
//! Written once: what is not later than the last event of the stream is not written again. The last event is remembered;
//! after a failed write and after a start of the server CloudWatch is asked, which may not yet show what it took a moment
//! before. Of an entry, the time (in milliseconds) and the text are kept.

mod client;

use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use dstack_credentials::aws::Aws;
use dstack_system::clock::SharedClock;
use dstack_units::Time;
use percent_encoding::utf8_percent_encode;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::remote::batch::{Event, Limits};
use crate::remote::ends::Ends;
use crate::remote::retry::{Failure, Patience};
use crate::remote::{self, Remote};
use crate::{LogEntry, LogError, LogPage, LogStore, LogStream, PollQuery, Source};
use client::{Client, Refusal};

const STORE: &str = "CloudWatch Logs";

/// Limits of `PutLogEvents`: 10,000 events, 1 MiB with 26 bytes for each event, 256 KiB for an event, 24 hours.
const LIMITS: Limits = Limits {
    events: 10_000,
    bytes: 1 << 20,
    overhead: 26,
    text: (256 << 10) - 26,
    span: Duration::from_secs(24 * 3600),
};
/// Margin kept to CloudWatch's time limits, because clocks differ.
const DRIFT: Duration = Duration::from_secs(600);
/// Older events are refused.
const OLDEST: Duration = Duration::from_secs(14 * 24 * 3600);
/// Events further in the future are refused.
const NEWEST: Duration = Duration::from_secs(2 * 3600);
/// Pages in a row that may be empty although there is more.
const EMPTY_PAGES: usize = 10;

/// The log group in CloudWatch, and the address of the service.
#[derive(Debug, Clone)]
pub struct CloudWatchConfig {
    /// The log group; it must exist.
    pub group: String,
    /// Another address than AWS's and than what the environment says.
    pub endpoint: Option<String>,
}

/// Logs in CloudWatch.
#[derive(Debug)]
pub struct CloudWatchLogStore {
    client: Client,
    group: String,
    clock: SharedClock,
    ends: Ends,
}

impl CloudWatchLogStore {
    /// Looks whether the group is there.
    ///
    /// # Errors
    /// It is not, or there are no credentials, or they are not good for it.
    pub async fn open(config: CloudWatchConfig, aws: Aws, clock: SharedClock) -> Result<Self, LogError> {
        let store = Self {
            client: Client::new(aws, config.endpoint)?,
            group: config.group,
            clock,
            ends: Ends::default(),
        };
        store.check_group().await?;
        Ok(store)
    }

    async fn check_group(&self) -> Result<(), LogError> {
        let body = json!({"logGroupName": self.group, "limit": 1});
        match self.client.call::<Value>("DescribeLogStreams", &body).await? {
            Ok(_) => Ok(()),
            Err(Refusal::NotFound) => Err(LogError::Unusable {
                store: STORE,
                reason: format!("LogGroup '{}' does not exist", self.group),
            }),
            Err(refusal) => Err(refusal.into()),
        }
    }

    async fn create(&self, stream: &LogStream) -> Result<(), LogError> {
        let body = json!({"logGroupName": self.group, "logStreamName": stream.to_string()});
        match self.client.call::<Value>("CreateLogStream", &body).await? {
            Ok(_) | Err(Refusal::Exists) => Ok(()),
            Err(Refusal::NotFound) => self.check_group().await,
            Err(refusal) => Err(refusal.into()),
        }
    }

    /// What CloudWatch would refuse: it is reported, as dstack 0.22.5 does, since it can never be stored.
    fn acceptable(&self, stream: &LogStream, batch: &[Event]) -> Vec<Value> {
        let now = self.clock.now();
        let (from, to) = (now - (OLDEST - DRIFT), now + (NEWEST - DRIFT));
        let (taken, refused): (Vec<&Event>, Vec<&Event>) = batch
            .iter()
            .partition(|event| (from..=to).contains(&event.timestamp));
        if !refused.is_empty() {
            tracing::error!(
                %stream,
                events = refused.len(),
                "CloudWatch takes no events older than 14 days or later than in 2 hours: they are left out"
            );
        }
        let event = |event: &Event| json!({"timestamp": event.timestamp.as_millis(), "message": event.text});
        taken.into_iter().map(event).collect()
    }

    /// Puts events once.
    async fn put(&self, stream: &LogStream, batch: &[Event]) -> Result<(), Failure> {
        let events = self.acceptable(stream, batch);
        if events.is_empty() {
            return Ok(());
        }
        let body =
            json!({"logGroupName": self.group, "logStreamName": stream.to_string(), "logEvents": events});
        let mut answer = self.client.call_once::<Put>("PutLogEvents", &body).await?;
        if matches!(answer, Err(Refusal::NotFound)) {
            // It is the first batch, or the stream was deleted.
            self.create(stream).await.map_err(Failure::Lasting)?;
            answer = self.client.call_once::<Put>("PutLogEvents", &body).await?;
        }
        let taken = answer.map_err(|refusal| Failure::Lasting(refusal.into()))?;
        if let Some(rejected) = taken.rejected_log_events_info {
            tracing::error!(%stream, %rejected, "CloudWatch left events out");
        }
        Ok(())
    }

    /// One page; `None`: there is no such stream.
    async fn page(&self, stream: &LogStream, query: &PageQuery) -> Result<Option<Page>, LogError> {
        let mut body = json!({
            "logGroupName": self.group,
            "logStreamName": stream.to_string(),
            "limit": query.limit,
            "startFromHead": !query.descending,
        });
        let fields = [
            ("startTime", query.start.map(Value::from)),
            ("endTime", query.end.map(Value::from)),
            ("nextToken", query.token.clone().map(Value::from)),
        ];
        if let Some(body) = body.as_object_mut() {
            let given = fields
                .into_iter()
                .filter_map(|(name, value)| Some((name.to_owned(), value?)));
            body.extend(given);
        }
        match self.client.call::<Page>("GetLogEvents", &body).await? {
            Ok(page) => Ok(Some(page)),
            Err(Refusal::NotFound) => self.check_group().await.map(|()| None),
            Err(Refusal::Parameter(said)) => match &query.token {
                Some(token) => Err(LogError::UnknownToken(token.clone())),
                None => Err(Refusal::Parameter(said).into()),
            },
            Err(refusal) => Err(refusal.into()),
        }
    }

    /// The first page with anything on it. CloudWatch may answer with empty pages before the end; the end is where it
    /// gives the token that it was given.
    async fn filled_page(
        &self,
        stream: &LogStream,
        mut query: PageQuery,
    ) -> Result<(Vec<StoredEvent>, Option<String>), LogError> {
        for _ in 0..EMPTY_PAGES {
            let Some(page) = self.page(stream, &query).await? else {
                return Ok((Vec::new(), None));
            };
            let next = match query.descending {
                true => page.next_backward_token,
                false => page.next_forward_token,
            };
            if !page.events.is_empty() {
                return Ok((page.events, next));
            }
            if next.is_none() || next == query.token {
                return Ok((Vec::new(), None));
            }
            query.token = next;
        }
        // Backwards there is more for sure. Forwards the token never ends, and readers would ask for ever.
        Ok((Vec::new(), query.token.filter(|_| query.descending)))
    }

    fn external_url(&self, stream: &LogStream) -> String {
        let quote = |text: &str| utf8_percent_encode(text, remote::UNQUOTED).to_string();
        format!(
            "https://console.aws.amazon.com/cloudwatch/home?region={}#logsV2:log-groups/log-group/{}/log-events/{}",
            self.client.region(),
            quote(&self.group),
            quote(&stream.to_string())
        )
    }
}

#[derive(Debug, Clone)]
struct PageQuery {
    /// From this millisecond on.
    start: Option<i64>,
    /// Up to before this millisecond.
    end: Option<i64>,
    descending: bool,
    token: Option<String>,
    limit: usize,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Page {
    #[serde(default)]
    events: Vec<StoredEvent>,
    next_forward_token: Option<String>,
    next_backward_token: Option<String>,
}

#[derive(Debug, Deserialize)]
struct StoredEvent {
    timestamp: i64,
    #[serde(default)]
    message: String,
}

#[async_trait]
impl Remote for CloudWatchLogStore {
    fn limits(&self) -> &Limits {
        &LIMITS
    }

    async fn last(&self, stream: &LogStream) -> Result<Option<Time>, LogError> {
        let query = PageQuery {
            start: None,
            end: None,
            descending: true,
            token: None,
            limit: 1,
        };
        let (events, _) = self.filled_page(stream, query).await?;
        Ok(events.last().map(|event| Time::from_millis(event.timestamp)))
    }

    async fn write(&self, stream: &LogStream, batch: &[Event]) -> Result<(), LogError> {
        let (mut patience, mut rest) = (Patience::new(STORE), batch);
        while let Err(failure) = self.put(stream, rest).await {
            patience.wait(failure).await?;
            // It may have been taken all the same.
            let last = self.last(stream).await?;
            let taken = batch.partition_point(|event| Some(event.timestamp) <= last);
            rest = batch.get(taken..).unwrap_or_default();
        }
        Ok(())
    }
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Put {
    rejected_log_events_info: Option<Value>,
}

#[async_trait]
impl LogStore for CloudWatchLogStore {
    async fn append(&self, stream: &LogStream, entries: Vec<LogEntry>) -> Result<(), LogError> {
        remote::append(self, &self.ends, stream, &entries).await
    }

    async fn last_timestamp(&self, stream: &LogStream) -> Result<Option<Time>, LogError> {
        self.last(stream).await
    }

    async fn poll(&self, stream: &LogStream, query: &PollQuery) -> Result<LogPage, LogError> {
        let query_page = PageQuery {
            // Ours begins after the start, CloudWatch's with it. Both end before the end, but ours does not backwards.
            start: query.start_time.map(|time| time.as_millis() + 1),
            end: query
                .end_time
                .map(|time| time.as_millis() + i64::from(query.descending)),
            descending: query.descending,
            token: query.next_token.clone(),
            limit: query.limit.clamp(1, 10_000),
        };
        let (mut events, next_token) = self.filled_page(stream, query_page).await?;
        if query.descending {
            events.reverse(); // pages are always the oldest first
        }
        let entry = |event: StoredEvent| LogEntry {
            timestamp: Time::from_millis(event.timestamp),
            source: Source::Stdout,
            message: Bytes::from(event.message),
        };
        Ok(LogPage {
            entries: events.into_iter().map(entry).collect(),
            next_token,
            external_url: Some(self.external_url(stream)),
        })
    }
}
