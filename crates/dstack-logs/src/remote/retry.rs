//! Patience with a store that is busy or away for a moment.

use std::error::Error;
use std::time::Duration;

use backon::{BackoffBuilder as _, ExponentialBackoff, ExponentialBuilder};
use reqwest::StatusCode;

use crate::LogError;

/// Tries of a call after the first. What fails for longer is left to whoever asked: the engine appends again, a reader asks
/// again.
const FURTHER_TRIES: usize = 4;
/// Pause after the first try; each further one is twice as long, and all are longer by up to as much again.
const PAUSE: Duration = Duration::from_millis(150);
/// A store that wants to be left alone for longer than this has failed.
const LONGEST_PAUSE: Duration = Duration::from_secs(10);

/// Why a call failed.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The call may succeed when it is made again.
    Passing {
        source: Box<dyn Error + Send + Sync>,
        /// When the store wants to be asked again.
        after: Option<Duration>,
    },
    /// It will fail again.
    Lasting(LogError),
}

impl Failure {
    /// One that another try may not have.
    pub(crate) fn passing(source: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self::Passing {
            source: source.into(),
            after: None,
        }
    }

    /// No connection, a timeout.
    pub(crate) fn of_transport(error: reqwest::Error) -> Self {
        // The address may have a password in it.
        Self::passing(error.without_url())
    }

    /// What a status other than 2xx means by the rules of HTTP; `text` is what the store said.
    pub(crate) fn of_status(store: &'static str, head: Head, text: &str) -> Self {
        let said = Said::new(head.status.as_u16(), text);
        let passing = head.status.is_server_error() || [408, 429].contains(&head.status.as_u16());
        match passing {
            true => Self::Passing {
                source: Box::new(said),
                after: head.after,
            },
            false => Self::Lasting(said.of(store)),
        }
    }
}

/// What an answer says before its body.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Head {
    pub(crate) status: StatusCode,
    /// `Retry-After`, in seconds; no store sends a date.
    after: Option<Duration>,
}

impl Head {
    pub(crate) fn of(response: &reqwest::Response) -> Self {
        let after = response.headers().get(reqwest::header::RETRY_AFTER);
        let seconds = after.and_then(|value| value.to_str().ok()?.trim().parse().ok());
        Self {
            status: response.status(),
            after: seconds.map(Duration::from_secs),
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

/// How long a call is tried.
#[derive(Debug)]
pub(crate) struct Patience {
    store: &'static str,
    pauses: ExponentialBackoff,
}

impl Patience {
    pub(crate) fn new(store: &'static str) -> Self {
        let pauses = ExponentialBuilder::default()
            .with_min_delay(PAUSE)
            .with_max_times(FURTHER_TRIES)
            .with_jitter();
        Self {
            store,
            pauses: pauses.build(),
        }
    }

    /// Waits for the next try.
    ///
    /// # Errors
    /// There shall be none: the failure lasts, or there were enough.
    pub(crate) async fn wait(&mut self, failure: Failure) -> Result<(), LogError> {
        let store = self.store;
        let (source, after) = match failure {
            Failure::Lasting(error) => return Err(error),
            Failure::Passing { source, after } => (source, after.unwrap_or_default()),
        };
        let pause = self.pauses.next().map(|pause| pause.max(after));
        match pause.filter(|pause| *pause <= LONGEST_PAUSE) {
            Some(pause) => {
                tracing::debug!(store, ?pause, error = %source, "the log store is asked again");
                tokio::time::sleep(pause).await;
                Ok(())
            }
            None => Err(LogError::Away { store, source }),
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::Instant;

    use super::*;

    fn head(status: u16, headers: &[(&str, &str)]) -> Head {
        let mut answer = http::Response::builder().status(status);
        for (name, value) in headers {
            answer = answer.header(*name, *value);
        }
        Head::of(&answer.body("").unwrap().into())
    }

    fn busy(headers: &[(&str, &str)]) -> Failure {
        Failure::of_status("S", head(429, headers), "slow down")
    }

    #[tokio::test(start_paused = true)]
    async fn what_passes_is_waited_for_with_growing_pauses_but_not_for_ever() {
        let mut patience = Patience::new("S");
        for wanted in [150, 300, 600, 1200] {
            let begin = Instant::now();
            patience.wait(busy(&[])).await.unwrap();
            let (pause, wanted) = (begin.elapsed(), Duration::from_millis(wanted));
            assert!(pause >= wanted && pause <= wanted.mul_f64(2.01), "{pause:?}");
        }
        let over = patience.wait(busy(&[])).await;
        assert!(matches!(over, Err(LogError::Away { .. })));
    }

    #[tokio::test(start_paused = true)]
    async fn a_store_that_says_when_to_come_back_is_believed() {
        let (mut patience, begin) = (Patience::new("S"), Instant::now());
        patience.wait(busy(&[("Retry-After", "7")])).await.unwrap();
        let pause = begin.elapsed();
        assert!(
            pause >= Duration::from_secs(7) && pause < Duration::from_millis(7_010),
            "{pause:?}"
        );
        // Nobody waits for an hour.
        let too_long = patience.wait(busy(&[("Retry-After", "3600")])).await;
        assert!(matches!(too_long, Err(LogError::Away { .. })));
        let date = [("Retry-After", "Wed, 21 Oct 2015 07:28:00 GMT")];
        Patience::new("S").wait(busy(&date)).await.unwrap();
    }

    #[tokio::test]
    async fn what_lasts_is_not_tried_again() {
        for (status, lasts) in [(400, true), (403, true), (404, true), (408, false), (503, false)] {
            let failure = Failure::of_status("S", head(status, &[]), "no");
            assert_eq!(matches!(failure, Failure::Lasting(_)), lasts, "{status}");
        }
    }
}
