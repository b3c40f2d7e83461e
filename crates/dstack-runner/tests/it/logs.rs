//! Logs on their three ways: stream, pull, WebSocket.

use futures_util::{SinkExt, StreamExt};
use tokio_tungstenite::tungstenite::{Error, Message};

use dstack_agent_api::runner::JobState;
use dstack_agent_api::stream::StreamLine;

use crate::harness::{TestRunner, log_of};

const SLOW_LINES: &str = "for n in 1 2 3 4 5 6 7 8; do echo line $n; sleep 0.06; done";

#[tokio::test(flavor = "multi_thread")]
async fn streams_resume_at_every_cursor() {
    let runner = TestRunner::start().await;
    runner.run_script(SLOW_LINES).await;
    let all = runner.events().await;
    assert!(all.len() > 6, "{all:?}");
    let stamps: Vec<i64> = all.iter().filter_map(StreamLine::event_timestamp).collect();
    assert!(stamps.is_sorted_by(|a, b| a < b), "{stamps:?}");
    for (n, stamp) in stamps.iter().enumerate() {
        assert_eq!(runner.events_after(*stamp).await, all[n + 1..], "after {n}");
        assert_eq!(runner.events_after(stamp - 1).await, all[n..], "before {n}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn lines_come_while_the_job_runs() {
    let runner = TestRunner::start().await;
    runner.run_script("echo one; read line; echo two").await;
    // The job waits for input that never comes: the first line must be here without its end.
    runner.wait_for_log("one\n").await;
    assert!(!runner.client.pull(0).await.unwrap().job_logs.is_empty());
    runner.client.stop().await.unwrap();
    runner.events().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn pulls_and_streams_tell_the_same() {
    let runner = TestRunner::start().await;
    runner.run_script(SLOW_LINES).await;
    let (mut cursor, mut log, mut states) = (0, Vec::new(), Vec::new());
    loop {
        let pull = runner.client.pull(cursor).await.unwrap();
        assert!(pull.last_updated >= cursor);
        cursor = pull.last_updated;
        log.extend(pull.job_logs.iter().flat_map(|log| log.message.clone()));
        states.extend(pull.job_states);
        if pull.has_more == Some(false) {
            break;
        }
    }
    let expected: String = (1..=8).map(|n| format!("line {n}\n")).collect();
    assert_eq!(String::from_utf8(log).unwrap(), expected);
    let states: Vec<JobState> = states.iter().map(|state| state.state).collect();
    assert_eq!(states, [JobState::Running, JobState::Done]);
}

#[tokio::test(flavor = "multi_thread")]
async fn pulls_are_bounded_and_complete() {
    let runner = TestRunner::start().await;
    runner
        .run_script("head -c 40000000 /dev/zero | tr '\\0' 'x' | fold -w 100")
        .await;
    runner.events().await;
    let (mut cursor, mut bytes, mut pulls) = (0, 0, 0);
    loop {
        let pull = runner.client.pull(cursor).await.unwrap();
        let size: usize = pull.job_logs.iter().map(|log| log.message.len()).sum();
        assert!(size <= 16 << 20, "{size}");
        (cursor, bytes, pulls) = (pull.last_updated, bytes + size, pulls + 1);
        if pull.has_more == Some(false) {
            assert_eq!(pull.job_states.last().unwrap().state, JobState::Done);
            break;
        }
    }
    // fold ends all lines but the last, and the filter that one.
    assert_eq!((bytes, pulls), (40_400_000, 3));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_spool_marks_what_it_drops() {
    let runner = TestRunner::with(&["--spool-limit", "1000000"], None).await;
    runner.run_script("seq 1 2000000; echo last").await;
    // Nobody fetches meanwhile.
    let mut state = runner.client.job().await.unwrap();
    while state.state != dstack_agent_api::runner::RunnerState::WaitLogsFinished {
        let mut stream = runner.client.stream(i64::MAX - 1).await.unwrap();
        while stream.next().await.unwrap().is_some() {}
        state = runner.client.job().await.unwrap();
    }
    let events = runner.events().await;
    let lost: u64 = events
        .iter()
        .map(|e| {
            if let StreamLine::Gap(gap) = e {
                gap.lost_bytes
            } else {
                0
            }
        })
        .sum();
    let log = log_of(&events);
    let runner_log: usize = events
        .iter()
        .map(|e| {
            if let StreamLine::RunnerLog(log) = e {
                log.message.len()
            } else {
                0
            }
        })
        .sum();
    let written: usize = (1..=2_000_000)
        .map(|n: u32| n.to_string().len() + 1)
        .sum::<usize>()
        + "last\n".len();
    assert!(lost > 0 && log.ends_with("2000000\nlast\n"));
    // What was lost of the runner's own log is counted, too.
    let dropped_runner_log =
        fs_err::metadata(runner.path("temp/runner.log")).unwrap().len() as usize - runner_log;
    assert_eq!(
        usize::try_from(lost).unwrap() + log.len(),
        written + dropped_runner_log
    );
    assert_eq!(crate::harness::states(&events).len(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_acknowledged_is_dropped() {
    let runner = TestRunner::start().await;
    runner.run_script("seq 1 2000000").await;
    let events = runner.events().await;
    let last = events
        .iter()
        .filter_map(StreamLine::event_timestamp)
        .max()
        .unwrap();
    runner.client.ack(last).await.unwrap();
    let rest = runner.events_after(0).await;
    assert_eq!(log_of(&rest), "");
    assert_eq!(crate::harness::states(&rest).len(), 2, "states stay");
}

type Frames = (Vec<u8>, Option<u16>);

/// All binary frames until the close, and its code.
async fn watch(url: &str) -> Frames {
    let (mut socket, _) = tokio_tungstenite::connect_async(url).await.unwrap();
    let mut bytes = Vec::new();
    while let Some(message) = socket.next().await {
        match message {
            Ok(Message::Binary(frame)) => bytes.extend_from_slice(&frame),
            Ok(Message::Close(frame)) => return (bytes, frame.map(|frame| frame.code.into())),
            Ok(_) => {}
            Err(Error::ConnectionClosed) => return (bytes, None),
            Err(error) => panic!("{error}"),
        }
    }
    (bytes, None)
}

#[tokio::test(flavor = "multi_thread")]
async fn watchers_get_raw_bytes_and_an_empty_close() {
    let runner = TestRunner::start().await;
    let url = format!("ws://127.0.0.1:{}/logs_ws", runner.port);
    let early = dstack_system::task::spawn("early", {
        let url = url.clone();
        async move { watch(&url).await }
    });
    runner
        .run_script("printf '\\033[1mbold\\033[0m\\n'; sleep 0.3; echo end")
        .await;
    let raw = b"\x1b[1mbold\x1b[0m\r\nend\r\n".to_vec();
    assert_eq!(early.await.unwrap().unwrap(), (raw.clone(), None));
    assert_eq!(watch(&url).await, (raw.clone(), None));
    assert_eq!(
        watch(&format!("{url}?start_time=2020-01-01T00:00:00%2B02:00")).await,
        (raw, None)
    );
    assert_eq!(
        watch(&format!("{url}?start_time=2999-01-01T00:00:00Z")).await,
        (Vec::new(), None)
    );
    assert_eq!(
        watch(&format!("{url}?start_time=yesterday")).await,
        (Vec::new(), Some(1003))
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn watchers_pings_are_answered() {
    let runner = TestRunner::start().await;
    runner.run_script("sleep 1000").await;
    let url = format!("ws://127.0.0.1:{}/logs_ws", runner.port);
    let (mut socket, _) = tokio_tungstenite::connect_async(&url).await.unwrap();
    socket.send(Message::Ping("hello".into())).await.unwrap();
    assert_eq!(
        socket.next().await.unwrap().unwrap(),
        Message::Pong("hello".into())
    );
    runner.client.stop().await.unwrap();
}
