//! [Verda](https://verda.com), once DataCrunch: virtual machines with GPUs. Its two types differ in their names only.
//!
//! `client` is the vendor's API as far as it is used, `token` what it is used with, `offers` what can be had, `machines` the life of a
//! machine and `keys` that of the SSH keys which belong to it.

#![warn(missing_docs)]

mod client;
mod keys;
mod machines;
mod offers;
mod token;

use std::collections::BTreeSet;
use std::marker::PhantomData;
use std::sync::Arc;

use async_trait::async_trait;
use dstack_backend::{Cached, CloudKind, Env, Kind, configure_error};
use dstack_catalog::Catalog;
use dstack_compute::config::{ClientKeyCreds, DataCrunchConfig, TypedConfig, VerdaConfig};
use dstack_compute::{
    Backend, BackendKind, Capabilities, ComputeError, ConfigureError, Lifecycle, Machine, Owned, OwnedKind,
    Removal,
};
use dstack_http::ApiError;
use dstack_model::offers::InstanceOfferWithAvailability;
use dstack_model::runs::Requirements;
use http::StatusCode;

use client::Client;
use offers::Free;

/// The kind of backends for Verda.
pub fn kind(env: Env) -> Arc<dyn BackendKind> {
    Kind::of(VerdaKind::<VerdaConfig>::new(env))
}

/// The kind of backends for Verda under its old name.
pub fn datacrunch(env: Env) -> Arc<dyn BackendKind> {
    Kind::of(VerdaKind::<DataCrunchConfig>::new(env))
}

/// One of the two types, by its configuration.
#[derive(Debug)]
struct VerdaKind<C> {
    env: Env,
    config: PhantomData<fn() -> C>,
}

impl<C> VerdaKind<C> {
    const fn new(env: Env) -> Self {
        Self {
            env,
            config: PhantomData,
        }
    }
}

/// What both configurations have.
trait Account: TypedConfig + 'static {
    fn creds(&self) -> &ClientKeyCreds;
    fn regions(&self) -> Option<&[String]>;
}

impl Account for VerdaConfig {
    fn creds(&self) -> &ClientKeyCreds {
        &self.creds
    }

    fn regions(&self) -> Option<&[String]> {
        self.regions.as_deref()
    }
}

impl Account for DataCrunchConfig {
    fn creds(&self) -> &ClientKeyCreds {
        &self.creds
    }

    fn regions(&self) -> Option<&[String]> {
        self.regions.as_deref()
    }
}

#[async_trait]
impl<C: Account> CloudKind for VerdaKind<C> {
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
        let client = Client::new(&self.env, C::KIND, config.creds()).map_err(ConfigureError::Invalid)?;
        client.check_account().await.map_err(|error| refusal(&error))?;
        Ok(config)
    }

    fn open(kind: Kind<Self>, config: C) -> Result<Arc<dyn Backend>, String> {
        Ok(Arc::new(Verda {
            client: Client::new(&kind.env, C::KIND, config.creds())?,
            regions: config.regions().map(<[String]>::to_vec),
            catalog: Arc::clone(&kind.env.catalog),
            free: Cached::of_offers(&kind.env),
            kind: Box::new(kind),
        }))
    }
}

/// Which of the two is wrong, Verda does not say. What has not the form of credentials at all it refuses by 400.
fn refusal(error: &ApiError) -> ConfigureError {
    let fields: [&[&str]; 2] = [&["creds", "client_id"], &["creds", "client_secret"]];
    match error.status() {
        Some(StatusCode::BAD_REQUEST) => ConfigureError::Credentials {
            fields: fields
                .map(|path| path.iter().map(|part| (*part).to_owned()).collect())
                .into(),
            details: Some(error.to_string()),
        },
        _ => configure_error(error, &fields),
    }
}

/// The backend of one account, of either type.
#[derive(Debug)]
struct Verda {
    kind: Box<dyn BackendKind>,
    /// `None`: all. As in dstack 0.22.5, an empty list is none.
    regions: Option<Vec<String>>,
    client: Client,
    catalog: Arc<Catalog>,
    free: Cached<BTreeSet<Free>>,
}

#[async_trait]
impl Backend for Verda {
    fn backend_kind(&self) -> &dyn BackendKind {
        self.kind.as_ref()
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
        let mut all = self.owned_machines().await?;
        all.extend(self.owned_keys().await?);
        Ok(all)
    }

    async fn remove_owned(&self, owned: &Owned) -> Result<Removal, ComputeError> {
        match owned.kind {
            OwnedKind::Machine => self.terminate(&owned.id).await,
            _ => self.delete_key(&owned.id).await,
        }
    }
}
