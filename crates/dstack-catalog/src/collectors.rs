//! The collectors of providers whose data needs no account, or only a key.
//!
//! The others come with their backends and meet the same contracts, [`OfflineProvider`] and [`OnlineProvider`].

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use dstack_system::{Secret, env};

use crate::http::Http;
use crate::{CollectError, OfflineProvider, OnlineProvider, Provider, Snapshot};

pub mod aws;
pub mod azure;
pub mod cloudrift;
pub mod daytona;
pub mod gcp;
mod json;
pub mod lambdalabs;
pub mod lium;
pub mod oci;
pub mod runpod;
pub mod vastai;
pub mod verda;
pub mod vultr;

/// What collectors of published files may use.
#[derive(Debug, Clone)]
pub struct OfflineOptions {
    /// Where large downloads are kept.
    pub downloads: Option<PathBuf>,
    /// A catalogue that knows what only account holders are told: hardware of instance types, lists of regions.
    pub known: Arc<Snapshot>,
}

fn required(name: &'static str) -> Result<String, CollectError> {
    env::var(name).ok_or(CollectError::MissingCreds(name))
}

/// Makes a collector, configured from the environment.
type MakeOffline = fn() -> Result<Arc<dyn OfflineProvider>, CollectError>;

/// Those that come with backends.
static OF_BACKENDS: Mutex<Vec<(Provider, MakeOffline)>> = Mutex::new(Vec::new());

/// Tells of a collector that comes with a backend. It is made when it is asked for.
pub fn register_offline(provider: Provider, make: MakeOffline) {
    let mut known = OF_BACKENDS.lock().unwrap_or_else(PoisonError::into_inner);
    known.retain(|(one, _)| *one != provider);
    known.push((provider, make));
}

fn of_backend(provider: Provider) -> Option<MakeOffline> {
    let known = OF_BACKENDS.lock().unwrap_or_else(PoisonError::into_inner);
    known
        .iter()
        .find(|(one, _)| *one == provider)
        .map(|(_, make)| *make)
}

/// The collector of a published provider, configured from the environment.
pub fn offline_from_env(
    provider: Provider,
    options: OfflineOptions,
) -> Result<Arc<dyn OfflineProvider>, CollectError> {
    let http = Arc::new(Http::default());
    Ok(match provider {
        Provider::Aws => Arc::new(aws::AwsCollector {
            url: aws::PRICE_LIST_URL.to_owned(),
            cache: env::var("AWS_CACHE_PATH").map(PathBuf::from),
            downloads: options.downloads,
            known: options.known,
            http,
        }),
        Provider::Azure => Arc::new(azure::AzureCollector {
            prices_url: azure::PRICES_URL.to_owned(),
            account: azure::Account::from_env(),
            known: options.known,
            http,
        }),
        Provider::Gcp => Arc::new(gcp::GcpCollector {
            urls: gcp::Urls::default(),
            project: required("GCP_PROJECT_ID")?,
            token: required("GCP_ACCESS_TOKEN")?.into(),
            http,
        }),
        Provider::Lambdalabs => Arc::new(lambdalabs::LambdalabsCollector {
            url: lambdalabs::API_URL.to_owned(),
            key: required("LAMBDALABS_TOKEN")?.into(),
            http,
        }),
        Provider::Oci => Arc::new(oci::OciCollector {
            url: oci::COST_ESTIMATOR_URL.to_owned(),
            known: options.known,
            http,
        }),
        Provider::Runpod => Arc::new(runpod::RunpodCollector {
            url: runpod::API_URL.to_owned(),
            http,
        }),
        Provider::Cloudrift => Arc::new(cloudrift::CloudriftCollector {
            url: env::var("CLOUDRIFT_SERVER_ADDRESS").unwrap_or_else(|| cloudrift::API_URL.to_owned()),
            http,
        }),
        Provider::Verda => Arc::new(verda::VerdaCollector {
            url: verda::API_URL.to_owned(),
            client_id: required("VERDA_CLIENT_ID")?,
            client_secret: required("VERDA_CLIENT_SECRET")?.into(),
            http,
        }),
        other => return of_backend(other).ok_or(CollectError::NoCollector(other))?(),
    })
}

/// The collector of a provider queried live, configured from the environment.
pub fn online_from_env(provider: Provider) -> Result<Arc<dyn OnlineProvider>, CollectError> {
    let http = Arc::new(Http::default());
    Ok(match provider {
        Provider::Daytona => Arc::new(daytona::DaytonaCollector::new(
            env::var("DAYTONA_API_KEY").map(Secret::from),
            &env::var("DAYTONA_API_URL").unwrap_or_else(|| daytona::API_URL.to_owned()),
            http,
        )),
        Provider::Lium => Arc::new(lium::LiumCollector {
            url: lium::NODES_URL.to_owned(),
            http,
        }),
        Provider::Vastai => Arc::new(vastai::VastaiCollector::new(http)),
        Provider::Vultr => Arc::new(vultr::VultrCollector {
            url: vultr::API_URL.to_owned(),
            key: env::var("VULTR_API_KEY").map(Secret::from),
            regions: Vec::new(),
            http,
        }),
        other => return Err(CollectError::NoCollector(other)),
    })
}
