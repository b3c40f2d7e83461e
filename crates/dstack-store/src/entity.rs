//! How a row of the engine maps to its table: columns in one list, SQL made from it.

use std::any::{TypeId, type_name};
use std::sync::Arc;

use dstack_model::runs::{JobSpec, RunSpec};
use dstack_units::Time;
use dstack_units::id::Id;
use serde::Serialize;
use serde::de::DeserializeOwned;
use sqlx::any::{AnyArguments, AnyRow};
use sqlx::query::Query;
use sqlx::{Any, Row};

use crate::encryption::at_rest;
use crate::{Result, StoreError};

/// A statement with its bound values.
pub type Statement<'q> = Query<'q, Any, AnyArguments>;

/// A type that fits one column. `Raw` is what the database keeps: `i64`, `f64`, `String` or `Vec<u8>`.
pub trait Column: Sized {
    /// What the database keeps.
    type Raw;
    /// For writing.
    fn to_raw(&self) -> Self::Raw;
    /// From reading.
    fn from_raw(raw: Self::Raw) -> Result<Self, Box<dyn std::error::Error + Send + Sync>>;
}

/// A structured value kept as JSON text. Shared, because snapshots are copied often and these are large.
#[derive(Debug, PartialEq)]
pub struct Json<T>(pub Arc<T>);

impl<T> Json<T> {
    /// Wraps a value.
    pub fn new(value: T) -> Self {
        Self(Arc::new(value))
    }
}
impl<T> Clone for Json<T> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}
impl<T> std::ops::Deref for Json<T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.0
    }
}

/// What users put secrets into (environment variables, registry credentials, keys) is encrypted as a whole.
fn is_secret<T: 'static>() -> bool {
    [TypeId::of::<RunSpec>(), TypeId::of::<JobSpec>()].contains(&TypeId::of::<T>())
}

impl<T: Serialize + DeserializeOwned + 'static> Column for Json<T> {
    type Raw = String;
    fn to_raw(&self) -> String {
        // Our own types have string keys and finite numbers, for which serialization cannot fail.
        let text = serde_json::to_string(&*self.0).unwrap_or_else(|error| {
            tracing::error!(%error, r#type = type_name::<T>(), "value cannot be serialized");
            "null".to_owned()
        });
        match is_secret::<T>() {
            true => at_rest::seal(text),
            false => text,
        }
    }
    fn from_raw(raw: String) -> Result<Self, Box<dyn std::error::Error + Send + Sync>> {
        // Also of types that are secret: rows of before the encryption are not.
        if !raw.starts_with("enc:") {
            return Ok(Self::new(serde_json::from_str(&raw)?));
        }
        Ok(Self::new(serde_json::from_str(at_rest::open(&raw)?.expose())?))
    }
}

macro_rules! plain_column {
    ($($type:ty),*) => {$(
        impl Column for $type {
            type Raw = $type;
            fn to_raw(&self) -> $type { self.clone() }
            fn from_raw(raw: $type) -> Result<Self, Box<dyn std::error::Error + Send + Sync>> { Ok(raw) }
        }
    )*};
}
plain_column!(i64, f64, String, Vec<u8>);

impl Column for bool {
    type Raw = i64;
    fn to_raw(&self) -> i64 {
        i64::from(*self)
    }
    fn from_raw(raw: i64) -> Result<Self, Box<dyn std::error::Error + Send + Sync>> {
        Ok(raw != 0)
    }
}

impl Column for Time {
    type Raw = i64;
    fn to_raw(&self) -> i64 {
        self.as_micros()
    }
    fn from_raw(raw: i64) -> Result<Self, Box<dyn std::error::Error + Send + Sync>> {
        Ok(Self::from_micros(raw))
    }
}

impl<Kind> Column for Id<Kind> {
    type Raw = String;
    fn to_raw(&self) -> String {
        self.to_string()
    }
    fn from_raw(raw: String) -> Result<Self, Box<dyn std::error::Error + Send + Sync>> {
        Ok(raw.parse()?)
    }
}

impl<C: Column> Column for Option<C> {
    type Raw = Option<C::Raw>;
    fn to_raw(&self) -> Self::Raw {
        self.as_ref().map(C::to_raw)
    }
    fn from_raw(raw: Self::Raw) -> Result<Self, Box<dyn std::error::Error + Send + Sync>> {
        raw.map(C::from_raw).transpose()
    }
}

/// Lets string enums be columns: kept as the text that JSON shows.
#[macro_export]
macro_rules! text_columns {
    ($($type:ty),* $(,)?) => {$(
        impl $crate::Column for $type {
            type Raw = String;
            fn to_raw(&self) -> String {
                match serde_json::to_value(self) {
                    Ok(serde_json::Value::String(text)) => text,
                    _ => String::new(),
                }
            }
            fn from_raw(raw: String) -> Result<Self, Box<dyn std::error::Error + Send + Sync>> {
                Ok(serde_json::from_value(serde_json::Value::String(raw))?)
            }
        }
    )*};
}

/// A row of a table with a key, a version and columns.
pub trait Entity: Clone + Send + Sync + std::fmt::Debug + 'static {
    /// Type of the key.
    type Key: Column<Raw = String> + Copy + Ord + std::fmt::Debug + std::fmt::Display + Send + Sync;
    /// Name of the table.
    const TABLE: &'static str;
    /// All columns: first the key, last `version`.
    const COLUMNS: &'static [&'static str];
    /// The key.
    fn key(&self) -> Self::Key;
    /// The version read, 0 for a row not stored yet.
    fn version(&self) -> i64;
    /// Sets the version after a write.
    fn set_version(&mut self, version: i64);
    /// Binds all columns but `version`, in order.
    fn bind<'q>(&self, statement: Statement<'q>) -> Statement<'q>;
    /// Reads a row that selects `COLUMNS` in order.
    fn read(row: &AnyRow) -> Result<Self>;
}

/// `SELECT` of all columns, up to and including `FROM table t`.
pub(crate) fn select_sql<E: Entity>() -> String {
    format!("SELECT {} FROM {} t", columns::<E>(), E::TABLE)
}

/// `SELECT` of all columns and of more after them, with joins.
pub(crate) fn select_with<E: Entity>(more: &str, joins: &str) -> String {
    format!("SELECT {}, {more} FROM {} t {joins}", columns::<E>(), E::TABLE)
}

fn columns<E: Entity>() -> String {
    let columns: Vec<String> = E::COLUMNS.iter().map(|column| format!("t.{column}")).collect();
    columns.join(", ")
}

pub(crate) fn insert_sql<E: Entity>() -> String {
    let places: Vec<String> = (1..E::COLUMNS.len()).map(|n| format!("${n}")).collect();
    format!(
        "INSERT INTO {} ({}) VALUES ({}, 1)",
        E::TABLE,
        E::COLUMNS.join(", "),
        places.join(", ")
    )
}

/// As [`insert_sql`], with the lease in the two places after the columns.
pub(crate) fn insert_leased_sql<E: Entity>() -> String {
    let count = E::COLUMNS.len();
    let places: Vec<String> = (1..count).map(|n| format!("${n}")).collect();
    format!(
        "INSERT INTO {} ({}, lease_owner, lease_expires_at) VALUES ({}, 1, ${count}, ${})",
        E::TABLE,
        E::COLUMNS.join(", "),
        places.join(", "),
        count + 1
    )
}

/// Updates every column where the version is still the one read; the key is `$1`, the version the last place.
///
/// Columns that never change are bound and not set: a database rewrites the index entries of every column that is.
pub(crate) fn update_sql<E: Entity>() -> String {
    const FIXED: [&str; 9] = [
        "project_id",
        "user_id",
        "run_id",
        "run_name",
        "job_num",
        "replica_num",
        "submission_num",
        "submitted_at",
        "created_at",
    ];
    let last = E::COLUMNS.len();
    let sets: Vec<String> = E::COLUMNS
        .iter()
        .enumerate()
        .skip(1)
        .take(last.saturating_sub(2))
        .filter(|(_, column)| !FIXED.contains(column))
        .map(|(n, column)| format!("{column} = ${}", n + 1))
        .collect();
    let key = E::COLUMNS.first().copied().unwrap_or_default();
    format!(
        "UPDATE {} SET {}, version = version + 1 WHERE {key} = $1 AND version = ${last}",
        E::TABLE,
        sets.join(", ")
    )
}

/// Reads one column by position.
pub(crate) fn read_column<C: Column>(
    row: &AnyRow,
    index: usize,
    entity: &'static str,
    column: &'static str,
) -> Result<C>
where
    C::Raw: for<'r> sqlx::Decode<'r, Any> + sqlx::Type<Any>,
{
    let raw: C::Raw = row.try_get(index)?;
    C::from_raw(raw).map_err(|source| StoreError::Corrupt {
        entity,
        column,
        source,
    })
}

/// Declares a row: its struct, table, key and columns.
macro_rules! entity {
    (
        $(#[$meta:meta])*
        $name:ident in $table:literal {
            $(#[$key_meta:meta])* key $key:ident: $key_type:ty,
            $( $(#[$field_meta:meta])* $field:ident: $type:ty, )*
        }
    ) => {
        $(#[$meta])*
        #[derive(Debug, Clone, PartialEq)]
        pub struct $name {
            $(#[$key_meta])* pub $key: $key_type,
            $( $(#[$field_meta])* pub $field: $type, )*
            /// Changes with every update; 0 = not stored yet.
            pub version: i64,
        }

        impl $crate::Entity for $name {
            type Key = $key_type;
            const TABLE: &'static str = $table;
            const COLUMNS: &'static [&'static str] = &[stringify!($key), $(stringify!($field),)* "version"];
            fn key(&self) -> $key_type { self.$key }
            fn version(&self) -> i64 { self.version }
            fn set_version(&mut self, version: i64) { self.version = version; }
            fn bind<'q>(&self, statement: $crate::entity::Statement<'q>) -> $crate::entity::Statement<'q> {
                statement.bind($crate::Column::to_raw(&self.$key))
                    $( .bind($crate::Column::to_raw(&self.$field)) )*
            }
            fn read(row: &sqlx::any::AnyRow) -> $crate::Result<Self> {
                let mut index = 0..;
                let mut next = || index.next().unwrap_or_default();
                Ok(Self {
                    $key: $crate::entity::read_column(row, next(), $table, stringify!($key))?,
                    $( $field: $crate::entity::read_column(row, next(), $table, stringify!($field))?, )*
                    version: $crate::entity::read_column(row, next(), $table, "version")?,
                })
            }
        }
    };
}
pub(crate) use entity;
