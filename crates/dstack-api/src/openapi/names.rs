//! Names of definitions: one where a type looks the same in requests and in answers, two where it does not.

use std::collections::BTreeSet;

use serde_json::{Map, Value};

use super::COMPONENTS;

/// All definitions under their final names; references in them and in the operations are changed accordingly.
pub(super) fn joined(
    mut requests: Map<String, Value>,
    mut answers: Map<String, Value>,
    paths: &mut Value,
) -> Map<String, Value> {
    let different = different(&requests, &answers);
    for (definitions, suffix) in [(&mut requests, "-Input"), (&mut answers, "-Output")] {
        for schema in definitions.values_mut() {
            rename(schema, &different, suffix);
        }
    }
    for operation in paths.as_object_mut().into_iter().flat_map(Map::values_mut) {
        for operation in operation.as_object_mut().into_iter().flat_map(Map::values_mut) {
            for (key, part) in operation.as_object_mut().into_iter().flatten() {
                rename(
                    part,
                    &different,
                    if key == "responses" { "-Output" } else { "-Input" },
                );
            }
        }
    }
    let mut all = Map::new();
    for (definitions, suffix) in [(requests, "-Input"), (answers, "-Output")] {
        for (name, schema) in definitions {
            let is_different = different.contains(&name);
            all.insert(
                if is_different {
                    format!("{name}{suffix}")
                } else {
                    name
                },
                schema,
            );
        }
    }
    all
}

/// Names with two meanings: by themselves, or because something that they refer to has.
fn different(requests: &Map<String, Value>, answers: &Map<String, Value>) -> BTreeSet<String> {
    let both = requests
        .iter()
        .filter_map(|(name, schema)| Some((name, schema, answers.get(name)?)));
    let both: Vec<_> = both.collect();
    let mut different: BTreeSet<String> = both
        .iter()
        .filter(|(_, request, answer)| request != answer)
        .map(|(name, _, _)| (*name).clone())
        .collect();
    loop {
        let before = different.len();
        for (name, request, _) in &both {
            if refers(request, &different) {
                different.insert((*name).clone());
            }
        }
        if different.len() == before {
            return different;
        }
    }
}

fn target(schema: &Value) -> Option<&str> {
    schema.get("$ref")?.as_str()?.strip_prefix(COMPONENTS)
}

fn refers(schema: &Value, names: &BTreeSet<String>) -> bool {
    target(schema).is_some_and(|name| names.contains(name))
        || match schema {
            Value::Object(map) => map.values().any(|part| refers(part, names)),
            Value::Array(list) => list.iter().any(|part| refers(part, names)),
            _ => false,
        }
}

fn rename(schema: &mut Value, names: &BTreeSet<String>, suffix: &str) {
    if let Some(name) = target(schema).filter(|name| names.contains(*name)) {
        let renamed = format!("{COMPONENTS}{name}{suffix}");
        if let Value::Object(map) = schema {
            map.insert("$ref".to_owned(), Value::String(renamed));
        }
        return;
    }
    if let Some(Value::Object(mapping)) = schema.get_mut("mapping") {
        for target in mapping.values_mut() {
            let name = target.as_str().and_then(|target| target.strip_prefix(COMPONENTS));
            let name = name.filter(|name| names.contains(*name));
            if let Some(renamed) = name.map(|name| format!("{COMPONENTS}{name}{suffix}")) {
                *target = Value::String(renamed);
            }
        }
    }
    match schema {
        Value::Object(map) => map.values_mut().for_each(|part| rename(part, names, suffix)),
        Value::Array(list) => list.iter_mut().for_each(|part| rename(part, names, suffix)),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_differs_gets_two_names_and_so_does_what_refers_to_it() {
        let definitions = |size: Value| {
            let schemas = json!({
                "Size": size,
                "Disk": {"properties": {"size": {"$ref": "#/components/schemas/Size"}}},
                "Plain": {"type": "string"},
            });
            schemas.as_object().unwrap().clone()
        };
        let disk = json!({"$ref": "#/components/schemas/Disk"});
        let mut paths = json!({"/x": {"post": {"requestBody": disk, "responses": {"200": disk}}}});
        let all = joined(
            definitions(json!({"type": ["number", "string"]})),
            definitions(json!({"type": "number"})),
            &mut paths,
        );
        let names: Vec<&String> = all.keys().collect();
        assert_eq!(
            names,
            ["Size-Input", "Disk-Input", "Plain", "Size-Output", "Disk-Output"]
        );
        let points_to = |name: &str| json!({"$ref": format!("#/components/schemas/{name}")});
        assert_eq!(paths["/x"]["post"]["requestBody"], points_to("Disk-Input"));
        assert_eq!(paths["/x"]["post"]["responses"]["200"], points_to("Disk-Output"));
        let mut union = json!({"discriminator": {"mapping": {"disk": "#/components/schemas/Disk"}}});
        rename(&mut union, &BTreeSet::from(["Disk".to_owned()]), "-Input");
        let mapping = &union["discriminator"]["mapping"];
        assert_eq!(mapping["disk"], "#/components/schemas/Disk-Input");
        assert_eq!(all["Disk-Output"]["properties"]["size"], points_to("Size-Output"));
    }
}
