//! The backends that this build has, and the prices that they offer by.

#[cfg(feature = "manifests")]
mod manifests;

use std::collections::HashMap;
use std::sync::Arc;

use dstack_backend::Env;
use dstack_catalog::{Catalog, REFRESH_INTERVAL, Settings as CatalogSettings};
use dstack_http::{ClientOptions, LazyClient, Redirects};
use dstack_model::backends::BackendType;
use dstack_server::{ServerOptions, Settings};
use dstack_store::Database;
use dstack_system::{chain, task};
use url::Url;

/// Where prices are kept that were loaded, below the server's directory.
const CATALOG_CACHE: &str = "catalog";

/// Gives a server its backends. Reads the prices that lie on this machine.
///
/// # Errors
/// The directory of prices that the administrator names cannot be read, or the addresses of APIs.
pub(crate) fn install(
    options: &mut ServerOptions,
) -> Result<Arc<Catalog>, Box<dyn std::error::Error + Send + Sync>> {
    // Their types are known from now on.
    #[cfg(feature = "manifests")]
    let manifests = {
        let (manifests, files) = manifests::read(&options.settings);
        options.backend_files = files;
        manifests
    };
    let settings = &options.settings;
    let catalog = CatalogSettings::from_env(Some(settings.dir.join(CATALOG_CACHE)));
    let catalog = Arc::new(Catalog::open(catalog)?);
    let env = Env {
        clock: Arc::clone(&options.clock),
        random: options.random.clone(),
        // Headers with keys, of whatever name, would be sent to where a redirect leads.
        transport: Arc::new(LazyClient::new(ClientOptions {
            redirects: Redirects::Never,
            ..ClientOptions::default()
        })),
        catalog: Arc::clone(&catalog),
        endpoints: endpoints(settings)?,
        own_url: Url::parse(&settings.server_url()).ok(),
        installation: Arc::clone(&options.installation),
    };
    #[cfg(not(feature = "manifests"))]
    let registry = dstack_backends::registry(&env);
    #[cfg(feature = "manifests")]
    let registry = dstack_backends::registry_with(&env, manifests)?;
    options.registry = registry;
    Ok(catalog)
}

/// By backend, as `DSTACK_SERVER_BACKEND_ENDPOINTS` has them.
fn endpoints(settings: &Settings) -> Result<HashMap<BackendType, Url>, String> {
    let text = settings.backend_endpoints.as_deref().unwrap_or_default();
    let entries = text.split(',').map(str::trim).filter(|entry| !entry.is_empty());
    let all: Result<HashMap<BackendType, Url>, String> = entries.map(endpoint).collect();
    let all = all?;
    for kind in all.keys().filter(|kind| !kind.is_known()) {
        tracing::warn!(backend.r#type = %kind, "DSTACK_SERVER_BACKEND_ENDPOINTS names a backend that nobody knows: its file may be wrong");
    }
    Ok(all)
}

fn endpoint(entry: &str) -> Result<(BackendType, Url), String> {
    let wrong = |why: &str| {
        format!("DSTACK_SERVER_BACKEND_ENDPOINTS: `{entry}` {why}, as in cloudrift=http://127.0.0.1:8080")
    };
    let (backend, url) = entry
        .split_once('=')
        .ok_or_else(|| wrong("has to be a backend, `=` and a URL"))?;
    // That a file is wrong that describes it does not keep the server from starting.
    let backend = BackendType::of_any_name(backend.trim())
        .ok_or_else(|| wrong("does not begin with the name of a backend"))?;
    let url = Url::parse(url.trim())
        .ok()
        .filter(|url| matches!(url.scheme(), "http" | "https"));
    Ok((
        backend,
        url.ok_or_else(|| wrong("does not end with a URL of http or https"))?,
    ))
}

/// Looks for newer prices now and then, as long as there are backends that need them.
pub(crate) fn keep_prices_fresh(catalog: Arc<Catalog>, database: Database) {
    task::spawn("refresh the catalog", async move {
        loop {
            match database.backends().any().await {
                // What failed is told by the catalogue.
                Ok(true) => drop(catalog.refresh().await),
                Ok(false) => {}
                Err(error) => {
                    tracing::debug!(error = %chain(&error), "nobody knows whether there are backends");
                }
            }
            tokio::time::sleep(REFRESH_INTERVAL).await;
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_or_refused_with_the_entry() {
        let (backend, url) = endpoint("cloudrift=http://127.0.0.1:8080/x").unwrap();
        assert_eq!(
            (backend, url.as_str()),
            (BackendType::CloudRift, "http://127.0.0.1:8080/x")
        );
        for (entry, part) in [
            ("cloudrift", "has to be a backend"),
            ("Nimbus=http://a", "does not begin with the name"),
            ("aws=ftp://a", "does not end with a URL"),
        ] {
            let error = endpoint(entry).unwrap_err();
            assert!(error.contains(part) && error.contains(entry), "{error}");
        }
    }
}
