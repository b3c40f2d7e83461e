//! Options of `dstack server`. The server itself reads the environment for what is not given here.

use clap::Args;

/// Options of `server`.
#[derive(Debug, Clone, Default, Args)]
pub struct ServerArgs {
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
    /// The admin's token. Defaults to `$DSTACK_SERVER_ADMIN_TOKEN`, then a generated one
    #[arg(long)]
    pub token: Option<String>,
    /// Do not offer this machine as an instance
    #[arg(long)]
    pub no_local: bool,
}
