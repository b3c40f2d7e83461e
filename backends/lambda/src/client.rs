//! The API, version 1.10.0.

use std::collections::BTreeMap;
use std::time::Duration;

use dstack_backend::Env;
use dstack_http::{ApiClient, ApiError, ApiLimits, ApiRequest};
use dstack_model::backends::BackendType;
use http::StatusCode;
use http::header::AUTHORIZATION;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::sync::Mutex;
use tokio::time::{Instant, sleep_until};

const BASE: &str = "https://cloud.lambda.ai/api/v1";

/// From one request to the next: the API takes one a second.
const REQUEST_INTERVAL: Duration = Duration::from_secs(1);

/// From one launch to the next.
const LAUNCH_INTERVAL: Duration = Duration::from_secs(12);

/// The API as one account.
#[derive(Debug)]
pub(crate) struct Client {
    api: ApiClient,
    /// When the next request may be sent.
    next: Mutex<Instant>,
    /// When the next machine may be launched.
    next_launch: Mutex<Instant>,
}

#[derive(Deserialize)]
struct Answer<T> {
    data: T,
}

/// A type of instances, and where some are free.
#[derive(Debug, Deserialize)]
pub(crate) struct TypeInfo {
    #[serde(default)]
    pub(crate) regions_with_capacity_available: Vec<Region>,
}

#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Region {
    pub(crate) name: String,
}

/// A public key of the account.
#[derive(Debug, Deserialize)]
pub(crate) struct SshKey {
    pub(crate) name: String,
    pub(crate) public_key: String,
}

/// An instance that is asked for.
#[derive(Debug, Serialize)]
pub(crate) struct Launch<'a> {
    pub(crate) region_name: &'a str,
    pub(crate) instance_type_name: &'a str,
    /// Exactly one.
    pub(crate) ssh_key_names: [&'a str; 1],
    pub(crate) name: &'a str,
    /// For cloud-init.
    pub(crate) user_data: &'a str,
}

/// Why an instance was not launched, or nobody knows whether it was.
#[derive(Debug)]
pub(crate) enum NotLaunched {
    /// It was not asked for, as others were just before; when it may be.
    NotYet(Duration),
    Failed(ApiError),
}

/// An instance that was launched.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Instance {
    pub(crate) id: String,
    #[serde(default)]
    pub(crate) name: Option<String>,
    /// Its public address; not there while it boots.
    #[serde(default)]
    pub(crate) ip: Option<String>,
    pub(crate) status: Status,
    pub(crate) region: Region,
    pub(crate) instance_type: InstanceType,
}

/// Of an instance.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Status {
    Booting,
    Active,
    Unhealthy,
    Terminating,
    Terminated,
    Preempted,
    /// One that came after this version.
    #[serde(other)]
    Other,
}

#[derive(Debug, Clone, Deserialize)]
pub(crate) struct InstanceType {
    pub(crate) price_cents_per_hour: f64,
}

/// What the API tells of an error, by which kinds of errors are told apart.
#[derive(Debug, Deserialize)]
pub(crate) struct Problem {
    pub(crate) code: String,
    #[serde(default)]
    pub(crate) message: String,
}

impl Problem {
    /// Of an answer; `None`: it has none.
    pub(crate) fn of(error: &ApiError) -> Option<Self> {
        #[derive(Deserialize)]
        struct Body {
            error: Problem,
        }
        let body: Body = serde_json::from_str(error.body()).ok()?;
        Some(body.error)
    }
}

impl Client {
    pub(crate) fn new(env: &Env, api_key: &str) -> Result<Self, String> {
        let limits = ApiLimits {
            timeout: Duration::from_secs(60),
            ..ApiLimits::default()
        };
        let client = env.api_with_key(
            BackendType::Lambda,
            BASE,
            limits,
            AUTHORIZATION,
            &format!("Bearer {api_key}"),
        )?;
        Ok(Self {
            api: client,
            next: Mutex::new(Instant::now()),
            next_launch: Mutex::new(Instant::now()),
        })
    }

    /// Sends a request when it is its turn.
    async fn send<T: DeserializeOwned>(&self, request: ApiRequest<'_>) -> Result<T, ApiError> {
        self.wait_for_turn().await;
        let answer: Answer<T> = request.send().await?;
        Ok(answer.data)
    }

    async fn wait_for_turn(&self) {
        let mut next = self.next.lock().await;
        sleep_until(*next).await;
        *next = Instant::now() + REQUEST_INTERVAL;
    }

    /// All types, by name.
    pub(crate) async fn instance_types(&self) -> Result<BTreeMap<String, TypeInfo>, ApiError> {
        self.send(self.api.get("instance-types")).await
    }

    pub(crate) async fn ssh_keys(&self) -> Result<Vec<SshKey>, ApiError> {
        self.send(self.api.get("ssh-keys")).await
    }

    pub(crate) async fn add_ssh_key(&self, name: &str, public_key: &str) -> Result<(), ApiError> {
        let key = json!({"name": name, "public_key": public_key});
        let request = self.api.post("ssh-keys").json(&key);
        self.send::<Value>(request).await.map(drop)
    }

    /// The id of the instance.
    pub(crate) async fn launch(&self, launch: &Launch<'_>) -> Result<Option<String>, NotLaunched> {
        #[derive(Deserialize)]
        struct Launched {
            instance_ids: Vec<String>,
        }
        // Another one that waits to be sent has the next turn.
        let mut next = self
            .next_launch
            .try_lock()
            .map_err(|_| NotLaunched::NotYet(LAUNCH_INTERVAL))?;
        let wait = next.saturating_duration_since(Instant::now());
        if !wait.is_zero() {
            return Err(NotLaunched::NotYet(wait));
        }
        self.wait_for_turn().await;
        *next = Instant::now() + LAUNCH_INTERVAL;
        drop(next);
        let request = self.api.post("instance-operations/launch").json(launch);
        let launched = request.send::<Answer<Launched>>().await;
        let launched = launched.map_err(NotLaunched::Failed)?.data;
        Ok(launched.instance_ids.into_iter().next())
    }

    /// All that run. The API has no pages.
    pub(crate) async fn instances(&self) -> Result<Vec<Instance>, ApiError> {
        self.send(self.api.get("instances")).await
    }

    /// `None`: it is not there.
    pub(crate) async fn instance(&self, id: &str) -> Result<Option<Instance>, ApiError> {
        found(self.send(self.api.get(&format!("instances/{id}"))).await)
    }

    /// What is not there any more is no error.
    pub(crate) async fn terminate(&self, id: &str) -> Result<(), ApiError> {
        let ask = json!({"instance_ids": [id]});
        let request = self.api.post("instance-operations/terminate").json(&ask);
        found(self.send::<Value>(request).await).map(drop)
    }
}

/// Only the API itself says that something does not exist, not a proxy before it.
fn found<T>(answer: Result<T, ApiError>) -> Result<Option<T>, ApiError> {
    match answer {
        Err(error) if error.status() == Some(StatusCode::NOT_FOUND) && Problem::of(&error).is_some() => {
            Ok(None)
        }
        answer => answer.map(Some),
    }
}
