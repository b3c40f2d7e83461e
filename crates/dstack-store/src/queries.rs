//! SQL beyond the engine's entities, by subject: users, projects, members, secrets, repos, archives, events, views.
//!
//! Reads are methods of a handle for each subject (`database.users().by_name("alice")`). Writes take an open transaction
//! (see [`crate::Database::write`]), so that a change and its event are one commit; [`crate::writes`] puts them together.

pub mod backends;
pub mod content;
pub mod counts;
pub mod diagnosis;
pub mod events;
pub mod exports;
pub mod gateways;
pub mod health;
pub mod identities;
pub mod logins;
pub mod metrics;
pub mod orphans;
pub mod projects;
pub mod repos;
pub mod sealed;
pub mod secrets;
pub(crate) mod select;
pub mod services;
pub mod tokens;
pub mod users;
pub mod views;
pub mod volumes;

use dstack_units::Time;
use sqlx::AnyPool;

use crate::Database;
use crate::encryption::RowKeys;

/// Where reads outside of transactions go: one of the database's sets of connections.
#[derive(Debug, Clone, Copy)]
pub struct Reads<'a> {
    pool: &'a AnyPool,
    keys: &'a RowKeys,
}

impl<'a> Reads<'a> {
    pub(crate) const fn new(pool: &'a AnyPool, keys: &'a RowKeys) -> Self {
        Self { pool, keys }
    }

    pub(crate) const fn pool(self) -> &'a AnyPool {
        self.pool
    }

    /// Of sealed columns.
    pub(crate) const fn keys(self) -> &'a RowKeys {
        self.keys
    }
}

impl Database {
    /// For reads of any kind.
    pub(crate) fn reads(&self) -> Reads<'_> {
        Reads::new(self.pool(), self.keys())
    }

    /// Configured backends of projects.
    pub fn backends(&self) -> backends::Backends<'_> {
        backends::Backends(self.reads())
    }

    /// Diffs of repos and archives of files.
    pub fn content(&self) -> content::StoredContent<'_> {
        content::StoredContent(self.reads())
    }

    /// How many there are, for metrics.
    pub fn counts(&self) -> counts::Counts<'_> {
        counts::Counts(self.reads())
    }

    /// Rows of which something is wrong.
    pub fn diagnoses(&self) -> diagnosis::Diagnoses<'_> {
        diagnosis::Diagnoses(self.reads())
    }

    /// The trail of what users and the server did.
    pub fn events(&self) -> events::Events<'_> {
        events::Events(self.reads())
    }

    /// What projects share with others.
    pub fn exports(&self) -> exports::Exports<'_> {
        exports::Exports(self.reads())
    }

    /// Gateways and their replicas.
    pub fn gateways(&self) -> gateways::Gateways<'_> {
        gateways::Gateways(self.reads())
    }

    /// What agents said of GPUs.
    pub fn health_checks(&self) -> health::HealthChecks<'_> {
        health::HealthChecks(self.reads())
    }

    /// Accounts of login providers.
    pub fn identities(&self) -> identities::Identities<'_> {
        identities::Identities(self.reads())
    }

    /// Logins under way.
    pub fn logins(&self) -> logins::Logins<'_> {
        logins::Logins(self.reads())
    }

    /// What jobs used.
    pub fn metrics(&self) -> metrics::Metrics<'_> {
        metrics::Metrics(self.reads())
    }

    /// What clouds have of ours.
    pub fn orphans(&self) -> orphans::Orphans<'_> {
        orphans::Orphans(self.reads())
    }

    /// Projects and their members.
    pub fn projects(&self) -> projects::Projects<'_> {
        projects::Projects(self.reads())
    }

    /// Repos and credentials for them.
    pub fn repos(&self) -> repos::Repos<'_> {
        repos::Repos(self.reads())
    }

    /// Everything that is stored encrypted.
    pub fn sealed_values(&self) -> sealed::SealedValues<'_> {
        sealed::SealedValues(self.reads())
    }

    /// Secrets of projects.
    pub fn secrets(&self) -> secrets::Secrets<'_> {
        secrets::Secrets(self.reads())
    }

    /// API tokens of users.
    pub fn api_tokens(&self) -> tokens::ApiTokens<'_> {
        tokens::ApiTokens(self.reads())
    }

    /// Users and their public keys.
    pub fn users(&self) -> users::Users<'_> {
        users::Users(self.reads())
    }

    /// Runs, jobs, fleets and instances as the API lists them.
    pub fn views(&self) -> views::Views<'_> {
        views::Views(self.reads())
    }

    /// Where requests to services go.
    pub fn services(&self) -> services::Services<'_> {
        services::Services(self.reads())
    }

    /// Network volumes.
    pub fn volumes(&self) -> volumes::Volumes<'_> {
        volumes::Volumes(self.reads())
    }
}

/// Part of a list: keyset paging by time and id.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Page {
    /// Time of the last item of the previous page.
    pub prev_at: Option<Time>,
    /// Its id, to tell items of the same time apart.
    pub prev_id: Option<String>,
    /// Most items; 0 returns none.
    pub limit: i64,
    /// Whether the oldest come first.
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
