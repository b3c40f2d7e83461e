//! New rows of several tables in one statement.
//!
//! A statement costs more than a row, and a way to the database and back more than either. PostgreSQL only: SQLite knows no
//! writes within a statement, and is no way away.

use sqlx::AssertSqlSafe;

use super::write::{EVENT_WIDTH, Rows, Writes, apply_all, bind_event, event_rows, insert_events};
use crate::encryption::RowKeys;
use crate::entities::with_entities;
use crate::entity::{Statement, insert_sql, insert_width};
use crate::{Commit, Entity, Result, Tx};

/// Most commits of one statement. Those of a burst have the same shape, so that there are few different texts and they stay
/// prepared.
const COMMITS_AT_ONCE: usize = 16;

/// Most rows of one statement: none has more than sixty places, of which the protocol allows 65,535.
const ROWS_AT_ONCE: usize = 1_000;

/// Whether [`add_all`] takes a single statement.
pub(crate) fn is_one_statement(commits: &[Commit]) -> bool {
    let rows = |commit: &Commit| {
        let events = commit.events.iter().map(|event| event.targets.len().max(1));
        commit.puts.len() + events.sum::<usize>()
    };
    commits.len() <= COMMITS_AT_ONCE && commits.iter().map(rows).sum::<usize>() <= ROWS_AT_ONCE
}

/// Applies commits that only add rows, and have none in common. If one cannot be applied, none is.
pub(crate) async fn add_all(tx: &mut Tx, keys: &RowKeys, commits: &[Commit]) -> Result<()> {
    for some in commits.chunks(COMMITS_AT_ONCE) {
        match is_one_statement(some) {
            true => add_some(tx, keys, some).await?,
            false => apply_all(tx, keys, some).await?,
        }
    }
    Ok(())
}

async fn add_some(tx: &mut Tx, keys: &RowKeys, commits: &[Commit]) -> Result<()> {
    let mut writes = Writes::default();
    for commit in commits {
        writes.add(commit);
    }
    let events = event_rows(commits.iter().flat_map(|commit| &commit.events));
    let mut text = Text::default();
    text.entities(&writes);
    text.rows(&writes.operations, false);
    text.more(events.len(), EVENT_WIDTH, insert_events);
    let mut statement = sqlx::query(AssertSqlSafe(text.finish()));
    statement = bind_entities(statement, keys, &writes);
    statement = bind(statement, keys, &writes.operations, false);
    for event in &events {
        statement = bind_event(statement, event);
    }
    statement.execute(tx).await?;
    Ok(())
}

fn bind<'q, E: Entity>(
    mut statement: Statement<'q>,
    keys: &RowKeys,
    rows: &Rows<'_, E>,
    leased: bool,
) -> Statement<'q> {
    for (row, owner) in &rows.inserts {
        statement = row.bind(statement, keys, &|_| true);
        if leased {
            statement = statement.bind(owner.cloned());
        }
    }
    statement
}

macro_rules! generate_inserts {
    ($($name:ident($row:ident, $id:ident) in $table:ident as $kind:literal, driven $driven:literal, is_over |$it:ident| $is_over:expr;)*) => {
        impl Text {
            fn entities(&mut self, writes: &Writes<'_>) {
                $(self.rows(&writes.$table, true);)*
            }
        }

        fn bind_entities<'q>(mut statement: Statement<'q>, keys: &RowKeys, writes: &Writes<'_>) -> Statement<'q> {
            $(statement = bind(statement, keys, &writes.$table, true);)*
            statement
        }
    };
}
with_entities!(generate_inserts);

/// The statement as it is made.
#[derive(Debug, Default)]
struct Text {
    inserts: Vec<String>,
    places: usize,
}

impl Text {
    fn rows<E: Entity>(&mut self, rows: &Rows<'_, E>, leased: bool) {
        self.more(rows.inserts.len(), insert_width::<E>(leased), |before, rows| {
            insert_sql::<E>(before, rows, leased)
        });
    }

    fn more(&mut self, rows: usize, width: usize, insert: impl FnOnce(usize, usize) -> String) {
        if rows > 0 {
            self.inserts.push(insert(self.places, rows));
            self.places += rows * width;
        }
    }

    /// All but the last are parts of the last; foreign keys are looked at after all of them.
    fn finish(mut self) -> String {
        let last = self.inserts.pop().unwrap_or_default();
        let parts: Vec<String> = (1..)
            .zip(&self.inserts)
            .map(|(number, insert)| format!("part{number} AS ({insert})"))
            .collect();
        match parts.is_empty() {
            true => last,
            false => format!("WITH {} {last}", parts.join(", ")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_insert_has_the_others_as_parts() {
        let mut text = Text::default();
        text.more(1, 2, |before, rows| format!("A {before} {rows}"));
        text.more(0, 9, |_, _| String::from("nothing"));
        text.more(3, 5, |before, rows| format!("B {before} {rows}"));
        text.more(1, 1, |before, rows| format!("C {before} {rows}"));
        assert_eq!(text.places, 18);
        assert_eq!(text.finish(), "WITH part1 AS (A 0 1), part2 AS (B 2 3) C 17 1");
        let mut one = Text::default();
        one.more(1, 1, |_, _| String::from("A"));
        assert_eq!(one.finish(), "A");
    }
}
