//! Smart HTTP: one request to list the refs, one per round of negotiation.

use std::io::{self, Read, Write};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use base64::Engine;
use git2::Error;
use git2::transport::{Service, SmartSubtransport, SmartSubtransportStream};
use ureq::http::{Response, header};
use ureq::tls::{Certificate, PemItem, RootCerts, TlsConfig, TlsProvider, parse_pem};
use ureq::{Agent, Body, ResponseExt};

use super::{Access, TransportError};
use crate::remote::Remote;

const USER_AGENT: &str = concat!("git/2.0 (dstack-runner ", env!("CARGO_PKG_VERSION"), ")");
/// For a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(30);
/// For the next byte: servers count objects before they answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(300);
/// Certificates of the image, when those compiled in do not know the server (a company's own).
const BUNDLES: &[&str] = &[
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
];

/// The transport of one remote.
pub(super) struct Http {
    access: Arc<Access>,
    // The remote after redirects: later requests go there at once.
    moved: Mutex<Option<Remote>>,
}

impl Http {
    pub(super) fn new(access: Arc<Access>) -> Self {
        Self {
            access,
            moved: Mutex::new(None),
        }
    }

    fn list(&self, remote: &Remote) -> Result<Response<Body>, TransportError> {
        let address = address(remote, "/info/refs?service=git-upload-pack")?;
        let mut response = send(|agent| {
            let mut request = agent.get(&address).header(header::ACCEPT, "*/*");
            if let Some(login) = authorization(&self.access, remote) {
                request = request.header(header::AUTHORIZATION, login);
            }
            request.call()
        })
        .map_err(|source| network(remote, source))?;
        response = check(remote, response)?;
        let last = response.get_uri().to_string();
        if last != address
            && let Some(base) = last.split("/info/refs").next()
            && let Ok(moved) = Remote::parse(base)
        {
            *self.moved.lock().unwrap_or_else(PoisonError::into_inner) = Some(moved);
        }
        Ok(response)
    }
}

impl SmartSubtransport for Http {
    fn action(&self, url: &str, action: Service) -> Result<Box<dyn SmartSubtransportStream>, Error> {
        let failed = |error| Error::from_str(&self.access.fail(error));
        let remote = Remote::parse(url).map_err(|error| failed(error.into()))?;
        match action {
            Service::UploadPackLs => {
                let response = self.list(&remote).map_err(failed)?;
                Ok(Box::new(Answer(Box::new(response.into_body().into_reader()))))
            }
            Service::UploadPack => {
                let moved = self.moved.lock().unwrap_or_else(PoisonError::into_inner).clone();
                Ok(Box::new(Exchange {
                    access: Arc::clone(&self.access),
                    remote: moved.unwrap_or(remote),
                    request: Vec::new(),
                    answer: None,
                }))
            }
            Service::ReceivePackLs | Service::ReceivePack => Err(Error::from_str("this client never pushes")),
        }
    }

    fn close(&self) -> Result<(), Error> {
        Ok(())
    }
}

/// An answer that needs no further request.
struct Answer(Box<dyn Read + Send>);

impl Read for Answer {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.0.read(buffer)
    }
}

impl Write for Answer {
    fn write(&mut self, _data: &[u8]) -> io::Result<usize> {
        Err(io::Error::from(io::ErrorKind::Unsupported))
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A request that is collected while libgit2 writes and sent when it starts to read.
struct Exchange {
    access: Arc<Access>,
    remote: Remote,
    request: Vec<u8>,
    answer: Option<Box<dyn Read + Send>>,
}

impl Exchange {
    fn post(&self) -> Result<Response<Body>, TransportError> {
        let address = address(&self.remote, "/git-upload-pack")?;
        let response = send(|agent| {
            let mut request = agent
                .post(&address)
                .header(header::CONTENT_TYPE, "application/x-git-upload-pack-request")
                .header(header::ACCEPT, "application/x-git-upload-pack-result");
            if let Some(login) = authorization(&self.access, &self.remote) {
                request = request.header(header::AUTHORIZATION, login);
            }
            request.send(self.request.as_slice())
        })
        .map_err(|source| network(&self.remote, source))?;
        check(&self.remote, response)
    }
}

impl Read for Exchange {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.access.stopped() {
            return Err(io::Error::other(self.access.fail(TransportError::Stopped)));
        }
        let mut answer = match self.answer.take() {
            Some(answer) => answer,
            None => {
                let response = self
                    .post()
                    .map_err(|error| io::Error::other(self.access.fail(error)))?;
                Box::new(response.into_body().into_reader())
            }
        };
        let read = answer.read(buffer);
        self.answer = Some(answer);
        read.map_err(|source| {
            let error = network(&self.remote, Box::new(source));
            io::Error::other(self.access.fail(error))
        })
    }
}

impl Write for Exchange {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        self.request.extend_from_slice(data);
        Ok(data.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn address(remote: &Remote, suffix: &str) -> Result<String, TransportError> {
    match remote {
        Remote::Http { url, .. } => Ok(format!("{}{suffix}", url.as_str().trim_end_matches('/'))),
        Remote::Ssh { .. } => Err(crate::remote::RemoteError.into()),
    }
}

fn host(remote: &Remote) -> String {
    match remote {
        Remote::Http { url, .. } => url.host_str().unwrap_or_default().to_owned(),
        Remote::Ssh { host, .. } => host.clone(),
    }
}

fn network(remote: &Remote, source: Box<dyn std::error::Error + Send + Sync>) -> TransportError {
    TransportError::Network {
        host: host(remote),
        source,
    }
}

fn check(remote: &Remote, response: Response<Body>) -> Result<Response<Body>, TransportError> {
    let status = response.status();
    let host = host(remote);
    match status.as_u16() {
        200..=299 => Ok(response),
        // Servers hide private repos behind 404.
        status @ (401 | 403 | 404) => Err(TransportError::HttpDenied { host, status }),
        status => Err(TransportError::HttpStatus { host, status }),
    }
}

fn authorization(access: &Access, remote: &Remote) -> Option<String> {
    let (user, password) = access.login(remote)?;
    let pair = format!("{user}:{}", password.expose());
    Some(format!(
        "Basic {}",
        base64::engine::general_purpose::STANDARD.encode(pair)
    ))
}

/// Sends a request with the certificates compiled in; when they do not know the server, with those of the image.
fn send(
    request: impl Fn(&Agent) -> Result<Response<Body>, ureq::Error>,
) -> Result<Response<Body>, Box<dyn std::error::Error + Send + Sync>> {
    static BUILT_IN: OnceLock<Agent> = OnceLock::new();
    static OF_IMAGE: OnceLock<Option<Agent>> = OnceLock::new();
    let built_in = BUILT_IN.get_or_init(|| agent(RootCerts::WebPki));
    let error = match request(built_in) {
        Err(error) if is_certificate_error(&error) => error,
        result => return Ok(result?),
    };
    match OF_IMAGE.get_or_init(|| image_certificates().map(agent)) {
        Some(agent) => Ok(request(agent)?),
        None => Err(error.into()),
    }
}

fn agent(roots: RootCerts) -> Agent {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let tls = TlsConfig::builder()
        .provider(TlsProvider::Rustls)
        .unversioned_rustls_crypto_provider(provider)
        .root_certs(roots)
        .build();
    Agent::config_builder()
        .tls_config(tls)
        .user_agent(USER_AGENT)
        .http_status_as_error(false)
        .timeout_connect(Some(CONNECT_TIMEOUT))
        .timeout_recv_response(Some(ANSWER_TIMEOUT))
        .timeout_per_read(Some(ANSWER_TIMEOUT))
        .build()
        .new_agent()
}

fn is_certificate_error(error: &ureq::Error) -> bool {
    let inner = match error {
        ureq::Error::Rustls(error) => Some(error),
        ureq::Error::Io(error) => error
            .get_ref()
            .and_then(|error| error.downcast_ref::<rustls::Error>()),
        _ => None,
    };
    matches!(inner, Some(rustls::Error::InvalidCertificate(_)))
}

fn image_certificates() -> Option<RootCerts> {
    let named = dstack_system::env::var("SSL_CERT_FILE");
    let pem = named
        .iter()
        .map(String::as_str)
        .chain(BUNDLES.iter().copied())
        .find_map(|path| fs_err::read(path).ok())?;
    let certificates: Vec<Certificate<'static>> = parse_pem(&pem)
        .filter_map(|item| match item {
            Ok(PemItem::Certificate(certificate)) => Some(certificate),
            _ => None,
        })
        .collect();
    (!certificates.is_empty()).then(|| RootCerts::new_with_certs(&certificates))
}
