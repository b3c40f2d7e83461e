//! The APIs as far as they are used: Core Services and Identity (20160918), Marketplace (20181001), each in each region. Field names are
//! those of OCI's SDK for Python, 2.189.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use dstack_backend::{Env, compute_error};
use dstack_compute::ComputeError;
use dstack_http::{ApiClient, ApiError, ApiLimits, ApiRequest};
use dstack_model::backends::BackendType;
use http::StatusCode;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use url::Url;

use crate::signing::{Account, Signature};

/// The most that a page has.
const PAGE: &str = "100";

/// More pages than any list has.
const MAX_PAGES: usize = 1000;

/// A service, which has a host in each region.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Service {
    Core,
    Identity,
    Marketplace,
}

impl Service {
    /// Host and path.
    fn base(self, region: &str) -> String {
        match self {
            Self::Core => format!("iaas.{region}.oraclecloud.com/20160918"),
            Self::Identity => format!("identity.{region}.oci.oraclecloud.com/20160918"),
            Self::Marketplace => format!("marketplace.{region}.oci.oraclecloud.com/20181001"),
        }
    }
}

/// The APIs as one user.
#[derive(Debug)]
pub(crate) struct Client {
    env: Env,
    pub(crate) account: Account,
    clients: Mutex<HashMap<(Service, String), ApiClient>>,
}

/// Anything of which only the id is read.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Thing {
    pub(crate) id: String,
    #[serde(default)]
    pub(crate) lifecycle_state: String,
    /// Of networks and their parts.
    #[serde(default)]
    pub(crate) vcn_id: Option<String>,
    #[serde(default)]
    pub(crate) default_route_table_id: Option<String>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Instance {
    pub(crate) id: String,
    #[serde(default)]
    pub(crate) display_name: String,
    pub(crate) availability_domain: String,
    pub(crate) lifecycle_state: String,
    #[serde(default)]
    pub(crate) freeform_tags: HashMap<String, String>,
}

/// A region that the tenancy may use, or will.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Subscription {
    pub(crate) region_name: String,
    pub(crate) status: String,
    pub(crate) is_home_region: bool,
}

impl Subscription {
    pub(crate) fn is_ready(&self) -> bool {
        self.status == "READY"
    }
}

/// Why OCI did not do something: by the code of its answer.
pub(crate) fn told<T>(answer: Result<T, ApiError>) -> Result<T, ComputeError> {
    answer.map_err(|error| {
        #[derive(Deserialize, Default)]
        struct Body {
            #[serde(default)]
            code: String,
            #[serde(default)]
            message: String,
        }
        let body: Body = serde_json::from_str(error.body()).unwrap_or_default();
        let text = format!("{}: {}", body.code, body.message);
        match (error.status(), body.code.as_str()) {
            (Some(status), "LimitExceeded" | "QuotaExceeded") if status.is_client_error() => {
                ComputeError::NoQuota(text)
            }
            // The status is 500 ("Out of host capacity" in OCI's list of errors of launches): nothing was made.
            (Some(StatusCode::INTERNAL_SERVER_ERROR), "InternalError")
                if body.message.contains("Out of host capacity") =>
            {
                ComputeError::NoCapacity(body.message)
            }
            (Some(StatusCode::CONFLICT), "IncorrectState") => ComputeError::NotReady(text),
            _ => compute_error(&error),
        }
    })
}

/// `None`: it is not there, or may not be seen: OCI does not tell which.
pub(crate) fn known<T>(answer: Result<T, ApiError>) -> Result<Option<T>, ApiError> {
    match answer {
        Err(error) if error.status() == Some(StatusCode::NOT_FOUND) => Ok(None),
        answer => answer.map(Some),
    }
}

impl Client {
    pub(crate) fn new(env: &Env, account: Account) -> Self {
        Self {
            env: env.clone(),
            account,
            clients: Mutex::default(),
        }
    }

    fn api(&self, service: Service, region: &str) -> Result<ApiClient, ApiError> {
        let mut clients = self.clients.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(client) = clients.get(&(service, region.to_owned())) {
            return Ok(client.clone());
        }
        let base = service.base(region);
        let base = match self.env.endpoints.get(&BackendType::Oci) {
            Some(url) => format!("{}/{base}", url.as_str().trim_end_matches('/')),
            None => format!("https://{base}"),
        };
        let url = Url::parse(&base).map_err(|error| ApiError::NotSent {
            api: base,
            details: error.to_string(),
        })?;
        let signature = Signature {
            clock: Arc::clone(&self.env.clock),
            account: self.account.clone(),
        };
        let limits = ApiLimits {
            timeout: Duration::from_secs(30),
            ..ApiLimits::default()
        };
        let client =
            ApiClient::new(Arc::clone(&self.env.transport), url, limits).with_signer(Arc::new(signature));
        clients.insert((service, region.to_owned()), client.clone());
        Ok(client)
    }

    /// All pages of a list.
    pub(crate) async fn list<T: DeserializeOwned>(
        &self,
        service: Service,
        region: &str,
        path: &str,
        query: &[(&str, &str)],
    ) -> Result<Vec<T>, ApiError> {
        let api = self.api(service, region)?;
        let (mut all, mut page) = (Vec::new(), None::<String>);
        for _ in 0..MAX_PAGES {
            let mut request = with_query(api.get(path), query);
            if let Some(page) = &page {
                request = request.query("page", page);
            }
            let answer = request.send_raw().await?;
            let items: Vec<T> = read(answer.body())?;
            all.extend(items);
            // Pages may be empty, and more may follow.
            let next = answer
                .headers()
                .get("opc-next-page")
                .and_then(|next| next.to_str().ok());
            match next.filter(|next| !next.is_empty()) {
                Some(next) => page = Some(next.to_owned()),
                None => return Ok(all),
            }
        }
        Err(malformed("its list has no end".to_owned()))
    }

    /// Regions of the tenancy.
    pub(crate) async fn subscriptions(&self) -> Result<Vec<Subscription>, ApiError> {
        let path = format!("tenancies/{}/regionSubscriptions", self.account.tenancy);
        self.list(Service::Identity, &self.account.region, &path, &[])
            .await
    }

    /// As [`Client::list`], of lists that have a bound for their pages.
    pub(crate) async fn list_long<T: DeserializeOwned>(
        &self,
        service: Service,
        region: &str,
        path: &str,
        query: &[(&str, &str)],
    ) -> Result<Vec<T>, ApiError> {
        let mut query = query.to_vec();
        query.push(("limit", PAGE));
        self.list(service, region, path, &query).await
    }

    pub(crate) async fn get<T: DeserializeOwned>(
        &self,
        service: Service,
        region: &str,
        path: &str,
        query: &[(&str, &str)],
    ) -> Result<T, ApiError> {
        let api = self.api(service, region)?;
        with_query(api.get(path), query).send().await
    }

    pub(crate) async fn post<T: DeserializeOwned>(
        &self,
        service: Service,
        region: &str,
        path: &str,
        body: &Value,
    ) -> Result<T, ApiError> {
        self.api(service, region)?.post(path).json(body).send().await
    }

    /// A POST that changes nothing.
    pub(crate) async fn ask<T: DeserializeOwned>(
        &self,
        service: Service,
        region: &str,
        path: &str,
        body: &Value,
    ) -> Result<T, ApiError> {
        let api = self.api(service, region)?;
        api.post(path).json(body).repeatable().send().await
    }

    pub(crate) async fn put(&self, region: &str, path: &str, body: &Value) -> Result<(), ApiError> {
        let api = self.api(Service::Core, region)?;
        api.put(path)
            .json(body)
            .repeatable()
            .send::<Value>()
            .await
            .map(drop)
    }

    /// All instances of a compartment in a region, with those that have ended of late.
    pub(crate) async fn instances(&self, region: &str, compartment: &str) -> Result<Vec<Instance>, ApiError> {
        let query = [("compartmentId", compartment)];
        self.list_long(Service::Core, region, "instances", &query).await
    }

    pub(crate) async fn terminate(&self, region: &str, id: &str) -> Result<(), ApiError> {
        let api = self.api(Service::Core, region)?;
        let request = api
            .delete(&format!("instances/{id}"))
            .query("preserveBootVolume", "false");
        let request = request.query("preserveDataVolumesCreatedAtLaunch", "false");
        request.send_raw().await.map(drop)
    }
}

fn with_query<'a>(request: ApiRequest<'a>, query: &[(&str, &str)]) -> ApiRequest<'a> {
    let add = |request: ApiRequest<'a>, (name, value): &(&str, &str)| request.query(name, value);
    query.iter().fold(request, add)
}

fn read<T: DeserializeOwned>(body: &[u8]) -> Result<T, ApiError> {
    serde_json::from_slice(body).map_err(|error| malformed(error.to_string()))
}

fn malformed(details: String) -> ApiError {
    ApiError::Malformed {
        api: "OCI".to_owned(),
        details,
    }
}
