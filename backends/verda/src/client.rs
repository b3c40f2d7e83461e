//! The API, version 1, as far as it is used.

use std::time::Duration;

use bytes::Bytes;
use dstack_backend::Env;
use dstack_compute::config::ClientKeyCreds;
use dstack_http::{ApiClient, ApiError, ApiLimits, ApiRequest};
use dstack_model::backends::BackendType;
use http::header::AUTHORIZATION;
use http::{Response, StatusCode};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use uuid::Uuid;

use crate::token::Tokens;

const BASE: &str = "https://api.verda.com/v1";

/// The API as one account.
#[derive(Debug)]
pub(crate) struct Client {
    api: ApiClient,
    tokens: Tokens,
}

#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Instance {
    pub(crate) id: String,
    #[serde(default)]
    pub(crate) description: Option<String>,
    pub(crate) status: Status,
    #[serde(default)]
    pub(crate) ip: Option<String>,
    #[serde(default)]
    pub(crate) os_volume_id: Option<String>,
    #[serde(default)]
    pub(crate) location: Option<String>,
    #[serde(default)]
    pub(crate) price_per_hour: Option<f64>,
    #[serde(default)]
    pub(crate) created_at: Option<String>,
}

/// Of an instance. The vendor adds new ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Status {
    Running,
    Error,
    NoCapacity,
    Deleting,
    Discontinued,
    #[serde(rename = "notfound")]
    NotFound,
    /// It is being made, or it is off for a while.
    #[serde(other)]
    Other,
}

/// A public key that is registered for machines.
#[derive(Debug, Deserialize)]
pub(crate) struct SshKey {
    pub(crate) id: String,
    pub(crate) name: String,
}

/// What is free at one location.
#[derive(Debug, Deserialize)]
pub(crate) struct Availability {
    pub(crate) location_code: String,
    #[serde(default)]
    pub(crate) availabilities: Vec<String>,
}

/// A machine that is asked for.
#[derive(Debug, Serialize)]
pub(crate) struct NewInstance<'a> {
    pub(crate) instance_type: &'a str,
    pub(crate) image: &'a str,
    pub(crate) ssh_key_ids: &'a [String],
    pub(crate) hostname: &'a str,
    pub(crate) description: &'a str,
    pub(crate) location_code: &'a str,
    pub(crate) os_volume: OsVolume,
    pub(crate) is_spot: bool,
    pub(crate) pricing: &'static str,
}

#[derive(Debug, Serialize)]
pub(crate) struct OsVolume {
    pub(crate) name: &'static str,
    /// In GB.
    pub(crate) size: i64,
    /// Only of spot machines: the vendor would keep the volume, and bill it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) on_spot_discontinue: Option<&'static str>,
}

/// What came of deleting a machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Deletion {
    /// Or it is gone: that is seen afterwards.
    Begun,
    /// Not before it has started.
    NotYet,
}

/// An error, as the vendor writes it.
#[derive(Debug, Default, Deserialize)]
pub(crate) struct Told {
    #[serde(default)]
    pub(crate) code: String,
    #[serde(default)]
    pub(crate) message: String,
}

/// What the vendor says in an error; nothing: it is not one of the vendor.
pub(crate) fn told(error: &ApiError) -> Told {
    serde_json::from_str(error.body()).unwrap_or_default()
}

impl Client {
    pub(crate) fn new(env: &Env, backend: BackendType, creds: &ClientKeyCreds) -> Result<Self, String> {
        let limits = ApiLimits {
            timeout: Duration::from_secs(30),
            ..ApiLimits::default()
        };
        let api = env.api(backend, BASE, limits)?;
        Ok(Self {
            tokens: Tokens::new(api.clone(), env, creds.clone()),
            api,
        })
    }

    /// Whether the credentials are some.
    pub(crate) async fn check_account(&self) -> Result<(), ApiError> {
        self.tokens.get(None).await.map(drop)
    }

    pub(crate) async fn availabilities(&self, is_spot: bool) -> Result<Vec<Availability>, ApiError> {
        let is_spot = if is_spot { "true" } else { "false" };
        self.read(|api| api.get("instance-availability").query("isSpot", is_spot))
            .await
    }

    pub(crate) async fn instances(&self) -> Result<Vec<Instance>, ApiError> {
        self.read(|api| api.get("instances")).await
    }

    /// `None`: there is none, as the list says too: a gateway may answer 404 as well.
    pub(crate) async fn instance(&self, id: &str) -> Result<Option<Instance>, ApiError> {
        let path = format!("instances/{id}");
        match self.read(|api| api.get(&path)).await {
            Err(error) if error.status() == Some(StatusCode::NOT_FOUND) || is_unknown(&error) => {
                let all = self.instances().await?;
                Ok(all.into_iter().find(|instance| instance.id == id))
            }
            answer => answer.map(Some),
        }
    }

    /// The id of the machine.
    pub(crate) async fn create_instance(&self, ask: &NewInstance<'_>) -> Result<String, ApiError> {
        let answer = self.send(|api| api.post("instances").json(ask)).await?;
        id_in(&answer)
    }

    /// Deletes a machine with its disk.
    pub(crate) async fn delete_instance(
        &self,
        id: &str,
        os_volume_id: Option<&str>,
    ) -> Result<Deletion, ApiError> {
        #[derive(Deserialize)]
        struct ActionResult {
            #[serde(rename = "instanceId")]
            instance_id: String,
            status: String,
            #[serde(default)]
            error: String,
        }
        let volumes = os_volume_id.map(|volume| [volume]);
        let ask = json!({"id": [id], "action": "delete", "volume_ids": volumes, "delete_permanently": true});
        let answer = match self.send(|api| api.put("instances").json(&ask)).await {
            Ok(answer) => answer,
            Err(error) => return deletion(&told(&error).message).ok_or(error),
        };
        if answer.body().is_empty() {
            return Ok(Deletion::Begun);
        }
        // 207 is a success that may have failed for this machine.
        let results: Vec<ActionResult> = parsed(answer.body())?;
        let failed = |result: &ActionResult| result.instance_id == id && result.status == "error";
        match results.into_iter().find(failed) {
            None => Ok(Deletion::Begun),
            Some(result) => deletion(&result.error).ok_or_else(|| ApiError::Status {
                api: "Verda".to_owned(),
                status: StatusCode::BAD_REQUEST,
                body: result.error,
                retry_after: None,
            }),
        }
    }

    pub(crate) async fn ssh_keys(&self) -> Result<Vec<SshKey>, ApiError> {
        self.read(|api| api.get("sshkeys")).await
    }

    /// The id of the key.
    pub(crate) async fn create_ssh_key(&self, name: &str, key: &str) -> Result<String, ApiError> {
        let ask = json!({"name": name, "key": key});
        id_in(&self.send(|api| api.post("sshkeys").json(&ask)).await?)
    }

    /// What is not there is no error.
    pub(crate) async fn delete_ssh_key(&self, id: &str) -> Result<(), ApiError> {
        let ask = json!({"keys": [id]});
        let answer = self.send(|api| api.delete("sshkeys").json(&ask).repeatable());
        answer.await.map(drop)
    }

    /// What is not there is no error.
    pub(crate) async fn delete_script(&self, id: &str) -> Result<(), ApiError> {
        let path = format!("scripts/{id}");
        match self.send(|api| api.delete(&path).repeatable()).await {
            Err(error) if !is_unknown(&error) => Err(error),
            _ => Ok(()),
        }
    }

    async fn read<T: DeserializeOwned>(
        &self,
        ask: impl Fn(&ApiClient) -> ApiRequest<'_>,
    ) -> Result<T, ApiError> {
        parsed(self.send(ask).await?.body())
    }

    /// With a token; with another one where the first is not taken any more.
    async fn send(&self, ask: impl Fn(&ApiClient) -> ApiRequest<'_>) -> Result<Response<Bytes>, ApiError> {
        let mut token = self.tokens.get(None).await?;
        let mut is_second = false;
        loop {
            let bearer = format!("Bearer {}", token.expose());
            let answer = ask(&self.api).header(AUTHORIZATION, &bearer).send_raw().await;
            match &answer {
                Err(error) if error.status() == Some(StatusCode::UNAUTHORIZED) && !is_second => {
                    token = self.tokens.get(Some(&token)).await?;
                    is_second = true;
                }
                _ => return answer,
            }
        }
    }
}

/// What the words about a machine mean that could not be deleted.
fn deletion(message: &str) -> Option<Deletion> {
    match message {
        INVALID_ID | "Can't discontinue a discontinued instance" => Some(Deletion::Begun),
        "Can't discontinue a provisioning instance" => Some(Deletion::NotYet),
        _ => None,
    }
}

/// What the vendor says of an instance that it does not know.
const INVALID_ID: &str = "Invalid instance id";

/// Only the vendor's own words count.
fn is_unknown(error: &ApiError) -> bool {
    let told = told(error);
    told.code == "not_found" || told.message == INVALID_ID
}

pub(crate) fn parsed<T: DeserializeOwned>(body: &Bytes) -> Result<T, ApiError> {
    serde_json::from_slice(body).map_err(|error| malformed(error.to_string()))
}

/// The bare id of what was made, or the thing itself. An answer that was cut off has none.
fn id_in(answer: &Response<Bytes>) -> Result<String, ApiError> {
    let text = String::from_utf8_lossy(answer.body());
    let id = match serde_json::from_str(&text) {
        Ok(Value::Object(thing)) => thing.get("id").and_then(Value::as_str).map(str::to_owned),
        Ok(Value::String(id)) => Some(id),
        _ => Some(text.trim().to_owned()),
    };
    id.filter(|id| id.len() == LENGTH_OF_ID && Uuid::parse_str(id).is_ok())
        .ok_or_else(|| malformed("there is no id in the answer".to_owned()))
}

const LENGTH_OF_ID: usize = 36;

fn malformed(details: String) -> ApiError {
    ApiError::Malformed {
        api: "Verda".to_owned(),
        details,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_whole_or_none() {
        let id = "deadc0de-a5d2-4972-ae4e-d429115d055b";
        let read = |text: String| id_in(&Response::new(Bytes::from(text))).ok();
        for text in [
            id.to_owned(),
            format!("{id}\n"),
            format!("\"{id}\""),
            json!({"id": id}).to_string(),
        ] {
            assert_eq!(read(text.clone()).as_deref(), Some(id), "{text}");
        }
        for text in [
            "",
            "deadc0de-a5d2-4972",
            "{\"id\":",
            "{}",
            "deadc0dea5d24972ae4ed429115d055b",
        ] {
            assert_eq!(read(text.to_owned()), None, "{text}");
        }
    }
}
