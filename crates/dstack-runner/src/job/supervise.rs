//! The commands from their start to the last byte of their output.

use std::os::fd::OwnedFd;
use std::process::ExitStatus;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::process::Child;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, sleep_until, timeout};

use dstack_system::task;

use crate::output::{PumpEnd, Sinks, pump};
use crate::pty::PtyProcess;
use crate::session;

use super::{Ending, stopped};

/// Processes may hold the terminal open for so long after the main command exited; then they are ended. Linux hangs up
/// the terminal when the leader of its session exits, so that this is rare.
const BACKGROUND_GRACE: Duration = Duration::from_secs(10);
/// A process that left the session may hold the terminal open: so long is waited for it.
const LAST_OUTPUT_GRACE: Duration = Duration::from_secs(1);

/// What ended the commands.
enum Cause {
    Exited(ExitStatus),
    Stopped,
    MaxDuration,
    Quota,
    Broken,
}

/// Waits for the commands to end, or ends them; all output is stored when this returns. `max_duration` in seconds.
pub(super) async fn supervise(
    process: PtyProcess,
    sinks: Sinks,
    max_duration: Option<i64>,
    mut stop: watch::Receiver<bool>,
) -> Ending {
    let limit = max_duration
        .and_then(|seconds| u64::try_from(seconds).ok())
        .filter(|&seconds| seconds > 0);
    let deadline = limit.map(|seconds| Instant::now() + Duration::from_secs(seconds));
    let quota = sinks.quota.limit().unwrap_or_default();
    let PtyProcess {
        mut child,
        session,
        master,
    } = process;
    let master = Arc::new(master);
    let stopping = Arc::clone(&sinks.stopping);
    let Ok(mut output) = Output::start(Arc::clone(&master), sinks) else {
        session::kill(session).await;
        return Ending::failed();
    };
    let cause = wait(&mut child, &mut output, &mut stop, deadline).await;
    match cause {
        Cause::Exited(_) => {
            tokio::select! {
                () = output.ended() => {}
                () = sleep(BACKGROUND_GRACE) => {}
                () = stopped(&mut stop) => {}
            }
            // Nothing of the job outlives it; silent processes neither.
            session::clean_up(session).await;
        }
        Cause::Stopped | Cause::MaxDuration => {
            stopping.store(true, Ordering::Relaxed);
            let reaped = async {
                let _ = child.wait().await;
            };
            tokio::join!(session::stop(session, master), async {
                let _ = timeout(Duration::from_secs(20), reaped).await;
            });
        }
        Cause::Quota | Cause::Broken => session::kill(session).await,
    }
    let over_quota = matches!(output.finish().await, PumpEnd::Quota);
    match cause {
        Cause::Stopped => Ending::stopped(),
        Cause::MaxDuration => Ending::max_duration(),
        _ if over_quota => Ending::quota(quota),
        Cause::Exited(status) => Ending::exited(status),
        Cause::Quota | Cause::Broken => Ending::failed(),
    }
}

async fn wait(
    child: &mut Child,
    output: &mut Output,
    stop: &mut watch::Receiver<bool>,
    deadline: Option<Instant>,
) -> Cause {
    loop {
        let too_long = async {
            match deadline {
                Some(deadline) => sleep_until(deadline).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            status = child.wait() => return status.map_or(Cause::Broken, Cause::Exited),
            () = stopped(stop) => return Cause::Stopped,
            () = too_long => return Cause::MaxDuration,
            () = output.ended(), if output.end.is_none() => match output.end {
                Some(PumpEnd::Quota) => return Cause::Quota,
                Some(PumpEnd::Failed(_)) => return Cause::Broken,
                // The command closed its terminal and goes on without.
                _ => {}
            },
        }
    }
}

/// The pump in its thread.
struct Output {
    pump: JoinHandle<Option<Result<PumpEnd, task::Panicked>>>,
    tell: Option<std::io::PipeWriter>,
    end: Option<PumpEnd>,
}

impl Output {
    fn start(master: Arc<OwnedFd>, sinks: Sinks) -> std::io::Result<Self> {
        let (until, tell) = std::io::pipe()?;
        let until = OwnedFd::from(until);
        let pump = task::spawn("job output", async move {
            task::blocking("job output", move || pump(&master, &until, sinks)).await
        });
        Ok(Self {
            pump,
            tell: Some(tell),
            end: None,
        })
    }

    /// Waits until the pump ended by itself. Safe to cancel.
    async fn ended(&mut self) {
        if self.end.is_none() {
            let end = (&mut self.pump).await.ok().flatten().and_then(Result::ok);
            self.end =
                Some(end.unwrap_or_else(|| PumpEnd::Failed(std::io::Error::other("the pump panicked"))));
        }
    }

    /// Waits for the last output; not for ever.
    async fn finish(mut self) -> PumpEnd {
        if timeout(LAST_OUTPUT_GRACE, self.ended()).await.is_err() {
            self.tell.take();
            self.ended().await;
        }
        self.end.unwrap_or(PumpEnd::Eof)
    }
}
