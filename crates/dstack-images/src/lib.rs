//! What an image says of itself: user, entrypoint, command, architectures.
//!
//! * [`LocalEngine`] — asks this machine's Docker engine: knows images that no registry has.
//! * [`Registry`] — asks the image's registry (OCI distribution API v2).
//! * [`Chain`] — the engine first, then the registry.
//! * [`DefaultRegistry`] — where images come from that name no registry.
//! * [`Cached`] — asks once for all who ask meanwhile, and remembers the answer for a while.

use std::fmt::Debug;
use std::sync::Arc;

use async_trait::async_trait;
use dstack_http::OutboundPolicy;
use dstack_plan::ImageConfig;
use dstack_system::Secret;

mod cached;
mod chain;
mod default_registry;
mod engine;
pub mod reference;
mod registry;

pub use cached::{Cached, Lifetimes};
pub use chain::Chain;
pub use default_registry::DefaultRegistry;
pub use engine::{Found, LocalEngine};
pub use reference::{Reference, registry_of, with_default_registry};
pub use registry::{Limits, Registry};

/// Credentials of a registry.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct RegistryCredentials {
    /// User name that the registry knows.
    pub username: String,
    /// Password or token.
    pub password: Secret,
}

/// Why an image's configuration is not known: the cause, then what helps. Made to be read after
/// `Error pulling configuration for image 'NAME' from the docker registry: ` (dstack 0.22.5).
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ImageError {
    /// As things are, it will never be known.
    #[error("{0}")]
    Refused(String),
    /// Nobody answers now, or has too much to do.
    #[error("{0}")]
    Transient(String),
}

/// Looks up configurations of images.
#[async_trait]
pub trait Images: Send + Sync + Debug {
    /// Of one image reference (`[registry/]name[:tag|@digest]`).
    ///
    /// # Errors
    /// No such image, no access to it, or nobody answers.
    async fn config(
        &self,
        image: &str,
        credentials: Option<&RegistryCredentials>,
    ) -> Result<ImageConfig, ImageError>;
}

/// What a server uses: the engine of its machine, when jobs run there, then registries that `policy` lets users name;
/// remembered for a while.
pub fn of_server(engine: Option<LocalEngine>, policy: OutboundPolicy) -> Arc<dyn Images> {
    let registry = Registry::new(Limits::default(), policy);
    let registry = Cached::new(registry, Lifetimes::default());
    match engine {
        // An image can be imported at any moment: the engine is asked each time, which costs a millisecond.
        Some(engine) => Arc::new(Chain::new(engine, registry)),
        None => Arc::new(registry),
    }
}
