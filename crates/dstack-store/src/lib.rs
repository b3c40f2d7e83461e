//! Persistence on SQLite and PostgreSQL: entities, leases, operations, migrations.
