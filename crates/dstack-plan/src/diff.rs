//! What may change of an active run in place (dstack 0.22.5: scheduling §9).

mod router;

use dstack_model::configurations::{AnyRunConfiguration, HttpsSetting};
use dstack_model::resources::ResourcesSpec;
use dstack_model::runs::RunSpec;
use dstack_units::number::quote_list;
use serde::Serialize;
use serde_json::{Map, Value};

use crate::PlanError;
use crate::validate::fill_gpu_vendors;

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
    let own = changed(old, new)
        .into_iter()
        .filter(|field| field != "configuration");
    let of_configuration = changed(&old.configuration, &new.configuration)
        .into_iter()
        .map(|field| format!("configuration.{field}"));
    let mut fields: Vec<String> = own.collect();
    fields.extend(of_configuration);
    fields
}

/// Whether the change from `old` to `new` can be made while the run is active.
///
/// # Errors
/// The change cannot be made while the run is active; the error says why.
pub fn check_updatable(old: &RunSpec, new: &RunSpec) -> Result<(), PlanError> {
    // A run may have been submitted before the server filled this in.
    let (mut old, mut new) = (old.clone(), new.clone());
    fill_gpu_vendors(&mut old);
    fill_gpu_vendors(&mut new);
    let kind = new.configuration.type_name();
    if old.configuration.type_name() != kind {
        return Err(PlanError::new(format!(
            "Configuration type changed from {} to {kind}, cannot update",
            old.configuration.type_name()
        )));
    }
    let service = kind == "service";
    let mut of_spec = SPEC_FIELDS.to_vec();
    of_spec.extend(service.then_some(SERVICE_SPEC_FIELDS).into_iter().flatten());
    within(&changed(&old, &new), &of_spec)?;
    if let (Some(old_service), Some(new_service)) = (old.configuration.service(), new.configuration.service())
    {
        router::check_kept(&old, &new, old_service, new_service)?;
    }
    within(
        &changed(&old.configuration, &new.configuration),
        &configuration_fields(&old, &new),
    )
}

fn within(fields: &[String], updatable: &[&str]) -> Result<(), PlanError> {
    if fields.iter().all(|field| updatable.contains(&field.as_str())) {
        return Ok(());
    }
    Err(PlanError::new(format!(
        "Failed to update fields {}. Can only update {}",
        quote_list(fields),
        quote_list(updatable)
    )))
}

/// The fields of the configuration that may change.
fn configuration_fields(old: &RunSpec, new: &RunSpec) -> Vec<&'static str> {
    let mut fields = vec!["priority"];
    match (&old.configuration, &new.configuration) {
        (AnyRunConfiguration::DevEnvironment(_), _) => fields.push("inactivity_duration"),
        (AnyRunConfiguration::Service(old), AnyRunConfiguration::Service(new)) => {
            fields.extend(SERVICE_FIELDS);
            // Given or not, it is the same.
            let standard =
                |https: &Option<HttpsSetting>| matches!(https, None | Some(HttpsSetting::Flag(true)));
            if standard(&old.https) && standard(&new.https) {
                fields.push("https");
            }
            // Not among the fields that dstack 0.22.5 names.
            if old.rollout.is_some() || new.rollout.is_some() {
                fields.push("rollout");
            }
        }
        _ => {}
    }
    // The same files, from another place. Their order counts: a later one may overwrite an earlier one.
    if old.file_archives == new.file_archives {
        fields.push("files");
    }
    let (old, new) = (old.configuration.base(), new.configuration.base());
    if still_satisfied(&old.resources, &new.resources) {
        fields.push("resources");
    }
    fields
}

/// Whether instances made for the old requirements satisfy the new ones: unset, the architecture is any.
fn still_satisfied(old: &ResourcesSpec, new: &ResourcesSpec) -> bool {
    let mut widened = old.clone();
    widened.cpu.arch = None;
    old == new || widened == *new
}

/// The names of the fields in which two values differ, in their order.
pub(crate) fn changed<T: Serialize>(old: &T, new: &T) -> Vec<String> {
    let json = |value: &T| match serde_json::to_value(value) {
        Ok(Value::Object(map)) => map,
        _ => Map::new(),
    };
    let (old, new) = (json(old), json(new));
    let added = new.keys().filter(|key| !old.contains_key(*key));
    let all = old.keys().chain(added);
    all.filter(|key| old.get(*key) != new.get(*key))
        .cloned()
        .collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn run(kind: &str, more: &Value) -> RunSpec {
        let mut configuration = json!({"type": kind});
        if kind == "service" {
            configuration["port"] = json!(80);
        }
        if kind != "dev-environment" && more.get("groups").is_none() {
            configuration["commands"] = json!(["a"]);
        }
        let more = more.as_object().unwrap().clone();
        configuration.as_object_mut().unwrap().extend(more);
        serde_json::from_value(json!({"configuration": configuration})).unwrap()
    }

    fn updatable(kind: &str, old: &Value, new: &Value) -> bool {
        check_updatable(&run(kind, old), &run(kind, new)).is_ok()
    }

    #[test]
    fn each_type_has_its_fields() {
        for (kind, change, expected) in [
            ("task", json!({"priority": 3}), true),
            ("task", json!({"commands": ["b"]}), false),
            ("task", json!({"files": ["a"]}), true),
            ("task", json!({"resources": {"cpu": 4}}), false),
            ("dev-environment", json!({"inactivity_duration": "1h"}), true),
            ("dev-environment", json!({"ide": "vscode"}), false),
            (
                "service",
                json!({"commands": ["b"], "replicas": 2, "resources": {"cpu": 4}}),
                true,
            ),
            ("service", json!({"https": true}), true),
            ("service", json!({"rollout": {"strategy": "canary"}}), true),
            ("service", json!({"https": false}), false),
            ("service", json!({"model": "m"}), false),
        ] {
            assert_eq!(updatable(kind, &json!({}), &change), expected, "{kind} {change}");
        }
    }

    #[test]
    fn requirements_may_only_widen() {
        let (x86, any) = (
            json!({"resources": {"cpu": "x86:2.."}}),
            json!({"resources": {"cpu": "2.."}}),
        );
        assert!(updatable("task", &x86, &any));
        assert!(!updatable("task", &any, &x86));
    }

    #[test]
    fn files_count_when_their_contents_changed() {
        let (mut old, mut new) = (run("task", &json!({})), run("task", &json!({"files": ["a"]})));
        let archive = |id: &str| serde_json::from_value(json!([{"id": id, "path": "/a"}])).unwrap();
        old.file_archives = archive("00000000-0000-4000-8000-000000000000");
        new.file_archives = archive("00000000-0000-4000-8000-000000000001");
        assert!(check_updatable(&old, &new).is_err());
    }

    #[test]
    fn the_router_of_a_service_stays() {
        let groups = |router: &str, command: &str, worker: &str| {
            json!({"groups": [
                {"name": "r", "count": 1, "commands": [command], "router": {"type": router}},
                {"name": "w", "count": 1, "commands": [worker]},
            ]})
        };
        let old = groups("sglang", "a", "b");
        assert!(updatable("service", &old, &groups("sglang", "a", "c")));
        assert!(!updatable("service", &old, &groups("dynamo", "a", "b")));
        let dynamo = groups("dynamo", "a", "b");
        assert!(updatable("service", &dynamo, &groups("dynamo", "a", "c")));
        assert!(!updatable("service", &dynamo, &groups("dynamo", "c", "b")));
        let mut nvcc = dynamo.clone();
        nvcc["env"] = json!({"A": "b"});
        assert!(!updatable("service", &dynamo, &nvcc));
    }

    #[test]
    fn changes_are_named() {
        let changed = changed_fields(
            &run("task", &json!({})),
            &run("task", &json!({"priority": 3, "commands": ["b"]})),
        );
        assert_eq!(changed, ["configuration.commands", "configuration.priority"]);
    }
}
