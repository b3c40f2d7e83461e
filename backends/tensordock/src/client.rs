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
use serde::Deserialize;
use serde::de::DeserializeOwned;
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
    #[serde(default)]
    pub(crate) location: Location,
    #[serde(default)]
    pub(crate) networking: Networking,
    pub(crate) specs: Specs,
    /// With `listed` and `online` in the SDK's example; a text by the description.
    #[serde(default)]
    pub(crate) status: Value,
}

#[derive(Debug, Clone, Default, Deserialize)]
pub(crate) struct Location {
    #[serde(default)]
    pub(crate) country: Option<String>,
}

#[derive(Debug, Clone, Default, Deserialize)]
pub(crate) struct Networking {
    /// That may lead to ports of a machine.
    #[serde(default)]
    pub(crate) ports: Vec<i64>,
}

#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Specs {
    pub(crate) cpu: Resource,
    /// GB.
    pub(crate) ram: Resource,
    /// GB.
    pub(crate) storage: Resource,
    /// By model, such as `geforcertx4090-pcie-24gb`.
    #[serde(default)]
    pub(crate) gpu: BTreeMap<String, Resource>,
}

/// How much is free, and the dollars an hour of one.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Resource {
    pub(crate) amount: f64,
    pub(crate) price: f64,
    /// GB of a GPU.
    #[serde(default)]
    pub(crate) vram: Option<f64>,
}

/// A machine as lists have it.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Listed {
    #[serde(default)]
    pub(crate) id: String,
    #[serde(default)]
    pub(crate) name: String,
    /// Such as `Running`: the description names none.
    #[serde(default)]
    pub(crate) status: String,
    #[serde(default, alias = "rate_hourly")]
    pub(crate) cost: Option<f64>,
}

/// How a machine is reached.
#[derive(Debug, Clone, Default, Deserialize)]
pub(crate) struct Reached {
    #[serde(default, alias = "ip")]
    pub(crate) hostname: Option<String>,
    /// From a port of the host to one of the machine.
    #[serde(default)]
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
            List(Vec<Listed>),
            ById(BTreeMap<String, Listed>),
        }
        let servers: Servers = read(self.call("client/list", &[]).repeatable()).await?;
        Ok(match servers.virtualmachines {
            Machines::List(list) => list,
            Machines::ById(by_id) => {
                let with_id = |(id, machine)| Listed { id, ..machine };
                by_id.into_iter().map(with_id).collect()
            }
        })
    }

    pub(crate) async fn reached(&self, server: &str) -> Result<Reached, ApiError> {
        let call = self.call("client/get/single", &[("server", server)]);
        let mut answer: Value = read(call.repeatable()).await?;
        let machine = answer.get_mut("virtualmachine").map(Value::take);
        serde_json::from_value(machine.unwrap_or(answer)).map_err(malformed)
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
