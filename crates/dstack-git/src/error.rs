//! Why a repo could not be cloned.

use dstack_ssh::keys::KeyError;

use crate::patch::PatchError;
use crate::remote::RemoteError;
use crate::transport::TransportError;

/// Why a repo could not be cloned, or a diff not applied. No text holds a secret.
#[derive(Debug, thiserror::Error)]
pub enum GitError {
    /// The clone URL cannot be used.
    #[error(transparent)]
    Remote(#[from] RemoteError),
    /// The private key cannot be used.
    #[error("the private key of the repo cannot be used")]
    Key(#[source] KeyError),
    /// The remote cannot be reached or refuses access.
    #[error("cannot fetch {url}")]
    Fetch {
        /// The clone URL, without secrets.
        url: String,
        /// What the transport says.
        #[source]
        source: Box<TransportError>,
    },
    /// Git cannot do something.
    #[error("git cannot {action}")]
    Git {
        /// What was to be done.
        action: String,
        /// What git said.
        #[source]
        source: git2::Error,
    },
    /// The remote has no such branch.
    #[error("the repo has no branch `{branch}`: push it first")]
    NoBranch {
        /// Name of the branch.
        branch: String,
    },
    /// The remote has no such commit.
    #[error("the repo has no commit {hash}: push it first")]
    NoCommit {
        /// The commit that was asked for.
        hash: String,
        /// What git said.
        #[source]
        source: git2::Error,
    },
    /// The diff cannot be applied.
    #[error("cannot apply the uploaded diff")]
    Patch(#[from] PatchError),
    /// It was cancelled meanwhile ([`CloneRequest::cancelled`](crate::CloneRequest::cancelled)).
    #[error("stopped")]
    Stopped,
}
