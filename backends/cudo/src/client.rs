//! The API, version 1.0.0, as far as it is used.

use std::time::Duration;

use dstack_backend::Env;
use dstack_http::{ApiClient, ApiError, ApiLimits};
use dstack_model::backends::BackendType;
use http::StatusCode;
use http::header::AUTHORIZATION;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Value, json};

const BASE: &str = "https://rest.compute.cudo.org/v1";

/// The API as one user, in one project.
#[derive(Debug)]
pub(crate) struct Client {
    api: ApiClient,
    project: String,
}

/// What machines of a type at a data center may be composed of, and what of it is free.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct MachineType {
    pub(crate) data_center_id: String,
    pub(crate) machine_type: String,
    #[serde(default)]
    pub(crate) gpu_model: String,
    #[serde(default)]
    pub(crate) gpu_model_id: String,
    pub(crate) min_vcpu: f64,
    pub(crate) min_memory_gib: f64,
    pub(crate) min_vcpu_per_memory_gib: f64,
    pub(crate) max_vcpu_per_memory_gib: f64,
    pub(crate) min_vcpu_per_gpu: f64,
    pub(crate) max_vcpu_per_gpu: f64,
    #[serde(deserialize_with = "decimal")]
    pub(crate) vcpu_price_hr: f64,
    #[serde(deserialize_with = "decimal")]
    pub(crate) memory_gib_price_hr: f64,
    #[serde(deserialize_with = "decimal")]
    pub(crate) gpu_price_hr: f64,
    #[serde(deserialize_with = "decimal")]
    pub(crate) min_storage_gib_price_hr: f64,
    #[serde(deserialize_with = "decimal")]
    pub(crate) ipv4_price_hr: f64,
    pub(crate) max_vcpu_free: i64,
    pub(crate) max_memory_gib_free: i64,
    pub(crate) max_gpu_free: i64,
    pub(crate) max_storage_gib_free: i64,
}

/// A type of GPUs.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct GpuModel {
    pub(crate) id: String,
    pub(crate) vendor_name: String,
    pub(crate) memory_gib: f64,
}

/// A public image.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Image {
    pub(crate) id: String,
    pub(crate) size_gib: i64,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Vm {
    /// As it was asked for.
    pub(crate) id: String,
    #[serde(default)]
    pub(crate) state: State,
    #[serde(default)]
    pub(crate) public_ip_address: String,
    #[serde(default)]
    pub(crate) internal_ip_address: String,
    #[serde(default)]
    pub(crate) datacenter_id: String,
    #[serde(default)]
    pub(crate) create_time: String,
}

/// Of a machine; there are more.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub(crate) enum State {
    Active,
    Failed,
    Deleting,
    Deleted,
    #[default]
    #[serde(other)]
    Other,
}

/// A machine that is asked for.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct NewVm<'a> {
    pub(crate) vm_id: &'a str,
    pub(crate) data_center_id: &'a str,
    pub(crate) machine_type: &'a str,
    pub(crate) vcpus: i64,
    pub(crate) memory_gib: i64,
    pub(crate) gpus: usize,
    pub(crate) boot_disk: BootDisk,
    pub(crate) boot_disk_image_id: &'a str,
    pub(crate) custom_ssh_keys: &'a [String],
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) start_script: Option<&'static str>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct BootDisk {
    pub(crate) id: String,
    pub(crate) size_gib: i64,
    pub(crate) storage_class: &'static str,
}

/// An error, as gRPC has it.
#[derive(Debug, Default, Deserialize)]
pub(crate) struct Told {
    #[serde(default)]
    pub(crate) code: i64,
    #[serde(default)]
    pub(crate) message: String,
}

/// What the vendor says in an error; nothing: it is not one of the vendor.
pub(crate) fn told(error: &ApiError) -> Told {
    serde_json::from_str(error.body()).unwrap_or_default()
}

/// Those that are as they should be: one that is not hides no others.
fn entries<'de, D: Deserializer<'de>, T: DeserializeOwned>(from: D) -> Result<Vec<T>, D::Error> {
    let all = Vec::<Value>::deserialize(from)?.into_iter();
    Ok(all.filter_map(|one| serde_json::from_value(one).ok()).collect())
}

/// A number in a text in an object.
fn decimal<'de, D: Deserializer<'de>>(from: D) -> Result<f64, D::Error> {
    #[derive(Deserialize)]
    struct Decimal {
        value: String,
    }
    let text = Decimal::deserialize(from)?.value;
    text.parse().map_err(serde::de::Error::custom)
}

impl Client {
    pub(crate) fn new(env: &Env, api_key: &str, project: &str) -> Result<Self, String> {
        let is_plain = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
        if project.is_empty() || !project.chars().all(is_plain) {
            return Err("`project_id` has characters that no id has, or none".to_owned());
        }
        let limits = ApiLimits {
            timeout: Duration::from_secs(30),
            ..ApiLimits::default()
        };
        let client = env.api_with_key(
            BackendType::Cudo,
            BASE,
            limits,
            AUTHORIZATION,
            &format!("Bearer {api_key}"),
        )?;
        Ok(Self {
            api: client,
            project: project.to_owned(),
        })
    }

    /// Whether the key is one.
    pub(crate) async fn check_key(&self) -> Result<(), ApiError> {
        self.api.get("auth").send::<Value>().await.map(drop)
    }

    /// Whether the project is one of the key's.
    pub(crate) async fn check_project(&self) -> Result<(), ApiError> {
        let path = format!("projects/{}", self.project);
        self.api.get(&path).send::<Value>().await.map(drop)
    }

    pub(crate) async fn machine_types(&self) -> Result<Vec<MachineType>, ApiError> {
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Types {
            #[serde(default, deserialize_with = "entries")]
            machine_types: Vec<MachineType>,
        }
        let types: Types = self.api.get("vms/machine-types-2").send().await?;
        Ok(types.machine_types)
    }

    pub(crate) async fn gpu_models(&self) -> Result<Vec<GpuModel>, ApiError> {
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Models {
            #[serde(default, deserialize_with = "entries")]
            gpu_models: Vec<GpuModel>,
        }
        let models: Models = self.api.get("vms/gpu-models").send().await?;
        Ok(models.gpu_models)
    }

    pub(crate) async fn images(&self) -> Result<Vec<Image>, ApiError> {
        #[derive(Deserialize)]
        struct Images {
            #[serde(default, deserialize_with = "entries")]
            images: Vec<Image>,
        }
        let images: Images = self.api.get("vms/public-images").send().await?;
        Ok(images.images)
    }

    pub(crate) async fn create(&self, ask: &NewVm<'_>) -> Result<(), ApiError> {
        #[derive(Deserialize)]
        struct Created {
            #[serde(rename = "id")]
            _id: String,
        }
        let path = format!("projects/{}/vm", self.project);
        self.api.post(&path).json(ask).send::<Created>().await.map(drop)
    }

    /// All of them. This list has no pages.
    pub(crate) async fn vms(&self) -> Result<Vec<Vm>, ApiError> {
        #[derive(Deserialize)]
        struct Vms {
            // Lists that are empty may be left out.
            #[serde(rename = "VMs", default)]
            vms: Vec<Vm>,
        }
        let vms: Vms = self
            .api
            .get(&format!("projects/{}/vms", self.project))
            .send()
            .await?;
        Ok(vms.vms)
    }

    /// `None`: there is none, and none is listed.
    pub(crate) async fn vm(&self, id: &str) -> Result<Option<Vm>, ApiError> {
        #[derive(Deserialize)]
        struct Answer {
            #[serde(rename = "VM")]
            vm: Vm,
        }
        let path = format!("projects/{}/vms/{id}", self.project);
        let answer: Option<Answer> = found(self.api.get(&path).send().await)?;
        let vm = match answer {
            Some(answer) => Some(answer.vm),
            None => self.vms().await?.into_iter().find(|vm| vm.id == id),
        };
        Ok(vm.filter(|vm| vm.state != State::Deleted))
    }

    /// What is not there is no error.
    pub(crate) async fn terminate(&self, id: &str) -> Result<(), ApiError> {
        let path = format!("projects/{}/vms/{id}/terminate", self.project);
        let answer = self.api.post(&path).json(&json!({})).send::<Value>().await;
        found(answer).map(drop)
    }
}

/// Of gRPC: there is none.
const NOT_FOUND: i64 = 5;

/// `None`: the API says that there is none. Whatever else stands before it says nothing.
fn found<T>(answer: Result<T, ApiError>) -> Result<Option<T>, ApiError> {
    match answer {
        Ok(answer) => Ok(Some(answer)),
        Err(error) if error.status() == Some(StatusCode::NOT_FOUND) => match told(&error).code {
            NOT_FOUND => Ok(None),
            _ => Err(ApiError::Malformed {
                api: BASE.trim_start_matches("https://").to_owned(),
                details: error.to_string(),
            }),
        },
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_api_says_that_there_is_none() {
        let answer = |body: &str| {
            found::<Value>(Err(ApiError::Status {
                api: String::new(),
                status: StatusCode::NOT_FOUND,
                body: body.to_owned(),
                retry_after: None,
            }))
        };
        assert!(matches!(
            answer(r#"{"code": 5, "message": "VM not found"}"#),
            Ok(None)
        ));
        for other in ["", "<html>404 Not Found</html>", r#"{"code": 12}"#] {
            assert!(!answer(other).unwrap_err().is_definite(), "{other}");
        }
    }
}
