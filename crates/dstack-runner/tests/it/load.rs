//! A job that writes as fast as it can, and nobody who fetches.

use dstack_agent_api::runner::JobState;
use dstack_agent_api::stream::StreamLine;

use crate::harness::{TestRunner, last_state};

/// Peak memory of this process, KiB. Each test is a process of its own under nextest.
fn peak_kib() -> u64 {
    let status = fs_err::read_to_string("/proc/self/status").unwrap();
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmHWM:"))
        .unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn memory_stays_flat() {
    let runner = TestRunner::with(&["--spool-limit", "20000000"], None).await;
    let before = peak_kib();
    runner.run_script("yes 'a line as jobs write them, of some eighty characters or so, again and again' | head -c 100000000").await;
    // Reads on from the end only: the spool fills and drops.
    let mut stream = runner.client.stream(i64::MAX - 1).await.unwrap();
    while stream.next().await.unwrap().is_some() {}
    let grown = peak_kib() - before;
    assert!(grown < 60_000, "grew by {grown} KiB");
    let mut stream = runner.client.stream(0).await.unwrap();
    let (mut lost, mut kept, mut events) = (0, 0, Vec::new());
    while let Some(line) = stream.next().await.unwrap() {
        match line {
            StreamLine::Gap(gap) => lost += gap.lost_bytes,
            StreamLine::Log(log) => kept += log.message.len() as u64,
            StreamLine::State(_) => events.push(line),
            _ => {}
        }
    }
    assert!(lost > 50_000_000 && kept > 10_000_000, "lost {lost}, kept {kept}");
    assert!(lost + kept >= 100_000_000);
    assert_eq!(last_state(&events).state, JobState::Done);
}
