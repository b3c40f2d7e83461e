//! The stores, each with a double behind it.

use std::sync::Arc;

use bytes::Bytes;
use dstack_credentials::aws::Aws;
use dstack_credentials::google::Google;
use dstack_logs::cloudwatch::{CloudWatchConfig, CloudWatchLogStore};
use dstack_logs::fluent_bit::{ElasticsearchConfig, FluentBitConfig, FluentBitLogStore, Protocol};
use dstack_logs::gcp::{GcpLogStore, GcpLoggingConfig};
use dstack_logs::{
    Durability, FileLogStore, LogEntry, LogError, LogPage, LogStore, LogStream, PollQuery, Producer, Source,
};
use dstack_store_doubles::Faults;
use dstack_store_doubles::cloudwatch::CloudWatch;
use dstack_store_doubles::elasticsearch::Elasticsearch;
use dstack_store_doubles::fluent_bit::FluentBit;
use dstack_store_doubles::gcp_logging::GcpLogging;
use dstack_system::{Clock, Secret, SystemClock};
use dstack_units::Time;

/// A store and how to make it fail.
pub(crate) struct Subject {
    pub(crate) name: &'static str,
    pub(crate) store: Arc<dyn LogStore>,
    /// Of its double; files have none.
    pub(crate) faults: Option<Faults>,
    _dir: Option<tempfile::TempDir>,
}

impl Subject {
    /// All of them, Fluent Bit in both its ways.
    pub(crate) async fn all() -> Vec<Subject> {
        let dir = tempfile::tempdir().unwrap();
        let files = FileLogStore::new(dir.path(), Durability::Written);
        let (cloudwatch, gcp) = (
            CloudWatch::start("group").await,
            GcpLogging::start("p", "token").await,
        );
        let index = || Elasticsearch::start("dstack-logs", "key");
        let (index_1, index_2) = (index().await, index().await);
        let forward = FluentBit::forward(index_1.clone()).await;
        let http = FluentBit::http(index_2.clone()).await;
        let of_double = |name, store, faults: &Faults| Subject {
            name,
            store,
            faults: Some(faults.clone()),
            _dir: None,
        };
        vec![
            Subject {
                name: "files",
                store: Arc::new(files),
                faults: None,
                _dir: Some(dir),
            },
            of_double(
                "CloudWatch",
                Arc::new(open_cloudwatch(&cloudwatch).await.unwrap()),
                &cloudwatch.faults,
            ),
            of_double(
                "GCP Logging",
                Arc::new(open_gcp(&gcp).await.unwrap()),
                &gcp.faults,
            ),
            of_double(
                "Fluent Bit (forward)",
                Arc::new(
                    open_fluent_bit(&forward, Protocol::Forward, &index_1)
                        .await
                        .unwrap(),
                ),
                &forward.faults,
            ),
            of_double(
                "Fluent Bit (http)",
                Arc::new(open_fluent_bit(&http, Protocol::Http, &index_2).await.unwrap()),
                &http.faults,
            ),
        ]
    }

    pub(crate) async fn append(&self, entries: &[LogEntry]) {
        self.try_append(entries)
            .await
            .unwrap_or_else(|error| panic!("{}: {error:?}", self.name));
    }

    pub(crate) async fn try_append(&self, entries: &[LogEntry]) -> Result<(), LogError> {
        self.store.append(&stream(), entries.to_vec()).await
    }

    pub(crate) async fn poll(&self, query: &PollQuery) -> LogPage {
        let page = self.store.poll(&stream(), query).await;
        page.unwrap_or_else(|error| panic!("{}: {error:?}", self.name))
    }

    /// Everything, page by page.
    pub(crate) async fn read(&self, query: PollQuery) -> Vec<LogEntry> {
        let (mut query, mut entries) = (query, Vec::new());
        for _ in 0..1000 {
            let page = self.poll(&query).await;
            assert!(page.entries.len() <= query.limit, "{}", self.name);
            entries.extend(page.entries);
            query.next_token = page.next_token;
            if query.next_token.is_none() {
                return entries;
            }
        }
        panic!("{}: the pages do not end", self.name);
    }
}

pub(crate) async fn open_cloudwatch(double: &CloudWatch) -> Result<CloudWatchLogStore, LogError> {
    cloudwatch_group(double, "group").await
}

pub(crate) async fn cloudwatch_group(
    double: &CloudWatch,
    group: &str,
) -> Result<CloudWatchLogStore, LogError> {
    let config = CloudWatchConfig {
        group: group.to_owned(),
        endpoint: Some(double.url.clone()),
    };
    let aws = Aws::with_key("logs", "eu-west-1", "AKIA", &Secret::new("secret"));
    CloudWatchLogStore::open(config, aws, Arc::new(SystemClock)).await
}

pub(crate) async fn open_gcp(double: &GcpLogging) -> Result<GcpLogStore, LogError> {
    let config = GcpLoggingConfig {
        project: "p".to_owned(),
        endpoint: Some(double.url.clone()),
    };
    GcpLogStore::open(config, Some(Google::with_token(&Secret::new("token")))).await
}

pub(crate) async fn open_fluent_bit(
    double: &FluentBit,
    protocol: Protocol,
    index: &Elasticsearch,
) -> Result<FluentBitLogStore, LogError> {
    FluentBitLogStore::open(FluentBitConfig {
        host: "127.0.0.1".to_owned(),
        port: double.port,
        protocol,
        tag_prefix: "dstack".to_owned(),
        elasticsearch: Some(ElasticsearchConfig {
            host: index.url.clone(),
            index: "dstack-logs".to_owned(),
            api_key: Some(Secret::new("key")),
        }),
    })
    .await
}

pub(crate) fn stream() -> LogStream {
    LogStream {
        project: "main".into(),
        run: "hello".into(),
        job: "0f8fad5b-d9cb-469f-a165-70867728950e".parse().unwrap(),
        producer: Producer::Job,
    }
}

/// An hour ago: stores refuse what is old.
pub(crate) fn beginning() -> Time {
    Time::from_millis(SystemClock.now().as_millis() - 3_600_000)
}

/// An entry so many milliseconds after the beginning.
pub(crate) fn entry(beginning: Time, millis: i64, text: impl Into<Bytes>) -> LogEntry {
    LogEntry {
        timestamp: Time::from_millis(beginning.as_millis() + millis),
        source: Source::Stdout,
        message: text.into(),
    }
}

/// Numbered lines, a millisecond apart.
pub(crate) fn lines(beginning: Time, range: std::ops::Range<i64>) -> Vec<LogEntry> {
    range
        .map(|n| entry(beginning, n, format!("line {n}\n")))
        .collect()
}

pub(crate) fn query(limit: usize) -> PollQuery {
    PollQuery {
        limit,
        ..PollQuery::default()
    }
}
