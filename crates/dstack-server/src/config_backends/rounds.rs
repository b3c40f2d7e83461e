//! Configuring that does not hold up the server: all backends side by side, and again where a cloud could not be asked.

use std::sync::Arc;
use std::time::Duration;

use dstack_system::{Locked, Random, task};
use tokio::sync::{Semaphore, oneshot};
use tokio::time::{Instant, sleep, timeout_at};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::configure::{Listed, Trouble};

/// Longest pause between two tries.
const MAX_RETRY_INTERVAL: Duration = Duration::from_secs(600);

/// How long is waited for what.
#[derive(Debug, Clone, Copy)]
pub struct Waits {
    /// For all backends that are new or changed, before the server goes on without those that are not configured by then.
    pub start: Duration,
    /// Before the second try, at most; each pause is twice the one before, up to ten minutes.
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

/// So many clouds are asked at a time.
const ASKED_AT_ONCE: usize = 32;

/// Configures what the present file lists, until the server stops or the file is applied again.
#[derive(Debug)]
pub(crate) struct Rounds {
    waits: Waits,
    stop: CancellationToken,
    random: Random,
    present: Locked<CancellationToken>,
    places: Arc<Semaphore>,
    /// What is being stored is stored, whatever comes.
    storing: TaskTracker,
}

impl Default for Rounds {
    fn default() -> Self {
        Self::new(Waits::default(), CancellationToken::new(), Random::system())
    }
}

impl Rounds {
    pub(crate) fn new(waits: Waits, stop: CancellationToken, random: Random) -> Self {
        Self {
            waits,
            present: Locked::new(stop.child_token()),
            stop,
            random,
            places: Arc::new(Semaphore::new(ASKED_AT_ONCE)),
            storing: TaskTracker::new(),
        }
    }

    /// A round for the file as it is now. What the one before has not begun to store is given up, and the rest waited for.
    pub(crate) async fn begin(&self) -> Round {
        let next = self.stop.child_token();
        std::mem::replace(&mut *self.present.lock(), next.clone()).cancel();
        self.storing.close();
        self.storing.wait().await;
        self.storing.reopen();
        Round {
            waits: self.waits,
            stop: next,
            random: self.random.clone(),
            places: Arc::clone(&self.places),
            storing: self.storing.clone(),
            under_way: Vec::new(),
        }
    }
}

/// Backends that are being configured.
#[derive(Debug)]
pub(crate) struct Round {
    waits: Waits,
    stop: CancellationToken,
    random: Random,
    places: Arc<Semaphore>,
    storing: TaskTracker,
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
        let tries = Tries {
            listed,
            stop: self.stop.clone(),
            random: self.random.clone(),
            places: Arc::clone(&self.places),
            storing: self.storing.clone(),
        };
        let pause = self.waits.retry_interval;
        task::spawn(
            "configure a backend of config.yml",
            tries.until_configured(tell, pause),
        );
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

/// One backend, until it is configured.
struct Tries {
    listed: Listed,
    stop: CancellationToken,
    random: Random,
    places: Arc<Semaphore>,
    storing: TaskTracker,
}

impl Tries {
    /// Tries until it is configured, or cannot be until the file is another.
    async fn until_configured(mut self, tried: oneshot::Sender<()>, mut pause: Duration) {
        let (mut tried, mut said) = (Some(tried), None);
        while !self.stop.is_cancelled() {
            let done = self.once().await;
            let is_first = tried.take().map(|tried| tried.send(())).is_some();
            let (text, is_lasting) = match done {
                Ok(is_stored) => {
                    if is_stored && !is_first {
                        self.tell_configured();
                    }
                    return;
                }
                Err(Trouble::Lasting(text)) => (text, true),
                Err(Trouble::Passing(text)) => (format!("{text}. It is tried again"), false),
            };
            if said.as_ref() != Some(&text) {
                self.warn(&text);
            }
            if is_lasting {
                return;
            }
            said = Some(text);
            // Not all at once: many projects may share an account.
            let pause_now = pause.mul_f64(0.5 + self.random.fraction() / 2.0);
            self.stop.run_until_cancelled(sleep(pause_now)).await;
            pause = (pause * 2).min(MAX_RETRY_INTERVAL);
        }
    }

    /// Whether something was stored.
    async fn once(&mut self) -> Result<bool, Trouble> {
        let (places, listed) = (&self.places, &mut self.listed);
        let asked = self.stop.run_until_cancelled(async {
            listed.note_before().await?;
            // Never closed.
            let _place = places.acquire().await.ok();
            listed.ask().await
        });
        let Some(accepted) = asked.await.transpose()?.flatten() else {
            return Ok(false);
        };
        let _storing = self.storing.token();
        // After the token: whoever has cancelled it waits for those who have one.
        if self.stop.is_cancelled() {
            return Ok(false);
        }
        self.listed.store(accepted).await
    }

    fn tell_configured(&self) {
        tracing::info!(
            project.name = self.listed.project(),
            backend.r#type = self.listed.type_name(),
            "This backend is configured now"
        );
    }

    fn warn(&self, text: &str) {
        tracing::warn!(
            project.name = self.listed.project(),
            backend.r#type = self.listed.type_name(),
            "{text}"
        );
    }
}
