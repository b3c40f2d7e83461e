//! HTTP clients. Every `reqwest::Client` of the workspace is made here, so that user agent, TLS, proxies and what is shown of
//! addresses are the same everywhere.
//!
//! * [`ClientOptions`] and [`LazyClient`] — for addresses that are compiled in or that the administrator configures.
//! * [`GuardedClient`] — for addresses that users name, in a configuration or through an answer (a redirect, a token realm):
//!   it reaches public networks, and of others only what [`OutboundPolicy`] allows.
//! * [`ApiClient`] — for APIs of vendors, over one of these or, in tests, without a network.
//!
//! Proxies are those of the environment (`HTTPS_PROXY`, `HTTP_PROXY`, `ALL_PROXY`, `NO_PROXY`), root certificates those of
//! the system.

#![warn(missing_docs)]

mod api;
mod client;
mod guard;
mod network;
mod policy;
mod redact;
mod server_tls;

pub use api::{ApiClient, ApiError, ApiLimits, ApiRequest, Signer, Trailers, Transport, TransportError};
pub use client::{ClientOptions, LazyClient, Redirects, SetupError, TlsRoots, install_crypto};
pub use guard::lookup::{AddressLookup, Lookup, SystemLookup};
pub use guard::{Answer, GuardedClient, GuardedRedirects, GuardedRequest, OutboundError, Refused};
pub use network::Network;
pub use policy::{InvalidEntry, OUTBOUND_ALLOW, OutboundPolicy};
pub use redact::redacted;
pub use server_tls::{InvalidPem, ServerTls};
