//! From a text to a manifest, or to what is wrong with it and where.

use std::collections::{BTreeMap, BTreeSet};

use dstack_decode::yaml::{self, ConfigError, ConfigErrors, Spans};
use dstack_decode::{Loc, Regex};
use dstack_model::backends::BackendType;
use http::{HeaderName, Method};
use serde_json::Value as Json;

use crate::manifest::{Manifest, Request};
use crate::template::names_in;

/// Names of fields of configurations that all backends have.
const TAKEN_FIELDS: &[&str] = &["type", "regions", "creds"];

const FIELD_NAME: &str = "^[a-z][a-z0-9_]*$";

/// What is known of an offer.
const OF_OFFERS: &[&str] = &[
    "type",
    "region",
    "price",
    "spot",
    "cpus",
    "memory_gib",
    "disk_gib",
    "gpu",
    "data",
];

const OF_MARKS: &[&str] = &["installation", "key"];

/// What is known when a machine is asked for.
const OF_REQUESTS: &[&str] = &[
    "name", "mark", "region", "type", "offer", "keys", "key", "project", "user", "tags",
];

/// Reads a manifest; `file` is its name in what is said.
///
/// # Errors
/// All that is wrong, each with its line.
pub fn read(text: &str, file: &str) -> Result<Manifest, ConfigErrors> {
    read_with_spans(text, file).map(|(manifest, _)| manifest)
}

/// As [`read`], with where things stand in the text.
pub(crate) fn read_with_spans(text: &str, file: &str) -> Result<(Manifest, Spans), ConfigErrors> {
    let (manifest, spans) = yaml::parse::<Manifest>(text, file)?;
    let document = yaml::load(text)
        .map(|document| document.value)
        .unwrap_or_default();
    let mut wrong = of_fields(&manifest);
    wrong.extend(of_states(&manifest));
    wrong.extend(of_repetition(&manifest));
    wrong.extend(of_names(&manifest, &document));
    if wrong.is_empty() {
        return Ok((manifest, spans));
    }
    let mut errors: Vec<ConfigError> = wrong.into_iter().map(|wrong| wrong.at(file, &spans)).collect();
    errors.sort_by_key(|error| error.position);
    Err(ConfigErrors { errors })
}

/// Something that is wrong.
struct Wrong {
    path: Vec<Loc>,
    message: String,
}

impl Wrong {
    fn at(self, file: &str, spans: &Spans) -> ConfigError {
        ConfigError {
            file: file.to_owned(),
            position: spans.value(&self.path),
            path: dstack_decode::problem::path_of(&self.path),
            message: self.message,
            suggestion: None,
        }
    }
}

fn wrong(path: &[&str], message: String) -> Wrong {
    Wrong {
        path: path
            .iter()
            .map(|part| Loc::Key((*part).to_owned().into()))
            .collect(),
        message,
    }
}

/// The type, the fields, and what names them.
fn of_fields(manifest: &Manifest) -> Vec<Wrong> {
    let mut found = Vec::new();
    if let Err(error) = BackendType::check_name(&manifest.kind) {
        found.push(wrong(&["type"], error.to_string()));
    }
    let is_name = |name: &str| Regex::new(FIELD_NAME).is_ok_and(|pattern| pattern.is_match(name));
    for name in manifest.fields.keys() {
        if TAKEN_FIELDS.contains(&name.as_str()) || !is_name(name) {
            let text = "a field is called by lower-case letters, digits and `_`, and not `type`, `regions` or `creds`";
            found.push(wrong(&["fields", name], text.to_owned()));
        }
    }
    let unknown = |field: &str| format!("`fields` has no `{field}`");
    for field in manifest.api.auth.fields() {
        if !manifest.fields.contains_key(field) {
            found.push(wrong(&["api", "auth"], unknown(field)));
        }
    }
    let is_header = |name: &str| HeaderName::from_bytes(name.as_bytes()).is_ok();
    for name in manifest.api.auth.headers.keys().filter(|name| !is_header(name)) {
        found.push(wrong(
            &["api", "auth", "headers", name],
            "it is no name of a header".to_owned(),
        ));
    }
    for name in manifest.api.headers.keys().filter(|name| !is_header(name)) {
        found.push(wrong(
            &["api", "headers", name],
            "it is no name of a header".to_owned(),
        ));
    }
    for (index, check) in manifest.check.iter().enumerate() {
        if let Some(field) = check
            .field
            .as_deref()
            .filter(|field| !manifest.fields.contains_key(*field))
        {
            found.push(Wrong {
                path: vec![
                    Loc::Key("check".into()),
                    Loc::Index(index),
                    Loc::Key("field".into()),
                ],
                message: unknown(field),
            });
        }
    }
    found
}

/// A state is one of them.
fn of_states(manifest: &Manifest) -> Vec<Wrong> {
    let states = &manifest.machine.states;
    let mut seen: BTreeMap<&str, &str> = BTreeMap::new();
    let mut found = Vec::new();
    for (kind, texts) in [
        ("starting", &states.starting),
        ("running", &states.running),
        ("ending", &states.ending),
        ("ended", &states.ended),
        ("failed", &states.failed),
    ] {
        for text in texts {
            if let Some(other) = seen.insert(text, kind) {
                let message = format!("`{text}` is {other} as well");
                found.push(wrong(&["machine", "states", kind], message));
            }
        }
    }
    found
}

/// What is sent again when its answer is lost changes nothing; what changes something is sent where its answer is noted.
fn of_repetition(manifest: &Manifest) -> Vec<Wrong> {
    let machine = &manifest.machine;
    let mut reading: Vec<(Vec<Loc>, &Request)> = Vec::new();
    let key = |name: &'static str| Loc::Key(name.into());
    let at = |path: &[&'static str]| -> Vec<Loc> { path.iter().map(|name| key(name)).collect() };
    let nth = |path: &[&'static str], index| [at(path), vec![Loc::Index(index)]].concat();
    reading.extend(indexed(&manifest.check).map(|(n, check)| (nth(&["check"], n), &check.request)));
    if let Some(free) = &manifest.offers.free {
        reading.push((at(&["offers", "free"]), &free.list.request));
    }
    if let Some(sold) = &manifest.offers.list {
        reading.push((at(&["offers", "list"]), &sold.list.request));
    }
    reading.extend(indexed(&machine.before).map(|(n, lookup)| {
        let path = nth(&["machine", "before"], n);
        (path, &lookup.list.request)
    }));
    for (name, lists) in [("lists", &machine.lists), ("find", &machine.find)] {
        reading.extend(indexed(lists).map(|(n, list)| (nth(&["machine", name], n), &list.request)));
    }
    if let Some(show) = &machine.show {
        reading.push((at(&["machine", "show"]), &show.request));
    }
    let mut changing = vec![
        (at(&["machine", "make"]), &machine.make.request),
        (at(&["machine", "remove"]), &machine.remove.request),
    ];
    if let Some(rules) = &machine.ssh_key {
        reading.push((at(&["machine", "ssh_key", "list"]), &rules.list.request));
        changing.push((at(&["machine", "ssh_key", "add"]), &rules.add));
    }
    let reading = reading.into_iter().filter(|(_, request)| !only_reads(request));
    let reading = reading.map(|(path, _)| Wrong {
        path,
        message: "it is only to read: `get`, or `post` with `reads: true` where that changes nothing"
            .to_owned(),
    });
    let changing = changing
        .into_iter()
        .filter(|(_, request)| only_reads(request) || request.reads);
    let changing = changing.map(|(path, _)| Wrong {
        path,
        message: "it changes something, and must not be sent again by itself: neither `get` nor `reads`"
            .to_owned(),
    });
    reading.chain(changing).collect()
}

fn indexed<T>(items: &[T]) -> impl Iterator<Item = (usize, &T)> {
    items.iter().enumerate()
}

/// Whether a request says that it changes nothing.
fn only_reads(request: &Request) -> bool {
    match request.target.method {
        Method::GET => true,
        Method::POST => request.reads,
        _ => false,
    }
}

/// Texts with placeholders use what is at hand where they stand.
fn of_names(manifest: &Manifest, document: &Json) -> Vec<Wrong> {
    let mut found = Vec::new();
    walk(document, &mut Vec::new(), &mut |path, text| {
        let Some(at_hand) = names_at_hand(path).filter(|_| text.contains("{{") || text.contains("{%")) else {
            return;
        };
        let names: BTreeSet<String> = names_in(text).into_iter().collect();
        let unknown = names
            .iter()
            .find_map(|name| not_at_hand(name, &at_hand, manifest));
        if let Some(message) = unknown {
            found.push(Wrong {
                path: path.to_vec(),
                message,
            });
        }
    });
    found
}

fn walk(json: &Json, path: &mut Vec<Loc>, visit: &mut dyn FnMut(&[Loc], &str)) {
    match json {
        Json::String(text) => visit(path, text),
        Json::Array(items) => {
            for (index, item) in items.iter().enumerate() {
                path.push(Loc::Index(index));
                walk(item, path, visit);
                path.pop();
            }
        }
        Json::Object(fields) => {
            for (name, field) in fields {
                path.push(Loc::Key(name.clone().into()));
                walk(field, path, visit);
                path.pop();
            }
        }
        _ => {}
    }
}

/// The names that stand for something there; `None`: there are no placeholders.
fn names_at_hand(path: &[Loc]) -> Option<Vec<&'static str>> {
    let keys: Vec<&str> = path
        .iter()
        .filter_map(|step| match step {
            Loc::Key(key) => Some(key.as_ref()),
            _ => None,
        })
        .collect();
    let of_requests = |more: &[&'static str]| [OF_REQUESTS, more].concat();
    let own: Vec<&'static str> = match keys.as_slice() {
        ["check", ..] => vec!["item"],
        ["offers", ..] => vec!["item", "region"],
        ["machine", "before", ..] => of_requests(&["item", "items", "found"]),
        ["machine", "ssh_key", ..] => vec!["key", "key_name", "item"],
        ["machine", "user_data", ..] => of_requests(&["keep_gpus", "found"]),
        ["machine", "make", ..] => of_requests(&["found", "ssh_key", "user_data", "item"]),
        ["machine", "lists" | "find", ..] => vec!["name", "item"],
        ["machine", "show" | "remove", ..] => vec!["id", "item"],
        ["machine", "read", ..] => vec!["item"],
        ["machine", "user"] => vec!["item", "offer"],
        _ => return None,
    };
    Some([own, vec!["config"]].concat())
}

/// Why a name such as `offer.type` stands for nothing.
fn not_at_hand(name: &str, at_hand: &[&str], manifest: &Manifest) -> Option<String> {
    let (first, rest) = name.split_once('.').unwrap_or((name, ""));
    let field = rest.split('.').next().unwrap_or_default();
    if !at_hand.contains(&first) {
        return Some(format!(
            "`{first}` is nothing here; there are {}",
            at_hand.join(", ")
        ));
    }
    let is_known = match first {
        _ if field.is_empty() => true,
        "config" if manifest.fields.get(field).is_some_and(|field| field.secret) => {
            return Some(format!(
                "`{field}` is secret: it is sent as `api.auth` says, and nowhere else"
            ));
        }
        "config" => field == "regions" || manifest.fields.contains_key(field),
        "offer" => OF_OFFERS.contains(&field),
        "mark" => OF_MARKS.contains(&field),
        "found" => manifest.machine.before.iter().any(|lookup| lookup.name == field),
        _ => true,
    };
    (!is_known).then(|| format!("`{first}` has no `{field}`"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const EXAMPLE: &str = include_str!("../examples/lambda.yml");

    fn errors(from: &str, to: &str) -> String {
        assert!(EXAMPLE.contains(from), "{from}");
        let text = EXAMPLE.replacen(from, to, 1);
        read(&text, "lambda.yml").unwrap_err().to_string()
    }

    #[test]
    fn what_is_wrong_is_told_with_its_line() {
        read(EXAMPLE, "lambda.yml").unwrap();
        for (from, to, expected) in [
            (
                "type: lambda-manifest",
                "type: lambda",
                "`type`: `lambda` is a type that this version has",
            ),
            (
                "type: lambda-manifest",
                "type: La",
                "`type`: `La` is no name of a type",
            ),
            (
                "manifest: 1",
                "manifest: 2",
                "`manifest`: this version reads manifests of format 1",
            ),
            (
                "{bearer: api_key}",
                "{bearer: token}",
                "`api.auth`: `fields` has no `token`",
            ),
            (
                "id: /data/instance_ids/0",
                "id: data.instance_ids",
                "`machine.make.id`: it is neither a JSON pointer",
            ),
            ("{{ region }}", "{{ place }}", "`place` is nothing here"),
            ("{{ region }}", "{{ offer.place }}", "`offer` has no `place`"),
            ("{{ region }}", "{{ config.api_key }}", "`api_key` is secret"),
            ("{{ region }}", "{{ region", "machine.make.body.region_name"),
            (
                "running: [active]",
                "running: [active, booting]",
                "`machine.states.running`: `booting` is starting as well",
            ),
            (
                "catalog: lambdalabs",
                "catalog: nimbus",
                "the catalogue has no provider `nimbus`",
            ),
            (
                "post: instance-operations/launch",
                "reads: true\n    post: instance-operations/launch",
                "`machine.make`: it changes something",
            ),
            (
                "post: instance-operations/launch",
                "get: instance-operations/launch",
                "`machine.make`: it changes something",
            ),
            (
                "post: instance-operations/terminate",
                "reads: true\n    post: instance-operations/terminate",
                "`machine.remove`: it changes something",
            ),
            (
                "{get: instances,",
                "{post: instances,",
                "`machine.lists[0]`: it is only to read",
            ),
            (
                "    get: instances/{{ id }}",
                "    delete: instances/{{ id }}",
                "`machine.show`: it is only to read",
            ),
            (
                "post: instance-operations/launch",
                "pots: x",
                "exactly one of `get`",
            ),
        ] {
            let told = errors(from, to);
            let line = EXAMPLE.lines().position(|line| line.contains(from)).unwrap() + 1;
            assert!(told.contains(expected), "{to}: {told}");
            let near =
                (line.saturating_sub(3)..=line).any(|line| told.contains(&format!("lambda.yml:{line}:")));
            assert!(near, "{to}, line {line}: {told}");
        }
    }
}
