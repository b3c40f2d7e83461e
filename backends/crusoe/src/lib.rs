//! [Crusoe](https://crusoe.ai/cloud): virtual machines, and InfiniBand between them.
//!
//! `client` is the vendor's API as far as it is used, `signing` its signatures, `offers` what can be had, `machines` the life of a machine
//! with its disk, `placements` that of an InfiniBand partition. `inventory` finds what was left behind.

#![warn(missing_docs)]

mod client;
mod inventory;
mod machines;
mod offers;
mod placements;
mod signing;

use std::sync::Arc;

use async_trait::async_trait;
use dstack_backend::{Cached, CloudKind, Env, Kind, compute_error, configure_error};
use dstack_catalog_offers::VendorRows;
use dstack_compute::config::CrusoeConfig;
use dstack_compute::{
    Backend, BackendKind, Capabilities, ComputeError, ConfigureError, Lifecycle, Machine, Owned, Placement,
    Removal,
};
use dstack_http::ApiError;
use dstack_model::offers::InstanceOfferWithAvailability;
use dstack_model::runs::Requirements;
use http::StatusCode;

use client::{Client, Quota};
use signing::secret_bytes;

/// The kind of backends for Crusoe.
pub fn kind(env: Env) -> Arc<dyn BackendKind> {
    Kind::of(CrusoeKind { env })
}

#[derive(Debug)]
struct CrusoeKind {
    env: Env,
}

#[async_trait]
impl CloudKind for CrusoeKind {
    type Config = CrusoeConfig;

    fn capabilities() -> Capabilities {
        Capabilities {
            create_instance: true,
            multinode: true,
            privileged: true,
            instance_volumes: true,
            placement_groups: true,
            ..Capabilities::default()
        }
    }

    async fn check(&self, config: CrusoeConfig) -> Result<CrusoeConfig, ConfigureError> {
        let creds = &config.creds;
        if secret_bytes(creds.secret_key.expose()).is_none() {
            return Err(wrong(&["creds", "secret_key"], "it is not in base64".to_owned()));
        }
        if !creds
            .access_key
            .expose()
            .bytes()
            .all(|byte| byte.is_ascii_graphic())
        {
            let why = "it has characters that no key has";
            return Err(wrong(&["creds", "access_key"], why.to_owned()));
        }
        let client = Client::new(&self.env, &config).map_err(ConfigureError::Invalid)?;
        client.quotas().await.map_err(|error| match error.status() {
            // The key is one, and may do nothing in this project, or there is no such project.
            Some(StatusCode::FORBIDDEN | StatusCode::NOT_FOUND | StatusCode::BAD_REQUEST) => {
                wrong(&["project_id"], error.to_string())
            }
            _ => configure_error(&error, &[&["creds", "access_key"], &["creds", "secret_key"]]),
        })?;
        let wanted = config.regions.as_deref().unwrap_or_default();
        if !wanted.is_empty() {
            let known = client
                .locations()
                .await
                .map_err(|error| configure_error(&error, &[]))?;
            let unknown = wanted.iter().filter(|region| !known.contains(region));
            let unknown: Vec<&str> = unknown.map(String::as_str).collect();
            if !unknown.is_empty() {
                let (unknown, known) = (unknown.join(", "), known.join(", "));
                let why = format!("Crusoe has no region {unknown}; it has {known}");
                return Err(wrong(&["regions"], why));
            }
        }
        Ok(config)
    }

    fn open(kind: Kind<Self>, config: CrusoeConfig) -> Result<Arc<dyn Backend>, String> {
        Ok(Arc::new(Crusoe {
            client: Client::new(&kind.env, &config)?,
            regions: config.regions,
            rows: Cached::of_offers(&kind.env),
            quotas: Cached::of_offers(&kind.env),
            kind,
        }))
    }
}

fn wrong(field: &[&str], details: String) -> ConfigureError {
    ConfigureError::Credentials {
        fields: vec![field.iter().map(|part| (*part).to_owned()).collect()],
        details: Some(details),
    }
}

/// The backend of one project at Crusoe, and what was fetched of late with it.
#[derive(Debug)]
struct Crusoe {
    kind: Kind<CrusoeKind>,
    /// Locations; `None`: all.
    regions: Option<Vec<String>>,
    client: Client,
    /// What is free.
    rows: Cached<VendorRows>,
    quotas: Cached<Vec<Quota>>,
}

/// What a call was answered.
fn told<T>(answer: Result<T, ApiError>) -> Result<T, ComputeError> {
    answer.map_err(|error| compute_error(&error))
}

/// What the removal of a disk or partition was answered. What is refused is still in use: Crusoe removes no disk of a machine, and no
/// partition with machines.
fn removed<T>(answer: Result<T, ApiError>) -> Result<T, ComputeError> {
    told(answer).map_err(|error| match error {
        ComputeError::Refused(text) => ComputeError::InUse(text),
        other => other,
    })
}

#[async_trait]
impl Backend for Crusoe {
    fn backend_kind(&self) -> &dyn BackendKind {
        &self.kind
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

    fn placements(&self) -> Option<&dyn Lifecycle<Placement>> {
        Some(self)
    }

    async fn inventory(&self) -> Result<Vec<Owned>, ComputeError> {
        self.list_owned().await
    }

    async fn remove_owned(&self, owned: &Owned) -> Result<Removal, ComputeError> {
        self.remove_by_kind(owned).await
    }
}
