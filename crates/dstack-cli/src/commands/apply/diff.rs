//! What differs between two specs, as a nested list.

use serde::Serialize;
use serde_json::{Map, Value};

/// Differences of run specs. `None` when there is none.
pub(crate) fn runs(new: &impl Serialize, old: &impl Serialize) -> Option<String> {
    specs(new, old, |field| match field {
        "repo_id" => "Repo ID".to_owned(),
        "repo_code_hash" => "Repo files".to_owned(),
        "repo_data" => "Repo state (branch, commit, or other)".to_owned(),
        "ssh_key_pub" => "Public SSH key".to_owned(),
        other => words(other),
    })
}

/// Differences of other specs. `None` when there is none.
pub(crate) fn others(new: &impl Serialize, old: &impl Serialize) -> Option<String> {
    specs(new, old, words)
}

/// Names of fields that differ. `None` when there is none.
pub(crate) fn fields(new: &impl Serialize, old: &impl Serialize) -> Option<String> {
    let (new, old) = (object(new)?, object(old)?);
    let changed = changed(&new, &old);
    (!changed.is_empty()).then(|| changed.iter().map(|field| format!("- {field}\n")).collect())
}

fn words(field: &str) -> String {
    crate::format::capitalize(&field.replace('_', " "))
}

fn specs(new: &impl Serialize, old: &impl Serialize, title: impl Fn(&str) -> String) -> Option<String> {
    let (new, old) = (object(new)?, object(old)?);
    let changed: Vec<&str> = changed(&new, &old)
        .into_iter()
        .filter(|field| *field != "merged_profile")
        .collect();
    if changed.is_empty() {
        return None;
    }
    let item = |field: &&str| match *field {
        "configuration" | "profile" => nested(field, new.get(*field), old.get(*field)),
        other => format!("- {}\n", title(other)),
    };
    Some(changed.iter().map(item).collect())
}

fn nested(field: &str, new: Option<&Value>, old: Option<&Value>) -> String {
    let title = crate::format::capitalize(field);
    let kind = |value: Option<&Value>| value.and_then(|value| value.get("type")).cloned();
    match (new.and_then(Value::as_object), old.and_then(Value::as_object)) {
        (Some(_), Some(_)) if kind(new) != kind(old) => format!("- {title} type\n"),
        (Some(new), Some(old)) => {
            let children: String = changed(new, old)
                .iter()
                .map(|field| format!("  - {field}\n"))
                .collect();
            format!("- {title} properties:\n{children}")
        }
        _ => format!("- {title}\n"),
    }
}

fn object(value: &impl Serialize) -> Option<Map<String, Value>> {
    match serde_json::to_value(value) {
        Ok(Value::Object(map)) => Some(map),
        _ => None,
    }
}

/// Names of fields whose values differ, in the order of `new`.
fn changed<'a>(new: &'a Map<String, Value>, old: &'a Map<String, Value>) -> Vec<&'a str> {
    let in_new = new
        .iter()
        .filter(|(field, value)| old.get(*field).unwrap_or(&Value::Null) != *value);
    let only_old = old
        .iter()
        .filter(|(field, value)| !new.contains_key(*field) && !value.is_null());
    in_new.chain(only_old).map(|(field, _)| field.as_str()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn nested_lists() {
        let old = json!({"run_name": "a", "repo_code_hash": null, "configuration": {"type": "task", "image": "x", "env": {}},
                         "profile": {"name": "p"}, "merged_profile": {"x": 1}, "working_dir": null});
        let mut new = old.clone();
        assert_eq!(runs(&new, &old), None);
        new["repo_code_hash"] = json!("abc");
        new["configuration"]["image"] = json!("y");
        new["merged_profile"] = json!({"x": 2});
        new["working_dir"] = json!("/x");
        assert_eq!(
            runs(&new, &old).unwrap(),
            "- Repo files\n- Configuration properties:\n  - image\n- Working dir\n"
        );
        new["configuration"]["type"] = json!("service");
        assert!(runs(&new, &old).unwrap().contains("- Configuration type\n"));
    }
}
