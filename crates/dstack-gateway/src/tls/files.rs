//! Certificates on the disk: one file each, with the certificates of its chain and the key, so that the two always belong together.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use dstack_system::{Secret, chain, file, task};
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::CertifiedKey;

use super::validity::Validity;

/// In the directory of its host name.
const FILE: &str = "tls.pem";
/// It holds a key.
const MODE: u32 = 0o600;
const DIR_MODE: u32 = 0o700;

/// A certificate with its key.
#[derive(Debug, Clone)]
pub(super) struct Certificate {
    /// Chain and key.
    pub(super) pem: Secret,
    pub(super) key: Arc<CertifiedKey>,
    pub(super) validity: Validity,
}

/// Why a text is no certificate with its key.
#[derive(Debug, thiserror::Error)]
pub(crate) enum UnusableError {
    #[error("it is not in PEM")]
    Pem(#[from] rustls::pki_types::pem::Error),
    #[error("there is no certificate in it")]
    Empty,
    #[error("it is not known from when to when it holds")]
    Validity,
    #[error("it cannot be used for TLS")]
    Tls(#[from] rustls::Error),
}

/// Reads chain and key.
pub(super) fn read(pem: &Secret) -> Result<Certificate, UnusableError> {
    let text = pem.expose().as_bytes();
    let chain = CertificateDer::pem_slice_iter(text).collect::<Result<Vec<_>, _>>()?;
    let key = PrivateKeyDer::from_pem_slice(text)?;
    let first = chain.first().ok_or(UnusableError::Empty)?;
    let validity = Validity::of(first).ok_or(UnusableError::Validity)?;
    let key = CertifiedKey::from_der(chain, key, &ring::default_provider())?;
    Ok(Certificate {
        pem: pem.clone(),
        key: Arc::new(key),
        validity,
    })
}

/// Certificates by host name.
#[derive(Debug)]
pub(super) struct Files {
    dir: PathBuf,
    certbot: PathBuf,
}

impl Files {
    pub(super) const fn new(dir: PathBuf, certbot: PathBuf) -> Self {
        Self { dir, certbot }
    }

    /// All that can be used, with their host names. `*.example.com` is one for all names of that level.
    pub(super) fn all(&self) -> Vec<(String, Certificate)> {
        let entries = fs_err::read_dir(&self.dir).into_iter().flatten();
        let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
        names
            .filter_map(|name| Some((name.clone(), read_file(&self.dir.join(&name).join(FILE))?)))
            .collect()
    }

    /// The one that certbot has for a host name.
    pub(super) fn of_certbot(&self, domain: &str) -> Option<Certificate> {
        let dir = self.certbot.join(domain);
        let read = |name: &str| fs_err::read_to_string(dir.join(name)).ok();
        let pem = format!("{}\n{}", read("fullchain.pem")?, read("privkey.pem")?);
        usable(&dir, &Secret::new(pem))
    }

    /// Keeps one.
    pub(super) async fn save(&self, domain: &str, pem: &Secret) -> io::Result<()> {
        let (dir, pem) = (self.dir.join(domain), pem.clone());
        let saved = task::blocking("certificate", move || {
            file::create_dir(&dir, DIR_MODE)?;
            file::write_atomically(&dir.join(FILE), pem.expose().as_bytes(), MODE)
        });
        saved.await.map_err(io::Error::other)?
    }
}

fn read_file(path: &Path) -> Option<Certificate> {
    usable(path, &Secret::new(fs_err::read_to_string(path).ok()?))
}

fn usable(path: &Path, pem: &Secret) -> Option<Certificate> {
    read(pem)
        .inspect_err(|error| {
            let error = chain(error).to_string();
            tracing::warn!(error, path = %path.display(), "a certificate is not used");
        })
        .ok()
}
