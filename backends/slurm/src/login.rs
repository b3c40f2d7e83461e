//! What runs commands on login nodes: SSH, or what plays it in tests.

use std::fmt::Debug;
use std::sync::Arc;

use async_trait::async_trait;
use dstack_compute::config::SlurmCluster;

/// The login node of a cluster.
#[async_trait]
pub trait LoginNode: Send + Sync + Debug {
    /// Has the user's environment read a script of a POSIX shell from its standard input. Whoever calls limits the time.
    ///
    /// # Errors
    /// Of all but [`LoginError::Lost`], nothing of the script was run.
    async fn run(&self, script: &str) -> Result<Output, LoginError>;
}

/// Makes login nodes of configured clusters.
pub trait LoginNodes: Send + Sync + Debug {
    /// That of this cluster. No calls.
    fn login_node(&self, cluster: &SlurmCluster) -> Arc<dyn LoginNode>;
}

/// What a script left.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Output {
    /// Exit status of the shell; `None`: the connection ended before, or the shell was killed.
    pub status: Option<u32>,
    /// What it wrote to its standard output.
    pub stdout: String,
    /// What it wrote to its standard error.
    pub stderr: String,
}

/// Why a login node does not run a script. The texts are for users.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LoginError {
    /// The private key cannot be used.
    #[error("{0}")]
    Key(String),
    /// User and key are refused.
    #[error("{0}")]
    Denied(String),
    /// It shows another host key than before.
    #[error("{0}")]
    HostKey(String),
    /// It is not reached.
    #[error("{0}")]
    NotSent(String),
    /// Nobody knows how much of the script was run.
    #[error("{0}")]
    Lost(String),
}
