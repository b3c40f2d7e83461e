//! Ctrl-C. Until a command asks or draws, it ends the process at once, as the system does it. From then on it ends the command,
//! so that the terminal is left as it was, unless something in the command takes it to do something else.

use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::Notify;

/// Signals are for the whole process: so is this.
static OF_PROCESS: Interrupts = Interrupts::new();

/// From now on Ctrl-C ends the command, not the process.
pub(crate) fn watch() {
    OF_PROCESS.watch();
}

/// Waits for Ctrl-C and takes it: whoever waits does what is to be done then.
pub(crate) async fn ctrl_c() {
    OF_PROCESS.take(signal).await;
}

/// Runs a command to its end; `None`: a Ctrl-C came that nothing in it took.
pub(crate) async fn unless_interrupted<T>(command: impl Future<Output = T>) -> Option<T> {
    OF_PROCESS.unless_interrupted(command, signal).await
}

async fn signal() {
    if tokio::signal::ctrl_c().await.is_err() {
        // It cannot be listened to: the system ends the process.
        std::future::pending::<()>().await;
    }
}

/// Who has taken which signal. `signal` is called to wait for the next one.
struct Interrupts {
    /// How many were taken.
    taken: AtomicU64,
    /// The command has begun to ask or to draw.
    watched: Notify,
}

impl Interrupts {
    const fn new() -> Self {
        Self {
            taken: AtomicU64::new(0),
            watched: Notify::const_new(),
        }
    }

    fn watch(&self) {
        self.watched.notify_one();
    }

    async fn take(&self, signal: impl AsyncFn()) {
        self.watch();
        signal().await;
        self.taken.fetch_add(1, Ordering::Relaxed);
    }

    async fn unless_interrupted<T>(
        &self,
        command: impl Future<Output = T>,
        signal: impl AsyncFn(),
    ) -> Option<T> {
        let not_taken = async {
            self.watched.notified().await;
            loop {
                let before = self.taken.load(Ordering::Relaxed);
                signal().await;
                if self.taken.load(Ordering::Relaxed) == before {
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
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Presses Ctrl-C once everybody listens.
    async fn press(key: &Notify) {
        tokio::task::yield_now().await;
        key.notify_waiters();
    }

    #[tokio::test]
    async fn a_command_that_does_not_take_it_ends() {
        let (interrupts, key) = (Interrupts::new(), Notify::new());
        let command = async {
            interrupts.watch();
            std::future::pending::<()>().await;
        };
        let running = interrupts.unless_interrupted(command, async || key.notified().await);
        let (ended, ()) = tokio::join!(running, press(&key));
        assert_eq!(ended, None);
    }

    #[tokio::test]
    async fn a_command_that_takes_it_goes_on_until_the_next() {
        let (interrupts, key) = (Interrupts::new(), Notify::new());
        let command = async {
            interrupts.take(async || key.notified().await).await;
            tokio::task::yield_now().await;
            5
        };
        let running = interrupts.unless_interrupted(command, async || key.notified().await);
        let (ended, ()) = tokio::join!(running, press(&key));
        assert_eq!(ended, Some(5));
    }
}
