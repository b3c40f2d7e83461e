//! The backends of a build: one line each.

#![warn(missing_docs)]

use std::sync::Arc;

use dstack_backend::Env;
use dstack_compute::{BackendKind, Registry};

/// A backend by what makes its kind.
type MakeKind = fn(Env) -> Arc<dyn BackendKind>;

const ALL: &[MakeKind] = &[
    dstack_backend_aws::kind,
    dstack_backend_cloudrift::kind,
    dstack_backend_jarvislabs::kind,
    dstack_backend_hotaisle::kind,
    dstack_backend_lambda::kind,
    dstack_backend_tensordock::kind,
    dstack_backend_seeweb::kind,
    dstack_backend_digitalocean::kind,
    dstack_backend_digitalocean::amd_kind,
    dstack_backend_cudo::kind,
    dstack_backend_verda::datacrunch,
    dstack_backend_verda::kind,
    dstack_backend_vultr::kind,
    dstack_backend_daytona::kind,
    dstack_backend_lium::kind,
    dstack_backend_vastai::kind,
    dstack_backend_oci::kind,
    dstack_backend_crusoe::kind,
    dstack_backend_kubernetes::kind,
    dstack_backend_runpod::kind,
    dstack_backend_slurm::kind,
];

/// All backends, which are handed `env`.
pub fn registry(env: &Env) -> Registry {
    Registry::new(ALL.iter().map(|make| make(env.clone())))
}
