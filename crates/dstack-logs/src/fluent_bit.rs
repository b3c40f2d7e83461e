//! Logs sent to Fluent Bit, by its `forward` protocol or as HTTP, under the tag `<prefix>.<project>/<run>/<job>/<producer>`;
//! read back from an Elasticsearch or OpenSearch that Fluent Bit sends them to, if one is set.
//!
//! A record is `{message, "@timestamp", stream, dstack_id}`. Written once, as long as no answer of Fluent Bit is lost and
//! the server is not started again before Elasticsearch shows what was written. For those cases the record has a
//! `dstack_id` that is the same each time: with `Id_Key dstack_id` in Fluent Bit's output, Elasticsearch keeps one of them.

mod elasticsearch;
mod forward;
mod http;

use std::time::Duration;

use async_trait::async_trait;
use dstack_system::Secret;
use dstack_units::Time;
use tokio::net::TcpStream;

use crate::remote::batch::{Event, Limits};
use crate::remote::ends::Ends;
use crate::remote::{self, Remote};
use crate::{LogEntry, LogError, LogPage, LogStore, LogStream, PollQuery};
use elasticsearch::Elasticsearch;

const STORE: &str = "Fluent Bit";

/// Fluent Bit sets none but for its buffers (`Buffer_Max_Size`, 6 MiB of a forward message and 4 MiB of an HTTP request by
/// default). dstack 0.22.5 sends up to 100 records.
const LIMITS: Limits = Limits {
    events: 100,
    bytes: 1 << 20,
    overhead: 512,
    text: 256 << 10,
    span: Duration::MAX,
};

/// How records are sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Protocol {
    /// Fluent's forward protocol, with acknowledgements.
    Forward,
    /// JSON over HTTP.
    Http,
}

impl std::str::FromStr for Protocol {
    type Err = LogError;

    fn from_str(text: &str) -> Result<Self, LogError> {
        match text {
            "forward" => Ok(Self::Forward),
            "http" => Ok(Self::Http),
            _ => Err(LogError::Unusable {
                store: STORE,
                reason: format!("the protocol is `{text}`, but must be forward or http"),
            }),
        }
    }
}

/// The input of Fluent Bit that takes the logs, and where logs are read.
#[derive(Debug, Clone)]
pub struct FluentBitConfig {
    /// Host of Fluent Bit.
    pub host: String,
    /// Port of its input.
    pub port: u16,
    /// Kind of its input.
    pub protocol: Protocol,
    /// Begins the tags; may be empty.
    pub tag_prefix: String,
    /// Where logs are read; `None`: they are not.
    pub elasticsearch: Option<ElasticsearchConfig>,
}

/// Where logs are read.
#[derive(Debug, Clone)]
pub struct ElasticsearchConfig {
    /// URL of Elasticsearch; slashes at the end are ignored.
    pub host: String,
    /// Index that Fluent Bit writes to.
    pub index: String,
    /// API key, sent as `Authorization: ApiKey`; `None`: requests carry no key.
    pub api_key: Option<Secret>,
}

/// Logs behind Fluent Bit.
#[derive(Debug)]
pub struct FluentBitLogStore {
    address: (String, u16),
    sender: Sender,
    tag_prefix: String,
    reader: Option<Elasticsearch>,
    ends: Ends,
}

#[derive(Debug)]
enum Sender {
    Forward(forward::Forward),
    Http(http::Http),
}

/// What is sent for an event.
#[derive(Debug, Clone, serde::Serialize)]
struct Record {
    message: String,
    #[serde(rename = "@timestamp")]
    timestamp: Time,
    stream: String,
    dstack_id: String,
}

impl FluentBitLogStore {
    /// Looks whether Elasticsearch answers, if one is set; Fluent Bit may come later.
    ///
    /// # Errors
    /// It does not.
    pub async fn open(config: FluentBitConfig) -> Result<Self, LogError> {
        let reader = match config.elasticsearch {
            Some(elasticsearch) => Some(Elasticsearch::open(elasticsearch).await?),
            None => None,
        };
        let sender = match config.protocol {
            Protocol::Forward => Sender::Forward(forward::Forward::new(&config.host, config.port)),
            Protocol::Http => Sender::Http(http::Http::new(&config.host, config.port)?),
        };
        Ok(Self {
            address: (config.host, config.port),
            sender,
            tag_prefix: config.tag_prefix,
            reader,
            ends: Ends::default(),
        })
    }
}

#[async_trait]
impl Remote for FluentBitLogStore {
    fn limits(&self) -> &Limits {
        &LIMITS
    }

    async fn last(&self, stream: &LogStream) -> Result<Option<Time>, LogError> {
        match &self.reader {
            Some(reader) => reader.last(&stream.to_string()).await,
            None => Ok(None),
        }
    }

    async fn write(&self, stream: &LogStream, batch: &[Event]) -> Result<(), LogError> {
        let name = stream.to_string();
        let tag = match self.tag_prefix.as_str() {
            "" => name.clone(),
            prefix => format!("{prefix}.{name}"),
        };
        let record = |event: &Event| Record {
            message: event.text.clone(),
            timestamp: event.timestamp,
            stream: name.clone(),
            dstack_id: format!(
                "{}-{}-{}-{:06}",
                stream.job,
                stream.producer.as_str(),
                event.timestamp.as_micros(),
                event.piece
            ),
        };
        let records: Vec<Record> = batch.iter().map(record).collect();
        match &self.sender {
            Sender::Forward(forward) => forward.send(&tag, &records).await,
            Sender::Http(http) => http.send(&tag, &records).await,
        }
    }
}

#[async_trait]
impl LogStore for FluentBitLogStore {
    async fn append(&self, stream: &LogStream, entries: Vec<LogEntry>) -> Result<(), LogError> {
        remote::append(self, &self.ends, stream, &entries).await
    }

    async fn last_timestamp(&self, stream: &LogStream) -> Result<Option<Time>, LogError> {
        self.last(stream).await
    }

    async fn poll(&self, stream: &LogStream, query: &PollQuery) -> Result<LogPage, LogError> {
        match &self.reader {
            Some(reader) => reader.poll(&stream.to_string(), query).await,
            None => Ok(LogPage::default()),
        }
    }

    /// Whatever Fluent Bit is sent, it passes on.
    async fn check(&self) -> Result<&'static str, LogError> {
        let away = |source: std::io::Error| LogError::Away {
            store: STORE,
            source: source.into(),
        };
        TcpStream::connect(&self.address).await.map_err(away)?;
        match &self.reader {
            Some(reader) => {
                reader.last("doctor").await?;
                Ok("a connection to Fluent Bit was made, and Elasticsearch was asked; nothing was written")
            }
            None => Ok("a connection to Fluent Bit was made; nothing was written or read"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_fluent_bit_that_is_away_is_told() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let config = FluentBitConfig {
            host: "127.0.0.1".to_owned(),
            port: listener.local_addr().unwrap().port(),
            protocol: Protocol::Forward,
            tag_prefix: String::new(),
            elasticsearch: None,
        };
        let store = FluentBitLogStore::open(config).await.unwrap();
        store.check().await.unwrap();
        drop(listener);
        let refused = store.check().await.unwrap_err();
        assert!(matches!(refused, LogError::Away { .. }), "{refused:?}");
    }
}
