//! Says in the log that telemetry cannot be sent: once, then now and then, and when it can be again.

use std::fmt;
use std::time::Duration;

use dstack_system::Locked;
use tokio::time::Instant;

/// How often a failure that lasts is said again.
const REPEAT_INTERVAL: Duration = Duration::from_secs(600);

#[derive(Debug, Default)]
struct State {
    failures: u64,
    said: Option<Instant>,
}

/// What is to be said.
#[derive(Debug, PartialEq, Eq)]
enum Say {
    Nothing,
    /// That so many attempts have failed since it last worked.
    Failing(u64),
    /// That it works again, after so many failed attempts.
    Recovered(u64),
}

impl State {
    fn note(&mut self, failed: bool, now: Instant) -> Say {
        if !failed {
            let failures = std::mem::take(&mut self.failures);
            let said = self.said.take().is_some();
            return if said {
                Say::Recovered(failures)
            } else {
                Say::Nothing
            };
        }
        self.failures += 1;
        if self
            .said
            .is_some_and(|said| now.duration_since(said) < REPEAT_INTERVAL)
        {
            return Say::Nothing;
        }
        self.said = Some(now);
        Say::Failing(self.failures)
    }
}

/// FailureReporter about one receiver.
#[derive(Debug)]
pub(crate) struct FailureReporter {
    what: &'static str,
    state: Locked<State>,
}

impl FailureReporter {
    /// About what is sent so.
    pub(crate) fn about(what: &'static str) -> Self {
        Self {
            what,
            state: Locked::default(),
        }
    }

    /// Looks at how an attempt ended.
    pub(crate) fn note(&self, failure: Option<&dyn fmt::Display>) {
        let mut state = self.state.lock();
        let say = state.note(failure.is_some(), Instant::now());
        drop(state);
        let what = self.what;
        match (say, failure) {
            (Say::Failing(attempts), Some(error)) => tracing::warn!(
                telemetry = what,
                %error,
                attempts,
                "telemetry cannot be sent: tried again, and what finds no room in memory meanwhile is lost"
            ),
            (Say::Recovered(attempts), _) => {
                tracing::info!(
                    telemetry = what,
                    failed_attempts = attempts,
                    "telemetry is sent again"
                );
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_is_said_now_and_then_and_its_end_once() {
        let mut state = State::default();
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        assert_eq!(state.note(false, at(0)), Say::Nothing);
        assert_eq!(state.note(true, at(1)), Say::Failing(1));
        assert_eq!(state.note(true, at(2)), Say::Nothing);
        assert_eq!(state.note(true, at(600)), Say::Nothing);
        assert_eq!(state.note(true, at(601)), Say::Failing(4));
        assert_eq!(state.note(false, at(602)), Say::Recovered(4));
        assert_eq!(state.note(false, at(603)), Say::Nothing);
        assert_eq!(state.note(true, at(604)), Say::Failing(1), "said anew");
    }
}
