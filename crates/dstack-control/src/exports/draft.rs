//! An export under change (the messages are those of dstack 0.22.5).

use std::collections::BTreeSet;

use dstack_model::ErrorCode;
use dstack_model::requests::UpdateExportRequest;
use dstack_model::users::ProjectRole;
use dstack_store::queries::Page;
use dstack_store::queries::exports::{FullExport, ImportRow};
use dstack_store::queries::projects::ProjectRow;
use dstack_store::queries::views::FleetFilter;

use super::Exporter;
use crate::access::{Project, is_admin};
use crate::directory::Directory;
use crate::error::{ControlError, Result};
use crate::text::{python_list, python_set};

fn refuse<T>(text: impl Into<String>) -> Result<T> {
    Err(ControlError::refused(text))
}

fn lower(names: &[String]) -> Vec<String> {
    names.iter().map(|name| name.to_lowercase()).collect()
}

/// Names of what an export has.
fn names_of<T>(exported: &[(T, String)]) -> Vec<String> {
    exported.iter().map(|(_, name)| name.clone()).collect()
}

fn check_once(what: &str, change: &str, names: &[String]) -> Result<()> {
    let unique: BTreeSet<&String> = names.iter().collect();
    match unique.len() == names.len() {
        true => Ok(()),
        false => refuse(format!("Some {what} are listed for {change} more than once")),
    }
}

fn check_apart(what: &str, add: &[String], remove: &[String]) -> Result<()> {
    let both: Vec<&String> = add.iter().filter(|name| remove.contains(name)).collect();
    match both.is_empty() {
        true => Ok(()),
        false => refuse(format!(
            "{what} {} are listed for both addition and removal. Cannot add and remove at the same time",
            python_set(both)
        )),
    }
}

/// Whether an update makes sense at all.
pub(super) fn check_update(request: &UpdateExportRequest) -> Result<()> {
    let importers = !request.add_importer_projects.is_empty() || !request.remove_importer_projects.is_empty();
    let entities = !request.add_exported_fleets.is_empty()
        || !request.remove_exported_fleets.is_empty()
        || !request.add_exported_gateways.is_empty()
        || !request.remove_exported_gateways.is_empty();
    let global = request.set_global || request.unset_global;
    if !importers && !entities && !global {
        return refuse("No changes specified");
    }
    if request.set_global && request.unset_global {
        return refuse("Cannot set and unset global at the same time");
    }
    if global && importers {
        return refuse("Cannot change global status and add/remove importers at the same time");
    }
    let (add, remove) = (
        lower(&request.add_importer_projects),
        lower(&request.remove_importer_projects),
    );
    check_apart("Projects", &add, &remove)?;
    check_apart(
        "Fleets",
        &request.add_exported_fleets,
        &request.remove_exported_fleets,
    )?;
    check_apart(
        "Gateways",
        &request.add_exported_gateways,
        &request.remove_exported_gateways,
    )
}

/// An export that is being changed.
pub(super) struct Draft<'a> {
    directory: &'a Directory,
    by: Exporter<'a>,
    export: FullExport,
}

impl<'a> Draft<'a> {
    pub(super) fn new(directory: &'a Directory, by: Exporter<'a>, export: FullExport) -> Self {
        Self {
            directory,
            by,
            export,
        }
    }

    pub(super) fn finish(self) -> FullExport {
        self.export
    }

    fn import(&mut self, project: &ProjectRow) {
        self.export.imports.push(ImportRow {
            id: self.directory.random.uuid().into(),
            project_id: project.id,
            project_name: project.name.clone(),
            created_at: self.directory.now(),
        });
    }

    pub(super) async fn add_importers(&mut self, names: &[String]) -> Result<()> {
        if names.is_empty() {
            return Ok(());
        }
        let names = lower(names);
        check_once("importer projects", "addition", &names)?;
        let present = |name: &&String| {
            let mut imports = self.export.imports.iter();
            imports.any(|import| import.project_name.to_lowercase() == **name)
        };
        let already: Vec<&String> = names.iter().filter(present).collect();
        if !already.is_empty() {
            return refuse(format!(
                "Projects {} are already importing export '{}'",
                python_set(already),
                self.export.row.name
            ));
        }
        if names.contains(&self.export.project_name.to_lowercase()) {
            return refuse(format!(
                "Project '{}' cannot import from itself",
                self.export.project_name
            ));
        }
        let mut missing = Vec::new();
        for name in &names {
            match self.importer(name).await? {
                Some(project) => self.import(&project),
                None => missing.push(name),
            }
        }
        match missing.is_empty() {
            true => Ok(()),
            false => refuse(format!(
                "Projects {} not found or you are not allowed to add them as importers. Only project admins can add a \
                 project as importer",
                python_set(missing)
            )),
        }
    }

    /// The project, if the caller is an admin of it.
    async fn importer(&self, name: &str) -> Result<Option<ProjectRow>> {
        let Some(project) = Project::by_name(&self.directory.database, name).await? else {
            return Ok(None);
        };
        let is_allowed = is_admin(self.by.user) || project.role(self.by.user) == Some(ProjectRole::Admin);
        let is_reached = self.by.only_project.is_none_or(|only| only == project.row.id);
        Ok((is_allowed && is_reached).then_some(project.row))
    }

    pub(super) fn remove_importers(&mut self, names: &[String]) -> Result<()> {
        if names.is_empty() {
            return Ok(());
        }
        if self.export.row.is_global {
            return refuse("Cannot remove importers from a global export");
        }
        let names = lower(names);
        check_once("importer projects", "removal", &names)?;
        let imports = &mut self.export.imports;
        let present = |name: &String| {
            imports
                .iter()
                .any(|import| import.project_name.to_lowercase() == *name)
        };
        let missing: Vec<&String> = names.iter().filter(|name| !present(name)).collect();
        if !missing.is_empty() {
            return refuse(format!(
                "Projects {} are not importing export '{}'",
                python_set(missing),
                self.export.row.name
            ));
        }
        imports.retain(|import| !names.contains(&import.project_name.to_lowercase()));
        Ok(())
    }

    fn check_new(&self, what: &str, names: &[String], present: &[String]) -> Result<()> {
        check_once(&what.to_lowercase(), "addition", names)?;
        let already: Vec<&String> = names.iter().filter(|name| present.contains(name)).collect();
        match already.is_empty() {
            true => Ok(()),
            false => refuse(format!(
                "{what} {} are already exported by export '{}'",
                python_set(already),
                self.export.row.name
            )),
        }
    }

    fn check_found(&self, what: &str, names: &[String], found: &[String]) -> Result<()> {
        let missing: Vec<&String> = names.iter().filter(|name| !found.contains(name)).collect();
        if missing.is_empty() {
            return Ok(());
        }
        let project = &self.export.project_name;
        Err(ControlError::with_code(
            ErrorCode::ResourceNotExists,
            format!("{what} {} not found in project '{project}'", python_set(missing)),
        ))
    }

    pub(super) async fn add_fleets(&mut self, names: &[String]) -> Result<()> {
        let present = names_of(&self.export.fleets);
        self.check_new("Fleets", names, &present)?;
        let database = &self.directory.database;
        let page = Page::newest(1_000_000);
        let filter = FleetFilter {
            projects: Some(vec![self.export.row.project_id]),
            only_active: true,
            ..FleetFilter::default()
        };
        let all = database.views().fleets(&filter, &page).await?;
        let chosen: Vec<_> = all
            .iter()
            .filter(|listed| names.contains(&listed.fleet.name))
            .collect();
        let found: Vec<String> = chosen.iter().map(|listed| listed.fleet.name.clone()).collect();
        self.check_found("Fleets", names, &found)?;
        let in_clouds: Vec<String> = chosen
            .iter()
            .filter(|listed| listed.fleet.spec.configuration.ssh_config.is_none())
            .map(|listed| listed.fleet.name.clone())
            .collect();
        if !in_clouds.is_empty() {
            return refuse(format!(
                "Fleets {} are cloud fleets. Can only export SSH fleets",
                python_list(&in_clouds)
            ));
        }
        let new = chosen
            .iter()
            .map(|listed| (listed.fleet.id, listed.fleet.name.clone()));
        self.export.fleets.extend(new);
        Ok(())
    }

    pub(super) async fn add_gateways(&mut self, names: &[String]) -> Result<()> {
        let present = names_of(&self.export.gateways);
        self.check_new("Gateways", names, &present)?;
        let database = &self.directory.database;
        let all = database
            .gateways()
            .list(self.export.row.project_id, false)
            .await?;
        let chosen: Vec<_> = all
            .into_iter()
            .filter(|listed| names.contains(&listed.row.name))
            .collect();
        let found: Vec<String> = chosen.iter().map(|listed| listed.row.name.clone()).collect();
        self.check_found("Gateways", names, &found)?;
        self.export
            .gateways
            .extend(chosen.into_iter().map(|listed| (listed.row.id, listed.row.name)));
        Ok(())
    }

    pub(super) fn remove_fleets(&mut self, names: &[String]) -> Result<()> {
        check_once("fleets", "removal", names)?;
        let present = names_of(&self.export.fleets);
        self.check_exported("Fleets", names, &present)?;
        self.export.fleets.retain(|(_, name)| !names.contains(name));
        Ok(())
    }

    pub(super) fn remove_gateways(&mut self, names: &[String]) -> Result<()> {
        check_once("gateways", "removal", names)?;
        let present = names_of(&self.export.gateways);
        self.check_exported("Gateways", names, &present)?;
        self.export.gateways.retain(|(_, name)| !names.contains(name));
        Ok(())
    }

    fn check_exported(&self, what: &str, names: &[String], present: &[String]) -> Result<()> {
        let missing: Vec<&String> = names.iter().filter(|name| !present.contains(name)).collect();
        match missing.is_empty() {
            true => Ok(()),
            false => refuse(format!(
                "{what} {} are not exported by export '{}'",
                python_set(missing),
                self.export.row.name
            )),
        }
    }

    pub(super) fn make_local(&mut self) -> Result<()> {
        if !self.export.row.is_global {
            return refuse("The export is already not global");
        }
        self.export.row.is_global = false;
        Ok(())
    }

    pub(super) async fn make_global(&mut self) -> Result<()> {
        if self.export.row.is_global {
            return refuse("The export is already global");
        }
        if !is_admin(self.by.user) || self.by.only_project.is_some() {
            return Err(ControlError::Forbidden(
                "Only global admins can make the export global".to_owned(),
            ));
        }
        for project in self.directory.database.projects().all().await? {
            let known = self
                .export
                .imports
                .iter()
                .any(|import| import.project_id == project.id);
            if !known && project.id != self.export.row.project_id {
                self.import(&project);
            }
        }
        self.export.row.is_global = true;
        Ok(())
    }
}
