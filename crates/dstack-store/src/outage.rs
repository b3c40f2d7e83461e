//! Which errors of a database pass by themselves.

use std::sync::Arc;

use crate::{StoreError, Unavailable};

/// SQLITE_CONSTRAINT_TRIGGER: a trigger refuses.
const SQLITE_TRIGGER: &str = "1811";

/// An error for each of those that shared what failed.
pub(crate) fn copies(error: StoreError, count: usize) -> impl Iterator<Item = StoreError> {
    let copy: Box<dyn Fn() -> StoreError + Send> = match error {
        StoreError::Sql(cause) => {
            let cause = Arc::new(cause);
            Box::new(move || StoreError::Commit(Arc::clone(&cause)))
        }
        StoreError::Commit(cause) => Box::new(move || StoreError::Commit(Arc::clone(&cause))),
        StoreError::Slow(waited) => Box::new(move || StoreError::Slow(waited)),
        _ => Box::new(|| StoreError::Closed),
    };
    (0..count).map(move |_| copy())
}

/// Why the database cannot do anything now, if that is the error.
pub(crate) fn of(error: &sqlx::Error) -> Option<Unavailable> {
    use sqlx::Error::{Database, Io, PoolClosed, PoolTimedOut, Protocol, Tls, WorkerCrashed};
    match error {
        Io(_) | PoolTimedOut | PoolClosed | Protocol(_) | Tls(_) | WorkerCrashed => {
            Some(Unavailable::Unreachable)
        }
        Database(error) => of_code(error.code().as_deref()?),
        _ => None,
    }
}

/// By the codes of PostgreSQL (five characters) and SQLite (numbers).
fn of_code(code: &str) -> Option<Unavailable> {
    match code {
        // SQLITE_FULL; SQLITE_IOERR_WRITE, _FSYNC: what a full disk looks like on some file systems.
        "13" | "53100" => Some(Unavailable::DiskFull),
        // SQLITE_BUSY, SQLITE_IOERR and its kinds.
        "5" | "10" | "266" | "778" | "1034" | "1290" => Some(Unavailable::Unreachable),
        // Cancelled by a time limit; lock not available in time.
        "57014" | "55P03" => Some(Unavailable::Unreachable),
        // Connection exceptions, too little of something, shut down or starting, in recovery (read only).
        code if code.len() == 5
            && (code.starts_with("08") || code.starts_with("53") || code.starts_with("57P")) =>
        {
            Some(Unavailable::Unreachable)
        }
        "25006" => Some(Unavailable::Unreachable),
        _ => None,
    }
}

/// Whether another transaction was in the way (serialization failure, deadlock, a trigger's refusal): this one did nothing.
pub(crate) fn is_race(error: &sqlx::Error) -> bool {
    let code = error
        .as_database_error()
        .and_then(sqlx::error::DatabaseError::code);
    matches!(code.as_deref(), Some("40001" | "40P01" | SQLITE_TRIGGER))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes() {
        for code in ["08006", "53300", "57P01", "57P03", "57014", "5"] {
            assert_eq!(of_code(code), Some(Unavailable::Unreachable), "{code}");
        }
        for code in ["13", "53100"] {
            assert_eq!(of_code(code), Some(Unavailable::DiskFull), "{code}");
        }
        for code in ["23505", "42601", "1555", "2067", "1"] {
            assert_eq!(of_code(code), None, "{code}");
        }
        assert_eq!(of(&sqlx::Error::RowNotFound), None);
        assert_eq!(of(&sqlx::Error::PoolTimedOut), Some(Unavailable::Unreachable));
    }
}
