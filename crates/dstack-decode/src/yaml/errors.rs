//! Errors that point into the file and say what was found, what is allowed, and what may have been meant.

use std::fmt;

use serde_json::Value;

use super::load::{Position, Spans, SyntaxError};
use crate::problem::{Loc, Problem, path_of};

/// One problem of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigError {
    /// The file as the user named it.
    pub file: String,
    /// Where in it.
    pub position: Position,
    /// Where in the document: `resources.gpu.count`; empty for the document as a whole.
    pub path: String,
    /// What is wrong, and what would be right.
    pub message: String,
    /// What may have been meant.
    pub suggestion: Option<String>,
}

impl ConfigError {
    /// What is wrong and where in the document, without the place in the file.
    pub fn cause(&self) -> impl fmt::Display {
        fmt::from_fn(move |f| {
            if !self.path.is_empty() {
                write!(f, "`{}`: ", self.path)?;
            }
            f.write_str(&self.message)?;
            match &self.suggestion {
                Some(meant) => write!(f, ", did you mean `{meant}`?"),
                None => Ok(()),
            }
        })
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Position { line, column } = self.position;
        write!(f, "{}:{line}:{column}: {}", self.file, self.cause())
    }
}

/// All problems of a file, in its order; one line each.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub struct ConfigErrors {
    /// At least one.
    pub errors: Vec<ConfigError>,
}

impl fmt::Display for ConfigErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, error) in self.errors.iter().enumerate() {
            if index > 0 {
                f.write_str("\n")?;
            }
            error.fmt(f)?;
        }
        Ok(())
    }
}

impl ConfigErrors {
    /// That the text is no YAML.
    pub(super) fn of_syntax(file: &str, error: &SyntaxError) -> Self {
        Self {
            errors: vec![ConfigError {
                file: file.to_owned(),
                position: error.position,
                path: String::new(),
                message: error.message.clone(),
                suggestion: None,
            }],
        }
    }

    /// A problem with the value of a key at the top, found after reading.
    pub fn at(file: &str, spans: &Spans, key: &str, message: impl Into<String>) -> Self {
        Self {
            errors: vec![ConfigError {
                file: file.to_owned(),
                position: spans.value(&[Loc::Key(key.to_owned().into())]),
                path: key.to_owned(),
                message: message.into(),
                suggestion: None,
            }],
        }
    }

    /// What the decoder found.
    pub(super) fn new(file: &str, spans: &Spans, problems: &[Problem]) -> Self {
        let mut errors: Vec<ConfigError> = relevant(problems)
            .into_iter()
            .map(|problem| explain(file, spans, problem))
            .collect();
        errors.sort_by_key(|error| error.position);
        errors.dedup_by(|same, kept| merge(same, kept));
        Self { errors }
    }
}

/// One text may stand for several fields (`memory: lots` is both `min` and `max`): it is wrong once.
fn merge(same: &ConfigError, kept: &mut ConfigError) -> bool {
    let one = same.position == kept.position && same.message == kept.message;
    if one {
        let steps = kept.path.split('.').zip(same.path.split('.'));
        let common: Vec<&str> = steps.take_while(|(a, b)| a == b).map(|(step, _)| step).collect();
        kept.path = common.join(".");
    }
    one
}

/// A value that fits no member of a union gives problems for each member. Those of the members that came deepest
/// into the value are told; that it is no boolean either is not.
fn relevant(problems: &[Problem]) -> Vec<&Problem> {
    problems
        .iter()
        .filter(|problem| !problems.iter().any(|other| is_better(other, problem)))
        .collect()
}

/// Whether `other` is about another member of the same union, and tells more.
fn is_better(other: &Problem, problem: &Problem) -> bool {
    let same = other
        .loc
        .iter()
        .zip(&problem.loc)
        .take_while(|(a, b)| a == b)
        .count();
    let members = (other.loc.get(same), problem.loc.get(same));
    if !matches!(members, (Some(Loc::Member(_)), Some(Loc::Member(_)))) {
        return false;
    }
    let depth = |problem: &Problem| {
        problem
            .loc
            .iter()
            .skip(same)
            .filter(|step| !matches!(step, Loc::Member(_)))
            .count()
    };
    let wrong_shape = |problem: &Problem| {
        [
            "model_attributes_type",
            "dict_type",
            "list_type",
            "string_type",
            "bool_type",
        ]
        .contains(&problem.kind.as_ref())
    };
    depth(other) > depth(problem)
        || (depth(other) == depth(problem) && wrong_shape(problem) && !wrong_shape(other))
}

fn explain(file: &str, spans: &Spans, problem: &Problem) -> ConfigError {
    let mut path = path_of(&problem.loc);
    let mut position = spans.value(&problem.loc);
    let suggestion = problem.suggestion().map(str::to_owned);
    let message = match problem.kind.as_ref() {
        "extra_forbidden" => {
            position = spans.key(&problem.loc);
            match &suggestion {
                Some(_) => "unknown key".to_owned(),
                None => format!("unknown key, expected one of {}", words(&problem.expected)),
            }
        }
        "missing" => {
            // The place of the mapping that lacks it.
            let key = last_key(&problem.loc).unwrap_or_default().to_owned();
            let mapping = problem
                .loc
                .get(..problem.loc.len().saturating_sub(1))
                .unwrap_or(&[]);
            position = spans.value(mapping);
            path = path_of(mapping);
            format!("the key `{key}` is missing")
        }
        "union_tag_not_found" => {
            let key = tag_key(problem);
            format!(
                "the key `{key}` is missing, expected one of {}",
                words(&problem.expected)
            )
        }
        "union_tag_invalid" => {
            let key = tag_key(problem);
            // Of a large mapping the key itself may be missing.
            let tag = || problem.ctx.as_ref().and_then(|ctx| ctx.get("tag"));
            let found = problem.input.get(&key).or_else(tag).cloned().unwrap_or_default();
            let mut at = problem.loc.clone();
            at.push(Loc::Key(key.clone().into()));
            position = spans.value(&at);
            path = path_of(&at);
            format!(
                "found {}, expected one of {}",
                show(&found),
                words(&problem.expected)
            )
        }
        "enum" | "literal_error" => {
            format!(
                "found {}, expected {}",
                show(&problem.input),
                one_of(&problem.expected)
            )
        }
        "value_error" => problem.text().to_owned(),
        kind => format!(
            "found {}, expected {}",
            show(&problem.input),
            expected(kind, problem)
        ),
    };
    ConfigError {
        file: file.to_owned(),
        position,
        path,
        message,
        suggestion,
    }
}

fn last_key(loc: &[Loc]) -> Option<&str> {
    match loc.last() {
        Some(Loc::Key(key)) => Some(key),
        _ => None,
    }
}

fn tag_key(problem: &Problem) -> String {
    let key = problem
        .ctx
        .as_ref()
        .and_then(|ctx| ctx.get("discriminator"))
        .and_then(Value::as_str)
        .unwrap_or("'type'");
    key.trim_matches('\'').to_owned()
}

/// What a kind of problem wants instead.
fn expected(kind: &str, problem: &Problem) -> String {
    match kind {
        "string_type" => "a text".to_owned(),
        "list_type" => "a list".to_owned(),
        "dict_type" | "model_attributes_type" => "a mapping".to_owned(),
        "bool_type" | "bool_parsing" => "`true` or `false`".to_owned(),
        "int_type" | "int_parsing" | "int_from_float" | "int_parsing_size" => "a whole number".to_owned(),
        "float_type" | "float_parsing" => "a number".to_owned(),
        "finite_number" => "a finite number".to_owned(),
        _ => {
            let text = problem.text();
            text.strip_prefix("Input should be ")
                .map(|bound| format!("a value {bound}"))
                .or_else(|| {
                    text.strip_prefix("String should ")
                        .map(|rest| format!("a text that should {rest}"))
                })
                .or_else(|| {
                    text.strip_prefix("List should ")
                        .map(|rest| format!("a list that should {rest}"))
                })
                .unwrap_or_else(|| text.to_owned())
        }
    }
}

/// A found value, short.
fn show(value: &Value) -> String {
    match value {
        Value::Null => "nothing".to_owned(),
        Value::Array(items) if items.is_empty() => "an empty list".to_owned(),
        Value::Array(_) => "a list".to_owned(),
        Value::Object(_) => "a mapping".to_owned(),
        Value::String(text) => {
            let short: String = text.chars().take(40).collect();
            let more = if short.len() < text.len() { "…" } else { "" };
            format!("`{}{more}`", short.replace('\n', "\\n"))
        }
        other => format!("`{other}`"),
    }
}

fn words(expected: &[String]) -> String {
    let quoted: Vec<String> = expected.iter().map(|word| format!("`{word}`")).collect();
    quoted.join(", ")
}

fn one_of(expected: &[String]) -> String {
    match expected {
        [only] => format!("`{only}`"),
        _ => format!("one of {}", words(expected)),
    }
}
