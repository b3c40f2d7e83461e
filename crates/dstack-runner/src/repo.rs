//! Repo and files of a job: what is put where before the commands start.

mod archive;
mod git;
mod patch;
mod remote;
mod transport;
mod tree;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use dstack_agent_api::runner::{RepoCredentials, RepoData};
use dstack_ssh::keys::KeyError;

use crate::users::Owner;
pub use patch::PatchError;
use remote::Remote;
pub use remote::RemoteError;
use transport::Access;
pub use transport::TransportError;
use tree::Found;

/// What to do when the repo's directory exists and is not empty.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExistsAction {
    /// Fail the job.
    Error,
    /// Leave the directory as it is.
    Skip,
}

/// The repo step of a job.
#[derive(Debug, Clone)]
pub struct RepoJob {
    /// Absolute path where the repo goes.
    pub dir: PathBuf,
    /// Which repo.
    pub data: RepoData,
    /// How to clone it; `None` for public repos without a credential and for repos that are not cloned.
    pub credentials: Option<RepoCredentials>,
    /// Files of host keys (`known_hosts`) that a host reached over ssh must not contradict; they may be missing.
    pub known_hosts: Vec<PathBuf>,
    /// Clone only the wanted branch.
    pub single_branch: bool,
    /// What to do with a directory that is not empty.
    pub exists_action: ExistsAction,
    /// The uploaded tar (local, virtual) or diff (remote), when one was uploaded. May be empty.
    pub blob: Option<PathBuf>,
    /// Who gets the files; `None`: leave them to the runner's user.
    pub owner: Option<Owner>,
    /// Set when the job is stopped: give up soon.
    pub cancelled: Arc<AtomicBool>,
}

/// One archive and where its content goes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FilePlacement {
    /// The uploaded tar.
    pub archive: PathBuf,
    /// Absolute destination.
    pub destination: PathBuf,
}

/// The files step of a job.
#[derive(Debug, Clone)]
pub struct FilesJob {
    /// In the order of the job's specification.
    pub placements: Vec<FilePlacement>,
    /// Who gets the files; `None`: leave them to the runner's user.
    pub owner: Option<Owner>,
}

/// Why the repo or the files could not be set up.
#[derive(Debug, thiserror::Error)]
pub enum RepoError {
    /// The directory has something in it and the job says that this is an error.
    #[error("repo dir is not empty: {}", dir.display())]
    NotEmpty {
        /// The directory.
        dir: PathBuf,
    },
    /// Something else stands where the directory shall be.
    #[error("not a directory: {}", dir.display())]
    NotDirectory {
        /// The path.
        dir: PathBuf,
    },
    /// A kind of repo this version does not know.
    #[error("unknown repo type `{kind}`")]
    UnknownType {
        /// As submitted.
        kind: String,
    },
    /// A remote repo without a clone URL.
    #[error("the repo has no clone URL")]
    NoUrl,
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
        /// Why.
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
        /// The commit.
        hash: String,
        /// What git said.
        #[source]
        source: git2::Error,
    },
    /// The uploaded diff cannot be applied.
    #[error("cannot apply the uploaded diff")]
    Patch(#[from] PatchError),
    /// The uploaded archive cannot be unpacked.
    #[error("cannot unpack the archive to {}", destination.display())]
    Archive {
        /// Where it was to go.
        destination: PathBuf,
        /// What went wrong.
        #[source]
        source: std::io::Error,
    },
    /// A file or directory cannot be read or written.
    #[error("cannot set up {}", dir.display())]
    Io {
        /// The repo's directory.
        dir: PathBuf,
        /// What went wrong.
        #[source]
        source: std::io::Error,
    },
    /// The job was stopped meanwhile.
    #[error("stopped")]
    Stopped,
}

/// Puts the repo where the job wants it (reference: agents/runner.md §10.3). Blocks: call it off the async threads.
pub fn prepare(job: &RepoJob) -> Result<(), RepoError> {
    let io_error = |source| RepoError::Io {
        dir: job.dir.clone(),
        source,
    };
    match (tree::look(&job.dir).map_err(io_error)?, job.exists_action) {
        (Found::Empty, _) => {}
        (Found::NotDirectory, _) => return Err(RepoError::NotDirectory { dir: job.dir.clone() }),
        (Found::Full, ExistsAction::Error) => return Err(RepoError::NotEmpty { dir: job.dir.clone() }),
        (Found::Full, ExistsAction::Skip) => {
            tracing::info!(repo.dir = %job.dir.display(), "the repo dir is not empty: left as it is");
            return Ok(());
        }
    }
    if let Err(error) = fill(job) {
        // Half a repo on a volume would be taken for a whole one by the next job.
        if let Err(error) = tree::clear(&job.dir) {
            tracing::debug!(%error, "the repo dir was not cleared");
        }
        return Err(error);
    }
    // The job can still do much with files that stay root's: dstack 0.22.5 goes on too.
    if let Err(error) = tree::give_all(&job.dir, job.owner) {
        tracing::warn!(%error, "some files of the repo keep their owner");
    }
    Ok(())
}

/// Puts the repo into its empty directory.
fn fill(job: &RepoJob) -> Result<(), RepoError> {
    let io_error = |source| RepoError::Io {
        dir: job.dir.clone(),
        source,
    };
    match job.data.repo_type.as_str() {
        "remote" => {
            if let Some(parent) = job.dir.parent() {
                tree::create(parent, job.owner).map_err(io_error)?;
            }
            clone(job)
        }
        "local" | "virtual" => {
            let Some(blob) = &job.blob else { return Ok(()) };
            tree::create(&job.dir, job.owner).map_err(io_error)?;
            archive::unpack(blob, &job.dir).map_err(|source| RepoError::Archive {
                destination: job.dir.clone(),
                source,
            })
        }
        kind => Err(RepoError::UnknownType {
            kind: kind.to_owned(),
        }),
    }
}

fn clone(job: &RepoJob) -> Result<(), RepoError> {
    let credentials = job
        .credentials
        .as_ref()
        .filter(|credentials| !credentials.clone_url.is_empty());
    let credentials = credentials.ok_or(RepoError::NoUrl)?;
    let remote = Remote::parse(&credentials.clone_url)?;
    // A password in the address must not end up in the clone's configuration.
    let url = match &remote {
        Remote::Http { url, .. } => url.to_string(),
        Remote::Ssh { .. } => credentials.clone_url.clone(),
    };
    let access = Access::new(
        remote,
        credentials,
        job.known_hosts.clone(),
        Arc::clone(&job.cancelled),
    )
    .map_err(RepoError::Key)?;
    let clone = git::Clone {
        url,
        data: &job.data,
        single_branch: job.single_branch,
        access: Arc::new(access),
    };
    clone.run(&job.dir)?;
    if let Some(blob) = &job.blob {
        let diff = fs_err::read(blob).map_err(|source| RepoError::Io {
            dir: job.dir.clone(),
            source,
        })?;
        clone.apply(&job.dir, &patch::parse(&diff)?)?;
    }
    Ok(())
}

/// Puts each archive where the job wants it (reference: agents/runner.md §10.3). Blocks: call it off the async threads.
pub fn prepare_files(job: &FilesJob) -> Result<(), RepoError> {
    for placement in &job.placements {
        let placed = archive::place(&placement.archive, &placement.destination, job.owner);
        placed.map_err(|source| RepoError::Archive {
            destination: placement.destination.clone(),
            source,
        })?;
    }
    Ok(())
}
