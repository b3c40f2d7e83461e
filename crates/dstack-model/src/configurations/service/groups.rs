//! Replica groups of a service, and the router that one may have.

use dstack_units::name::is_group_name;
use dstack_units::number::quote_list;
use dstack_units::{PythonVersion, Range};
use serde::{Serialize, Serializer};
use serde_json::{Map, Value, json};

use super::ServiceConfiguration;
use super::scaling::{self, ScalingSpec};
use crate::Decode;
use crate::configurations::base::is_set;
use crate::configurations::group_names::Group;
use crate::decode::units::python_number;
use crate::decode::{Cx, enums};
use crate::profiles::SpotPolicy;
use crate::resources::ResourcesSpec;
use crate::schema::{Schema, Schemas};

/// Replicas of a service that are alike.
#[derive(Debug, Clone, PartialEq, Serialize, Decode)]
#[decode(before = count_is_replicas, after = check_group)]
pub struct ReplicaGroup {
    /// The name of the replica group. If not provided, defaults to '0', '1', etc. based on position.
    #[decode(check = check_name)]
    pub name: Option<String>,
    /// The number of replicas. If it's a range, the `scaling` property is required.
    #[decode(check = check_replicas)]
    pub replicas: Range<i64>,
    /// The auto-scaling rules. Required if `replicas` is set to a range.
    pub scaling: Option<ScalingSpec>,
    /// The resources requirements for replicas in this group.
    #[decode(default)]
    pub resources: ResourcesSpec,
    /// The policy for provisioning spot or on-demand instances for replicas in this group.
    pub spot_policy: Option<SpotPolicy>,
    /// The existing reservation to use for replicas in this group.
    pub reservation: Option<String>,
    /// The shell commands to run for replicas in this group.
    #[decode(default)]
    pub commands: Vec<String>,
    /// The name of the Docker image to run for replicas in this group.
    pub image: Option<String>,
    /// The major version of Python for replicas in this group.
    #[decode(before = before_python)]
    pub python: Option<PythonVersion>,
    /// Use the image with NVIDIA CUDA Compiler (NVCC) included for replicas in this group.
    pub nvcc: Option<bool>,
    /// Use the docker-in-docker image for this group.
    #[decode(before = before_docker)]
    pub docker: Option<bool>,
    /// Run replicas in this group in privileged mode.
    #[decode(before = before_privileged)]
    pub privileged: Option<bool>,
    /// When set, replicas in this group run the in-service HTTP router.
    pub router: Option<ReplicaGroupRouterConfig>,
}

/// Which router a group runs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Decode)]
pub struct ReplicaGroupRouterConfig {
    /// The router implementation for this replica group: `smg` or `dynamo`.
    #[serde(rename = "type")]
    #[decode(default)]
    pub kind: RouterType,
}

/// A router implementation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum RouterType {
    /// Shepherd Model Gateway; sent and stored under its old name `sglang` throughout 0.22.
    #[default]
    Smg,
    /// NVIDIA Dynamo.
    Dynamo,
}

impl Serialize for RouterType {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(match self {
            Self::Smg => "sglang",
            Self::Dynamo => "dynamo",
        })
    }
}

impl crate::decode::Decode for RouterType {
    fn decode(value: &Value, cx: &mut Cx) -> Option<Self> {
        match value.as_str() {
            Some("smg" | "sglang") => Some(Self::Smg),
            Some("dynamo") => Some(Self::Dynamo),
            _ => enums::refuse("enum", &["smg", "dynamo"], value, cx),
        }
    }
}

impl Schema for RouterType {
    fn schema(schemas: &mut Schemas) -> Value {
        let name = |smg| crate::schema::texts(&[smg, "dynamo"]);
        schemas.either(name("smg"), name("sglang"))
    }
}

/// `count` is an older name of `replicas`.
fn count_is_replicas(value: &Value) -> Result<Option<Value>, String> {
    let Value::Object(map) = value else {
        return Ok(None);
    };
    if !map.contains_key("count") {
        return Ok(None);
    }
    let mut map = map.clone();
    let count = map.shift_remove("count").unwrap_or_default();
    map.entry("replicas").or_insert(count);
    Ok(Some(Value::Object(map)))
}

fn check_name(name: Option<String>) -> Result<Option<String>, String> {
    match &name {
        Some(text) if !is_group_name(text) => {
            Err("Resource name should match regex '^[a-z0-9][a-z0-9-]{0,39}$'".to_owned())
        }
        _ => Ok(name),
    }
}

fn check_replicas(mut replicas: Range<i64>) -> Result<Range<i64>, String> {
    if replicas.max.is_none() {
        return Err("The maximum number of replicas is required".to_owned());
    }
    if *replicas.min.get_or_insert(0) < 0 {
        return Err("The minimum number of replicas must be greater than or equal to 0".to_owned());
    }
    Ok(replicas)
}

pub(super) fn check_optional_replicas(replicas: Option<Range<i64>>) -> Result<Option<Range<i64>>, String> {
    replicas.map(check_replicas).transpose()
}

fn before_python(value: &Value, map: &Map<String, Value>) -> Result<Option<Value>, String> {
    if !value.is_null() && is_set(map, "image") {
        return Err("`image` and `python` are mutually exclusive within a replica group".to_owned());
    }
    python_number(value, map)
}

fn before_docker(value: &Value, map: &Map<String, Value>) -> Result<Option<Value>, String> {
    if *value == Value::Bool(true) {
        for other in ["image", "python", "nvcc"] {
            if is_set(map, other) {
                return Err(format!(
                    "`{other}` and `docker` are mutually exclusive within a replica group"
                ));
            }
        }
    }
    Ok(None)
}

fn before_privileged(value: &Value, map: &Map<String, Value>) -> Result<Option<Value>, String> {
    if *value == json!(false) && map.get("docker") == Some(&json!(true)) {
        return Err(
            "`privileged: false` is incompatible with `docker: true` within a replica group \
                    (docker-in-docker requires privileged mode)"
                .to_owned(),
        );
    }
    Ok(None)
}

fn check_group(group: ReplicaGroup) -> Result<ReplicaGroup, String> {
    scaling::check(&group.replicas, group.scaling.as_ref())?;
    Ok(group)
}

impl Group for ReplicaGroup {
    const KIND: &'static str = "replica";
    fn name(&mut self) -> &mut Option<String> {
        &mut self.name
    }
}

/// The rules between a service and its groups, in the reference's order.
pub(super) fn check_with_service(
    service: &ServiceConfiguration,
    groups: &[ReplicaGroup],
) -> Result<(), String> {
    let forbidden = |key: &str| {
        Err(format!(
            "Top-level `{key}` is not allowed when `groups` is set. Specify `{key}` in each replica group instead."
        ))
    };
    if service.scaling.is_some() {
        return forbidden("scaling");
    }
    if !service.commands.is_empty() {
        return forbidden("commands");
    }
    check_set_once(service, groups)?;
    check_image_sources(service, groups)?;
    check_something_to_run(service, groups)?;
    check_routers(groups)
}

type GroupSets = fn(&ReplicaGroup) -> bool;
/// A field's name, and whether a group sets it.
type GroupField = (&'static str, GroupSets);

fn names_where(groups: &[ReplicaGroup], sets: GroupSets) -> Vec<&str> {
    groups
        .iter()
        .filter(|group| sets(group))
        .filter_map(|group| group.name.as_deref())
        .collect()
}

fn check_set_once(service: &ServiceConfiguration, groups: &[ReplicaGroup]) -> Result<(), String> {
    let (base, params) = (&service.base, &service.params);
    let fields: [(&str, bool, GroupSets); 7] = [
        ("image", base.image.is_some(), |group| group.image.is_some()),
        ("docker", base.docker == Some(true), |group| {
            group.docker.is_some()
        }),
        ("privileged", base.privileged, |group| group.privileged.is_some()),
        ("python", base.python.is_some(), |group| group.python.is_some()),
        ("nvcc", base.nvcc == Some(true), |group| group.nvcc.is_some()),
        ("spot_policy", params.spot_policy.is_some(), |group| {
            group.spot_policy.is_some()
        }),
        ("reservation", params.reservation.is_some(), |group| {
            group.reservation.is_some()
        }),
    ];
    for (field, set, group_sets) in fields {
        let conflicting = names_where(groups, group_sets);
        if set && !conflicting.is_empty() {
            return Err(format!(
                "`{field}` is set at both the service level and in replica group(s) {}. Set `{field}` in one place \
                 only — either at the service level (all groups inherit) or per group, but not both.",
                quote_list(&conflicting)
            ));
        }
    }
    Ok(())
}

fn check_image_sources(service: &ServiceConfiguration, groups: &[ReplicaGroup]) -> Result<(), String> {
    const IMAGE: GroupField = ("image", |group| group.image.is_some());
    const DOCKER: GroupField = ("docker", |group| group.docker.is_some());
    const PYTHON: GroupField = ("python", |group| group.python.is_some());
    const NVCC: GroupField = ("nvcc", |group| group.nvcc.is_some());
    let base = &service.base;
    let conflicts: [(&str, bool, &[GroupField]); 4] = [
        ("image", base.image.is_some(), &[DOCKER, PYTHON, NVCC]),
        ("docker", base.docker == Some(true), &[IMAGE, PYTHON, NVCC]),
        ("python", base.python.is_some(), &[IMAGE, DOCKER]),
        ("nvcc", base.nvcc == Some(true), &[IMAGE, DOCKER]),
    ];
    for (field, set, others) in conflicts {
        for (other, group_sets) in others {
            let conflicting = names_where(groups, *group_sets);
            if set && !conflicting.is_empty() {
                return Err(format!(
                    "Service-level `{field}` conflicts with group-level `{other}` in replica group(s) {}. These \
                     image-source fields are mutually exclusive.",
                    quote_list(&conflicting)
                ));
            }
        }
    }
    Ok(())
}

fn check_something_to_run(service: &ServiceConfiguration, groups: &[ReplicaGroup]) -> Result<(), String> {
    if service.base.image.is_some() {
        return Ok(());
    }
    match groups
        .iter()
        .find(|group| group.commands.is_empty() && group.image.is_none())
    {
        Some(group) => Err(format!(
            "Replica group '{}': either `commands` or `image` must be set in the group, or `image` at the service level.",
            group.name.as_deref().unwrap_or_default()
        )),
        None => Ok(()),
    }
}

fn check_routers(groups: &[ReplicaGroup]) -> Result<(), String> {
    let mut routers = groups.iter().filter(|group| group.router.is_some());
    let Some(router) = routers.next() else {
        return Ok(());
    };
    if routers.next().is_some() {
        return Err("At most one replica group may specify `router`.".to_owned());
    }
    if router.replicas != Range::exactly(1) {
        return Err("For now replica group with `router` must have `replicas: 1`.".to_owned());
    }
    Ok(())
}
