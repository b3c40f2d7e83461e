//! The first script of a container of a cloud: brings up an SSH server, waits for the job agent that the server brings there,
//! and becomes it.
//!
//! It is for any POSIX shell, runs as root, and needs nothing of the image but that shell and sshd, or a package manager that
//! installs it. What it says goes to the container's log. It exits with 11 where there can be no SSH server, and with 12 when
//! nobody brought the agent.

use std::time::Duration;

use dstack_agent_api::container::ContainerPaths;
use dstack_agent_api::shim::{RUNNER_HTTP_PORT, RUNNER_SSH_PORT};
use dstack_units::quoting::shell_word;

const SCRIPT: &str = include_str!("bootstrap/container.sh");

/// A container whose agent nobody brings ends by itself after this time, as its server may be gone for good. Longer than any
/// cloud may take until a container is in use.
const PATIENCE: Duration = Duration::from_secs(60 * 60);

/// What the script is made of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bootstrap {
    /// Where things are in the container.
    pub paths: ContainerPaths,
    /// TCP port of the SSH server: of sshd first, of the runner afterwards.
    pub ssh_port: u16,
    /// TCP port of the runner's API on the loopback interface.
    pub http_port: u16,
    /// Public keys that may log in, each a line `type base64 [comment]`.
    pub authorized_keys: Vec<String>,
    /// So long the agent is waited for.
    pub patience: Duration,
}

impl Bootstrap {
    /// With the usual ports and places.
    pub fn new(authorized_keys: Vec<String>) -> Self {
        Self {
            paths: ContainerPaths::default(),
            ssh_port: RUNNER_SSH_PORT,
            http_port: RUNNER_HTTP_PORT,
            authorized_keys,
            patience: PATIENCE,
        }
    }

    /// The text for `sh -c`.
    pub fn script(&self) -> String {
        let keys = self.authorized_keys.join("\n");
        let (ssh, http) = (self.ssh_port.to_string(), self.http_port.to_string());
        let patience = self.patience.as_secs().to_string();
        let variables = [
            ("state", self.paths.state.as_str()),
            ("ssh_port", &ssh),
            ("http_port", &http),
            ("patience", &patience),
            ("keys", &keys),
        ];
        let assigned = variables.map(|(name, value)| format!("{name}={}\n", shell_word(value)));
        format!("{}{SCRIPT}", assigned.concat())
    }
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Output};

    use super::*;

    fn run(script: &str, path: &str) -> Output {
        let mut shell = Command::new("/bin/sh");
        shell.args(["-c", script]).env_clear().env("PATH", path);
        shell.output().unwrap()
    }

    #[test]
    fn what_is_inserted_stays_text() {
        let bootstrap = Bootstrap::new(vec![
            "ssh-ed25519 AAAA it's $(touch /tmp/x)".to_owned(),
            "ssh-ed25519 BBBB".to_owned(),
        ]);
        let script = bootstrap.script();
        let (head, _) = script.split_once("# Beside another agent").unwrap();
        let said = run(
            &format!("{head}printf '%s|' \"$keys\" \"$state\" \"$ssh_port\" \"$http_port\" \"$patience\""),
            "/usr/bin:/bin",
        );
        assert_eq!(
            String::from_utf8(said.stdout).unwrap(),
            "ssh-ed25519 AAAA it's $(touch /tmp/x)\nssh-ed25519 BBBB|/var/lib/dstack|10022|10999|3600|"
        );
    }

    #[test]
    fn beside_another_agent_it_has_other_ports_and_folders() {
        let script = Bootstrap::new(Vec::new()).script();
        let (head, _) = script.split_once("# In a shell of its own").unwrap();
        let shown = |before: &str| {
            let text = format!(
                "{before}{head}env; printf '%s|' \"$state\" \"$ssh_port\" \"$http_port\" \"$runner_dir\""
            );
            String::from_utf8(run(&text, "/usr/bin:/bin").stdout).unwrap()
        };
        assert!(shown("").ends_with("/var/lib/dstack|10022|10999||"));
        let beside = shown(
            "export DSTACK_BOOTSTRAP_SSH_PORT=1 DSTACK_BOOTSTRAP_HTTP_PORT=2 DSTACK_BOOTSTRAP_RUNNER_DIR='/a b'\n",
        );
        assert!(beside.ends_with("/var/lib/dstack-1|1|2|/a b|"), "{beside}");
        assert!(
            !beside.contains("DSTACK_BOOTSTRAP"),
            "jobs do not see them: {beside}"
        );
    }

    #[test]
    fn any_posix_shell_can_read_it() {
        let script = Bootstrap::new(Vec::new()).script();
        for shell in ["sh", "dash", "bash", "busybox"] {
            let mut command = Command::new(shell);
            if shell == "busybox" {
                command.arg("sh");
            }
            match command.args(["-n", "-c", &script]).output() {
                Ok(read) => assert!(read.status.success(), "{shell}: {read:?}"),
                Err(_) => eprintln!("skipped: {shell} is not installed"),
            }
        }
    }
}
