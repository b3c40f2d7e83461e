use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;

use dstack_agent_api::runner::JobState;
use dstack_system::{Clock, SystemClock};
use dstack_units::Time;

use super::*;

/// A clock that tests set.
#[derive(Debug, Default)]
struct Hand(Mutex<i64>);

impl Clock for Hand {
    fn now(&self) -> Time {
        Time::from_millis(*self.0.lock().unwrap())
    }
}

fn spool(limit: u64, segment: u64) -> (tempfile::TempDir, Arc<Hand>, Spool) {
    let dir = tempfile::tempdir().unwrap();
    let clock = Arc::new(Hand::default());
    let spool = Spool::with_segments(&dir.path().join("spool"), limit, segment, clock.clone()).unwrap();
    (dir, clock, spool)
}

fn read_all(spool: &Spool, after: i64, max_bytes: usize) -> Vec<StreamLine> {
    let mut cursor = Cursor::after(after);
    let mut events = Vec::new();
    loop {
        let batch = spool.read(&mut cursor, max_bytes);
        events.extend(batch.events);
        if batch.complete {
            return events;
        }
    }
}

fn log(timestamp: i64, text: &str) -> StreamLine {
    StreamLine::Log(LogEvent {
        message: text.as_bytes().to_vec(),
        timestamp,
    })
}

#[test]
fn numbers_strictly_even_when_the_clock_stands_or_goes_back() {
    let (_dir, clock, spool) = spool(1 << 20, 1 << 10);
    *clock.0.lock().unwrap() = 5;
    spool.log(b"a");
    spool.log(b"b");
    *clock.0.lock().unwrap() = 3;
    spool.runner_log(b"c");
    *clock.0.lock().unwrap() = 100;
    spool.state(JobStateEvent {
        state: JobState::Running,
        ..Default::default()
    });
    let stamps: Vec<_> = read_all(&spool, 0, 100)
        .iter()
        .filter_map(StreamLine::event_timestamp)
        .collect();
    assert_eq!(stamps, [5, 6, 7, 100]);
    assert_eq!(
        spool.progress(),
        Progress {
            last: 100,
            finished: false
        }
    );
    spool.finish();
    spool.log(b"ignored");
    assert_eq!(
        spool.progress(),
        Progress {
            last: 100,
            finished: true
        }
    );
    assert!(spool.read(&mut Cursor::after(100), 10).finished);
}

#[test]
fn starts_at_whole_seconds() {
    let dir = tempfile::tempdir().unwrap();
    let clock = Arc::new(Hand::default());
    *clock.0.lock().unwrap() = 1_795_245_473_999;
    let spool = Spool::create(dir.path(), 0, clock).unwrap();
    assert_eq!(spool.progress().last, 1_795_245_473_000);
}

#[test]
fn a_full_spool_drops_the_oldest_and_says_so() {
    let (_dir, _clock, spool) = spool(4 * 100, 100);
    let mut reader = Cursor::after(0);
    for n in 0..10 {
        spool.log(format!("{n:010}").as_bytes());
    }
    // Half of the first segment is read live.
    let read = spool.read(&mut reader, 20);
    assert_eq!(read.events.len(), 2);
    spool.state(JobStateEvent {
        state: JobState::Running,
        ..Default::default()
    });
    for n in 10..40 {
        spool.log(format!("{n:010}").as_bytes());
    }
    let StreamLine::Gap(gap) = read_all(&spool, 0, 1000).remove(1) else {
        panic!("no gap")
    };
    let kept = read_all(&spool, gap.timestamp, 1000);
    assert_eq!(gap.lost_bytes + 10 * kept.len() as u64, 400);
    // The state is not lost, and stands at its place.
    let events = read_all(&spool, 0, 1000);
    assert!(matches!(events[0], StreamLine::State(_)), "{events:?}");
    // The live reader is told exactly what it missed.
    let batch = spool.read(&mut reader, 10_000);
    let lost: u64 = batch
        .events
        .iter()
        .map(|e| {
            if let StreamLine::Gap(gap) = e {
                gap.lost_bytes
            } else {
                0
            }
        })
        .sum();
    assert_eq!(lost, gap.lost_bytes - 20);
    // After an acknowledgement nobody is told again.
    spool.ack(gap.timestamp).unwrap();
    assert!(
        read_all(&spool, 0, 1000)
            .iter()
            .all(|event| !matches!(event, StreamLine::Gap(_)))
    );
}

#[test]
fn long_messages_are_split() {
    let (_dir, _clock, spool) = spool(1 << 30, 1 << 20);
    spool.log(&vec![b'x'; 3 * MAX_EVENT_BYTES + 1]);
    let lengths: Vec<_> = read_all(&spool, 0, 1).iter().map(message_len).collect();
    assert_eq!(lengths, [MAX_EVENT_BYTES, MAX_EVENT_BYTES, MAX_EVENT_BYTES, 1]);
}

#[test]
fn a_spool_that_cannot_write_marks_the_loss() {
    let (dir, _clock, spool) = spool(1 << 20, 20);
    spool.log(b"0123456789");
    // No new segment can be made.
    fs_err::remove_dir(dir.path().join("spool")).unwrap();
    spool.log(b"lost");
    spool.log(b"lost too");
    spool.state(JobStateEvent::default());
    fs_err::create_dir(dir.path().join("spool")).unwrap();
    spool.log(b"back");
    let events = read_all(&spool, 0, 1000);
    let kinds: Vec<String> = events
        .iter()
        .map(|event| match event {
            StreamLine::Log(log) => String::from_utf8(log.message.clone()).unwrap(),
            StreamLine::Gap(gap) => format!("gap {}", gap.lost_bytes),
            StreamLine::State(_) => "state".to_owned(),
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(kinds, ["0123456789", "gap 12", "state", "back"]);
}

#[tokio::test]
async fn readers_are_woken() {
    let dir = tempfile::tempdir().unwrap();
    let spool = Spool::create(dir.path(), 1 << 20, Arc::new(SystemClock)).unwrap();
    let mut progress = spool.watch();
    let before = progress.borrow_and_update().last;
    let writer = spool.clone();
    dstack_system::task::blocking("writer", move || writer.log(b"x"))
        .await
        .unwrap();
    tokio::time::timeout(Duration::from_secs(30), progress.changed())
        .await
        .unwrap()
        .unwrap();
    assert!(progress.borrow().last > before);
}

#[derive(Debug, Clone)]
enum Step {
    Log(Vec<u8>),
    RunnerLog(Vec<u8>),
    State,
    Wait(i64),
    Ack(usize),
    Read { from: usize, max: usize },
    ReadOn(usize),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => prop::collection::vec(any::<u8>(), 1..40).prop_map(Step::Log),
        2 => prop::collection::vec(any::<u8>(), 1..40).prop_map(Step::RunnerLog),
        1 => Just(Step::State),
        1 => (-3i64..5).prop_map(Step::Wait),
        1 => (0usize..100).prop_map(Step::Ack),
        2 => (0usize..100, 0usize..200).prop_map(|(from, max)| Step::Read { from, max }),
        2 => (0usize..200).prop_map(Step::ReadOn),
    ]
}

/// The plain list that the spool must equal.
#[derive(Default)]
struct Model {
    events: Vec<StreamLine>,
}

impl Model {
    fn push(&mut self, spool: &Spool, make: impl FnOnce(i64) -> StreamLine) {
        let timestamp = spool.progress().last;
        let last = self.events.last().and_then(StreamLine::event_timestamp);
        assert!(Some(timestamp) > last, "timestamps must strictly increase");
        self.events.push(make(timestamp));
    }

    fn stamp(&self, percent: usize) -> i64 {
        let at = self.events.len() * percent / 100;
        at.checked_sub(1)
            .and_then(|at| self.events[at].event_timestamp())
            .unwrap_or(0)
    }

    fn bytes(&self, after: i64, to: i64) -> u64 {
        let between = self
            .events
            .iter()
            .filter(|e| e.event_timestamp() > Some(after) && e.event_timestamp() <= Some(to));
        between.map(|event| message_len(event) as u64).sum()
    }

    /// What was read after `after` must be the model's events, with gaps where some are missing.
    fn check(&self, after: i64, read: &[StreamLine], exact: bool) -> i64 {
        let mut at = after;
        // A state within what was dropped is still there, before the gap.
        let mut missed = 0;
        for event in read {
            let timestamp = event.event_timestamp().unwrap();
            assert!(timestamp > at, "order");
            let same = self
                .events
                .iter()
                .find(|e| e.event_timestamp() == Some(timestamp))
                .expect("unknown timestamp");
            missed += self.bytes(at, timestamp);
            at = timestamp;
            match event {
                StreamLine::Gap(gap) => {
                    assert!(
                        gap.lost_bytes >= missed && (!exact || gap.lost_bytes == missed),
                        "{gap:?}, missed {missed}"
                    );
                    missed = 0;
                }
                StreamLine::State(_) => assert_eq!(same, event),
                _ => {
                    assert_eq!(same, event);
                    assert_eq!(missed, message_len(event) as u64, "events skipped without a gap");
                    missed = 0;
                }
            }
        }
        assert_eq!(missed, 0, "events skipped without a gap");
        at
    }
}

fn run_steps(limit: u64, steps: Vec<Step>) {
    let (_dir, clock, spool) = spool(limit, 120);
    let mut model = Model::default();
    let mut live = Cursor::after(0);
    let mut acked = 0;
    for step in steps {
        match step {
            Step::Log(message) => {
                spool.log(&message);
                model.push(&spool, |timestamp| {
                    StreamLine::Log(LogEvent { message, timestamp })
                });
            }
            Step::RunnerLog(message) => {
                spool.runner_log(&message);
                model.push(&spool, |timestamp| {
                    StreamLine::RunnerLog(LogEvent { message, timestamp })
                });
            }
            Step::State => {
                spool.state(JobStateEvent::default());
                model.push(&spool, |timestamp| {
                    StreamLine::State(JobStateEvent {
                        timestamp,
                        ..Default::default()
                    })
                });
            }
            Step::Wait(ms) => *clock.0.lock().unwrap() += ms,
            // Only what the live reader has is acknowledged, as a server does.
            Step::Ack(percent) => {
                acked = acked.max(model.stamp(percent).min(live.timestamp));
                spool.ack(acked).unwrap();
            }
            Step::Read { from, max } => {
                let from = model.stamp(from).max(acked);
                let read = read_all(&spool, from, max);
                let end = model.check(from, &read, false);
                assert_eq!(end, model.stamp(100).max(from), "all was read");
            }
            Step::ReadOn(max) => {
                let from = live.timestamp;
                let batch = spool.read(&mut live, max);
                assert_eq!(model.check(from, &batch.events, true), live.timestamp);
                assert!(batch.complete || !batch.events.is_empty(), "progress");
                assert!(!batch.complete || live.timestamp == model.stamp(100).max(from));
            }
        }
    }
}

proptest! {
    #[test]
    fn equals_a_plain_list(steps in prop::collection::vec(step(), 0..300)) {
        run_steps(1 << 30, steps);
    }

    #[test]
    fn equals_a_plain_list_with_marked_gaps(steps in prop::collection::vec(step(), 0..300)) {
        run_steps(400, steps);
    }
}

#[test]
fn what_nobody_read_cannot_be_acknowledged() {
    let (_dir, _clock, spool) = spool(1 << 20, 64);
    spool.log(b"one");
    spool.log(b"two");
    let (one, two) = (1, 2);
    assert_eq!(spool.progress().last, two);
    assert_eq!(
        spool.ack(one),
        Err(NotSent {
            timestamp: one,
            sent: 0
        })
    );
    // Reading from a place that no reader got to, as somebody may who looks for the end, sends nothing of what was before.
    assert!(read_all(&spool, i64::MAX - 1, 1000).is_empty());
    assert_eq!(
        spool.ack(two),
        Err(NotSent {
            timestamp: two,
            sent: 0
        })
    );
    let mut reader = Cursor::after(0);
    assert_eq!(spool.read(&mut reader, 1).events, [log(one, "one")]);
    assert_eq!(
        spool.ack(two),
        Err(NotSent {
            timestamp: two,
            sent: one
        })
    );
    assert_eq!(spool.ack(one), Ok(()));
    assert_eq!(
        read_all(&spool, 0, 1000),
        [log(one, "one"), log(two, "two")],
        "segments go as a whole"
    );
    assert_eq!(spool.ack(two), Ok(()));
    assert!(read_all(&spool, 0, 1000).is_empty());
}

#[test]
fn reads_resume_at_every_cursor() {
    let (_dir, _clock, spool) = spool(1 << 20, 64);
    let mut all = Vec::new();
    for n in 0..50 {
        let text = format!("line {n}");
        spool.log(text.as_bytes());
        all.push(log(spool.progress().last, &text));
    }
    for (n, event) in all.iter().enumerate() {
        let rest = read_all(&spool, event.event_timestamp().unwrap(), 7);
        assert_eq!(rest, all[n + 1..], "after {n}");
    }
    assert_eq!(read_all(&spool, 0, 1), all);
}
