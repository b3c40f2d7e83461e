//! The agent as a service: the files that make it one, and the shell functions that start and end it.

use dstack_units::quoting::{Unquotable, shell_word, systemd_word};

use super::{DeployError, Deployment, HostPaths};

/// Functions that end an agent which runs without systemd. Processes are ended by their ids, and only those that still are what
/// they were.
pub(super) const FUNCTIONS: &str = r#"
is_loop() { [ -n "$1" ] && tr '\0' '\n' < "/proc/$1/cmdline" 2>/dev/null | grep -qxF -- "$home/shim-loop.sh"; }
is_agent() {
  [ -n "$1" ] || return 1
  case "$(readlink "/proc/$1/exe" 2>/dev/null)" in "$programs"/dstack-agent-*) return 0 ;; esac
  return 1
}
end_by_id() { # check id
  "$1" "$2" || return 0
  kill "$2" 2>/dev/null
  # One that is stopped does not hear of it before.
  kill -CONT "$2" 2>/dev/null
  tries=0
  while "$1" "$2" && [ "$tries" -lt 150 ]; do
    tries=$((tries + 1))
    sleep 0.1 2>/dev/null || sleep 1
  done
  "$1" "$2" && kill -9 "$2" 2>/dev/null
  return 0
}
end_loop() {
  end_by_id is_loop "$(cat "$home/shim-loop.pid" 2>/dev/null)"
  end_by_id is_agent "$(cat "$home/shim.pid" 2>/dev/null)"
  rm -f "$home/shim-loop.pid" "$home/shim.pid"
}
"#;

/// Whose agent a host has, by what only root can write there: whether it is the one with this token.
pub(super) const OWN_TOKEN: &str = r#"
is_own_token() { [ -f "$token_file" ] && [ "$(cat "$token_file"; printf x)" = "${token}x" ]; }
"#;

/// The unit, as dstack 0.22.5 makes it, but for the process that is stopped: tasks without containers live on.
pub(super) fn unit(paths: &HostPaths, agent: &str) -> Result<String, Unquotable> {
    Ok(format!(
        "[Unit]\nDescription=dstack-shim\nAfter=network-online.target\nStartLimitIntervalSec=3600\nStartLimitBurst=1080\n\n\
         [Service]\nType=simple\nUser=root\nRestart=always\nRestartSec=3\nKillMode=process\nWorkingDirectory={home}\n\
         EnvironmentFile={home}/shim.env\nExecStart={agent} shim\n\n\
         [Install]\nWantedBy=multi-user.target\n",
        home = paths.home,
        agent = systemd_word(agent)?,
    ))
}

/// Keeps the agent running where systemd does not.
pub(super) fn supervisor(paths: &HostPaths, agent: &str) -> String {
    format!(
        "#!/bin/sh\n# Keeps dstack's agent running.\ncd {home} || exit 1\nset -a\n. ./shim.env\nset +a\necho $$ > shim-loop.pid\n\
         while :; do\n  \
         sh -c 'echo $$ > shim.pid; exec \"$1\" shim' sh {agent} < /dev/null > shim-loop.log 2>&1 &\n  \
         wait $!\n  sleep 3\ndone\n",
        home = shell_word(&paths.home),
        agent = shell_word(agent),
    )
}

/// Where the token lies that calls to the agent must bring.
pub(super) fn token_file(paths: &HostPaths) -> String {
    format!("{}/shim.token", paths.home)
}

/// The agent's variables, for systemd's `EnvironmentFile=` and for shells alike.
pub(super) fn env(paths: &HostPaths, deployment: &Deployment, agent: &str) -> Result<String, DeployError> {
    let port = paths.port.to_string();
    let own = [
        ("DSTACK_SHIM_HOME", paths.home.as_str()),
        ("DSTACK_SHIM_HTTP_PORT", port.as_str()),
        ("DSTACK_SHIM_LOG_LEVEL", "info"),
        ("DSTACK_SHIM_BINARY_PATH", agent),
        // One executable is both agents.
        ("DSTACK_RUNNER_BINARY_PATH", agent),
        ("DSTACK_RUNNER_HTTP_PORT", "10999"),
        ("DSTACK_RUNNER_SSH_PORT", "10022"),
        ("DSTACK_RUNNER_LOG_LEVEL", "info"),
        ("DSTACK_SERVICE_MODE", "1"),
    ];
    let token_file = token_file(paths);
    // Last, as the last of one name counts.
    let token = [("DSTACK_SHIM_TOKEN_FILE", token_file.as_str())];
    let named = deployment
        .env
        .iter()
        .map(|(name, value)| (name.as_str(), value.as_str()));
    let mut text = String::new();
    for (name, value) in own.into_iter().chain(named).chain(token) {
        let is_letter = |c: char| c.is_ascii_alphanumeric() || c == '_';
        if name.is_empty() || !name.chars().all(is_letter) || name.starts_with(|c: char| c.is_ascii_digit()) {
            return Err(DeployError::Refused(format!(
                "{name:?} cannot be a variable of the host's agent: letters, digits and `_` make a name"
            )));
        }
        if value.contains('\0') {
            return Err(DeployError::Refused(format!(
                "the value of {name} has a zero byte"
            )));
        }
        text.push_str(&format!("{name}=\"{}\"\n", escaped(value)));
    }
    Ok(text)
}

/// For double quotes, of which shells and systemd understand the same escapes.
fn escaped(value: &str) -> String {
    let mut text = String::new();
    for c in value.chars() {
        if matches!(c, '"' | '\\' | '$' | '`') {
            text.push('\\');
        }
        text.push(c);
    }
    text
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use dstack_model::reach::{Hop, Reach};

    use super::*;

    fn deployment(env: &[(&str, &str)]) -> Deployment {
        Deployment {
            reach: Reach {
                jumps: Vec::new(),
                host: Hop {
                    host: "h".to_owned(),
                    port: 22,
                    user: "u".to_owned(),
                    keys: Vec::new(),
                    host_keys: Vec::new(),
                },
            },
            authorized_keys: Vec::new(),
            token: "t0ken".into(),
            gpu_devices: Vec::new(),
            install_docker: false,
            env: env
                .iter()
                .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
                .collect(),
        }
    }

    #[test]
    fn shells_read_the_variables_that_were_given() {
        let nasty = "a\"b\\c$HOME`id`'d e\nf \\n";
        let text = env(&HostPaths::default(), &deployment(&[("NASTY", nasty)]), "/agent").unwrap();
        let dir = tempfile::tempdir().unwrap();
        fs_err::write(dir.path().join("env"), &text).unwrap();
        let read = Command::new("sh")
            .args([
                "-c",
                ". ./env; printf %s \"$NASTY\"; printf ' %s' \"$DSTACK_SHIM_HTTP_PORT\"",
            ])
            .current_dir(dir.path())
            .output()
            .unwrap();
        assert_eq!(String::from_utf8(read.stdout).unwrap(), format!("{nasty} 10998"));
        for name in ["", "1A", "A B", "A=B", "A\nB"] {
            let refused = env(&HostPaths::default(), &deployment(&[(name, "x")]), "/agent");
            assert!(matches!(refused, Err(DeployError::Refused(_))), "{name:?}");
        }
    }

    #[test]
    fn the_token_is_in_a_file_that_variables_of_the_fleet_do_not_change() {
        let deployment = deployment(&[("DSTACK_SHIM_TOKEN_FILE", "/dev/null")]);
        let text = env(&HostPaths::default(), &deployment, "/agent").unwrap();
        assert!(!text.contains("t0ken"), "{text}");
        let last = text
            .lines()
            .rfind(|line| line.starts_with("DSTACK_SHIM_TOKEN_FILE="));
        assert_eq!(last, Some("DSTACK_SHIM_TOKEN_FILE=\"/root/.dstack/shim.token\""));
    }

    #[test]
    fn the_unit_is_that_of_dstack_0_22_5_with_our_agent() {
        let text = unit(&HostPaths::default(), "/usr/local/lib/dstack/dstack-agent-01").unwrap();
        for line in [
            "After=network-online.target",
            "StartLimitIntervalSec=3600",
            "StartLimitBurst=1080",
            "Type=simple",
            "User=root",
            "Restart=always",
            "RestartSec=3",
            "WorkingDirectory=/root/.dstack",
            "EnvironmentFile=/root/.dstack/shim.env",
            "ExecStart=\"/usr/local/lib/dstack/dstack-agent-01\" shim",
            "KillMode=process",
            "WantedBy=multi-user.target",
        ] {
            assert!(text.lines().any(|found| found == line), "{line}\n{text}");
        }
    }
}
