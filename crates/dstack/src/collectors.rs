//! Collectors for the published catalogue that come with backends.

use std::collections::HashMap;
use std::sync::Arc;

use dstack_backend::Env;
use dstack_catalog::collectors::register_offline;
use dstack_catalog::{Catalog, CollectError, OfflineProvider, Provider, Settings};
use dstack_http::{ClientOptions, LazyClient, Redirects};
use dstack_system::{Random, SystemClock};

/// Makes `dstack catalog collect` know them.
pub fn register_collectors() {
    register_offline(Provider::Nebius, || of_backend(Provider::Nebius));
}

fn of_backend(provider: Provider) -> Result<Arc<dyn OfflineProvider>, CollectError> {
    let env = Env {
        clock: Arc::new(SystemClock),
        random: Random::system(),
        // As the server has it.
        transport: Arc::new(LazyClient::new(ClientOptions {
            redirects: Redirects::Never,
            ..ClientOptions::default()
        })),
        catalog: Arc::new(Catalog::new(Settings::from_env(None))),
        endpoints: HashMap::new(),
        own_url: None,
        installation: Arc::default(),
    };
    dstack_backends::collector(provider.name(), &env).ok_or(CollectError::NoCollector(provider))?
}
