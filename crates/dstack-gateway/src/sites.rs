//! What answers at which host name. A value: a request takes the present one, and each change swaps it for the next, which costs no
//! connection.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;

use dstack_proxy::rate_limit::RateLimits;
use dstack_proxy::{Routes, Service};
use dstack_system::Locked;
use dstack_units::RunId;
use http::HeaderMap;
use tokio::time::Instant;

/// What answers at which host name.
#[derive(Debug, Default)]
pub struct Sites {
    by_host: HashMap<String, Site>,
    by_run: HashMap<RunId, Arc<ServiceSite>>,
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

impl ServiceSite {
    /// Whether a client at this address, with these headers, has not asked too often; if so, the request is counted.
    pub fn admits(&self, path: &str, address: IpAddr, headers: &HeaderMap) -> bool {
        self.limits.lock().admit(path, address, headers, Instant::now())
    }

    /// Whether a request's body of this length is too long.
    pub fn is_too_long(&self, length: u64) -> bool {
        self.max_body.is_some_and(|most| length > most)
    }
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
    /// With these host names. Of a service and models with the same one, the service answers.
    pub fn new(
        models: impl IntoIterator<Item = (String, Arc<ModelsSite>)>,
        services: Vec<(String, Arc<ServiceSite>)>,
        routes: Routes,
    ) -> Self {
        let by_run = services.iter();
        let by_run = by_run.map(|(_, site)| (site.service.run_id, Arc::clone(site)));
        let by_run = by_run.collect();
        let models = models.into_iter().map(|(host, site)| (host, Site::Models(site)));
        let services = services
            .into_iter()
            .map(|(host, site)| (host, Site::Service(site)));
        Self {
            by_host: models.chain(services).collect(),
            by_run,
            routes: Arc::new(routes),
        }
    }

    /// A service, wherever it answers.
    pub fn of_run(&self, run: RunId) -> Option<&Arc<ServiceSite>> {
        self.by_run.get(&run)
    }

    /// What answers at a host name in small letters.
    pub fn find(&self, host: &str) -> Option<&Site> {
        self.by_host.get(host)
    }
}
