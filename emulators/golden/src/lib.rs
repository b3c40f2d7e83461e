//! The clouds and images that the recorded exchanges of dstack 0.22.5 were made with (`tests/golden/README.md`).
//!
//! Offers come from the catalogue that `GPUHUNT_CATALOG_URL` names; nothing can ever be provisioned but volumes, which
//! exist in the answers only.

mod aws;
mod idle;
mod images;
mod no_capacity;
mod offers;
mod runpod;
mod whole;

use std::sync::Arc;

use dstack_catalog::http::Http;
use dstack_catalog::{Catalog, Settings, Snapshot};
use dstack_compute::{BackendKind, Registry};
use dstack_model::backends::BackendType;
use dstack_server::ServerOptions;

pub use offers::Offers;

/// Gives a server the doubles.
pub fn install(options: &mut ServerOptions) {
    options.registry = registry(&Offers::new(Arc::new(Catalog::with(
        Settings::from_env(None),
        Arc::new(Snapshot::new([])),
        Http::default(),
        Arc::clone(&options.clock),
    ))));
    options.images = Arc::new(images::RecordedImages);
}

/// Gives a server doubles of all clouds that offer what the built-in catalogue has of them.
pub fn install_whole_catalog(options: &mut ServerOptions) {
    let settings = Settings {
        dir: None,
        ..Settings::from_env(None)
    };
    let clock = Arc::clone(&options.clock);
    let catalog = Catalog::with(settings, dstack_catalog::builtin(), Http::default(), clock);
    let offers = Offers::as_it_is(Arc::new(catalog));
    let kinds = BackendType::ALL.iter().map(|kind| {
        Arc::new(whole::Whole {
            kind: *kind,
            offers: offers.clone(),
        }) as Arc<dyn BackendKind>
    });
    options.registry = Registry::new(kinds);
}

/// AWS and Runpod as recorded; all others can be configured and offer nothing.
pub fn registry(offers: &Offers) -> Registry {
    let mut kinds: Vec<Arc<dyn BackendKind>> = vec![
        Arc::new(aws::Aws(offers.clone())),
        Arc::new(runpod::Runpod(offers.clone())),
    ];
    let not_configurable = [
        BackendType::Aws,
        BackendType::Runpod,
        BackendType::Cudo,
        BackendType::TensorDock,
        BackendType::Dstack,
        BackendType::Remote,
    ];
    let others = BackendType::ALL
        .iter()
        .filter(|kind| !not_configurable.contains(kind));
    kinds.extend(others.map(|kind| Arc::new(idle::Idle(*kind)) as Arc<dyn BackendKind>));
    Registry::new(kinds)
}
