//! A query that grows with its filters.

use std::fmt::Display;

use sqlx::AssertSqlSafe;
use sqlx::Row as _;
use sqlx::any::AnyRow;

use super::{Page, Reads};
use crate::reads::Named;
use crate::sql::filled;
use crate::{Result, Value};

/// Lists that are longer are one value: SQLite takes 32,766 values in a statement, PostgreSQL 65,535.
const LONG_LIST: usize = 1_000;

/// Stand in the text around such a value, for what gives its items: each database names that in its own way.
const TEXTS_FROM: &str = "<texts>";
const TEXTS_TO: &str = "</texts>";

/// The text as the database understands it.
fn in_dialect(sql: String, reads: Reads<'_>) -> String {
    if !sql.contains(TEXTS_FROM) {
        return sql;
    }
    let (from, to) = match reads.pool().connect_options().database_url.scheme() {
        "sqlite" => ("(SELECT value FROM json_each(", "))"),
        _ => ("(SELECT json_array_elements_text(CAST(", " AS json)))"),
    };
    sql.replace(TEXTS_FROM, from).replace(TEXTS_TO, to)
}

/// SQL text with its values. Only fixed texts are ever pushed; whatever comes from a request is bound.
#[derive(Debug, Clone)]
pub(crate) struct Select {
    sql: String,
    values: Vec<Value>,
    conditions: usize,
}

impl Select {
    /// Starts with the text up to before `WHERE`.
    pub(crate) fn new(sql: impl Into<String>) -> Self {
        Self {
            sql: sql.into(),
            values: Vec::new(),
            conditions: 0,
        }
    }

    /// Binds a value and returns its placeholder.
    pub(crate) fn bind(&mut self, value: impl Into<Value>) -> String {
        self.values.push(value.into());
        format!("${}", self.values.len())
    }

    /// Binds several and returns `($1, $2, …)`; no values give a list that nothing is in. Many texts are bound as one value.
    pub(crate) fn bind_list<V: Into<Value>>(&mut self, values: impl IntoIterator<Item = V>) -> String {
        let values: Vec<Value> = values.into_iter().map(Into::into).collect();
        if values.len() > LONG_LIST {
            let texts: serde_json::Value = values.iter().map(Value::to_json).collect();
            return format!("{TEXTS_FROM}{}{TEXTS_TO}", self.bind(texts.to_string()));
        }
        let places: Vec<String> = values.into_iter().map(|value| self.bind(value)).collect();
        if places.is_empty() {
            "(NULL)".to_owned()
        } else {
            format!("({})", places.join(", "))
        }
    }

    /// Adds a condition.
    pub(crate) fn filter(&mut self, condition: impl Display) {
        let word = if self.conditions == 0 { "WHERE" } else { "AND" };
        self.sql.push_str(&format!(" {word} ({condition})"));
        self.conditions += 1;
    }

    /// Adds any text, such as an order.
    pub(crate) fn push(&mut self, text: &str) {
        self.sql.push_str(text);
    }

    /// Puts fixed texts around what there is so far.
    pub(crate) fn enclose(&mut self, before: &str, after: &str) {
        self.sql = format!("{before}{}{after}", self.sql);
    }

    /// Adds conditions, order and limit of a page: last, after all other filters.
    pub(crate) fn page(&mut self, at: &str, id: &str, page: &Page) {
        let (later, tie) = if page.ascending { (">", "<") } else { ("<", ">") };
        if let Some(prev_at) = page.prev_at {
            let bound = self.bind(prev_at);
            match &page.prev_id {
                None => self.filter(format_args!("{at} {later} {bound}")),
                Some(prev_id) => {
                    let same = self.bind(prev_at);
                    let prev_id = self.bind(prev_id.as_str());
                    self.filter(format_args!(
                        "{at} {later} {bound} OR ({at} = {same} AND {id} {tie} {prev_id})"
                    ));
                }
            }
        }
        let (order, tie_order) = if page.ascending {
            ("ASC", "DESC")
        } else {
            ("DESC", "ASC")
        };
        let limit = self.bind(page.limit);
        self.sql
            .push_str(&format!(" ORDER BY {at} {order}, {id} {tie_order} LIMIT {limit}"));
    }

    /// Runs the query and returns all rows.
    pub(crate) async fn fetch(self, reads: Reads<'_>) -> Result<Vec<AnyRow>> {
        let mut query = sqlx::query(AssertSqlSafe(in_dialect(self.sql, reads)));
        for value in self.values {
            query = value.bind(query);
        }
        Ok(query.fetch_all(reads.pool()).await?)
    }

    /// Runs the query and reads every row.
    pub(crate) async fn fetch_as<T>(
        self,
        reads: Reads<'_>,
        read: impl Fn(&AnyRow) -> Result<T>,
    ) -> Result<Vec<T>> {
        self.fetch(reads).await?.iter().map(read).collect()
    }

    /// Runs a query for a number, such as `SELECT COUNT(*)`.
    pub(crate) async fn fetch_count(self, reads: Reads<'_>) -> Result<i64> {
        let rows = self.fetch(reads).await?;
        let count = rows.first().map(|row| row.try_get(0)).transpose()?;
        Ok(count.unwrap_or(0))
    }
}

/// Runs a query made of fixed texts with text parameters, and reads every row.
pub(crate) async fn fetch_as<T>(
    reads: Reads<'_>,
    sql: String,
    parameters: &[&str],
    read: impl Fn(&AnyRow) -> Result<T>,
) -> Result<Vec<T>> {
    let mut query = sqlx::query(AssertSqlSafe(sql));
    for parameter in parameters {
        query = query.bind((*parameter).to_owned());
    }
    query.fetch_all(reads.pool()).await?.iter().map(read).collect()
}

/// As [`fetch_as`], the first row only.
pub(crate) async fn fetch_one<T>(
    reads: Reads<'_>,
    sql: String,
    parameters: &[&str],
    read: impl Fn(&AnyRow) -> Result<T>,
) -> Result<Option<T>> {
    Ok(fetch_as(reads, sql, parameters, read).await?.into_iter().next())
}

/// The rows of which project and name are among these, for [`fetch_named`]: `one` selects those of project `$1` and name
/// `$2`.
///
/// A select for each, since PostgreSQL joins a list of names with the table in whatever order is cheapest by what it knows
/// of the table, and a statement that it prepared while the table was empty reads all of it from then on.
pub(crate) fn named(one: &str, names: &[Named]) -> String {
    let select = |place: usize| {
        let (project, name) = (format!("${}", place * 2 + 1), format!("${}", place * 2 + 2));
        one.replace("$1", "$project")
            .replace("$2", &name)
            .replace("$project", &project)
    };
    let selects: Vec<String> = (0..filled(names).len()).map(select).collect();
    selects.join(" UNION ALL ")
}

/// Runs a query with [`named`] in it, and reads every row: more than once what `names` has more than once.
pub(crate) async fn fetch_named<T>(
    reads: Reads<'_>,
    sql: String,
    names: &[Named],
    read: impl Fn(&AnyRow) -> Result<T>,
) -> Result<Vec<T>> {
    let mut query = sqlx::query(AssertSqlSafe(sql));
    for (project, name) in filled(names) {
        query = query.bind(project.to_string()).bind(name.clone());
    }
    query.fetch_all(reads.pool()).await?.iter().map(read).collect()
}

/// For `LIKE … ESCAPE '\'`: the pattern that finds `part` anywhere, ignoring case.
pub(crate) fn contains_pattern(part: &str) -> String {
    let escaped = part
        .to_lowercase()
        .replace('\\', "\\\\")
        .replace('%', "\\%")
        .replace('_', "\\_");
    format!("%{escaped}%")
}
