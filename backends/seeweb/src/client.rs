//! The ECS API v2, as far as machines need it. The vendor publishes no description: facts are from its SDK (`ecsapi` 0.4.0), its client in Go,
//! and from what dstack 0.22.5 calls. Lists have no pages there.

use std::time::Duration;

use dstack_backend::Env;
use dstack_http::{ApiClient, ApiError, ApiLimits, ApiRequest};
use dstack_model::backends::BackendType;
use dstack_units::Time;
use http::{HeaderName, StatusCode};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer};
use serde_json::{Value, json};

const HOST: &str = "api.seeweb.it";

const BASE: &str = "https://api.seeweb.it/ecs/v2";

/// What answers say that are none of an error.
const GOOD: [&str; 2] = ["ok", "success"];

/// The API as one account.
#[derive(Debug)]
pub(crate) struct Client(ApiClient);

/// What is sold. Numbers may be texts.
#[derive(Debug, Deserialize)]
pub(crate) struct Plan {
    pub(crate) name: String,
    #[serde(default)]
    pub(crate) cpu: Value,
    /// In MiB.
    #[serde(default)]
    pub(crate) ram: Value,
    /// In GB.
    #[serde(default)]
    pub(crate) disk: Value,
    #[serde(default)]
    pub(crate) gpu: Value,
    /// Such as `RTX PRO 6000 96GB`.
    #[serde(default)]
    pub(crate) gpu_label: Option<String>,
    #[serde(default)]
    pub(crate) hourly_price: Value,
    /// Whether it is sold, not whether one is free.
    #[serde(default)]
    pub(crate) available: Option<bool>,
    #[serde(default)]
    pub(crate) available_regions: Vec<Region>,
}

#[derive(Debug, Deserialize)]
pub(crate) struct Region {
    pub(crate) location: String,
}

/// Where one of a plan is free now, and with which images.
#[derive(Debug, Deserialize)]
pub(crate) struct Availability {
    pub(crate) name: String,
    #[serde(default)]
    pub(crate) region_availables: Vec<FreeRegion>,
    #[serde(default)]
    pub(crate) os_availables: Vec<Image>,
}

#[derive(Debug, Deserialize)]
pub(crate) struct FreeRegion {
    pub(crate) region: String,
}

#[derive(Debug, Deserialize)]
pub(crate) struct Image {
    pub(crate) name: String,
    #[serde(default)]
    pub(crate) active_flag: Option<bool>,
}

/// A public key of the account.
#[derive(Debug, Deserialize)]
pub(crate) struct AccountKey {
    pub(crate) key: String,
    pub(crate) label: String,
}

#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Server {
    /// By what it is known; the vendor makes it up.
    pub(crate) name: String,
    /// What it was asked for with.
    #[serde(default)]
    pub(crate) notes: Option<String>,
    /// Empty or `None`: none yet.
    #[serde(default)]
    pub(crate) ipv4: Option<String>,
    #[serde(default)]
    pub(crate) location: Option<String>,
    #[serde(default)]
    pub(crate) status: Status,
    /// `None`: it is not told, or not understood.
    #[serde(default, deserialize_with = "lenient")]
    pub(crate) creation_date: Option<Time>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(from = "Value")]
pub(crate) enum Status {
    Booting,
    Booted,
    Deleting,
    Deleted,
    Fail,
    /// `Customizing`, `Reimaging`, and what came after the SDK.
    #[default]
    Other,
}

impl From<Value> for Status {
    fn from(status: Value) -> Self {
        match lower(&status).as_str() {
            "booting" => Self::Booting,
            "booted" => Self::Booted,
            "deleting" => Self::Deleting,
            "deleted" => Self::Deleted,
            "fail" | "failed" => Self::Fail,
            _ => Self::Other,
        }
    }
}

/// How far something is that takes time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(from = "Value")]
pub(crate) enum Progress {
    Completed,
    Failed,
    Underway,
}

impl From<Value> for Progress {
    fn from(status: Value) -> Self {
        match lower(&status).as_str() {
            "completed" => Self::Completed,
            "failed" => Self::Failed,
            _ => Self::Underway,
        }
    }
}

fn lower(text: &Value) -> String {
    text.as_str().unwrap_or_default().trim().to_ascii_lowercase()
}

fn lenient<'de, D: Deserializer<'de>, T: DeserializeOwned>(value: D) -> Result<Option<T>, D::Error> {
    let value = Value::deserialize(value)?;
    Ok(serde_json::from_value(value).ok())
}

/// Those of a list that are understood: one that is not hides no other.
fn understood<T: DeserializeOwned>(all: Vec<Value>) -> Vec<T> {
    let read = |one| {
        let read = serde_json::from_value(one);
        read.inspect_err(|error| tracing::warn!(%error, "Seeweb lists something that is not understood"))
            .ok()
    };
    all.into_iter().filter_map(read).collect()
}

/// A machine that is asked for.
pub(crate) struct NewServer<'a> {
    pub(crate) plan: &'a str,
    pub(crate) image: &'a str,
    pub(crate) location: &'a str,
    pub(crate) notes: &'a str,
    /// The label of the account's key.
    pub(crate) key: &'a str,
    /// Runs as root at the first start; the machine is started again after it.
    pub(crate) script: &'a str,
}

/// What a making answers.
#[derive(Debug, Deserialize)]
pub(crate) struct Created {
    pub(crate) server: Server,
    #[serde(default)]
    pub(crate) action_id: Option<i64>,
}

impl Client {
    pub(crate) fn new(env: &Env, api_token: &str) -> Result<Self, String> {
        let limits = ApiLimits {
            timeout: Duration::from_secs(30),
            ..ApiLimits::default()
        };
        let client = env.api_with_key(
            BackendType::Seeweb,
            BASE,
            limits,
            HeaderName::from_static("x-apitoken"),
            api_token,
        )?;
        Ok(Self(client))
    }

    /// Whether the token is one.
    pub(crate) async fn check_account(&self) -> Result<(), ApiError> {
        told::<Value>(self.0.get("regions")).await.map(drop)
    }

    pub(crate) async fn plans(&self) -> Result<Vec<Plan>, ApiError> {
        #[derive(Deserialize)]
        struct Plans {
            plans: Vec<Value>,
        }
        Ok(understood(told::<Plans>(self.0.get("plans")).await?.plans))
    }

    pub(crate) async fn availabilities(&self) -> Result<Vec<Availability>, ApiError> {
        #[derive(Deserialize)]
        struct Plans {
            plans: Vec<Value>,
        }
        let plans = told::<Plans>(self.0.get("plans/availables")).await?.plans;
        Ok(understood(plans))
    }

    pub(crate) async fn keys(&self) -> Result<Vec<AccountKey>, ApiError> {
        #[derive(Deserialize)]
        struct Keys {
            pubkeys: Vec<Value>,
        }
        Ok(understood(told::<Keys>(self.0.get("sshkeys")).await?.pubkeys))
    }

    pub(crate) async fn add_key(&self, label: &str, key: &str) -> Result<(), ApiError> {
        let ask = json!({"key": key, "label": label});
        told::<Value>(self.0.post("sshkeys").json(&ask)).await.map(drop)
    }

    pub(crate) async fn servers(&self) -> Result<Vec<Server>, ApiError> {
        #[derive(Deserialize)]
        struct Servers {
            server: Vec<Value>,
        }
        Ok(understood(told::<Servers>(self.0.get("servers")).await?.server))
    }

    pub(crate) async fn server(&self, name: &str) -> Result<Option<Server>, ApiError> {
        #[derive(Deserialize)]
        struct One {
            server: Server,
        }
        let found = told::<One>(self.0.get(&format!("servers/{name}"))).await;
        Ok(unless_missing(found)?.map(|one| one.server))
    }

    pub(crate) async fn create_server(&self, new: &NewServer<'_>) -> Result<Created, ApiError> {
        let ask = json!({
            "plan": new.plan,
            "image": new.image,
            "location": new.location,
            "notes": new.notes,
            "ssh_key": new.key,
            "user_customize": new.script,
        });
        told(self.0.post("servers").json(&ask)).await
    }

    /// What is not there any more is no error.
    pub(crate) async fn delete_server(&self, name: &str) -> Result<(), ApiError> {
        let deleted = told::<Value>(self.0.delete(&format!("servers/{name}"))).await;
        unless_missing(deleted).map(drop)
    }

    /// How far it is; `None`: it is not known.
    pub(crate) async fn progress(&self, action: i64) -> Result<Option<Progress>, ApiError> {
        #[derive(Deserialize)]
        struct One {
            action: Action,
        }
        #[derive(Deserialize)]
        struct Action {
            status: Progress,
        }
        let found = told::<One>(self.0.get(&format!("actions/{action}"))).await;
        Ok(unless_missing(found)?.map(|one| one.action.status))
    }
}

/// The answer, which may be an error whatever its HTTP status says.
async fn told<T: DeserializeOwned>(request: ApiRequest<'_>) -> Result<T, ApiError> {
    let answer: Value = request.send().await?;
    let status = answer.get("status").and_then(Value::as_str);
    if status.is_some_and(|status| !GOOD.iter().any(|good| status.eq_ignore_ascii_case(good))) {
        return Err(ApiError::Status {
            api: HOST.to_owned(),
            status: StatusCode::BAD_REQUEST,
            body: answer.to_string(),
            retry_after: None,
        });
    }
    serde_json::from_value(answer).map_err(|error| ApiError::Malformed {
        api: HOST.to_owned(),
        details: error.to_string(),
    })
}

/// Only the API itself says that something does not exist, not a proxy before it.
fn unless_missing<T>(answer: Result<T, ApiError>) -> Result<Option<T>, ApiError> {
    match answer {
        Ok(found) => Ok(Some(found)),
        Err(error) if error.status() == Some(StatusCode::NOT_FOUND) && is_told(&error) => Ok(None),
        Err(error) => Err(error),
    }
}

fn is_told(error: &ApiError) -> bool {
    let body: Value = serde_json::from_str(error.body()).unwrap_or_default();
    body.get("status").is_some_and(|status| lower(status) == "error")
}

/// What an error says in words.
pub(crate) fn message(error: &ApiError) -> String {
    let body: Value = serde_json::from_str(error.body()).unwrap_or_default();
    let mut words = ["message", "error", "detail"]
        .into_iter()
        .filter_map(|field| body.get(field).and_then(Value::as_str));
    let told = words.find(|text| !text.is_empty());
    told.unwrap_or(error.body()).trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_that_is_odd_hides_no_other() {
        let servers: Vec<Server> = understood(vec![
            json!({"notes": "no name"}),
            json!({"name": "ec1", "notes": null, "ipv4": null, "location": null, "status": "BOOTED",
                "creation_date": "yesterday"}),
            json!({"name": "ec2", "status": null, "creation_date": "2026-10-01T12:00:00+00:00"}),
        ]);
        assert_eq!(servers.len(), 2);
        assert_eq!(
            (servers[0].status, servers[0].creation_date),
            (Status::Booted, None)
        );
        assert_eq!(servers[1].status, Status::Other);
        assert!(servers[1].creation_date.is_some());
        assert_eq!(Progress::from(json!("COMPLETED")), Progress::Completed);
    }

    #[test]
    fn only_the_api_says_that_something_is_missing() {
        let missing = |body: &str| {
            let answer: Result<(), _> = Err(ApiError::Status {
                api: HOST.to_owned(),
                status: StatusCode::NOT_FOUND,
                body: body.to_owned(),
                retry_after: None,
            });
            unless_missing(answer).is_ok_and(|found| found.is_none())
        };
        assert!(missing(r#"{"status": "error", "message": "Server not found"}"#));
        assert!(!missing("<html>404</html>"));
        assert!(!missing(r#"{"detail": "Not Found"}"#));
    }
}
