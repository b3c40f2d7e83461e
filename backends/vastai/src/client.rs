//! The API, as its vendor describes it (OpenAPI 1.0.0).

use std::time::Duration;

use dstack_backend::Env;
use dstack_http::{ApiClient, ApiError, ApiLimits};
use dstack_model::backends::BackendType;
use http::StatusCode;
use http::header::AUTHORIZATION;
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::Value;

const BASE: &str = "https://console.vast.ai/api";

/// Pages of a list of instances, at most: an account with more has another problem.
const MOST_PAGES: usize = 400;

/// The API as one account.
#[derive(Debug)]
pub(crate) struct Client(ApiClient);

/// A contract over a container on a host (`Instance`). It costs money until it is destroyed, also when its container has stopped.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Instance {
    pub(crate) id: i64,
    /// The name that it was asked for with.
    #[serde(default)]
    pub(crate) label: Option<String>,
    /// Of the container: `created`, `loading`, `running`, `exited`, `offline`, ...; `None`: nothing is known yet.
    #[serde(default)]
    pub(crate) actual_status: Option<String>,
    /// What the contract is in: `running` or `stopped`.
    #[serde(default)]
    pub(crate) cur_state: Option<String>,
    #[serde(default)]
    pub(crate) intended_status: Option<String>,
    #[serde(default)]
    pub(crate) next_state: Option<String>,
    /// What the host says of the container.
    #[serde(default)]
    pub(crate) status_msg: Option<String>,
    /// Whether it may be outbid.
    #[serde(default)]
    pub(crate) is_bid: bool,
    #[serde(default)]
    pub(crate) public_ipaddr: Option<String>,
    /// As Docker has it: `{"10022/tcp": [{"HostIp": "0.0.0.0", "HostPort": "20011"}]}`.
    #[serde(default)]
    pub(crate) ports: Value,
    /// Dollars an hour.
    #[serde(default)]
    pub(crate) dph_total: Option<f64>,
    /// Seconds since 1970.
    #[serde(default)]
    pub(crate) start_date: Option<f64>,
}

/// What the API says of an offer that is asked for, also with an error status.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
pub(crate) struct Rented {
    #[serde(default)]
    pub(crate) success: bool,
    /// The contract. There may be one although the call has failed, such as a bid that is too low: it stands still, and costs money.
    #[serde(default)]
    pub(crate) new_contract: Option<i64>,
    /// A code such as `no_such_ask`.
    #[serde(default)]
    pub(crate) error: String,
    #[serde(default)]
    pub(crate) msg: String,
}

#[derive(Deserialize)]
struct Destroyed {
    #[serde(default)]
    success: bool,
    #[serde(default)]
    error: String,
    #[serde(default)]
    msg: String,
}

impl Client {
    pub(crate) fn new(env: &Env, api_key: &str) -> Result<Self, String> {
        // Each endpoint takes a call every 1 to 4.5 seconds.
        let limits = ApiLimits {
            timeout: Duration::from_secs(30),
            parallel: 4,
            ..ApiLimits::default()
        };
        let client = env.api(BackendType::VastAi, BASE, limits)?;
        let client = client.with_secret_header(AUTHORIZATION, &format!("Bearer {api_key}"));
        Ok(Self(client.map_err(|_| {
            "the API key has characters that no key has".to_owned()
        })?))
    }

    /// Whether the key is one, and may list instances.
    pub(crate) async fn check_account(&self) -> Result<(), ApiError> {
        let request = self.0.get("v1/instances/").query("limit", "1");
        request.send::<IgnoredAny>().await.map(drop)
    }

    /// What the marketplace has.
    pub(crate) async fn search(&self, body: &Value) -> Result<Value, ApiError> {
        self.0.post("v0/bundles/").json(body).repeatable().send().await
    }

    /// Accepts an offer.
    pub(crate) async fn rent(&self, offer: &str, body: &Value) -> Result<Rented, ApiError> {
        self.0.put(&format!("v0/asks/{offer}/")).json(body).send().await
    }

    /// One contract, if it exists.
    pub(crate) async fn instance(&self, id: &str) -> Result<Option<Instance>, ApiError> {
        #[derive(Deserialize)]
        struct Found {
            instances: Option<Instance>,
        }
        let found = self.0.get(&format!("v0/instances/{id}/")).send::<Found>().await;
        match found {
            Ok(found) => Ok(found.instances),
            Err(error) if error.status() == Some(StatusCode::NOT_FOUND) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// All contracts, page by page.
    pub(crate) async fn instances(&self) -> Result<Vec<Instance>, ApiError> {
        #[derive(Deserialize)]
        struct Page {
            instances: Vec<Instance>,
            #[serde(default)]
            next_token: Option<String>,
        }
        let mut all = Vec::new();
        let mut token: Option<String> = None;
        for _ in 0..MOST_PAGES {
            let mut request = self.0.get("v1/instances/").query("limit", "25");
            if let Some(token) = &token {
                request = request.query("after_token", token);
            }
            let page: Page = request.send().await?;
            all.extend(page.instances);
            token = page.next_token.filter(|token| !token.is_empty());
            if token.is_none() {
                return Ok(all);
            }
        }
        Err(ApiError::Malformed {
            api: "vast.ai".to_owned(),
            details: format!("the list of instances has more than {MOST_PAGES} pages"),
        })
    }

    /// Ends a contract. What is not there is no error.
    pub(crate) async fn destroy(&self, id: &str) -> Result<(), ApiError> {
        let request = self.0.delete(&format!("v0/instances/{id}/")).repeatable();
        let destroyed = match request.send::<Destroyed>().await {
            Ok(destroyed) => destroyed,
            Err(error) if error.status() == Some(StatusCode::NOT_FOUND) => return Ok(()),
            Err(error) => return Err(error),
        };
        match destroyed.success || destroyed.error == "no_such_instance" {
            true => Ok(()),
            false => Err(ApiError::Malformed {
                api: "vast.ai".to_owned(),
                details: format!("it did not destroy the instance: {}", destroyed.msg),
            }),
        }
    }
}
