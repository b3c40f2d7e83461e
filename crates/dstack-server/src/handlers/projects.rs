//! Projects and their members.

use dstack_api::responses::ProjectsAnswer;
use dstack_api::{Nothing, routes};
use dstack_control::projects::{NewProject, ProjectUpdate};
use dstack_model::projects::{Project as WireProject, ProjectsInfoList};
use dstack_model::requests::{
    CreateProjectRequest, DeleteProjectsRequest, ListProjectsRequest, ProjectMembersRequest,
    RemoveProjectMembersRequest, UpdateProjectRequest,
};
use dstack_store::Database;
use dstack_store::queries::Page;
use dstack_store::queries::projects::{ProjectFilter, ProjectRow};
use dstack_units::{ProjectId, UserId};

use crate::access::{Caller, is_admin};
use crate::api::{Api, Call};
use crate::error::{ApiError, Result};
use crate::render;

pub(super) fn routes(api: Api) -> Api {
    api.on::<routes::ProjectsList, _, _>(list)
        .on::<routes::ProjectsListOnlyNoFleets, _, _>(list_only_no_fleets)
        .on::<routes::ProjectsCreate, _, _>(create)
        .on::<routes::ProjectsDelete, _, _>(delete)
        .on::<routes::ProjectsGet, _, _>(get)
        .on::<routes::ProjectsSetMembers, _, _>(set_members)
        .on::<routes::ProjectsAddMembers, _, _>(add_members)
        .on::<routes::ProjectsRemoveMembers, _, _>(remove_members)
        .on::<routes::ProjectsUpdate, _, _>(update)
}

async fn list(call: Call, request: ListProjectsRequest) -> Result<ProjectsAnswer> {
    let (state, caller) = (&call.state, call.user()?);
    let database = &state.data.database;
    let member = match &request.username {
        None => None,
        // Nobody has the nil id: an unknown name finds nothing.
        Some(name) => Some(
            database
                .users()
                .by_name(name)
                .await?
                .map_or(UserId::new(uuid::Uuid::nil()), |user| user.id),
        ),
    };
    let filter = ProjectFilter {
        visible_to: (!is_admin(caller)).then_some(caller.id),
        joined_only: !request.include_not_joined,
        member,
        only: call.only_project(),
        name_part: request.name_pattern.filter(|part| !part.is_empty()),
    };
    let page = Page {
        prev_at: request.prev_created_at,
        prev_id: request.prev_id.map(|id| id.to_string()),
        limit: request.limit,
        ascending: request.ascending,
    };
    let mut found = Vec::new();
    for row in database.projects().list(&filter, &page).await? {
        let mut project = render::projects::brief(&state.data, &state.auth, &row).await?;
        if let Some(wanted) = member {
            for member in database
                .projects()
                .members(row.id)
                .await?
                .iter()
                .filter(|member| member.user.id == wanted)
            {
                project
                    .members
                    .push(render::projects::member(&state.data, &state.auth, member).await?);
            }
        }
        found.push(project);
    }
    if !request.return_total_count {
        return Ok(ProjectsAnswer::Plain(found));
    }
    let total = u64::try_from(database.projects().count(&filter).await?).unwrap_or(0);
    Ok(ProjectsAnswer::Counted(ProjectsInfoList {
        total_count: Some(total),
        projects: found,
    }))
}

async fn list_only_no_fleets(call: Call, _: Nothing) -> Result<Vec<WireProject>> {
    let mut found = Vec::new();
    let rows = call
        .state
        .data
        .database
        .projects()
        .without_fleets(call.user()?.id)
        .await?;
    for row in rows.into_iter().filter(|row| call.reaches(row.id)) {
        found.push(render::projects::brief(&call.state.data, &call.state.auth, &row).await?);
    }
    Ok(found)
}

async fn get(call: Call, _: Nothing) -> Result<WireProject> {
    render::projects::full(&call.state.data, &call.state.auth, &call.project()?.row).await
}

async fn create(call: Call, request: CreateProjectRequest) -> Result<WireProject> {
    let (state, caller) = (&call.state, call.user()?);
    if !is_admin(caller) && !state.auth.permissions.get().allow_non_admins_create_projects {
        return Err(ApiError::Forbidden("User cannot create projects".to_owned()));
    }
    let new = NewProject {
        name: request.project_name,
        is_public: request.is_public,
        templates_repo: templates_repo(&call, request.templates_repo.as_deref()).await?,
    };
    let row = state.control.verbs.projects.create(caller, &new).await?;
    render::projects::full(&state.data, &state.auth, &row).await
}

/// The repo that is asked for, which can be reached; blank is none.
async fn templates_repo(call: &Call, wanted: Option<&str>) -> Result<Option<String>> {
    let Some(repo) = wanted.map(str::trim).filter(|repo| !repo.is_empty()) else {
        return Ok(None);
    };
    call.state.edge.templates_repos.check_access(repo).await?;
    Ok(Some(repo.to_owned()))
}

async fn update(call: Call, request: UpdateProjectRequest) -> Result<WireProject> {
    let state = &call.state;
    let update = ProjectUpdate {
        is_public: request.is_public,
        templates_repo: match (request.reset_templates_repo, request.templates_repo) {
            (true, _) => Some(None),
            (false, wanted) => templates_repo(&call, wanted.as_deref()).await?.map(Some),
        },
    };
    let verbs = &state.control.verbs.projects;
    let row = verbs
        .update(call.user()?.into(), &call.project()?.row, update)
        .await?;
    render::projects::full(&state.data, &state.auth, &row).await
}

async fn delete(call: Call, request: DeleteProjectsRequest) -> Result<()> {
    let verbs = &call.state.control.verbs.projects;
    Ok(verbs.delete(call.user()?, &request.projects_names).await?)
}

/// The projects whose things the caller may list: all for admins, one's own for others; of those only the named ones, and
/// those that the caller's token is good for.
pub(crate) async fn visible_projects(call: &Call, named: Option<&[String]>) -> Result<Vec<ProjectId>> {
    let visible = projects_seen(&call.state.data.database, call.caller()?).await?;
    let wanted = visible
        .iter()
        .filter(|row| named.is_none_or(|names| names.contains(&row.name)));
    Ok(wanted.map(|row| row.id).collect())
}

/// The same, whatever they are named.
pub(crate) async fn projects_seen(database: &Database, caller: &Caller) -> Result<Vec<ProjectRow>> {
    let mut seen = match is_admin(&caller.user) {
        true => database.projects().all().await?,
        false => database.projects().of_member(caller.user.id).await?,
    };
    seen.retain(|row| caller.reaches(row.id));
    Ok(seen)
}

async fn set_members(call: Call, request: ProjectMembersRequest) -> Result<WireProject> {
    let (verbs, project) = (&call.state.control.verbs.projects, &call.project()?.row);
    verbs.set_members(call.user()?, project, &request.members).await?;
    render::projects::full(&call.state.data, &call.state.auth, project).await
}

async fn add_members(call: Call, request: ProjectMembersRequest) -> Result<WireProject> {
    let (verbs, project) = (&call.state.control.verbs.projects, &call.project()?.row);
    verbs.add_members(call.user()?, project, &request.members).await?;
    render::projects::full(&call.state.data, &call.state.auth, project).await
}

async fn remove_members(call: Call, request: RemoveProjectMembersRequest) -> Result<WireProject> {
    let (verbs, project) = (&call.state.control.verbs.projects, &call.project()?.row);
    verbs
        .remove_members(call.user()?, project, &request.usernames)
        .await?;
    render::projects::full(&call.state.data, &call.state.auth, project).await
}
