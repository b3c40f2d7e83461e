//! Repo and files of a job: what is put where before the commands start.

mod archive;
mod tree;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use dstack_agent_api::runner::{RepoCredentials, RepoData};
use dstack_git::{CloneRequest, GitClone, GitError};

use crate::users::Owner;
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
    /// Which repo, and what of it.
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
    /// Absolute path where the content goes.
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
        /// The repo's directory.
        dir: PathBuf,
    },
    /// Something else stands where the directory shall be.
    #[error("not a directory: {}", dir.display())]
    NotDirectory {
        /// Path of what stands there.
        dir: PathBuf,
    },
    /// A kind of repo this version does not know.
    #[error("unknown repo type `{kind}`")]
    UnknownType {
        /// The kind, as submitted.
        kind: String,
    },
    /// A remote repo without a clone URL.
    #[error("the repo has no clone URL")]
    NoUrl,
    /// The repo cannot be cloned, or the diff cannot be applied.
    #[error(transparent)]
    Git(#[from] GitError),
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
}

/// Puts the repo where the job wants it. Blocks: call it off the async threads.
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
    let clone = GitClone::new(clone_request(job, credentials))?;
    clone.run(&job.dir)?;
    if let Some(blob) = &job.blob {
        let diff = fs_err::read(blob).map_err(|source| RepoError::Io {
            dir: job.dir.clone(),
            source,
        })?;
        clone.apply_diff(&job.dir, &diff)?;
    }
    Ok(())
}

fn clone_request(job: &RepoJob, credentials: &RepoCredentials) -> CloneRequest {
    let data = job.data.clone();
    CloneRequest {
        url: credentials.clone_url.clone(),
        branch: data.repo_branch,
        commit: data.repo_hash,
        single_branch: job.single_branch,
        user_name: data.repo_config_name,
        user_email: data.repo_config_email,
        private_key: credentials.private_key.clone(),
        token: credentials.oauth_token.clone(),
        known_hosts: job.known_hosts.clone(),
        cancelled: Arc::clone(&job.cancelled),
    }
}

/// Puts each archive where the job wants it. Blocks: call it off the async threads.
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
