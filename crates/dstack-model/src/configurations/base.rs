//! What all run configurations have in common.

use dstack_units::PythonVersion;
use dstack_units::path::{normal_absolute, split_mount_point};
use serde::Serialize;
use serde_json::{Map, Value, json};

use crate::Decode;
use crate::common::RegistryAuth;
use crate::decode::Cx;
use crate::decode::units::python_number;
use crate::envs::Env;
use crate::files::{FilePathMapping, join_drive_letter};
use crate::resources::ResourcesSpec;
use crate::schema::{Schema, Schemas, any_of};
use crate::string_enum;
use crate::unix::check_user;

/// What all run configurations have in common.
#[derive(Debug, Clone, PartialEq, Serialize, Decode)]
pub struct BaseRunConfiguration {
    /// The run name. If not specified, a random name is generated.
    pub name: Option<String>,
    /// The name of the Docker image to run.
    pub image: Option<String>,
    /// The user inside the container, `user_name_or_id[:group_name_or_id]`.
    #[decode(check = check_user)]
    pub user: Option<String>,
    /// Run the container in privileged mode.
    #[decode(default)]
    pub privileged: bool,
    /// The Docker entrypoint.
    pub entrypoint: Option<String>,
    /// The absolute path to the working directory inside the container.
    pub working_dir: Option<String>,
    /// Deprecated, has no effect.
    #[decode(default = "/root".to_owned())]
    pub home_dir: String,
    /// Credentials for pulling a private Docker image.
    pub registry_auth: Option<RegistryAuth>,
    /// The major version of Python. Mutually exclusive with `image` and `docker`.
    #[decode(before = before_python)]
    pub python: Option<PythonVersion>,
    /// Use image with NVIDIA CUDA Compiler (NVCC) included. Mutually exclusive with `image` and `docker`.
    pub nvcc: Option<bool>,
    /// Whether to clone and track only the current branch or all remote branches.
    pub single_branch: Option<bool>,
    /// The mapping or the list of environment variables.
    #[decode(default)]
    pub env: Env,
    /// The shell used to run commands: `sh`, `bash`, or an absolute path.
    #[decode(check = check_shell)]
    pub shell: Option<String>,
    /// The resources requirements to run the configuration.
    #[decode(default)]
    pub resources: ResourcesSpec,
    /// The priority of the run, an integer between `0` and `100`. Defaults to `0`.
    #[decode(ge = 0, le = 100)]
    pub priority: Option<i64>,
    /// The volumes mount points.
    #[decode(default)]
    pub volumes: Vec<MountPoint>,
    /// Use Docker inside the container. Mutually exclusive with `image`, `python`, and `nvcc`.
    #[decode(before = before_docker)]
    pub docker: Option<bool>,
    /// The list of Git repos.
    #[decode(default, check = check_repos)]
    pub repos: Vec<RepoSpec>,
    /// The local to container file path mappings.
    #[decode(default)]
    pub files: Vec<FilePathMapping>,
    /// Make the dstack server accessible inside the run.
    #[decode(default)]
    pub dstack: bool,
    /// Deprecated. For dev environments it runs right before `init`.
    #[decode(default)]
    pub setup: Vec<String>,
}

impl Default for BaseRunConfiguration {
    fn default() -> Self {
        Self {
            name: None,
            image: None,
            user: None,
            privileged: false,
            entrypoint: None,
            working_dir: None,
            home_dir: "/root".to_owned(),
            registry_auth: None,
            python: None,
            nvcc: None,
            single_branch: None,
            env: Env::default(),
            shell: None,
            resources: ResourcesSpec::default(),
            priority: None,
            volumes: Vec::new(),
            docker: None,
            repos: Vec::new(),
            files: Vec::new(),
            dstack: false,
            setup: Vec::new(),
        }
    }
}

/// Whether a key holds something that Python takes for true.
pub(crate) fn is_set(map: &Map<String, Value>, key: &str) -> bool {
    match map.get(key) {
        None | Some(Value::Null | Value::Bool(false) | Value::Array(_) | Value::Object(_)) => false,
        Some(Value::String(text)) => {
            let no = ["false", "f", "no", "n", "off", "0"];
            let refused = key == "nvcc" && no.contains(&text.to_lowercase().as_str());
            !text.is_empty() && !refused
        }
        Some(Value::Number(number)) => key != "nvcc" || number.as_f64() == Some(1.0),
        Some(Value::Bool(true)) => key == "nvcc",
    }
}

fn before_python(value: &Value, map: &Map<String, Value>) -> Result<Option<Value>, String> {
    if !value.is_null() && is_set(map, "image") {
        return Err("`image` and `python` are mutually exclusive fields".to_owned());
    }
    python_number(value, map)
}

fn before_docker(value: &Value, map: &Map<String, Value>) -> Result<Option<Value>, String> {
    if *value == Value::Bool(true) {
        for other in ["image", "python", "nvcc"] {
            if is_set(map, other) {
                return Err(format!("`{other}` and `docker` are mutually exclusive fields"));
            }
        }
    }
    Ok(None)
}

fn check_shell(shell: Option<String>) -> Result<Option<String>, String> {
    match &shell {
        Some(text) if text != "sh" && text != "bash" && !text.starts_with('/') => {
            Err("The value must be `sh`, `bash`, or an absolute path".to_owned())
        }
        _ => Ok(shell),
    }
}

fn check_repos(repos: Vec<RepoSpec>) -> Result<Vec<RepoSpec>, String> {
    if repos.len() > 1 {
        return Err("A maximum of one repo is currently supported".to_owned());
    }
    Ok(repos)
}

string_enum! {
    /// What happens when a repo's directory exists and is not empty.
    pub enum RepoExistsAction {
        /// The run fails.
        Error = "error",
        /// The repo is left out.
        Skip = "skip",
    }
}

/// A Git repo.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Decode)]
#[decode(before = repo_from_text, after = check_repo)]
pub struct RepoSpec {
    /// The path to the Git repo on the user's machine. Mutually exclusive with `url`.
    pub local_path: Option<String>,
    /// The Git repo URL. Mutually exclusive with `local_path`.
    pub url: Option<String>,
    /// The repo branch.
    pub branch: Option<String>,
    /// The commit hash.
    pub hash: Option<String>,
    /// The repo path inside the run container.
    #[decode(default = ".".to_owned(), check = check_repo_path)]
    pub path: String,
    /// The action to be taken if `path` exists and is not empty.
    #[decode(default = RepoExistsAction::Error)]
    pub if_exists: RepoExistsAction,
}

/// `path`, `path:container`, `url`, `url:container`.
fn repo_from_text(value: &Value) -> Result<Option<Value>, String> {
    let Value::String(text) = value else {
        return Ok(None);
    };
    let mut parts: Vec<String> = text.split(':').map(str::to_owned).collect();
    let is_url = match parts.as_slice() {
        [host, path, ..] => host.contains('@') || path.starts_with("//"),
        _ => false,
    };
    if is_url {
        let path = parts.remove(1);
        if let Some(host) = parts.first_mut() {
            *host = format!("{host}:{path}");
        }
    } else {
        parts = join_drive_letter(&text.split(':').collect::<Vec<_>>());
    }
    let key = if is_url { "url" } else { "local_path" };
    match parts.as_slice() {
        [source] => Ok(Some(json!({ key: source }))),
        [source, path] => Ok(Some(json!({ key: source, "path": path }))),
        _ => Err(format!("Invalid repo: {text}")),
    }
}

fn check_repo_path(path: String) -> Result<String, String> {
    let first = path.split('/').next().unwrap_or("");
    if path.starts_with('~') && first != "~" {
        return Err("`~username` syntax is not supported".to_owned());
    }
    Ok(path)
}

fn check_repo(repo: RepoSpec) -> Result<RepoSpec, String> {
    let given = |text: &Option<String>| text.as_ref().is_some_and(|text| !text.is_empty());
    match (given(&repo.local_path), given(&repo.url)) {
        (true, true) => Err("`local_path` and `url` are mutually exclusive".to_owned()),
        (false, false) => Err("Either `local_path` or `url` must be specified".to_owned()),
        _ => Ok(repo),
    }
}

/// A network volume, or one of several, mounted into the container.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Decode)]
pub struct VolumeMountPoint {
    /// The network volume name or the list of network volume names to mount.
    pub name: VolumeNames,
    /// The absolute container path to mount the volume at.
    #[decode(check = check_path)]
    pub path: String,
}

/// One volume, or several of which one is used.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum VolumeNames {
    /// The volume of this name.
    One(String),
    /// One of these.
    AnyOf(Vec<String>),
}

impl VolumeNames {
    /// Returns the names, of which there is at least one.
    pub fn as_slice(&self) -> &[String] {
        match self {
            Self::One(name) => std::slice::from_ref(name),
            Self::AnyOf(names) => names,
        }
    }
}

impl crate::decode::Decode for VolumeNames {
    fn decode(value: &Value, cx: &mut Cx) -> Option<Self> {
        cx.union(&[
            ("str", &|cx: &mut Cx| String::decode(value, cx).map(Self::One)),
            ("list[str]", &|cx: &mut Cx| {
                Vec::decode(value, cx).map(Self::AnyOf)
            }),
        ])
    }
}

impl Schema for VolumeNames {
    fn schema(schemas: &mut Schemas) -> Value {
        any_of(vec![String::schema(schemas), Vec::<String>::schema(schemas)])
    }
}

/// A path of the host mounted into the container.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Decode)]
pub struct InstanceMountPoint {
    /// The absolute path on the instance (host).
    #[decode(check = check_path)]
    pub instance_path: String,
    /// The absolute path in the container.
    #[decode(check = check_path)]
    pub path: String,
    /// Allow running without this volume in backends that do not support instance volumes.
    #[decode(default)]
    pub optional: bool,
}

#[allow(clippy::needless_pass_by_value)] // the form of all checks
fn check_path(path: String) -> Result<String, String> {
    normal_absolute(&path).map_err(dstack_units::ParseError::into_message)
}

/// What is mounted into the container.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum MountPoint {
    /// A network volume.
    Volume(VolumeMountPoint),
    /// A path of the host.
    Instance(InstanceMountPoint),
}

impl MountPoint {
    /// Where it is mounted.
    pub fn path(&self) -> &str {
        match self {
            Self::Volume(mount) => &mount.path,
            Self::Instance(mount) => &mount.path,
        }
    }
}

impl crate::decode::Decode for MountPoint {
    fn decode(value: &Value, cx: &mut Cx) -> Option<Self> {
        if let Value::String(text) = value {
            // A text says itself which kind it is, so that only that kind's problems are told.
            let (source, path) = match split_mount_point(text) {
                Ok(parts) => parts,
                Err(error) => return cx.value_error(error.message(), value),
            };
            return if source.contains('/') {
                let object = json!({"instance_path": source, "path": path});
                InstanceMountPoint::decode(&object, cx).map(Self::Instance)
            } else {
                let object = json!({"name": source, "path": path});
                VolumeMountPoint::decode(&object, cx).map(Self::Volume)
            };
        }
        cx.union(&[
            ("VolumeMountPoint", &|cx: &mut Cx| {
                VolumeMountPoint::decode(value, cx).map(Self::Volume)
            }),
            ("InstanceMountPoint", &|cx: &mut Cx| {
                InstanceMountPoint::decode(value, cx).map(Self::Instance)
            }),
        ])
    }
}

impl Schema for MountPoint {
    fn schema(schemas: &mut Schemas) -> Value {
        let mut forms = vec![
            VolumeMountPoint::schema(schemas),
            InstanceMountPoint::schema(schemas),
        ];
        if !schemas.are_answers() {
            forms.push(json!({"type": "string"}));
        }
        any_of(forms)
    }
}

impl<'de> serde::Deserialize<'de> for MountPoint {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        crate::decode::deserialize(deserializer)
    }
}
