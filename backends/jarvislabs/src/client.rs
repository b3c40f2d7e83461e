//! The API, as the vendor's SDK (`jarvislabs` 0.2.19) uses it: there is no description by the vendor. Regions have hosts of their own for
//! what is made and destroyed there; one of them answers for the account.

use std::collections::BTreeMap;
use std::time::Duration;

use dstack_backend::{Env, compute_error, one_line};
use dstack_compute::ComputeError;
use dstack_http::{ApiClient, ApiError, ApiLimits, ApiRequest};
use dstack_model::backends::BackendType;
use http::StatusCode;
use http::header::AUTHORIZATION;
use serde::de::{DeserializeOwned, Error as _};
use serde::{Deserialize, Deserializer};
use serde_json::{Value, json};

const ACCOUNT: &str = "https://backendn.jarvislabs.net";

/// Hosts of the regions; no call tells them.
const REGIONS: &[(&str, &str)] = &[
    ("europe-01", "https://backendeu.jarvislabs.net"),
    ("india-01", "https://backendprod.jarvislabs.net"),
    ("india-chennai-01", "https://backendc.jarvislabs.net"),
    ("india-noida-01", "https://backendn.jarvislabs.net"),
];

/// Whether machines can be made in a region.
pub(crate) fn is_region(name: &str) -> bool {
    REGIONS.iter().any(|(region, _)| *region == name)
}

/// Names of all regions.
pub(crate) fn all_regions() -> impl Iterator<Item = &'static str> {
    REGIONS.iter().map(|(name, _)| *name)
}

/// Names of all regions, for people.
pub(crate) fn region_names() -> String {
    let names: Vec<&str> = all_regions().collect();
    names.join(", ")
}

/// The API as one account.
#[derive(Debug)]
pub(crate) struct Client {
    account: ApiClient,
    regions: BTreeMap<&'static str, ApiClient>,
}

/// Why a call came to nothing.
#[derive(Debug)]
pub(crate) enum Failure {
    Api(ApiError),
    /// It was answered with success that it has not succeeded.
    Told(String),
}

impl From<ApiError> for Failure {
    fn from(error: ApiError) -> Self {
        Self::Api(error)
    }
}

impl Failure {
    /// Of a call that reads, or removes something.
    pub(crate) fn compute_error(&self) -> ComputeError {
        match self {
            Self::Api(error) => compute_error(error),
            Self::Told(text) => ComputeError::Refused(format!("JarvisLabs refuses it: {text}")),
        }
    }

    /// Of a call that makes a machine: that nothing is free is told in words only.
    pub(crate) fn making_error(&self) -> ComputeError {
        let text = match self {
            Self::Api(error)
                if matches!(
                    error.status(),
                    Some(StatusCode::BAD_REQUEST | StatusCode::CONFLICT)
                ) =>
            {
                message_of(error.body())
            }
            Self::Api(error) => return compute_error(error),
            Self::Told(text) => text.clone(),
        };
        let lower = text.to_ascii_lowercase();
        let tells = ["capacity", "available", "stock"]
            .iter()
            .any(|word| lower.contains(word));
        match tells {
            true => ComputeError::NoCapacity(text),
            false => ComputeError::Refused(format!("JarvisLabs refuses it: {text}")),
        }
    }
}

/// What GPU machines there are: a type in a region.
#[derive(Debug, Deserialize)]
pub(crate) struct GpuRow {
    #[serde(default)]
    pub(crate) gpu_type: Option<String>,
    #[serde(default)]
    pub(crate) region: Option<String>,
    /// `vm`, `container`; null where both are sold.
    #[serde(default)]
    pub(crate) workload_type: Option<String>,
    // Numbers, of which some are texts.
    #[serde(default)]
    pub(crate) num_free_devices: Value,
    #[serde(default)]
    pub(crate) effective_num_free_devices: Value,
    /// Most of a machine.
    #[serde(default)]
    pub(crate) num_gpus: Value,
    /// Dollars an hour and GPU.
    #[serde(default)]
    pub(crate) price_per_hour: Value,
    #[serde(default)]
    pub(crate) vram: Value,
    #[serde(default)]
    pub(crate) cpus_per_gpu: Value,
    #[serde(default)]
    pub(crate) ram_per_gpu: Value,
}

/// A size of machines without GPUs.
#[derive(Debug, Deserialize)]
pub(crate) struct CpuSize {
    #[serde(default)]
    pub(crate) vcpus: Value,
    #[serde(default)]
    pub(crate) ram_gb: Value,
    #[serde(default)]
    pub(crate) price: Value,
    #[serde(default)]
    pub(crate) available: Option<bool>,
    /// Whether it is to be had, by region.
    #[serde(default)]
    pub(crate) regions: Option<BTreeMap<String, bool>>,
}

#[derive(Debug, Default, Deserialize)]
pub(crate) struct CpuMeta {
    #[serde(default, deserialize_with = "rows")]
    pub(crate) combinations: Vec<CpuSize>,
}

/// What there is.
#[derive(Debug, Deserialize)]
pub(crate) struct ServerMeta {
    #[serde(default, deserialize_with = "rows")]
    pub(crate) server_meta: Vec<GpuRow>,
    #[serde(default)]
    pub(crate) cpu_meta: Option<CpuMeta>,
}

#[derive(Debug, Deserialize)]
pub(crate) struct SshKey {
    #[serde(default, deserialize_with = "text")]
    pub(crate) ssh_key: Option<String>,
}

#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Instance {
    #[serde(deserialize_with = "id")]
    machine_id: String,
    /// `Running`, `Failed`, `Destroying`, ..., in any case.
    #[serde(default, deserialize_with = "text")]
    status: Option<String>,
    #[serde(default, deserialize_with = "text")]
    template: Option<String>,
    #[serde(default, deserialize_with = "text")]
    framework: Option<String>,
    #[serde(default, deserialize_with = "text")]
    gpu_type: Option<String>,
    #[serde(default, deserialize_with = "text")]
    pub(crate) region: Option<String>,
    #[serde(default, deserialize_with = "text")]
    pub(crate) public_ip: Option<String>,
    #[serde(default, deserialize_with = "text")]
    pub(crate) private_ip: Option<String>,
    #[serde(default, deserialize_with = "text")]
    pub(crate) vpc_id: Option<String>,
    #[serde(default, deserialize_with = "text")]
    ssh_str: Option<String>,
    #[serde(default, deserialize_with = "text")]
    ssh_command: Option<String>,
    #[serde(default, deserialize_with = "text")]
    instance_name: Option<String>,
    #[serde(default, deserialize_with = "text")]
    name: Option<String>,
    #[serde(default, deserialize_with = "text")]
    pub(crate) error: Option<String>,
}

/// Of what kind a machine is: each has calls of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Template {
    GpuMachine,
    CpuMachine,
    Other,
}

impl Instance {
    pub(crate) fn id(&self) -> String {
        self.machine_id.clone()
    }

    pub(crate) fn status(&self) -> String {
        self.status.as_deref().unwrap_or_default().to_ascii_lowercase()
    }

    pub(crate) fn name(&self) -> Option<&str> {
        self.instance_name.as_deref().or(self.name.as_deref())
    }

    /// By which people log in.
    pub(crate) fn ssh_command(&self) -> &str {
        let command = self.ssh_str.as_deref().or(self.ssh_command.as_deref());
        command.unwrap_or_default()
    }

    pub(crate) fn template(&self) -> Template {
        let template = self.template.as_deref().or(self.framework.as_deref());
        let is_machine = template.is_some_and(|name| name.eq_ignore_ascii_case("vm"));
        let is_cpu = self
            .gpu_type
            .as_deref()
            .is_some_and(|gpu| gpu.eq_ignore_ascii_case("cpu"));
        match (is_machine, is_cpu) {
            (true, true) => Template::CpuMachine,
            (true, false) => Template::GpuMachine,
            (false, _) => Template::Other,
        }
    }
}

/// How far a machine is that is being made.
#[derive(Debug, Deserialize)]
pub(crate) struct Progress {
    #[serde(default, deserialize_with = "text")]
    pub(crate) status: Option<String>,
    #[serde(default, deserialize_with = "text")]
    pub(crate) error: Option<String>,
}

impl Client {
    pub(crate) fn new(env: &Env, api_key: &str) -> Result<Self, String> {
        let limits = ApiLimits {
            timeout: Duration::from_secs(60),
            ..ApiLimits::default()
        };
        let client = |base: &str| {
            env.api_with_key(
                BackendType::JarvisLabs,
                base,
                limits,
                AUTHORIZATION,
                &format!("Bearer {api_key}"),
            )
        };
        let regions = REGIONS.iter().map(|(name, base)| Ok((*name, client(base)?)));
        Ok(Self {
            account: client(ACCOUNT)?,
            regions: regions.collect::<Result<_, String>>()?,
        })
    }

    fn in_region(&self, region: &str) -> Result<&ApiClient, Failure> {
        let client = self.regions.get(region);
        client.ok_or_else(|| Failure::Told(format!("nobody knows the host of the region {region}")))
    }

    /// Whether the key is one.
    pub(crate) async fn check_account(&self) -> Result<(), ApiError> {
        let user: Value = self.account.get("users/user_info").send().await?;
        match user.is_object() {
            true => Ok(()),
            false => Err(malformed("that is no user".to_owned())),
        }
    }

    pub(crate) async fn server_meta(&self) -> Result<ServerMeta, Failure> {
        send(self.account.get("misc/server_meta")).await
    }

    pub(crate) async fn ssh_keys(&self) -> Result<Vec<SshKey>, Failure> {
        send(self.account.get("ssh/")).await
    }

    pub(crate) async fn add_ssh_key(&self, name: &str, key: &str) -> Result<(), Failure> {
        let body = json!({"ssh_key": key, "key_name": name});
        send::<Value>(self.account.post("ssh/").json(&body))
            .await
            .map(drop)
    }

    /// What is not there any more is no error.
    pub(crate) async fn delete_ssh_key(&self, id: &str) -> Result<(), Failure> {
        let request = self.account.delete(&format!("ssh/{id}"));
        found(send::<Value>(request).await).map(drop)
    }

    /// The id of the machine, if one is told.
    pub(crate) async fn create(
        &self,
        template: Template,
        region: &str,
        body: &Value,
    ) -> Result<Option<String>, Failure> {
        #[derive(Deserialize)]
        struct Created {
            #[serde(default)]
            machine_id: Value,
        }
        let path = format!("{}/create", path_of(template));
        let created: Created = send(self.in_region(region)?.post(&path).json(body)).await?;
        Ok(Some(text_of(&created.machine_id)).filter(|id| !id.is_empty()))
    }

    /// All of the account, in all regions. The API has no pages.
    pub(crate) async fn instances(&self) -> Result<Vec<Instance>, Failure> {
        #[derive(Deserialize)]
        struct Listed {
            instances: Vec<Instance>,
        }
        let listed: Listed = send(self.account.get("users/fetch")).await?;
        Ok(listed.instances)
    }

    /// `None`: it is not there, or not listed yet.
    pub(crate) async fn instance(&self, id: &str) -> Result<Option<Instance>, Failure> {
        #[derive(Deserialize)]
        struct Fetched {
            instance: Option<Instance>,
        }
        let fetched = send::<Fetched>(self.account.get(&format!("users/fetch/{id}"))).await;
        Ok(found(fetched)?.and_then(|fetched| fetched.instance))
    }

    /// Of a machine that is not listed yet; `None`: nothing is known of it.
    pub(crate) async fn progress(&self, region: &str, id: &str) -> Result<Option<Progress>, Failure> {
        let request = self.in_region(region)?.get("misc/status").query("machine_id", id);
        found(send(request).await)
    }

    /// Whether it was there.
    pub(crate) async fn destroy(&self, template: Template, region: &str, id: &str) -> Result<bool, Failure> {
        let path = format!("{}/destroy", path_of(template));
        let request = self.in_region(region)?.post(&path).query("machine_id", id);
        found(send::<Value>(request).await).map(|destroyed| destroyed.is_some())
    }
}

/// Those that are as they should be: one that is not hides no others.
fn rows<'de, D: Deserializer<'de>, T: DeserializeOwned>(from: D) -> Result<Vec<T>, D::Error> {
    let rows: Option<Vec<Value>> = Deserialize::deserialize(from)?;
    let rows = rows.into_iter().flatten();
    Ok(rows.filter_map(|row| serde_json::from_value(row).ok()).collect())
}

/// What is neither text nor number tells nothing.
fn text<'de, D: Deserializer<'de>>(from: D) -> Result<Option<String>, D::Error> {
    let text = text_of(&Value::deserialize(from)?);
    Ok(Some(text).filter(|text| !text.is_empty()))
}

fn id<'de, D: Deserializer<'de>>(from: D) -> Result<String, D::Error> {
    text(from)?.ok_or_else(|| D::Error::custom("no id"))
}

const fn path_of(template: Template) -> &'static str {
    match template {
        Template::GpuMachine => "templates/vm",
        Template::CpuMachine => "templates/vm/cpu",
        Template::Other => "misc",
    }
}

/// Sends a request, and reads the answer where it does not tell of a failure.
async fn send<T: DeserializeOwned>(request: ApiRequest<'_>) -> Result<T, Failure> {
    let answer: Value = request.send().await?;
    // Both are written, as booleans or texts; without either it has succeeded.
    let flag = ["success", "sucess"].iter().find_map(|name| answer.get(name));
    let is_true = |flag: &Value| match flag {
        Value::String(text) => {
            let text = text.trim().to_ascii_lowercase();
            matches!(text.as_str(), "1" | "true" | "yes" | "success")
        }
        Value::Number(number) => number.as_i64() != Some(0),
        flag => flag.as_bool() == Some(true),
    };
    if !flag.is_none_or(is_true) {
        return Err(Failure::Told(told(&answer)));
    }
    serde_json::from_value(answer).map_err(|error| Failure::Api(malformed(error.to_string())))
}

fn malformed(details: String) -> ApiError {
    let api = ACCOUNT.trim_start_matches("https://").to_owned();
    ApiError::Malformed { api, details }
}

/// `None`: the API says that there is none. Whatever else stands before it says nothing.
fn found<T>(answer: Result<T, Failure>) -> Result<Option<T>, Failure> {
    match answer {
        Err(Failure::Api(error)) if error.status() == Some(StatusCode::NOT_FOUND) => {
            match serde_json::from_str(error.body()) {
                Ok(Value::Object(_)) => Ok(None),
                _ => Err(Failure::Api(malformed(one_line(&error.to_string())))),
            }
        }
        answer => answer.map(Some),
    }
}

/// A number or a text.
pub(crate) fn text_of(value: &Value) -> String {
    match value {
        Value::String(text) => text.trim().to_owned(),
        Value::Number(number) => number.to_string(),
        _ => String::new(),
    }
}

fn message_of(body: &str) -> String {
    match serde_json::from_str(body) {
        Ok(answer) => told(&answer),
        Err(_) => one_line(body),
    }
}

/// What an answer says in words.
fn told(answer: &Value) -> String {
    let of_item = |item: &Value| item.get("msg").map_or_else(|| item.to_string(), text_of);
    let fields = ["message", "error", "detail", "msg"].iter();
    let mut texts = fields.filter_map(|name| match answer.get(name)? {
        Value::Array(items) => Some(items.iter().map(of_item).collect::<Vec<_>>().join("; ")),
        value => Some(text_of(value)),
    });
    let text = texts.find(|text| !text.is_empty());
    one_line(&text.unwrap_or_else(|| answer.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_tell_in_several_ways_why_not() {
        for (body, text) in [
            (json!({"message": "no", "error": "other"}), "no"),
            (json!({"message": "", "error": "no"}), "no"),
            (json!({"detail": [{"msg": "one"}, {"msg": "two"}]}), "one; two"),
            (json!({"msg": "no"}), "no"),
            (json!({"code": 1}), "{\"code\":1}"),
        ] {
            assert_eq!(message_of(&body.to_string()), text);
        }
        assert_eq!(message_of(" no \n<br> more\n"), "no <br> more");
    }

    #[test]
    fn only_the_id_of_a_machine_has_to_be_as_it_should() {
        let odd = json!({"machine_id": 7, "status": ["x"], "instance_name": 12, "region": null, "public_ip": {}, "error": 5});
        let instance: Instance = serde_json::from_value(odd).unwrap();
        assert_eq!((instance.id().as_str(), instance.name()), ("7", Some("12")));
        for id in [json!(null), json!(""), json!([])] {
            serde_json::from_value::<Instance>(json!({"machine_id": id})).unwrap_err();
        }
    }

    #[test]
    fn only_the_api_says_that_there_is_none() {
        let answer = |body: &str| {
            found::<Value>(Err(Failure::Api(ApiError::Status {
                api: String::new(),
                status: StatusCode::NOT_FOUND,
                body: body.to_owned(),
                retry_after: None,
            })))
        };
        assert!(matches!(answer(r#"{"detail": "Instance not found"}"#), Ok(None)));
        for other in ["", "<html>404 Not Found</html>"] {
            let error = answer(other).unwrap_err().compute_error();
            assert!(!error.is_definite(), "{error:?}");
        }
    }

    #[test]
    fn that_nothing_is_free_is_told_in_words() {
        let status = |status: u16, detail: &str| {
            Failure::Api(ApiError::Status {
                api: String::new(),
                status: StatusCode::from_u16(status).unwrap(),
                body: json!({"detail": detail}).to_string(),
                retry_after: None,
            })
        };
        let no_capacity = |failure: Failure| matches!(failure.making_error(), ComputeError::NoCapacity(_));
        assert!(no_capacity(Failure::Told("GPU is not available".to_owned())));
        assert!(no_capacity(status(409, "Out of stock")) && no_capacity(status(400, "No Capacity")));
        for other in [status(503, "not available"), status(400, "SSH key limit reached")] {
            assert!(!no_capacity(other));
        }
        assert!(!status(503, "not available").making_error().is_definite());
    }
}
