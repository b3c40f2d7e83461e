//! A machine of a cloud that nobody needs any more ends itself: its server, which would have ended it, may be gone for good, and it
//! costs money. It does so only where it is asked to: hosts of users never are.
//!
//! It is needed while a request that may be answered or a stream is open, and while a task is not over, or may not be for all that is known.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use dstack_agent_api::shim::TaskStatus;
use tokio::sync::{broadcast, watch};
use tokio::time::{Instant, sleep, sleep_until, timeout};

use crate::tasks::Tasks;

/// After an attempt, until the machine is gone or the next is made.
const AGAIN: Duration = Duration::from_secs(60);

/// A command that ends the machine takes no longer, or hangs.
const COMMAND_LIMIT: Duration = Duration::from_secs(60);

/// Who needs the machine.
#[derive(Debug, Clone, Copy)]
struct State {
    holders: usize,
    /// When the last one began or ended.
    changed: Instant,
}

/// Counts those who need the machine. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Needed(Arc<watch::Sender<State>>);

impl Default for Needed {
    fn default() -> Self {
        Self(Arc::new(watch::Sender::new(State {
            holders: 0,
            changed: Instant::now(),
        })))
    }
}

/// One who needs the machine, until this is dropped.
#[derive(Debug)]
pub struct Hold(Needed);

impl Needed {
    /// One more needs the machine.
    pub fn hold(&self) -> Hold {
        self.change(|holders| holders + 1);
        Hold(self.clone())
    }

    fn change(&self, holders: impl FnOnce(usize) -> usize) {
        self.0.send_modify(|state| {
            *state = State {
                holders: holders(state.holders),
                changed: Instant::now(),
            };
        });
    }

    /// Is one who needs the machine as long as a task is not over.
    pub async fn hold_while_tasks_run(self, tasks: Tasks) {
        let mut hold = Some(self.hold());
        tasks.restored().await;
        loop {
            let (now, mut changes) = tasks.subscribe();
            let runs = now.iter().any(|task| task.status != TaskStatus::Terminated);
            hold = runs.then(|| hold.take().unwrap_or_else(|| self.hold()));
            if matches!(changes.recv().await, Err(broadcast::error::RecvError::Closed)) {
                return;
            }
        }
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.0.change(|holders| holders.saturating_sub(1));
    }
}

/// How the machine is ended.
#[async_trait]
pub trait Ending: Send + Sync {
    /// Ends it. Returns when that was begun, or could not be.
    async fn end(&self);
}

/// A command for `/bin/sh`.
#[derive(Debug, Clone)]
pub struct EndingCommand(pub String);

#[async_trait]
impl Ending for EndingCommand {
    async fn end(&self) {
        let mut command = tokio::process::Command::new("/bin/sh");
        command.arg("-c").arg(&self.0).stdin(std::process::Stdio::null());
        let ended = timeout(COMMAND_LIMIT, command.kill_on_drop(true).status()).await;
        let late = |_| Err(std::io::ErrorKind::TimedOut.into());
        match ended.unwrap_or_else(late) {
            Ok(status) if status.success() => {}
            Ok(status) => tracing::error!(%status, command = self.0, "the machine was not ended"),
            Err(error) => tracing::error!(%error, "the machine was not ended"),
        }
    }
}

/// Ends the machine once nobody has needed it for so long; runs for ever.
pub async fn end_when_not_needed(needed: Needed, after: Duration, ending: &dyn Ending) {
    let mut changes = needed.0.subscribe();
    loop {
        let state = *changes.borrow_and_update();
        let quiet = async {
            match state.holders {
                0 => sleep_until(state.changed + after).await,
                _ => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            _ = changes.changed() => {}
            () = quiet => {
                tracing::warn!(silent_s = after.as_secs(), "nobody needs this machine: it ends itself");
                ending.end().await;
                sleep(AGAIN).await;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    const AFTER: Duration = Duration::from_secs(600);

    /// Notes when it was asked to end the machine, and does not.
    #[derive(Default)]
    struct Noted(Mutex<Vec<Instant>>);

    #[async_trait]
    impl Ending for Noted {
        async fn end(&self) {
            self.0.lock().unwrap().push(Instant::now());
        }
    }

    /// Seconds after its start at which a machine was ended that is used as `story` says, within the time it takes and an hour.
    async fn endings(story: impl AsyncFnOnce(Needed)) -> Vec<u64> {
        let (needed, noted, began) = (Needed::default(), Noted::default(), Instant::now());
        let told = async {
            story(needed.clone()).await;
            sleep(Duration::from_secs(3600)).await;
        };
        tokio::select! {
            () = end_when_not_needed(needed.clone(), AFTER, &noted) => {}
            () = told => {}
        }
        let times = noted.0.lock().unwrap();
        times.iter().map(|at| (*at - began).as_secs()).collect()
    }

    async fn seconds(count: u64) {
        sleep(Duration::from_secs(count)).await;
    }

    #[tokio::test(start_paused = true)]
    async fn a_machine_that_nobody_needs_ends_in_time_and_tries_again() {
        let ended = endings(async |_| {}).await;
        assert_eq!(ended[..3], [600, 660, 720]);
    }

    #[tokio::test(start_paused = true)]
    async fn each_request_gives_it_its_whole_time_again() {
        let requests = async |needed: Needed| {
            for _ in 0..5 {
                seconds(599).await;
                drop(needed.hold());
            }
        };
        assert_eq!(endings(requests).await[0], 5 * 599 + 600);
    }

    #[tokio::test(start_paused = true)]
    async fn it_stays_while_anything_is_open_and_its_whole_time_beyond() {
        let overlapping = async |needed: Needed| {
            let stream = needed.hold();
            seconds(5000).await;
            let task = needed.hold();
            drop(stream);
            seconds(100_000).await;
            drop(task);
        };
        assert_eq!(endings(overlapping).await[0], 105_600);
        let forever = async |needed: Needed| std::mem::forget(needed.hold());
        assert_eq!(endings(forever).await, [0; 0]);
    }

    /// It was asked to end, and its server came back before it was gone.
    #[tokio::test(start_paused = true)]
    async fn one_that_is_needed_after_all_is_not_ended_again() {
        let late = async |needed: Needed| {
            seconds(630).await;
            std::mem::forget(needed.hold());
        };
        assert_eq!(endings(late).await, [600]);
    }

    /// Time passes by itself while nothing but the command is waited for.
    #[tokio::test(start_paused = true)]
    async fn a_command_that_hangs_is_given_up_and_tried_again() {
        let dir = tempfile::tempdir().unwrap();
        let pids = dir.path().join("pids");
        let command = format!("echo $$ >> {}; exec sleep 100000", pids.display());
        let began = Instant::now();
        EndingCommand(command).end().await;
        assert_eq!(began.elapsed().as_secs(), COMMAND_LIMIT.as_secs());
    }
}
