//! Google's descriptions: which methods there are, and what requests may have.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use serde_json::Value;

/// Read once: tests have hundreds of clouds.
static DESCRIPTION: LazyLock<Value> =
    LazyLock::new(|| serde_json::from_str(include_str!("../api.json")).unwrap());

/// Parameters that all methods have.
const COMMON: &[&str] = &["alt", "$alt", "prettyPrint", "key", "fields"];

/// A method that was called, by its name in the description.
#[derive(Debug)]
pub(crate) struct Called {
    pub(crate) api: &'static str,
    pub(crate) name: &'static str,
    /// The parameters of the path, in their order.
    pub(crate) path: Vec<String>,
}

/// `None`: there is no such method.
pub(crate) fn find(verb: &str, path: &str) -> Option<Called> {
    let parts: Vec<&str> = path.trim_start_matches('/').split('/').collect();
    for api in ["compute", "tpu"] {
        for (name, method) in DESCRIPTION[api]["methods"].as_object().unwrap() {
            if method["verb"] != verb {
                continue;
            }
            let template: Vec<&str> = method["path"].as_str().unwrap().split('/').collect();
            let fits = |(part, template): (&&str, &&str)| template.starts_with('{') || part == template;
            if template.len() == parts.len() && parts.iter().zip(&template).all(fits) {
                let values = parts
                    .iter()
                    .zip(&template)
                    .filter(|(_, one)| one.starts_with('{'));
                let path = values.map(|(part, _)| (*part).to_owned()).collect();
                return Some(Called { api, name, path });
            }
        }
    }
    None
}

/// What the description forbids of a request.
pub(crate) fn problem(
    called: &Called,
    query: &BTreeMap<String, String>,
    body: Option<&Value>,
) -> Option<String> {
    let described = &DESCRIPTION[called.api];
    let method = &described["methods"][called.name];
    let known = method["query"].as_array().unwrap();
    let is_known = |name: &&String| {
        COMMON.contains(&name.as_str()) || known.iter().any(|one| one.as_str() == Some(name.as_str()))
    };
    if let Some(name) = query.keys().find(|name| !is_known(name)) {
        return Some(format!("Unknown name \"{name}\": Cannot bind query parameter."));
    }
    for required in method["required"].as_array().into_iter().flatten() {
        if !query.contains_key(required.as_str().unwrap()) {
            return Some(format!("Required parameter: {required}"));
        }
    }
    match (method["request"].as_str(), body) {
        (None, None) => None,
        (None, Some(body)) if body.as_object().is_some_and(serde_json::Map::is_empty) => None,
        (None, Some(_)) => Some("the method takes no body".to_owned()),
        (Some(_), None) => Some("a body is required".to_owned()),
        (Some(schema), Some(body)) => {
            let schema = serde_json::json!({"$ref": schema});
            problem_of(&described["schemas"], &schema, body, "")
        }
    }
}

fn problem_of(schemas: &Value, schema: &Value, value: &Value, path: &str) -> Option<String> {
    let wrong = |what: &str| Some(format!("Invalid value at '{path}' ({what}), {value}"));
    if schema["readOnly"] == true {
        return None;
    }
    if let Some(name) = schema["$ref"].as_str() {
        return problem_of(schemas, &schemas[name], value, path);
    }
    match schema["type"].as_str().unwrap_or("object") {
        "object" => {
            let Some(fields) = value.as_object() else {
                return wrong("object");
            };
            fields.iter().find_map(|(name, field)| {
                let path = format!("{path}.{name}");
                match (schema["properties"].get(name), schema.get("additionalProperties")) {
                    (Some(schema), _) | (None, Some(schema)) => problem_of(schemas, schema, field, &path),
                    (None, None) => Some(format!(
                        "Invalid JSON payload received. Unknown name \"{name}\" at '{path}': Cannot find field."
                    )),
                }
            })
        }
        "array" => match value.as_array() {
            Some(items) => items
                .iter()
                .find_map(|item| problem_of(schemas, &schema["items"], item, &format!("{path}[]"))),
            None => wrong("array"),
        },
        "boolean" if !value.is_boolean() => wrong("bool"),
        "integer" | "number" if !value.is_number() => wrong("number"),
        "string" => {
            let is_number = schema["format"]
                .as_str()
                .is_some_and(|format| format.ends_with("int64"));
            let values = schema["enum"].as_array();
            match value {
                Value::Number(_) if is_number || values.is_some() => None,
                Value::String(text) if is_number && text.parse::<i64>().is_err() => wrong("int64"),
                Value::String(_) if values.is_some_and(|values| !values.contains(value)) => wrong("enum"),
                Value::String(_) => None,
                _ => wrong("string"),
            }
        }
        _ => None,
    }
}
