//! The conformance corpus: YAML documents, and what dstack 0.22.5 makes of each: its normal form, or its refusals.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

use dstack_model::configurations::AnyConfiguration;
use dstack_model::decode::{Loc, Problem, Value, decode_strict};
use dstack_model::profiles::ProfilesConfig;
use dstack_model::yaml;
use serde_json::json;

const AREAS: [(&str, &str, &str); 4] = [
    (
        "task",
        include_str!("corpus/task.yml"),
        include_str!("corpus/task.jsonl"),
    ),
    (
        "service",
        include_str!("corpus/service.yml"),
        include_str!("corpus/service.jsonl"),
    ),
    (
        "other",
        include_str!("corpus/other.yml"),
        include_str!("corpus/other.jsonl"),
    ),
    (
        "profiles",
        include_str!("corpus/profiles.yml"),
        include_str!("corpus/profiles.jsonl"),
    ),
];

/// Where we differ on purpose.
const DIFFERENT: [(&str, &str); 2] = [
    // The reference finds it before it knows the backend; the place differs by that.
    ("other", "volume tags"),
    // A YAML date is refused while reading, with its place.
    ("other", "a date"),
];

fn cases(text: &str) -> Vec<(&str, &str)> {
    let mut cases = Vec::new();
    for part in text.split("\n# case: ").skip(1) {
        let (name, document) = part.split_once('\n').unwrap();
        cases.push((name, document));
    }
    cases
}

fn decode(area: &str, value: &Value) -> Result<Value, Vec<Problem>> {
    if area == "profiles" {
        return decode_strict::<ProfilesConfig>(value).map(|profiles| json!(profiles));
    }
    decode_strict::<AnyConfiguration>(value).map(|configuration| json!(configuration))
}

/// Place without names of union members, and message where it is the reference's own.
fn essence(loc: &[Value], kind: &str, msg: &str) -> String {
    // The reference reads a volume in two steps, of which only the first is part of the place.
    let loc = loc.iter().filter(|step| *step != "volume");
    let steps: Vec<String> = loc.map(ToString::to_string).collect();
    let msg = if kind == "value_error" { msg } else { "" };
    format!("{} {kind} {msg}", steps.join(" "))
}

fn ours(problem: &Problem) -> String {
    let loc: Vec<Value> = problem.loc.iter().map(|step| json!(step)).collect();
    essence(&loc, &problem.kind, &problem.msg)
}

fn theirs(error: &Value) -> String {
    let kind = error["type"].as_str().unwrap();
    // Requests and files differ in the name of this one.
    let kind = if kind == "model_type" {
        "model_attributes_type"
    } else {
        kind
    };
    essence(
        error["loc"].as_array().unwrap(),
        kind,
        error["msg"].as_str().unwrap(),
    )
}

#[test]
fn verdicts_are_the_reference_s() {
    let mut wrong = Vec::new();
    let mut checked = 0;
    for (area, documents, expectations) in AREAS {
        let documents = cases(documents);
        let expectations: Vec<Value> = expectations
            .lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect();
        assert_eq!(documents.len(), expectations.len(), "{area}");
        for ((name, document), expected) in documents.into_iter().zip(expectations) {
            assert_eq!(name, expected["case"]);
            if DIFFERENT.contains(&(area, name)) {
                continue;
            }
            checked += 1;
            let value = yaml::load(document)
                .unwrap_or_else(|error| panic!("{area}/{name}: {error}"))
                .value;
            match (decode(area, &value), expected.get("ok")) {
                (Ok(ours), Some(theirs)) if &ours == theirs => {}
                (Ok(ours), Some(theirs)) => {
                    wrong.push(format!("{area}/{name}:\n  ours   {ours}\n  theirs {theirs}"));
                }
                (Ok(_), None) => {
                    wrong.push(format!("{area}/{name}: accepted; theirs {}", expected["errors"]));
                }
                (Err(problems), Some(_)) => wrong.push(format!("{area}/{name}: refused: {}", problems[0])),
                (Err(problems), None) => {
                    let mut ours: Vec<String> = problems.iter().map(ours).collect();
                    let mut theirs: Vec<String> = expected["errors"]
                        .as_array()
                        .unwrap()
                        .iter()
                        .map(theirs)
                        .collect();
                    // The reference tells unknown keys only when nothing else is wrong.
                    if !theirs.iter().any(|one| one.contains("extra_forbidden")) {
                        ours.retain(|one| !one.contains("extra_forbidden"));
                    }
                    ours.sort();
                    theirs.sort();
                    if ours != theirs {
                        wrong.push(format!(
                            "{area}/{name}:\n  ours   {ours:#?}\n  theirs {theirs:#?}"
                        ));
                    }
                }
            }
        }
    }
    assert!(checked > 150);
    assert!(
        wrong.is_empty(),
        "{} of {checked}\n{}",
        wrong.len(),
        wrong.join("\n")
    );
}

/// Every refusal of a configuration names a place in the file.
#[test]
fn refusals_point_into_the_file() {
    for (area, documents, _) in AREAS {
        for (name, document) in cases(documents) {
            if area == "profiles" {
                continue;
            }
            if let Err(errors) = yaml::parse_configuration(document, "f.yml") {
                assert!(!errors.errors.is_empty(), "{area}/{name}");
                for error in errors.errors {
                    assert!(
                        error.position.line >= 1 && error.position.line <= document.lines().count().max(1)
                    );
                    assert!(error.to_string().starts_with("f.yml:"));
                }
            }
        }
    }
}

fn message(document: &str) -> String {
    yaml::parse_configuration(document, "f.yml")
        .unwrap_err()
        .to_string()
}

#[test]
fn messages_say_what_was_found_and_what_is_allowed() {
    for (document, expected) in [
        (
            "type: task\ncommands: [a]\nresources:\n  gpus: 1\n",
            "f.yml:4:3: `resources.gpus`: unknown key, did you mean `gpu`?",
        ),
        (
            "type: task\ncommands: [a]\nspot_policy: on-demnd\n",
            "f.yml:3:14: `spot_policy`: found `on-demnd`, expected one of `spot`, `on-demand`, `auto`, did you mean `on-demand`?",
        ),
        (
            "type: task\ncommands: a\npriority: 200\n",
            "f.yml:2:11: `commands`: found `a`, expected a list\n\
             f.yml:3:11: `priority`: found `200`, expected a value less than or equal to 100",
        ),
        (
            "type: taks\n",
            "f.yml:1:7: `type`: found `taks`, expected one of `dev-environment`, `task`, `service`, `fleet`, `gateway`, \
             `preset`, `volume`, did you mean `task`?",
        ),
        (
            "type: service\nimage: x\n",
            "f.yml:1:1: the key `port` is missing",
        ),
        (
            "type: task\ncommands: [a]\nretry:\n  on_events: [crash]\n",
            "f.yml:4:15: `retry.on_events[0]`: found `crash`, expected one of `no-capacity`, `interruption`, `error`",
        ),
        (
            "type: task\ncommands: [a]\nvolumes:\n  - x:rel\n",
            "f.yml:4:5: `volumes[0].path`: path must be absolute: rel",
        ),
        (
            "type: task\ncommands: [a\n",
            "f.yml:3:1: not valid YAML: while parsing a flow sequence, expected ',' or ']'",
        ),
    ] {
        assert_eq!(message(document), expected);
    }
}

#[test]
fn places_lead_back_to_the_file() {
    let text = "type: task\ncommands:\n  - a\n  - b\n";
    let (_, spans) = yaml::parse_configuration(text, "f.yml").unwrap();
    let place = spans.value(&[Loc::Key("commands".into()), Loc::Index(1)]);
    assert_eq!((place.line, place.column), (4, 5));
}
