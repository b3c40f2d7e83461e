//! Configurations of backends, as users write them and the API has them.
//!
//! The fields are those of dstack 0.22.5 (server-config and OpenAPI schemas). Credentials stand in `creds`, except for
//! Kubernetes and Slurm, whose configuration is secret as a whole.

mod clouds;
mod clusters;
mod credential;
mod file;
mod gpu_clouds;
mod manifest;

use std::fmt::Debug;

use dstack_decode::Decode;
use dstack_decode::schema::{Schema, Schemas, any_of, texts};
use dstack_decode::{Problem, decode_lenient, decode_strict};
use dstack_model::backends::BackendType;
use serde::Serialize;
use serde_json::{Map, Value, json};

pub use clouds::*;
pub use clusters::*;
pub use credential::Credential;
pub use file::{FileProblem, resolve_files};
pub use gpu_clouds::*;
pub use manifest::ManifestConfig;

/// The configuration of one type of backends, as [`BackendConfig`] has it.
pub trait TypedConfig: Clone + Debug + Send + Sync + Into<BackendConfig> {
    /// The type of the backends.
    const KIND: BackendType;

    /// The configuration, if it is of this type.
    fn of(config: BackendConfig) -> Option<Self>;
}

macro_rules! backend_configs {
    ($($name:ident($config:ident) = $tag:literal,)*) => {
        /// The configuration of any backend, told apart by `type`.
        #[derive(Debug, Clone, PartialEq, Serialize, Decode)]
        #[serde(untagged)]
        #[decode(tag = "type")]
        #[allow(missing_docs)] // each is the backend of that name
        pub enum BackendConfig {
            $(
                #[decode(rename = $tag)]
                $name($config),
            )*
            /// Of a type that a manifest describes.
            #[decode(skip)]
            Manifest(ManifestConfig),
        }

        impl BackendConfig {
            /// Which backend it is for.
            pub const fn kind(&self) -> BackendType {
                match self {
                    $(Self::$name(_) => BackendType::$name,)*
                    Self::Manifest(config) => config.kind,
                }
            }
        }

        $(
            impl From<$config> for BackendConfig {
                fn from(config: $config) -> Self {
                    Self::$name(config)
                }
            }

            impl TypedConfig for $config {
                const KIND: BackendType = BackendType::$name;

                fn of(config: BackendConfig) -> Option<Self> {
                    match config {
                        BackendConfig::$name(config) => Some(config),
                        _ => None,
                    }
                }
            }
        )*
    };
}

backend_configs! {
    Aws(AwsConfig) = "aws",
    Azure(AzureConfig) = "azure",
    CloudRift(CloudRiftConfig) = "cloudrift",
    Crusoe(CrusoeConfig) = "crusoe",
    Cudo(CudoConfig) = "cudo",
    Verda(VerdaConfig) = "verda",
    DataCrunch(DataCrunchConfig) = "datacrunch",
    Daytona(DaytonaConfig) = "daytona",
    DigitalOcean(DigitalOceanConfig) = "digitalocean",
    AmdDevCloud(AmdDevCloudConfig) = "amddevcloud",
    Gcp(GcpConfig) = "gcp",
    HotAisle(HotAisleConfig) = "hotaisle",
    JarvisLabs(JarvisLabsConfig) = "jarvislabs",
    Kubernetes(KubernetesConfig) = "kubernetes",
    Lambda(LambdaConfig) = "lambda",
    Lium(LiumConfig) = "lium",
    Oci(OciConfig) = "oci",
    Nebius(NebiusConfig) = "nebius",
    Runpod(RunpodConfig) = "runpod",
    Seeweb(SeewebConfig) = "seeweb",
    TensorDock(TensorDockConfig) = "tensordock",
    VastAi(VastAiConfig) = "vastai",
    Vultr(VultrConfig) = "vultr",
    Slurm(SlurmConfig) = "slurm",
    Dstack(DstackConfig) = "dstack",
}

/// A configuration in two texts: what may be seen in the database, and what is to be encrypted there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SplitConfig {
    /// JSON without credentials.
    pub config: String,
    /// JSON of the credentials, or of the whole configuration where that is secret. Empty in databases of dstack 0.22.5
    /// for the latter.
    pub auth: Credential,
}

impl BackendConfig {
    /// Reads a configuration; unknown fields are refused.
    ///
    /// # Errors
    /// All problems.
    pub fn read(value: &Value) -> Result<Self, Vec<Problem>> {
        match ManifestConfig::has_known_type(value) {
            true => decode_strict(value).map(Self::Manifest),
            false => decode_strict(value),
        }
    }

    /// The schema of all that [`BackendConfig::read`] takes: those of this build, and of the types that are registered.
    pub fn documented(schemas: &mut Schemas) -> Value {
        let built_in = Self::schema(schemas);
        let registered: Vec<&str> = BackendType::registered()
            .into_iter()
            .map(BackendType::as_str)
            .collect();
        match registered.is_empty() {
            true => built_in,
            false => any_of(vec![
                built_in,
                json!({"type": "object", "properties": {"type": texts(&registered)}, "required": ["type"]}),
            ]),
        }
    }

    /// As JSON, with credentials.
    fn object(&self) -> Map<String, Value> {
        match serde_json::to_value(self) {
            Ok(Value::Object(map)) => map,
            // A configuration is an object and serializes.
            _ => Map::new(),
        }
    }

    /// Whether it takes the credentials that the server finds around itself.
    pub fn uses_default_creds(&self) -> bool {
        let object = self.object();
        let kind = object.get("creds").and_then(|creds| creds.get("type"));
        kind.and_then(Value::as_str) == Some("default")
    }

    /// As shown to members of a project: without credentials.
    pub fn public(&self) -> Map<String, Value> {
        let mut map = self.object();
        map.remove("creds");
        map.remove("kubeconfig");
        if let Some(Value::Array(clusters)) = map.get_mut("clusters") {
            for cluster in clusters.iter_mut().filter_map(Value::as_object_mut) {
                for secret in ["hostname", "port", "user", "private_key"] {
                    cluster.remove(secret);
                }
            }
        }
        map
    }

    /// As YAML, with credentials, without what is unset.
    pub fn yaml(&self) -> String {
        crate::yaml::write(&Value::Object(self.object()))
    }

    /// In the two texts of the database.
    pub fn split(&self) -> SplitConfig {
        let map = self.object();
        let auth = match map.get("creds") {
            Some(creds) => creds.to_string(),
            // Secret as a whole.
            None => Value::Object(map).to_string(),
        };
        SplitConfig {
            config: Value::Object(self.public()).to_string(),
            auth: Credential::new(auth),
        }
    }

    /// From the two texts of the database, or of that of dstack 0.22.5. Unknown fields are dropped.
    ///
    /// # Errors
    /// They are no such configuration; the text names the field, not the value.
    pub fn join(split: &SplitConfig) -> Result<Self, String> {
        let mut value: Value =
            serde_json::from_str(&split.config).map_err(|_| "the configuration is not JSON".to_owned())?;
        if !split.auth.expose().is_empty() {
            let auth: Value = serde_json::from_str(split.auth.expose())
                .map_err(|_| "the credentials are not JSON".to_owned())?;
            if auth.get("type") == value.get("type") {
                value = auth;
            } else if let Some(map) = value.as_object_mut() {
                map.insert("creds".to_owned(), auth);
            }
        }
        let read = match ManifestConfig::has_type(&value) {
            true => decode_lenient(&value).map(Self::Manifest),
            false => decode_lenient(&value),
        };
        read.map_err(|problems: Vec<Problem>| {
            let places: Vec<String> = problems.iter().map(Problem::path).collect();
            format!("fields are wrong or missing: {}", places.join(", "))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(value: &Value) -> BackendConfig {
        BackendConfig::read(value).unwrap()
    }

    fn of_a_manifest() -> BackendType {
        BackendType::register("nimbus").unwrap()
    }

    #[test]
    fn what_is_split_can_be_joined() {
        for value in [
            json!({"type": "aws", "regions": ["us-east-1"], "creds": {"type": "access_key", "access_key": "A", "secret_key": "S"}}),
            json!({"type": "aws", "creds": {"type": "default", "role_arn": "arn:aws:iam::123456789012:role/dstack", "external_id": "e-1"}}),
            json!({"type": "kubernetes", "kubeconfig": {"data": "canary"}, "contexts": ["a", {"name": "b"}], "gateway_image": "i"}),
            json!({"type": "digitalocean", "creds": {"type": "api_key", "api_key": "k"}}),
            json!({"type": "slurm", "clusters": [{"name": "c", "hostname": "h", "user": "u", "private_key": {"content": "canary"}}]}),
            json!({"type": of_a_manifest(), "regions": ["a"], "project": "p", "creds": {"type": "api_key", "key": "canary"}}),
        ] {
            let config = read(&value);
            assert_eq!(BackendConfig::join(&config.split()).unwrap(), config);
        }
    }

    /// dstack 0.22.5 knows no roles: what has none is stored and shown as there.
    #[test]
    fn roles_of_aws_are_fields_only_where_there_are_some() {
        for creds in [
            json!({"type": "access_key", "access_key": "A", "secret_key": "S"}),
            json!({"type": "default"}),
        ] {
            let value = json!({"type": "aws", "creds": creds});
            let split = read(&value).split();
            assert_eq!(serde_json::from_str::<Value>(split.auth.expose()).unwrap(), creds);
            for (field, wrong) in [
                ("role_arn", "dstack"),
                ("role_arn", "arn:aws:iam::1:user/u"),
                ("external_id", "a b"),
            ] {
                let mut value = value.clone();
                value["creds"][field] = json!(wrong);
                let problems = BackendConfig::read(&value).unwrap_err();
                assert_eq!(problems[0].kind, "string_pattern_mismatch", "{field}: {wrong}");
            }
        }
    }

    #[test]
    fn what_members_see_has_no_credentials() {
        for value in [
            json!({"type": "runpod", "creds": {"type": "api_key", "api_key": "canary"}}),
            json!({"type": "kubernetes", "kubeconfig": {"data": "canary"}}),
            json!({"type": of_a_manifest(), "project": "p", "creds": {"key": "canary"}}),
            json!({"type": "slurm", "clusters": [{"name": "c", "hostname": "canary", "user": "canary", "private_key": {"content": "canary"}}]}),
        ] {
            let config = read(&value);
            let public = Value::Object(config.public()).to_string();
            assert!(!public.contains("canary"), "{public}");
            if config.kind() != BackendType::Slurm {
                assert!(!format!("{config:?}").contains("canary"), "{config:?}");
            }
        }
    }

    #[test]
    fn unknown_fields_are_refused_in_requests_and_dropped_from_the_database() {
        let value = json!({"type": "aws", "region": "x", "creds": {"type": "default"}});
        let problems = BackendConfig::read(&value).unwrap_err();
        assert_eq!(problems[0].kind, "extra_forbidden");
        let split = SplitConfig {
            config: json!({"type": "aws", "resource_group": "later"}).to_string(),
            auth: Credential::new(r#"{"type": "default"}"#),
        };
        assert_eq!(BackendConfig::join(&split).unwrap().kind(), BackendType::Aws);
    }

    #[test]
    fn a_type_that_nobody_knows_any_more_is_refused_in_requests_and_read_from_the_database() {
        let value = json!({"type": "cumulus", "project": 7, "creds": {"key": "canary"}});
        let problems = BackendConfig::read(&value).unwrap_err();
        assert_eq!(problems[0].kind, "union_tag_invalid");
        let split = SplitConfig {
            config: json!({"type": "cumulus", "project": 7}).to_string(),
            auth: Credential::new(r#"{"key": "canary"}"#),
        };
        let BackendConfig::Manifest(config) = BackendConfig::join(&split).unwrap() else {
            panic!("it is of no type of this build");
        };
        assert_eq!((config.kind.as_str(), config.kind.is_known()), ("cumulus", false));
        assert_eq!(
            (config.options["project"].as_str(), config.creds["key"].expose()),
            ("7", "canary")
        );
    }

    #[test]
    fn every_type_with_a_configuration_has_a_model() {
        for kind in BackendType::ALL {
            let problems = BackendConfig::read(&json!({"type": kind.as_str()})).unwrap_err();
            let known = problems.iter().all(|problem| problem.kind != "union_tag_invalid");
            assert_eq!(known, *kind != BackendType::Remote, "{kind}");
        }
    }
}
