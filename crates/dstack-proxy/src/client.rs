//! Who sent a request.

use std::net::IpAddr;

/// How a client speaks to the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scheme {
    /// HTTP without TLS.
    Http,
    /// Over TLS.
    Https,
}

impl Scheme {
    /// As it stands in URLs.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Http => "http",
            Self::Https => "https",
        }
    }
}

/// Who sent a request; an extension of the request. Without it, replicas are not told who asks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Client {
    /// Address of the peer of the connection.
    pub address: IpAddr,
    /// How it speaks to the server.
    pub scheme: Scheme,
    /// It is a proxy whose `X-Forwarded-*` headers are believed: they are passed on, with its address added.
    pub trusted: bool,
}
