//! What answers at which host name. A value: a request takes the present one, and each change swaps it for the next, which costs no
//! connection.

use std::collections::HashMap;
use std::sync::Arc;

use dstack_proxy::rate_limit::RateLimits;
use dstack_proxy::{Routes, Service};
use dstack_system::Locked;

/// What answers at which host name.
#[derive(Debug, Default)]
pub struct Sites {
    by_host: HashMap<String, Site>,
    /// The services, for their models.
    pub routes: Arc<Routes>,
}

/// What answers at a host name.
#[derive(Debug, Clone)]
pub enum Site {
    /// A service.
    Service(Arc<ServiceSite>),
    /// The models of a project.
    Models(Arc<ModelsSite>),
}

/// A service at a host name of its own.
#[derive(Debug)]
pub struct ServiceSite {
    /// Over TLS only.
    pub https: bool,
    /// Browsers may ask it from any page.
    pub any_origin: bool,
    /// Bytes of a request's body; `None`: any.
    pub max_body: Option<u64>,
    /// How often clients may ask, and what they have used of that.
    pub limits: Arc<Locked<RateLimits>>,
    /// Where it answers.
    pub service: Service,
}

/// A host name at which the models of a project are asked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelsSite {
    /// Name of the project.
    pub project: String,
    /// Over TLS only.
    pub https: bool,
}

impl Site {
    /// Over TLS only.
    pub fn https(&self) -> bool {
        match self {
            Self::Service(site) => site.https,
            Self::Models(site) => site.https,
        }
    }
}

impl Sites {
    /// With these host names.
    pub fn new(sites: impl IntoIterator<Item = (String, Site)>, routes: Routes) -> Self {
        Self {
            by_host: sites.into_iter().collect(),
            routes: Arc::new(routes),
        }
    }

    /// What answers at a host name in small letters.
    pub fn find(&self, host: &str) -> Option<&Site> {
        self.by_host.get(host)
    }
}
