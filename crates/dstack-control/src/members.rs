//! Members of projects: who joins, changes role, leaves; and who may decide that.

use std::collections::{BTreeMap, BTreeSet};

use dstack_model::requests::MemberSetting;
use dstack_model::users::ProjectRole;
use dstack_store::queries::projects::ProjectRow;
use dstack_store::queries::users::UserRow;
use dstack_store::writes::Change;
use dstack_store::{EventTarget, events};
use dstack_units::UserId;

use crate::access::{Project, is_admin};
use crate::core::retry_on_conflict;
use crate::directory::Work;
use crate::error::{ControlError, Result};
use crate::own_machine::OwnMachine;
use crate::projects::Projects;
use crate::text::list_or_none;

const BUSY: &str = "The members of the project are being changed by others. Try again";

/// A named user with the wanted role; `None` where nobody has the name.
type Wanted = (String, Option<UserRow>, ProjectRole);

/// Who becomes, changes or stops being a member, for the audit trail.
#[derive(Default)]
struct Trail {
    texts: Vec<String>,
    users: Vec<EventTarget>,
    /// Names of those who were no members before.
    joined: Vec<String>,
}

impl Trail {
    fn note(&mut self, text: String, user: &UserRow) {
        self.texts.push(text);
        self.users.push(events::user(user));
    }

    /// Whoever stays what they are is no change.
    fn put(&mut self, project: &Project, user: &UserRow, role: ProjectRole) {
        match project.role(user) {
            Some(old) if old == role => {}
            Some(old) => self.note(format!("{} {old} -> {role}", user.name), user),
            None => {
                self.joined.push(user.name.clone());
                self.note(format!("{} added as {role}", user.name), user);
            }
        }
    }

    fn remove(&mut self, user: &UserRow) {
        self.note(format!("{} removed", user.name), user);
    }

    /// `members` is their number after the change: who comes to share the server's machine is told of.
    fn finish(self, work: &mut Work, project: &Project, machine: Option<&OwnMachine>, members: usize) {
        if let Some(machine) = machine.filter(|_| !self.joined.is_empty() && members > 1) {
            let names: Vec<&str> = self.joined.iter().map(String::as_str).collect();
            machine.warn(work, &project.row, &names);
        }
        let message = format!("Project members updated. Changes: {}", list_or_none(&self.texts));
        let targets = [events::project(&project.row)].into_iter().chain(self.users);
        work.event_for_managers(message, targets.collect());
    }
}

impl Projects {
    /// Replaces the members of a project; unknown names are ignored.
    ///
    /// # Errors
    /// A name twice, or a manager who changes the admins.
    pub async fn set_members(
        &self,
        user: &UserRow,
        project: &ProjectRow,
        members: &[MemberSetting],
    ) -> Result<Project> {
        retry_on_conflict(BUSY, || self.try_set_members(user, project, members)).await
    }

    async fn try_set_members(
        &self,
        user: &UserRow,
        project: &ProjectRow,
        members: &[MemberSetting],
    ) -> Result<Project> {
        let (project, mut work) = self.begin(user, project).await?;
        if !project.is_manager(user) {
            return Err(ControlError::denied());
        }
        let wanted = self.resolve(members).await?;
        if !is_admin(user) && project.role(user) == Some(ProjectRole::Manager) {
            // By who they are, and not by how they are called: users have e-mail addresses as well.
            let new = wanted.iter().filter(|(.., role)| *role == ProjectRole::Admin);
            let new: BTreeSet<UserId> = new.filter_map(|(_, user, _)| Some(user.as_ref()?.id)).collect();
            let old: BTreeSet<UserId> = project.with_role(ProjectRole::Admin).collect();
            if new != old {
                return Err(forbidden("changing project admins"));
            }
        }
        let after = wanted
            .iter()
            .filter_map(|(_, member, role)| Some((member.as_ref()?.id, *role)));
        check_admin_is_left(user, &project, &after.collect(), Others::Leave)?;
        let mut trail = Trail::default();
        work.change(Change::ClearMembers(project.row.id));
        for (number, (_, member, role)) in (0_i64..).zip(&wanted) {
            let Some(member) = member else { continue };
            trail.put(&project, member, *role);
            work.change(Change::PutMember {
                project: project.row.id,
                user: member.id,
                role: *role,
                number: Some(number),
            });
        }
        for member in &project.members {
            let is_same = |user: &UserRow| user.id == member.user.id;
            if !wanted
                .iter()
                .any(|(_, user, _)| user.as_ref().is_some_and(is_same))
            {
                trail.remove(&member.user);
            }
        }
        let members = wanted.iter().filter(|(_, member, _)| member.is_some()).count();
        let machine = self.own_machine(project.row.id).await?;
        trail.finish(&mut work, &project, machine.as_ref(), members);
        self.0.finish(work).await?;
        Ok(project)
    }

    /// Adds members, or changes their roles. Anybody may join a public project as a user.
    ///
    /// # Errors
    /// Somebody is unknown or named twice, or the actor may not.
    pub async fn add_members(
        &self,
        user: &UserRow,
        project: &ProjectRow,
        members: &[MemberSetting],
    ) -> Result<Project> {
        retry_on_conflict(BUSY, || self.try_add_members(user, project, members)).await
    }

    async fn try_add_members(
        &self,
        user: &UserRow,
        project: &ProjectRow,
        members: &[MemberSetting],
    ) -> Result<Project> {
        let (project, mut work) = self.begin(user, project).await?;
        // Before any name is looked up: who may not add members learns nothing of them. One name may be their own.
        if members.len() != 1 || !project.row.is_public {
            check_manager(user, &project, "add")?;
        }
        let wanted = self.resolve(members).await?;
        check_may_add(user, &project, &wanted)?;
        let after = wanted
            .iter()
            .filter_map(|(_, member, role)| Some((member.as_ref()?.id, *role)));
        check_admin_is_left(user, &project, &after.collect(), Others::Stay)?;
        let mut trail = Trail::default();
        for (name, member, role) in wanted {
            let member = member.ok_or_else(|| unknown(&name))?;
            let demotes = project.role(&member) == Some(ProjectRole::Admin) && role != ProjectRole::Admin;
            if demotes && !project.is_admin(user) {
                return Err(forbidden(&format!(
                    "only admins can change the role of project admins (user: {name})"
                )));
            }
            trail.put(&project, &member, role);
            work.change(Change::PutMember {
                project: project.row.id,
                user: member.id,
                role,
                number: None,
            });
        }
        let members = project.members.len() + trail.joined.len();
        let machine = self.own_machine(project.row.id).await?;
        trail.finish(&mut work, &project, machine.as_ref(), members);
        self.0.finish(work).await?;
        Ok(project)
    }

    /// Removes members, by names or e-mail addresses. Everybody may leave.
    ///
    /// # Errors
    /// Somebody is no member, no admin would be left, or the actor may not.
    pub async fn remove_members(
        &self,
        user: &UserRow,
        project: &ProjectRow,
        names: &[String],
    ) -> Result<Project> {
        retry_on_conflict(BUSY, || self.try_remove_members(user, project, names)).await
    }

    async fn try_remove_members(
        &self,
        user: &UserRow,
        project: &ProjectRow,
        names: &[String],
    ) -> Result<Project> {
        let (project, mut work) = self.begin(user, project).await?;
        if names.len() != 1 {
            check_manager(user, &project, "remove")?;
        }
        let mut named = Vec::new();
        for name in names {
            named.push((name, self.find(name).await?));
        }
        let leaves = leaves_alone(user, &project, &named)?;
        let mut doomed: BTreeSet<UserId> = BTreeSet::new();
        let mut trail = Trail::default();
        for (name, member) in named {
            let member = member.ok_or_else(|| unknown(name))?;
            let not_member =
                || ControlError::refused(format!("User is not a member of this project: {name}"));
            let role = project.role(&member).ok_or_else(not_member)?;
            if role == ProjectRole::Admin && !leaves && !is_admin(user) {
                return Err(forbidden(&format!(
                    "only global admins can remove project admins (user: {name})"
                )));
            }
            if doomed.insert(member.id) {
                trail.remove(&member);
                work.change(Change::RemoveMember {
                    project: project.row.id,
                    user: member.id,
                });
            }
        }
        let admins: Vec<UserId> = project.with_role(ProjectRole::Admin).collect();
        if !admins.is_empty() && admins.iter().all(|admin| doomed.contains(admin)) {
            return Err(ControlError::refused(match leaves {
                true => "Cannot leave project: you are the last admin",
                false => "Cannot remove all project admins",
            }));
        }
        trail.finish(&mut work, &project, None, 0);
        self.0.finish(work).await?;
        Ok(project)
    }

    /// The project as it is now, and work that is refused if its members are others by the time it is written.
    async fn begin(&self, user: &UserRow, project: &ProjectRow) -> Result<(Project, Work)> {
        let found = Project::by_name(&self.0.database, &project.name).await?;
        // One that was deleted has left its name to others.
        let found = found.filter(|found| found.row.id == project.id);
        let project = found.ok_or_else(ControlError::not_found)?;
        let mut work = self.0.work(user.into());
        let members = project.members.iter().map(|member| (member.user.id, member.role));
        work.change(Change::ExpectMembers {
            project: project.row.id,
            members: members.collect(),
        });
        Ok((project, work))
    }

    async fn resolve(&self, members: &[MemberSetting]) -> Result<Vec<Wanted>> {
        let twice = || ControlError::refused("Cannot add same user multiple times");
        let names: BTreeSet<&str> = members.iter().map(|member| member.username.as_str()).collect();
        if names.len() != members.len() {
            return Err(twice());
        }
        let mut known = BTreeSet::new();
        let mut found: Vec<Wanted> = Vec::new();
        for member in members {
            let user = self.find(&member.username).await?;
            if user.as_ref().is_some_and(|user| !known.insert(user.id)) {
                return Err(twice());
            }
            found.push((member.username.clone(), user, member.project_role));
        }
        Ok(found)
    }

    /// The user of a name or, where nobody has that name, of an e-mail address. Several users may have one address.
    async fn find(&self, name: &str) -> Result<Option<UserRow>> {
        let mut found = self.0.database.users().by_name_or_email(name).await?;
        match found.len() {
            0 | 1 => Ok(found.pop()),
            _ => Err(ControlError::refused(format!(
                "Several users have the e-mail address {name}. Name them by their user names"
            ))),
        }
    }
}

/// What becomes of members that a change does not name.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Others {
    Stay,
    Leave,
}

/// Refuses to leave a project without an admin, unless a global admin does it. `after` has the roles of those that the change
/// names.
fn check_admin_is_left(
    user: &UserRow,
    project: &Project,
    after: &BTreeMap<UserId, ProjectRole>,
    others: Others,
) -> Result<()> {
    let before: Vec<UserId> = project.with_role(ProjectRole::Admin).collect();
    let stays = |admin: &UserId| match after.get(admin) {
        Some(role) => *role == ProjectRole::Admin,
        None => others == Others::Stay,
    };
    let is_left = before.iter().any(stays) || after.values().any(|role| *role == ProjectRole::Admin);
    match is_left || before.is_empty() || is_admin(user) {
        true => Ok(()),
        false => Err(ControlError::refused("Cannot remove all project admins")),
    }
}

fn forbidden(reason: &str) -> ControlError {
    ControlError::Forbidden(format!("Access denied: {reason}"))
}

fn unknown(name: &str) -> ControlError {
    ControlError::refused(format!("User not found: {name}"))
}

/// By who the named users are, and not by how they are called: e-mail addresses need not be unique.
fn check_may_add(user: &UserRow, project: &Project, wanted: &[Wanted]) -> Result<()> {
    let joins_alone = match wanted {
        [(_, Some(one), _)] => project.row.is_public && one.id == user.id && project.role(user).is_none(),
        _ => false,
    };
    let adds = |wanted_role: ProjectRole| wanted.iter().any(|(.., role)| *role == wanted_role);
    if joins_alone {
        return match adds(ProjectRole::Admin) || adds(ProjectRole::Manager) {
            false => Ok(()),
            true => Err(forbidden("can only join public projects as user role")),
        };
    }
    check_manager(user, project, "add")?;
    if adds(ProjectRole::Admin) && !project.is_admin(user) {
        return Err(forbidden("only global admins can add project admins"));
    }
    Ok(())
}

/// Whether the user only removes themselves; if not, they must be a manager.
fn leaves_alone(user: &UserRow, project: &Project, named: &[(&String, Option<UserRow>)]) -> Result<bool> {
    let leaves = match named {
        [(_, Some(one))] => one.id == user.id,
        _ => false,
    };
    if !leaves {
        check_manager(user, project, "remove")?;
    }
    Ok(leaves)
}

fn check_manager(user: &UserRow, project: &Project, action: &str) -> Result<()> {
    match project.is_manager(user) {
        true => Ok(()),
        false => Err(forbidden(&format!(
            "insufficient permissions to {action} members"
        ))),
    }
}
