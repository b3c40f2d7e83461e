//! What the agent is told of the server's environment.
//!
//! The agent outlives the server and starts jobs as the same user, who may read `/proc/<agent>/environ`. The server's own
//! settings (tokens, the database's address, credentials of clouds) are none of its business.

/// Variables of a user's session, of proxies, and of what the agent talks to.
const NAMES: &[&str] = &[
    "PATH",
    "HOME",
    "USER",
    "LOGNAME",
    "SHELL",
    "LANG",
    "LANGUAGE",
    "TZ",
    "TMPDIR",
    "TERM",
    "LD_LIBRARY_PATH",
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
    "CUDA_HOME",
    "CUDA_PATH",
    "VIRTUAL_ENV",
    "CONDA_PREFIX",
    "CONDA_DEFAULT_ENV",
    "NVIDIA_DRIVER_CAPABILITIES",
    "http_proxy",
    "https_proxy",
    "no_proxy",
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "NO_PROXY",
    "DOCKER_HOST",
    "DOCKER_CERT_PATH",
    "DOCKER_TLS_VERIFY",
    "PJRT_DEVICE",
    "RUST_BACKTRACE",
];
/// Beginnings of the names of others: locale, desktop session, and the agents' own settings.
const PREFIXES: &[&str] = &[
    "LC_",
    "XDG_",
    "DSTACK_SHIM_",
    "DSTACK_RUNNER_",
    "DSTACK_DOCKER_",
    "DSTACK_DCGM_",
];
/// The token of one runner: there is none for all. The agent's own: over its socket none is sent. And what has machines of clouds end
/// themselves: this one is the user's.
const NEVER: &[&str] = &[
    "DSTACK_RUNNER_TOKEN",
    "DSTACK_SHIM_TOKEN_FILE",
    "DSTACK_SHIM_SELF_TERMINATE_AFTER",
    "DSTACK_SHIM_SELF_TERMINATE_COMMAND",
];
/// Names the variables that jobs are to have.
const PASS_ENV: &str = "DSTACK_DOCKER_PASS_ENV";

/// Those of the server's variables that the agent gets.
pub(crate) fn of_agent(server: Vec<(String, String)>) -> Vec<(String, String)> {
    let passed: Vec<String> = server
        .iter()
        .filter(|(name, _)| name == PASS_ENV)
        .flat_map(|(_, names)| names.split(',').map(|name| name.trim().to_owned()))
        .collect();
    let wanted = |name: &str| {
        let listed = NAMES.contains(&name) || PREFIXES.iter().any(|prefix| name.starts_with(prefix));
        !NEVER.contains(&name) && (listed || passed.iter().any(|passed| passed == name))
    };
    server.into_iter().filter(|(name, _)| wanted(name)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kept(server: &[&str]) -> Vec<String> {
        let server = server.iter().filter_map(|pair| pair.split_once('='));
        let server = server.map(|(name, value)| (name.to_owned(), value.to_owned()));
        of_agent(server.collect())
            .into_iter()
            .map(|(name, _)| name)
            .collect()
    }

    #[test]
    fn the_servers_secrets_stay_with_it() {
        let secrets = [
            "DSTACK_SERVER_ADMIN_TOKEN=x",
            "DSTACK_DATABASE_URL=postgres://u:p@h/d",
            "DSTACK_SERVER_DIR=/x",
            "AWS_SECRET_ACCESS_KEY=x",
            "GOOGLE_APPLICATION_CREDENTIALS=/x",
            "DSTACK_ENTERPRISE_GITHUB_CLIENT_SECRET=x",
            "DSTACK_RUNNER_TOKEN=x",
            "DSTACK_SHIM_TOKEN_FILE=/x",
            "SENTRY_DSN=x",
            "SOMETHING_ELSE=x",
        ];
        assert_eq!(kept(&secrets), Vec::<String>::new());
    }

    #[test]
    fn the_agent_has_what_it_needs_and_what_jobs_are_to_have() {
        let needed = [
            "PATH=/bin",
            "HOME=/root",
            "https_proxy=http://p",
            "DOCKER_HOST=unix:///x",
            "LC_ALL=C",
            "DSTACK_SHIM_LOG_LEVEL=debug",
        ];
        assert_eq!(kept(&needed).len(), needed.len());
        assert_eq!(
            kept(&[
                "HF_TOKEN=x",
                "OTHER=y",
                "DSTACK_DOCKER_PASS_ENV=HF_TOKEN, WANDB_KEY"
            ]),
            ["HF_TOKEN", "DSTACK_DOCKER_PASS_ENV"]
        );
    }

    #[test]
    fn the_users_machine_does_not_end_itself() {
        let server = [
            "DSTACK_SHIM_SELF_TERMINATE_AFTER=600",
            "DSTACK_SHIM_SELF_TERMINATE_COMMAND=poweroff",
            "DSTACK_SHIM_LOG_LEVEL=debug",
            "DSTACK_DOCKER_PASS_ENV=DSTACK_SHIM_SELF_TERMINATE_AFTER",
        ];
        assert_eq!(kept(&server), ["DSTACK_SHIM_LOG_LEVEL", "DSTACK_DOCKER_PASS_ENV"]);
    }
}
