//! One decoder for request bodies, YAML documents, and stored or peer JSON.
//!
//! It accepts and refuses what dstack 0.22.5 accepts and refuses, with the same coercions (numbers become texts
//! where a text is expected, `"5"` becomes 5, `yes` becomes true), and finds **all** problems at once. Each
//! [`Problem`] has the place, kind and message of the reference's 422 answers.
//!
//! ```
//! use dstack_model::decode::decode_strict;
//! use dstack_model::configurations::AnyRunConfiguration;
//!
//! let value = serde_json::json!({"type": "task", "command": ["make"]});
//! let problems = decode_strict::<AnyRunConfiguration>(&value).unwrap_err();
//! assert_eq!(problems[0].kind, "extra_forbidden");
//! ```

pub mod collections;
pub mod constraint;
pub mod enums;
pub mod fields;
pub mod problem;
pub mod scalars;
pub mod units;

use std::borrow::Cow;

pub use fields::{DecodeFields, Fields};
pub use problem::{Loc, Problem};
pub use regex::Regex;
pub use serde_json::{Map, Value};

/// A type that can be read from a JSON value.
pub trait Decode: Sized {
    /// The value, or `None` after at least one problem was reported to `cx`.
    fn decode(value: &Value, cx: &mut Cx) -> Option<Self>;
}

/// What happens to unknown keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// Refused: requests and YAML.
    Strict,
    /// Dropped: what is stored, and what peers answer.
    Lenient,
}

/// Problems that are kept of one document: nobody reads more, and each takes memory.
pub const MAX_PROBLEMS: usize = 100;

/// Where the decoder is, and what it found so far.
#[derive(Debug)]
pub struct Cx {
    mode: Mode,
    path: Vec<Loc>,
    problems: Vec<Problem>,
}

impl Cx {
    /// At the root.
    pub const fn new(mode: Mode) -> Self {
        Self {
            mode,
            path: Vec::new(),
            problems: Vec::new(),
        }
    }

    /// Strict or lenient.
    pub const fn mode(&self) -> Mode {
        self.mode
    }

    /// Decodes below a key.
    pub fn at<T>(
        &mut self,
        key: impl Into<Cow<'static, str>>,
        decode: impl FnOnce(&mut Self) -> Option<T>,
    ) -> Option<T> {
        self.below(Loc::Key(key.into()), decode)
    }

    /// Decodes below a place in a list.
    pub fn index<T>(&mut self, index: usize, decode: impl FnOnce(&mut Self) -> Option<T>) -> Option<T> {
        self.below(Loc::Index(index), decode)
    }

    /// Decodes as a member of a union: its name is part of places, but no key of the document.
    pub fn member<T>(
        &mut self,
        name: &'static str,
        decode: impl FnOnce(&mut Self) -> Option<T>,
    ) -> Option<T> {
        self.below(Loc::Member(Cow::Borrowed(name)), decode)
    }

    fn below<T>(&mut self, loc: Loc, decode: impl FnOnce(&mut Self) -> Option<T>) -> Option<T> {
        self.path.push(loc);
        let decoded = decode(self);
        self.path.pop();
        decoded
    }

    /// Reports a problem at the current place. Always `None`, so that a decoder can end with it.
    pub fn problem<T>(&mut self, kind: &'static str, msg: impl Into<String>, input: &Value) -> Option<T> {
        self.report(Problem::new(kind, msg, input))
    }

    /// Reports a problem with context at the current place.
    pub fn problem_with<T>(
        &mut self,
        kind: &'static str,
        msg: impl Into<String>,
        input: &Value,
        ctx: Value,
    ) -> Option<T> {
        self.report(Problem {
            ctx: Some(ctx),
            ..Problem::new(kind, msg, input)
        })
    }

    /// Reports a broken rule: `Value error, <text>`.
    pub fn value_error<T>(&mut self, text: impl AsRef<str>, input: &Value) -> Option<T> {
        self.report(Problem::value_error(text.as_ref(), input))
    }

    /// Reports a problem, its place completed by the current one. Those beyond [`MAX_PROBLEMS`] are not kept.
    pub fn report<T>(&mut self, mut problem: Problem) -> Option<T> {
        if self.is_full() {
            return None;
        }
        let mut loc = self.path.clone();
        loc.append(&mut problem.loc);
        problem.loc = loc;
        self.problems.push(problem);
        None
    }

    /// Whether no further problems are kept.
    pub(crate) fn is_full(&self) -> bool {
        self.problems.len() >= MAX_PROBLEMS
    }

    /// Tries to decode; the problems are handed back, not reported.
    pub fn attempt<T>(&mut self, decode: impl FnOnce(&mut Self) -> Option<T>) -> Result<T, Vec<Problem>> {
        let before = self.problems.len();
        let decoded = decode(self);
        let found = self.problems.split_off(before.min(self.problems.len()));
        match decoded {
            Some(decoded) if found.is_empty() => Ok(decoded),
            _ => Err(found),
        }
    }

    /// The first member of a union that the value fits; when none does, the problems of all.
    pub fn union<T>(&mut self, members: &[UnionMember<'_, T>]) -> Option<T> {
        let mut all = Vec::new();
        for (name, decode) in members {
            match self.attempt(|cx| cx.member(name, decode)) {
                Ok(decoded) => return Some(decoded),
                Err(problems) => all.extend(problems),
            }
        }
        let room = MAX_PROBLEMS.saturating_sub(self.problems.len());
        self.problems.extend(all.into_iter().take(room));
        None
    }

    /// Runs a check that may replace the input.
    pub fn before<E: Into<Refusal>>(
        &mut self,
        value: &Value,
        check: impl FnOnce(&Value) -> Result<Option<Value>, E>,
    ) -> Option<Option<Value>> {
        match check(value) {
            Ok(replaced) => Some(replaced),
            Err(refusal) => self.refuse(value, refusal),
        }
    }

    /// Runs a check on what was decoded.
    pub fn after<T, E: Into<Refusal>>(
        &mut self,
        value: &Value,
        decoded: T,
        check: impl FnOnce(T) -> Result<T, E>,
    ) -> Option<T> {
        match check(decoded) {
            Ok(decoded) => Some(decoded),
            Err(refusal) => self.refuse(value, refusal),
        }
    }

    /// Checks what a request or file asks for; what is stored passes.
    pub fn limit<T>(
        &mut self,
        value: &Value,
        decoded: &T,
        check: impl FnOnce(&T) -> Result<(), String>,
    ) -> Option<()> {
        match (self.mode, check(decoded)) {
            (Mode::Strict, Err(text)) => self.value_error(text, value),
            _ => Some(()),
        }
    }

    fn refuse<T>(&mut self, value: &Value, refusal: impl Into<Refusal>) -> Option<T> {
        let Refusal { text, at } = refusal.into();
        match at {
            None => self.value_error(text, value),
            Some(key) => self.at(key, |cx| cx.value_error(text, value.get(key).unwrap_or(value))),
        }
    }

    /// Decodes an object's fields and refuses the keys that none of them took.
    pub fn object<T: DecodeFields>(&mut self, value: &Value) -> Option<T> {
        let Some(mut fields) = Fields::of(value) else {
            return self.problem(
                "model_attributes_type",
                "Input should be a valid dictionary or object to extract fields from",
                value,
            );
        };
        let before = self.problems.len();
        let decoded = T::decode_fields(&mut fields, self);
        if self.mode == Mode::Strict {
            fields.refuse_unknown(self);
        }
        decoded.filter(|_| self.problems.len() == before)
    }

    /// Which member of a tagged union the object names.
    pub fn tag(
        &mut self,
        value: &Value,
        key: &'static str,
        tags: &'static [&'static str],
        shown: &'static [&'static str],
    ) -> Option<&'static str> {
        let Value::Object(map) = value else {
            return self.problem(
                "model_attributes_type",
                "Input should be a valid dictionary or object to extract fields from",
                value,
            );
        };
        let discriminator = format!("'{key}'");
        let Some(found) = map.get(key).filter(|tag| !tag.is_null()) else {
            let mut problem = Problem::new(
                "union_tag_not_found",
                format!("Unable to extract tag using discriminator {discriminator}"),
                value,
            );
            problem.ctx = Some(serde_json::json!({"discriminator": discriminator}));
            problem.expected = tags.iter().map(|tag| (*tag).to_owned()).collect();
            return self.report(problem);
        };
        if let Some(tag) = found
            .as_str()
            .and_then(|found| tags.iter().find(|tag| **tag == found))
        {
            return Some(tag);
        }
        let text = found.as_str().map_or_else(|| found.to_string(), str::to_owned);
        let expected = shown.join(", ");
        let mut problem = Problem::new(
            "union_tag_invalid",
            format!(
                "Input tag '{text}' found using {discriminator} does not match any of the expected tags: {expected}"
            ),
            value,
        );
        problem.ctx =
            Some(serde_json::json!({"discriminator": discriminator, "tag": text, "expected_tags": expected}));
        problem.expected = tags.iter().map(|tag| (*tag).to_owned()).collect();
        self.report(problem)
    }

    /// What was found.
    pub fn into_problems(self) -> Vec<Problem> {
        self.problems
    }
}

/// A broken rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// The reference's text.
    pub text: String,
    /// The key that is to blame, when it is not the value as a whole.
    pub at: Option<&'static str>,
}

impl From<String> for Refusal {
    fn from(text: String) -> Self {
        Self { text, at: None }
    }
}

impl From<&str> for Refusal {
    fn from(text: &str) -> Self {
        Self::from(text.to_owned())
    }
}

impl From<dstack_units::ParseError> for Refusal {
    fn from(error: dstack_units::ParseError) -> Self {
        Self::from(error.into_message())
    }
}

/// A member of a union: its name in places, and how it is decoded.
pub type UnionMember<'a, T> = (&'static str, &'a dyn Fn(&mut Cx) -> Option<T>);

/// Decodes a request body or a YAML document: unknown keys are refused.
///
/// # Errors
/// All problems, in the order of the fields.
pub fn decode_strict<T: Decode>(value: &Value) -> Result<T, Vec<Problem>> {
    decode(value, Mode::Strict)
}

/// Decodes what is stored or what a peer answered: unknown keys are dropped at every level.
///
/// # Errors
/// All problems, in the order of the fields.
pub fn decode_lenient<T: Decode>(value: &Value) -> Result<T, Vec<Problem>> {
    decode(value, Mode::Lenient)
}

fn decode<T: Decode>(value: &Value, mode: Mode) -> Result<T, Vec<Problem>> {
    let mut cx = Cx::new(mode);
    let decoded = T::decode(value, &mut cx);
    match decoded {
        Some(decoded) if cx.problems.is_empty() => Ok(decoded),
        _ => Err(cx.problems),
    }
}

/// serde's `Deserialize` through the lenient decoder.
///
/// # Errors
/// A text of all problems.
pub fn deserialize<'de, T: Decode, D: serde::Deserializer<'de>>(deserializer: D) -> Result<T, D::Error> {
    use serde::Deserialize as _;
    let value = Value::deserialize(deserializer)?;
    decode_lenient(&value).map_err(|problems| serde::de::Error::custom(problem::summary(&problems)))
}

impl Decode for Value {
    fn decode(value: &Value, _: &mut Cx) -> Option<Self> {
        Some(value.clone())
    }
}
