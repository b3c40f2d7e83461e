//! Which certificate is shown for a host name.

use std::collections::HashMap;
use std::sync::Arc;

use arc_swap::ArcSwap;
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;

use super::files::Certificate;

/// Certificates by host name; `*.example.com` is for all names of that level.
#[derive(Debug, Default)]
pub(super) struct Shown(ArcSwap<HashMap<String, Arc<Certificate>>>);

impl Shown {
    pub(super) fn new(certificates: Vec<(String, Certificate)>) -> Self {
        let by_name = certificates.into_iter();
        let by_name = by_name.map(|(name, certificate)| (name, Arc::new(certificate)));
        Self(ArcSwap::from_pointee(by_name.collect()))
    }

    /// Shows this one from now on.
    pub(super) fn add(&self, name: &str, certificate: Certificate) {
        let certificate = Arc::new(certificate);
        self.0.rcu(|before| {
            let mut next = HashMap::clone(before);
            next.insert(name.to_owned(), Arc::clone(&certificate));
            next
        });
    }

    /// The certificate of a name itself.
    pub(super) fn of_name(&self, name: &str) -> Option<Arc<Certificate>> {
        self.0.load().get(name).cloned()
    }

    /// The certificate for all names of the level of a name.
    pub(super) fn of_level(&self, name: &str) -> Option<Arc<Certificate>> {
        let (_, parent) = name.split_once('.')?;
        self.0.load().get(&format!("*.{parent}")).cloned()
    }

    /// Of the certificate of the name itself and the one of its level, the one that holds for longer.
    pub(super) fn find(&self, name: &str) -> Option<Arc<Certificate>> {
        let both = [self.of_name(name), self.of_level(name)].into_iter().flatten();
        both.max_by_key(|certificate| certificate.validity.until)
    }
}

impl ResolvesServerCert for Shown {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let name = hello.server_name()?.trim_end_matches('.').to_ascii_lowercase();
        Some(Arc::clone(&self.find(&name)?.key))
    }
}
