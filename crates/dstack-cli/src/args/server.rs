//! Options of `dstack server`. The server itself reads the environment for what is not given here.

use std::path::PathBuf;

use clap::{Args, Subcommand};

/// Options of `server`.
#[derive(Debug, Clone, Default, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct ServerArgs {
    #[command(subcommand)]
    pub action: Option<ServerAction>,
    /// Bind to this host. Defaults to `$DSTACK_SERVER_HOST`, then 127.0.0.1
    #[arg(long)]
    pub host: Option<String>,
    /// Bind to this port. Defaults to `$DSTACK_SERVER_PORT`, then 3000
    #[arg(short, long)]
    pub port: Option<u16>,
    /// Log everything
    #[arg(short = 'd', long = "debug", conflicts_with = "log_level")]
    pub debug: bool,
    /// Log level. Defaults to `$DSTACK_SERVER_LOG_LEVEL`, then INFO
    #[arg(short = 'l', long, value_name = "LEVEL")]
    pub log_level: Option<String>,
    /// Make the `main` project the default one in ~/.dstack/config.yml without asking
    #[arg(short, long, conflicts_with = "no")]
    pub yes: bool,
    /// Leave ~/.dstack/config.yml as it is
    #[arg(short, long)]
    pub no: bool,
    /// The admin's token, which others on this machine see in the list of processes. Defaults to `$DSTACK_SERVER_ADMIN_TOKEN`, then a generated one
    #[arg(long)]
    pub token: Option<String>,
    /// Offer this machine as an instance of project main, whoever reaches the server. Without it: only where nobody else
    /// seems to. Members of the project run code here, and can take the machine over. Defaults to `$DSTACK_SERVER_LOCAL`
    #[arg(long, conflicts_with = "no_local")]
    pub local: bool,
    /// Do not offer this machine as an instance
    #[arg(long)]
    pub no_local: bool,
}

/// Actions of `server`.
#[derive(Debug, Clone, Subcommand)]
pub enum ServerAction {
    /// Take over an installation of dstack 0.22.5: users, projects, backends, secrets, repos, and the history of runs
    Import(ServerImportArgs),
}

/// Options of `server import`.
#[derive(Debug, Clone, Args)]
pub struct ServerImportArgs {
    /// Its database: sqlite:///path/to/sqlite.db or postgresql://user:password@host/name
    #[arg(long, value_name = "URL")]
    pub from: String,
    /// Its config.yml, for the encryption keys. Defaults to the one beside an SQLite database
    #[arg(long, value_name = "PATH")]
    pub config: Option<PathBuf>,
    /// Show what would be taken over and what not, and change nothing
    #[arg(long)]
    pub dry_run: bool,
}
