//! Listens, and answers by host name.
//!
//! * [`listener`] — accepts connections, with and without TLS, each of which keeps its place (`placed`); `connection` speaks HTTP on
//!   one, `idle` tells whether requests are under way there.
//! * `request` — which site a request is for; `service` — the checks before a service, in nginx's order.
//! * `head` — what a request says of itself; `path` — paths as checks see them.

mod balancer;
mod connection;
mod head;
mod idle;
pub mod listener;
mod origin;
mod path;
mod placed;
mod request;
mod service;

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use dstack_proxy::{Client, Forward, Scheme, Service};
use http::HeaderMap;
use ipnet::IpNet;

pub use balancer::Balancer;

use crate::auth::Auth;
use crate::models::Models;
use crate::sites::Sites;
use crate::tls::Challenges;

/// What requests are answered with.
#[derive(Debug)]
pub struct Front {
    /// What answers at which host name.
    pub sites: Arc<ArcSwap<Sites>>,
    /// Passes requests on.
    pub forward: Arc<dyn Forward>,
    /// Who may ask.
    pub auth: Arc<Auth>,
    /// Models of services.
    pub models: Models,
    /// What certificate authorities ask for.
    pub challenges: Arc<Challenges>,
    /// Proxies whose word on their clients is believed.
    pub trusted: Vec<IpNet>,
    /// The load balancer of a cloud that stands before the gateway.
    pub balancer: Option<Balancer>,
    /// Where TLS is spoken, as clients know it.
    pub https_port: u16,
}

/// The other end of a connection.
#[derive(Debug, Clone, Copy)]
pub struct Peer {
    /// Its address.
    pub address: IpAddr,
    /// How it speaks.
    pub scheme: Scheme,
}

impl Front {
    /// A service as it is now.
    fn present(&self, service: &Service) -> Option<Arc<Service>> {
        let sites = self.sites.load();
        sites.routes.service(&service.project, &service.run).cloned()
    }

    /// How long a connection is kept that has no requests.
    const fn idle_limit(&self) -> Duration {
        match self.balancer {
            Some(_) => balancer::IDLE_LIMIT,
            None => connection::HEAD_LIMIT,
        }
    }

    fn client(&self, peer: Peer) -> Client {
        let address = peer.address.to_canonical();
        Client {
            address,
            scheme: peer.scheme,
            trusted: self.trusts(address),
        }
    }

    /// The address of whoever asks, as far as it is known: proxies that are trusted tell.
    fn address(&self, peer: Peer, headers: &HeaderMap) -> IpAddr {
        let client = self.client(peer);
        let told = || head::forwarded_for(headers, |address| self.trusts(address));
        match client.trusted {
            true => told().unwrap_or(client.address),
            false => client.address,
        }
    }

    fn trusts(&self, address: IpAddr) -> bool {
        self.trusted.iter().any(|network| network.contains(&address))
    }
}
