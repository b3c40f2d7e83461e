//! Exports and imports: projects share SSH fleets and gateways.

mod draft;

use dstack_model::ErrorCode;
use dstack_model::requests::{CreateExportRequest, UpdateExportRequest};
use dstack_store::events;
use dstack_store::queries::exports::{ExportRow, FullExport};
use dstack_store::queries::projects::ProjectRow;
use dstack_store::queries::users::UserRow;
use dstack_store::writes::Change;
use dstack_units::ProjectId;
use dstack_units::name::{RESOURCE_NAME_MESSAGE, is_resource_name};

use self::draft::Draft;
use crate::core::retry_on_conflict;
use crate::directory::Directory;
use crate::error::{ControlError, Result};

const BUSY: &str = "The export is being changed by others. Try again";

/// The verbs of exports and imports.
#[derive(Debug, Clone)]
pub struct Exports(Directory);

/// Who exports, and from where.
#[derive(Debug, Clone, Copy)]
pub struct Exporter<'a> {
    /// Who exports: as an admin of the importing projects as well.
    pub user: &'a UserRow,
    /// The exporting project.
    pub project: &'a ProjectRow,
    /// The only project that the user's token is good for.
    pub only_project: Option<ProjectId>,
}

impl Exports {
    /// On this database.
    pub fn new(directory: Directory) -> Self {
        Self(directory)
    }

    /// The project's export of this name.
    ///
    /// # Errors
    /// The project has none of that name.
    pub async fn by_name(&self, project: &ProjectRow, name: &str) -> Result<FullExport> {
        let all = self.0.database.exports().of_project(project.id).await?;
        let found = all.into_iter().find(|export| export.row.name == name);
        found.ok_or_else(|| {
            let text = format!("Export '{name}' not found in project '{}'", project.name);
            ControlError::with_code(ErrorCode::ResourceNotExists, text)
        })
    }

    /// Creates an export.
    ///
    /// # Errors
    /// The name cannot be one or is taken, something is not there, or the user may not.
    pub async fn create(&self, by: Exporter<'_>, request: &CreateExportRequest) -> Result<FullExport> {
        if !is_resource_name(&request.name) {
            return Err(ControlError::refused(RESOURCE_NAME_MESSAGE));
        }
        if request.is_global && !request.importer_projects.is_empty() {
            return Err(ControlError::refused(
                "Do not specify any importer projects when creating a global export. Global exports are automatically \
                 imported in all projects",
            ));
        }
        retry_on_conflict(BUSY, || self.try_create(by, request)).await
    }

    async fn try_create(&self, by: Exporter<'_>, request: &CreateExportRequest) -> Result<FullExport> {
        let existing = self.0.database.exports().of_project(by.project.id).await?;
        if existing.iter().any(|export| export.row.name == request.name) {
            let (name, project) = (&request.name, &by.project.name);
            let text = format!("Export '{name}' already exists in project '{project}'");
            return Err(ControlError::with_code(ErrorCode::ResourceExists, text));
        }
        let export = FullExport {
            row: ExportRow {
                id: self.0.random.uuid().into(),
                project_id: by.project.id,
                name: request.name.clone(),
                created_at: self.0.now(),
                is_global: false,
            },
            project_name: by.project.name.clone(),
            imports: Vec::new(),
            fleets: Vec::new(),
            gateways: Vec::new(),
        };
        let mut draft = Draft::new(&self.0, by, export);
        draft.add_importers(&request.importer_projects).await?;
        draft.add_fleets(&request.exported_fleets).await?;
        draft.add_gateways(&request.exported_gateways).await?;
        if request.is_global {
            draft.make_global().await?;
        }
        self.put(by, None, draft.finish(), "created").await
    }

    /// Changes an export.
    ///
    /// # Errors
    /// Something is not there or there already, nothing would change, or the user may not.
    pub async fn update(&self, by: Exporter<'_>, request: &UpdateExportRequest) -> Result<FullExport> {
        retry_on_conflict(BUSY, || self.try_update(by, request)).await
    }

    async fn try_update(&self, by: Exporter<'_>, request: &UpdateExportRequest) -> Result<FullExport> {
        let before = self.by_name(by.project, &request.name).await?;
        draft::check_update(request)?;
        let mut draft = Draft::new(&self.0, by, before.clone());
        draft.add_importers(&request.add_importer_projects).await?;
        draft.add_fleets(&request.add_exported_fleets).await?;
        draft.add_gateways(&request.add_exported_gateways).await?;
        draft.remove_importers(&request.remove_importer_projects)?;
        draft.remove_fleets(&request.remove_exported_fleets)?;
        draft.remove_gateways(&request.remove_exported_gateways)?;
        if request.unset_global {
            draft.make_local()?;
        }
        if request.set_global {
            draft.make_global().await?;
        }
        self.put(by, Some(before), draft.finish(), "updated").await
    }

    async fn put(
        &self,
        by: Exporter<'_>,
        before: Option<FullExport>,
        after: FullExport,
        what: &str,
    ) -> Result<FullExport> {
        let mut work = self.0.work(by.user.into());
        let message = format!("Export {what}. Name: {}", after.row.name);
        work.event_for_managers(message, vec![events::project(by.project)]);
        work.change(Change::PutExport {
            before: before.map(Box::new),
            after: Box::new(after.clone()),
        });
        self.0.finish(work).await?;
        Ok(after)
    }

    /// Deletes an export: whoever imports it does so no more.
    ///
    /// # Errors
    /// There is none of that name.
    pub async fn delete(&self, by: Exporter<'_>, name: &str) -> Result<()> {
        let export = self.by_name(by.project, name).await?;
        let mut work = self.0.work(by.user.into());
        let message = format!("Export deleted. Name: {name}");
        work.event_for_managers(message, vec![events::project(by.project)]);
        work.change(Change::DeleteExport(export.row.id));
        self.0.finish(work).await
    }

    /// Ends the import of another project's export.
    ///
    /// # Errors
    /// The project does not import it, or the export is global.
    pub async fn delete_import(&self, by: Exporter<'_>, exporter: &str, name: &str) -> Result<()> {
        retry_on_conflict(BUSY, || self.try_delete_import(by, exporter, name)).await
    }

    async fn try_delete_import(&self, by: Exporter<'_>, exporter: &str, name: &str) -> Result<()> {
        let project = by.project;
        let full_name = format!("{exporter}/{name}");
        let imported = self.0.database.exports().imported_by(project.id).await?;
        let is_meant = |export: &FullExport| {
            export.row.name == name && export.project_name.eq_ignore_ascii_case(exporter)
        };
        let before = imported.into_iter().find(is_meant).ok_or_else(|| {
            // The same for exports that are there: whoever does not import them must not know of them.
            let text = format!("Import '{full_name}' not found in project '{}'", project.name);
            ControlError::with_code(ErrorCode::ResourceNotExists, text)
        })?;
        if before.row.is_global {
            return Err(ControlError::refused(format!(
                "'{full_name}' is a global export, cannot stop importing"
            )));
        }
        let mut after = before.clone();
        after.imports.retain(|import| import.project_id != project.id);
        let mut work = self.0.work(by.user.into());
        let message = format!("Import deleted. Name: {full_name}");
        work.event_for_managers(message, vec![events::project(project)]);
        work.change(Change::PutExport {
            before: Some(Box::new(before)),
            after: Box::new(after),
        });
        self.0.finish(work).await
    }
}
