//! The marketplace's API v0: forms with the key and the token in each, and answers that say themselves whether they are errors. Facts are
//! from its description, from the SDKs that others have written (`tensordock` 0.1.13, `pytensordock` 0.1.1), and from dstack 0.19.25,
//! which had this backend. Lists have no pages.

use std::collections::BTreeMap;
use std::time::Duration;

use dstack_backend::Env;
use dstack_compute::config::{Credential, TensorDockCreds};
use dstack_http::{ApiClient, ApiError, ApiLimits, ApiRequest};
use dstack_model::backends::BackendType;
use http::StatusCode;
use serde::de::{DeserializeOwned, Error as _};
use serde::{Deserialize, Deserializer};
use serde_json::Value;

const HOST: &str = "marketplace.tensordock.com";

const BASE: &str = "https://marketplace.tensordock.com/api/v0";

/// Words of errors that are about the key and the token.
const KEY_WORDS: [&str; 6] = [
    "api key",
    "api_key",
    "api token",
    "api_token",
    "authorization",
    "unauthorized",
];

/// Words of errors after which nobody knows whether it was done.
const UNCLEAR_WORDS: [&str; 8] = [
    "timeout",
    "timed out",
    "time out",
    "internal error",
    "internal server",
    "unknown error",
    "try again",
    "went wrong",
];

/// The API as one account.
#[derive(Debug)]
pub(crate) struct Client {
    api: ApiClient,
    api_key: Credential,
    api_token: Credential,
}

/// A host of the marketplace, with what is free of it.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Hostnode {
    #[serde(default, deserialize_with = "lenient")]
    pub(crate) location: Location,
    #[serde(default, deserialize_with = "lenient")]
    pub(crate) networking: Networking,
    pub(crate) specs: Specs,
    /// With `listed` and `online` in the SDK's example; a text by the description.
    #[serde(default)]
    pub(crate) status: Value,
}

#[derive(Debug, Clone, Default, Deserialize)]
pub(crate) struct Location {
    #[serde(default, deserialize_with = "lenient")]
    pub(crate) country: Option<String>,
}

#[derive(Debug, Clone, Default, Deserialize)]
pub(crate) struct Networking {
    /// That may lead to ports of a machine.
    #[serde(default, deserialize_with = "lenient")]
    pub(crate) ports: Vec<i64>,
}

#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Specs {
    pub(crate) cpu: Resource,
    /// In GB.
    pub(crate) ram: Resource,
    /// In GB.
    pub(crate) storage: Resource,
    /// By model, such as `geforcertx4090-pcie-24gb`.
    #[serde(default, deserialize_with = "understood")]
    pub(crate) gpu: BTreeMap<String, Resource>,
}

/// How much is free, and the dollars an hour of one.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Resource {
    #[serde(deserialize_with = "number")]
    pub(crate) amount: f64,
    #[serde(deserialize_with = "number")]
    pub(crate) price: f64,
    /// GB of a GPU.
    #[serde(default, deserialize_with = "maybe_number")]
    pub(crate) vram: Option<f64>,
}

/// A machine as lists have it.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Listed {
    #[serde(default, deserialize_with = "lenient")]
    pub(crate) id: String,
    #[serde(default, deserialize_with = "lenient")]
    pub(crate) name: String,
    /// Such as `Running`: the description names none.
    #[serde(default, deserialize_with = "lenient")]
    pub(crate) status: String,
    #[serde(default, alias = "rate_hourly", deserialize_with = "maybe_number")]
    pub(crate) cost: Option<f64>,
}

/// Nothing where it is not understood.
fn lenient<'de, D: Deserializer<'de>, T: DeserializeOwned + Default>(value: D) -> Result<T, D::Error> {
    let value = Value::deserialize(value)?;
    Ok(serde_json::from_value(value).unwrap_or_default())
}

/// Those that are understood.
fn understood<'de, D: Deserializer<'de>, T: DeserializeOwned>(
    value: D,
) -> Result<BTreeMap<String, T>, D::Error> {
    let all: BTreeMap<String, Value> = lenient(value)?;
    let all = all.into_iter();
    Ok(all
        .filter_map(|(name, value)| Some((name, serde_json::from_value(value).ok()?)))
        .collect())
}

/// Also one that is written as a text.
fn maybe_number<'de, D: Deserializer<'de>>(value: D) -> Result<Option<f64>, D::Error> {
    let value = Value::deserialize(value)?;
    Ok(value.as_f64().or_else(|| value.as_str()?.trim().parse().ok()))
}

fn number<'de, D: Deserializer<'de>>(value: D) -> Result<f64, D::Error> {
    maybe_number(value)?.ok_or_else(|| D::Error::custom("it is no number"))
}

/// How a machine is reached.
#[derive(Debug, Clone, Default, Deserialize)]
pub(crate) struct Reached {
    #[serde(default, alias = "ip")]
    pub(crate) hostname: Option<String>,
    /// From a port of the host to one of the machine.
    #[serde(default, deserialize_with = "lenient")]
    pub(crate) port_forwards: BTreeMap<String, Value>,
}

/// A machine that is asked for.
pub(crate) struct NewServer<'a> {
    pub(crate) name: &'a str,
    pub(crate) hostnode: &'a str,
    pub(crate) gpu_model: &'a str,
    pub(crate) gpu_count: usize,
    pub(crate) vcpus: i64,
    pub(crate) ram_gb: i64,
    pub(crate) storage_gb: i64,
    /// Port of the host that leads to the machine's SSH server.
    pub(crate) ssh_port: i64,
    pub(crate) operating_system: &'a str,
    pub(crate) password: &'a str,
    /// Is put after the vendor's own.
    pub(crate) cloudinit: &'a str,
}

impl Client {
    pub(crate) fn new(env: &Env, creds: &TensorDockCreds) -> Result<Self, String> {
        let limits = ApiLimits {
            timeout: Duration::from_secs(30),
            ..ApiLimits::default()
        };
        Ok(Self {
            api: env.api(BackendType::TensorDock, BASE, limits)?,
            api_key: creds.api_key.clone(),
            api_token: creds.api_token.clone(),
        })
    }

    /// A call with the key and the token.
    fn call(&self, path: &str, fields: &[(&str, &str)]) -> ApiRequest<'_> {
        let pair = [
            ("api_key", self.api_key.expose()),
            ("api_token", self.api_token.expose()),
        ];
        let fields = pair.iter().chain(fields);
        let fields: Vec<(String, String)> = fields
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
            .collect();
        self.api.post(path).form(&fields)
    }

    /// Whether key and token are a pair.
    pub(crate) async fn check_account(&self) -> Result<(), ApiError> {
        let answer = self.call("auth/test", &[]).repeatable();
        told::<Value>(answer, StatusCode::UNAUTHORIZED).await.map(drop)
    }

    /// All hosts, by their ids. They are public.
    pub(crate) async fn hostnodes(&self) -> Result<BTreeMap<String, Hostnode>, ApiError> {
        #[derive(Deserialize)]
        struct Hosts {
            hostnodes: BTreeMap<String, Value>,
        }
        let hosts: Hosts = read(self.api.get("client/deploy/hostnodes")).await?;
        let hosts = hosts.hostnodes.into_iter();
        // One that is not understood hides no other.
        Ok(hosts
            .filter_map(|(id, host)| Some((id, serde_json::from_value(host).ok()?)))
            .collect())
    }

    pub(crate) async fn servers(&self) -> Result<Vec<Listed>, ApiError> {
        #[derive(Deserialize)]
        struct Servers {
            virtualmachines: Machines,
        }
        /// The description has a list; the SDK's examples, what their ids lead to.
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Machines {
            List(Vec<Value>),
            ById(BTreeMap<String, Value>),
        }
        // One that is not understood hides no other.
        let understood = |machine| serde_json::from_value::<Listed>(machine).ok();
        let listed = |machine| understood(machine).filter(|machine| !is_over(machine));
        let servers: Servers = read(self.call("client/list", &[]).repeatable()).await?;
        Ok(match servers.virtualmachines {
            Machines::List(list) => list.into_iter().filter_map(listed).collect(),
            Machines::ById(by_id) => {
                let with_id = |(id, machine)| {
                    Some(Listed {
                        id,
                        ..listed(machine)?
                    })
                };
                by_id.into_iter().filter_map(with_id).collect()
            }
        })
    }

    pub(crate) async fn reached(&self, server: &str) -> Result<Reached, ApiError> {
        let machine = self.single(server).await?;
        serde_json::from_value(machine).map_err(malformed)
    }

    /// One that the list does not have; `None`: the API itself says that it does not have it, or that it is over.
    pub(crate) async fn unlisted(&self, server: &str) -> Result<Option<Listed>, ApiError> {
        let machine = match self.single(server).await {
            Err(error) if says_no(&error) => return Ok(None),
            answer => answer?,
        };
        let machine: Option<Listed> = serde_json::from_value(machine).map_err(malformed)?;
        let id = server.to_owned();
        Ok(machine.filter(is_there).map(|machine| Listed { id, ..machine }))
    }

    async fn single(&self, server: &str) -> Result<Value, ApiError> {
        let call = self.call("client/get/single", &[("server", server)]);
        let mut answer: Value = read(call.repeatable()).await?;
        let machine = answer.get_mut("virtualmachine").map(Value::take);
        Ok(machine.unwrap_or(answer))
    }

    /// The id of the machine.
    pub(crate) async fn deploy(&self, new: &NewServer<'_>) -> Result<String, ApiError> {
        #[derive(Deserialize)]
        struct Deployed {
            server: String,
        }
        let ask = self.call(
            "client/deploy/single",
            &[
                ("name", new.name),
                ("hostnode", new.hostnode),
                ("gpu_model", new.gpu_model),
                ("gpu_count", &new.gpu_count.to_string()),
                ("vcpus", &new.vcpus.to_string()),
                ("ram", &new.ram_gb.to_string()),
                ("storage", &new.storage_gb.to_string()),
                ("external_ports", &format!("{{{}}}", new.ssh_port)),
                ("internal_ports", "{22}"),
                ("operating_system", new.operating_system),
                ("password", new.password),
                // Lines end with these two characters there.
                ("cloudinit_script", &new.cloudinit.replace('\n', "\\n")),
            ],
        );
        let deployed: Deployed = read(ask).await?;
        Ok(deployed.server)
    }

    /// What is not there any more is no error.
    pub(crate) async fn delete(&self, server: &str) -> Result<(), ApiError> {
        let deleted = read::<Value>(self.call("client/delete/single", &[("server", server)])).await;
        match deleted {
            Err(error) if error.is_definite() && error.body().contains("already terminated") => Ok(()),
            Err(error) => Err(error),
            Ok(_) => Ok(()),
        }
    }
}

async fn read<T: DeserializeOwned>(request: ApiRequest<'_>) -> Result<T, ApiError> {
    told(request, StatusCode::BAD_REQUEST).await
}

/// The answer; one that says that it is no success is as if it had this status.
async fn told<T: DeserializeOwned>(request: ApiRequest<'_>, refusal: StatusCode) -> Result<T, ApiError> {
    let answer: Value = request.send().await?;
    if answer.get("success").and_then(Value::as_bool) == Some(false) {
        let body = answer.to_string();
        let lower = body.to_ascii_lowercase();
        let is_about_key = KEY_WORDS.iter().any(|word| lower.contains(word));
        return Err(ApiError::Status {
            api: HOST.to_owned(),
            status: if is_about_key {
                StatusCode::UNAUTHORIZED
            } else {
                refusal
            },
            body,
            retry_after: None,
        });
    }
    serde_json::from_value(answer).map_err(malformed)
}

/// Whether an answer tells of a machine, and of one that is not over.
fn is_there(machine: &Listed) -> bool {
    let tells = !machine.name.is_empty() || !machine.status.is_empty();
    tells && !is_over(machine)
}

/// Whether it is kept for people only.
fn is_over(machine: &Listed) -> bool {
    let status = machine.status.to_ascii_lowercase();
    ["deleted", "terminated"].contains(&status.as_str())
}

/// A refusal of the API itself, and not of a proxy before it, that is about what was asked for.
fn says_no(error: &ApiError) -> bool {
    let body: Value = serde_json::from_str(error.body()).unwrap_or_default();
    error.status() == Some(StatusCode::BAD_REQUEST)
        && body.get("success").and_then(Value::as_bool) == Some(false)
        && !is_unclear(&message(error).to_ascii_lowercase())
}

/// Whether an error in words, in lower case, does not say whether it was done.
pub(crate) fn is_unclear(text: &str) -> bool {
    UNCLEAR_WORDS.iter().any(|word| text.contains(word))
}

#[allow(clippy::needless_pass_by_value)] // of `map_err`
fn malformed(error: serde_json::Error) -> ApiError {
    ApiError::Malformed {
        api: HOST.to_owned(),
        details: error.to_string(),
    }
}

/// What an error says in words.
pub(crate) fn message(error: &ApiError) -> String {
    let body: Value = serde_json::from_str(error.body()).unwrap_or_default();
    let mut words = ["error", "message"]
        .into_iter()
        .filter_map(|field| body.get(field).and_then(Value::as_str));
    words.next().unwrap_or(error.body()).trim().to_owned()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn machines_are_read_whatever_fields_are_odd() {
        let odd = json!({"id": 7, "name": null, "status": null, "cost": "0.41"});
        let odd: Listed = serde_json::from_value(odd).unwrap();
        assert_eq!(
            (odd.name.as_str(), odd.status.as_str(), odd.cost),
            ("", "", Some(0.41))
        );
    }

    #[test]
    fn what_is_over_is_not_there() {
        let there = |machine: Value| is_there(&serde_json::from_value(machine).unwrap());
        assert!(there(json!({"name": "n", "status": "Running"})));
        assert!(there(json!({"name": "n"})));
        assert!(!there(json!({"name": "n", "status": "Terminated"})));
        assert!(!there(json!({"success": true})));
    }

    #[test]
    fn only_the_api_says_that_a_machine_is_missing() {
        let no = |body: &Value| {
            says_no(&ApiError::Status {
                api: HOST.to_owned(),
                status: StatusCode::BAD_REQUEST,
                body: body.to_string(),
                retry_after: None,
            })
        };
        assert!(no(&json!({"success": false, "error": "Server not found"})));
        assert!(!no(&json!({"success": false, "error": "Timeout"})));
        assert!(!no(&json!("not found")));
    }
}
