//! Where the things of the job agent are in a container of a cloud that has no host agent below it: the first script of the
//! container, which waits for the agent, and the server, which brings it, agree on them.

/// Absolute paths in a container, without quotes or control characters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ContainerPaths {
    /// Directory of the agent's executables.
    pub programs: String,
    /// Directory of the host key, the keys that may log in, and what is handed over; root's own.
    pub state: String,
}

impl Default for ContainerPaths {
    fn default() -> Self {
        Self {
            programs: "/usr/local/lib/dstack".to_owned(),
            state: "/var/lib/dstack".to_owned(),
        }
    }
}

/// What the server says to be as an SSH client. Its connections are not those of somebody who is at the job.
pub const SERVER_CLIENT: &str = "SSH-2.0-dstack-server";

/// Files in [`ContainerPaths::state`].
pub mod files {
    /// Private host key of the SSH server, made once: that of the script, and that of the runner afterwards.
    pub const HOST_KEY: &str = "host_key";
    /// What calls to the runner must bring; readable for root only, and gone once the runner has it.
    pub const TOKEN: &str = "token";
    /// The path of the agent's executable: there once everything else is.
    pub const START: &str = "start";
    /// There once the script has become the runner.
    pub const TAKEN: &str = "taken";
}
