//! The one way to make a client.

use std::path::PathBuf;
use std::sync::{Once, OnceLock};
use std::time::Duration;

use reqwest::{Client, ClientBuilder};

use crate::ServerTls;

const USER_AGENT: &str = concat!("dstack/", env!("CARGO_PKG_VERSION"));

/// A client cannot be made.
#[derive(Debug, thiserror::Error)]
#[error("no HTTPS client can be set up: are the certificates of this machine installed (`ca-certificates`)?")]
pub struct SetupError(#[source] reqwest::Error);

/// What a client does with redirects.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Redirects {
    /// Follows ten at most. `Authorization` and cookies are not carried to another host, all other headers are, also secret ones.
    #[default]
    Follow,
    /// Answers them as they are.
    Never,
}

/// Which certificates a client trusts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum TlsRoots {
    /// Those of the system.
    #[default]
    System,
    /// None: for plain HTTP. Reading those of the system takes longer than a whole request to this machine.
    None,
}

/// How a client behaves. The default waits without limit and follows redirects.
#[derive(Debug, Clone, Default)]
pub struct ClientOptions {
    /// Longest time to open a connection.
    pub connect_timeout: Option<Duration>,
    /// Longest time between two pieces of an answer.
    pub read_timeout: Option<Duration>,
    /// Longest time for a whole answer.
    pub total_timeout: Option<Duration>,
    /// What it does with redirects.
    pub redirects: Redirects,
    /// Which certificates it trusts.
    pub tls_roots: TlsRoots,
    /// Whom it trusts besides, and as whom it shows itself.
    pub tls: ServerTls,
    /// Connects to this socket instead of the host of the URL.
    pub unix_socket: Option<PathBuf>,
    /// Keeps cookies, and sends them back.
    #[cfg(feature = "cookies")]
    pub cookies: bool,
}

impl ClientOptions {
    /// Makes the client.
    ///
    /// # Errors
    /// The certificates of this machine cannot be read.
    pub fn build(&self) -> Result<Client, SetupError> {
        build(self.builder())
    }

    /// The builder of `reqwest` with all options set.
    #[allow(clippy::disallowed_methods)] // the one place
    pub(crate) fn builder(&self) -> ClientBuilder {
        install_crypto();
        let mut builder = Client::builder().user_agent(USER_AGENT);
        if let Some(limit) = self.connect_timeout {
            builder = builder.connect_timeout(limit);
        }
        if let Some(limit) = self.read_timeout {
            builder = builder.read_timeout(limit);
        }
        if let Some(limit) = self.total_timeout {
            builder = builder.timeout(limit);
        }
        if self.redirects == Redirects::Never {
            builder = builder.redirect(reqwest::redirect::Policy::none());
        }
        if self.tls_roots == TlsRoots::None {
            builder = builder.tls_certs_only([]);
        }
        builder = self.tls.apply(builder);
        if let Some(socket) = &self.unix_socket {
            builder = builder.unix_socket(socket.clone());
        }
        #[cfg(feature = "cookies")]
        {
            builder = builder.cookie_store(self.cookies);
        }
        builder
    }
}

pub(crate) fn build(builder: ClientBuilder) -> Result<Client, SetupError> {
    builder.build().map_err(SetupError)
}

/// A client that is made with the first request: the certificates of the system are read then.
#[derive(Debug, Default)]
pub struct LazyClient {
    options: ClientOptions,
    client: OnceLock<Client>,
}

impl LazyClient {
    /// Makes nothing yet.
    pub const fn new(options: ClientOptions) -> Self {
        Self {
            options,
            client: OnceLock::new(),
        }
    }

    /// The same, for servers that are trusted otherwise.
    #[must_use]
    pub fn with_tls(&self, tls: ServerTls) -> Self {
        Self::new(ClientOptions {
            tls,
            ..self.options.clone()
        })
    }

    /// Returns the client.
    ///
    /// # Errors
    /// As [`ClientOptions::build`].
    pub fn get(&self) -> Result<&Client, SetupError> {
        get_or_build(&self.client, || self.options.build())
    }
}

/// Two who make it at the same time make two, of which one is kept.
pub(crate) fn get_or_build(
    slot: &OnceLock<Client>,
    build: impl FnOnce() -> Result<Client, SetupError>,
) -> Result<&Client, SetupError> {
    if let Some(client) = slot.get() {
        return Ok(client);
    }
    let client = build()?;
    Ok(slot.get_or_init(|| client))
}

/// Makes ring the crypto of TLS in this process. For programs that use TLS without one of these clients.
pub fn install_crypto() {
    static INSTALL: Once = Once::new();
    INSTALL.call_once(|| {
        // Fails only when a provider is installed already, which serves as well.
        drop(rustls::crypto::ring::default_provider().install_default());
    });
}
