//! [DigitalOcean](https://www.digitalocean.com) and AMD Developer Cloud, which has the same API at another address: virtual machines.
//!
//! `client` is the vendor's API as far as it is used, `offers` what can be had, `machines` the life of a machine.

#![warn(missing_docs)]

mod client;
mod machines;
mod offers;

use std::fmt::Debug;
use std::marker::PhantomData;
use std::sync::Arc;

use async_trait::async_trait;
use dstack_backend::{Cached, CloudKind, Env, Kind, configure_error};
use dstack_catalog_offers::VendorRows;
use dstack_compute::config::{AmdDevCloudConfig, ApiKeyCreds, DigitalOceanConfig, TypedConfig};
use dstack_compute::{
    Backend, BackendKind, Capabilities, ComputeError, ConfigureError, Lifecycle, Machine, Owned, Removal,
};
use dstack_model::offers::InstanceOfferWithAvailability;
use dstack_model::runs::Requirements;

use client::Client;

/// The kind of backends for DigitalOcean.
pub fn kind(env: Env) -> Arc<dyn BackendKind> {
    DropletKind::<DigitalOceanConfig>::of(env)
}

/// The kind of backends for AMD Developer Cloud.
pub fn amd_kind(env: Env) -> Arc<dyn BackendKind> {
    DropletKind::<AmdDevCloudConfig>::of(env)
}

/// What differs between the two.
trait DropletConfig: TypedConfig + 'static {
    /// Where the API is.
    const BASE: &'static str;

    /// The vendor's name, for users.
    const TITLE: &'static str;

    /// The fields: credentials, name of a project, regions.
    fn fields(self) -> (ApiKeyCreds, Option<String>, Option<Vec<String>>);
}

impl DropletConfig for DigitalOceanConfig {
    const BASE: &'static str = "https://api.digitalocean.com";
    const TITLE: &'static str = "DigitalOcean";

    fn fields(self) -> (ApiKeyCreds, Option<String>, Option<Vec<String>>) {
        (self.creds, self.project_name, self.regions)
    }
}

impl DropletConfig for AmdDevCloudConfig {
    const BASE: &'static str = "https://api.devcloud.amd.com";
    const TITLE: &'static str = "AMD Developer Cloud";

    fn fields(self) -> (ApiKeyCreds, Option<String>, Option<Vec<String>>) {
        (self.creds, self.project_name, self.regions)
    }
}

#[derive(Debug)]
struct DropletKind<C> {
    env: Env,
    config: PhantomData<C>,
}

impl<C: DropletConfig> DropletKind<C> {
    fn of(env: Env) -> Arc<dyn BackendKind> {
        let config = PhantomData;
        Kind::of(Self { env, config })
    }

    fn backend(&self, kind: Arc<dyn BackendKind>, config: C) -> Result<DigitalOcean, String> {
        let (creds, project, regions) = config.fields();
        Ok(DigitalOcean {
            client: Client::new(&self.env, C::KIND, C::BASE, creds.api_key.expose())?,
            title: C::TITLE,
            project: project.filter(|name| !name.is_empty()),
            regions,
            rows: Cached::of_offers(&self.env),
            kind,
        })
    }
}

#[async_trait]
impl<C: DropletConfig> CloudKind for DropletKind<C> {
    type Config = C;

    fn capabilities() -> Capabilities {
        Capabilities {
            create_instance: true,
            privileged: true,
            instance_volumes: true,
            ..Capabilities::default()
        }
    }

    async fn check(&self, config: C) -> Result<C, ConfigureError> {
        let kind = Self::of(self.env.clone());
        let backend = self.backend(kind, config.clone());
        let backend = backend.map_err(ConfigureError::Invalid)?;
        let failed = |error| configure_error(&error, &[&["creds", "api_key"]]);
        backend.client.check_account().await.map_err(failed)?;
        if let Some(name) = &backend.project {
            let projects = backend.client.projects().await.map_err(failed)?;
            if !projects.iter().any(|project| project.name == *name) {
                return Err(ConfigureError::Credentials {
                    fields: vec![vec!["project_name".to_owned()]],
                    details: Some(format!("Project with name '{name}' does not exist")),
                });
            }
        }
        Ok(config)
    }

    fn open(kind: Kind<Self>, config: C) -> Result<Arc<dyn Backend>, String> {
        Ok(Arc::new(kind.backend(Arc::new(kind.clone()), config)?))
    }
}

/// The backend of one API key, and what was fetched of late with it.
#[derive(Debug)]
struct DigitalOcean {
    kind: Arc<dyn BackendKind>,
    /// The vendor's name, for users.
    title: &'static str,
    client: Client,
    /// Name of the project that machines are put into; `None`: the account's default.
    project: Option<String>,
    /// `None`: all.
    regions: Option<Vec<String>>,
    /// What there is.
    rows: Cached<VendorRows>,
}

#[async_trait]
impl Backend for DigitalOcean {
    fn backend_kind(&self) -> &dyn BackendKind {
        &*self.kind
    }

    async fn offers(
        &self,
        requirements: &Requirements,
    ) -> Result<Vec<InstanceOfferWithAvailability>, ComputeError> {
        self.find_offers(requirements).await
    }

    fn machines(&self) -> Option<&dyn Lifecycle<Machine>> {
        Some(self)
    }

    async fn inventory(&self) -> Result<Vec<Owned>, ComputeError> {
        self.list_owned().await
    }

    async fn remove_owned(&self, owned: &Owned) -> Result<Removal, ComputeError> {
        self.terminate(&owned.id).await
    }
}
