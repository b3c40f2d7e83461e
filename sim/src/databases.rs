//! Real databases for tests of the stores.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::print_stdout,
    clippy::disallowed_methods
)] // only tests call this

use dstack_store::{Database, DatabaseOptions, RowKeys, raw};
use dstack_system::Random;

use crate::scenario::Builder;

/// SQLite, and PostgreSQL where there is one.
pub async fn databases(folder: &std::path::Path) -> Vec<Database> {
    databases_with(folder, &RowKeys::none()).await
}

/// As [`databases`], whose sealed columns are encrypted with these keys.
pub async fn databases_with(folder: &std::path::Path, keys: &RowKeys) -> Vec<Database> {
    let url = format!("sqlite://{}", folder.join("x.db").display());
    let mut databases = vec![open(&url, keys).await];
    databases.extend(postgres_with(keys).await);
    databases
}

async fn open(url: &str, keys: &RowKeys) -> Database {
    let options = DatabaseOptions::default();
    let database = Database::open_on(url, options, keys.clone(), None).await;
    database.unwrap()
}

/// A PostgreSQL database of the test's own, where there is a server.
pub async fn postgres() -> Option<Database> {
    postgres_with(&RowKeys::none()).await
}

async fn postgres_with(keys: &RowKeys) -> Option<Database> {
    match std::env::var("DSTACK_TEST_POSTGRES_URL") {
        Ok(url) => Some(fresh_postgres(&url, keys).await),
        Err(_) => {
            println!("SKIPPED: PostgreSQL half of the stores' test (DSTACK_TEST_POSTGRES_URL is not set)");
            None
        }
    }
}

/// The project and the user that rows refer to, where the database checks.
pub async fn people(database: &Database, builder: &Builder, users: &[String]) {
    let project = builder.project.to_string();
    let users = users.to_vec();
    database
        .write(move |tx| {
            Box::pin(async move {
                for user in &users {
                    let insert = format!(
                        "INSERT INTO users (id, name, created_at, global_role, active, token, token_hash, projects_quota) \
                         VALUES ('{user}', '{user}', 0, 'user', 1, '', '{user}', 1)"
                    );
                    raw::execute_in(tx, &insert).await?;
                }
                let insert = format!(
                    "INSERT INTO projects (id, name, created_at, owner_id, is_public) VALUES ('{project}', 'main', 0, '{}', 0)",
                    users[0]
                );
                raw::execute_in(tx, &insert).await?;
                Ok(())
            })
        })
        .await
        .unwrap();
}

/// A database of its own for this test, on the server of the URL.
async fn fresh_postgres(url: &str, keys: &RowKeys) -> Database {
    let admin = Database::open(url).await.unwrap();
    let name = format!("stores_{}", Random::system().uuid().simple());
    let create = format!("CREATE DATABASE {name}");
    raw::execute(&admin, &create).await.unwrap();
    let (base, _) = url.rsplit_once('/').unwrap();
    open(&format!("{base}/{name}"), keys).await
}
