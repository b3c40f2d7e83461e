//! The schema for editors is that of this build, and takes the examples.
#![allow(clippy::unwrap_used)] // tests

use std::path::{Path, PathBuf};

use dstack_backend_manifest::{read, schema};
use dstack_decode::{Value, yaml};

fn own(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

fn text(path: &str) -> String {
    fs_err::read_to_string(own(path)).unwrap()
}

#[test]
fn the_schema_is_up_to_date() {
    let written: Value = serde_json::from_str(&text("../../docs/schemas/manifest.schema.json")).unwrap();
    assert!(written == schema(), "make it again with: cargo xtask gen");
}

#[test]
fn examples_are_right_and_editors_say_so() {
    let validator = jsonschema::validator_for(&schema()).unwrap();
    let page = text("../../docs/backends/manifest.md");
    let of_page = page
        .split("```yaml\n")
        .nth(1)
        .unwrap()
        .split("```")
        .next()
        .unwrap();
    for (name, text) in [
        ("lambda.yml", text("examples/lambda.yml")),
        ("digitalocean.yml", text("examples/digitalocean.yml")),
        ("manifest.md", of_page.to_owned()),
    ] {
        read(&text, name).unwrap_or_else(|errors| panic!("{errors}"));
        let document = yaml::load(&text).unwrap().value;
        let problems: Vec<String> = validator
            .iter_errors(&document)
            .map(|error| error.to_string())
            .collect();
        assert!(problems.is_empty(), "{name}: {problems:?}");
    }
    let mut wrong = yaml::load(&text("examples/lambda.yml")).unwrap().value;
    wrong["machine"]["mkae"] = Value::Bool(true);
    assert!(!validator.is_valid(&wrong));
}
