//! What the API description says of objects, without unknown fields.

use std::collections::BTreeMap;

use jsonschema::Validator;
use serde_json::{Value, json};

use crate::store::Failure;

/// Types of core/v1 and what they consist of: the schemas of the vendor's description, without its texts.
const DEFINITIONS: &str = include_str!("core-v1.json");

const KINDS: [&str; 6] = [
    "Pod",
    "Service",
    "Secret",
    "PersistentVolumeClaim",
    "Namespace",
    "Node",
];

#[derive(Debug)]
pub(crate) struct Schemas(BTreeMap<&'static str, Validator>);

impl Schemas {
    pub(crate) fn new() -> Self {
        let mut document: Value = serde_json::from_str(DEFINITIONS).unwrap();
        let definitions = document["definitions"].as_object_mut().unwrap();
        for (name, definition) in definitions.iter_mut() {
            if name.ends_with(".IntOrString") || name.ends_with(".Quantity") {
                *definition = json!({"type": ["string", "number"]});
            } else if definition.get("properties").is_some() {
                definition["additionalProperties"] = json!(false);
            }
        }
        let compile = |kind: &'static str| {
            let mut schema = document.clone();
            schema["$ref"] = json!(format!("#/definitions/io.k8s.api.core.v1.{kind}"));
            (kind, jsonschema::draft7::new(&schema).unwrap())
        };
        // References beside definitions are read on their own in draft 7, which is what is wanted.
        Self(KINDS.into_iter().map(compile).collect())
    }

    pub(crate) fn check(&self, kind: &str, object: &Value) -> Result<(), Failure> {
        let problems: Vec<String> = self.0[kind]
            .iter_errors(object)
            .map(|error| format!("{}: {error}", error.instance_path()))
            .collect();
        match problems.is_empty() {
            true => Ok(()),
            false => Err(Failure::new(
                422,
                "Invalid",
                &format!("{kind} is invalid: {}", problems.join("; ")),
            )),
        }
    }
}

/// To the API, a field of nothing is none.
pub(crate) fn without_nulls(value: &Value) -> Value {
    match value {
        Value::Object(map) => {
            let set = map.iter().filter(|(_, value)| !value.is_null());
            Value::Object(
                set.map(|(key, value)| (key.clone(), without_nulls(value)))
                    .collect(),
            )
        }
        Value::Array(items) => Value::Array(items.iter().map(without_nulls).collect()),
        other => other.clone(),
    }
}
