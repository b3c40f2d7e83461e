//! The API, version v1alpha5 (the description in Crusoe's `client-go`, July 2026), as far as it is used. Creations and removals answer with
//! an operation, whose end is asked for by the id of what it makes.

use std::sync::Arc;
use std::time::Duration;

use dstack_backend::Env;
use dstack_compute::config::CrusoeConfig;
use dstack_http::{ApiClient, ApiError, ApiLimits};
use dstack_model::backends::BackendType;
use dstack_system::Secret;
use http::StatusCode;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Value, json};

use crate::signing::Signature;

const BASE: &str = "https://api.cloud.crusoe.ai/v1alpha5";

/// The most that a page has.
const PAGE: &str = "100";

/// More than any project has: an API that never says that a page is the last is not asked for ever.
const MOST_PAGES: u32 = 500;

/// The API as one user in one project.
#[derive(Debug)]
pub(crate) struct Client {
    api: ApiClient,
    project: String,
}

/// What is made by operations, as it stands in paths.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Kind {
    Disk,
    Machine,
}

impl Kind {
    const fn path(self) -> &'static str {
        match self {
            Self::Disk => "storage/disks",
            Self::Machine => "compute/vms/instances",
        }
    }
}

#[derive(Deserialize)]
#[serde(bound = "T: DeserializeOwned")]
struct Items<T> {
    #[serde(deserialize_with = "readable")]
    items: Vec<T>,
    #[serde(default)]
    next_page_token: Option<String>,
}

/// As if it was not there, where it is null.
fn or_default<'de, D: Deserializer<'de>, T: Default + Deserialize<'de>>(from: D) -> Result<T, D::Error> {
    Ok(Option::deserialize(from)?.unwrap_or_default())
}

/// The entries of a list; one of another form is left out.
fn readable<'de, D: Deserializer<'de>, T: DeserializeOwned>(deserializer: D) -> Result<Vec<T>, D::Error> {
    let read = |entry: Value| {
        let read = serde_json::from_value(entry);
        read.inspect_err(|error| tracing::warn!(%error, "Crusoe lists what cannot be read"))
            .ok()
    };
    let entries = Vec::<Value>::deserialize(deserializer)?;
    Ok(entries.into_iter().filter_map(read).collect())
}

/// A size of machines.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Size {
    pub(crate) product_name: String,
    pub(crate) cpu_cores: i64,
    #[serde(default)]
    pub(crate) cpu_type: String,
    pub(crate) memory_gb: f64,
    /// Of the NVMe drives in it; 0: there are none.
    #[serde(default)]
    pub(crate) disk_gb: i64,
    #[serde(default)]
    pub(crate) gpu_type: String,
    #[serde(default)]
    pub(crate) num_gpu: i64,
}

/// How many of a size are free in a location.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Capacity {
    #[serde(rename = "type")]
    pub(crate) size: String,
    pub(crate) location: String,
    pub(crate) quantity: i64,
}

#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Quota {
    #[serde(default)]
    pub(crate) programmatic_name: String,
    #[serde(default)]
    pub(crate) category: String,
    /// An integer by the description, and a text in answers.
    #[serde(default, deserialize_with = "number")]
    pub(crate) available: Option<i64>,
}

fn number<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<i64>, D::Error> {
    let value = Value::deserialize(deserializer)?;
    Ok(value.as_i64().or_else(|| value.as_str()?.parse().ok()))
}

#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Disk {
    pub(crate) id: String,
    #[serde(default, deserialize_with = "or_default")]
    pub(crate) name: String,
    #[serde(default, deserialize_with = "or_default")]
    pub(crate) location: String,
}

#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Machine {
    pub(crate) id: String,
    #[serde(default, deserialize_with = "or_default")]
    pub(crate) name: String,
    #[serde(default, deserialize_with = "or_default")]
    pub(crate) location: String,
    #[serde(default, deserialize_with = "or_default")]
    pub(crate) state: String,
    #[serde(default, deserialize_with = "or_default")]
    pub(crate) network_interfaces: Vec<Interface>,
}

#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Interface {
    #[serde(default, deserialize_with = "or_default")]
    pub(crate) ips: Vec<Addresses>,
}

#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Addresses {
    #[serde(default)]
    pub(crate) public_ipv4: Option<Address>,
    #[serde(default)]
    pub(crate) private_ipv4: Option<Address>,
}

#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Address {
    #[serde(default)]
    pub(crate) address: String,
}

/// A machine that is asked for.
#[derive(Debug, Serialize)]
pub(crate) struct NewMachine<'a> {
    pub(crate) name: &'a str,
    #[serde(rename = "type")]
    pub(crate) size: &'a str,
    pub(crate) location: &'a str,
    pub(crate) image: &'a str,
    pub(crate) ssh_public_key: &'a str,
    pub(crate) startup_script: &'a str,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) disks: Vec<Value>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) host_channel_adapters: Vec<Value>,
}

/// An InfiniBand network of a location, with the sizes of machines that are in it.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Network {
    pub(crate) id: String,
    pub(crate) location: String,
    #[serde(default)]
    pub(crate) capacities: Vec<NetworkCapacity>,
}

#[derive(Debug, Clone, Deserialize)]
pub(crate) struct NetworkCapacity {
    pub(crate) slice_type: String,
    #[serde(default)]
    pub(crate) quantity: i64,
}

/// A part of an InfiniBand network, whose machines reach each other.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Partition {
    pub(crate) id: String,
    #[serde(default, deserialize_with = "or_default")]
    pub(crate) name: String,
    #[serde(default, deserialize_with = "or_default")]
    pub(crate) ib_network_id: String,
}

#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Operation {
    pub(crate) state: OperationState,
    #[serde(default)]
    metadata: Value,
    #[serde(default)]
    result: Value,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub(crate) enum OperationState {
    InProgress,
    Succeeded,
    Failed,
    /// One that came after this version.
    #[serde(other)]
    Other,
}

impl Operation {
    /// The id of what it makes.
    fn resource(&self) -> Option<&str> {
        self.metadata.get("id")?.as_str()
    }

    /// Code and text of what went wrong.
    pub(crate) fn failure(&self) -> (&str, String) {
        let told = |name: &str| self.result.get(name).and_then(Value::as_str).unwrap_or_default();
        let (code, text) = (told("code"), told("message"));
        match text {
            "" => (code, self.result.to_string()),
            text => (code, text.to_owned()),
        }
    }
}

#[derive(Deserialize)]
struct Begun {
    operation: Operation,
}

impl Client {
    pub(crate) fn new(env: &Env, config: &CrusoeConfig) -> Result<Self, String> {
        let project = &config.project_id;
        if project.is_empty()
            || !project
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
        {
            return Err("project_id is not the id of a project".to_owned());
        }
        let limits = ApiLimits {
            timeout: Duration::from_secs(30),
            ..ApiLimits::default()
        };
        let signature = Signature {
            clock: Arc::clone(&env.clock),
            access_key: config.creds.access_key.expose().to_owned(),
            secret_key: Secret::new(config.creds.secret_key.expose()),
        };
        Ok(Self {
            api: env
                .api(BackendType::Crusoe, BASE, limits)?
                .with_signer(Arc::new(signature)),
            project: project.clone(),
        })
    }

    fn path(&self, rest: &str) -> String {
        format!("projects/{}/{rest}", self.project)
    }

    async fn list<T: DeserializeOwned>(&self, path: &str) -> Result<Vec<T>, ApiError> {
        Ok(self.api.get(path).send::<Items<T>>().await?.items)
    }

    pub(crate) async fn quotas(&self) -> Result<Vec<Quota>, ApiError> {
        #[derive(Deserialize)]
        struct Quotas {
            #[serde(default, deserialize_with = "readable")]
            quotas: Vec<Quota>,
        }
        Ok(self.api.get(&self.path("quotas")).send::<Quotas>().await?.quotas)
    }

    pub(crate) async fn locations(&self) -> Result<Vec<String>, ApiError> {
        self.list("locations").await
    }

    pub(crate) async fn sizes(&self) -> Result<Vec<Size>, ApiError> {
        self.list(&self.path("compute/vms/types")).await
    }

    pub(crate) async fn capacities(&self) -> Result<Vec<Capacity>, ApiError> {
        self.list("capacities").await
    }

    /// All machines of the project.
    pub(crate) async fn machines(&self) -> Result<Vec<Machine>, ApiError> {
        let (path, mut all, mut token) = (self.path(Kind::Machine.path()), Vec::new(), String::new());
        for _ in 0..MOST_PAGES {
            let mut request = self.api.get(&path).query("limit", PAGE);
            if !token.is_empty() {
                request = request.query("next_token", &token);
            }
            let page: Items<Machine> = request.send().await?;
            all.extend(page.items);
            match page
                .next_page_token
                .filter(|next| !next.is_empty() && *next != token)
            {
                Some(next) => token = next,
                None => return Ok(all),
            }
        }
        Err(ApiError::Malformed {
            api: "Crusoe".to_owned(),
            details: format!("the list of machines has more than {MOST_PAGES} pages"),
        })
    }

    /// All disks of the project but those that machines start from.
    pub(crate) async fn disks(&self) -> Result<Vec<Disk>, ApiError> {
        let path = self.path(Kind::Disk.path());
        let found: Items<Disk> = self.api.get(&path).query("exclude_os", "true").send().await?;
        Ok(found.items)
    }

    pub(crate) async fn networks(&self) -> Result<Vec<Network>, ApiError> {
        self.list(&self.path("networking/ib-networks")).await
    }

    pub(crate) async fn partitions(&self) -> Result<Vec<Partition>, ApiError> {
        self.list(&self.path("networking/ib-partitions")).await
    }

    pub(crate) async fn machine(&self, id: &str) -> Result<Option<Machine>, ApiError> {
        let path = self.path(&format!("{}/{id}", Kind::Machine.path()));
        known(self.api.get(&path).send().await)
    }

    /// Whether the disk is there, by the list: the description has no answer for single disks that are not.
    pub(crate) async fn has_disk(&self, id: &str) -> Result<bool, ApiError> {
        let path = self.path(Kind::Disk.path());
        let found: Items<Disk> = self.api.get(&path).query("disk_ids", id).send().await?;
        Ok(found.items.iter().any(|disk| disk.id == id))
    }

    /// What is done, or was, with the thing of this id.
    pub(crate) async fn operations(&self, kind: Kind, id: &str) -> Result<Vec<Operation>, ApiError> {
        let path = self.path(&format!("{}/operations", kind.path()));
        let found: Items<Operation> = self.api.get(&path).query("resource_id", id).send().await?;
        let mut operations = found.items;
        operations.retain(|operation| operation.resource() == Some(id));
        Ok(operations)
    }

    /// The id of the disk; `None`: it is not told.
    pub(crate) async fn make_disk(
        &self,
        name: &str,
        location: &str,
        gib: i64,
    ) -> Result<Option<String>, ApiError> {
        let ask = json!({
            "name": name,
            "location": location,
            "size": format!("{gib}GiB"),
            "type": "persistent-ssd",
            "block_size": 4096,
        });
        self.begin(Kind::Disk, &ask).await
    }

    /// The id of the machine; `None`: it is not told.
    pub(crate) async fn make_machine(&self, machine: &NewMachine<'_>) -> Result<Option<String>, ApiError> {
        self.begin(Kind::Machine, machine).await
    }

    async fn begin(&self, kind: Kind, ask: &(impl Serialize + Sync)) -> Result<Option<String>, ApiError> {
        let begun: Begun = self.api.post(&self.path(kind.path())).json(ask).send().await?;
        Ok(begun.operation.resource().map(str::to_owned))
    }

    pub(crate) async fn make_partition(&self, name: &str, network: &str) -> Result<Partition, ApiError> {
        let ask = json!({"name": name, "ib_network_id": network});
        let path = self.path("networking/ib-partitions");
        self.api.post(&path).json(&ask).send().await
    }

    /// `None`: it is not there.
    pub(crate) async fn delete(&self, kind: Kind, id: &str) -> Result<Option<()>, ApiError> {
        let path = self.path(&format!("{}/{id}", kind.path()));
        known(self.api.delete(&path).send::<Value>().await.map(drop))
    }

    /// `None`: it is not there.
    pub(crate) async fn delete_partition(&self, id: &str) -> Result<Option<()>, ApiError> {
        let path = self.path(&format!("networking/ib-partitions/{id}"));
        known(self.api.delete(&path).send_raw().await.map(drop))
    }
}

fn known<T>(answer: Result<T, ApiError>) -> Result<Option<T>, ApiError> {
    match answer {
        Ok(answer) => Ok(Some(answer)),
        Err(error) if says_not_found(&error) => Ok(None),
        Err(error) => Err(error),
    }
}

/// The API itself does, not a proxy before it: 404 (observed; the description has none) with its code, or 403 in words that say so.
fn says_not_found(error: &ApiError) -> bool {
    #[derive(Deserialize)]
    struct Problem {
        code: String,
        #[serde(default)]
        message: String,
    }
    let Ok(problem) = serde_json::from_str::<Problem>(error.body()) else {
        return false;
    };
    match error.status() {
        Some(StatusCode::NOT_FOUND) => problem.code == "not_found",
        Some(StatusCode::FORBIDDEN) => {
            problem.code == "not_found" || problem.message.replace('_', " ").contains("not found")
        }
        _ => false,
    }
}
