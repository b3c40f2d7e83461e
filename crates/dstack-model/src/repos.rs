//! Repos of runs: remote, local and virtual ones, and credentials for remote ones.

use serde::Serialize;

use crate::{Decode, string_enum, tag};

/// The id of the repo of runs that have none.
pub const DEFAULT_VIRTUAL_REPO_ID: &str = "none";

string_enum! {
    /// A kind of repo.
    pub enum RepoType {
        /// Git, cloned by the runner.
        Remote = "remote",
        /// A directory of the user's machine.
        Local = "local",
        /// None at all, or made by a program.
        Virtual = "virtual",
    }
}

tag!(
    /// The value of `repo_type` for Git repos.
    pub RemoteTag = "remote"
);
tag!(
    /// The value of `repo_type` for directories.
    pub LocalTag = "local"
);
tag!(
    /// The value of `repo_type` for runs without a repo.
    pub VirtualTag = "virtual"
);

/// A Git repo.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Decode)]
pub struct RemoteRepoInfo {
    /// The kind of repo: `remote`.
    #[decode(default)]
    pub repo_type: RemoteTag,
    /// The last part of its URL.
    pub repo_name: String,
}

/// A directory of the user's machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Decode)]
pub struct LocalRepoInfo {
    /// The kind of repo: `local`.
    #[decode(default)]
    pub repo_type: LocalTag,
    /// Path of the directory on the user's machine.
    pub repo_dir: String,
}

/// The repo of runs that have none.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Decode)]
pub struct VirtualRepoInfo {
    /// The kind of repo: `virtual`.
    #[decode(default)]
    pub repo_type: VirtualTag,
}

/// A repo of any kind, told apart by `repo_type`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Decode)]
#[serde(untagged)]
#[decode(tag = "repo_type")]
pub enum AnyRepoInfo {
    /// A Git repo (`repo_type: remote`).
    #[decode(rename = "remote")]
    Remote(RemoteRepoInfo),
    /// A directory (`repo_type: local`).
    #[decode(rename = "local")]
    Local(LocalRepoInfo),
    /// No repo (`repo_type: virtual`).
    #[decode(rename = "virtual")]
    Virtual(VirtualRepoInfo),
}

impl AnyRepoInfo {
    /// Returns the kind of repo.
    pub const fn repo_type(&self) -> RepoType {
        match self {
            Self::Remote(_) => RepoType::Remote,
            Self::Local(_) => RepoType::Local,
            Self::Virtual(_) => RepoType::Virtual,
        }
    }
}

/// A Git repo at a commit.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Decode)]
#[decode(ignore("repo_diff"))]
pub struct RemoteRunRepoData {
    /// The kind of repo: `remote`.
    #[decode(default)]
    pub repo_type: RemoteTag,
    /// The last part of its URL.
    pub repo_name: String,
    /// Branch to check out; unset: the remote's default.
    pub repo_branch: Option<String>,
    /// Commit to check out; unset: the head of the branch.
    pub repo_hash: Option<String>,
    /// `user.name` of Git in the container.
    pub repo_config_name: Option<String>,
    /// `user.email` of Git in the container.
    pub repo_config_email: Option<String>,
}

/// The directory that a run was submitted from.
pub type LocalRunRepoData = LocalRepoInfo;
/// The repo data of runs without a repo.
pub type VirtualRunRepoData = VirtualRepoInfo;

/// The repo of a run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Decode)]
#[serde(untagged)]
#[decode(tag = "repo_type")]
pub enum AnyRunRepoData {
    /// A Git repo at a commit (`repo_type: remote`).
    #[decode(rename = "remote")]
    Remote(RemoteRunRepoData),
    /// A directory (`repo_type: local`).
    #[decode(rename = "local")]
    Local(LocalRunRepoData),
    /// No repo (`repo_type: virtual`).
    #[decode(rename = "virtual")]
    Virtual(VirtualRunRepoData),
}

impl AnyRunRepoData {
    /// Returns the kind of repo.
    pub const fn repo_type(&self) -> RepoType {
        match self {
            Self::Remote(_) => RepoType::Remote,
            Self::Local(_) => RepoType::Local,
            Self::Virtual(_) => RepoType::Virtual,
        }
    }
}

/// How a Git repo is cloned.
#[derive(Clone, PartialEq, Eq, Serialize, Decode)]
pub struct RemoteRepoCreds {
    /// The URL to clone.
    pub clone_url: String,
    /// A private key in PEM.
    pub private_key: Option<String>,
    /// A token for HTTPS.
    pub oauth_token: Option<String>,
}

impl std::fmt::Debug for RemoteRepoCreds {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RemoteRepoCreds")
            .field("clone_url", &self.clone_url)
            .field("private_key", &self.private_key.as_ref().map(|_| "…"))
            .field("oauth_token", &self.oauth_token.as_ref().map(|_| "…"))
            .finish()
    }
}

/// A repo of a project.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Decode)]
pub struct RepoHead {
    /// The id that the client gave it.
    pub repo_id: String,
    /// What kind of repo it is, and its name or directory.
    pub repo_info: AnyRepoInfo,
}

/// A repo of a project with the user's credentials.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Decode)]
pub struct RepoHeadWithCreds {
    /// The id that the client gave it.
    pub repo_id: String,
    /// What kind of repo it is, and its name or directory.
    pub repo_info: AnyRepoInfo,
    /// Unset when there are none, or not asked for.
    pub repo_creds: Option<RemoteRepoCreds>,
}
