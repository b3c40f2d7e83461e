//! The processes of a job: those of its session, and how they are made to end.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use tokio::time::{Instant, sleep};

use dstack_system::task;

use crate::pty;

/// SIGHUP and SIGCONT go to what still lives after this time.
const HANG_UP_AFTER: Duration = Duration::from_secs(5);
/// SIGKILL goes to what still lives after this time.
const KILL_AFTER: Duration = Duration::from_secs(10);
/// Killed processes vanish within this time, or are stuck in the kernel.
const GIVE_UP_AFTER: Duration = Duration::from_secs(15);
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// Most processes end at once: the first look is soon.
const FIRST_LOOK: Duration = Duration::from_millis(5);

/// Asks the session to end: interrupt character, after 5 s SIGHUP and SIGCONT, after 10 s SIGKILL. Returns when no
/// process of the session is left.
pub async fn stop(session: u32, master: Arc<OwnedFd>) {
    let interrupted = task::blocking("interrupt job", move || pty::interrupt(&*master)).await;
    if !matches!(interrupted, Ok(Ok(()))) {
        signal(session, &[Signal::INT]).await;
    }
    hang_up(session, HANG_UP_AFTER).await;
}

/// Ends what is left of a session whose leader exited: SIGHUP and SIGCONT at once, SIGKILL 5 s later.
pub async fn clean_up(session: u32) {
    hang_up(session, Duration::ZERO).await;
}

/// Kills the session at once.
pub async fn kill(session: u32) {
    let started = Instant::now();
    while started.elapsed() < GIVE_UP_AFTER - KILL_AFTER && signal(session, &[Signal::KILL]).await {
        sleep(LOOK_EVERY).await;
    }
}

async fn hang_up(session: u32, hang_up_after: Duration) {
    let kill_after = hang_up_after + (KILL_AFTER - HANG_UP_AFTER);
    let give_up_after = hang_up_after + (GIVE_UP_AFTER - HANG_UP_AFTER);
    let started = Instant::now();
    let mut hung_up = false;
    let mut pause = FIRST_LOOK;
    loop {
        let passed = started.elapsed();
        let signals: &[Signal] = if passed >= kill_after {
            &[Signal::KILL]
        } else if passed >= hang_up_after && !hung_up {
            hung_up = true;
            &[Signal::HUP, Signal::CONT]
        } else {
            &[]
        };
        if !signal(session, signals).await || passed >= give_up_after {
            return;
        }
        sleep(pause).await;
        pause = (pause * 2).min(LOOK_EVERY);
    }
}

/// Sends the signals to each process of the session; whether there is one.
async fn signal(session: u32, signals: &'static [Signal]) -> bool {
    task::blocking("signal job", move || {
        let members = members(session);
        for pid in members
            .iter()
            .filter_map(|&pid| Pid::from_raw(i32::try_from(pid).ok()?))
        {
            for &signal in signals {
                // It may be gone by now.
                let _ = kill_process(pid, signal);
            }
        }
        !members.is_empty()
    })
    .await
    .unwrap_or(false)
}

/// Live processes of a session, except process 1 and the runner. Blocking.
pub fn members(session: u32) -> Vec<u32> {
    let own = std::process::id();
    let Ok(entries) = fs_err::read_dir("/proc") else {
        return Vec::new();
    };
    entries
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<u32>().ok())
        .filter(|&pid| pid != 1 && pid != own)
        .filter(|pid| {
            let stat = fs_err::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
            parse_stat(&stat).is_some_and(|(state, of)| of == session && !matches!(state, 'Z' | 'X'))
        })
        .collect()
}

/// State and session of a line of `/proc/<pid>/stat`, whose second field may hold anything in parentheses.
fn parse_stat(stat: &str) -> Option<(char, u32)> {
    let (_, rest) = stat.rsplit_once(')')?;
    let mut fields = rest.split_whitespace();
    let state = fields.next()?.chars().next()?;
    let session = fields.nth(2)?.parse().ok()?;
    Some((state, session))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stat_lines() {
        assert_eq!(
            parse_stat("12 (a) b (c)) S 1 12 7 34816 12 4194304"),
            Some(('S', 7))
        );
        assert_eq!(parse_stat("12 (sh) Z 1 12 12 0"), Some(('Z', 12)));
        assert_eq!(parse_stat(""), None);
    }
}
