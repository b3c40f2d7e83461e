//! What can be wrong with a value, and where.

use std::borrow::Cow;
use std::fmt;

use serde::{Serialize, Serializer};
use serde_json::{Map, Value, json};

/// One step from the root of a document to a place in it.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Loc {
    /// A key of an object.
    Key(Cow<'static, str>),
    /// A place in a list.
    Index(usize),
    /// The name of a union's member; no step in the document itself.
    Member(Cow<'static, str>),
}

impl Serialize for Loc {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Key(name) | Self::Member(name) => serializer.serialize_str(name),
            Self::Index(index) => serializer.serialize_u64(u64::try_from(*index).unwrap_or(u64::MAX)),
        }
    }
}

/// What is wrong with one value, and where it stands.
#[derive(Debug, Clone, PartialEq)]
pub struct Problem {
    /// From the root.
    pub loc: Vec<Loc>,
    /// The reference's name of the kind: `missing`, `extra_forbidden`, `value_error`, `int_parsing`, ...
    pub kind: Cow<'static, str>,
    /// The reference's sentence.
    pub msg: String,
    /// What was found there; of something large the beginning ([`excerpt`]).
    pub input: Value,
    /// The reference's details.
    pub ctx: Option<Value>,
    /// What could have stood there (keys, or values); not sent.
    pub expected: Vec<String>,
}

impl Problem {
    /// Without details, at the place where it is reported.
    pub fn new(kind: &'static str, msg: impl Into<String>, input: &Value) -> Self {
        Self {
            loc: Vec::new(),
            kind: Cow::Borrowed(kind),
            msg: msg.into(),
            input: excerpt(input),
            ctx: None,
            expected: Vec::new(),
        }
    }

    /// A broken rule: `Value error, <text>`.
    pub fn value_error(text: &str, input: &Value) -> Self {
        Self {
            ctx: Some(json!({"error": {}})),
            ..Self::new("value_error", format!("Value error, {text}"), input)
        }
    }

    /// The message without `Value error, ` in front.
    pub fn text(&self) -> &str {
        self.msg.strip_prefix("Value error, ").unwrap_or(&self.msg)
    }

    /// The place in the document, without names of union members: `resources.gpu.count`, `volumes[0].path`.
    pub fn path(&self) -> String {
        path_of(&self.loc)
    }
}

/// Bytes of a value that are repeated in a problem, about.
const MAX_INPUT: usize = 16 * 1024;

/// A copy of a value; of a large one the beginning only, so that an answer is not many times as large as its request.
fn excerpt(value: &Value) -> Value {
    copy(value, &mut MAX_INPUT.clone())
}

/// Copies values until nothing is left of so many bytes.
fn copy(value: &Value, left: &mut usize) -> Value {
    const OF_EACH: usize = 16;
    *left = left.saturating_sub(OF_EACH);
    match value {
        Value::String(text) => {
            let end = text.floor_char_boundary(*left);
            *left = left.saturating_sub(text.len());
            match text.get(..end) {
                Some(start) if end < text.len() => Value::String(format!("{start}…")),
                _ => value.clone(),
            }
        }
        Value::Array(items) => {
            let mut copied = Vec::new();
            for item in items {
                if *left == 0 {
                    break;
                }
                copied.push(copy(item, left));
            }
            Value::Array(copied)
        }
        Value::Object(entries) => {
            let mut copied = Map::new();
            for (key, item) in entries {
                *left = left.saturating_sub(key.len());
                if *left == 0 {
                    break;
                }
                copied.insert(key.clone(), copy(item, left));
            }
            Value::Object(copied)
        }
        scalar => scalar.clone(),
    }
}

/// A place as a text, without names of union members.
pub fn path_of(loc: &[Loc]) -> String {
    let mut path = String::new();
    for step in loc {
        match step {
            Loc::Key(key) if path.is_empty() => path.push_str(key),
            Loc::Key(key) => {
                path.push('.');
                path.push_str(key);
            }
            Loc::Index(index) => path.push_str(&format!("[{index}]")),
            Loc::Member(_) => {}
        }
    }
    path
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = self.path();
        if path.is_empty() {
            f.write_str(self.text())
        } else {
            write!(f, "{path}: {}", self.text())
        }
    }
}

/// All problems in one line, for errors of stored or peer data.
pub fn summary(problems: &[Problem]) -> String {
    let texts: Vec<String> = problems.iter().map(ToString::to_string).collect();
    texts.join("; ")
}

/// The body of a 422 answer: `{"detail": [{"type", "loc": ["body", ...], "msg", "input", "ctx"?}]}`.
/// `origin` is `body`, `query` or `path`.
pub fn validation_body(origin: &'static str, problems: &[Problem]) -> Value {
    let details: Vec<Value> = problems.iter().map(|problem| detail(origin, problem)).collect();
    json!({ "detail": details })
}

fn detail(origin: &'static str, problem: &Problem) -> Value {
    let mut loc = vec![Loc::Key(Cow::Borrowed(origin))];
    loc.extend(problem.loc.iter().cloned());
    let mut detail = json!({
        "type": problem.kind,
        "loc": loc,
        "msg": problem.msg,
        "input": problem.input,
    });
    if let (Some(ctx), Value::Object(map)) = (&problem.ctx, &mut detail) {
        map.insert("ctx".to_owned(), ctx.clone());
    }
    detail
}

/// The body that is answered when there is no request body at all.
pub fn missing_body() -> Value {
    validation_body("body", &[Problem::new("missing", "Field required", &Value::Null)])
}
