//! Reading a database of dstack 0.22.5.
//!
//! Every value is read as text: the column types of that schema (`DATETIME`, `UUID`, `BOOLEAN`) are not among those that
//! [`sqlx::Any`] carries, and SQLite and PostgreSQL write them differently.

use std::collections::HashMap;

use dstack_units::Time;
use serde::Serialize;
use serde::de::DeserializeOwned;
use sqlx::any::AnyPoolOptions;
use sqlx::{AnyPool, AssertSqlSafe, Row};

use crate::database::normalize_url;
use crate::encryption::RowKeys;
use crate::entity::RowColumn;
use crate::{Column, Dialect, Json, Result, Sealed, StoreError, Value};

/// The last migration of 0.22.5.
const REVISION: &str = "40f19bea9d2a";

/// An open database of dstack 0.22.5. Nothing is written to it.
#[derive(Debug)]
pub struct LegacyDatabase {
    pool: AnyPool,
}

/// A row: texts by column.
#[derive(Debug, Clone)]
pub struct LegacyRow(HashMap<&'static str, Option<String>>);

impl LegacyRow {
    /// A text; empty when it is null.
    pub fn text(&self, column: &'static str) -> &str {
        self.get(column).unwrap_or_default()
    }

    /// A text that may be null.
    pub fn get(&self, column: &'static str) -> Option<&str> {
        self.0.get(column)?.as_deref()
    }

    /// A value that is written as a text: an id, a number, an enum by its value.
    pub fn parse<T: std::str::FromStr>(&self, column: &'static str) -> Option<T> {
        self.get(column)?.parse().ok()
    }

    /// A member of an enum, which is stored by its name: the value in lower case.
    pub fn member<T: std::str::FromStr>(&self, column: &'static str) -> Option<T> {
        self.get(column)?.to_lowercase().parse().ok()
    }

    /// Returns whether the flag is set; null is not.
    pub fn flag(&self, column: &'static str) -> bool {
        matches!(self.get(column), Some("1" | "true" | "t"))
    }

    /// A time in UTC.
    pub fn time(&self, column: &'static str) -> Option<Time> {
        let text = self.get(column)?.replacen(' ', "T", 1);
        serde_json::from_value(format!("{text}Z").into()).ok()
    }

    /// Structured data; unknown fields are dropped.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn json<T: DeserializeOwned>(&self, column: &'static str) -> Result<Option<T>, serde_json::Error> {
        match self.get(column) {
            None | Some("" | "null") => Ok(None),
            Some(text) => serde_json::from_str(text).map(Some),
        }
    }
}

impl LegacyDatabase {
    /// Opens it (`sqlite:///path`, `postgresql://…`).
    ///
    /// # Errors
    /// It is not there, or not a database of 0.22.5.
    pub async fn open(url: &str) -> Result<Self> {
        sqlx::any::install_default_drivers();
        let (dialect, url) = normalize_url(url)?;
        let url = match dialect {
            Dialect::Sqlite => url.replace("?mode=rwc", "?mode=ro"),
            Dialect::Postgres => url,
        };
        let options = AnyPoolOptions::new().max_connections(1);
        let pool = options.connect(&url).await.map_err(|source| StoreError::Url {
            reason: format!("{source}"),
        })?;
        let found = sqlx::query("SELECT version_num FROM alembic_version")
            .fetch_optional(&pool)
            .await;
        let revision: Option<String> = match found {
            Ok(Some(row)) => row.try_get(0).ok(),
            _ => None,
        };
        match revision.as_deref() {
            Some(REVISION) => Ok(Self { pool }),
            Some(other) => Err(StoreError::Url {
                reason: format!(
                    "the database has the schema {other}, not that of dstack 0.22.5 ({REVISION}): start dstack 0.22.5 on it once"
                ),
            }),
            None => Err(StoreError::Url {
                reason: "it is no database of dstack 0.22.5".to_owned(),
            }),
        }
    }

    /// All rows of a table, the oldest first where `order` says so.
    ///
    /// # Errors
    /// The database refuses.
    pub async fn rows(
        &self,
        table: &'static str,
        columns: &[&'static str],
        order: &'static str,
    ) -> Result<Vec<LegacyRow>> {
        self.rows_where(table, "1 = 1", columns, order).await
    }

    /// As [`Self::rows`], those for which the condition holds.
    ///
    /// # Errors
    /// The database refuses.
    pub async fn rows_where(
        &self,
        table: &'static str,
        condition: &'static str,
        columns: &[&'static str],
        order: &'static str,
    ) -> Result<Vec<LegacyRow>> {
        let list: Vec<String> = columns
            .iter()
            .map(|column| format!("CAST({column} AS TEXT)"))
            .collect();
        let list = list.join(", ");
        let sql = format!("SELECT {list} FROM {table} WHERE {condition} ORDER BY {order}");
        let rows = sqlx::query(AssertSqlSafe(sql)).fetch_all(&self.pool).await?;
        let read = |row: &sqlx::any::AnyRow| {
            let mut values = HashMap::with_capacity(columns.len());
            for (place, column) in columns.iter().enumerate() {
                values.insert(*column, row.try_get(place)?);
            }
            Ok(LegacyRow(values))
        };
        rows.iter().map(read).collect()
    }
}

/// A row to be written into our tables, unless it is there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewRow {
    /// The table that it is written into.
    pub table: &'static str,
    /// The columns that tell whether it is there.
    pub key: &'static str,
    /// Its values; columns that are not there are null or have their default.
    pub values: Vec<(&'static str, Value)>,
}

impl NewRow {
    /// Without values; `key` names the columns of its primary key.
    pub const fn new(table: &'static str, key: &'static str) -> Self {
        Self {
            table,
            key,
            values: Vec::new(),
        }
    }

    /// With a value.
    #[must_use]
    pub fn with(mut self, column: &'static str, value: impl Into<Value>) -> Self {
        self.values.push((column, value.into()));
        self
    }

    /// With a value, if there is one.
    #[must_use]
    pub fn maybe(self, column: &'static str, value: Option<impl Into<Value>>) -> Self {
        match value {
            Some(value) => self.with(column, value),
            None => self,
        }
    }

    /// Writes it; `false`: it was there.
    ///
    /// # Errors
    /// The database refuses, for instance because another row has its name.
    pub async fn insert(self, tx: &mut crate::Tx) -> Result<bool> {
        let columns: Vec<&str> = self.values.iter().map(|(column, _)| *column).collect();
        let places: Vec<String> = (1..=columns.len()).map(|place| format!("${place}")).collect();
        let sql = format!(
            "INSERT INTO {} ({}) VALUES ({}) ON CONFLICT ({}) DO NOTHING",
            self.table,
            columns.join(", "),
            places.join(", "),
            self.key
        );
        let mut statement = sqlx::query(AssertSqlSafe(sql));
        for (_, value) in self.values {
            statement = value.bind(statement);
        }
        Ok(statement.execute(tx).await?.rows_affected() > 0)
    }
}

/// JSON as a column of the engine keeps it.
pub fn column<T: Serialize + DeserializeOwned>(value: T) -> String {
    Json::new(value).to_raw()
}

/// As [`column`], of a column that is sealed.
pub fn sealed_column<T: Serialize + DeserializeOwned>(value: T, keys: &RowKeys) -> String {
    Sealed::new(value).to_stored(keys)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_databases_write_values_in_their_way() {
        let row = |value: &str| LegacyRow(HashMap::from([("x", Some(value.to_owned()))]));
        let time = row("2026-11-21 17:16:44.004168").time("x").unwrap();
        assert_eq!(time.as_micros() % 1_000_000, 4168);
        assert_eq!(
            row("2026-11-21 17:16:44").time("x").unwrap().as_micros() % 1_000_000,
            0
        );
        assert!(
            row("1").flag("x") && row("true").flag("x") && !row("0").flag("x") && !row("false").flag("x")
        );
        let id: uuid::Uuid = row("c056de4516ab4636ba41404bb48c5cfd").parse("x").unwrap();
        assert_eq!(Some(id), row("c056de45-16ab-4636-ba41-404bb48c5cfd").parse("x"));
    }
}
