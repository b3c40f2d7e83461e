//! What is special about each vendor.

use std::time::Duration;

use dstack_logs::fluent_bit::{FluentBitConfig, FluentBitLogStore, Protocol};
use dstack_logs::{LogError, LogStore, PollQuery};
use dstack_store_doubles::Fault;
use dstack_store_doubles::cloudwatch::CloudWatch;
use dstack_store_doubles::elasticsearch::Elasticsearch;
use dstack_store_doubles::fluent_bit::FluentBit;
use dstack_store_doubles::gcp_logging::GcpLogging;
use dstack_units::Time;

use crate::subject::{
    beginning, cloudwatch_group, entry, lines, open_cloudwatch, open_fluent_bit, open_gcp, query, stream,
};

#[tokio::test]
async fn cloudwatch_gets_batches_within_its_limits() {
    let double = CloudWatch::start("group").await;
    let store = open_cloudwatch(&double).await.unwrap();
    let many = lines(beginning(), 0..25_000);
    store.append(&stream(), many).await.unwrap();
    assert_eq!(double.puts(), 3);
    // A day and a half in one append.
    let begin = Time::from_millis(beginning().as_millis() - 40 * 3_600_000);
    let long = [0, 1, 36 * 3_600_000].map(|millis| entry(begin, millis, "x"));
    let other = dstack_logs::LogStream {
        run: "long".into(),
        ..stream()
    };
    store.append(&other, long.to_vec()).await.unwrap();
    assert_eq!(double.puts(), 5);
    assert_eq!(double.stored(&stream().to_string()).len(), 25_000);
}

#[tokio::test]
async fn cloudwatch_does_not_get_what_it_refuses_for_its_age() {
    let double = CloudWatch::start("group").await;
    let store = open_cloudwatch(&double).await.unwrap();
    let begin = beginning();
    let (old, new) = (-20 * 24 * 3_600_000, 20 * 3_600_000);
    let entries = [old, 0, 1, new].map(|millis| entry(begin, millis, "x"));
    store.append(&stream(), entries.to_vec()).await.unwrap();
    let times: Vec<i64> = double
        .stored(&stream().to_string())
        .iter()
        .map(|(time, _)| *time)
        .collect();
    assert_eq!(times, [begin.as_millis(), begin.as_millis() + 1]);
}

#[tokio::test]
async fn cloudwatch_streams_that_were_deleted_are_made_again_and_empty_pages_are_skipped() {
    let double = CloudWatch::start("group").await;
    let store = open_cloudwatch(&double).await.unwrap();
    let all = lines(beginning(), 0..20);
    store.append(&stream(), all[..10].to_vec()).await.unwrap();
    double.delete(&stream().to_string());
    store.append(&stream(), all[10..].to_vec()).await.unwrap();
    double.empty_pages(3);
    let page = store.poll(&stream(), &query(100)).await.unwrap();
    assert_eq!(page.entries, all[10..]);
    assert_eq!(
        page.external_url.as_deref(),
        Some(
            "https://console.aws.amazon.com/cloudwatch/home?region=eu-west-1#logsV2:log-groups/log-group/group/log-events/\
             main%2Fhello%2F0f8fad5b-d9cb-469f-a165-70867728950e%2Fjob"
        )
    );
    // Only backwards is there more for sure.
    double.empty_pages(10);
    assert_eq!(store.poll(&stream(), &query(100)).await.unwrap().next_token, None);
    double.empty_pages(10);
    let backwards = PollQuery {
        descending: true,
        ..query(100)
    };
    assert!(
        store
            .poll(&stream(), &backwards)
            .await
            .unwrap()
            .next_token
            .is_some()
    );
}

#[tokio::test]
async fn a_restarted_server_does_not_store_again_what_cloudwatch_shows() {
    let double = CloudWatch::start("group").await;
    let all = lines(beginning(), 0..20);
    let first = open_cloudwatch(&double).await.unwrap();
    first.append(&stream(), all[..15].to_vec()).await.unwrap();
    let second = open_cloudwatch(&double).await.unwrap();
    second.append(&stream(), all.clone()).await.unwrap();
    assert_eq!(double.stored(&stream().to_string()).len(), 20);
}

#[tokio::test]
async fn stores_that_cannot_be_used_say_why() {
    let double = CloudWatch::start("group").await;
    let error = cloudwatch_group(&double, "other").await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "cannot use CloudWatch Logs: LogGroup 'other' does not exist"
    );
    let double = GcpLogging::start("p", "another token").await;
    assert!(matches!(open_gcp(&double).await, Err(LogError::Remote { .. })));
    let index = Elasticsearch::start("dstack-logs", "another key").await;
    let double = FluentBit::http(index.clone()).await;
    let error = open_fluent_bit(&double, Protocol::Http, &index)
        .await
        .unwrap_err();
    assert_eq!(error.to_string(), "Elasticsearch/OpenSearch failed");
    assert!("tcp".parse::<Protocol>().is_err());
}

#[tokio::test]
async fn googles_quota_of_reads_is_named() {
    let double = GcpLogging::start("p", "token").await;
    let store = open_gcp(&double).await.unwrap();
    double.faults.add([Fault::Throttled; 5]);
    let error = store.poll(&stream(), &query(10)).await.unwrap_err();
    assert!(matches!(error, LogError::ReadQuota), "{error}");
}

#[tokio::test]
async fn google_drops_what_a_restarted_server_sends_again() {
    let double = GcpLogging::start("p", "token").await;
    let all = lines(beginning(), 0..20);
    for end in [15, 20] {
        let store = open_gcp(&double).await.unwrap();
        store.append(&stream(), all[..end].to_vec()).await.unwrap();
    }
    assert_eq!(double.count(), 20);
    let store = open_gcp(&double).await.unwrap();
    double.empty_pages(3);
    let page = store.poll(&stream(), &query(100)).await.unwrap();
    assert_eq!(page.entries, all);
    let url = page.external_url.unwrap();
    assert!(
        url.starts_with(
            "https://console.cloud.google.com/logs/query;query=logName%3D%22projects%2Fp%2Flogs%2F"
        ) && url.ends_with("%2Djob%22?project=p") | url.ends_with("-job%22?project=p"),
        "{url}"
    );
}

#[tokio::test]
async fn fluent_bit_gets_the_tags_of_the_reference_in_batches_of_a_hundred() {
    let index = Elasticsearch::start("dstack-logs", "key").await;
    for (double, protocol) in [
        (FluentBit::forward(index.clone()).await, Protocol::Forward),
        (FluentBit::http(index.clone()).await, Protocol::Http),
    ] {
        let store = open_fluent_bit(&double, protocol, &index).await.unwrap();
        let begin = beginning() + Duration::from_secs(if protocol == Protocol::Http { 600 } else { 0 });
        store.append(&stream(), lines(begin, 0..250)).await.unwrap();
        let tag = "dstack.main/hello/0f8fad5b-d9cb-469f-a165-70867728950e/job";
        assert_eq!(double.tags(), [tag; 3]);
    }
    assert_eq!(index.count(), 500);
}

#[tokio::test]
async fn without_elasticsearch_logs_are_only_sent() {
    let index = Elasticsearch::start("dstack-logs", "key").await;
    let double = FluentBit::forward(index.clone()).await;
    let config = FluentBitConfig {
        host: "127.0.0.1".to_owned(),
        port: double.port,
        protocol: Protocol::Forward,
        tag_prefix: String::new(),
        elasticsearch: None,
    };
    let store = FluentBitLogStore::open(config).await.unwrap();
    store.append(&stream(), lines(beginning(), 0..3)).await.unwrap();
    assert_eq!(index.count(), 3);
    assert_eq!(double.tags(), [stream().to_string()]);
    assert_eq!(store.poll(&stream(), &query(10)).await.unwrap().entries, []);
}
