//! Our JSON Schemas accept and refuse what those of dstack 0.22.5 do: every document of the corpus is validated with both.
#![allow(clippy::unwrap_used, clippy::panic)]

use dstack_model::configurations::AnyConfiguration;
use dstack_model::profiles::ProfilesConfig;
use dstack_model::schema::document;
use dstack_model::yaml;
use serde_json::Value;

const CONFIGURATION: &str = include_str!("data/reference_configuration.schema.json");
const PROFILES: &str = include_str!("data/reference_profiles.schema.json");

const CORPUS: [(&str, &str); 4] = [
    ("task", include_str!("corpus/task.yml")),
    ("service", include_str!("corpus/service.yml")),
    ("other", include_str!("corpus/other.yml")),
    ("profiles", include_str!("corpus/profiles.yml")),
];

/// Where we differ on purpose: case, and whether ours accepts it.
const DIFFERENT: &[(&str, &str, bool)] = &[];

fn cases(text: &str) -> impl Iterator<Item = (&str, &str)> {
    text.split("\n# case: ")
        .skip(1)
        .map(|part| part.split_once('\n').unwrap())
}

fn validator(schema: &Value) -> jsonschema::Validator {
    jsonschema::validator_for(schema).unwrap_or_else(|error| panic!("not a schema: {error}"))
}

fn theirs(text: &str) -> jsonschema::Validator {
    validator(&serde_json::from_str(text).unwrap())
}

#[test]
fn verdicts_are_the_references() {
    let ours =
        [document::<AnyConfiguration>(), document::<ProfilesConfig>()].map(|schema| validator(&schema));
    let theirs = [theirs(CONFIGURATION), theirs(PROFILES)];
    let (mut compared, mut accepted, mut wrong) = (0, 0, Vec::new());
    for (area, text) in CORPUS {
        let which = usize::from(area == "profiles");
        for (name, document) in cases(text) {
            // What is no YAML never gets as far as a schema.
            let Ok(loaded) = yaml::load(document) else {
                continue;
            };
            let [ours, theirs] =
                [&ours, &theirs].map(|validators| validators.get(which).unwrap().is_valid(&loaded.value));
            compared += 1;
            accepted += u32::from(theirs);
            let expected = DIFFERENT.iter().find(|(a, n, _)| *a == area && *n == name);
            if ours != expected.map_or(theirs, |(_, _, ours)| *ours) {
                wrong.push(format!("{area}/{name}: ours {ours}, theirs {theirs}\n{document}"));
            }
        }
    }
    assert!(
        compared > 190 && accepted > 50 && accepted < compared,
        "{accepted} of {compared} accepted"
    );
    assert!(wrong.is_empty(), "{} differ:\n{}", wrong.len(), wrong.join("\n"));
}

/// The files that editors are pointed to.
#[test]
fn published_schemas_are_current() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/schemas");
    for (name, schema) in [
        ("configuration", document::<AnyConfiguration>()),
        ("profiles", document::<ProfilesConfig>()),
    ] {
        let published = fs_err::read_to_string(folder.join(format!("{name}.schema.json"))).unwrap();
        let published: Value = serde_json::from_str(&published).unwrap();
        assert!(
            published == schema,
            "run `cargo run -p dstack-model --example schemas`"
        );
    }
}
