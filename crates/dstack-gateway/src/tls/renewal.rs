//! What is ordered again, and when.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use dstack_system::{chain, task};
use dstack_units::Time;
use futures_util::{StreamExt as _, stream};
use tokio::sync::watch;
use tokio::time::timeout;

use super::{Certificates, Wanted};
use crate::registry::Registry;

/// Pauses after failures double between these.
const FIRST_PAUSE: Duration = Duration::from_secs(60);
const LONGEST_PAUSE: Duration = Duration::from_secs(6 * 3600);
/// All certificates are looked at this often, whatever happens: clocks are set, and machines sleep.
const LONGEST_WAIT: Duration = Duration::from_secs(3600);
/// Time for an order that nobody waits for.
const ORDER_LIMIT: Duration = Duration::from_secs(300);

/// Orders at a time.
const MOST_AT_ONCE: usize = 4;

/// What failed, how often in a row, and when it is tried again.
type Attempts = HashMap<String, (u32, Time)>;

/// Renews the certificates of all registered host names when a third of their time is left, and orders those that are missing.
pub async fn keep_renewed(certificates: Arc<Certificates>, registry: Arc<Registry>) {
    let mut changes = registry.changes();
    let mut failures = Attempts::new();
    loop {
        changes.mark_unchanged();
        let domains = registry.state().await;
        let domains: Vec<String> = domains.https_domains().map(str::to_owned).collect();
        failures.retain(|domain, _| domains.contains(domain));
        let waits = |domain: &&String| {
            failures
                .get(*domain)
                .is_some_and(|(_, again)| certificates.clock.now() < *again)
        };
        let due: Vec<String> = domains.iter().filter(|domain| !waits(domain)).cloned().collect();
        let renewals = stream::iter(due).map(|domain| certificates.renewed(domain));
        let renewed: Vec<_> = renewals.buffer_unordered(MOST_AT_ONCE).collect().await;
        for (domain, problem) in renewed {
            certificates.note(domain, problem, &mut failures);
        }
        let next = domains
            .iter()
            .filter_map(|domain| certificates.due(domain, &failures))
            .min();
        wait(&certificates, next, &mut changes).await;
    }
}

async fn wait(certificates: &Certificates, next: Option<Time>, changes: &mut watch::Receiver<()>) {
    let wait = next.map_or(LONGEST_WAIT, |next| next.since(certificates.clock.now()));
    // Somebody who registers a service orders its certificate himself: a change only tells that there is another one to look at.
    let _ = timeout(wait.min(LONGEST_WAIT), changes.changed()).await;
}

impl Certificates {
    /// When a certificate is to be looked at; `None`: not before something changes.
    fn due(&self, domain: &str, failures: &Attempts) -> Option<Time> {
        match failures.get(domain) {
            Some((_, again)) => Some(*again),
            None => {
                let own = self.shown.of_name(domain).map(|own| own.validity.renewal());
                let of_level = self
                    .shown
                    .of_level(domain)
                    .map(|of_level| of_level.validity.until);
                own.max(of_level)
            }
        }
    }

    /// Orders a certificate if it is time to; returns why there is none.
    async fn renewed(self: &Arc<Self>, domain: String) -> (String, Option<String>) {
        if self.has(&domain, Wanted::Renewed) {
            return (domain, None);
        }
        let (this, name) = (Arc::clone(self), domain.clone());
        let ordering = task::spawn("renewal of a certificate", async move {
            this.obtain(&name, Wanted::Renewed).await
        });
        let problem = match timeout(ORDER_LIMIT, ordering).await {
            Ok(Ok(Some(Ok(())))) if self.has(&domain, Wanted::Renewed) => return (domain, None),
            // Without a pause it would be ordered again and again.
            Ok(Ok(Some(Ok(())))) => {
                "the new certificate is due for renewal as well: is the clock right?".to_owned()
            }
            Ok(Ok(Some(Err(error)))) => chain(&error).to_string(),
            Ok(_) => task::Panicked.to_string(),
            Err(_) => "the certificate authority is too slow".to_owned(),
        };
        (domain, Some(problem))
    }

    /// Remembers when what failed is tried again.
    fn note(&self, domain: String, problem: Option<String>, failures: &mut Attempts) {
        let Some(problem) = problem else {
            failures.remove(&domain);
            return;
        };
        let count = failures
            .get(&domain)
            .map_or(1, |(count, _)| count.saturating_add(1));
        let pause = pause(count).mul_f64(0.5 + self.random.fraction() / 2.0);
        tracing::error!(
            domain,
            problem,
            pause = pause.as_secs(),
            "a certificate is not renewed"
        );
        // The account may be what is wrong.
        self.authority.forget();
        failures.insert(domain, (count, self.clock.now() + pause));
    }
}

fn pause(failures: u32) -> Duration {
    let doublings = failures.saturating_sub(1).min(16);
    (FIRST_PAUSE * (1 << doublings)).min(LONGEST_PAUSE)
}

#[cfg(test)]
mod tests {
    use dstack_system::{Clock as _, Random, SystemClock};
    use rcgen::{CertificateParams, KeyPair};
    use tokio::time::Instant;

    use super::super::account::CALL_LIMIT;
    use super::super::{TlsSettings, files};
    use super::*;

    /// Certificates in this directory, ordered at this authority.
    fn certificates(dir: &std::path::Path, authority: String) -> Arc<Certificates> {
        let settings = TlsSettings {
            dir: dir.to_owned(),
            certbot: dir.join("certbot"),
            authority,
            authority_root: None,
        };
        Arc::new(Certificates::new(
            settings,
            Arc::new(SystemClock),
            Random::system(),
        ))
    }

    /// A certificate that is in its last third.
    fn due(name: &str) -> files::Certificate {
        let mut params = CertificateParams::new(vec![name.to_owned()]).unwrap();
        let now = SystemClock
            .now()
            .to_jiff()
            .to_zoned(jiff::tz::TimeZone::UTC)
            .date();
        let day = |days: i64| {
            let date = now.checked_add(jiff::Span::new().days(days)).unwrap();
            rcgen::date_time_ymd(
                date.year().into(),
                date.month().unsigned_abs(),
                date.day().unsigned_abs(),
            )
        };
        (params.not_before, params.not_after) = (day(-80), day(10));
        let key = KeyPair::generate().unwrap();
        let signed = params.self_signed(&key).unwrap();
        let pem = format!("{}{}", signed.pem(), key.serialize_pem());
        files::read(&dstack_system::Secret::new(pem)).unwrap()
    }

    #[tokio::test]
    async fn under_a_certificate_of_ones_own_for_the_level_none_is_ordered_as_long_as_it_holds() {
        let dir = tempfile::tempdir().unwrap();
        let certificates = certificates(dir.path(), "https://127.0.0.1:1/directory".to_owned());
        let of_level = due("*.example.com");
        let until = of_level.validity.until;
        certificates.shown.add("*.example.com", of_level);
        let (_, problem) = certificates.renewed("web.example.com".to_owned()).await;
        assert_eq!(problem, None);
        assert_eq!(certificates.due("web.example.com", &Attempts::new()), Some(until));
        certificates.shown.add("web.example.org", due("web.example.org"));
        let (_, problem) = certificates.renewed("web.example.org".to_owned()).await;
        assert!(problem.is_some(), "of its own, it is");
    }

    #[tokio::test(start_paused = true)]
    async fn an_authority_that_says_nothing_holds_up_nothing_else() {
        let dir = tempfile::tempdir().unwrap();
        let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = silent.local_addr().unwrap().port();
        let certificates = certificates(dir.path(), format!("https://localhost:{port}/directory"));
        let mut failures = Attempts::new();
        for domain in ["a.example.com", "b.example.com"] {
            let started = Instant::now();
            let (domain, problem) = certificates.renewed(domain.to_owned()).await;
            let problem = problem.unwrap();
            assert!(problem.contains("has not answered"), "{problem}");
            assert_eq!(started.elapsed().as_secs(), CALL_LIMIT.as_secs());
            certificates.note(domain, Some(problem), &mut failures);
        }
        // Also while somebody waits for it.
        let ordering = task::spawn("order", {
            let certificates = Arc::clone(&certificates);
            async move { certificates.ensure("c.example.com").await }
        });
        tokio::time::sleep(Duration::from_secs(1)).await;
        certificates.authority.forget();
        assert!(!ordering.is_finished());
    }

    #[test]
    fn pauses_double_up_to_six_hours() {
        let minutes: Vec<u64> = [1, 2, 3, 9, 10, u32::MAX]
            .map(|failures| pause(failures).as_secs() / 60)
            .into();
        assert_eq!(minutes, [1, 2, 4, 256, 360, 360]);
    }
}
