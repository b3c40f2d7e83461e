//! Databases on the PostgreSQL server of the tests.

use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::{Context, Result, bail};

/// Makes an empty database and gives its URL. It goes when the server of the tests does.
///
/// # Errors
/// `psql` is missing, or the server refuses.
pub fn create(server: &str) -> Result<String> {
    static MADE: AtomicU32 = AtomicU32::new(0);
    let number = MADE.fetch_add(1, Ordering::Relaxed);
    let name = format!("e2e_{}_{number}", std::process::id());
    let made = Command::new("psql")
        .args([server, "--quiet", "--command", &format!("create database {name}")])
        .status()
        .context("cannot start psql")?;
    if !made.success() {
        bail!("psql: create database {name} failed");
    }
    let (base, _) = server
        .rsplit_once('/')
        .context("the PostgreSQL URL names no database")?;
    Ok(format!("{base}/{name}"))
}
