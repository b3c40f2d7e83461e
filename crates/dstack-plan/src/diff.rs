//! What may change of an active run in place (dstack 0.22.5: scheduling §9).

use dstack_model::runs::RunSpec;
use serde_json::Value;

use crate::PlanError;

const SPEC_FIELDS: &[&str] = &["configuration_path", "configuration"];
const SERVICE_SPEC_FIELDS: &[&str] = &["repo_data", "repo_code_hash", "file_archives", "working_dir"];
const SERVICE_FIELDS: &[&str] = &[
    "replicas",
    "groups",
    "scaling",
    "gateway",
    "port",
    "probes",
    "resources",
    "volumes",
    "docker",
    "files",
    "image",
    "user",
    "privileged",
    "entrypoint",
    "working_dir",
    "python",
    "nvcc",
    "single_branch",
    "env",
    "shell",
    "commands",
];

/// The fields in which two runs differ: those of the spec, and `configuration.X` of the configuration.
pub fn changed_fields(old: &RunSpec, new: &RunSpec) -> Vec<String> {
    let (old, new) = (json(old), json(new));
    let mut changed = Vec::new();
    for field in keys(&old, &new) {
        if old.get(&field) == new.get(&field) {
            continue;
        }
        if field == "configuration" {
            let (old, new) = (
                old.get(&field).unwrap_or(&Value::Null),
                new.get(&field).unwrap_or(&Value::Null),
            );
            changed.extend(
                keys(old, new)
                    .into_iter()
                    .filter(|key| old.get(key) != new.get(key))
                    .map(|key| format!("configuration.{key}")),
            );
        } else {
            changed.push(field);
        }
    }
    changed
}

/// Whether the change from `old` to `new` can be made while the run is active; if not, why.
pub fn check_updatable(old: &RunSpec, new: &RunSpec) -> Result<(), PlanError> {
    let kind = new.configuration.type_name();
    if old.configuration.type_name() != kind {
        return Err(PlanError::new(format!(
            "Configuration type changed from {} to {kind}, cannot update",
            old.configuration.type_name()
        )));
    }
    let allowed = |field: &str| match field.strip_prefix("configuration.") {
        Some(own) => {
            own == "priority"
                || (own == "files" && old.file_archives == new.file_archives)
                || (kind == "dev-environment" && own == "inactivity_duration")
                || (kind == "service" && SERVICE_FIELDS.contains(&own))
        }
        None => SPEC_FIELDS.contains(&field) || (kind == "service" && SERVICE_SPEC_FIELDS.contains(&field)),
    };
    let refused: Vec<String> = changed_fields(old, new)
        .into_iter()
        .filter(|field| !allowed(field))
        .collect();
    if refused.is_empty() {
        return Ok(());
    }
    Err(PlanError::new(format!(
        "Failed to update fields {}",
        refused.join(", ")
    )))
}

fn json(spec: &RunSpec) -> Value {
    serde_json::to_value(spec).unwrap_or(Value::Null)
}

fn keys(a: &Value, b: &Value) -> Vec<String> {
    let of = |value: &Value| {
        value
            .as_object()
            .map(|map| map.keys().cloned().collect::<Vec<_>>())
            .unwrap_or_default()
    };
    let mut all = of(a);
    all.extend(of(b).into_iter().filter(|key| a.get(key).is_none()));
    all
}
