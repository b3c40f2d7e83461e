//! Comparing an answer with the recorded one.

use std::fmt;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;

use super::case::Case;
use super::pairs::Pairs;
use crate::http::Answer;

/// What our server says beyond the reference; its clients ignore members that they do not know.
const ADDED: [&str; 5] = ["waiting_for", "waiting_kind", "waits_until", "notice", "notices"];

/// The same of refusals as a whole, where clients of the OpenAI API look for it.
const ADDED_TO_REFUSALS: &str = "error";

/// One place where an answer differs from the recording.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Difference {
    /// `status`, `header NAME`, or the path in the body: `$.jobs[0].status`.
    pub at: String,
    pub recorded: String,
    pub actual: String,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: recorded {}, got {}", self.at, self.recorded, self.actual)
    }
}

/// Everything in which an answer differs from the recorded one.
pub fn compare(case: &Case, answer: &Answer, pairs: &mut Pairs) -> Vec<Difference> {
    let recorded = &case.response;
    if recorded.status >= 500 {
        // A crash of the reference: any refusal is better.
        let refused = (400..500).contains(&answer.status);
        return if refused {
            Vec::new()
        } else {
            vec![status(case, answer)]
        };
    }
    let mut found = Vec::new();
    if recorded.status != answer.status {
        found.push(status(case, answer));
    }
    found.extend(headers(case, answer, pairs));
    found.extend(body(case, answer, pairs));
    found
}

fn status(case: &Case, answer: &Answer) -> Difference {
    let shown = format!("{} {}", answer.status, shorten(&answer.text()));
    let recorded = if case.response.status >= 500 {
        "4xx".into()
    } else {
        case.response.status.to_string()
    };
    Difference {
        at: "status".into(),
        recorded,
        actual: shown,
    }
}

fn headers(case: &Case, answer: &Answer, pairs: &mut Pairs) -> Vec<Difference> {
    let mut found = Vec::new();
    for (name, recorded) in &case.response.headers {
        if matches!(name.as_str(), "server" | "date" | "content-length" | "connection") {
            continue;
        }
        let actual = answer.header(name);
        let equal = match (name.as_str(), actual) {
            // The server's own address is part of it.
            ("location", Some(actual)) => without_origin(recorded) == without_origin(actual),
            (_, Some(actual)) => pairs.equal(recorded, actual),
            (_, None) => false,
        };
        if !equal {
            found.push(Difference {
                at: format!("header {name}"),
                recorded: recorded.clone(),
                actual: actual.unwrap_or("none").to_owned(),
            });
        }
    }
    found
}

fn without_origin(url: &str) -> &str {
    let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
    rest.find('/').and_then(|at| rest.get(at..)).unwrap_or(rest)
}

fn body(case: &Case, answer: &Answer, pairs: &mut Pairs) -> Vec<Difference> {
    let recorded = &case.response;
    if let Some(json) = &recorded.json {
        let Some(actual) = answer.json() else {
            return vec![difference(
                "$",
                &shorten(&json.to_string()),
                &shorten(&answer.text()),
            )];
        };
        return if recorded.status == 422 && answer.status == 422 {
            fields(case, json, &actual)
        } else {
            let mut comparison = Comparison {
                case,
                pairs,
                found: Vec::new(),
            };
            comparison.values(&mut Vec::new(), json, &actual);
            comparison.found
        };
    }
    if let Some(text) = &recorded.text {
        let actual = answer.text();
        return if pairs.equal(text, &actual) {
            Vec::new()
        } else {
            vec![difference("body", text, &actual)]
        };
    }
    if let Some(text) = &recorded.base64 {
        let actual = STANDARD.encode(&answer.body);
        return if *text == actual {
            Vec::new()
        } else {
            vec![difference("body", text, &actual)]
        };
    }
    Vec::new()
}

/// Of a failed validation only the fields complained about count.
fn fields(case: &Case, recorded: &Value, actual: &Value) -> Vec<Difference> {
    let request = case.request.json.as_ref().unwrap_or(&Value::Null);
    let (recorded, actual) = (locations(recorded, request), locations(actual, request));
    if recorded == actual {
        return Vec::new();
    }
    vec![difference(
        "$.detail[*].loc",
        &format!("{recorded:?}"),
        &format!("{actual:?}"),
    )]
}

/// The fields a 422 answer names, without the union members the reference's validator adds to them.
fn locations(answer: &Value, request: &Value) -> Vec<String> {
    let details = answer
        .get("detail")
        .and_then(Value::as_array)
        .into_iter()
        .flatten();
    let mut found: Vec<String> = details.map(|detail| location(&detail["loc"], request)).collect();
    found.sort();
    found.dedup();
    found
}

fn location(loc: &Value, request: &Value) -> String {
    let mut parts = Vec::new();
    let mut at = Some(request);
    for (index, part) in loc.as_array().into_iter().flatten().enumerate() {
        match part {
            Value::String(name) if index == 0 => parts.push(name.clone()),
            Value::String(name) => {
                let inside = at.and_then(|value| value.get(name));
                if inside.is_some() || is_field(name) {
                    parts.push(name.clone());
                    // A discriminator ("task") is part of the path but not of the body.
                    at = inside.or(at);
                }
            }
            Value::Number(number) => {
                parts.push(number.to_string());
                let index = number.as_u64().and_then(|number| usize::try_from(number).ok());
                at = at.zip(index).and_then(|(value, index)| value.get(index));
            }
            _ => {}
        }
    }
    parts.join(".")
}

/// Fields are written in lower case; union members are types: `str`, `list[constrained-str]`, `PortMapping`.
fn is_field(name: &str) -> bool {
    let types = ["bool", "int", "float", "str", "none", "dict", "list"];
    !types.contains(&name)
        && !name.starts_with("constrained-")
        && name
            .bytes()
            .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"_-".contains(&byte))
}

/// A step down into a value.
#[derive(Debug, Clone)]
enum Step {
    Key(String),
    Index(usize),
}

struct Comparison<'a> {
    case: &'a Case,
    pairs: &'a mut Pairs,
    found: Vec<Difference>,
}

impl Comparison<'_> {
    fn values(&mut self, path: &mut Vec<Step>, recorded: &Value, actual: &Value) {
        if self.is_free(path) {
            if let (Value::String(recorded), Value::String(actual)) = (recorded, actual) {
                self.pairs.remember(recorded, actual);
            }
            return;
        }
        match (recorded, actual) {
            (Value::Object(recorded), Value::Object(actual)) => self.objects(path, recorded, actual),
            (Value::Array(recorded), Value::Array(actual)) => self.arrays(path, recorded, actual),
            // What a running thing has cost so far.
            (Value::Number(_), Value::Number(_)) if is_key(path, "cost") => {}
            _ if self.equal(recorded, actual) => {}
            _ => self.differ(
                path,
                &shorten(&recorded.to_string()),
                &shorten(&actual.to_string()),
            ),
        }
    }

    /// Whether two scalars mean the same. Equal texts may still be unequal: when they were paired with others.
    fn equal(&mut self, recorded: &Value, actual: &Value) -> bool {
        match (recorded, actual) {
            (Value::String(recorded), Value::String(actual)) => {
                self.pairs.stands_for(recorded, actual) || self.pairs.equal(recorded, actual)
            }
            (Value::Number(recorded), Value::Number(actual)) => recorded.as_f64() == actual.as_f64(),
            _ => recorded == actual,
        }
    }

    fn objects(
        &mut self,
        path: &mut Vec<Step>,
        recorded: &serde_json::Map<String, Value>,
        actual: &serde_json::Map<String, Value>,
    ) {
        for (key, value) in recorded {
            path.push(Step::Key(key.clone()));
            match actual.get(&self.pairs.translate(key)).or_else(|| actual.get(key)) {
                Some(other) => self.values(path, value, other),
                None if self.is_free(path) => {}
                None => self.differ(path, &shorten(&value.to_string()), "nothing"),
            }
            path.pop();
        }
        let is_refusal = path.is_empty() && recorded.contains_key("detail");
        let is_added = |key: &str| ADDED.contains(&key) || is_refusal && key == ADDED_TO_REFUSALS;
        let known: Vec<String> = recorded.keys().map(|key| self.pairs.translate(key)).collect();
        for (key, value) in actual
            .iter()
            .filter(|(key, _)| !known.contains(key) && !recorded.contains_key(*key))
            .filter(|(key, _)| !is_added(key))
        {
            path.push(Step::Key(key.clone()));
            self.differ(path, "nothing", &shorten(&value.to_string()));
            path.pop();
        }
    }

    fn arrays(&mut self, path: &mut Vec<Step>, recorded: &[Value], actual: &[Value]) {
        let actual = if path.is_empty() {
            self.reordered(recorded, actual)
        } else {
            actual.to_vec()
        };
        if recorded.len() != actual.len() {
            let count = |items: &[Value]| format!("{} items", items.len());
            self.differ(path, &count(recorded), &count(&actual));
        }
        for (index, (recorded, actual)) in recorded.iter().zip(&actual).enumerate() {
            path.push(Step::Index(index));
            self.values(path, recorded, actual);
            path.pop();
        }
    }

    /// The reference does not sort some lists: their items are put in the recorded order where they match.
    fn reordered(&self, recorded: &[Value], actual: &[Value]) -> Vec<Value> {
        let route = self.case.request.path.as_str();
        let unsorted = ["/repos/list", "/volumes/list", "/gateways/list"]
            .iter()
            .any(|end| route.ends_with(end));
        if unsorted {
            return self.matched(recorded, actual);
        }
        if !route.ends_with("/events/list") || recorded.len() != actual.len() {
            return actual.to_vec();
        }
        // Events of one moment, in one of the two, come in any order.
        let same = |at: usize| {
            [recorded, actual].iter().any(|events| {
                let moment = |at: usize| events.get(at).map(|event| &event["recorded_at"]);
                moment(at - 1) == moment(at)
            })
        };
        let mut ordered = Vec::new();
        let mut start = 0;
        while start < recorded.len() {
            let end = (start + 1..recorded.len()).find(|at| !same(*at));
            let end = end.unwrap_or(recorded.len());
            let group = |items: &[Value]| items.get(start..end).unwrap_or_default().to_vec();
            ordered.extend(self.matched(&group(recorded), &group(actual)));
            start = end;
        }
        ordered
    }

    /// For each recorded item the first one left that equals it; the others follow in their order.
    fn matched(&self, recorded: &[Value], actual: &[Value]) -> Vec<Value> {
        let mut left: Vec<Value> = actual.to_vec();
        let mut pairs = self.pairs.clone();
        let mut slots: Vec<Option<Value>> = Vec::new();
        for item in recorded {
            let at = left.iter().position(|candidate| {
                let mut trial = pairs.clone();
                let mut comparison = Comparison {
                    case: self.case,
                    pairs: &mut trial,
                    found: Vec::new(),
                };
                comparison.values(&mut vec![Step::Index(0)], item, candidate);
                let equal = comparison.found.is_empty();
                if equal {
                    pairs = trial;
                }
                equal
            });
            slots.push(at.map(|at| left.remove(at)));
        }
        let mut rest = left.into_iter();
        let mut ordered: Vec<Value> = slots
            .into_iter()
            .filter_map(|slot| slot.or_else(|| rest.next()))
            .collect();
        ordered.extend(rest);
        ordered
    }

    fn is_free(&self, path: &[Step]) -> bool {
        self.case.varies.iter().any(|pointer| matches(pointer, path))
    }

    fn differ(&mut self, path: &[Step], recorded: &str, actual: &str) {
        self.found.push(difference(&render(path), recorded, actual));
    }
}

/// Whether a JSON pointer, in which `*` stands for any key or index, names a place.
fn matches(pointer: &str, path: &[Step]) -> bool {
    let parts: Vec<&str> = pointer.trim_start_matches('/').split('/').collect();
    parts.len() == path.len()
        && parts.iter().zip(path).all(|(part, step)| {
            *part == "*"
                || match step {
                    Step::Key(key) => part == key,
                    Step::Index(index) => part.parse() == Ok(*index),
                }
        })
}

fn is_key(path: &[Step], name: &str) -> bool {
    matches!(path.last(), Some(Step::Key(key)) if key == name)
}

fn render(path: &[Step]) -> String {
    path.iter().fold("$".to_owned(), |text, step| match step {
        Step::Key(key) => format!("{text}.{key}"),
        Step::Index(index) => format!("{text}[{index}]"),
    })
}

fn difference(at: &str, recorded: &str, actual: &str) -> Difference {
    Difference {
        at: at.to_owned(),
        recorded: recorded.to_owned(),
        actual: actual.to_owned(),
    }
}

/// Long values are cut: the path tells where to look.
fn shorten(text: &str) -> String {
    const LIMIT: usize = 300;
    match text.char_indices().nth(LIMIT) {
        Some((end, _)) => format!("{}…", text.get(..end).unwrap_or(text)),
        None => text.to_owned(),
    }
}

#[cfg(test)]
#[path = "compare_tests.rs"]
mod tests;
