//! Projects and their members.

use std::collections::BTreeSet;

use dstack_api::responses::ProjectsAnswer;
use dstack_api::{Nothing, routes};
use dstack_model::projects::{Project as WireProject, ProjectsInfoList};
use dstack_model::requests::{
    CreateProjectRequest, DeleteProjectsRequest, ListProjectsRequest, MemberSetting, ProjectMembersRequest,
    RemoveProjectMembersRequest, UpdateProjectRequest,
};
use dstack_model::users::ProjectRole;
use dstack_store::directory::Page;
use dstack_store::directory::exports;
use dstack_store::directory::projects::{self, InUse, ProjectFilter, ProjectRow};
use dstack_store::directory::users::{self, UserRow};
use dstack_store::{EventTarget, NewEvent};
use dstack_units::name::is_project_name;
use dstack_units::{ProjectId, UserId};

use super::users::{list_or_none, python_bool};
use crate::access::{Project, Sure, is_admin};
use crate::api::{Api, Call};
use crate::audit;
use crate::error::{ApiError, Result};
use crate::render;
use crate::state::AppState;

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
    let pool = state.database.pool();
    let member = match &request.username {
        None => None,
        // Nobody has the nil id: an unknown name finds nothing.
        Some(name) => Some(
            users::by_name(pool, name)
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
    for row in projects::list(pool, &filter, &page).await? {
        let mut project = render::projects::brief(state, &row).await?;
        if let Some(wanted) = member {
            for member in projects::members(pool, row.id)
                .await?
                .iter()
                .filter(|member| member.user.id == wanted)
            {
                project
                    .members
                    .push(render::projects::member(state, member).await?);
            }
        }
        found.push(project);
    }
    if !request.return_total_count {
        return Ok(ProjectsAnswer::Plain(found));
    }
    let total = u64::try_from(projects::count(pool, &filter).await?).unwrap_or(0);
    Ok(ProjectsAnswer::Counted(ProjectsInfoList {
        total_count: Some(total),
        projects: found,
    }))
}

async fn list_only_no_fleets(call: Call, _: Nothing) -> Result<Vec<WireProject>> {
    let mut found = Vec::new();
    let rows = projects::without_fleets(call.state.database.pool(), call.user()?.id).await?;
    for row in rows.into_iter().filter(|row| call.reaches(row.id)) {
        found.push(render::projects::brief(&call.state, &row).await?);
    }
    Ok(found)
}

async fn get(call: Call, _: Nothing) -> Result<WireProject> {
    render::projects::full(&call.state, &call.project()?.row).await
}

async fn create(call: Call, request: CreateProjectRequest) -> Result<WireProject> {
    let (state, caller) = (&call.state, call.user()?);
    if !is_admin(caller) && !state.permissions.get().allow_non_admins_create_projects {
        return Err(ApiError::Forbidden("User cannot create projects".to_owned()));
    }
    let pool = state.database.pool();
    if projects::by_name(pool, &request.project_name).await?.is_some() {
        return Err(ApiError::exists());
    }
    if !is_admin(caller) && projects::count_owned(pool, caller.id).await? >= caller.projects_quota {
        return Err(ApiError::client("User project quota exceeded"));
    }
    let templates_repo = request
        .templates_repo
        .map(|url| url.trim().to_owned())
        .filter(|url| !url.is_empty());
    let row = create_project(
        state,
        &request.project_name,
        caller,
        request.is_public,
        templates_repo,
    )
    .await?;
    render::projects::full(state, &row).await
}

/// Creates a project whose owner becomes its admin.
pub(crate) async fn create_project(
    state: &AppState,
    name: &str,
    owner: &UserRow,
    is_public: bool,
    templates_repo: Option<String>,
) -> Result<ProjectRow> {
    if !is_project_name(name) {
        return Err(ApiError::client(
            "Project name should match regex '^[a-zA-Z0-9-_]{1,50}$'",
        ));
    }
    let row = ProjectRow {
        id: state.random.uuid().into(),
        name: name.to_owned(),
        created_at: state.clock.now(),
        owner_id: owner.id,
        is_public,
        templates_repo,
        ssh_private_key: None,
        ssh_public_key: None,
        default_gateway_id: None,
        deleted: false,
        original_name: None,
    };
    let event = audit::event(state, owner, "Project created", audit::project(&row));
    let global = exports::global(state.database.pool()).await?;
    let global: Vec<_> = global
        .into_iter()
        .map(|export| (export, state.random.uuid().into()))
        .collect();
    let (stored, owner) = (row.clone(), owner.id);
    state
        .database
        .write(move |tx| {
            Box::pin(async move {
                projects::insert(tx, &stored).await?;
                projects::put_member(tx, stored.id, owner, ProjectRole::Admin, Some(0)).await?;
                for (export, import) in global {
                    exports::add_import(tx, export, import, stored.id, stored.created_at).await?;
                }
                audit::write(tx, event).await
            })
        })
        .await?;
    state.access.changed();
    Ok(row)
}

async fn update(call: Call, request: UpdateProjectRequest) -> Result<WireProject> {
    let (state, old) = (&call.state, &call.project()?.row);
    let mut row = old.clone();
    let mut fields = Vec::new();
    if let Some(is_public) = request.is_public.filter(|is_public| *is_public != row.is_public) {
        row.is_public = is_public;
        fields.push(format!("is_public={}", python_bool(is_public)));
    }
    let wanted = request.templates_repo.map(|url| url.trim().to_owned());
    if request.reset_templates_repo || wanted.is_some() {
        let wanted = wanted.filter(|url| !url.is_empty() && !request.reset_templates_repo);
        if wanted != row.templates_repo {
            fields.push(format!("templates_repo={}", wanted.as_deref().unwrap_or("None")));
            row.templates_repo = wanted;
        }
    }
    let message = format!("Project updated. Updated fields: {}", list_or_none(&fields));
    let event = audit::event(state, call.user()?, message, audit::project(&row));
    let stored = row.clone();
    state
        .database
        .write(move |tx| {
            Box::pin(async move {
                projects::update(tx, stored.id, stored.is_public, stored.templates_repo.as_deref()).await?;
                audit::write(tx, event).await
            })
        })
        .await?;
    state.access.changed();
    render::projects::full(state, &row).await
}

async fn delete(call: Call, request: DeleteProjectsRequest) -> Result<()> {
    let (state, caller) = (&call.state, call.user()?);
    let mut doomed: Vec<ProjectRow> = Vec::new();
    for name in &request.projects_names {
        let project = state
            .access
            .project(name, Sure::Now)
            .await?
            .filter(|project| project.row.name == *name);
        let owned = project.as_ref().is_some_and(|project| {
            project.is_admin(caller) || (project.role(caller).is_some() && project.row.owner_id == caller.id)
        });
        if !is_admin(caller) && !owned {
            return Err(ApiError::Forbidden("Access denied".to_owned()));
        }
        match project {
            Some(project) if doomed.iter().all(|row| row.id != project.row.id) => {
                doomed.push(project.row.clone());
            }
            _ => return Err(ApiError::client("Failed to delete non-existent projects")),
        }
    }
    refuse_if_in_use(state, &doomed).await?;
    let now = state.clock.now();
    let doomed: Vec<_> = doomed
        .into_iter()
        .map(|row| {
            let event = audit::event(state, caller, "Project deleted", audit::project(&row));
            (row.id, audit::deleted_name(state, now), event)
        })
        .collect();
    state
        .database
        .write(move |tx| {
            Box::pin(async move {
                for (id, renamed, event) in doomed {
                    projects::delete(tx, id, &renamed).await?;
                    audit::write(tx, event).await?;
                }
                Ok(())
            })
        })
        .await?;
    state.access.changed();
    state.runs.clear();
    Ok(())
}

async fn refuse_if_in_use(state: &AppState, doomed: &[ProjectRow]) -> Result<()> {
    let ids: Vec<ProjectId> = doomed.iter().map(|row| row.id).collect();
    for (kind, word) in [
        (InUse::Runs, "runs"),
        (InUse::Fleets, "fleets"),
        (InUse::Volumes, "volumes"),
    ] {
        let busy = projects::in_use(state.database.pool(), &ids, kind).await?;
        if let Some(row) = doomed.iter().find(|row| busy.contains(&row.id)) {
            let names = in_use_names(state, row.id, kind).await?;
            return Err(ApiError::client(format!(
                "Failed to delete project with active {word}: {}",
                python_list(&names)
            )));
        }
    }
    Ok(())
}

async fn in_use_names(state: &AppState, project: ProjectId, kind: InUse) -> Result<Vec<String>> {
    Ok(projects::names_in_use(state.database.pool(), project, kind).await?)
}

/// The projects whose things the caller may list: all for admins, one's own for others; of those only the named ones, and
/// those that the caller's token is good for.
pub(crate) async fn visible_projects(call: &Call, named: Option<&[String]>) -> Result<Vec<ProjectId>> {
    let (pool, caller) = (call.state.database.pool(), call.user()?);
    let visible = match is_admin(caller) {
        true => projects::all(pool).await?,
        false => projects::of_member(pool, caller.id).await?,
    };
    let wanted = visible
        .iter()
        .filter(|row| call.reaches(row.id) && named.is_none_or(|names| names.contains(&row.name)));
    Ok(wanted.map(|row| row.id).collect())
}

/// `['a', 'b']`.
pub(crate) fn python_list(names: &[String]) -> String {
    let quoted: Vec<String> = names.iter().map(|name| format!("'{name}'")).collect();
    format!("[{}]", quoted.join(", "))
}

/// A named user with the wanted role; `None` where nobody has the name.
async fn resolve(
    state: &AppState,
    members: &[MemberSetting],
) -> Result<Vec<(String, Option<UserRow>, ProjectRole)>> {
    let mut names: Vec<&str> = members.iter().map(|member| member.username.as_str()).collect();
    names.sort_unstable();
    names.dedup();
    if names.len() != members.len() {
        return Err(ApiError::client("Cannot add same user multiple times"));
    }
    let mut found: Vec<(String, Option<UserRow>, ProjectRole)> = Vec::new();
    for member in members {
        let user = users::by_name_or_email(state.database.pool(), &member.username).await?;
        let is_same = |other: &UserRow| user.as_ref().is_some_and(|user| user.id == other.id);
        if found
            .iter()
            .any(|(_, other, _)| other.as_ref().is_some_and(is_same))
        {
            return Err(ApiError::client("Cannot add same user multiple times"));
        }
        found.push((member.username.clone(), user, member.project_role));
    }
    Ok(found)
}

/// Who becomes, changes or stops being a member, for the audit trail.
#[derive(Default)]
struct Changes {
    texts: Vec<String>,
    users: Vec<EventTarget>,
}

impl Changes {
    fn note(&mut self, text: String, user: &UserRow) {
        self.texts.push(text);
        self.users.push(audit::user(user));
    }

    /// Whoever stays what they are is no change.
    fn put(&mut self, project: &Project, user: &UserRow, role: ProjectRole) {
        match project.role(user) {
            Some(old) if old == role => {}
            Some(old) => self.note(format!("{} {old} -> {role}", user.name), user),
            None => self.note(format!("{} added as {role}", user.name), user),
        }
    }

    fn remove(&mut self, user: &UserRow) {
        self.note(format!("{} removed", user.name), user);
    }

    fn event(self, state: &AppState, actor: &UserRow, project: &ProjectRow) -> Option<NewEvent> {
        let message = format!("Project members updated. Changes: {}", list_or_none(&self.texts));
        let targets = [audit::project(project)].into_iter().chain(self.users).collect();
        audit::for_managers(state, actor, message, targets)
    }
}

async fn set_members(call: Call, request: ProjectMembersRequest) -> Result<WireProject> {
    let (state, caller, project) = (&call.state, call.user()?, call.project()?);
    let wanted = resolve(state, &request.members).await?;
    if !is_admin(caller) && project.role(caller) == Some(ProjectRole::Manager) {
        // By who they are, and not by how they are called: users have e-mail addresses as well.
        let new = wanted.iter().filter(|(.., role)| *role == ProjectRole::Admin);
        let new: BTreeSet<UserId> = new.filter_map(|(_, user, _)| Some(user.as_ref()?.id)).collect();
        let old = project.members.iter().filter(|m| m.role == ProjectRole::Admin);
        let old: BTreeSet<UserId> = old.map(|member| member.user.id).collect();
        if new != old {
            return Err(ApiError::Forbidden(
                "Access denied: changing project admins".to_owned(),
            ));
        }
    }
    let mut changes = Changes::default();
    for (_, user, role) in &wanted {
        if let Some(user) = user {
            changes.put(project, user, *role);
        }
    }
    for member in &project.members {
        let stays = |(_, user, _): &(_, Option<UserRow>, _)| {
            user.as_ref().is_some_and(|user| user.id == member.user.id)
        };
        if !wanted.iter().any(stays) {
            changes.remove(&member.user);
        }
    }
    let event = changes.event(state, caller, &project.row);
    let id = project.row.id;
    state
        .database
        .write(move |tx| {
            Box::pin(async move {
                projects::clear_members(tx, id).await?;
                for (number, (_, user, role)) in (0_i64..).zip(wanted) {
                    if let Some(user) = user {
                        projects::put_member(tx, id, user.id, role, Some(number)).await?;
                    }
                }
                audit::write(tx, event).await
            })
        })
        .await?;
    state.access.changed();
    render::projects::full(state, &project.row).await
}

async fn add_members(call: Call, request: ProjectMembersRequest) -> Result<WireProject> {
    let (state, project) = (&call.state, call.project()?);
    let wanted = resolve(state, &request.members).await?;
    check_may_add(&call, &request.members)?;
    let mut changes = Changes::default();
    let mut members = Vec::new();
    for (name, user, role) in wanted {
        let user = user.ok_or_else(|| ApiError::client(format!("User not found: {name}")))?;
        let demotes = project.role(&user) == Some(ProjectRole::Admin) && role != ProjectRole::Admin;
        if demotes && !project.is_admin(call.user()?) {
            return Err(ApiError::Forbidden(format!(
                "Access denied: only admins can change the role of project admins (user: {name})"
            )));
        }
        changes.put(project, &user, role);
        members.push((user.id, role));
    }
    let event = changes.event(state, call.user()?, &project.row);
    let id = project.row.id;
    state
        .database
        .write(move |tx| {
            Box::pin(async move {
                for (user, role) in members {
                    projects::put_member(tx, id, user, role, None).await?;
                }
                audit::write(tx, event).await
            })
        })
        .await?;
    state.access.changed();
    render::projects::full(state, &project.row).await
}

fn check_may_add(call: &Call, members: &[MemberSetting]) -> Result<()> {
    let (caller, project) = (call.user()?, call.project()?);
    let forbidden = |reason: &str| Err(ApiError::Forbidden(format!("Access denied: {reason}")));
    let joins_alone = match members {
        [one] => {
            project.row.is_public
                && (one.username == caller.name || Some(&one.username) == caller.email.as_ref())
                && project.role(caller).is_none()
        }
        _ => false,
    };
    if joins_alone {
        return match members
            .iter()
            .all(|member| member.project_role == ProjectRole::User)
        {
            true => Ok(()),
            false => forbidden("can only join public projects as user role"),
        };
    }
    if !project.is_manager(caller) {
        return forbidden("insufficient permissions to add members");
    }
    let adds_admin = members
        .iter()
        .any(|member| member.project_role == ProjectRole::Admin);
    if adds_admin && !project.is_admin(caller) {
        return forbidden("only global admins can add project admins");
    }
    Ok(())
}

async fn remove_members(call: Call, request: RemoveProjectMembersRequest) -> Result<WireProject> {
    let (state, project) = (&call.state, call.project()?);
    let mut doomed: Vec<UserId> = Vec::new();
    let mut changes = Changes::default();
    let itself = leaves_alone(&call, &request.usernames)?;
    for name in &request.usernames {
        let user = users::by_name_or_email(state.database.pool(), name).await?;
        let user = user.ok_or_else(|| ApiError::client(format!("User not found: {name}")))?;
        let role = project.role(&user);
        let role =
            role.ok_or_else(|| ApiError::client(format!("User is not a member of this project: {name}")))?;
        if role == ProjectRole::Admin && !itself && !is_admin(call.user()?) {
            return Err(ApiError::Forbidden(format!(
                "Access denied: only global admins can remove project admins (user: {name})"
            )));
        }
        if !doomed.contains(&user.id) {
            changes.remove(&user);
            doomed.push(user.id);
        }
    }
    let admins = |left: &dyn Fn(UserId) -> bool| {
        project
            .members
            .iter()
            .filter(|m| m.role == ProjectRole::Admin && left(m.user.id))
            .count()
    };
    if admins(&|_| true) > 0 && admins(&|id| !doomed.contains(&id)) == 0 {
        return Err(ApiError::client(match itself {
            true => "Cannot leave project: you are the last admin",
            false => "Cannot remove all project admins",
        }));
    }
    let event = changes.event(state, call.user()?, &project.row);
    let id = project.row.id;
    state
        .database
        .write(move |tx| {
            Box::pin(async move {
                for user in doomed {
                    projects::remove_member(tx, id, user).await?;
                }
                audit::write(tx, event).await
            })
        })
        .await?;
    state.access.changed();
    render::projects::full(state, &project.row).await
}

/// Whether the caller only removes themselves; if not, they must be a manager.
fn leaves_alone(call: &Call, names: &[String]) -> Result<bool> {
    let (caller, project) = (call.user()?, call.project()?);
    let itself = match names {
        [one] => *one == caller.name || Some(one) == caller.email.as_ref(),
        _ => false,
    };
    if !itself && !project.is_manager(caller) {
        return Err(ApiError::Forbidden(
            "Access denied: insufficient permissions to remove members".to_owned(),
        ));
    }
    Ok(itself)
}
