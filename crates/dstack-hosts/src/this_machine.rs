//! The agent of this machine, without any set-up.
//!
//! * [`binary`] — where the agent's executable comes from.
//! * [`shim`] — starts the agent detached from the server, so that jobs outlive it, and starts it again when it dies.

pub mod binary;
mod environment;
pub mod shim;
mod socket;

pub use shim::{LocalShim, LocalShimOptions};

/// Why this machine cannot be offered.
#[derive(Debug, thiserror::Error)]
pub enum LocalError {
    /// No executable of the agent was found.
    #[error(
        "the agent's executable was not found. Put `dstack-agent` beside `dstack`, or name it in DSTACK_AGENT_PATH, or start \
         the server with --no-local"
    )]
    NoBinary,
    /// A file of the agent cannot be written.
    #[error("the agent's files cannot be written")]
    Files(#[from] std::io::Error),
    /// The agent did not come up.
    #[error("the agent did not start; its output is in {log}{said}")]
    NotUp {
        /// Path of its output.
        log: String,
        /// The end of that, after a colon; empty when it said nothing.
        said: String,
    },
    /// Somebody else may have made a socket there.
    #[error(
        "{folder} must be a folder that belongs to this user and is closed to others (mode 0700): remove what is there"
    )]
    NotPrivate {
        /// Where the agent's socket was to be.
        folder: String,
    },
    /// Jobs were made for another kind of machine.
    #[error(
        "the agent runs tasks in the runtime {found} now, and in {expected} when this server started: restart the server, or name \
         the runtime in DSTACK_LOCAL_RUNTIME"
    )]
    OtherRuntime {
        /// At the start of the server.
        expected: String,
        /// What the agent that runs has.
        found: String,
    },
    /// The agent answers, but not as expected.
    #[error("the agent does not answer properly")]
    Agent(#[source] dstack_agent_api::http::CallError),
}
