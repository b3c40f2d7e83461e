//! A private PostgreSQL cluster for the tests: own folder, own port, gone afterwards.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use tempfile::TempDir;

use crate::exec::{is_root, run_quietly, step, succeeds, which};
use crate::{net, package};

/// A running cluster; dropping it stops it and removes its files.
pub(crate) struct Postgres {
    folder: TempDir,
    bin: PathBuf,
    port: u16,
    durability: Durability,
}

/// Whether what was committed outlives a crash of the machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Durability {
    /// As in an installation: for measures.
    Synced,
    /// Nothing in a test database outlives a crash, so nothing waits for the disk.
    None,
}

impl Postgres {
    /// Installs PostgreSQL if it is missing and may be, and starts a cluster.
    pub(crate) fn start(durability: Durability) -> Result<Postgres> {
        let bin = match binaries() {
            Some(bin) => bin,
            None => {
                package::install("postgresql")?;
                binaries().context("package postgresql brought no initdb")?
            }
        };
        let folder = TempDir::with_prefix("dstack-test-pg-")?;
        if is_root() {
            run_quietly(Command::new("chown").arg("postgres").arg(folder.path()))?;
        }
        let cluster = Postgres {
            folder,
            bin,
            port: net::free_port()?,
            durability,
        };
        step(&format!("starting a private PostgreSQL on port {}", cluster.port));
        run_quietly(cluster.tool("initdb").args([
            "-U",
            "postgres",
            "-A",
            "trust",
            "-E",
            "UTF8",
            "--no-sync",
        ]))?;
        run_quietly(
            cluster
                .tool("pg_ctl")
                .args(["-w", "-l"])
                .arg(cluster.data().join("log"))
                .args(["-o", &cluster.options(), "start"]),
        )?;
        Ok(cluster)
    }

    /// Where tests connect to; they make databases of their own.
    pub(crate) fn url(&self) -> String {
        format!("postgres://postgres@127.0.0.1:{}/postgres", self.port)
    }

    fn data(&self) -> PathBuf {
        self.folder.path().join("data")
    }

    fn options(&self) -> String {
        let durability = match self.durability {
            Durability::Synced => "",
            Durability::None => " -c fsync=off -c synchronous_commit=off -c full_page_writes=off",
        };
        format!(
            "-c listen_addresses=127.0.0.1 -c port={} -c unix_socket_directories={} -c max_connections=300{durability}",
            self.port,
            self.folder.path().display()
        )
    }

    /// One of PostgreSQL's programs, run as the user it insists on (it refuses root).
    fn tool(&self, name: &str) -> Command {
        let program = self.bin.join(name);
        let mut command = if is_root() {
            let mut command = Command::new("runuser");
            command.args(["-u", "postgres", "--"]).arg(program);
            command
        } else {
            Command::new(program)
        };
        command.current_dir(self.folder.path()).arg("-D").arg(self.data());
        command
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        succeeds(self.tool("pg_ctl").args(["-m", "immediate", "stop"]));
    }
}

/// The folder with `initdb` and `pg_ctl`: Debian keeps them off the path, one folder per version.
fn binaries() -> Option<PathBuf> {
    let versions = fs_err::read_dir("/usr/lib/postgresql").ok();
    let mut found: Vec<PathBuf> = versions
        .into_iter()
        .flatten()
        .filter_map(|entry| Some(entry.ok()?.path().join("bin")))
        .filter(|bin| bin.join("initdb").is_file())
        .collect();
    found.sort_by_key(|bin| version(bin));
    found
        .pop()
        .or_else(|| which("initdb")?.parent().map(Path::to_owned))
}

fn version(bin: &Path) -> u32 {
    let name = bin.parent().and_then(Path::file_name).unwrap_or_default();
    name.to_string_lossy().parse().unwrap_or(0)
}
