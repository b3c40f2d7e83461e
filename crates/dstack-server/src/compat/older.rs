//! Configurations in the shapes that older clients can read. Rewritten as JSON: the types know the newest shapes only.

use serde::Serialize;
use serde_json::{Map, Value};

use crate::version::ClientVersion;

/// Whether anything looks different to this client.
pub(crate) fn is_older(version: &ClientVersion) -> bool {
    version.is_before([0, 21, 3])
}

/// An answer as this client can read it.
pub(crate) fn answer(answer: &impl Serialize, version: &ClientVersion) -> serde_json::Result<Value> {
    let mut value = serde_json::to_value(answer)?;
    rewrite(&mut value, version);
    Ok(value)
}

/// Rewrites every configuration and profile inside.
fn rewrite(value: &mut Value, version: &ClientVersion) {
    match value {
        Value::Array(items) => items.iter_mut().for_each(|item| rewrite(item, version)),
        Value::Object(map) => {
            if map.get("type").is_some_and(|kind| kind == "service") && map.contains_key("replicas") {
                service(map, version);
            }
            if map.contains_key("spot_policy") && version.is_before([0, 20, 14]) {
                profile(map);
            }
            map.values_mut().for_each(|inner| rewrite(inner, version));
        }
        _ => {}
    }
}

fn service(map: &mut Map<String, Value>, version: &ClientVersion) {
    if let Some(Value::Array(groups)) = map.get_mut("groups").map(Value::take) {
        let groups = groups.into_iter().map(list_style).collect();
        map.insert("replicas".to_owned(), Value::Array(groups));
    }
    if version.is_before([0, 20, 12]) {
        default(map, "https", Value::Bool(true));
    }
    if version.is_before([0, 20, 20])
        && let Some(gateway) = map.get_mut("gateway")
    {
        as_text(gateway);
    }
    if version.is_before([0, 20, 8]) {
        default(map, "probes", Value::Array(Vec::new()));
    }
}

/// A group of replicas before 0.21.3: an item of the list `replicas`, which says its number as `count`.
fn list_style(mut group: Value) -> Value {
    if let Value::Object(group) = &mut group
        && let Some(replicas) = group.remove("replicas")
    {
        group.insert("count".to_owned(), replicas);
    }
    group
}

fn profile(map: &mut Map<String, Value>) {
    if let Some(Value::Array(fleets)) = map.get_mut("fleets") {
        fleets.iter_mut().for_each(as_text);
    }
}

/// `{project, name}` as `project/name`.
fn as_text(reference: &mut Value) {
    let Value::Object(parts) = &*reference else {
        return;
    };
    let part = |name: &str| parts.get(name).and_then(Value::as_str);
    let text = match (part("project"), part("name")) {
        (Some(project), Some(name)) => format!("{project}/{name}"),
        (None, Some(name)) => name.to_owned(),
        (_, None) => return,
    };
    *reference = Value::String(text);
}

fn default(map: &mut Map<String, Value>, key: &str, value: Value) {
    let unset = map.get(key).is_none_or(Value::is_null);
    if unset {
        map.insert(key.to_owned(), value);
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use axum::http::HeaderMap;
    use serde_json::json;

    use super::*;

    fn version(text: &'static str) -> ClientVersion {
        let mut headers = HeaderMap::new();
        headers.insert("x-api-version", text.parse().unwrap());
        ClientVersion::from_headers(&headers).unwrap()
    }

    fn run() -> Value {
        json!({"run_spec": {
            "configuration": {
                "type": "service", "replicas": null, "https": null, "probes": null, "spot_policy": null,
                "gateway": {"project": "other", "name": "gate"},
                "groups": [{"name": "0", "replicas": {"min": 1, "max": 2}, "commands": ["x"]}],
            },
            "profile": {"spot_policy": null, "fleets": [{"project": null, "name": "a"}, {"project": "p", "name": "b"}]},
        }})
    }

    #[test]
    fn newest_clients_are_not_older() {
        assert!(!is_older(&ClientVersion::default()));
        assert!(!is_older(&version("0.21.3")));
        assert!(is_older(&version("0.21.2")));
    }

    #[test]
    fn groups_are_a_list_of_replicas_before_0_21_3() {
        let shown = answer(&run(), &version("0.21.2")).unwrap();
        let configuration = &shown["run_spec"]["configuration"];
        assert_eq!(configuration["groups"], Value::Null);
        assert_eq!(
            configuration["replicas"],
            json!([{"name": "0", "commands": ["x"], "count": {"min": 1, "max": 2}}])
        );
        assert_eq!(configuration["https"], Value::Null);
        assert_eq!(configuration["gateway"]["name"], "gate");
    }

    #[test]
    fn a_number_of_replicas_stays() {
        let mut plain = run();
        plain["run_spec"]["configuration"]["groups"] = Value::Null;
        plain["run_spec"]["configuration"]["replicas"] = json!({"min": 1, "max": 1});
        assert_eq!(answer(&plain, &version("0.21.2")).unwrap(), plain);
    }

    #[test]
    fn each_change_has_its_version() {
        let at = |text| answer(&run(), &version(text)).unwrap()["run_spec"].clone();
        assert_eq!(at("0.20.19")["configuration"]["gateway"], "other/gate");
        assert_eq!(at("0.20.11")["configuration"]["https"], true);
        assert_eq!(at("0.20.14")["profile"]["fleets"][0]["name"], "a");
        assert_eq!(at("0.20.13")["profile"]["fleets"], json!(["a", "p/b"]));
        assert_eq!(at("0.20.8")["configuration"]["probes"], Value::Null);
        assert_eq!(at("0.20.7")["configuration"]["probes"], json!([]));
    }
}
