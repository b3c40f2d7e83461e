//! The API, as its vendor describes it (OpenAPI 1.0.0).

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use dstack_backend::{Cached, Env, compute_error, one_line};
use dstack_compute::ComputeError;
use dstack_http::{ApiClient, ApiError, ApiLimits, ApiRequest};
use dstack_model::backends::BackendType;
use http::StatusCode;
use http::header::AUTHORIZATION;
use serde::de::{DeserializeOwned, IgnoredAny};
use serde::{Deserialize, Deserializer};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep_until};

const BASE: &str = "https://console.vast.ai/api";

/// Pages of a list of instances, at most: an account with more has another problem.
const MOST_PAGES: usize = 400;

/// How often a call is sent again that came too early: others may use the account too.
const MOST_REPETITIONS: usize = 20;

/// Longest time to wait for the calls before: who would have to wait longer comes again then.
const LONGEST_WAIT: Duration = Duration::from_secs(10);

/// How long the list of contracts is taken for true by those that wait for something.
const LIST_LIFETIME: Duration = Duration::from_secs(5);

/// Calls of one endpoint, which the API takes one at a time with a pause between them.
#[derive(Debug)]
struct Endpoint {
    interval: Duration,
    next: Mutex<Instant>,
}

impl Endpoint {
    /// `interval` in milliseconds: a little more than the vendor's `threshold`.
    fn new(interval: u64) -> Self {
        Self {
            interval: Duration::from_millis(interval),
            next: Mutex::new(Instant::now()),
        }
    }

    /// # Errors
    /// Too many wait.
    fn admit(&self) -> Result<(), ComputeError> {
        let next = *self.next.lock().unwrap_or_else(PoisonError::into_inner);
        let after = next.saturating_duration_since(Instant::now());
        match after > LONGEST_WAIT {
            true => Err(ComputeError::Throttled {
                after,
                details: "many calls to Vast.ai wait for each other".to_owned(),
            }),
            false => Ok(()),
        }
    }

    async fn wait_for_turn(&self) {
        let turn = {
            let mut next = self.next.lock().unwrap_or_else(PoisonError::into_inner);
            let turn = Instant::now().max(*next);
            *next = turn + self.interval;
            turn
        };
        sleep_until(turn).await;
    }
}

/// What all that use an API key have in common.
#[derive(Debug)]
pub(crate) struct Account {
    list: Endpoint,
    show: Endpoint,
    destroy: Endpoint,
    rent: Endpoint,
    contracts: Cached<Vec<Instance>>,
}

impl Account {
    pub(crate) fn new(env: &Env) -> Self {
        Self {
            list: Endpoint::new(1_100),
            show: Endpoint::new(2_100),
            destroy: Endpoint::new(3_100),
            rent: Endpoint::new(4_600),
            contracts: Cached::new(Arc::clone(&env.clock), LIST_LIFETIME, Duration::ZERO),
        }
    }
}

/// The API as one account.
#[derive(Debug)]
pub(crate) struct Client {
    api: ApiClient,
    account: Arc<Account>,
}

/// A contract over a container on a host (`Instance`). It costs money until it is destroyed, also when its container has stopped.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Instance {
    pub(crate) id: i64,
    /// The name that it was asked for with.
    #[serde(default)]
    pub(crate) label: Option<String>,
    /// Of the container: `created`, `loading`, `running`, `exited`, `offline`, ...; `None`: nothing is known yet.
    #[serde(default, deserialize_with = "if_read")]
    pub(crate) actual_status: Option<String>,
    /// What the contract is in: `running` or `stopped`.
    #[serde(default, deserialize_with = "if_read")]
    pub(crate) cur_state: Option<String>,
    #[serde(default, deserialize_with = "if_read")]
    pub(crate) intended_status: Option<String>,
    #[serde(default, deserialize_with = "if_read")]
    pub(crate) next_state: Option<String>,
    /// What the host says of the container.
    #[serde(default, deserialize_with = "if_read")]
    pub(crate) status_msg: Option<String>,
    /// Whether it may be outbid.
    #[serde(default, deserialize_with = "if_read")]
    pub(crate) is_bid: bool,
    #[serde(default, deserialize_with = "if_read")]
    pub(crate) public_ipaddr: Option<String>,
    /// As Docker has it: `{"10022/tcp": [{"HostIp": "0.0.0.0", "HostPort": "20011"}]}`.
    #[serde(default, deserialize_with = "if_read")]
    pub(crate) ports: Value,
    /// Dollars an hour.
    #[serde(default, deserialize_with = "if_read")]
    pub(crate) dph_total: Option<f64>,
    /// Seconds since 1970.
    #[serde(default, deserialize_with = "if_read")]
    pub(crate) start_date: Option<f64>,
}

/// What it is, if it is of the form that is expected: the rest of an answer is not lost with it.
fn if_read<'de, D: Deserializer<'de>, T: DeserializeOwned + Default>(field: D) -> Result<T, D::Error> {
    let value = Value::deserialize(field)?;
    Ok(serde_json::from_value(value).unwrap_or_default())
}

impl Client {
    pub(crate) fn new(env: &Env, api_key: &str, account: Arc<Account>) -> Result<Self, String> {
        let limits = ApiLimits {
            timeout: Duration::from_secs(30),
            parallel: 4,
            ..ApiLimits::default()
        };
        let api = env.api_with_key(
            BackendType::VastAi,
            BASE,
            limits,
            AUTHORIZATION,
            &format!("Bearer {api_key}"),
        )?;
        Ok(Self { api, account })
    }

    /// Sends a request when it is its turn, and again while the API says that it came too early.
    async fn send<'a, T: DeserializeOwned>(
        &'a self,
        endpoint: &Endpoint,
        request: impl Fn() -> ApiRequest<'a> + Send,
    ) -> Result<T, ApiError> {
        let mut repetitions = 0;
        loop {
            endpoint.wait_for_turn().await;
            let answer = request().send().await;
            let is_early = matches!(
                &answer,
                Err(ApiError::Status {
                    status: StatusCode::TOO_MANY_REQUESTS,
                    retry_after: None,
                    ..
                })
            );
            if !is_early || repetitions == MOST_REPETITIONS {
                return answer.map_err(of_key);
            }
            repetitions += 1;
        }
    }

    /// Whether the key is one, and may list instances.
    pub(crate) async fn check_account(&self) -> Result<(), ApiError> {
        let request = || self.api.get("v1/instances/").query("limit", "1");
        self.send::<IgnoredAny>(&self.account.list, request)
            .await
            .map(drop)
    }

    /// What the marketplace has.
    pub(crate) async fn search(&self, body: &Value) -> Result<Value, ComputeError> {
        let answer = self.api.post("v0/bundles/").json(body).repeatable().send().await;
        told(answer.map_err(of_key))
    }

    /// Accepts an offer; what the API says of that.
    ///
    /// # Errors
    /// It was not asked, as too many wait.
    pub(crate) async fn rent(
        &self,
        offer: &str,
        body: &Value,
    ) -> Result<Result<Value, ApiError>, ComputeError> {
        self.account.rent.admit()?;
        self.account.rent.wait_for_turn().await;
        Ok(self.api.put(&format!("v0/asks/{offer}/")).json(body).send().await)
    }

    /// One contract, if it exists.
    pub(crate) async fn instance(&self, id: &str) -> Result<Option<Instance>, ComputeError> {
        self.account.show.admit()?;
        let request = || self.api.get(&format!("v0/instances/{id}/"));
        let found: Value = match self.send(&self.account.show, request).await {
            Err(error) if is_missing(&error) => return Ok(None),
            answer => told(answer)?,
        };
        let instance = found.get("instances").cloned();
        let instance = instance.map(serde_json::from_value::<Option<Instance>>);
        match instance {
            Some(Ok(instance)) => Ok(instance),
            _ => Err(malformed(format!(
                "it does not say whether there is instance {id}"
            ))),
        }
    }

    /// All contracts, as they are now. Those who ask at the same time share the answer.
    pub(crate) async fn contracts_now(&self) -> Result<Arc<Vec<Instance>>, ComputeError> {
        self.account.contracts.forget();
        self.contracts().await
    }

    /// All contracts, as they were a moment ago.
    pub(crate) async fn contracts(&self) -> Result<Arc<Vec<Instance>>, ComputeError> {
        self.account.contracts.get(|| self.fetch_contracts()).await
    }

    async fn fetch_contracts(&self) -> Result<Vec<Instance>, ComputeError> {
        let mut all = Vec::new();
        let mut token: Option<String> = None;
        for _ in 0..MOST_PAGES {
            let more = token
                .iter()
                .map(|token| ("after_token", token.as_str()))
                .collect();
            let page = self.page(more).await?;
            all.extend(page.instances);
            token = page.next_token.filter(|token| !token.is_empty());
            if token.is_none() {
                return Ok(all);
            }
        }
        Err(malformed(format!(
            "the list of instances has more than {MOST_PAGES} pages"
        )))
    }

    /// The contract with this label.
    pub(crate) async fn labelled(&self, label: &str) -> Result<Option<Instance>, ComputeError> {
        self.account.list.admit()?;
        let filters = json!({"label": {"eq": label}}).to_string();
        let found = self.page(vec![("select_filters", &filters)]).await?.instances;
        let is_it = |instance: &&Instance| instance.label.as_deref() == Some(label);
        // The filter is not heeded.
        if !found.iter().all(|instance| is_it(&instance)) {
            return Ok(self.contracts_now().await?.iter().find(is_it).cloned());
        }
        Ok(found.into_iter().next())
    }

    async fn page(&self, query: Vec<(&str, &str)>) -> Result<Page, ComputeError> {
        let request = || {
            let request = self.api.get("v1/instances/").query("limit", "25");
            query
                .iter()
                .fold(request, |request, (name, value)| request.query(name, value))
        };
        told(self.send(&self.account.list, request).await)
    }

    /// Ends a contract. What is not there is no error.
    pub(crate) async fn destroy(&self, id: &str) -> Result<(), ComputeError> {
        self.account.destroy.admit()?;
        let request = || self.api.delete(&format!("v0/instances/{id}/")).repeatable();
        let answer: Value = match self.send(&self.account.destroy, request).await {
            Err(error) if is_missing(&error) => return Ok(()),
            answer => told(answer)?,
        };
        match answer.get("success") == Some(&Value::Bool(true)) || names_missing(&answer) {
            true => Ok(()),
            false => Err(malformed(format!(
                "it did not destroy instance {id}: {}",
                one_line(&answer.to_string())
            ))),
        }
    }
}

#[derive(Deserialize)]
struct Page {
    instances: Vec<Instance>,
    #[serde(default)]
    next_token: Option<String>,
}

fn told<T>(answer: Result<T, ApiError>) -> Result<T, ComputeError> {
    answer.map_err(|error| compute_error(&error))
}

fn malformed(details: String) -> ComputeError {
    let api = "vast.ai".to_owned();
    compute_error(&ApiError::Malformed { api, details })
}

/// Only the API itself says that something does not exist, not a proxy before it.
fn is_missing(error: &ApiError) -> bool {
    let said = serde_json::from_str(error.body());
    error.status() == Some(StatusCode::NOT_FOUND) && said.is_ok_and(|said| names_missing(&said))
}

fn names_missing(answer: &Value) -> bool {
    let code = answer.get("error").and_then(Value::as_str);
    matches!(code, Some("not_found" | "no_such_instance"))
}

/// Some endpoints answer 404 to a key that is none; others answer 401.
fn of_key(error: ApiError) -> ApiError {
    match error {
        ApiError::Status {
            api,
            status: StatusCode::NOT_FOUND,
            body,
            retry_after,
        } if body.contains("Invalid user key") => ApiError::Status {
            api,
            status: StatusCode::UNAUTHORIZED,
            body,
            retry_after,
        },
        error => error,
    }
}
