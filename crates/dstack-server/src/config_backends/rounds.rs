//! Configuring that does not hold up the server: all backends side by side, and again where a cloud could not be asked.

use std::time::Duration;

use dstack_system::{Locked, task};
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep, timeout_at};
use tokio_util::sync::CancellationToken;

use super::configure::{Listed, Trouble};

/// Longest pause between two tries.
const MAX_RETRY_INTERVAL: Duration = Duration::from_secs(600);

/// How long is waited for what.
#[derive(Debug, Clone, Copy)]
pub struct Waits {
    /// For all backends that are new or changed, before the server goes on without those that are not configured by then.
    pub start: Duration,
    /// Before the second try; each pause is twice the one before, up to ten minutes.
    pub retry_interval: Duration,
}

impl Default for Waits {
    fn default() -> Self {
        Self {
            start: Duration::from_secs(10),
            retry_interval: Duration::from_secs(30),
        }
    }
}

/// Configures what the present file lists, until the server stops or the file is applied again.
#[derive(Debug, Default)]
pub(crate) struct Rounds {
    waits: Waits,
    stop: CancellationToken,
    present: Locked<CancellationToken>,
}

impl Rounds {
    pub(crate) fn new(waits: Waits, stop: CancellationToken) -> Self {
        Self {
            waits,
            present: Locked::new(stop.child_token()),
            stop,
        }
    }

    /// A round for the file as it is now. What the one before has not done yet is given up.
    pub(crate) fn begin(&self) -> Round {
        let next = self.stop.child_token();
        std::mem::replace(&mut *self.present.lock(), next.clone()).cancel();
        Round {
            waits: self.waits,
            stop: next,
            under_way: Vec::new(),
        }
    }
}

/// Backends that are being configured.
#[derive(Debug)]
pub(crate) struct Round {
    waits: Waits,
    stop: CancellationToken,
    under_way: Vec<UnderWay>,
}

#[derive(Debug)]
struct UnderWay {
    project: String,
    kind: String,
    /// Told after the first try, or dropped.
    tried: oneshot::Receiver<()>,
}

impl Round {
    pub(super) fn configure(&mut self, listed: Listed) {
        let (tell, tried) = oneshot::channel();
        self.under_way.push(UnderWay {
            project: listed.project().to_owned(),
            kind: listed.type_name().to_owned(),
            tried,
        });
        let (stop, pause) = (self.stop.clone(), self.waits.retry_interval);
        task::spawn("configure a backend of config.yml", async move {
            stop.run_until_cancelled(until_configured(listed, tell, pause))
                .await;
        });
    }

    /// Waits until each backend has been tried once, but not for long.
    pub(crate) async fn settle(self) {
        let end = Instant::now() + self.waits.start;
        for UnderWay { project, kind, tried } in self.under_way {
            if timeout_at(end, tried).await.is_err() {
                tracing::warn!(
                    project.name = project,
                    backend.r#type = kind,
                    "The cloud of this backend has not answered within {} s. The server goes on; the backend is there as soon as its \
                     cloud has accepted the configuration",
                    self.waits.start.as_secs()
                );
            }
        }
    }
}

/// Tries until it is configured, or cannot be until the file is another.
async fn until_configured(listed: Listed, tried: oneshot::Sender<()>, mut pause: Duration) {
    let (mut tried, mut said) = (Some(tried), None);
    loop {
        let done = listed.configure().await;
        let is_first = tried.take().map(|tried| tried.send(())).is_some();
        let (text, is_lasting) = match done {
            Ok(()) if is_first => return,
            Ok(()) => {
                tracing::info!(
                    project.name = listed.project(),
                    backend.r#type = listed.type_name(),
                    "This backend is configured now"
                );
                return;
            }
            Err(Trouble::Lasting(text)) => (text, true),
            Err(Trouble::Passing(text)) => (format!("{text}. It is tried again"), false),
        };
        if said.as_ref() != Some(&text) {
            tracing::warn!(
                project.name = listed.project(),
                backend.r#type = listed.type_name(),
                "{text}"
            );
        }
        if is_lasting {
            return;
        }
        said = Some(text);
        sleep(pause).await;
        pause = (pause * 2).min(MAX_RETRY_INTERVAL);
    }
}
