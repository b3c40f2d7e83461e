//! Orders that failed a moment ago: whoever wants the same certificate is told so, and the authority is not asked again at once, since
//! it counts failures.

use std::collections::HashMap;
use std::time::Duration;

use dstack_units::Time;

/// For so long a failure is remembered.
const MEMORY: Duration = Duration::from_secs(60);

/// Why there is no certificate, and when that was found, by host name.
#[derive(Debug, Default)]
pub(super) struct Failures(HashMap<String, (Time, String)>);

impl Failures {
    /// Why the last order of a certificate failed, if that was a moment ago.
    pub(super) fn last(&self, domain: &str, now: Time) -> Option<String> {
        let (at, problem) = self.0.get(domain)?;
        is_recent(*at, now).then(|| problem.clone())
    }

    /// Remembers why an order failed.
    pub(super) fn note(&mut self, domain: &str, problem: String, now: Time) {
        self.0.retain(|_, (at, _)| is_recent(*at, now));
        self.0.insert(domain.to_owned(), (now, problem));
    }

    /// What failed may work now.
    pub(super) fn forget_all(&mut self) {
        self.0.clear();
    }
}

fn is_recent(at: Time, now: Time) -> bool {
    // A clock that was set back must not make it longer.
    at <= now && now < at + MEMORY
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_is_remembered_for_a_minute() {
        let start = Time::from(jiff::Timestamp::UNIX_EPOCH);
        let after = |seconds| start + Duration::from_secs(seconds);
        let mut failures = Failures::default();
        failures.note("a", "no".to_owned(), after(100));
        let last = |failures: &Failures, seconds| failures.last("a", after(seconds)).is_some();
        assert_eq!(
            [99, 100, 159, 160].map(|at| last(&failures, at)),
            [false, true, true, false]
        );
        failures.note("b", "no".to_owned(), after(160));
        assert_eq!(failures.0.len(), 1, "what is over is forgotten");
        failures.forget_all();
        assert_eq!(failures.last("b", after(160)), None);
    }
}
