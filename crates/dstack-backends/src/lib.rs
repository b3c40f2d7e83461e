//! The backends of a build, each of which is a feature of this crate.

#![warn(missing_docs)]

use std::sync::Arc;

use dstack_backend::Env;
#[cfg(feature = "manifest")]
pub use dstack_backend_manifest as manifest;
use dstack_catalog::{CollectError, OfflineProvider};
use dstack_compute::{BackendKind, Registry};

/// A backend by what makes its kind.
type MakeKind = fn(Env) -> Arc<dyn BackendKind>;

const ALL: &[MakeKind] = &[
    #[cfg(feature = "aws")]
    dstack_backend_aws::kind,
    #[cfg(feature = "azure")]
    dstack_backend_azure::kind,
    #[cfg(feature = "cloudrift")]
    dstack_backend_cloudrift::kind,
    #[cfg(feature = "crusoe")]
    dstack_backend_crusoe::kind,
    #[cfg(feature = "cudo")]
    dstack_backend_cudo::kind,
    #[cfg(feature = "daytona")]
    dstack_backend_daytona::kind,
    #[cfg(feature = "digitalocean")]
    dstack_backend_digitalocean::amd_kind,
    #[cfg(feature = "digitalocean")]
    dstack_backend_digitalocean::kind,
    #[cfg(feature = "gcp")]
    dstack_backend_gcp::kind,
    #[cfg(feature = "hotaisle")]
    dstack_backend_hotaisle::kind,
    #[cfg(feature = "jarvislabs")]
    dstack_backend_jarvislabs::kind,
    #[cfg(feature = "kubernetes")]
    dstack_backend_kubernetes::kind,
    #[cfg(feature = "lambda")]
    dstack_backend_lambda::kind,
    #[cfg(feature = "lium")]
    dstack_backend_lium::kind,
    #[cfg(feature = "nebius")]
    dstack_backend_nebius::kind,
    #[cfg(feature = "oci")]
    dstack_backend_oci::kind,
    #[cfg(feature = "runpod")]
    dstack_backend_runpod::kind,
    #[cfg(feature = "seeweb")]
    dstack_backend_seeweb::kind,
    #[cfg(feature = "sky")]
    dstack_backend_sky::kind,
    #[cfg(feature = "slurm")]
    dstack_backend_slurm::kind,
    #[cfg(feature = "tensordock")]
    dstack_backend_tensordock::kind,
    #[cfg(feature = "vastai")]
    dstack_backend_vastai::kind,
    #[cfg(feature = "verda")]
    dstack_backend_verda::datacrunch,
    #[cfg(feature = "verda")]
    dstack_backend_verda::kind,
    #[cfg(feature = "vultr")]
    dstack_backend_vultr::kind,
];

/// Collectors for the published catalogue that come with backends, by the name of their provider.
#[cfg_attr(not(feature = "nebius"), allow(unused_variables))]
pub fn collector(provider: &str, env: &Env) -> Option<Result<Arc<dyn OfflineProvider>, CollectError>> {
    match provider {
        #[cfg(feature = "nebius")]
        "nebius" => Some(dstack_backend_nebius::NebiusCollector::from_env(env)),
        _ => None,
    }
}

/// All backends, which are handed `env`.
pub fn registry(env: &Env) -> Registry {
    Registry::new(of_build(env))
}

fn of_build(env: &Env) -> Vec<Arc<dyn BackendKind>> {
    ALL.iter().map(|make| make(env.clone())).collect()
}

/// As [`registry`], with those that manifests describe.
///
/// # Errors
/// There are too many types.
#[cfg(feature = "manifest")]
pub fn registry_with(env: &Env, manifests: Vec<manifest::Manifest>) -> Result<Registry, manifest::NameError> {
    let mut kinds = of_build(env);
    for described in manifests {
        kinds.push(manifest::kind(env.clone(), described)?);
    }
    Ok(Registry::new(kinds))
}
