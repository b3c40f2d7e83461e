//! Errors of the host agent.

use std::error::Error;

/// An error and its causes in one line, for messages and logs.
pub fn chain(error: &(dyn Error + 'static)) -> String {
    dstack_system::chain(error).to_string()
}

/// Why the agent cannot start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// A flag or variable has a value that cannot be used.
    #[error("{name}: {problem}")]
    Setting {
        /// Name of the flag or variable.
        name: &'static str,
        /// What is wrong and what would be right.
        problem: String,
    },
    /// A file or directory of the agent's state.
    #[error("cannot use the agent's directory")]
    State(#[source] std::io::Error),
    /// The API's socket.
    #[error("cannot listen on {address}")]
    Listen {
        /// Address or path that was asked for.
        address: String,
        /// What the system says.
        #[source]
        source: std::io::Error,
    },
    /// `--runtime docker`, and no engine answers.
    #[error("no Docker engine answers: start it, set DOCKER_HOST, or use --runtime process")]
    Docker(#[source] crate::runtime::RuntimeError),
    /// Tasks run in another runtime than the wanted one.
    #[error(
        "these tasks of {home} still run in the runtime {runtime}: {tasks}. Start with --runtime {runtime} \
         (DSTACK_LOCAL_RUNTIME={runtime} for the server) until they are over"
    )]
    OtherRuntime {
        /// What runs them.
        runtime: &'static str,
        /// Some of their names.
        tasks: String,
        /// The agent's directory.
        home: String,
    },
    /// The job agent's binary is missing.
    #[error("{path} is missing: put the runner there or set DSTACK_RUNNER_DOWNLOAD_URL")]
    RunnerMissing {
        /// Where it should be.
        path: String,
    },
    /// The job agent's binary could not be downloaded.
    #[error("cannot download the runner")]
    RunnerDownload(#[source] crate::components::InstallError),
    /// Containers of former runs could not be listed.
    #[error("cannot restore the tasks")]
    Restore(#[source] crate::runtime::RuntimeError),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn causes_are_joined() {
        let error = StartError::State(std::io::Error::other("disk full"));
        assert_eq!(chain(&error), "cannot use the agent's directory: disk full");
    }
}
