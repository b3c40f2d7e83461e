//! How a row of the engine maps to its table: columns in one list, SQL made from it.

use std::any::type_name;
use std::sync::Arc;

use dstack_units::Time;
use dstack_units::id::Id;
use serde::Serialize;
use serde::de::DeserializeOwned;
use sqlx::any::{AnyArguments, AnyRow};
use sqlx::query::Query;
use sqlx::{Any, Row};

use crate::encryption::RowKeys;
use crate::float8::Float8;
use crate::{Result, StoreError};

/// A statement with its bound values.
pub type Statement<'q> = Query<'q, Any, AnyArguments>;

/// A type that fits one column. `Raw` is what the database keeps: `i64`, [`Float8`], `String` or `Vec<u8>`.
pub trait Column: Sized {
    /// What the database keeps.
    type Raw;
    /// Returns the value as it is stored.
    fn to_raw(&self) -> Self::Raw;
    /// Reads a stored value; fails where it is none of this type.
    fn from_raw(raw: Self::Raw) -> Result<Self, ColumnError>;
    /// Whether it surely is what was read.
    fn is_as_read(&self) -> bool {
        false
    }
}

/// Why a stored value cannot be read.
pub(crate) type ColumnError = Box<dyn std::error::Error + Send + Sync>;

/// A column of an [`Entity`]: any [`Column`], or one that is sealed.
pub(crate) trait RowColumn: Sized {
    /// What the database keeps.
    type Stored;
    /// Whether it is encrypted.
    const SEALED: bool = false;
    /// Returns the value as it is stored, encrypted where the column is sealed.
    fn to_stored(&self, keys: &RowKeys) -> Self::Stored;
    /// Reads a stored value; fails where it is none of this type, or none of the keys fits.
    fn from_stored(stored: Self::Stored, keys: &RowKeys) -> Result<Self, ColumnError>;
    /// Whether it surely is what was read.
    fn is_unchanged(&self) -> bool {
        false
    }
}

impl<C: Column> RowColumn for C {
    type Stored = C::Raw;
    fn to_stored(&self, _keys: &RowKeys) -> C::Raw {
        self.to_raw()
    }
    fn from_stored(stored: C::Raw, _keys: &RowKeys) -> Result<Self, ColumnError> {
        C::from_raw(stored)
    }
    fn is_unchanged(&self) -> bool {
        self.is_as_read()
    }
}

/// A structured value kept as JSON text. Shared, because snapshots are copied often and these are large.
pub struct Json<T> {
    value: Arc<T>,
    as_read: bool,
}

impl<T: std::fmt::Debug> std::fmt::Debug for Json<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Json").field(&self.value).finish()
    }
}

impl<T> Json<T> {
    /// Wraps a value.
    pub fn new(value: T) -> Self {
        Self {
            value: Arc::new(value),
            as_read: false,
        }
    }
}
impl<T: PartialEq> PartialEq for Json<T> {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.value, &other.value) || self.value == other.value
    }
}
impl<T> Clone for Json<T> {
    fn clone(&self) -> Self {
        Self {
            value: Arc::clone(&self.value),
            as_read: self.as_read,
        }
    }
}
impl<T> std::ops::Deref for Json<T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.value
    }
}

impl<T: Serialize + DeserializeOwned> Column for Json<T> {
    type Raw = String;
    fn to_raw(&self) -> String {
        // Our own types have string keys and finite numbers, for which serialization cannot fail.
        serde_json::to_string(&*self.value).unwrap_or_else(|error| {
            tracing::error!(%error, r#type = type_name::<T>(), "value cannot be serialized");
            "null".to_owned()
        })
    }
    fn from_raw(raw: String) -> Result<Self, Box<dyn std::error::Error + Send + Sync>> {
        Ok(Self {
            value: Arc::new(serde_json::from_str(&raw)?),
            as_read: true,
        })
    }
    fn is_as_read(&self) -> bool {
        self.as_read
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
plain_column!(i64, String, Vec<u8>);

impl Column for f64 {
    type Raw = Float8;
    fn to_raw(&self) -> Float8 {
        Float8(*self)
    }
    fn from_raw(Float8(raw): Float8) -> Result<Self, Box<dyn std::error::Error + Send + Sync>> {
        Ok(raw)
    }
}

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
    /// The columns that are encrypted as a whole.
    fn sealed_columns() -> Vec<&'static str>;
    /// Returns the value of the first column.
    fn key(&self) -> Self::Key;
    /// The version read, 0 for a row not stored yet.
    fn version(&self) -> i64;
    /// Sets the version after a write.
    fn set_version(&mut self, version: i64);
    /// Whether the column surely is what was read.
    fn is_as_read(&self, column: &str) -> bool;
    /// Binds, in order, the columns but `version` for which `wanted` holds.
    fn bind<'q>(
        &self,
        statement: Statement<'q>,
        keys: &RowKeys,
        wanted: &dyn Fn(&str) -> bool,
    ) -> Statement<'q>;
    /// Reads a row that selects `COLUMNS` in order.
    fn read(row: &AnyRow, keys: &RowKeys) -> Result<Self>;
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

/// Columns that never change after a row is made: updates do not touch them, as a database writes the index entries of
/// every column that an update names.
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

/// Large columns that hardly ever change: updates write them only where they did.
const LARGE: [&str; 2] = ["run_spec", "job_spec"];

/// Which columns an update writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Update {
    /// All that may change.
    All,
    /// Not the [`LARGE`] ones.
    Small,
}

impl Update {
    /// What an update of this row must write.
    pub(crate) fn of<E: Entity>(row: &E) -> Self {
        let same = |column: &&str| !E::COLUMNS.contains(column) || row.is_as_read(column);
        if LARGE.iter().all(same) {
            Self::Small
        } else {
            Self::All
        }
    }

    /// Whether it writes this column: not the key, the version (which counts by itself), nor one that never changes.
    pub(crate) fn writes<E: Entity>(self, column: &str) -> bool {
        column != "version"
            && E::COLUMNS.first() != Some(&column)
            && !FIXED.contains(&column)
            && (self == Self::All || !LARGE.contains(&column))
    }
}

/// Inserts so many rows; their places follow `before` others. A row's are its columns but `version`, and its driver.
pub(crate) fn insert_sql<E: Entity>(before: usize, rows: usize, leased: bool) -> String {
    let width = insert_width::<E>(leased);
    let row = |row: usize| {
        let first = before + row * width;
        let mut places: Vec<String> = (1..=width).map(|n| format!("${}", first + n)).collect();
        places.insert(E::COLUMNS.len().saturating_sub(1), "1".to_owned());
        format!("({})", places.join(", "))
    };
    format!(
        "INSERT INTO {} ({}{}) VALUES {}",
        E::TABLE,
        E::COLUMNS.join(", "),
        if leased { ", lease_owner" } else { "" },
        (0..rows).map(row).collect::<Vec<_>>().join(", ")
    )
}

/// Places of a row in [`insert_sql`].
pub(crate) const fn insert_width<E: Entity>(leased: bool) -> usize {
    E::COLUMNS.len().saturating_sub(1) + leased as usize
}

/// Updates so many rows where the version is still the one read. The places of each are the key, the columns that the
/// update writes, and the version.
pub(crate) fn update_sql<E: Entity>(rows: usize, update: Update) -> String {
    let columns: Vec<&str> = E::COLUMNS
        .iter()
        .copied()
        .filter(|column| update.writes::<E>(column))
        .collect();
    let key = E::COLUMNS.first().copied().unwrap_or_default();
    let width = columns.len() + 2;
    let value = |n: usize| {
        if rows == 1 {
            format!("${n}")
        } else {
            format!("v.column{n}")
        }
    };
    let sets: Vec<String> = columns
        .iter()
        .enumerate()
        .map(|(n, column)| format!("{column} = {}", value(n + 2)))
        .collect();
    let from = if rows == 1 {
        String::new()
    } else {
        format!(" FROM (VALUES {}) AS v", places(0, rows, width))
    };
    let table = E::TABLE;
    format!(
        "UPDATE {table} SET {}, version = {table}.version + 1{from} WHERE {table}.{key} = {} AND {table}.version = {}",
        sets.join(", "),
        value(1),
        value(width)
    )
}

/// `($1, $2), ($3, $4)` after `before` other places.
pub(crate) fn places(before: usize, rows: usize, columns: usize) -> String {
    let row = |row: usize| {
        let places: Vec<String> = (1..=columns)
            .map(|column| format!("${}", before + row * columns + column))
            .collect();
        format!("({})", places.join(", "))
    };
    (0..rows).map(row).collect::<Vec<_>>().join(", ")
}

/// The text for SQLite, whose driver looks for each numbered place from the first on, which makes hundreds of them slow:
/// places in order need no numbers. A text whose places are in another order stays as it is.
pub(crate) fn without_numbers(text: String) -> String {
    let mut parts = text.split('$');
    let mut plain = parts.next().unwrap_or_default().to_owned();
    for (number, part) in (1_usize..).zip(parts) {
        let after = part.trim_start_matches(|c: char| c.is_ascii_digit());
        let digits = part.strip_suffix(after).unwrap_or_default();
        if digits.parse() != Ok(number) {
            return text;
        }
        plain.push('?');
        plain.push_str(after);
    }
    plain
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

/// As [`read_column`], of an entity.
pub(crate) fn read_field<C: RowColumn>(
    row: &AnyRow,
    keys: &RowKeys,
    index: usize,
    entity: &'static str,
    column: &'static str,
) -> Result<C>
where
    C::Stored: for<'r> sqlx::Decode<'r, Any> + sqlx::Type<Any>,
{
    let stored: C::Stored = row.try_get(index)?;
    C::from_stored(stored, keys).map_err(|source| StoreError::Corrupt {
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
            $( $(#[$field_meta:meta])* $visibility:vis $field:ident: $type:ty, )*
        }
    ) => {
        $(#[$meta])*
        #[derive(Debug, Clone, PartialEq)]
        pub struct $name {
            $(#[$key_meta])* pub $key: $key_type,
            $( $(#[$field_meta])* $visibility $field: $type, )*
            /// Changes with every update; 0 = not stored yet.
            pub version: i64,
        }

        impl $crate::Entity for $name {
            type Key = $key_type;
            const TABLE: &'static str = $table;
            const COLUMNS: &'static [&'static str] = &[stringify!($key), $(stringify!($field),)* "version"];
            fn sealed_columns() -> Vec<&'static str> {
                let mut sealed = Vec::new();
                $(
                    if <$type as $crate::entity::RowColumn>::SEALED {
                        sealed.push(stringify!($field));
                    }
                )*
                sealed
            }
            fn key(&self) -> $key_type { self.$key }
            fn version(&self) -> i64 { self.version }
            fn set_version(&mut self, version: i64) { self.version = version; }
            fn is_as_read(&self, column: &str) -> bool {
                $(
                    if column == stringify!($field) {
                        return $crate::entity::RowColumn::is_unchanged(&self.$field);
                    }
                )*
                false
            }
            fn bind<'q>(
                &self,
                mut statement: $crate::entity::Statement<'q>,
                keys: &$crate::encryption::RowKeys,
                wanted: &dyn Fn(&str) -> bool,
            ) -> $crate::entity::Statement<'q> {
                if wanted(stringify!($key)) {
                    statement = statement.bind($crate::Column::to_raw(&self.$key));
                }
                $(
                    if wanted(stringify!($field)) {
                        statement = statement.bind($crate::entity::RowColumn::to_stored(&self.$field, keys));
                    }
                )*
                statement
            }
            fn read(row: &sqlx::any::AnyRow, keys: &$crate::encryption::RowKeys) -> $crate::Result<Self> {
                let mut index = 0..;
                let mut next = || index.next().unwrap_or_default();
                Ok(Self {
                    $key: $crate::entity::read_column(row, next(), $table, stringify!($key))?,
                    $( $field: $crate::entity::read_field(row, keys, next(), $table, stringify!($field))?, )*
                    version: $crate::entity::read_column(row, next(), $table, "version")?,
                })
            }
        }
    };
}
pub(crate) use entity;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rows::{OperationRow, RunRow};

    #[test]
    fn statements_for_one_row_and_for_several() {
        let one = update_sql::<OperationRow>(1, Update::Small);
        assert!(
            one.starts_with("UPDATE operations SET key = $2, kind = $3, "),
            "{one}"
        );
        assert!(
            one.ends_with(
                "version = operations.version + 1 WHERE operations.id = $1 AND operations.version = $10"
            ),
            "{one}"
        );
        let two = update_sql::<OperationRow>(2, Update::Small);
        assert!(
            two.contains("key = v.column2") && two.contains("$20)) AS v"),
            "{two}"
        );
        assert!(!two.contains("created_at"), "never changes: {two}");
        let run = |update| update_sql::<RunRow>(1, update).contains("run_spec");
        assert!(run(Update::All) && !run(Update::Small));
        let insert = insert_sql::<OperationRow>(0, 2, true);
        assert!(insert.contains("$10, 1, $11), ($12"), "{insert}");
        let after_others = insert_sql::<OperationRow>(5, 1, true);
        assert!(
            after_others.contains("($6, ") && after_others.contains("$15, 1, $16)"),
            "{after_others}"
        );
    }

    #[test]
    fn places_in_order_need_no_numbers() {
        let plain = |text: &str| without_numbers(text.to_owned());
        assert_eq!(
            plain("VALUES ($1, 1, $2), ($3, 1, $4)"),
            "VALUES (?, 1, ?), (?, 1, ?)"
        );
        assert_eq!(plain("SELECT 1"), "SELECT 1");
        for other in [
            "a = $2 WHERE b = $1",
            "a = $1 OR b = $1",
            "a = $1 OR b = $3",
            "'$'",
            "$x",
        ] {
            assert_eq!(plain(other), other);
        }
        let many = without_numbers(insert_sql::<RunRow>(0, 64, true));
        assert_eq!(many.matches('?').count(), 64 * insert_width::<RunRow>(true));
        let update = without_numbers(update_sql::<RunRow>(8, Update::All));
        assert!(update.contains('?') && !update.contains('$'), "{update}");
    }
}
