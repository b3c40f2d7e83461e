//! Renders projects and their members as the API shows them.

use dstack_model::backends::BackendInfo;
use dstack_model::projects::{Member as WireMember, MemberPermissions, Project as WireProject};
use dstack_model::users::ProjectRole;
use dstack_store::queries::projects::{Member, ProjectRow};

use super::users::user;
use crate::access::is_admin;
use crate::error::{ApiError, Result};
use crate::state::{Auth, Data};

/// A project with backends and members.
pub(crate) async fn full(data: &Data, auth: &Auth, row: &ProjectRow) -> Result<WireProject> {
    let mut project = brief(data, auth, row).await?;
    for member in data.database.projects().members(row.id).await? {
        project.members.push(self::member(data, auth, &member).await?);
    }
    for backend in data.database.backends().list(row.id).await? {
        project.backends.push(BackendInfo {
            name: backend.kind,
            config: serde_json::from_str(&backend.config).unwrap_or_default(),
        });
    }
    Ok(project)
}

/// A project without backends and members, as in lists.
pub(crate) async fn brief(data: &Data, auth: &Auth, row: &ProjectRow) -> Result<WireProject> {
    let owner = data
        .database
        .users()
        .by_id(row.owner_id)
        .await?
        .ok_or_else(ApiError::not_exists)?;
    Ok(WireProject {
        project_id: row.id,
        project_name: row.name.clone(),
        owner: user(data, auth, &owner).await?,
        created_at: Some(row.created_at),
        backends: Vec::new(),
        members: Vec::new(),
        is_public: row.is_public,
        templates_repo: row.templates_repo.clone(),
    })
}

/// Returns the member, with what they may do, as clients see them.
pub(crate) async fn member(data: &Data, auth: &Auth, member: &Member) -> Result<WireMember> {
    let admin = is_admin(&member.user) || member.role == ProjectRole::Admin;
    let manager = member.role == ProjectRole::Manager && auth.permissions.get().allow_managers_manage_secrets;
    Ok(WireMember {
        user: user(data, auth, &member.user).await?,
        project_role: member.role,
        permissions: MemberPermissions {
            can_manage_ssh_fleets: admin || auth.permissions.get().allow_non_admins_manage_ssh_fleets,
            can_manage_secrets: admin || manager,
        },
    })
}
