//! Bringing the schema up to date at start. Migrations only add; what they remove is removed a release later.

use sqlx::{AnyPool, Executor};

use crate::database::{begin, execute_script};
use crate::{Dialect, Result, StoreError, Tx};

/// In order; the position (from 1) is the schema version. Never change one that was released.
const MIGRATIONS: &[&str] = &[
    include_str!("../migrations/0001_initial.sql"),
    include_str!("../migrations/0002_sharing.sql"),
    include_str!("../migrations/0003_servers.sql"),
    include_str!("../migrations/0004_logins.sql"),
    include_str!("../migrations/0007_governance_events.sql"),
    include_str!("../migrations/0008_postgres.sql"),
    include_str!("../migrations/0009_names.sql"),
    include_str!("../migrations/0010_instances.sql"),
    include_str!("../migrations/0011_fleets.sql"),
    include_str!("../migrations/0012_trail.sql"),
    include_str!("../migrations/0013_health.sql"),
    include_str!("../migrations/0015_deleted.sql"),
    include_str!("../migrations/0016_fencing.sql"),
    include_str!("../migrations/0017_made_instances.sql"),
    include_str!("../migrations/0018_entities.sql"),
    include_str!("../migrations/0019_driven_volumes.sql"),
    include_str!("../migrations/0020_orphans.sql"),
    include_str!("../migrations/0022_groups.sql"),
    include_str!("../migrations/0023_orphans_ending.sql"),
    include_str!("../migrations/0024_machines.sql"),
    include_str!("../migrations/0025_attachments.sql"),
    include_str!("../migrations/0026_leaving.sql"),
    include_str!("../migrations/0027_ending_jobs.sql"),
    include_str!("../migrations/0028_probes.sql"),
    include_str!("../migrations/0029_scaling.sql"),
    include_str!("../migrations/0030_gateways.sql"),
    include_str!("../migrations/0031_gateway_machines.sql"),
    include_str!("../migrations/0032_gateway_load_balancers.sql"),
    include_str!("../migrations/0033_network_metrics.sql"),
    include_str!("../migrations/0034_rollouts.sql"),
];

/// Any number unlikely to be used by others: the advisory lock that lets one server migrate at a time.
const LOCK: i64 = 0x6473_7461_636b;

pub(crate) async fn run(pool: &AnyPool, dialect: Dialect) -> Result<()> {
    apply(MIGRATIONS, pool, dialect).await
}

async fn apply(migrations: &[&str], pool: &AnyPool, dialect: Dialect) -> Result<()> {
    let mut connection = pool.acquire().await?;
    let mut tx = begin(&mut connection).await?;
    if dialect == Dialect::Postgres {
        // Two servers that start at the same time would both find the table missing.
        lock(&mut tx).await?;
    }
    tx.execute("CREATE TABLE IF NOT EXISTS schema_version (version BIGINT PRIMARY KEY)")
        .await?;
    tx.commit().await?;
    let known = i64::try_from(migrations.len()).unwrap_or(i64::MAX);
    for (version, script) in (1_i64..).zip(migrations) {
        let failed = |source| StoreError::Migration { version, source };
        let mut tx = begin(&mut connection).await.map_err(failed)?;
        if dialect == Dialect::Postgres {
            lock(&mut tx).await.map_err(failed)?;
        }
        let (applied,): (i64,) = sqlx::query_as("SELECT COALESCE(MAX(version), 0) FROM schema_version")
            .fetch_one(&mut *tx)
            .await
            .map_err(failed)?;
        if applied > known {
            return Err(StoreError::TooNew {
                found: applied,
                known,
            });
        }
        if applied < version {
            execute_script(&mut tx, &in_dialect(script, dialect))
                .await
                .map_err(failed)?;
            sqlx::query("INSERT INTO schema_version (version) VALUES ($1)")
                .bind(version)
                .execute(&mut *tx)
                .await
                .map_err(failed)?;
        }
        tx.commit().await.map_err(failed)?;
    }
    Ok(())
}

/// Held until the end of the transaction.
async fn lock(tx: &mut Tx) -> Result<(), sqlx::Error> {
    // Migrations of large tables, and of another server, take as long as they take.
    tx.execute("SET LOCAL statement_timeout = 0; SET LOCAL lock_timeout = 0;")
        .await?;
    sqlx::query("SELECT pg_advisory_xact_lock($1)")
        .bind(LOCK)
        .execute(tx)
        .await?;
    Ok(())
}

/// The line after which a script goes on for PostgreSQL only.
const POSTGRES_ONLY: &str = "-- postgres only\n";

/// The line after which a script goes on for SQLite only, until [`POSTGRES_ONLY`] or its end.
const SQLITE_ONLY: &str = "-- sqlite only\n";

fn in_dialect(script: &str, dialect: Dialect) -> String {
    let (rest, for_postgres) = script.split_once(POSTGRES_ONLY).unwrap_or((script, ""));
    let (common, for_sqlite) = rest.split_once(SQLITE_ONLY).unwrap_or((rest, ""));
    let script = match dialect {
        Dialect::Sqlite => [common, for_sqlite].concat(),
        Dialect::Postgres => [common, for_postgres].concat(),
    };
    let text: String = script
        .lines()
        .filter(|line| !line.trim_start().starts_with("--"))
        .collect::<Vec<_>>()
        .join("\n");
    match dialect {
        Dialect::Sqlite => text,
        Dialect::Postgres => text.replace(" BLOB", " BYTEA"),
    }
}

#[cfg(test)]
#[allow(clippy::disallowed_methods)] // databases without keys
mod tests {
    use sqlx::any::AnyPoolOptions;

    use super::*;
    use crate::encryption::RowKeys;
    use crate::queries::events::{EventFilter, Events, Within};
    use crate::queries::{Page, Reads};

    /// The trail of a server from when an event and its targets were two tables.
    const BEFORE: &str = "INSERT INTO users (id, name, created_at, global_role, active, token, token_hash, projects_quota) \
         VALUES ('00000000-0000-0000-0000-0000000000aa', 'admin', 1, 'admin', 1, 't', 'h', 10); \
         INSERT INTO events (id, message, recorded_at, actor_user_id, for_managers) VALUES \
         ('00000000-0000-0000-0000-000000000001', 'both', 10, '00000000-0000-0000-0000-0000000000aa', 1), \
         ('00000000-0000-0000-0000-000000000002', 'run', 20, NULL, 0), \
         ('00000000-0000-0000-0000-000000000003', 'nothing', 30, NULL, 0); \
         INSERT INTO event_targets (event_id, position, entity_type, entity_id, entity_name, run_id, fleet_id) VALUES \
         ('00000000-0000-0000-0000-000000000001', 1, 'instance', 'i', 'second', NULL, 'f'), \
         ('00000000-0000-0000-0000-000000000001', 0, 'job', 'j', 'first', 'r', NULL), \
         ('00000000-0000-0000-0000-000000000002', 0, 'run', 'r', 'only', NULL, NULL);";

    async fn found(pool: &AnyPool, filter: EventFilter) -> Vec<(String, Vec<String>)> {
        let events = Events(Reads::new(pool, &RowKeys::none()))
            .list(&filter, &Page::newest(10))
            .await;
        let names = |event: crate::queries::events::EventRow| {
            let targets = event.targets.into_iter().map(|target| target.entity_name);
            (event.message, targets.collect())
        };
        events.unwrap().into_iter().map(names).collect()
    }

    fn event(message: &str, targets: &[&str]) -> (String, Vec<String>) {
        let targets = targets.iter().map(|name| (*name).to_owned());
        (message.to_owned(), targets.collect())
    }

    #[tokio::test]
    async fn the_trail_of_two_tables_becomes_one() {
        sqlx::any::install_default_drivers();
        let folder = tempfile::tempdir().unwrap();
        let url = format!("sqlite://{}?mode=rwc", folder.path().join("old.db").display());
        let pool = AnyPoolOptions::new().connect(&url).await.unwrap();
        let trail = MIGRATIONS
            .iter()
            .position(|script| script.contains("events_before"));
        let before = &MIGRATIONS[..trail.unwrap()];
        apply(before, &pool, Dialect::Sqlite).await.unwrap();
        sqlx::raw_sql(BEFORE).execute(&pool).await.unwrap();
        run(&pool, Dialect::Sqlite).await.unwrap();

        let (both, run) = (event("both", &["first", "second"]), event("run", &["only"]));
        let all = found(&pool, EventFilter::default()).await;
        assert_eq!(all, [event("nothing", &[]), run.clone(), both.clone()]);
        let of_run = EventFilter {
            targets: Some(("run", vec!["r".to_owned()])),
            ..EventFilter::default()
        };
        assert_eq!(found(&pool, of_run).await, std::slice::from_ref(&run));
        let in_run = EventFilter {
            within: Some((Within::Run, vec!["r".to_owned()])),
            ..EventFilter::default()
        };
        assert_eq!(found(&pool, in_run).await, [run, both.clone()]);
        let of_instance = EventFilter {
            targets: Some(("instance", vec!["i".to_owned()])),
            ..EventFilter::default()
        };
        assert_eq!(found(&pool, of_instance).await, [both]);
    }

    #[tokio::test]
    async fn a_database_of_a_newer_server_is_refused_and_left_as_it_is() {
        sqlx::any::install_default_drivers();
        let folder = tempfile::tempdir().unwrap();
        let url = format!("sqlite://{}?mode=rwc", folder.path().join("new.db").display());
        let pool = AnyPoolOptions::new().connect(&url).await.unwrap();
        run(&pool, Dialect::Sqlite).await.unwrap();
        let newest = MIGRATIONS.len();
        let before = &MIGRATIONS[..newest - 2];
        let refused = apply(before, &pool, Dialect::Sqlite).await.unwrap_err();
        let told = refused.to_string();
        assert!(
            told.contains(&format!("schema version {newest},"))
                && told.contains(&format!("up to {}:", newest - 2)),
            "{told}"
        );
        run(&pool, Dialect::Sqlite).await.unwrap();
    }

    /// As databases have it that were migrated when the condition was written in another way.
    const VOLUMES_BEFORE: &str = "DROP INDEX ix_volumes_driven; \
         CREATE INDEX ix_volumes_driven ON volumes (lease_owner) WHERE NOT (deleted = 1);";

    #[tokio::test]
    async fn driven_volumes_are_found_by_their_index_in_older_databases_too() {
        sqlx::any::install_default_drivers();
        let folder = tempfile::tempdir().unwrap();
        let url = format!("sqlite://{}?mode=rwc", folder.path().join("old.db").display());
        // One connection: another would plan by the schema that it read last.
        let pool = AnyPoolOptions::new()
            .max_connections(1)
            .connect(&url)
            .await
            .unwrap();
        let of_entities = |script: &&str| script.contains("operations_of_entities");
        let entities = MIGRATIONS.iter().position(of_entities).unwrap();
        apply(&MIGRATIONS[..=entities], &pool, Dialect::Sqlite)
            .await
            .unwrap();
        sqlx::raw_sql(VOLUMES_BEFORE).execute(&pool).await.unwrap();
        run(&pool, Dialect::Sqlite).await.unwrap();
        let plan = "EXPLAIN QUERY PLAN SELECT id FROM volumes WHERE lease_owner = 'a' AND deleted = 0";
        let steps: Vec<(i64, i64, i64, String)> = sqlx::query_as(plan).fetch_all(&pool).await.unwrap();
        let uses_it = |step: &(i64, i64, i64, String)| step.3.contains("ix_volumes_driven");
        assert!(steps.iter().any(uses_it), "{steps:?}");
    }

    /// Calls of an instance and of a job from when operations were keyed to these two.
    const OPERATIONS_BEFORE: &str = "PRAGMA foreign_keys = OFF; \
         INSERT INTO operations (id, key, kind, job_id, instance_id, state, attempt, created_at, error, result, version) VALUES \
         ('1', 'i1:create-instance', 'create-instance', NULL, 'i1', 'intended', 3, 10, '503', '{\"left\":[]}', 4), \
         ('2', 'i1:terminate-instance', 'terminate-instance', NULL, 'i1', 'done', 1, 20, NULL, NULL, 2), \
         ('3', 'j1:submit-task', 'submit-task', 'j1', 'i1', 'failed', 1, 30, 'no', NULL, 2);";

    #[tokio::test]
    async fn calls_under_way_survive_the_migration_of_operations() {
        sqlx::any::install_default_drivers();
        let folder = tempfile::tempdir().unwrap();
        let url = format!("sqlite://{}?mode=rwc", folder.path().join("old.db").display());
        let pool = AnyPoolOptions::new()
            .max_connections(1)
            .connect(&url)
            .await
            .unwrap();
        let of_entities = |script: &&str| script.contains("operations_of_entities");
        let before = MIGRATIONS.iter().position(of_entities).unwrap();
        apply(&MIGRATIONS[..before], &pool, Dialect::Sqlite)
            .await
            .unwrap();
        sqlx::raw_sql(OPERATIONS_BEFORE).execute(&pool).await.unwrap();
        run(&pool, Dialect::Sqlite).await.unwrap();
        type Row = (
            String,
            String,
            String,
            String,
            i64,
            Option<String>,
            Option<String>,
            i64,
        );
        let sql =
            "SELECT key, kind, subject, state, attempt, error, notes, version FROM operations ORDER BY id";
        let rows: Vec<Row> = sqlx::query_as(sql).fetch_all(&pool).await.unwrap();
        let row = |text: [&str; 4], attempt, error: Option<&str>, notes: Option<&str>, version| {
            let [key, kind, subject, state] = text.map(str::to_owned);
            let (error, notes) = (error.map(str::to_owned), notes.map(str::to_owned));
            (key, kind, subject, state, attempt, error, notes, version)
        };
        assert_eq!(
            rows,
            [
                row(
                    ["i1:create", "create", "instance i1", "intended"],
                    3,
                    Some("503"),
                    Some("{\"left\":[]}"),
                    4
                ),
                row(["i1:remove", "remove", "instance i1", "done"], 1, None, None, 2),
                row(
                    ["j1:submit-task", "submit-task", "job j1", "failed"],
                    1,
                    Some("no"),
                    None,
                    2
                ),
            ]
        );
    }
}
