//! Servers with certificates of their own, and clients that show one.

use std::fmt;

use reqwest::{Certificate, ClientBuilder, Identity};

/// A text that is no PEM of the kind that is needed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0} is not in PEM, or damaged")]
pub struct InvalidPem(&'static str);

/// Whom a client trusts, and as whom it shows itself. The default trusts what the system trusts and shows nothing.
#[derive(Clone, Default)]
pub struct ServerTls {
    roots: Option<Vec<Certificate>>,
    identity: Option<Identity>,
    accepts_any: bool,
}

impl fmt::Debug for ServerTls {
    /// Without keys.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServerTls")
            .field("roots", &self.roots.as_ref().map(Vec::len))
            .field("identity", &self.identity.as_ref().map(|_| "***"))
            .field("accepts_any", &self.accepts_any)
            .finish()
    }
}

impl ServerTls {
    /// Trusts these certificates (PEM) only.
    ///
    /// # Errors
    /// It is no PEM of certificates.
    pub fn with_roots(self, pem: &[u8]) -> Result<Self, InvalidPem> {
        let invalid = InvalidPem("the certificate of the authority");
        match Certificate::from_pem_bundle(pem) {
            Ok(roots) if !roots.is_empty() => Ok(Self {
                roots: Some(roots),
                ..self
            }),
            _ => Err(invalid),
        }
    }

    /// Shows this certificate (PEM), of which this is the key (PEM).
    ///
    /// # Errors
    /// They are no PEM of a certificate and a key.
    pub fn with_identity(self, certificate: &[u8], key: &[u8]) -> Result<Self, InvalidPem> {
        let both = [key, b"\n", certificate].concat();
        let identity =
            Identity::from_pem(&both).map_err(|_| InvalidPem("the certificate or key of the client"))?;
        Ok(Self {
            identity: Some(identity),
            ..self
        })
    }

    /// Trusts whoever answers: who can stand in between reads everything.
    #[must_use]
    pub fn accepting_any(self) -> Self {
        Self {
            accepts_any: true,
            ..self
        }
    }

    pub(crate) fn apply(&self, builder: ClientBuilder) -> ClientBuilder {
        let builder = match &self.roots {
            Some(roots) => builder.tls_certs_only(roots.iter().cloned()),
            None => builder,
        };
        let builder = match &self.identity {
            Some(identity) => builder.identity(identity.clone()),
            None => builder,
        };
        match self.accepts_any {
            true => builder.tls_danger_accept_invalid_certs(true),
            false => builder,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_pem_is_refused_and_never_shown() {
        let canary = b"canary";
        assert!(ServerTls::default().with_roots(canary).is_err());
        let error = ServerTls::default().with_identity(canary, canary).unwrap_err();
        assert!(!format!("{error} {error:?}").contains("canary"));
    }
}
