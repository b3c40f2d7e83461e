//! Ctrl-C. Until a command asks or draws, it ends the process at once, as the system does it. From then on it ends the command,
//! so that the terminal is left as it was, unless something in the command takes it to do something else.

use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::Notify;

/// How many were taken. Signals are for the whole process: so is this.
static TAKEN: AtomicU64 = AtomicU64::new(0);

/// The command has begun to ask or to draw.
static WATCHED: Notify = Notify::const_new();

/// From now on Ctrl-C ends the command, not the process.
pub(crate) fn watch() {
    WATCHED.notify_one();
}

/// Waits for Ctrl-C and takes it: whoever waits does what is to be done then.
pub(crate) async fn ctrl_c() {
    watch();
    signal().await;
    TAKEN.fetch_add(1, Ordering::Relaxed);
}

/// Runs a command to its end; `None`: a Ctrl-C came that nothing in it took.
pub(crate) async fn unless_interrupted<T>(command: impl Future<Output = T>) -> Option<T> {
    let not_taken = async {
        WATCHED.notified().await;
        loop {
            let before = TAKEN.load(Ordering::Relaxed);
            signal().await;
            if TAKEN.load(Ordering::Relaxed) == before {
                return;
            }
        }
    };
    // The command is asked first: it takes the same signal that is seen here.
    tokio::select! {
        biased;
        result = command => Some(result),
        () = not_taken => None,
    }
}

async fn signal() {
    if tokio::signal::ctrl_c().await.is_err() {
        // It cannot be listened to: the system ends the process.
        std::future::pending::<()>().await;
    }
}

#[cfg(test)]
mod tests {
    use rustix::process::{Signal, getpid, kill_process};

    use super::*;

    /// Presses Ctrl-C once everybody listens.
    async fn press() {
        tokio::task::yield_now().await;
        kill_process(getpid(), Signal::INT).unwrap();
    }

    #[tokio::test]
    async fn a_command_that_does_not_take_it_ends() {
        let command = async {
            watch();
            std::future::pending::<()>().await;
        };
        let (ended, ()) = tokio::join!(unless_interrupted(command), press());
        assert_eq!(ended, None);
    }

    #[tokio::test]
    async fn a_command_that_takes_it_goes_on_until_the_next() {
        let command = async {
            ctrl_c().await;
            tokio::task::yield_now().await;
            5
        };
        let (ended, ()) = tokio::join!(unless_interrupted(command), press());
        assert_eq!(ended, Some(5));
    }
}
