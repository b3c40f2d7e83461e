//! Settings: flags, then variables, then defaults, checked once at start.

use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use dstack_agent_api::shim::{DEFAULT_HTTP_PORT, RUNNER_HTTP_PORT, RUNNER_SSH_PORT};
use dstack_system::{Secret, env};

use crate::cli::Args;
use crate::error::StartError;
use crate::token;

const PASS_ENV: &str = "http_proxy,https_proxy,no_proxy,HTTP_PROXY,HTTPS_PROXY,NO_PROXY";
/// Where the runner is on a host that a server has set up.
pub const RUNNER_PATH: &str = "/usr/local/bin/dstack-runner";
const SELF_TERMINATE: &str = "shutdown -h now || poweroff";
const SHIM_PATH: &str = "/usr/local/bin/dstack-shim";

/// What runs tasks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RuntimeChoice {
    /// A Docker engine, or no start.
    Docker,
    /// Plain processes of the host, without isolation.
    Process,
    /// As at the last start; at the first, Docker where an engine is installed, whether it answers or not.
    Auto,
}

/// All settings, with their defaults filled in.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Directory of the agent's state and of its tasks.
    pub home: PathBuf,
    /// Replaced on self-update.
    pub shim_binary: PathBuf,
    /// TCP port of the API; `None`: no TCP.
    pub http_port: Option<u16>,
    /// Unix socket of the API.
    pub socket: Option<PathBuf>,
    /// What every request must bring; `None`: whoever reaches the API may use it.
    pub token: Option<Secret>,
    /// Receives the TCP port.
    pub port_file: Option<PathBuf>,
    /// Of this agent's log.
    pub log_level: tracing::level_filters::LevelFilter,
    /// For a missing runner.
    pub runner_url: Option<String>,
    /// The runner's file, when said.
    pub runner_binary: Option<PathBuf>,
    /// Port of the runner's API in tasks.
    pub runner_http_port: u16,
    /// Port of the runner's SSH server in tasks.
    pub runner_ssh_port: u16,
    /// Passed on as it is.
    pub runner_log_level: String,
    /// Passed on as it is.
    pub runner_ssh_log_level: Option<String>,
    /// Of the exporter.
    pub dcgm_port: u16,
    /// Time between two samples of the exporter, in milliseconds.
    pub dcgm_interval_ms: u64,
    /// Copied into tasks.
    pub pass_env: Vec<(String, String)>,
    /// Whether all containers are privileged.
    pub privileged: bool,
    /// Value of `PJRT_DEVICE` for containers (TPU).
    pub pjrt_device: Option<String>,
    /// Whether `host_info.json` is written, as for an installed service.
    pub service: bool,
    /// What runs tasks.
    pub runtime: RuntimeChoice,
    /// Not needed for so long, the machine is ended; `None`: never.
    pub self_terminate_after: Option<Duration>,
    /// What ends it, for `/bin/sh`.
    pub self_terminate_command: String,
    /// Value of `DOCKER_HOST`: address of the container engine.
    pub docker_host: Option<String>,
}

impl Settings {
    /// Fills in what flags leave out from the environment and from defaults, and checks everything.
    pub fn resolve(args: Args) -> Result<Self, StartError> {
        let text = |flag: Option<String>, name: &str| flag.or_else(|| env::var(name));
        let path = |flag: Option<PathBuf>, name: &str| flag.or_else(|| env::var(name).map(PathBuf::from));
        let home = match path(args.shim_home, "DSTACK_SHIM_HOME") {
            Some(home) => home,
            None => env::home()
                .map(|home| home.join(".dstack"))
                .ok_or_else(|| StartError::Setting {
                    name: "--shim-home",
                    problem: "HOME is not set: say where the state is kept".to_owned(),
                })?,
        };
        let socket = path(args.socket, "DSTACK_SHIM_SOCKET");
        let http_port = number("--shim-http-port", args.shim_http_port, "DSTACK_SHIM_HTTP_PORT")?
            .or((socket.is_none()).then_some(DEFAULT_HTTP_PORT));
        let token = path(args.token_file, "DSTACK_SHIM_TOKEN_FILE");
        let log_level =
            text(args.shim_log_level, "DSTACK_SHIM_LOG_LEVEL").unwrap_or_else(|| "info".to_owned());
        let runner_log_level =
            text(args.runner_log_level, "DSTACK_RUNNER_LOG_LEVEL").unwrap_or_else(|| "info".to_owned());
        level("--runner-log-level", &runner_log_level)?;
        Ok(Self {
            home,
            shim_binary: path(args.shim_binary_path, "DSTACK_SHIM_BINARY_PATH")
                .or_else(|| std::env::current_exe().ok())
                .unwrap_or_else(|| SHIM_PATH.into()),
            http_port,
            socket,
            token: token.map(|path| token::read(&path)).transpose()?,
            port_file: path(args.port_file, "DSTACK_SHIM_PORT_FILE"),
            log_level: level("--shim-log-level", &log_level)?,
            runner_url: text(args.runner_download_url, "DSTACK_RUNNER_DOWNLOAD_URL"),
            runner_binary: path(args.runner_binary_path, "DSTACK_RUNNER_BINARY_PATH"),
            runner_http_port: number(
                "--runner-http-port",
                args.runner_http_port,
                "DSTACK_RUNNER_HTTP_PORT",
            )?
            .unwrap_or(RUNNER_HTTP_PORT),
            runner_ssh_port: number(
                "--runner-ssh-port",
                args.runner_ssh_port,
                "DSTACK_RUNNER_SSH_PORT",
            )?
            .unwrap_or(RUNNER_SSH_PORT),
            runner_log_level,
            runner_ssh_log_level: text(args.runner_ssh_log_level, "DSTACK_RUNNER_SSH_LOG_LEVEL"),
            dcgm_port: number(
                "--dcgm-exporter-http-port",
                args.dcgm_exporter_http_port,
                "DSTACK_DCGM_EXPORTER_HTTP_PORT",
            )?
            .unwrap_or(10997),
            dcgm_interval_ms: number(
                "--dcgm-exporter-interval",
                args.dcgm_exporter_interval,
                "DSTACK_DCGM_EXPORTER_INTERVAL",
            )?
            .unwrap_or(5000),
            pass_env: pass_env(
                &text(args.pass_env, "DSTACK_DOCKER_PASS_ENV").unwrap_or_else(|| PASS_ENV.to_owned()),
            ),
            privileged: switch("--privileged", text(args.privileged, "DSTACK_DOCKER_PRIVILEGED"))?,
            pjrt_device: text(args.pjrt_device, "PJRT_DEVICE"),
            service: switch("--service", text(args.service, "DSTACK_SERVICE_MODE"))?,
            runtime: runtime(text(args.runtime, "DSTACK_SHIM_RUNTIME").as_deref())?,
            self_terminate_after: self_terminate_after(args.self_terminate_after)?,
            self_terminate_command: text(args.self_terminate_command, "DSTACK_SHIM_SELF_TERMINATE_COMMAND")
                .unwrap_or_else(|| SELF_TERMINATE.to_owned()),
            docker_host: env::var("DOCKER_HOST"),
        })
    }
}

fn number<T: FromStr>(name: &'static str, flag: Option<T>, variable: &str) -> Result<Option<T>, StartError> {
    match (flag, env::var(variable)) {
        (Some(value), _) => Ok(Some(value)),
        (None, Some(text)) => text.trim().parse().map(Some).map_err(|_| StartError::Setting {
            name,
            problem: format!("{variable}={text:?} is not a number that fits"),
        }),
        (None, None) => Ok(None),
    }
}

fn self_terminate_after(flag: Option<u64>) -> Result<Option<Duration>, StartError> {
    let name = "--self-terminate-after";
    match number(name, flag, "DSTACK_SHIM_SELF_TERMINATE_AFTER")? {
        Some(0) => Err(StartError::Setting {
            name,
            problem: "0 would end the machine at once: leave it out, or say a number of seconds".to_owned(),
        }),
        seconds => Ok(seconds.map(Duration::from_secs)),
    }
}

fn switch(name: &'static str, text: Option<String>) -> Result<bool, StartError> {
    match text.unwrap_or_default().to_ascii_lowercase().as_str() {
        "" | "0" | "f" | "false" => Ok(false),
        "1" | "t" | "true" => Ok(true),
        other => Err(StartError::Setting {
            name,
            problem: format!("{other:?} is neither true nor false"),
        }),
    }
}

fn runtime(text: Option<&str>) -> Result<RuntimeChoice, StartError> {
    match text.unwrap_or("docker") {
        "docker" => Ok(RuntimeChoice::Docker),
        "process" => Ok(RuntimeChoice::Process),
        "auto" => Ok(RuntimeChoice::Auto),
        other => Err(StartError::Setting {
            name: "--runtime",
            problem: format!("{other:?} is none of docker, process, auto"),
        }),
    }
}

/// logrus's names and numbers: 1 is fatal, 6 is trace.
fn level(name: &'static str, text: &str) -> Result<tracing::level_filters::LevelFilter, StartError> {
    use tracing::level_filters::LevelFilter;
    match text.to_ascii_lowercase().as_str() {
        "fatal" | "1" | "error" | "2" => Ok(LevelFilter::ERROR),
        "warn" | "warning" | "3" => Ok(LevelFilter::WARN),
        "info" | "4" => Ok(LevelFilter::INFO),
        "debug" | "5" => Ok(LevelFilter::DEBUG),
        "trace" | "6" => Ok(LevelFilter::TRACE),
        _ => Err(StartError::Setting {
            name,
            problem: format!("{text:?} is none of fatal, error, warn, info, debug, trace, 1 to 6"),
        }),
    }
}

fn pass_env(names: &str) -> Vec<(String, String)> {
    names
        .split(',')
        .map(str::trim)
        .filter(|name| !name.is_empty())
        .filter_map(|name| Some((name.to_owned(), env::var(name)?)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_and_socket() {
        let args = |socket: Option<&str>, port| Args {
            shim_home: Some("/tmp/x".into()),
            socket: socket.map(PathBuf::from),
            shim_http_port: port,
            ..Args::default()
        };
        assert_eq!(
            Settings::resolve(args(None, None)).unwrap().http_port,
            Some(10998)
        );
        assert_eq!(
            Settings::resolve(args(Some("/tmp/s"), None)).unwrap().http_port,
            None
        );
        assert_eq!(
            Settings::resolve(args(Some("/tmp/s"), Some(0)))
                .unwrap()
                .http_port,
            Some(0)
        );
        assert_eq!(
            Settings::resolve(args(None, None)).unwrap().runner_ssh_port,
            10022
        );
    }

    #[test]
    fn levels_and_switches() {
        use tracing::level_filters::LevelFilter;
        for (text, wanted) in [
            ("INFO", LevelFilter::INFO),
            ("warning", LevelFilter::WARN),
            ("5", LevelFilter::DEBUG),
            ("1", LevelFilter::ERROR),
        ] {
            assert_eq!(level("x", text).unwrap(), wanted);
        }
        assert!(level("x", "7").is_err() && level("x", "").is_err());
        assert!(
            switch("x", Some("TRUE".into())).unwrap()
                && !switch("x", None).unwrap()
                && switch("x", Some("yep".into())).is_err()
        );
        assert!(runtime(Some("podman")).is_err());
        assert!(self_terminate_after(Some(0)).is_err());
        assert_eq!(
            self_terminate_after(Some(90)).unwrap(),
            Some(Duration::from_secs(90))
        );
        assert_eq!(self_terminate_after(None).unwrap(), None);
    }

    #[test]
    fn the_command_line() {
        use clap::Parser as _;
        let args = Args::try_parse_from([
            "dstack-shim",
            "--privileged",
            "--pjrt-device=TPU",
            "--service=false",
            "-v",
        ])
        .unwrap();
        assert_eq!(args.privileged.as_deref(), Some("true"));
        assert_eq!((args.service.as_deref(), args.version), (Some("false"), true));
    }
}
