use std::collections::HashMap;
use std::sync::{Arc, OnceLock};

use dstack_catalog::Catalog;
use dstack_http::{ApiClient, ApiLimits, Transport};
use dstack_model::backends::BackendType;
use dstack_system::Random;
use dstack_system::clock::SharedClock;
use dstack_units::InstallationId;
use reqwest::Url;
use reqwest::header::HeaderName;

/// What backends are handed instead of reaching for it.
#[derive(Debug, Clone)]
pub struct Env {
    /// Tells the time, virtual in tests.
    pub clock: SharedClock,
    /// Source of all randomness.
    pub random: Random,
    /// Carries requests to APIs.
    pub transport: Arc<dyn Transport>,
    /// Prices and shapes of machines.
    pub catalog: Arc<Catalog>,
    /// Where APIs are instead of at their vendors, by backend: emulators, proxies of a company.
    pub endpoints: HashMap<BackendType, Url>,
    /// Where this server is for its users, as far as it knows.
    pub own_url: Option<Url>,
    /// The installation (all servers on one database); empty until the database is open.
    pub installation: Arc<OnceLock<InstallationId>>,
}

impl Env {
    /// A client of a backend's API, which is at `base` unless it was told to be elsewhere.
    ///
    /// # Errors
    /// `base` is no URL.
    pub fn api(&self, backend: BackendType, base: &str, limits: ApiLimits) -> Result<ApiClient, String> {
        let url = match self.endpoints.get(&backend) {
            Some(url) => url.clone(),
            None => Url::parse(base).map_err(|error| format!("{base} is no URL: {error}"))?,
        };
        Ok(ApiClient::new(Arc::clone(&self.transport), url, limits))
    }

    /// As [`Env::api`], with a header in which the key is.
    ///
    /// # Errors
    /// `base` is no URL, or the value cannot be sent in a header.
    pub fn api_with_key(
        &self,
        backend: BackendType,
        base: &str,
        limits: ApiLimits,
        header: HeaderName,
        value: &str,
    ) -> Result<ApiClient, String> {
        let client = self.api(backend, base, limits)?;
        let client = client.with_secret_header(header, value);
        client.map_err(|_| "the key has characters that no key has".to_owned())
    }
}
