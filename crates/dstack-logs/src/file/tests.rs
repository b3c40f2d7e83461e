use std::io::{self, Write as _};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use dstack_units::{JobId, Time};
use proptest::prelude::*;

use super::*;
use crate::{Producer, Source};

/// A disk on which a store has room for so many bytes more.
#[derive(Debug)]
pub(super) struct Disk(AtomicU64);

impl Default for Disk {
    fn default() -> Self {
        Self(AtomicU64::new(u64::MAX))
    }
}

impl Disk {
    fn set_room(&self, bytes: u64) {
        self.0.store(bytes, Ordering::SeqCst);
    }

    /// Writes as much as there is room for.
    pub(super) fn write(&self, file: &mut fs_err::File, bytes: &[u8]) -> io::Result<()> {
        let room = self.0.load(Ordering::SeqCst);
        let fits = usize::try_from(room).map_or(bytes.len(), |room| room.min(bytes.len()));
        file.write_all(&bytes[..fits])?;
        self.0.fetch_sub(fits as u64, Ordering::SeqCst);
        match fits == bytes.len() {
            true => Ok(()),
            false => Err(io::ErrorKind::StorageFull.into()),
        }
    }
}

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

/// Two servers with the same directory, and a job that passes from one to the other and back.
#[tokio::test]
async fn a_job_that_comes_back_finds_what_the_other_server_has_stored() {
    let dir = tempfile::tempdir().unwrap();
    let [a, b] = [(); 2].map(|()| FileLogStore::new(dir.path(), Durability::Written));
    a.append(&stream(), entries(1..4)).await.unwrap();
    b.append(&stream(), entries(3..7)).await.unwrap();
    // The runner sends again what was not acknowledged.
    a.append(&stream(), entries(5..9)).await.unwrap();
    assert_eq!(read_all(&a, false, 100).await, [1, 2, 3, 4, 5, 6, 7, 8]);
    assert_eq!(
        b.last_timestamp(&stream()).await.unwrap(),
        Some(Time::from_millis(8))
    );
}

#[tokio::test]
async fn a_failed_append_takes_nothing_away_that_another_server_has_stored() {
    let dir = tempfile::tempdir().unwrap();
    let [a, b] = [(); 2].map(|()| FileLogStore::new(dir.path(), Durability::Written));
    a.append(&stream(), entries(1..4)).await.unwrap();
    b.append(&stream(), entries(4..7)).await.unwrap();
    a.disk.set_room(30);
    a.append(&stream(), entries(7..10)).await.unwrap_err();
    assert_eq!(read_all(&b, false, 100).await, [1, 2, 3, 4, 5, 6]);
    b.append(&stream(), entries(7..9)).await.unwrap();
    a.disk.set_room(u64::MAX);
    a.append(&stream(), entries(7..10)).await.unwrap();
    assert_eq!(read_all(&a, false, 100).await, [1, 2, 3, 4, 5, 6, 7, 8, 9]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn what_two_servers_append_at_the_same_time_is_stored_once() {
    const LINES: i64 = 400;
    let dir = tempfile::tempdir().unwrap();
    let append_all = |step: usize| {
        let store = FileLogStore::new(dir.path(), Durability::Written);
        task::spawn("append", async move {
            for from in (1..=LINES).step_by(step) {
                let to = (from + i64::try_from(step).unwrap()).min(LINES + 1);
                store.append(&stream(), entries(from..to)).await.unwrap();
            }
        })
    };
    for server in [append_all(3), append_all(7), append_all(5)] {
        server.await.unwrap().unwrap();
    }
    let store = FileLogStore::new(dir.path(), Durability::Written);
    let expected: Vec<i64> = (1..=LINES).collect();
    assert_eq!(read_all(&store, false, 1000).await, expected);
}

#[tokio::test(start_paused = true)]
async fn a_file_that_stays_locked_is_an_error_and_nothing_is_lost() {
    let dir = tempfile::tempdir().unwrap();
    let store = FileLogStore::new(dir.path(), Durability::Written);
    store.append(&stream(), entries(1..3)).await.unwrap();
    let other = fs_err::File::open(file_of(dir.path())).unwrap();
    other.file().lock().unwrap();
    let refused = store.append(&stream(), entries(3..5)).await;
    assert!(matches!(refused, Err(LogError::Locked { .. })), "{refused:?}");
    other.file().unlock().unwrap();
    store.append(&stream(), entries(3..5)).await.unwrap();
    assert_eq!(read_all(&store, false, 100).await, [1, 2, 3, 4]);
}

#[tokio::test]
async fn nothing_is_kept_open_for_a_job_that_was_released() {
    let dir = tempfile::tempdir().unwrap();
    let store = FileLogStore::new(dir.path(), Durability::Written);
    let other = LogStream {
        job: "1f8fad5b-d9cb-469f-a165-70867728950e".parse().unwrap(),
        ..stream()
    };
    for stream in [&stream(), &other] {
        store.append(stream, entries(1..3)).await.unwrap();
    }
    store.release(stream().job);
    let open: Vec<PathBuf> = store.writers().keys().cloned().collect();
    assert_eq!(open, [store.path(&other).unwrap()]);
    store.append(&stream(), entries(1..4)).await.unwrap();
    assert_eq!(read_all(&store, false, 100).await, [1, 2, 3]);
}

#[tokio::test]
async fn lines_are_not_written_to_a_file_that_somebody_has_deleted() {
    let dir = tempfile::tempdir().unwrap();
    let store = FileLogStore::new(dir.path(), Durability::Written);
    store.append(&stream(), entries(1..3)).await.unwrap();
    fs_err::remove_dir_all(dir.path().join("projects")).unwrap();
    store.append(&stream(), entries(3..5)).await.unwrap();
    assert_eq!(read_all(&store, false, 100).await, [3, 4]);
}

#[tokio::test]
async fn logs_are_for_the_servers_user_only() {
    let dir = tempfile::tempdir().unwrap();
    let store = FileLogStore::new(dir.path(), Durability::Written);
    store.append(&stream(), entries(1..2)).await.unwrap();
    let mode = |path: &Path| fs_err::metadata(path).unwrap().permissions().mode() & 0o777;
    let file = file_of(dir.path());
    assert_eq!(mode(&file), 0o600);
    let folders = file
        .ancestors()
        .skip(1)
        .take_while(|folder| *folder != dir.path());
    let modes: Vec<u32> = folders.map(mode).collect();
    assert_eq!(modes, [0o700; 5]);
}

/// What happens next to a log that two servers write.
#[derive(Debug, Clone)]
enum Step {
    /// A server appends so many lines from a place (before the end: sent again).
    Append {
        server: usize,
        back: i64,
        lines: i64,
        room: Option<u64>,
    },
    /// A server is killed in the middle of a line, and started again.
    Crash { server: usize },
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (0..2_usize, 0..4_i64, 1..6_i64, prop::option::weighted(0.3, 0..400_u64))
            .prop_map(|(server, back, lines, room)| Step::Append { server, back, lines, room }),
        1 => (0..2_usize).prop_map(|server| Step::Crash { server }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn whatever_happens_every_acknowledged_line_is_stored_once(steps in prop::collection::vec(step(), 1..30)) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        runtime.block_on(async {
            let dir = tempfile::tempdir().unwrap();
            let start = || FileLogStore::new(dir.path(), Durability::Written);
            let mut servers = [start(), start()];
            let mut acknowledged = 0;
            for step in steps {
                match step {
                    Step::Append { server, back, lines, room } => {
                        let from = (acknowledged + 1 - back).max(1);
                        let to = acknowledged + 1 + lines;
                        servers[server].disk.set_room(room.unwrap_or(u64::MAX));
                        if servers[server].append(&stream(), entries(from..to)).await.is_ok() {
                            acknowledged = to - 1;
                        }
                    }
                    Step::Crash { server } => {
                        if let Ok(mut file) = fs_err::OpenOptions::new().append(true).open(file_of(dir.path())) {
                            file.write_all(b"{\"timestamp\":\"2026-11-2").unwrap();
                        }
                        servers[server] = start();
                    }
                }
                let expected: Vec<i64> = (1..=acknowledged).collect();
                prop_assert_eq!(read_all(&servers[0], false, 1000).await, expected);
            }
            Ok(())
        })?;
    }
}
