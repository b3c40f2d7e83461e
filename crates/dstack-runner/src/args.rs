//! Command line of the runner.

use std::ffi::OsString;
use std::net::IpAddr;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};

use crate::log::Level;

/// Job agent: runs one job, then exits.
#[derive(Debug, Clone, Parser)]
// Prints `dstack-runner version 0.22.5`: the host agent reads this line.
#[command(name = "dstack-runner", version = concat!("version ", env!("CARGO_PKG_VERSION")))]
pub struct RunnerArgs {
    /// error, warning, info, debug, trace, or 1 to 6
    #[arg(long, global = true, env = "DSTACK_RUNNER_LOG_LEVEL", default_value = "info")]
    pub log_level: Level,
    /// What to do.
    #[command(subcommand)]
    pub command: RunnerCommand,
}

/// Subcommands of the runner.
#[derive(Debug, Clone, Subcommand)]
pub enum RunnerCommand {
    /// Wait for a job, run it, hand over its logs
    Start(Box<StartArgs>),
    /// Speak SFTP on standard input and output (started by the SSH server)
    #[command(hide = true)]
    SftpServer {
        /// Options of OpenSSH's sftp-server are accepted and ignored
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        ignored: Vec<OsString>,
    },
}

/// Flags of `start`. dstack 0.22.5's are all there with their defaults.
#[derive(Debug, Clone, Args)]
pub struct StartArgs {
    /// Directory for logs and uploads
    #[arg(long, default_value = "/tmp/runner")]
    pub temp_dir: PathBuf,
    /// Address to serve HTTP on; all interfaces when empty
    #[arg(long, default_value = "")]
    pub http_address: String,
    /// Port to serve HTTP on; 0 for any
    #[arg(long, default_value_t = 10999)]
    pub http_port: u16,
    /// Port to serve SSH on; 0 for any
    #[arg(long, default_value_t = 10022)]
    pub ssh_port: u16,
    /// Public key that may log in by SSH (repeatable)
    #[arg(long = "ssh-authorized-key", value_name = "KEY")]
    pub ssh_authorized_keys: Vec<String>,
    /// File with the private key by which SSH clients know the runner; new keys are made without it
    #[arg(long, value_name = "FILE")]
    pub ssh_host_key: Option<PathBuf>,
    /// Accepted for compatibility
    #[arg(long, hide = true, default_value = "INFO")]
    pub ssh_log_level: String,
    /// Accepted for compatibility
    #[arg(long, hide = true)]
    pub home_dir: Option<PathBuf>,
    /// File to which `{"http":PORT,"ssh":PORT}` is written when both are served
    #[arg(long, value_name = "FILE")]
    pub port_file: Option<PathBuf>,
    /// Directory for the job's profile, host file and SSH host keys
    #[arg(long, default_value = "/dstack")]
    pub state_dir: PathBuf,
    /// Change nothing outside of the state directory but what the job asks for; allows running as any user
    #[arg(long)]
    pub no_profile: bool,
    /// The network around the runner is the job's alone: what goes through it is measured
    #[arg(long, env = crate::OWN_NETWORK_VARIABLE, value_parser = clap::builder::FalseyValueParser::new())]
    pub own_network: bool,
    /// Line to show first in the job's log and the runner's log (repeatable)
    #[arg(long = "notice", value_name = "TEXT")]
    pub notices: Vec<String>,
    /// Bytes of logs kept on disk while the server does not fetch them; then the oldest are dropped
    #[arg(long, value_name = "BYTES", default_value_t = 2 << 30)]
    pub spool_limit: u64,
}

impl StartArgs {
    /// The addresses to try, in order: without one, all interfaces, IPv6 and IPv4 where the machine has both.
    pub(crate) fn addresses(&self) -> Result<Vec<IpAddr>, String> {
        Ok(match self.http_address.as_str() {
            "" => vec![IpAddr::from([0u16; 8]), IpAddr::from([0u8; 4])],
            "localhost" => vec![IpAddr::from([127, 0, 0, 1])],
            other => vec![
                other
                    .parse()
                    .map_err(|_| format!("--http-address {other}: not an IP address or localhost"))?,
            ],
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(arguments: &[&str]) -> Result<RunnerArgs, clap::Error> {
        RunnerArgs::try_parse_from([&["dstack-runner"], arguments].concat())
    }

    #[test]
    fn the_references_flags_and_defaults() {
        let args = parse(&[
            "--log-level",
            "5",
            "start",
            "--http-address",
            "localhost",
            "--home-dir",
            "/root",
        ])
        .unwrap();
        assert_eq!(args.log_level, Level::Debug);
        let RunnerCommand::Start(start) = args.command else {
            panic!()
        };
        assert_eq!((start.http_port, start.ssh_port), (10999, 10022));
        assert_eq!(start.temp_dir, PathBuf::from("/tmp/runner"));
        assert_eq!(start.addresses().unwrap(), [IpAddr::from([127, 0, 0, 1])]);
        assert!(
            !start.no_profile && !start.own_network && start.state_dir == std::path::Path::new("/dstack")
        );
        let keys = parse(&["start", "--ssh-authorized-key", "a", "--ssh-authorized-key", "b"]).unwrap();
        let RunnerCommand::Start(start) = keys.command else {
            panic!()
        };
        assert_eq!(start.ssh_authorized_keys, ["a", "b"]);
        assert_eq!(start.ssh_host_key, None);
        assert!(parse(&[]).is_err());
        let version = parse(&["--version"]).unwrap_err().to_string();
        assert_eq!(
            version,
            format!("dstack-runner version {}\n", env!("CARGO_PKG_VERSION"))
        );
        assert!(parse(&["--log-level", "loud", "start"]).is_err());
    }
}
