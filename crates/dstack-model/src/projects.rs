//! Projects, their members and what members may do.

use dstack_units::{ProjectId, Time};
use serde::Serialize;

use crate::Decode;
use crate::backends::BackendInfo;
use crate::decode::scalars::id4;
use crate::users::{ProjectRole, User};

/// What a member may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Decode)]
pub struct MemberPermissions {
    /// Apply and delete SSH fleets.
    pub can_manage_ssh_fleets: bool,
    /// Read and write secrets.
    #[decode(default)]
    pub can_manage_secrets: bool,
}

/// A member of a project.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Decode)]
pub struct Member {
    /// The user who is a member.
    pub user: User,
    /// Role in the project.
    pub project_role: ProjectRole,
    /// What they may do.
    pub permissions: MemberPermissions,
}

/// A project, as the API answers it.
#[derive(Debug, Clone, PartialEq, Serialize, Decode)]
pub struct Project {
    /// Id of the project.
    #[decode(with = id4)]
    pub project_id: ProjectId,
    /// Name, unique without regard to case: `^[a-zA-Z0-9-_]{1,50}$`.
    pub project_name: String,
    /// The user who created it.
    pub owner: User,
    /// When it was created.
    pub created_at: Option<Time>,
    /// Its backends; empty in lists.
    pub backends: Vec<BackendInfo>,
    /// Its members; empty in lists.
    pub members: Vec<Member>,
    /// Whether everybody may join.
    #[decode(default)]
    pub is_public: bool,
    /// Where its templates come from.
    pub templates_repo: Option<String>,
}

/// Projects, and how many there are in all.
#[derive(Debug, Clone, PartialEq, Serialize, Decode)]
pub struct ProjectsInfoList {
    /// Number of all projects that match, when it was asked for.
    pub total_count: Option<u64>,
    /// The projects of this page.
    pub projects: Vec<Project>,
}
