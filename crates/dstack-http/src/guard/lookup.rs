//! Addresses of names.

use std::fmt::Debug;
use std::future::Future;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;

use reqwest::dns::{Addrs, Name, Resolve, Resolving};

use super::Refused;
use crate::network::Network;
use crate::policy::OutboundPolicy;

/// Addresses, or why there are none.
pub type Lookup = Pin<Box<dyn Future<Output = io::Result<Vec<IpAddr>>> + Send>>;

/// Finds the addresses of host names.
pub trait AddressLookup: Debug + Send + Sync {
    /// Returns all addresses of a name.
    fn addresses(&self, host: &str) -> Lookup;
}

/// Asks the system, as all programs do.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemLookup;

impl AddressLookup for SystemLookup {
    fn addresses(&self, host: &str) -> Lookup {
        let host = host.to_owned();
        Box::pin(async move {
            let found = tokio::net::lookup_host((host, 0)).await?;
            Ok(found.map(|address| address.ip()).collect())
        })
    }
}

/// Resolves names for one client: answers only addresses that may be reached, so that a connection goes to an address that
/// was checked, however often the name changes.
#[derive(Debug, Clone)]
pub(super) struct GuardedResolver {
    pub(super) policy: Arc<OutboundPolicy>,
    pub(super) lookup: Arc<dyn AddressLookup>,
    pub(super) nearest: Network,
}

impl Resolve for GuardedResolver {
    fn resolve(&self, name: Name) -> Resolving {
        let this = self.clone();
        Box::pin(async move {
            let host = name.as_str();
            let found = this.lookup.addresses(host).await?;
            let allowed = allowed(&this.policy, host, &found, this.nearest)?;
            // The port is that of the URL.
            Ok(Box::new(allowed.into_iter().map(|address| SocketAddr::new(address, 0))) as Addrs)
        })
    }
}

/// Returns the addresses that may be reached.
///
/// # Errors
/// All are refused.
pub(super) fn allowed(
    policy: &OutboundPolicy,
    host: &str,
    found: &[IpAddr],
    nearest: Network,
) -> Result<Vec<IpAddr>, Refused> {
    let mut refused = None;
    let mut allowed = Vec::with_capacity(found.len());
    for address in found {
        match policy.check(host, *address, nearest) {
            Ok(_) => allowed.push(*address),
            Err(why) => refused = Some(why),
        }
    }
    match refused {
        Some(why) if allowed.is_empty() => Err(why),
        _ => Ok(allowed),
    }
}
