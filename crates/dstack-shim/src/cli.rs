//! The command line. Every flag has a variable; flags win.

use std::path::PathBuf;

use clap::Parser;

/// Host agent of dstack: runs tasks in containers and reports on them over HTTP on the loopback interface.
#[derive(Debug, Clone, Default, Parser)]
#[command(name = "dstack-shim", disable_version_flag = true)]
pub struct Args {
    /// State directory [env: DSTACK_SHIM_HOME, default: $HOME/.dstack]
    #[arg(long, value_name = "DIR")]
    pub shim_home: Option<PathBuf>,
    /// This binary, replaced on self-update [env: DSTACK_SHIM_BINARY_PATH, default: where it was started from]
    #[arg(long, value_name = "FILE")]
    pub shim_binary_path: Option<PathBuf>,
    /// Port of the API on localhost; 0: any free one [env: DSTACK_SHIM_HTTP_PORT, default: 10998, none with --socket]
    #[arg(long, value_name = "PORT")]
    pub shim_http_port: Option<u16>,
    /// Serve the API on a Unix socket too, for this user only [env: DSTACK_SHIM_SOCKET]
    #[arg(long, value_name = "PATH")]
    pub socket: Option<PathBuf>,
    /// Answer only requests that are signed with what is in this file, which others may not read
    /// [env: DSTACK_SHIM_TOKEN_FILE]
    #[arg(long, value_name = "FILE")]
    pub token_file: Option<PathBuf>,
    /// Write the API's port there once it listens [env: DSTACK_SHIM_PORT_FILE]
    #[arg(long, value_name = "FILE")]
    pub port_file: Option<PathBuf>,
    /// fatal, error, warn, info, debug, trace, or 1 to 6 [env: DSTACK_SHIM_LOG_LEVEL, default: info]
    #[arg(long, value_name = "LEVEL")]
    pub shim_log_level: Option<String>,
    /// Where the runner is downloaded from when its file is missing [env: DSTACK_RUNNER_DOWNLOAD_URL]
    #[arg(long, value_name = "URL")]
    pub runner_download_url: Option<String>,
    /// The runner, mounted into containers [env: DSTACK_RUNNER_BINARY_PATH, default: /usr/local/bin/dstack-runner,
    /// or this binary where that file is missing and no URL is given]
    #[arg(long, value_name = "FILE")]
    pub runner_binary_path: Option<PathBuf>,
    /// Port of the runner's API in a task [env: DSTACK_RUNNER_HTTP_PORT, default: 10999]
    #[arg(long, value_name = "PORT")]
    pub runner_http_port: Option<u16>,
    /// Port of SSH in a task [env: DSTACK_RUNNER_SSH_PORT, default: 10022]
    #[arg(long, value_name = "PORT")]
    pub runner_ssh_port: Option<u16>,
    /// Log level of SSH in tasks [env: DSTACK_RUNNER_SSH_LOG_LEVEL]
    #[arg(long, value_name = "LEVEL")]
    pub runner_ssh_log_level: Option<String>,
    /// Log level of the runner [env: DSTACK_RUNNER_LOG_LEVEL, default: info]
    #[arg(long, value_name = "LEVEL")]
    pub runner_log_level: Option<String>,
    /// Port of the DCGM exporter on localhost [env: DSTACK_DCGM_EXPORTER_HTTP_PORT, default: 10997]
    #[arg(long, value_name = "PORT")]
    pub dcgm_exporter_http_port: Option<u16>,
    /// Milliseconds between two collections of the DCGM exporter [env: DSTACK_DCGM_EXPORTER_INTERVAL, default: 5000]
    #[arg(long, value_name = "MS")]
    pub dcgm_exporter_interval: Option<u64>,
    /// Host of an nv-hostengine; accepted, not used: this agent does not load libdcgm [env: DSTACK_DCGM_ADDRESS]
    #[arg(long, value_name = "HOST")]
    pub dcgm_address: Option<String>,
    /// Variables copied into tasks, comma-separated [env: DSTACK_DOCKER_PASS_ENV, default: http_proxy, https_proxy,
    /// no_proxy and the same in capitals]
    #[arg(long, value_name = "NAMES")]
    pub pass_env: Option<String>,
    /// Make every container privileged [env: DSTACK_DOCKER_PRIVILEGED]
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub privileged: Option<String>,
    /// Set PJRT_DEVICE in tasks (TPU) [env: PJRT_DEVICE]
    #[arg(long, value_name = "DEVICE")]
    pub pjrt_device: Option<String>,
    /// Write host_info.json at start [env: DSTACK_SERVICE_MODE]
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub service: Option<String>,
    /// docker, process, or auto: as at the last start; at the first, docker where an engine is installed. With auto the
    /// agent waits for an engine that does not answer [env: DSTACK_SHIM_RUNTIME, default: docker]
    #[arg(long, value_name = "RUNTIME")]
    pub runtime: Option<String>,
    /// End this machine when no task runs on it and no request or stream has come for so many seconds: for machines of clouds, whose
    /// server may be gone for good [env: DSTACK_SHIM_SELF_TERMINATE_AFTER, default: never]
    #[arg(long, value_name = "SECONDS")]
    pub self_terminate_after: Option<u64>,
    /// What ends it, for /bin/sh [env: DSTACK_SHIM_SELF_TERMINATE_COMMAND, default: shutdown -h now || poweroff]
    #[arg(long, value_name = "COMMAND")]
    pub self_terminate_command: Option<String>,
    /// Print the version and exit
    #[arg(short = 'v', long)]
    pub version: bool,
}
