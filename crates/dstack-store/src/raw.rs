//! Statements in SQL: for tests alone, which bring rows into states that nothing else makes, and look at what no query
//! shows. `clippy.toml` keeps everybody else away.

use sqlx::any::AnyRow;
use sqlx::{AnyConnection, AssertSqlSafe, Connection, Row as _};

use crate::database::normalize_url;
use crate::{Database, Result, Tx};

/// A row as texts; `None` is null.
pub type TextRow = Vec<Option<String>>;

/// Runs a statement; returns how many rows it changed.
///
/// # Errors
/// The database refuses.
pub async fn execute(database: &Database, statement: &str) -> Result<u64> {
    let query = sqlx::query(AssertSqlSafe(statement.to_owned()));
    Ok(query.execute(database.pool()).await?.rows_affected())
}

/// As [`execute`], within a transaction.
///
/// # Errors
/// The database refuses.
pub async fn execute_in(tx: &mut Tx, statement: &str) -> Result<u64> {
    let query = sqlx::query(AssertSqlSafe(statement.to_owned()));
    Ok(query.execute(tx).await?.rows_affected())
}

/// The rows that a statement gives; its columns are texts or whole numbers.
///
/// # Errors
/// The database refuses, or a column is of another type.
pub async fn fetch(database: &Database, statement: &str) -> Result<Vec<TextRow>> {
    let query = sqlx::query(AssertSqlSafe(statement.to_owned()));
    query
        .fetch_all(database.pool())
        .await?
        .iter()
        .map(texts)
        .collect()
}

/// As [`fetch`], within a transaction.
///
/// # Errors
/// The database refuses, or a column is of another type.
pub async fn fetch_in(tx: &mut Tx, statement: &str) -> Result<Vec<TextRow>> {
    let query = sqlx::query(AssertSqlSafe(statement.to_owned()));
    query.fetch_all(tx).await?.iter().map(texts).collect()
}

/// Runs any number of statements on the database of this URL, which need not be one of ours.
///
/// # Errors
/// It cannot be opened, or refuses.
pub async fn run_script(url: &str, script: &str) -> Result<()> {
    sqlx::any::install_default_drivers();
    let (_, url) = normalize_url(url)?;
    let mut connection = AnyConnection::connect(&url).await?;
    let script = sqlx::raw_sql(AssertSqlSafe(script.to_owned()));
    script.execute(&mut connection).await?;
    connection.close().await?;
    Ok(())
}

fn texts(row: &AnyRow) -> Result<TextRow> {
    (0..row.len()).map(|place| text(row, place)).collect()
}

fn text(row: &AnyRow, place: usize) -> Result<Option<String>> {
    match row.try_get::<Option<String>, _>(place) {
        Ok(text) => Ok(text),
        Err(_) => {
            let number: Option<i64> = row.try_get(place)?;
            Ok(number.map(|number| number.to_string()))
        }
    }
}
