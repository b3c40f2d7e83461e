//! Queries of the API beyond the engine's entities: users, projects, members, secrets, repos, archives, events, lists.
//!
//! Reads take the pool, writes an open transaction (see [`crate::Database::write`]), so that a change and its event are
//! one commit.

pub mod backends;
pub mod change;
pub mod content;
pub mod counts;
pub mod events;
pub mod exports;
pub mod gateways;
pub mod health;
pub mod identities;
pub mod lists;
pub mod logins;
pub mod metrics;
pub mod projects;
pub mod repos;
pub mod sealed;
pub mod secrets;
mod select;
pub mod tokens;
pub mod users;
pub mod volumes;

use dstack_units::Time;

/// Part of a list: keyset paging by time and id.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Page {
    /// Time of the last item of the previous page.
    pub prev_at: Option<Time>,
    /// Its id, to tell items of the same time apart.
    pub prev_id: Option<String>,
    /// Most items; 0 returns none.
    pub limit: i64,
    /// Oldest first.
    pub ascending: bool,
}

impl Page {
    /// The newest `limit` items.
    pub const fn newest(limit: i64) -> Self {
        Self {
            prev_at: None,
            prev_id: None,
            limit,
            ascending: false,
        }
    }
}

/// Declares a record: a struct, the columns it is read from, and the reading by position.
macro_rules! record {
    (
        $(#[$meta:meta])*
        $name:ident in $table:literal { $( $(#[$field_meta:meta])* $field:ident: $type:ty, )* }
    ) => {
        $(#[$meta])*
        #[derive(Debug, Clone, PartialEq)]
        pub struct $name { $( $(#[$field_meta])* pub $field: $type, )* }

        impl $name {
            /// The columns, each with the table's alias in front.
            pub(crate) fn columns(alias: &str) -> String {
                [$(stringify!($field)),*].map(|column| format!("{alias}.{column}")).join(", ")
            }

            /// Reads the columns from position `at` on.
            #[allow(unused_assignments)]
            pub(crate) fn read_at(row: &sqlx::any::AnyRow, at: usize) -> $crate::Result<Self> {
                let mut index = at;
                let mut next = || { let this = index; index += 1; this };
                Ok(Self { $( $field: $crate::entity::read_column(row, next(), $table, stringify!($field))?, )* })
            }

            /// How many columns are read.
            #[allow(dead_code)]
            pub(crate) const WIDTH: usize = [$(stringify!($field)),*].len();
        }
    };
}
pub(crate) use record;
