//! Promises of all stores.

use dstack_logs::{LogEntry, LogPage, LogStream, PollQuery, Producer};
use dstack_store_doubles::{Fault, Faults};
use dstack_units::Time;

use crate::subject::{Subject, beginning, entry, lines, query, stream};

/// Texts of entries in one: how they are cut does not matter.
fn text(entries: &[LogEntry]) -> String {
    entries
        .iter()
        .map(|entry| String::from_utf8_lossy(&entry.message).into_owned())
        .collect()
}

#[tokio::test]
async fn what_was_appended_is_read_in_both_directions_and_page_by_page() {
    for subject in Subject::all().await {
        let all = lines(beginning(), 0..250);
        subject.append(&all[..120]).await;
        subject.append(&all[120..]).await;
        for limit in [1000, 100, 7] {
            assert_eq!(subject.read(query(limit)).await, all, "{}, {limit}", subject.name);
            let descending = PollQuery {
                descending: true,
                ..query(limit)
            };
            let mut backwards = subject.read(descending).await;
            backwards.reverse();
            assert_eq!(backwards, all, "{}, {limit} descending", subject.name);
        }
        let last = subject.store.last_timestamp(&stream()).await.unwrap();
        assert_eq!(last, all.last().map(|entry| entry.timestamp), "{}", subject.name);
    }
}

#[tokio::test]
async fn the_start_is_left_out_and_the_end_is_only_backwards_part_of_it() {
    for subject in Subject::all().await {
        let begin = beginning();
        let all = lines(begin, 0..10);
        subject.append(&all).await;
        let bounded = |start: i64, end: i64, descending| PollQuery {
            start_time: Some(Time::from_millis(begin.as_millis() + start)),
            end_time: Some(Time::from_millis(begin.as_millis() + end)),
            descending,
            ..query(3)
        };
        assert_eq!(
            subject.read(bounded(2, 8, false)).await,
            all[3..8],
            "{}",
            subject.name
        );
        let mut backwards = subject.read(bounded(2, 8, true)).await;
        backwards.reverse();
        assert_eq!(backwards, all[3..=8], "{}", subject.name);
        assert_eq!(subject.read(bounded(9, 20, false)).await, [], "{}", subject.name);
    }
}

#[tokio::test]
async fn a_batch_appended_again_is_stored_once() {
    for subject in Subject::all().await {
        let all = lines(beginning(), 0..30);
        subject.append(&all[..20]).await;
        subject.append(&all[..20]).await;
        subject.append(&all[10..]).await;
        assert_eq!(subject.read(query(100)).await, all, "{}", subject.name);
    }
}

#[tokio::test]
async fn a_throttled_write_neither_loses_nor_doubles_a_line() {
    fail_in_between(Fault::Throttled).await;
}

#[tokio::test]
async fn a_write_to_a_store_that_is_away_neither_loses_nor_doubles_a_line() {
    fail_in_between(Fault::Unavailable).await;
}

#[tokio::test]
async fn a_write_whose_answer_is_lost_neither_loses_nor_doubles_a_line() {
    fail_in_between(Fault::AnswerLost).await;
}

/// All stores at a time: each waits between its tries.
async fn fail_in_between(fault: Fault) {
    let subjects = Subject::all().await.into_iter();
    let tasks: Vec<_> = subjects
        .filter_map(|subject| Some((subject.faults.clone()?, subject)))
        .map(|(faults, subject)| {
            dstack_system::task::spawn("subject", async move { fails(&subject, &faults, fault).await })
        })
        .collect();
    for task in tasks {
        task.await.unwrap().expect("no panic");
    }
}

async fn fails(subject: &Subject, faults: &Faults, fault: Fault) {
    let all = lines(beginning(), 0..30);
    subject.append(&all[..10]).await;
    // Over before the store gives up, and after.
    faults.add([fault]);
    subject.append(&all[..20]).await;
    assert_eq!(faults.left(), 0, "{}", subject.name);
    faults.add([fault; 20]);
    assert!(subject.try_append(&all[..25]).await.is_err(), "{}", subject.name);
    faults.clear();
    subject.append(&all).await;
    assert_eq!(subject.read(query(1000)).await, all, "{}", subject.name);
}

#[tokio::test]
async fn a_refused_write_is_an_error_and_is_not_tried_for_long() {
    for subject in Subject::all().await {
        let Some(double) = subject.faults.clone() else {
            continue;
        };
        // The forward protocol cannot refuse: it closes the connection, which may pass.
        let tries = if subject.name.contains("forward") { 5 } else { 1 };
        double.add([Fault::Denied; 5]);
        let all = lines(beginning(), 0..3);
        // CloudWatch is first asked for the end of the stream.
        assert!(subject.try_append(&all).await.is_err(), "{}", subject.name);
        assert_eq!(double.left(), 5 - tries, "{}", subject.name);
        double.clear();
        subject.append(&all).await;
        assert_eq!(subject.read(query(10)).await, all, "{}", subject.name);
    }
}

#[tokio::test]
async fn large_and_odd_entries_arrive() {
    for subject in Subject::all().await {
        let begin = beginning();
        let large = "0123456789abcdeé".repeat(60_000); // 1 MB
        let entries = [
            entry(begin, 0, "a\n"),
            entry(begin, 1, ""),
            entry(begin, 2, large.clone()),
            entry(begin, 3, "\u{1b}[31m\"quoted\" \\ \u{0}\n"),
        ];
        subject.append(&entries).await;
        subject.append(&entries).await;
        let stored = subject.read(query(1000)).await;
        let expected = format!("a\n{large}\u{1b}[31m\"quoted\" \\ \u{0}\n");
        assert!(
            text(&stored) == expected,
            "{}: {} entries",
            subject.name,
            stored.len()
        );
        assert!(
            stored.is_sorted_by_key(|entry| entry.timestamp),
            "{}",
            subject.name
        );
    }
}

#[tokio::test]
async fn streams_are_apart_and_one_that_is_not_there_is_empty() {
    for subject in Subject::all().await {
        let page = subject.poll(&query(10)).await;
        assert_eq!(
            (page.entries, page.next_token),
            (vec![], None),
            "{}",
            subject.name
        );
        let all = lines(beginning(), 0..5);
        subject.append(&all).await;
        subject.append(&[]).await;
        let others = [
            LogStream {
                producer: Producer::Runner,
                ..stream()
            },
            LogStream {
                run: "hello2".into(),
                ..stream()
            },
            LogStream {
                // A name that would be more than a name in a query.
                run: "hello\" OR logName != \"".into(),
                ..stream()
            },
        ];
        for other in others {
            let page = subject.store.poll(&other, &query(10)).await.unwrap();
            let LogPage {
                entries, next_token, ..
            } = page;
            assert_eq!((entries, next_token), (vec![], None), "{}: {other}", subject.name);
        }
        assert_eq!(subject.read(query(10)).await, all, "{}", subject.name);
    }
}

#[tokio::test]
async fn a_token_that_nobody_gave_out_is_refused() {
    for subject in Subject::all().await {
        subject.append(&lines(beginning(), 0..5)).await;
        let nonsense = PollQuery {
            next_token: Some("nonsense".to_owned()),
            ..query(2)
        };
        let error = subject
            .store
            .poll(&stream(), &nonsense)
            .await
            .unwrap_err()
            .to_string();
        assert!(
            error.starts_with("Invalid next_token: nonsense"),
            "{}: {error}",
            subject.name
        );
    }
}

#[tokio::test]
async fn appends_to_many_streams_at_a_time_do_not_mix() {
    for subject in Subject::all().await {
        let begin = beginning();
        let streams: Vec<LogStream> = (0..20)
            .map(|n: u128| LogStream {
                run: format!("run-{n}"),
                job: uuid::Uuid::from_u128(n).into(),
                ..stream()
            })
            .collect();
        let tasks: Vec<_> = streams
            .iter()
            .cloned()
            .map(|stream| {
                let (store, entries) = (subject.store.clone(), vec![entry(begin, 1, stream.run.clone())]);
                dstack_system::task::spawn("append", async move { store.append(&stream, entries).await })
            })
            .collect();
        for task in tasks {
            task.await.unwrap().unwrap().unwrap();
        }
        for stream in streams {
            let page = subject.store.poll(&stream, &query(10)).await.unwrap();
            assert_eq!(text(&page.entries), stream.run, "{}", subject.name);
        }
    }
}
