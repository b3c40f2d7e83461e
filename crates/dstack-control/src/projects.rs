//! Projects: creating, changing, deleting.

use dstack_store::StoreError;
use dstack_store::events;
use dstack_store::queries::projects::ProjectRow;
use dstack_store::queries::users::UserRow;
use dstack_store::writes::Change;
use dstack_units::name::is_project_name;

use crate::access::{Project, is_admin};
use crate::core::{Actor, retry_on_conflict};
use crate::directory::Directory;
use crate::error::{ControlError, Result};
use crate::text::{list_or_none, python_bool, python_list};

const BUSY: &str = "Projects are being changed by others. Try again";

/// The verbs of projects and their members.
#[derive(Debug, Clone)]
pub struct Projects(pub(crate) Directory);

/// A project to be created.
#[derive(Debug, Clone)]
pub struct NewProject {
    /// 1 to 50 letters, digits, `-` and `_`; no other project has it in any case.
    pub name: String,
    /// Visible to all users, who may join.
    pub is_public: bool,
    /// Git repo of templates for the UI.
    pub templates_repo: Option<String>,
}

/// What can be changed of a project; what is `None` stays.
#[derive(Debug, Clone, Default)]
pub struct ProjectUpdate {
    /// Visible to all users, who may join.
    pub is_public: Option<bool>,
    /// Git repo of templates for the UI; an inner `None`: without one.
    pub templates_repo: Option<Option<String>>,
}

impl Projects {
    /// On this database.
    pub fn new(directory: Directory) -> Self {
        Self(directory)
    }

    /// Creates a project for a user who may do so only as often as their quota allows, unless they are an admin.
    ///
    /// # Errors
    /// The name cannot be one or is taken, or the user owns as many projects as they may.
    pub async fn create(&self, owner: &UserRow, new: &NewProject) -> Result<ProjectRow> {
        let taken = self.0.database.projects().by_name(&new.name).await?;
        if taken.is_some() {
            return Err(ControlError::exists());
        }
        let quota = (!is_admin(owner)).then_some(owner.projects_quota);
        self.insert(owner, new, quota).await
    }

    /// Creates a project that the server itself needs.
    ///
    /// # Errors
    /// The name cannot be one or is taken.
    pub async fn create_for_server(&self, owner: &UserRow, name: &str) -> Result<ProjectRow> {
        let new = NewProject {
            name: name.to_owned(),
            is_public: false,
            templates_repo: None,
        };
        self.insert(owner, &new, None).await
    }

    async fn insert(&self, owner: &UserRow, new: &NewProject, quota: Option<i64>) -> Result<ProjectRow> {
        if !is_project_name(&new.name) {
            return Err(ControlError::refused(
                "Project name should match regex '^[a-zA-Z0-9-_]{1,50}$'",
            ));
        }
        let row = ProjectRow {
            id: self.0.random.uuid().into(),
            name: new.name.clone(),
            created_at: self.0.now(),
            owner_id: owner.id,
            is_public: new.is_public,
            templates_repo: new.templates_repo.clone(),
            ssh_private_key: None,
            ssh_public_key: None,
            deleted: false,
            original_name: None,
        };
        retry_on_conflict(BUSY, || self.try_insert(owner, &row, quota)).await?;
        Ok(row)
    }

    async fn try_insert(&self, owner: &UserRow, row: &ProjectRow, quota: Option<i64>) -> Result<()> {
        let global = self.0.database.exports().global().await?;
        let imports = global
            .into_iter()
            .map(|export| (export, self.0.random.uuid().into()));
        let mut work = self.0.work(owner.into());
        work.event("Project created", vec![events::project(row)]);
        work.change(Change::InsertProject {
            project: row.clone(),
            quota,
            imports: imports.collect(),
        });
        match self.0.finish(work).await {
            Err(ControlError::Store(StoreError::TooMany)) => {
                Err(ControlError::refused("User project quota exceeded"))
            }
            Err(ControlError::Store(error)) if error.is_unique_violation() => Err(ControlError::exists()),
            done => done,
        }
    }

    /// Changes visibility and templates.
    ///
    /// # Errors
    /// The store refuses, or cannot be reached.
    pub async fn update(
        &self,
        actor: Actor,
        project: &ProjectRow,
        update: ProjectUpdate,
    ) -> Result<ProjectRow> {
        let mut row = project.clone();
        let mut fields = Vec::new();
        if let Some(is_public) = update.is_public.filter(|is_public| *is_public != row.is_public) {
            row.is_public = is_public;
            fields.push(format!("is_public={}", python_bool(is_public)));
        }
        if let Some(wanted) = update
            .templates_repo
            .as_ref()
            .filter(|wanted| **wanted != row.templates_repo)
        {
            fields.push(format!("templates_repo={}", wanted.as_deref().unwrap_or("None")));
            row.templates_repo.clone_from(wanted);
        }
        let mut work = self.0.work(actor);
        // Only what was asked for: `project` may be older than what somebody else has changed.
        work.change(Change::UpdateProject {
            id: row.id,
            is_public: update.is_public,
            templates_repo: update.templates_repo,
        });
        let message = format!("Project updated. Updated fields: {}", list_or_none(&fields));
        work.event(message, vec![events::project(&row)]);
        self.0.finish(work).await?;
        Ok(row)
    }

    /// Deletes projects that `user` governs.
    ///
    /// # Errors
    /// One of them is not there, named twice, not the user's to delete, or in use: none is deleted.
    pub async fn delete(&self, user: &UserRow, names: &[String]) -> Result<()> {
        retry_on_conflict(BUSY, || self.try_delete(user, names)).await
    }

    async fn try_delete(&self, user: &UserRow, names: &[String]) -> Result<()> {
        let mut doomed: Vec<ProjectRow> = Vec::new();
        for name in names {
            let project = Project::by_name(&self.0.database, name).await?;
            let project = project.filter(|project| project.row.name == *name);
            let is_owned = project.as_ref().is_some_and(|project| {
                project.is_admin(user) || (project.role(user).is_some() && project.row.owner_id == user.id)
            });
            if !is_admin(user) && !is_owned {
                return Err(ControlError::denied());
            }
            match project {
                Some(project) if doomed.iter().all(|row| row.id != project.row.id) => {
                    doomed.push(project.row);
                }
                _ => return Err(ControlError::refused("Failed to delete non-existent projects")),
            }
        }
        let mut work = self.0.work(user.into());
        for row in &doomed {
            work.event("Project deleted", vec![events::project(row)]);
            work.change(Change::DeleteProject {
                id: row.id,
                renamed: self.0.deleted_name(),
            });
        }
        match self.0.finish(work).await {
            Err(ControlError::Store(StoreError::InUse { by, names })) => Err(ControlError::refused(format!(
                "Failed to delete project with active {by}: {}",
                python_list(&names)
            ))),
            done => done,
        }
    }
}
