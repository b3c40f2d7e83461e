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

    /// Of the certificate of the name itself and the one of its level, the one that holds for longer.
    pub(super) fn find(&self, name: &str) -> Option<Arc<Certificate>> {
        let all = self.0.load();
        let level = name.split_once('.').map(|(_, parent)| format!("*.{parent}"));
        let of_level = level.and_then(|level| all.get(&level));
        let both = all.get(name).into_iter().chain(of_level);
        both.max_by_key(|certificate| certificate.validity.until).cloned()
    }
}

impl ResolvesServerCert for Shown {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let name = hello.server_name()?.trim_end_matches('.').to_ascii_lowercase();
        Some(Arc::clone(&self.find(&name)?.key))
    }
}
