//! Which store keeps the output of jobs.

use std::sync::Arc;

use dstack_server::{Settings, log_store};
use dstack_store_doubles::elasticsearch::Elasticsearch;
use dstack_store_doubles::gcp_logging::GcpLogging;
use dstack_system::SystemClock;
use dstack_system::clock::SharedClock;

/// The name of the store's type.
async fn chosen(settings: Settings) -> String {
    let dir = tempfile::tempdir().unwrap();
    let settings = Settings {
        dir: dir.path().to_owned(),
        ..settings
    };
    let clock: SharedClock = Arc::new(SystemClock);
    let store = format!("{:?}", log_store::open(&settings, &clock).await);
    store.split(' ').next().unwrap_or_default().to_owned()
}

#[tokio::test]
async fn the_first_that_is_set_is_used_and_files_if_it_cannot_be() {
    let google = GcpLogging::start("p", "").await;
    let none = Settings::from_env();
    let fluent_bit = Settings {
        fluentbit_host: Some("127.0.0.1".to_owned()),
        ..none.clone()
    };
    let gcp = Settings {
        gcp_logging_project: Some("p".to_owned()),
        gcp_logging_endpoint: Some(google.url.clone()),
        ..fluent_bit.clone()
    };
    // No region is set: the next store is not tried.
    let cloudwatch = Settings {
        cloudwatch_group: Some("group".to_owned()),
        cloudwatch_region: None,
        ..gcp.clone()
    };
    assert_eq!(chosen(none).await, "FileLogStore");
    assert_eq!(chosen(fluent_bit.clone()).await, "FluentBitLogStore");
    assert_eq!(chosen(gcp).await, "GcpLogStore");
    if dstack_credentials::aws::region(None).is_err() {
        assert_eq!(chosen(cloudwatch).await, "FileLogStore");
    }

    let index = Elasticsearch::start("i", "key").await;
    let refused = Settings {
        elasticsearch_host: Some(index.url.clone()),
        ..fluent_bit
    };
    assert_eq!(chosen(refused).await, "FileLogStore");
}

/// The server starts all the same, and soon; what is written meanwhile is not put elsewhere, where nobody finds it later.
#[tokio::test]
async fn a_store_that_does_not_answer_is_waited_for_in_the_background() {
    // It takes connections, and says nothing.
    let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let settings = Settings {
        gcp_logging_project: Some("p".to_owned()),
        gcp_logging_endpoint: Some(format!("http://{}", silent.local_addr().unwrap())),
        ..Settings::from_env()
    };
    let begin = tokio::time::Instant::now();
    tokio::time::pause();
    assert_eq!(chosen(settings).await, "LateLogStore");
    let waited = begin.elapsed();
    assert!(waited < std::time::Duration::from_secs(6), "{waited:?}");
}
