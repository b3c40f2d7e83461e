//! The OpenAPI document: served, shown, and compared with that of dstack 0.22.5.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use dstack_conformance::{Document, Exchange};
use serde_json::Value;

use super::{Server, request};

/// The reference's, without texts.
const REFERENCE: &str = include_str!("../data/openapi-0.22.5.json");

/// Where the two differ (a part of what the test says), and why.
const DIFFERENT: &[(&str, &str)] = &[
    (
        ".backends[].config",
        "documented as an object: its fields are those of `BackendConfig`",
    ),
    (
        "/proxy/models/",
        "bodies are those of the OpenAI API, which are passed on",
    ),
    (
        ".env{}.key",
        "a variable without a value, which only configuration files may have",
    ),
    (
        "lacks .base_backends",
        "what dstack Sky says of its own backend; ours of that type are other servers",
    ),
    ("also has .url", "of another server"),
    ("also has .project", "of another server"),
    ("also has .backends", "of another server"),
    ("also has .gateway_image", "of gateways on Kubernetes"),
    ("also has .creds.role_arn", "which credentials of AWS assume"),
    ("also has .creds.external_id", "which that role asks for"),
    (
        ".configuration.rollout",
        "how new deployments of services stand beside the old ones",
    ),
    (
        ".configuration.balancing",
        "which replica of a service gets a request",
    ),
    (".scaling.signals", "by what else services scale"),
    (".scaling.metrics_path", "and where replicas tell of it"),
    (
        ".scaling.metric: required",
        "may be left out where there are signals",
    ),
    (
        ".scaling.target: required",
        "may be left out where there are signals",
    ),
    ("has .explain", "only ours explains plans"),
    (".waiting_for", "only ours says what something waits for"),
    (".waiting_kind", "whether it waits for its own commands alone"),
    (".waits_until", "and until when"),
    (".group_size", "only ours offers groups of a fixed size"),
    (".service.notice", "and why a service is not reached"),
];

/// Checks every answer in this crate's tests.
pub(super) static DOCUMENT: LazyLock<Document> =
    LazyLock::new(|| Document::new(&dstack_server::docs::document()).unwrap());

#[tokio::test]
async fn the_document_and_its_page_are_served_to_everybody() {
    let server = Server::new().await;
    let answer = server.send(request("GET", "/openapi.json", None, None)).await;
    assert_eq!(answer.headers["content-type"], "application/json");
    assert_eq!(answer.ok(), dstack_server::docs::document());
    for path in ["/api/docs", "/redoc"] {
        let answer = server.send(request("GET", path, None, None)).await;
        let policy = answer.headers["content-security-policy"]
            .to_str()
            .unwrap()
            .to_owned();
        assert!(
            policy.starts_with("default-src 'none'; style-src 'sha256-"),
            "{policy}"
        );
        assert_eq!(answer.headers["x-content-type-options"], "nosniff");
        let page = answer.ok();
        let page = page.as_str().unwrap();
        assert!(page.contains("/api/project/{project_name}/runs/apply"));
        for forbidden in ["<script", "src=", "http://", "https://", " style="] {
            assert!(!page.contains(forbidden), "{forbidden}");
        }
    }
}

#[test]
fn every_route_of_the_reference_is_documented_with_the_same_fields() {
    let theirs: Value = serde_json::from_str(REFERENCE).unwrap();
    let ours = dstack_server::docs::document();
    let mut wrong = Vec::new();
    for (path, item) in theirs["paths"].as_object().unwrap() {
        for (method, operation) in item.as_object().unwrap() {
            let what = format!("{method} {path}");
            let Some(own) = ours["paths"].get(path).and_then(|item| item.get(method)) else {
                wrong.push(format!("{what}: is missing"));
                continue;
            };
            let sides = [(&theirs, operation), (&ours, own)];
            let [theirs, ours] = sides.map(|(document, operation)| {
                parameters(operation)
                    .chain(request_fields(document, operation))
                    .collect::<Fields>()
            });
            for problem in requests_differ(&theirs, &ours) {
                wrong.push(format!("{what}: request: {problem}"));
            }
            let [theirs, ours] = sides.map(|(document, operation)| {
                fields(
                    document,
                    &operation["responses"]["200"]["content"]["application/json"]["schema"],
                )
            });
            for field in theirs.keys().filter(|field| !ours.contains_key(*field)) {
                wrong.push(format!("{what}: answer: lacks {field}"));
            }
        }
    }
    let unexpected: Vec<_> = wrong
        .iter()
        .filter(|text| !DIFFERENT.iter().any(|(part, _)| text.contains(part)))
        .collect();
    assert!(
        unexpected.is_empty(),
        "{} differences:\n{unexpected:#?}",
        unexpected.len()
    );
    for (part, _) in DIFFERENT {
        assert!(
            wrong.iter().any(|text| text.contains(part)),
            "no longer different: {part}"
        );
    }
}

#[test]
fn recorded_answers_of_the_reference_are_as_we_document_them() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden");
    let (mut checked, mut wrong) = (0, Vec::new());
    for file in files(&folder) {
        let case: Value = serde_json::from_str(&fs_err::read_to_string(&file).unwrap()).unwrap();
        let (request, response) = (&case["request"], &case["response"]);
        let version = request["headers"]["x-api-version"].as_str();
        let status = u16::try_from(response["status"].as_u64().unwrap_or_default()).unwrap();
        // Crashes of the reference, and what only older clients get.
        if response["json"].is_null() || status >= 500 || version.is_some_and(|version| version != "0.22.5") {
            continue;
        }
        let body = serde_json::to_vec(&response["json"]).unwrap();
        let exchange = Exchange {
            method: request["method"].as_str().unwrap(),
            path: request["path"].as_str().unwrap(),
            status,
            body: &body,
        };
        checked += 1;
        if let Err(problem) = DOCUMENT.check(exchange) {
            wrong.push(format!("{}: {problem}", case["case"]));
        }
    }
    assert!(checked > 500, "only {checked} answers were found");
    assert!(
        wrong.is_empty(),
        "{} of {checked}:\n{}",
        wrong.len(),
        wrong.join("\n\n")
    );
}

/// JSON files in a folder and below it.
fn files(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs_err::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(files(&path));
        } else if path.extension().is_some_and(|extension| extension == "json") {
            found.push(path);
        }
    }
    found.sort();
    found
}

/// Dotted path of a field, and whether it must be there.
type Fields = BTreeMap<String, bool>;

fn requests_differ(theirs: &Fields, ours: &Fields) -> Vec<String> {
    let mut found = Vec::new();
    for (field, required) in theirs {
        match ours.get(field) {
            None => found.push(format!("lacks {field}")),
            Some(own) if own != required => found.push(format!("{field}: required is {own}, not {required}")),
            Some(_) => {}
        }
    }
    for field in ours.keys().filter(|field| !theirs.contains_key(*field)) {
        found.push(format!("also has {field}"));
    }
    found
}

fn parameters(operation: &Value) -> impl Iterator<Item = (String, bool)> {
    let list = operation["parameters"].as_array().into_iter().flatten();
    list.map(|parameter| {
        let place = parameter["in"].as_str().unwrap();
        let name = parameter["name"].as_str().unwrap();
        (
            format!("({place}) {name}"),
            parameter["required"].as_bool().unwrap_or(false),
        )
    })
}

fn request_fields(document: &Value, operation: &Value) -> Fields {
    let content = operation["requestBody"]["content"].as_object();
    let mut found = Fields::new();
    for (kind, content) in content.into_iter().flatten() {
        found.insert(format!("<{kind}>"), true);
        found.extend(fields(document, &content["schema"]));
    }
    found
}

/// All fields of a schema with their paths.
fn fields(document: &Value, schema: &Value) -> Fields {
    let mut found = Fields::new();
    collect(document, schema, "", &mut Vec::new(), &mut found);
    found
}

fn collect<'d>(
    document: &'d Value,
    schema: &'d Value,
    at: &str,
    above: &mut Vec<&'d str>,
    found: &mut Fields,
) {
    if let Some(reference) = schema["$ref"].as_str() {
        if above.contains(&reference) {
            return;
        }
        above.push(reference);
        let target = document.pointer(reference.trim_start_matches('#')).unwrap();
        collect(document, target, at, above, found);
        above.pop();
        return;
    }
    for union in ["anyOf", "oneOf", "allOf"] {
        for member in schema[union].as_array().into_iter().flatten() {
            collect(document, member, at, above, found);
        }
    }
    if schema["items"].is_object() {
        collect(document, &schema["items"], &format!("{at}[]"), above, found);
    }
    if schema["additionalProperties"].is_object() {
        collect(
            document,
            &schema["additionalProperties"],
            &format!("{at}{{}}"),
            above,
            found,
        );
    }
    for (name, property) in schema["properties"].as_object().into_iter().flatten() {
        let path = format!("{at}.{name}");
        let required = schema["required"]
            .as_array()
            .is_some_and(|names| names.iter().any(|other| other == name));
        let known = found.entry(path.clone()).or_insert(required);
        *known &= required;
        collect(document, property, &path, above, found);
    }
}

/// The types of the web page are made from it. Written anew by `cargo xtask gen`.
#[test]
fn the_document_in_the_repository_is_up_to_date() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/schemas/openapi.json");
    let document = format!("{}\n", dstack_server::docs::document());
    assert!(
        fs_err::read_to_string(&path).unwrap() == document,
        "docs/schemas/openapi.json is out of date; make it again with: cargo xtask gen"
    );
}
