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
    /// Shows no private key.
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
    use std::sync::Arc;

    use rustls::pki_types::pem::PemObject as _;
    use rustls::pki_types::{CertificateDer, PrivateKeyDer};
    use rustls::server::WebPkiClientVerifier;
    use rustls::{RootCertStore, ServerConfig};
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpListener;
    use tokio_rustls::TlsAcceptor;

    use super::*;
    use crate::{LazyClient, Transport, TransportError};

    const AUTHORITY: &[u8] = include_bytes!("server_tls/authority.pem");
    /// Of `localhost`, by that authority; the client of the test shows it as well.
    const CERTIFICATE: &[u8] = include_bytes!("server_tls/certificate.pem");
    const KEY: &[u8] = include_bytes!("server_tls/key.pem");

    /// A server that lets in whom the authority knows; where it is.
    async fn serve() -> String {
        crate::install_crypto();
        let mut roots = RootCertStore::empty();
        roots
            .add(CertificateDer::from_pem_slice(AUTHORITY).unwrap())
            .unwrap();
        let verifier = WebPkiClientVerifier::builder(Arc::new(roots)).build().unwrap();
        let (certificate, key) = (
            CertificateDer::from_pem_slice(CERTIFICATE).unwrap(),
            PrivateKeyDer::from_pem_slice(KEY).unwrap(),
        );
        let config = ServerConfig::builder().with_client_cert_verifier(verifier);
        let config = config.with_single_cert(vec![certificate], key).unwrap();
        let acceptor = TlsAcceptor::from(Arc::new(config));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("https://localhost:{}/", listener.local_addr().unwrap().port());
        dstack_system::task::spawn("server", async move {
            while let Ok((socket, _)) = listener.accept().await {
                let Ok(mut stream) = acceptor.accept(socket).await else {
                    continue;
                };
                if stream.read(&mut [0; 1024]).await.is_ok_and(|length| length > 0) {
                    stream
                        .write_all(b"HTTP/1.1 204 No Content\r\nconnection: close\r\n\r\n")
                        .await
                        .unwrap();
                }
            }
        });
        url
    }

    #[tokio::test]
    async fn a_server_and_its_client_know_each_other_by_certificates() {
        let url = serve().await;
        let ask = async |tls: ServerTls| {
            let transport = Transport::with_tls(&LazyClient::default(), &tls).unwrap();
            let request = http::Request::get(&url).body(bytes::Bytes::new()).unwrap();
            transport
                .send(request)
                .await
                .map(|answer| answer.status().as_u16())
        };
        let trusting = || ServerTls::default().with_roots(AUTHORITY).unwrap();
        let known = |tls: ServerTls| tls.with_identity(CERTIFICATE, KEY).unwrap();
        assert_eq!(ask(known(trusting())).await, Ok(204));
        assert_eq!(ask(known(ServerTls::default().accepting_any())).await, Ok(204));
        assert!(matches!(
            ask(known(ServerTls::default())).await,
            Err(TransportError::NotSent(_))
        ));
        assert!(ask(trusting()).await.is_err(), "it shows nothing");
        assert!(!format!("{:?}", known(trusting())).contains("PRIVATE"));
    }

    #[test]
    fn what_is_no_pem_is_refused_and_never_shown() {
        let canary = b"canary";
        assert!(ServerTls::default().with_roots(canary).is_err());
        let error = ServerTls::default().with_identity(canary, canary).unwrap_err();
        assert!(!format!("{error} {error:?}").contains("canary"));
    }
}
