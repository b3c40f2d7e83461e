use std::path::Path;

use bytes::Bytes;
use dstack_units::{JobId, Time};
use proptest::prelude::*;

use super::*;
use crate::{Producer, Source};

fn stream() -> LogStream {
    LogStream {
        project: "main".into(),
        run: "hello".into(),
        job: "0f8fad5b-d9cb-469f-a165-70867728950e".parse::<JobId>().unwrap(),
        producer: Producer::Job,
    }
}

fn entry(millis: i64, text: &str) -> LogEntry {
    LogEntry {
        timestamp: Time::from_millis(millis),
        source: Source::Stdout,
        message: Bytes::copy_from_slice(text.as_bytes()),
    }
}

fn entries(range: std::ops::Range<i64>) -> Vec<LogEntry> {
    range.map(|n| entry(n, &format!("line {n}\n"))).collect()
}

fn file_of(root: &Path) -> std::path::PathBuf {
    root.join("projects/main/logs/hello/0f8fad5b-d9cb-469f-a165-70867728950e/job.log")
}

fn times(page: &LogPage) -> Vec<i64> {
    page.entries
        .iter()
        .map(|entry| entry.timestamp.as_millis())
        .collect()
}

#[tokio::test]
async fn lines_are_those_of_the_reference() {
    let dir = tempfile::tempdir().unwrap();
    let store = FileLogStore::new(dir.path(), Durability::Synced);
    store
        .append(&stream(), vec![entry(1_795_245_473_010, "hällo\n")])
        .await
        .unwrap();
    let mode = std::os::unix::fs::MetadataExt::mode(&fs_err::metadata(file_of(dir.path())).unwrap());
    assert_eq!(
        mode & 0o777,
        0o600,
        "other users of the machine must not read what jobs print"
    );
    let text = fs_err::read_to_string(file_of(dir.path())).unwrap();
    assert_eq!(
        text,
        "{\"timestamp\":\"2026-11-21T07:17:53.010000Z\",\"log_source\":\"stdout\",\"message\":\"hällo\\n\"}\n"
    );
}

#[tokio::test]
async fn bytes_that_are_no_text_come_back_as_they_were() {
    let dir = tempfile::tempdir().unwrap();
    let store = FileLogStore::new(dir.path(), Durability::Written);
    let odd = LogEntry {
        message: Bytes::from_static(b"\xff\x00ok"),
        ..entry(1, "")
    };
    store.append(&stream(), vec![odd.clone()]).await.unwrap();
    let page = store
        .poll(
            &stream(),
            &PollQuery {
                limit: 10,
                ..PollQuery::default()
            },
        )
        .await
        .unwrap();
    assert_eq!(page.entries, [odd]);
}

#[tokio::test]
async fn a_batch_sent_again_is_not_stored_again() {
    let dir = tempfile::tempdir().unwrap();
    let store = FileLogStore::new(dir.path(), Durability::Written);
    store.append(&stream(), entries(1..4)).await.unwrap();
    // Another process, after a crash before the cursor was stored.
    let store = FileLogStore::new(dir.path(), Durability::Written);
    assert_eq!(
        store.last_timestamp(&stream()).await.unwrap(),
        Some(Time::from_millis(3))
    );
    store.append(&stream(), entries(1..6)).await.unwrap();
    let page = store
        .poll(
            &stream(),
            &PollQuery {
                limit: 100,
                ..PollQuery::default()
            },
        )
        .await
        .unwrap();
    assert_eq!(times(&page), [1, 2, 3, 4, 5]);
}

#[tokio::test]
async fn a_torn_last_line_is_cut_and_written_again() {
    let dir = tempfile::tempdir().unwrap();
    let store = FileLogStore::new(dir.path(), Durability::Written);
    store.append(&stream(), entries(1..4)).await.unwrap();
    let path = file_of(dir.path());
    let whole = fs_err::read(&path).unwrap();
    for cut in 1..whole.len() {
        fs_err::write(&path, &whole[..cut]).unwrap();
        let store = FileLogStore::new(dir.path(), Durability::Written);
        store.append(&stream(), entries(1..4)).await.unwrap();
        assert_eq!(fs_err::read(&path).unwrap(), whole, "cut at {cut}");
    }
}

#[tokio::test]
async fn a_failed_write_leaves_nothing_and_can_be_repeated() {
    let dir = tempfile::tempdir().unwrap();
    // A file where a directory is needed: nothing can be written there.
    fs_err::write(dir.path().join("projects"), "").unwrap();
    let store = FileLogStore::new(dir.path(), Durability::Written);
    assert!(matches!(
        store.append(&stream(), entries(1..3)).await,
        Err(LogError::Write { .. })
    ));
    fs_err::remove_file(dir.path().join("projects")).unwrap();
    store.append(&stream(), entries(1..3)).await.unwrap();
    let page = store
        .poll(
            &stream(),
            &PollQuery {
                limit: 100,
                ..PollQuery::default()
            },
        )
        .await
        .unwrap();
    assert_eq!(times(&page), [1, 2]);
}

#[tokio::test]
async fn names_cannot_leave_the_directory() {
    let dir = tempfile::tempdir().unwrap();
    let store = FileLogStore::new(dir.path(), Durability::Written);
    for run in ["../../x", "..", "", "a/b"] {
        let stream = LogStream {
            run: run.into(),
            ..stream()
        };
        assert!(store.append(&stream, entries(1..2)).await.is_err(), "{run}");
        assert_eq!(
            store.poll(&stream, &PollQuery::default()).await.unwrap(),
            LogPage::default()
        );
    }
    let long = LogStream {
        run: "a".repeat(300),
        ..stream()
    };
    assert!(matches!(
        store.poll(&long, &PollQuery::default()).await,
        Err(LogError::NameTooLong)
    ));
}

#[tokio::test]
async fn tokens_are_checked_even_without_a_log() {
    let dir = tempfile::tempdir().unwrap();
    let store = FileLogStore::new(dir.path(), Durability::Written);
    for token in ["abc", "-1", "1.5", ""] {
        let query = PollQuery {
            next_token: Some(token.into()),
            ..PollQuery::default()
        };
        assert!(
            matches!(store.poll(&stream(), &query).await, Err(LogError::Token(_))),
            "{token}"
        );
    }
}

#[tokio::test]
async fn times_bound_both_directions() {
    let dir = tempfile::tempdir().unwrap();
    let store = FileLogStore::new(dir.path(), Durability::Written);
    store.append(&stream(), entries(1..10)).await.unwrap();
    let query = PollQuery {
        start_time: Some(Time::from_millis(3)),
        end_time: Some(Time::from_millis(7)),
        limit: 100,
        ..PollQuery::default()
    };
    assert_eq!(times(&store.poll(&stream(), &query).await.unwrap()), [4, 5, 6]);
    let query = PollQuery {
        descending: true,
        ..query
    };
    assert_eq!(times(&store.poll(&stream(), &query).await.unwrap()), [7, 6, 5, 4]);
}

async fn read_all(store: &FileLogStore, descending: bool, limit: usize) -> Vec<i64> {
    let mut query = PollQuery {
        descending,
        limit,
        ..PollQuery::default()
    };
    let mut all = Vec::new();
    loop {
        let page = store.poll(&stream(), &query).await.unwrap();
        all.extend(times(&page));
        assert!(page.entries.len() <= limit.max(1));
        match page.next_token {
            Some(token) => query.next_token = Some(token),
            None => return all,
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    fn pages_in_both_directions_are_the_whole(lengths in prop::collection::vec(0usize..40_000, 0..30), limit in 0usize..12) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            let dir = tempfile::tempdir().unwrap();
            let store = FileLogStore::new(dir.path(), Durability::Written);
            let all: Vec<LogEntry> = (1..).zip(&lengths).map(|(n, length)| entry(n, &"x".repeat(*length))).collect();
            for batch in all.chunks(7) {
                store.append(&stream(), batch.to_vec()).await.unwrap();
            }
            let mut expected: Vec<i64> = all.iter().map(|entry| entry.timestamp.as_millis()).collect();
            assert_eq!(read_all(&store, false, limit).await, expected);
            expected.reverse();
            assert_eq!(read_all(&store, true, limit).await, expected);
        });
    }
}
