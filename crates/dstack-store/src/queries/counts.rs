//! How many there are, for metrics.

use sqlx::Row;

use super::Reads;
use super::select::fetch_as;
use crate::Result;

/// Runs of a user in a project.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunCounts {
    /// Name of the project.
    pub project_name: String,
    /// Name of the user.
    pub user_name: String,
    /// All of them.
    pub total: i64,
    /// Those that were stopped.
    pub terminated: i64,
    /// Those that failed.
    pub failed: i64,
    /// Those that were done.
    pub done: i64,
}

/// How many there are, for metrics: see [`crate::Database::counts`].
#[derive(Debug, Clone, Copy)]
pub struct Counts<'a>(pub(crate) Reads<'a>);

impl Counts<'_> {
    /// Runs by project and user; those of deleted projects do not count.
    pub async fn runs(self) -> Result<Vec<RunCounts>> {
        let sql = "SELECT p.name, u.name, COUNT(*), \
             COUNT(CASE WHEN r.status = 'terminated' THEN 1 END), \
             COUNT(CASE WHEN r.status = 'failed' THEN 1 END), \
             COUNT(CASE WHEN r.status = 'done' THEN 1 END) \
             FROM runs r JOIN projects p ON p.id = r.project_id AND p.deleted = 0 JOIN users u ON u.id = r.user_id \
             GROUP BY p.name, u.name ORDER BY p.name, u.name";
        fetch_as(self.0, sql.to_owned(), &[], |row| {
            Ok(RunCounts {
                project_name: row.try_get(0)?,
                user_name: row.try_get(1)?,
                total: row.try_get(2)?,
                terminated: row.try_get(3)?,
                failed: row.try_get(4)?,
                done: row.try_get(5)?,
            })
        })
        .await
    }
}
