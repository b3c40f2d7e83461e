//! A value on its way into a statement that is put together at run time.

use dstack_units::Time;
use dstack_units::id::Id;
use sqlx::any::{Any, AnyArguments};
use sqlx::query::Query;
use uuid::Uuid;

/// A value to be bound.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Value {
    /// A text, an id, an enum or JSON.
    Text(String),
    /// A number, a flag, or a time in microseconds.
    Number(i64),
}

impl Value {
    /// The value as JSON.
    pub(crate) fn to_json(&self) -> serde_json::Value {
        match self {
            Self::Text(text) => text.as_str().into(),
            Self::Number(number) => (*number).into(),
        }
    }

    /// Binds it to the next place.
    pub(crate) fn bind(self, query: Query<'_, Any, AnyArguments>) -> Query<'_, Any, AnyArguments> {
        match self {
            Self::Text(text) => query.bind(text),
            Self::Number(number) => query.bind(number),
        }
    }
}

impl From<String> for Value {
    fn from(text: String) -> Self {
        Self::Text(text)
    }
}

impl From<&str> for Value {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

impl From<Uuid> for Value {
    fn from(id: Uuid) -> Self {
        Self::Text(id.to_string())
    }
}

impl<Kind> From<Id<Kind>> for Value {
    fn from(id: Id<Kind>) -> Self {
        Self::Text(id.to_string())
    }
}

impl From<i64> for Value {
    fn from(number: i64) -> Self {
        Self::Number(number)
    }
}

impl From<bool> for Value {
    fn from(flag: bool) -> Self {
        Self::Number(flag.into())
    }
}

impl From<Time> for Value {
    fn from(time: Time) -> Self {
        Self::Number(time.as_micros())
    }
}
