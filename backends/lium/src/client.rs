//! The API, of which the vendor publishes no description: by its SDK `lium.io` 0.32.0, and by what dstack 0.22.5 relies on.
//!
//! All lists come whole. Of errors, only the code is kept: their texts may repeat what was sent.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use dstack_backend::Env;
use dstack_http::{ApiClient, ApiError, ApiLimits, ApiRequest};
use dstack_model::backends::BackendType;
use dstack_units::Time;
use http::{HeaderName, StatusCode};
use serde::Deserialize;
use serde::de::{DeserializeOwned, IgnoredAny};
use serde_json::{Map, Value, json};
use tokio::time::{Instant, sleep_until};

const BASE: &str = "https://lium.io/api";

const HOST: &str = "lium.io";

/// From one call to the next: an account may make 60 in a minute.
const CALL_INTERVAL: Duration = Duration::from_secs(1);

/// A call that would have to wait longer for its turn is not made.
const LONGEST_WAIT: Duration = Duration::from_secs(30);

/// The most events that are told at once.
const MOST_EVENTS: &str = "1000";

/// The API as one account.
#[derive(Debug)]
pub(crate) struct Client {
    api: ApiClient,
    /// When the next call may be made.
    next: Mutex<Instant>,
}

/// A container with its SSH server on a node.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Pod {
    pub(crate) id: String,
    #[serde(default)]
    pub(crate) pod_name: String,
    /// The node that it is on.
    #[serde(default)]
    pub(crate) executor_id: Option<String>,
    /// `PENDING`, `RUNNING`, `FAILED`, `DELETING`, ..., in any case.
    #[serde(default)]
    pub(crate) status: String,
    /// `ssh root@203.0.113.90 -p 20022`.
    #[serde(default)]
    pub(crate) ssh_connect_cmd: Option<String>,
    /// Ports of the node, by those of the container.
    #[serde(default)]
    pub(crate) ports_mapping: Option<Map<String, Value>>,
    /// Dollars an hour.
    #[serde(default)]
    pub(crate) price: Option<f64>,
    /// What it is at, for people.
    #[serde(default)]
    pub(crate) phase: Option<String>,
}

/// A template of pods, or a volume.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Named {
    pub(crate) id: String,
    #[serde(default)]
    pub(crate) name: String,
}

/// What has happened to a pod. Those of pods that are over stay.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Event {
    #[serde(default)]
    pub(crate) pod_id: Option<String>,
    #[serde(default)]
    pub(crate) pod_name: Option<String>,
    /// As [`Pod::status`].
    #[serde(default)]
    pub(crate) to_status: Option<String>,
    /// `pod-create.request`, `pod-delete.success`, ...
    #[serde(default)]
    pub(crate) sub_event_type: Option<String>,
}

impl Client {
    pub(crate) fn new(env: &Env, api_key: &str) -> Result<Self, String> {
        let limits = ApiLimits {
            timeout: Duration::from_secs(30),
            ..ApiLimits::default()
        };
        let client = env.api_with_key(
            BackendType::Lium,
            BASE,
            limits,
            HeaderName::from_static("x-api-key"),
            api_key,
        )?;
        Ok(Self {
            api: client,
            next: Mutex::new(Instant::now()),
        })
    }

    /// Makes a call when it is its turn.
    async fn send<T: DeserializeOwned>(&self, request: ApiRequest<'_>) -> Result<T, ApiError> {
        self.wait_for_turn().await?;
        request.send().await.map_err(without_text)
    }

    async fn wait_for_turn(&self) -> Result<(), ApiError> {
        let turn = self.turn()?;
        sleep_until(turn).await;
        Ok(())
    }

    fn turn(&self) -> Result<Instant, ApiError> {
        let mut next = self.next.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        let turn = (*next).max(now);
        let wait = turn.saturating_duration_since(now);
        if wait > LONGEST_WAIT {
            return Err(ApiError::Status {
                api: HOST.to_owned(),
                status: StatusCode::TOO_MANY_REQUESTS,
                body: "too_many_calls_wait".to_owned(),
                retry_after: Some(wait),
            });
        }
        *next = turn + CALL_INTERVAL;
        Ok(turn)
    }

    async fn read<T: DeserializeOwned>(&self, path: &str) -> Result<T, ApiError> {
        self.send(self.api.get(path)).await
    }

    /// `None`: there is no such thing.
    async fn read_one<T: DeserializeOwned>(&self, path: &str) -> Result<Option<T>, ApiError> {
        match self.read(path).await {
            Err(error) if is_missing(&error) => Ok(None),
            answer => answer.map(Some),
        }
    }

    async fn create(&self, path: &str, body: &Value) -> Result<String, ApiError> {
        #[derive(Deserialize)]
        struct Id {
            id: String,
        }
        let made: Id = self.send(self.api.post(path).json(body)).await?;
        Ok(made.id)
    }

    /// What is not there is no error.
    async fn delete(&self, path: &str) -> Result<(), ApiError> {
        self.wait_for_turn().await?;
        let deleted = self.api.delete(path).repeatable().send_raw().await;
        match deleted.map_err(without_text) {
            Err(error) if is_missing(&error) => Ok(()),
            answer => answer.map(drop),
        }
    }

    /// Whether the key is one.
    pub(crate) async fn check_account(&self) -> Result<(), ApiError> {
        self.read::<IgnoredAny>("users/me").await.map(drop)
    }

    /// All nodes that can be rented.
    pub(crate) async fn nodes(&self) -> Result<Value, ApiError> {
        self.read("public/v1/nodes").await
    }

    pub(crate) async fn pods(&self) -> Result<Vec<Pod>, ApiError> {
        self.read("pods").await
    }

    pub(crate) async fn pod(&self, id: &str) -> Result<Option<Pod>, ApiError> {
        self.read_one(&format!("pods/{id}")).await
    }

    pub(crate) async fn delete_pod(&self, id: &str) -> Result<(), ApiError> {
        self.delete(&format!("pods/{id}")).await
    }

    /// The id of the pod. Whoever asks again with the same key and body has the same answer.
    pub(crate) async fn rent(&self, node: &str, key: &str, body: &Value) -> Result<String, ApiError> {
        #[derive(Deserialize)]
        struct Rented {
            pod_id: String,
        }
        let request = self.api.post(&format!("executors/{node}/rent")).json(body);
        let request = request.header(HeaderName::from_static("idempotency-key"), key);
        let rented: Rented = self.send(request).await?;
        Ok(rented.pod_id)
    }

    /// What the API can do beyond what it always could.
    pub(crate) async fn features(&self) -> Result<Vec<String>, ApiError> {
        #[derive(Deserialize)]
        struct Version {
            #[serde(default)]
            features: Vec<String>,
        }
        Ok(self.read::<Version>("version").await?.features)
    }

    /// The last thousand, the newest first. Not every Lium tells them to who comes with a key: then there are none.
    pub(crate) async fn events_since(&self, since: Time) -> Result<Vec<Event>, ApiError> {
        let request = self.api.get("users/me/events").query("limit", MOST_EVENTS);
        match self.send(request.query("since", &since.to_string())).await {
            Err(error)
                if matches!(
                    error.status(),
                    Some(StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN | StatusCode::NOT_FOUND)
                ) =>
            {
                tracing::debug!(%error, "Lium does not tell what happened to pods");
                Ok(Vec::new())
            }
            answer => answer,
        }
    }

    pub(crate) async fn templates(&self) -> Result<Vec<Named>, ApiError> {
        self.read("templates").await
    }

    pub(crate) async fn create_template(&self, body: &Value) -> Result<String, ApiError> {
        self.create("templates", body).await
    }

    pub(crate) async fn delete_template(&self, id: &str) -> Result<(), ApiError> {
        self.delete(&format!("templates/{id}")).await
    }

    /// The id of a login to an image registry, which has no name.
    pub(crate) async fn create_login(&self, username: &str, password: &str) -> Result<String, ApiError> {
        let body = json!({"docker_username": username, "docker_password": password});
        self.create("docker-credentials/", &body).await
    }

    pub(crate) async fn delete_login(&self, id: &str) -> Result<(), ApiError> {
        self.delete(&format!("docker-credentials/{id}")).await
    }

    pub(crate) async fn volumes(&self) -> Result<Vec<Named>, ApiError> {
        self.read("volumes").await
    }

    pub(crate) async fn volume(&self, id: &str) -> Result<Option<Named>, ApiError> {
        self.read_one(&format!("volumes/{id}")).await
    }

    pub(crate) async fn create_volume(&self, name: &str) -> Result<String, ApiError> {
        self.create("volumes", &json!({"name": name})).await
    }

    pub(crate) async fn delete_volume(&self, id: &str) -> Result<(), ApiError> {
        self.delete(&format!("volumes/{id}")).await
    }
}

/// Only the API itself says that there is no such thing, by a code, and not a proxy before it.
fn is_missing(error: &ApiError) -> bool {
    error.status() == Some(StatusCode::NOT_FOUND) && !error.body().is_empty()
}

/// An error with its code alone (`{"error": {"code", "message"}}`).
fn without_text(error: ApiError) -> ApiError {
    match error {
        ApiError::Status {
            api,
            status,
            body,
            retry_after,
        } => ApiError::Status {
            api,
            status,
            body: code_of(&body),
            retry_after,
        },
        other => other,
    }
}

fn code_of(body: &str) -> String {
    let body: Value = serde_json::from_str(body).unwrap_or_default();
    let code = body.pointer("/error/code").and_then(Value::as_str);
    let is_code = |code: &&str| {
        let of_code = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_';
        !code.is_empty() && code.len() <= 64 && code.bytes().all(of_code)
    };
    code.filter(is_code).unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_api_says_that_something_is_missing() {
        let missing = |body: &str| {
            is_missing(&without_text(ApiError::Status {
                api: HOST.to_owned(),
                status: StatusCode::NOT_FOUND,
                body: body.to_owned(),
                retry_after: None,
            }))
        };
        assert!(missing(
            r#"{"error": {"code": "pod_not_found", "message": "no"}}"#
        ));
        assert!(!missing("<html>404</html>"));
    }

    #[test]
    fn of_an_error_only_the_code_is_kept() {
        for (body, code) in [
            (
                r#"{"error": {"code": "node_unavailable", "message": "secret"}}"#,
                "node_unavailable",
            ),
            (r#"{"error": {"code": "Not A Code"}}"#, ""),
            (r#"{"error": "secret"}"#, ""),
            (r#"{"detail": "secret"}"#, ""),
            ("<html>secret</html>", ""),
            ("", ""),
        ] {
            assert_eq!(code_of(body), code, "{body}");
        }
    }
}
