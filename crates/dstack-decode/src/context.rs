//! The decoder's state: where in the document it is, and which problems it has found.

use std::borrow::Cow;

use serde_json::Value;

use crate::problem::{Loc, Problem};

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

    /// Keeps problems that were found elsewhere, as they are, up to [`MAX_PROBLEMS`] in all. Always `None`.
    pub(crate) fn keep<T>(&mut self, found: Vec<Problem>) -> Option<T> {
        let room = MAX_PROBLEMS.saturating_sub(self.problems.len());
        self.problems.extend(found.into_iter().take(room));
        None
    }

    /// Number of problems found so far.
    pub(crate) const fn problem_count(&self) -> usize {
        self.problems.len()
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
