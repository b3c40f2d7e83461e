//! Cloning: fetch, check out the wanted commit, submodules.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use dstack_system::Secret;
use git2::build::CheckoutBuilder;
use git2::{
    AutotagOption, BranchType, Direction, FetchOptions, Oid, RemoteCallbacks, Repository,
    SubmoduleUpdateOptions,
};

use crate::error::GitError;
use crate::patch;
use crate::remote::Remote;
use crate::transport::{Access, with_access};

/// How deep submodules of submodules are followed (dstack 0.22.5: go-git's default).
const SUBMODULE_DEPTH: usize = 10;

/// Which repo to clone, and how. Empty texts count as absent.
#[derive(Clone, Default)]
pub struct CloneRequest {
    /// `https://…`, `http://…`, `ssh://…` or `user@host:path`; a user and password in it are used, and not kept.
    pub url: String,
    /// Branch to check out; `None`: the remote's default.
    pub branch: Option<String>,
    /// Commit to check out, in full; `None`: the head of the branch. When it is not the head, no branch is current.
    pub commit: Option<String>,
    /// Fetches only the wanted branch.
    pub single_branch: bool,
    /// `user.name` in the configuration of the clone.
    pub user_name: Option<String>,
    /// `user.email` in the configuration of the clone.
    pub user_email: Option<String>,
    /// Private key for ssh, in OpenSSH or PEM form, without a passphrase. Shown to the host of `url` only.
    pub private_key: Option<Secret>,
    /// Password for https. Shown to the server of `url` only.
    pub token: Option<Secret>,
    /// Files of host keys (`known_hosts`) that a host reached over ssh must not contradict; they may be missing.
    pub known_hosts: Vec<PathBuf>,
    /// Set to give up soon.
    pub cancelled: Arc<AtomicBool>,
}

/// Without the address, which may hold a password.
impl fmt::Debug for CloneRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CloneRequest")
            .field("branch", &self.branch)
            .field("commit", &self.commit)
            .finish_non_exhaustive()
    }
}

/// A clone to be made, with what it may use. Its methods block: call them off the async threads.
#[derive(Debug)]
pub struct GitClone {
    /// As the user gave it, but without any secret: it is stored in the clone's configuration.
    url: String,
    request: CloneRequest,
    access: Arc<Access>,
}

impl GitClone {
    /// Prepares a clone; nothing is asked of the server yet.
    ///
    /// # Errors
    /// The address or the private key cannot be used.
    pub fn new(request: CloneRequest) -> Result<Self, GitError> {
        let remote = Remote::parse(&request.url)?;
        let url = match &remote {
            Remote::Http { url, .. } => url.to_string(),
            Remote::Ssh { .. } => request.url.clone(),
        };
        let access = Access::new(remote, &request).map_err(GitError::Key)?;
        Ok(Self {
            url,
            request,
            access: Arc::new(access),
        })
    }

    /// Clones into `dir`, which exists or not, and checks out the wanted commit with its submodules.
    ///
    /// # Errors
    /// The server cannot be reached or refuses, there is no such branch or commit, or the files cannot be written. What was
    /// cloned until then stays in `dir`.
    pub fn run(&self, dir: &Path) -> Result<(), GitError> {
        let cloned = with_access(&self.access, || self.clone_into(dir));
        cloned.map_err(|source| self.error("prepare git", source))?
    }

    /// Applies the output of `git diff --binary` to the clone in `dir`; moved submodules are fetched with the same
    /// credentials.
    ///
    /// # Errors
    /// The diff cannot be read or does not fit; files are as they were, but for those that could not be written.
    pub fn apply_diff(&self, dir: &Path, diff: &[u8]) -> Result<(), GitError> {
        let patches = patch::parse(diff)?;
        let applied = with_access(&self.access, || patch::apply(dir, &patches));
        Ok(applied.map_err(|source| self.error("prepare git", source))??)
    }

    fn clone_into(&self, dir: &Path) -> Result<(), GitError> {
        let repo = Repository::init(dir).map_err(|source| self.error("create the repo", source))?;
        let branch = self.fetch(&repo)?;
        let head = self.check_out(&repo, &branch)?;
        tracing::info!(repo.branch = branch, repo.commit = %head, "repo cloned");
        self.configure(&repo)
            .map_err(|source| self.error("configure the repo", source))?;
        self.update_submodules(&repo, SUBMODULE_DEPTH)
    }

    /// Fetches and returns the name of the branch.
    fn fetch(&self, repo: &Repository) -> Result<String, GitError> {
        let fetch_error = |source| self.error("fetch", source);
        let branch = match self.wanted_branch() {
            Some(branch) => branch.to_owned(),
            None => self.default_branch(repo)?,
        };
        let spec = if self.request.single_branch {
            format!("+refs/heads/{branch}:refs/remotes/origin/{branch}")
        } else {
            "+refs/heads/*:refs/remotes/origin/*".to_owned()
        };
        let mut origin = repo
            .remote_with_fetch("origin", &self.url, &spec)
            .map_err(fetch_error)?;
        let mut options = self.fetch_options();
        options.download_tags(if self.request.single_branch {
            AutotagOption::Auto
        } else {
            AutotagOption::All
        });
        origin
            .fetch::<&str>(&[], Some(&mut options), None)
            .map_err(fetch_error)?;
        Ok(branch)
    }

    fn wanted_branch(&self) -> Option<&str> {
        self.request.branch.as_deref().filter(|branch| !branch.is_empty())
    }

    fn default_branch(&self, repo: &Repository) -> Result<String, GitError> {
        let fetch_error = |source| self.error("list the branches", source);
        let mut remote = repo.remote_anonymous(&self.url).map_err(fetch_error)?;
        let connection = remote
            .connect_auth(Direction::Fetch, Some(self.callbacks()), None)
            .map_err(fetch_error)?;
        let name = connection.default_branch().map_err(fetch_error)?;
        let name = name.as_str().unwrap_or_default();
        Ok(name.strip_prefix("refs/heads/").unwrap_or(name).to_owned())
    }

    /// The branch, or the wanted commit when it is not the branch's head (then no branch is current).
    fn check_out(&self, repo: &Repository, branch: &str) -> Result<Oid, GitError> {
        let no_branch = |_| GitError::NoBranch {
            branch: branch.to_owned(),
        };
        let upstream = repo
            .find_branch(&format!("origin/{branch}"), BranchType::Remote)
            .map_err(no_branch)?;
        let git_error = |source| self.error("check out", source);
        let tip = upstream.get().peel_to_commit().map_err(git_error)?;
        let mut local = repo.branch(branch, &tip, true).map_err(git_error)?;
        local
            .set_upstream(Some(&format!("origin/{branch}")))
            .map_err(git_error)?;
        let wanted = self.wanted_commit(repo)?.unwrap_or(tip.id());
        if wanted == tip.id() {
            repo.set_head(&format!("refs/heads/{branch}"))
                .map_err(git_error)?;
        } else {
            repo.set_head_detached(wanted).map_err(git_error)?;
        }
        repo.checkout_head(Some(CheckoutBuilder::new().force()))
            .map_err(git_error)?;
        Ok(wanted)
    }

    fn wanted_commit(&self, repo: &Repository) -> Result<Option<Oid>, GitError> {
        let Some(hash) = self.request.commit.as_deref().filter(|hash| !hash.is_empty()) else {
            return Ok(None);
        };
        let no_commit = |source| GitError::NoCommit {
            hash: hash.to_owned(),
            source,
        };
        let wanted = Oid::from_str(hash).map_err(no_commit)?;
        if repo.find_commit(wanted).is_err() {
            // On no fetched branch: servers usually hand out any commit they have.
            let mut origin = repo.find_remote("origin").map_err(no_commit)?;
            let fetched = origin.fetch(&[hash], Some(&mut self.fetch_options()), None);
            fetched
                .and_then(|()| repo.find_commit(wanted).map(drop))
                .map_err(no_commit)?;
        }
        Ok(Some(wanted))
    }

    fn configure(&self, repo: &Repository) -> Result<(), git2::Error> {
        let mut config = repo.config()?.open_level(git2::ConfigLevel::Local)?;
        for (name, value) in [
            ("user.name", &self.request.user_name),
            ("user.email", &self.request.user_email),
        ] {
            if let Some(value) = value.as_deref().filter(|value| !value.is_empty()) {
                config.set_str(name, value)?;
            }
        }
        Ok(())
    }

    fn update_submodules(&self, repo: &Repository, depth: usize) -> Result<(), GitError> {
        if depth == 0 {
            return Ok(());
        }
        let submodules = repo
            .submodules()
            .map_err(|source| self.error("list submodules", source))?;
        for mut submodule in submodules {
            let path = submodule.path().display().to_string();
            let mut options = SubmoduleUpdateOptions::new();
            options.fetch(self.fetch_options());
            submodule
                .update(true, Some(&mut options))
                .and_then(|()| submodule.open())
                .map_err(|source| self.error(&format!("fetch the submodule {path}"), source))
                .and_then(|inner| self.update_submodules(&inner, depth - 1))?;
        }
        Ok(())
    }

    fn callbacks(&self) -> RemoteCallbacks<'static> {
        let mut callbacks = RemoteCallbacks::new();
        let access = Arc::clone(&self.access);
        callbacks.transfer_progress(move |_| !access.stopped());
        callbacks
    }

    fn fetch_options(&self) -> FetchOptions<'static> {
        let mut options = FetchOptions::new();
        options.remote_callbacks(self.callbacks());
        options
    }

    /// The transport's own error says more than the text libgit2 made of it.
    fn error(&self, action: &str, source: git2::Error) -> GitError {
        if self.access.stopped() {
            return GitError::Stopped;
        }
        match self.access.take_failure() {
            Some(source) => GitError::Fetch {
                url: self.url.clone(),
                source: Box::new(source),
            },
            None => GitError::Git {
                action: action.to_owned(),
                source,
            },
        }
    }
}
