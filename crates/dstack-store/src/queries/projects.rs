//! Projects, members and configured backends.

use dstack_model::users::ProjectRole;
use dstack_units::{ProjectId, Time, UserId};
use sqlx::Row;

use super::Reads;
use super::select::{Select, contains_pattern, fetch_as, fetch_one};
use super::users::UserRow;
use super::{Page, record};
use crate::entity::read_column;
use crate::{Column, Result, StoreError, Tx};

crate::text_columns!(ProjectRole);

record! {
    /// A project, deleted ones included.
    ProjectRow in "projects" {
        /// Id of the project.
        id: ProjectId,
        /// Name; renamed when deleted.
        name: String,
        /// When it was created.
        created_at: Time,
        /// Who created it.
        owner_id: UserId,
        /// Visible to all users, who may join.
        is_public: bool,
        /// Git repo of templates for the UI.
        templates_repo: Option<String>,
        /// Encrypted private key for hosts; `None` until first needed.
        ssh_private_key: Option<String>,
        /// The public key.
        ssh_public_key: Option<String>,
        /// Deleted; kept for history.
        deleted: bool,
        /// The name before deletion.
        original_name: Option<String>,
    }
}

/// A member with its user.
#[derive(Debug, Clone, PartialEq)]
pub struct Member {
    /// The user who is a member.
    pub user: UserRow,
    /// What they may do in the project.
    pub role: ProjectRole,
    /// Place in lists.
    pub number: i64,
}

fn select() -> String {
    format!("SELECT {} FROM projects p", ProjectRow::columns("p"))
}

fn read(row: &sqlx::any::AnyRow) -> Result<ProjectRow> {
    ProjectRow::read_at(row, 0)
}

/// Projects and their members: see [`crate::Database::projects`].
#[derive(Debug, Clone, Copy)]
pub struct Projects<'a>(pub(crate) Reads<'a>);

impl Projects<'_> {
    /// By name in any case.
    pub async fn by_name(self, name: &str) -> Result<Option<ProjectRow>> {
        fetch_one(
            self.0,
            select() + " WHERE LOWER(p.name) = $1 AND p.deleted = 0",
            &[&name.to_lowercase()],
            read,
        )
        .await
    }

    /// By id, also deleted ones.
    pub async fn by_id(self, id: ProjectId) -> Result<Option<ProjectRow>> {
        fetch_one(self.0, select() + " WHERE p.id = $1", &[&id.to_string()], read).await
    }

    /// All that are not deleted, oldest first.
    pub async fn all(self) -> Result<Vec<ProjectRow>> {
        fetch_as(
            self.0,
            select() + " WHERE p.deleted = 0 ORDER BY p.created_at, p.id",
            &[],
            read,
        )
        .await
    }

    /// Of which the user is a member, oldest first.
    pub async fn of_member(self, user: UserId) -> Result<Vec<ProjectRow>> {
        let sql = select()
            + " JOIN members m ON m.project_id = p.id WHERE m.user_id = $1 AND p.deleted = 0 ORDER BY p.created_at, p.id";
        fetch_as(self.0, sql, &[&user.to_string()], read).await
    }

    /// How many projects the user owns.
    pub async fn count_owned(self, owner: UserId) -> Result<i64> {
        let sql = "SELECT COUNT(*) FROM projects WHERE owner_id = $1 AND deleted = 0".to_owned();
        Ok(
            fetch_one(self.0, sql, &[&owner.to_string()], |row| Ok(row.try_get(0)?))
                .await?
                .unwrap_or(0),
        )
    }
}

/// Which projects to list.
#[derive(Debug, Clone, Default)]
pub struct ProjectFilter {
    /// Only those that this user may see; `None`: all.
    pub visible_to: Option<UserId>,
    /// Of those: only where the user is a member.
    pub joined_only: bool,
    /// Only where this user is a member.
    pub member: Option<UserId>,
    /// Only this one.
    pub only: Option<ProjectId>,
    /// Part of the name, in any case.
    pub name_part: Option<String>,
}

impl ProjectFilter {
    fn apply(&self, select: &mut Select) {
        select.filter("p.deleted = 0");
        if let Some(user) = self.visible_to {
            let user = select.bind(user);
            let public = if self.joined_only {
                ""
            } else {
                " OR p.is_public = 1"
            };
            select.filter(format_args!(
                "EXISTS (SELECT 1 FROM members m WHERE m.project_id = p.id AND m.user_id = {user}){public}"
            ));
        }
        if let Some(only) = self.only {
            let id = select.bind(only);
            select.filter(format_args!("p.id = {id}"));
        }
        if let Some(user) = self.member {
            let user = select.bind(user);
            select.filter(format_args!(
                "EXISTS (SELECT 1 FROM members n WHERE n.project_id = p.id AND n.user_id = {user})"
            ));
        }
        if let Some(part) = &self.name_part {
            let pattern = select.bind(contains_pattern(part));
            select.filter(format_args!("LOWER(p.name) LIKE {pattern} ESCAPE '\\'"));
        }
    }
}

impl Projects<'_> {
    /// Returns a page of the projects that the filter finds.
    pub async fn list(self, filter: &ProjectFilter, page: &Page) -> Result<Vec<ProjectRow>> {
        let mut query = Select::new(select());
        filter.apply(&mut query);
        query.page("p.created_at", "p.id", page);
        query.fetch(self.0).await?.iter().map(read).collect()
    }

    /// How many projects the filter finds.
    pub async fn count(self, filter: &ProjectFilter) -> Result<i64> {
        let mut query = Select::new("SELECT COUNT(*) FROM projects p");
        filter.apply(&mut query);
        Ok(query
            .fetch(self.0)
            .await?
            .first()
            .map(|row| row.try_get(0))
            .transpose()?
            .unwrap_or(0))
    }

    /// Members of a project, in their order.
    pub async fn members(self, project: ProjectId) -> Result<Vec<Member>> {
        let sql = format!(
            "SELECT {}, m.project_role, m.member_num FROM members m JOIN users u ON u.id = m.user_id \
             WHERE m.project_id = $1 AND u.deleted = 0 ORDER BY m.member_num, u.id",
            UserRow::columns("u")
        );
        fetch_as(self.0, sql, &[&project.to_string()], |row| {
            Ok(Member {
                user: UserRow::read_at(row, 0)?,
                role: crate::entity::read_column(row, UserRow::WIDTH, "members", "project_role")?,
                number: row.try_get(UserRow::WIDTH + 1)?,
            })
        })
        .await
    }
}

/// Adds a project.
pub async fn insert(tx: &mut Tx, project: &ProjectRow) -> Result<()> {
    sqlx::query(
        "INSERT INTO projects (id, name, created_at, owner_id, is_public, templates_repo, deleted) \
         VALUES ($1, $2, $3, $4, $5, $6, 0)",
    )
    .bind(project.id.to_string())
    .bind(project.name.clone())
    .bind(project.created_at.as_micros())
    .bind(project.owner_id.to_string())
    .bind(i64::from(project.is_public))
    .bind(project.templates_repo.clone())
    .execute(tx)
    .await?;
    Ok(())
}

/// Changes visibility and templates.
pub async fn update(
    tx: &mut Tx,
    id: ProjectId,
    is_public: Option<bool>,
    templates_repo: Option<Option<&str>>,
) -> Result<()> {
    let done = sqlx::query(
        "UPDATE projects SET is_public = COALESCE($2, is_public), \
         templates_repo = CASE WHEN $3 = 1 THEN $4 ELSE templates_repo END WHERE id = $1 AND deleted = 0",
    )
    .bind(id.to_string())
    .bind(is_public.map(i64::from))
    .bind(i64::from(templates_repo.is_some()))
    .bind(templates_repo.flatten().map(str::to_owned))
    .execute(tx)
    .await?;
    match done.rows_affected() {
        0 => Err(StoreError::conflict("projects", &id)),
        _ => Ok(()),
    }
}

/// Stores the key pair unless there is one. Returns whether it was stored.
pub async fn set_ssh_keys(tx: &mut Tx, id: ProjectId, private: &str, public: &str) -> Result<bool> {
    let done = sqlx::query(
        "UPDATE projects SET ssh_private_key = $2, ssh_public_key = $3 WHERE id = $1 AND ssh_private_key IS NULL",
    )
    .bind(id.to_string())
    .bind(private.to_owned())
    .bind(public.to_owned())
    .execute(tx)
    .await?;
    Ok(done.rows_affected() > 0)
}

/// Deletes a project: the row stays for history under `renamed`.
///
/// # Errors
/// [`StoreError::Conflict`]: somebody else has deleted it.
pub async fn delete(tx: &mut Tx, id: ProjectId, renamed: &str) -> Result<()> {
    let done = sqlx::query(
        "UPDATE projects SET deleted = 1, original_name = name, name = $2 WHERE id = $1 AND deleted = 0",
    )
    .bind(id.to_string())
    .bind(renamed.to_owned())
    .execute(&mut *tx)
    .await?;
    if done.rows_affected() == 0 {
        return Err(StoreError::conflict("projects", &id));
    }
    super::tokens::delete_of_project(tx, id).await
}

/// Adds a member, or changes its role. Without a `number` it comes before all that have one, after those that have none
/// (dstack 0.22.5 on SQLite sorts missing numbers first).
pub async fn put_member(
    tx: &mut Tx,
    project: ProjectId,
    user: UserId,
    role: ProjectRole,
    number: Option<i64>,
) -> Result<()> {
    sqlx::query(
        "INSERT INTO members (project_id, user_id, project_role, member_num) VALUES ($1, $2, $3, COALESCE($4, \
         (SELECT COALESCE(MAX(member_num), -1000000) + 1 FROM members WHERE project_id = $5 AND member_num < 0))) \
         ON CONFLICT (project_id, user_id) DO UPDATE SET project_role = excluded.project_role",
    )
    .bind(project.to_string())
    .bind(user.to_string())
    .bind(role.to_raw())
    .bind(number)
    .bind(project.to_string())
    .execute(tx)
    .await?;
    Ok(())
}

/// Removes a member.
pub async fn remove_member(tx: &mut Tx, project: ProjectId, user: UserId) -> Result<()> {
    sqlx::query("DELETE FROM members WHERE project_id = $1 AND user_id = $2")
        .bind(project.to_string())
        .bind(user.to_string())
        .execute(tx)
        .await?;
    Ok(())
}

/// Removes all members.
pub async fn clear_members(tx: &mut Tx, project: ProjectId) -> Result<()> {
    sqlx::query("DELETE FROM members WHERE project_id = $1")
        .bind(project.to_string())
        .execute(tx)
        .await?;
    Ok(())
}

/// What keeps a project from being deleted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InUse {
    /// Runs that are not finished.
    Runs,
    /// Fleets that are not deleted.
    Fleets,
    /// Volumes that are not deleted.
    Volumes,
    /// Placement groups of fleets that are deleted: only a backend of the project ends them.
    PlacementGroups,
    /// Gateways, which dstack 0.22.5 forgets: they would go on costing, and nobody could delete them.
    Gateways,
}

impl InUse {
    /// As users name it.
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Runs => "runs",
            Self::Fleets => "fleets",
            Self::Volumes => "volumes",
            Self::PlacementGroups => "placement groups",
            Self::Gateways => "gateways",
        }
    }

    /// Table, column of the name, condition. The fleet of the server's own machine does not count.
    const fn parts(self) -> (&'static str, &'static str, &'static str) {
        match self {
            Self::Runs => (
                "runs",
                "run_name",
                "status NOT IN ('terminated', 'failed', 'done')",
            ),
            Self::Fleets => ("fleets", "name", "deleted = 0 AND local = 0"),
            Self::Volumes => ("volumes", "name", "deleted = 0"),
            Self::PlacementGroups => ("placement_groups", "name", "status NOT IN ('failed', 'deleted')"),
            Self::Gateways => ("gateways", "name", "1 = 1"),
        }
    }
}

/// Names of what keeps the project from being deleted.
pub(crate) async fn names_in_use(tx: &mut Tx, project: ProjectId, kind: InUse) -> Result<Vec<String>> {
    let (table, name, condition) = kind.parts();
    let sql = format!("SELECT {name} FROM {table} WHERE project_id = $1 AND {condition} ORDER BY {name}");
    let rows = sqlx::query(sqlx::AssertSqlSafe(sql))
        .bind(project.to_string())
        .fetch_all(tx)
        .await?;
    rows.iter().map(|row| Ok(row.try_get(0)?)).collect()
}

/// Members of a project and their roles.
pub(crate) async fn roles(tx: &mut Tx, project: ProjectId) -> Result<Vec<(UserId, ProjectRole)>> {
    let sql = "SELECT m.user_id, m.project_role FROM members m JOIN users u ON u.id = m.user_id \
         WHERE m.project_id = $1 AND u.deleted = 0";
    let rows = sqlx::query(sql).bind(project.to_string()).fetch_all(tx).await?;
    let read = |row| {
        let role = read_column(row, 1, "members", "project_role")?;
        Ok((read_column(row, 0, "members", "user_id")?, role))
    };
    rows.iter().map(read).collect()
}

/// All that are not deleted.
pub(crate) async fn ids_in(tx: &mut Tx) -> Result<Vec<ProjectId>> {
    let rows = sqlx::query("SELECT id FROM projects WHERE deleted = 0")
        .fetch_all(tx)
        .await?;
    rows.iter()
        .map(|row| read_column(row, 0, "projects", "id"))
        .collect()
}

impl Projects<'_> {
    /// Projects of the member that have no fleet, oldest first.
    pub async fn without_fleets(self, user: UserId) -> Result<Vec<ProjectRow>> {
        let sql = select()
            + " JOIN members m ON m.project_id = p.id WHERE m.user_id = $1 AND p.deleted = 0 \
               AND NOT EXISTS (SELECT 1 FROM fleets f WHERE f.project_id = p.id AND f.deleted = 0) \
               ORDER BY p.created_at, p.id";
        fetch_as(self.0, sql, &[&user.to_string()], read).await
    }
}
