//! Whatever is sent, the decoder answers a value or problems, and a normal form decodes to itself.

#![allow(clippy::unwrap_used)]

use dstack_model::configurations::AnyConfiguration;
use dstack_model::decode::{Value, decode_lenient, decode_strict};
use dstack_model::requests::{ApplyFleetPlanRequest, GetRunPlanRequest, ListEventsRequest};
use dstack_model::runs::Run;
use dstack_model::yaml;
use proptest::prelude::*;
use serde_json::json;

/// Keys that mean something, so that random documents come far.
const KEYS: &[&str] = &[
    "type",
    "commands",
    "resources",
    "gpu",
    "cpu",
    "memory",
    "count",
    "nodes",
    "groups",
    "name",
    "env",
    "volumes",
    "ports",
    "retry",
    "on_events",
    "schedule",
    "cron",
    "min",
    "max",
    "replicas",
    "scaling",
    "model",
    "format",
    "backend",
    "region",
    "run_spec",
    "configuration",
    "profile",
    "spec",
    "plan",
    "hosts",
    "ssh_config",
    "max_duration",
    "fleets",
    "instances",
];

fn values() -> impl Strategy<Value = Value> {
    let words = prop_oneof![
        Just(json!("task")),
        Just(json!("service")),
        Just(json!("fleet")),
        Just(json!("A100:80GB:1..8")),
        Just(json!("1..4")),
        Just(json!("2h")),
        Just(json!("* * * * *")),
        ".{0,8}".prop_map(Value::String),
    ];
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::Bool),
        any::<i64>().prop_map(|int| json!(int)),
        (-1e6..1e6).prop_map(|float: f64| json!(float)),
        words,
    ];
    leaf.prop_recursive(4, 40, 6, |inner| {
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..4).prop_map(Value::Array),
            proptest::collection::vec((proptest::sample::select(KEYS), inner), 0..6).prop_map(|pairs| {
                Value::Object(
                    pairs
                        .into_iter()
                        .map(|(key, value)| (key.to_owned(), value))
                        .collect(),
                )
            }),
        ]
    })
}

proptest! {
    #[test]
    fn decoding_never_panics(value in values()) {
        for problems in [
            decode_strict::<AnyConfiguration>(&value).err(),
            decode_strict::<GetRunPlanRequest>(&value).err(),
            decode_strict::<ApplyFleetPlanRequest>(&value).err(),
            decode_strict::<ListEventsRequest>(&value).err(),
            decode_lenient::<Run>(&value).err(),
        ].into_iter().flatten() {
            prop_assert!(!problems.is_empty());
        }
    }

    #[test]
    fn a_normal_form_decodes_to_itself(mut value in values(), kind in proptest::sample::select(&["task", "fleet", "dev-environment"][..])) {
        if let Value::Object(map) = &mut value {
            map.insert("type".to_owned(), json!(kind));
            map.insert("commands".to_owned(), json!(["a"]));
            if kind != "task" {
                map.shift_remove("commands");
            }
        }
        if let Ok(decoded) = decode_lenient::<AnyConfiguration>(&value) {
            match decode_strict::<AnyConfiguration>(&json!(decoded)) {
                Ok(again) => prop_assert_eq!(again, decoded),
                // What is stored may ask for more than a request (`dstack_model::limits`).
                Err(problems) => prop_assert!(problems.iter().all(|one| one.msg.contains(" at most ")), "{problems:?}"),
            }
        }
    }

    #[test]
    fn files_never_panic(text in "[a-z:\\- \n\\[\\]{}0-9.&*'\"|>#]{0,80}") {
        let _ = yaml::parse_configuration(&format!("type: task\n{text}"), "f.yml");
    }
}
