//! Certificates: ordered, kept on the disk, renewed before they end, and shown to clients by host name.
//!
//! * `shown` — which certificate is shown for a host name; `files` — certificates on the disk.
//! * `order` — one order of a certificate authority; `account` — who orders there.
//! * `challenges` — what the authority asks this gateway; `validity` — from when to when a certificate holds.
//! * `renewal` — what is ordered again, and when; `failures` — what failed a moment ago, and is not ordered again at once.

mod account;
mod challenges;
mod failures;
mod files;
mod order;
mod renewal;
mod shown;
mod validity;

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use dstack_system::clock::SharedClock;
use dstack_system::{Locked, Random, Secret, chain, task};
use dstack_units::Time;
use rustls::ServerConfig;
use rustls::crypto::ring;
use tokio::time::timeout;

pub use challenges::Challenges;
pub use renewal::keep_renewed;

use account::Authority;
use failures::Failures;
use files::Files;
use order::OrderError;
use shown::Shown;
use validity::Validity;

use crate::registry::Refusal;
use crate::registry::turns::Turns;
use crate::serve::listener::{ALPN_HTTP1, ALPN_HTTP2};
use crate::state::AcmeSettings;

/// Time for an order while somebody waits for it, as dstack 0.22.5 has it.
const ORDER_LIMIT: Duration = Duration::from_secs(40);

/// Where certificates come from, and where they are kept.
#[derive(Debug, Clone)]
pub struct TlsSettings {
    /// Where they are kept.
    pub dir: PathBuf,
    /// Where certbot keeps those of a gateway of dstack 0.22.5.
    pub certbot: PathBuf,
    /// URL of the directory of the authority, where the server names none.
    pub authority: String,
    /// Certificates (PEM) that the authority's server is trusted by; `None`: those of the system.
    pub authority_root: Option<PathBuf>,
}

/// The certificates of this gateway.
#[derive(Debug)]
pub struct Certificates {
    files: Files,
    authority: Authority,
    acme: ArcSwap<AcmeSettings>,
    challenges: Arc<Challenges>,
    shown: Arc<Shown>,
    failures: Locked<Failures>,
    turns: Turns,
    clock: SharedClock,
    random: Random,
}

/// How good a certificate must be, so that no other is ordered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Wanted {
    /// It holds.
    Valid,
    /// It holds, and for more than a third of its time.
    Renewed,
}

impl Wanted {
    /// Whether a certificate is as good now.
    fn is(self, validity: Validity, now: Time) -> bool {
        validity.is_at(now) && (self == Self::Valid || now < validity.renewal())
    }
}

impl Certificates {
    /// Those that are on the disk.
    pub fn new(settings: TlsSettings, clock: SharedClock, random: Random) -> Self {
        let files = Files::new(settings.dir.join("certificates"), settings.certbot);
        let shown = Arc::new(Shown::new(files.all()));
        let accounts = settings.dir.join("acme");
        Self {
            files,
            authority: Authority::new(accounts, settings.authority, settings.authority_root),
            acme: ArcSwap::default(),
            challenges: Arc::default(),
            shown,
            failures: Locked::default(),
            turns: Turns::default(),
            clock,
            random,
        }
    }

    /// What authorities ask this gateway.
    pub const fn challenges(&self) -> &Arc<Challenges> {
        &self.challenges
    }

    /// Orders there from now on.
    pub fn set_acme(&self, acme: AcmeSettings) {
        self.failures.lock().forget_all();
        self.acme.store(Arc::new(acme));
    }

    /// Takes over what certbot has for those of these host names that nothing can be shown for.
    pub async fn take_over(&self, domains: impl IntoIterator<Item = &str>) {
        for domain in domains {
            if self.has(domain, Wanted::Valid) {
                continue;
            }
            if let Err(error) = self.of_certbot(domain, Wanted::Valid).await {
                let error = chain(&error).to_string();
                tracing::warn!(domain, error, "a certificate of certbot is not taken over");
            }
        }
    }

    /// Whether these settings can be used.
    ///
    /// # Errors
    /// They cannot.
    pub fn check(&self, acme: &AcmeSettings) -> Result<(), Refusal> {
        account::external(acme).map(drop).map_err(Refusal::bad)
    }

    /// TLS 1.2 and 1.3 with the certificates that there are at each moment.
    ///
    /// # Errors
    /// Never with the cryptography of this build.
    pub fn server_config(&self) -> Result<Arc<ServerConfig>, rustls::Error> {
        let provider = Arc::new(ring::default_provider());
        let builder = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions()?;
        let mut config = builder
            .with_no_client_auth()
            .with_cert_resolver(Arc::clone(&self.shown) as _);
        config.alpn_protocols = vec![ALPN_HTTP2.to_vec(), ALPN_HTTP1.to_vec()];
        config.ticketer = ring::Ticketer::new()?;
        Ok(Arc::new(config))
    }

    /// Has a certificate for a host name, and orders one if there is none.
    ///
    /// # Errors
    /// There is none in time; the text is for people.
    pub async fn ensure(self: &Arc<Self>, domain: &str) -> Result<(), Refusal> {
        let (this, name) = (Arc::clone(self), domain.to_owned());
        // Goes on after the limit: the next call may find it done.
        let ordering = task::spawn("order of a certificate", async move {
            this.obtain(&name, Wanted::Valid).await
        });
        match timeout(ORDER_LIMIT, ordering).await {
            Ok(Ok(Some(Ok(())))) => Ok(()),
            Ok(Ok(Some(Err(error)))) => Err(Refusal::bad(format!(
                "Error obtaining {domain} TLS certificate:\n{}",
                chain(&error)
            ))),
            Ok(_) => Err(Refusal::internal(task::Panicked.to_string())),
            Err(_) => Err(Refusal::bad(format!(
                "Could not obtain {domain} TLS certificate in {}s. Make sure DNS records are configured for this gateway.",
                ORDER_LIMIT.as_secs()
            ))),
        }
    }

    /// Has such a certificate for a host name; of those who want one at the same time, one orders it. A failure is that of all who
    /// ask in the next minute.
    async fn obtain(&self, domain: &str, wanted: Wanted) -> Result<(), OrderError> {
        let _turn = self.turns.take(domain).await;
        if self.has(domain, wanted) || self.of_certbot(domain, wanted).await? {
            return Ok(());
        }
        let known = self.failures.lock().last(domain, self.clock.now());
        if let Some(problem) = known.filter(|_| wanted == Wanted::Valid) {
            return Err(OrderError::JustFailed(problem));
        }
        let obtained = self.order_and_keep(domain).await;
        if let Err(error) = &obtained {
            let problem = chain(error).to_string();
            self.failures.lock().note(domain, problem, self.clock.now());
        }
        obtained
    }

    /// Takes over the certificate that certbot has for a host name; whether it has such a one.
    async fn of_certbot(&self, domain: &str, wanted: Wanted) -> io::Result<bool> {
        let found = self.files.of_certbot(domain);
        let Some(found) = found.filter(|found| wanted.is(found.validity, self.clock.now())) else {
            return Ok(false);
        };
        tracing::info!(domain, "a certificate of certbot is taken over");
        self.files.save(domain, &found.pem).await?;
        self.shown.add(domain, found);
        Ok(true)
    }

    async fn order_and_keep(&self, domain: &str) -> Result<(), OrderError> {
        tracing::info!(domain, "a certificate is ordered");
        let acme = self.acme.load_full();
        let pem = match self.order(&acme, domain).await {
            Err(error) if error.is_about_account() => {
                self.authority.discard(&acme);
                self.order(&acme, domain).await?
            }
            ordered => ordered?,
        };
        let certificate = files::read(&pem).map_err(OrderError::Unusable)?;
        self.files.save(domain, &pem).await?;
        tracing::info!(domain, until = %certificate.validity.until.to_jiff(), "there is a new certificate");
        self.shown.add(domain, certificate);
        Ok(())
    }

    async fn order(&self, acme: &AcmeSettings, domain: &str) -> Result<Secret, OrderError> {
        let account = self.authority.account(acme).await?;
        order::order(&account, domain, &self.challenges).await
    }

    /// Whether there is such a certificate already. One for all names of the level, which is nobody's to order, is good for as long as it
    /// holds.
    fn has(&self, domain: &str, wanted: Wanted) -> bool {
        let now = self.clock.now();
        let is_own = |found: Arc<files::Certificate>| wanted.is(found.validity, now);
        let is_of_level = |found: Arc<files::Certificate>| found.validity.is_at(now);
        self.shown.of_name(domain).is_some_and(is_own) || self.shown.of_level(domain).is_some_and(is_of_level)
    }
}
