//! Environment variables of a configuration, with values or without.

use std::collections::BTreeSet;
use std::sync::OnceLock;

use indexmap::IndexMap;
use regex::Regex;
use serde::ser::{Serialize, SerializeMap, Serializer};
use serde_json::Value;

use crate::decode::{Cx, Decode, constraint, deserialize};
use crate::schema::{Schema, Schemas};

/// What a list item must look like.
const ITEM: &str = "^([a-zA-Z_][a-zA-Z0-9_]*)(=.*$|$)";

/// Variables in the order in which they were given.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Env(pub IndexMap<String, EnvValue>);

/// The value of a variable.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EnvValue {
    /// The value itself.
    Text(String),
    /// Given without a value: to be taken from the client's environment before it is sent to the server.
    FromClient,
}

impl Env {
    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// All variables with their values.
    ///
    /// # Errors
    /// Variables that still are to be taken from the client's environment.
    pub fn to_map(&self) -> Result<IndexMap<String, String>, String> {
        let mut map = IndexMap::with_capacity(self.0.len());
        let mut unresolved = BTreeSet::new();
        for (name, value) in &self.0 {
            match value {
                EnvValue::Text(text) => {
                    map.insert(name.clone(), text.clone());
                }
                EnvValue::FromClient => {
                    unresolved.insert(name.as_str());
                }
            }
        }
        if unresolved.is_empty() {
            return Ok(map);
        }
        let names: Vec<&str> = unresolved.into_iter().collect();
        Err(format!("not all variables are resolved: {}", names.join(", ")))
    }

    /// Names that still are to be taken from the client's environment.
    pub fn unresolved(&self) -> impl Iterator<Item = &str> {
        self.0
            .iter()
            .filter(|(_, value)| **value == EnvValue::FromClient)
            .map(|(name, _)| name.as_str())
    }

    /// Sets a variable.
    pub fn set(&mut self, name: impl Into<String>, value: impl Into<String>) {
        self.0.insert(name.into(), EnvValue::Text(value.into()));
    }

    /// Takes over all variables of `other`.
    pub fn extend(&mut self, other: &Self) {
        self.0
            .extend(other.0.iter().map(|(name, value)| (name.clone(), value.clone())));
    }

    /// From `NAME=value` and `NAME` items.
    ///
    /// # Errors
    /// A name given twice.
    pub fn from_items(items: &[String]) -> Result<Self, String> {
        let mut env = IndexMap::with_capacity(items.len());
        for item in items {
            let (name, value) = match item.split_once('=') {
                Some((name, value)) => (name, EnvValue::Text(value.to_owned())),
                None => (item.as_str(), EnvValue::FromClient),
            };
            if env.insert(name.to_owned(), value).is_some() {
                return Err(format!("Duplicate environment variable: {item}"));
            }
        }
        Ok(Self(env))
    }
}

impl FromIterator<(String, String)> for Env {
    fn from_iter<I: IntoIterator<Item = (String, String)>>(pairs: I) -> Self {
        Self(
            pairs
                .into_iter()
                .map(|(name, value)| (name, EnvValue::Text(value)))
                .collect(),
        )
    }
}

/// Whether a text can be an item of the list form: `NAME=value` or `NAME`.
pub fn is_item(text: &str) -> bool {
    item_regex().as_ref().is_some_and(|regex| regex.is_match(text))
}

fn item_regex() -> &'static Option<Regex> {
    pattern().get_or_init(|| Regex::new(ITEM).ok())
}

fn pattern() -> &'static OnceLock<Option<Regex>> {
    static PATTERN: OnceLock<Option<Regex>> = OnceLock::new();
    &PATTERN
}

struct Item(String);

impl Decode for Item {
    fn decode(value: &Value, cx: &mut Cx) -> Option<Self> {
        let text = String::decode(value, cx)?;
        constraint::pattern(&text, pattern(), ITEM, value, cx)?;
        Some(Self(text))
    }
}

impl Decode for EnvValue {
    fn decode(value: &Value, cx: &mut Cx) -> Option<Self> {
        cx.union(&[
            ("str", &|cx: &mut Cx| String::decode(value, cx).map(Self::Text)),
            ("EnvSentinel", &|cx: &mut Cx| {
                cx.object::<Sentinel>(value).map(|_| Self::FromClient)
            }),
        ])
    }
}

#[derive(crate::Decode)]
struct Sentinel {
    #[allow(dead_code)]
    key: String,
}

impl Decode for Env {
    fn decode(value: &Value, cx: &mut Cx) -> Option<Self> {
        enum Form {
            List(Vec<Item>),
            Map(IndexMap<String, EnvValue>),
        }
        let form = cx.union(&[
            ("list[constrained-str]", &|cx: &mut Cx| {
                Vec::decode(value, cx).map(Form::List)
            }),
            ("dict[str,union[str,EnvSentinel]]", &|cx: &mut Cx| {
                IndexMap::decode(value, cx).map(Form::Map)
            }),
        ])?;
        match form {
            Form::Map(map) => Some(Self(map)),
            Form::List(items) => {
                let items: Vec<String> = items.into_iter().map(|item| item.0).collect();
                match Self::from_items(&items) {
                    Ok(env) => Some(env),
                    Err(refusal) => cx.value_error(refusal, value),
                }
            }
        }
    }
}

impl<'de> serde::Deserialize<'de> for Env {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserialize(deserializer)
    }
}

impl Serialize for Env {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.0.len()))?;
        for (name, value) in &self.0 {
            match value {
                EnvValue::Text(text) => map.serialize_entry(name, text)?,
                EnvValue::FromClient => map.serialize_entry(name, &serde_json::json!({"key": name}))?,
            }
        }
        map.end()
    }
}

impl Schema for Env {
    fn schema(schemas: &mut Schemas) -> Value {
        let accepted = serde_json::json!({"anyOf": [
            {"type": "array", "items": {"type": "string", "pattern": ITEM}},
            {"type": "object", "additionalProperties": {"type": ["string", "number"]}},
        ]});
        schemas.either(accepted, serde_json::json!({"type": "object"}))
    }
}
