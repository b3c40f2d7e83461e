//! Repo and files of a job: what is put where before the commands start.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use dstack_agent_api::runner::{RepoCredentials, RepoData};

use crate::users::Owner;

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
