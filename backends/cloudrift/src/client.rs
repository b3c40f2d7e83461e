//! The API, version 2026-10-12: every call is a POST whose body has the version and the data; so have answers.

use std::collections::BTreeMap;
use std::time::Duration;

use dstack_backend::Env;
use dstack_http::{ApiClient, ApiError, ApiLimits};
use dstack_model::backends::BackendType;
use http::HeaderName;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

const BASE: &str = "https://api.cloudrift.ai/api/v1";
const VERSION: &str = "2026-10-12";

/// The API as one account.
#[derive(Debug)]
pub(crate) struct Client(ApiClient);

#[derive(Serialize)]
struct Ask {
    version: &'static str,
    data: Value,
}

#[derive(Deserialize)]
struct Answer<T> {
    data: T,
}

/// A type of machines, with its sizes.
#[derive(Debug, Deserialize)]
pub(crate) struct InstanceKind {
    #[serde(default)]
    pub(crate) variants: Vec<Variant>,
}

/// A size of machines: CPUs, memory, disk and GPUs of one type in one number.
#[derive(Debug, Deserialize)]
pub(crate) struct Variant {
    pub(crate) name: String,
    /// Machines that are free, by data center.
    #[serde(default)]
    pub(crate) available_nodes_per_dc: BTreeMap<String, i64>,
}

/// Images of one kind.
#[derive(Debug, Deserialize)]
pub(crate) struct ImageGroup {
    #[serde(default)]
    pub(crate) name: String,
    #[serde(default)]
    pub(crate) tags: Vec<String>,
    #[serde(default)]
    pub(crate) recipes: Vec<Image>,
}

/// An image, or something else that can be started.
#[derive(Debug, Deserialize)]
pub(crate) struct Image {
    #[serde(default)]
    pub(crate) name: String,
    #[serde(default)]
    pub(crate) tags: Vec<String>,
    pub(crate) details: ImageDetails,
}

#[derive(Debug, Deserialize)]
pub(crate) struct ImageDetails {
    /// Unset: not for machines.
    #[serde(rename = "VirtualMachine")]
    pub(crate) machine: Option<MachineImage>,
}

#[derive(Debug, Deserialize)]
pub(crate) struct MachineImage {
    pub(crate) image_url: String,
}

/// A machine that is asked for.
pub(crate) struct Rental<'a> {
    pub(crate) name: &'a str,
    pub(crate) region: &'a str,
    pub(crate) instance_type: &'a str,
    pub(crate) image_url: &'a str,
    pub(crate) authorized_keys: &'a [String],
    pub(crate) commands: &'a str,
}

/// A machine that was rented.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Instance {
    pub(crate) id: String,
    /// As it was asked for; the vendor makes one up otherwise.
    #[serde(default)]
    pub(crate) instance_name: Option<String>,
    pub(crate) status: Status,
    #[serde(default)]
    pub(crate) node_mode: String,
    #[serde(default)]
    pub(crate) host_address: Option<String>,
    #[serde(default)]
    pub(crate) virtual_machines: Vec<MachineState>,
    /// Pairs of the machine's port and the one by which it is reached; `None`: it has an address of its own.
    #[serde(default)]
    pub(crate) port_mappings: Option<Vec<(i64, i64)>>,
    #[serde(default)]
    pub(crate) instructions: Option<Instructions>,
    #[serde(default)]
    pub(crate) failure: Option<Failure>,
}

/// Of an instance.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
pub(crate) enum Status {
    Initializing,
    Active,
    Deactivating,
    Inactive,
    Failed,
    /// One that came after this version.
    #[serde(other)]
    Other,
}

#[derive(Debug, Clone, Deserialize)]
pub(crate) struct MachineState {
    #[serde(default)]
    pub(crate) ready: bool,
}

#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Instructions {
    #[serde(default)]
    pub(crate) placeholder_values: Vec<(String, String)>,
}

#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Failure {
    #[serde(default)]
    pub(crate) user_message: Option<String>,
}

impl Client {
    pub(crate) fn new(env: &Env, api_key: &str) -> Result<Self, String> {
        let limits = ApiLimits {
            timeout: Duration::from_secs(30),
            ..ApiLimits::default()
        };
        let client = env.api_with_key(
            BackendType::CloudRift,
            BASE,
            limits,
            HeaderName::from_static("x-api-key"),
            api_key,
        )?;
        Ok(Self(client))
    }

    /// A call that changes nothing: it is made again when it fails.
    async fn read<T: DeserializeOwned>(&self, path: &str, data: Value) -> Result<T, ApiError> {
        let ask = Ask {
            version: VERSION,
            data,
        };
        let answer: Answer<T> = self.0.post(path).json(&ask).repeatable().send().await?;
        Ok(answer.data)
    }

    async fn change<T: DeserializeOwned>(&self, path: &str, data: Value) -> Result<T, ApiError> {
        let ask = Ask {
            version: VERSION,
            data,
        };
        let answer: Answer<T> = self.0.post(path).json(&ask).send().await?;
        Ok(answer.data)
    }

    /// Whether the key is one.
    pub(crate) async fn check_account(&self) -> Result<(), ApiError> {
        #[derive(Deserialize)]
        struct Account {
            #[serde(rename = "email")]
            _email: String,
        }
        self.read::<Account>("auth/me", Value::Null).await.map(drop)
    }

    pub(crate) async fn instance_kinds(&self) -> Result<Vec<InstanceKind>, ApiError> {
        #[derive(Deserialize)]
        struct Kinds {
            instance_types: Vec<InstanceKind>,
        }
        let selector = json!({"selector": {"ByServiceAndLocation": {"services": ["vm"]}}});
        let kinds: Kinds = self.read("instance-types/list", selector).await?;
        Ok(kinds.instance_types)
    }

    pub(crate) async fn image_groups(&self) -> Result<Vec<ImageGroup>, ApiError> {
        #[derive(Deserialize)]
        struct Groups {
            groups: Vec<ImageGroup>,
        }
        let found: Groups = self.read("recipes/list", json!({})).await?;
        Ok(found.groups)
    }

    /// The id of the machine.
    pub(crate) async fn rent(&self, rental: &Rental<'_>) -> Result<Option<String>, ApiError> {
        #[derive(Deserialize)]
        struct Rented {
            instance_ids: Vec<String>,
        }
        let machine = json!({
            "cloudinit_commands": rental.commands,
            "image_url": rental.image_url,
            "ssh_key": {"PublicKeys": rental.authorized_keys},
        });
        let place = json!({"datacenters": [rental.region], "instance_type": rental.instance_type});
        let ask = json!({
            "name": rental.name,
            "config": {"VirtualMachine": machine},
            "selector": {"ByInstanceTypeAndLocation": place},
            "with_public_ip": true,
        });
        let rented: Rented = self.change("instances/rent", ask).await?;
        Ok(rented.instance_ids.into_iter().next())
    }

    /// Those of these ids that there are.
    pub(crate) async fn instances(&self, ids: &[&str]) -> Result<Vec<Instance>, ApiError> {
        self.list(json!({"ById": ids})).await
    }

    /// All that are not over.
    pub(crate) async fn all_instances(&self) -> Result<Vec<Instance>, ApiError> {
        self.list(json!({"ByStatus": {"statuses": ["Initializing", "Active", "Deactivating"]}}))
            .await
    }

    async fn list(&self, selector: Value) -> Result<Vec<Instance>, ApiError> {
        #[derive(Deserialize)]
        struct Found {
            instances: Vec<Instance>,
        }
        let mask = json!({"with_connection_info": true, "with_credentials": true});
        let found: Found = self
            .read("instances/list", json!({"selector": selector, "mask": mask}))
            .await?;
        Ok(found.instances)
    }

    /// What is not there any more is no error.
    pub(crate) async fn terminate(&self, id: &str) -> Result<(), ApiError> {
        let ask = json!({"selector": {"ById": [id]}});
        self.change::<Value>("instances/terminate", ask).await.map(drop)
    }
}
