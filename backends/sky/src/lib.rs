//! Another [dstack](https://github.com/dstackai/dstack) server, such as dstack Sky: a job runs in a run there, of its user and in its
//! project.
//!
//! `client` is its API as far as it is used, `errors` what its refusals mean, `requests` what run is asked for, `offers` what can be had,
//! `runs` is the life of a container there, `place` how its regions are called, `home` where a run is, `server` tells whether it is this one, and `inventory` finds
//! what was left behind.

#![warn(missing_docs)]

mod client;
mod errors;
mod home;
mod inventory;
mod offers;
mod place;
mod requests;
mod runs;
mod server;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use dstack_backend::{CloudKind, Env, Kind};
use dstack_compute::config::DstackConfig;
use dstack_compute::{
    Backend, BackendKind, Capabilities, ComputeError, ConfigureError, Container, Lifecycle, Owned, Removal,
};
use dstack_model::offers::InstanceOfferWithAvailability;
use dstack_model::runs::Requirements;

use client::Client;
use errors::not_configured;
use home::Home;
use offers::Kept;
use server::is_same;

/// The kind of backends that are other dstack servers.
pub fn kind(env: Env) -> Arc<dyn BackendKind> {
    Kind::of(SkyKind { env })
}

#[derive(Debug)]
struct SkyKind {
    env: Env,
}

impl SkyKind {
    fn client(&self, config: &DstackConfig) -> Result<Client, String> {
        let token = config.creds.api_token.expose();
        Client::new(&self.env, &config.url, &config.project, token)
    }
}

#[async_trait]
impl CloudKind for SkyKind {
    type Config = DstackConfig;

    fn capabilities() -> Capabilities {
        Capabilities {
            privileged: true,
            instance_volumes: true,
            ..Capabilities::default()
        }
    }

    /// The other server has its own limits, the longest of which is that of large machines; then the image is pulled.
    fn provisioning_timeout(_: &str) -> Duration {
        Duration::from_secs(60 * 60)
    }

    async fn check(&self, config: DstackConfig) -> Result<DstackConfig, ConfigureError> {
        let client = self.client(&config).map_err(ConfigureError::Invalid)?;
        if is_same(&config.url, self.env.own_url.as_ref()) {
            return Err(ConfigureError::Invalid(
                "url: this is the server itself. Share fleets of its other projects by exports instead"
                    .to_owned(),
            ));
        }
        let failed = |failure| not_configured(&failure, &config.project);
        client.check_user().await.map_err(failed)?;
        let project = client.project().await.map_err(failed)?.project_name;
        let fleets = client.fleets().await.map_err(failed)?;
        if fleets.is_empty() {
            return Err(ConfigureError::Invalid(format!(
                "project: {} has no fleet, and runs are placed in fleets. Make one there, such as `type: fleet`, `name: cloud`, `nodes: 0..`",
                config.project
            )));
        }
        Ok(DstackConfig { project, ..config })
    }

    fn open(kind: Kind<Self>, config: DstackConfig) -> Result<Arc<dyn Backend>, String> {
        Ok(Arc::new(Sky {
            client: kind.client(&config)?,
            home: Home::new(&config.url, &config.project),
            backends: config.backends.filter(|backends| !backends.is_empty()),
            offers: Mutex::default(),
            kind,
        }))
    }
}

/// The backend of one project of the other server, and what was fetched of late.
#[derive(Debug)]
struct Sky {
    kind: Kind<SkyKind>,
    client: Client,
    /// Where runs are made.
    home: Home,
    /// Backends of the other server; `None`: all.
    backends: Option<Vec<String>>,
    offers: Mutex<Kept>,
}

impl Sky {
    fn lock_offers(&self) -> MutexGuard<'_, Kept> {
        self.offers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What is to be had has changed: it is asked for again.
    fn forget_offers(&self) {
        self.lock_offers().clear();
    }
}

#[async_trait]
impl Backend for Sky {
    fn backend_kind(&self) -> &dyn BackendKind {
        &self.kind
    }

    async fn offers(
        &self,
        requirements: &Requirements,
    ) -> Result<Vec<InstanceOfferWithAvailability>, ComputeError> {
        self.find_offers(requirements).await
    }

    fn containers(&self) -> Option<&dyn Lifecycle<Container>> {
        Some(self)
    }

    async fn inventory(&self) -> Result<Vec<Owned>, ComputeError> {
        self.list_owned().await
    }

    async fn remove_owned(&self, owned: &Owned) -> Result<Removal, ComputeError> {
        self.remove_listed(owned).await
    }
}
