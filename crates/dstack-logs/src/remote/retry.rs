//! Patience with a store that is busy or away for a moment.

use std::error::Error;
use std::time::Duration;

use dstack_system::Random;

use crate::LogError;

/// Tries of a call. What fails for longer is left to whoever asked: the engine appends again, a reader asks again.
const TRIES: u32 = 5;
/// Pause after the first try; each further one is twice as long, and all vary.
const PAUSE: Duration = Duration::from_millis(200);

/// Why a call failed.
#[derive(Debug)]
pub(crate) enum Failure {
    /// For now.
    Passing(Box<dyn Error + Send + Sync>),
    /// It will fail again.
    Lasting(LogError),
}

impl Failure {
    /// A failure that another try may not have: no connection, a timeout.
    pub(crate) fn of_transport(error: reqwest::Error) -> Self {
        // The address may have a password in it.
        Self::Passing(Box::new(error.without_url()))
    }

    /// What a status other than 2xx means by the rules of HTTP; `text` is what the store said.
    pub(crate) fn of_status(store: &'static str, status: reqwest::StatusCode, text: &str) -> Self {
        let said = Said::new(status.as_u16(), text);
        let passing = status.is_server_error() || [408, 429].contains(&status.as_u16());
        match passing {
            true => Self::Passing(Box::new(said)),
            false => Self::Lasting(said.of(store)),
        }
    }
}

/// A refusal in the store's own words.
#[derive(Debug, thiserror::Error)]
#[error("it answered {status}: {text}")]
pub(crate) struct Said {
    pub(crate) status: u16,
    text: String,
}

impl Said {
    /// Long answers (pages of proxies) are cut.
    pub(crate) fn new(status: u16, text: &str) -> Self {
        Self {
            status,
            text: text.chars().take(500).collect(),
        }
    }

    pub(crate) fn of(self, store: &'static str) -> LogError {
        LogError::remote(store)(self)
    }
}

/// Counts the tries of a call.
#[derive(Debug)]
pub(crate) struct Patience {
    store: &'static str,
    tries: u32,
    pause: Duration,
}

impl Patience {
    pub(crate) const fn new(store: &'static str) -> Self {
        Self {
            store,
            tries: 1,
            pause: PAUSE,
        }
    }

    /// Waits for the next try.
    ///
    /// # Errors
    /// There shall be none: the failure lasts, or there were enough.
    pub(crate) async fn wait(&mut self, failure: Failure) -> Result<(), LogError> {
        let store = self.store;
        let source = match failure {
            Failure::Lasting(error) => return Err(error),
            Failure::Passing(source) => source,
        };
        if self.tries == TRIES {
            return Err(LogError::Remote { store, source });
        }
        tracing::debug!(store, tries = self.tries, error = %source, "the log store is asked again");
        let jitter = 0.75 + Random::system().fraction() / 2.0;
        tokio::time::sleep(self.pause.mul_f64(jitter)).await;
        self.pause *= 2;
        self.tries += 1;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::Instant;

    use super::*;

    fn busy() -> Failure {
        Failure::of_status("S", reqwest::StatusCode::TOO_MANY_REQUESTS, "slow down")
    }

    #[tokio::test(start_paused = true)]
    async fn what_passes_is_waited_for_with_growing_pauses_but_not_for_ever() {
        let mut patience = Patience::new("S");
        for wanted in [200, 400, 800, 1600] {
            let begin = Instant::now();
            patience.wait(busy()).await.unwrap();
            let (pause, wanted) = (begin.elapsed(), Duration::from_millis(wanted));
            assert!(
                pause >= wanted.mul_f64(0.75) && pause <= wanted.mul_f64(1.26),
                "{pause:?}"
            );
        }
        assert!(matches!(
            patience.wait(busy()).await,
            Err(LogError::Remote { .. })
        ));
    }

    #[tokio::test]
    async fn what_lasts_is_not_tried_again() {
        for (status, lasts) in [(400, true), (403, true), (404, true), (408, false), (503, false)] {
            let status = reqwest::StatusCode::from_u16(status).unwrap();
            let failure = Failure::of_status("S", status, "no");
            assert_eq!(matches!(failure, Failure::Lasting(_)), lasts, "{status}");
        }
    }
}
