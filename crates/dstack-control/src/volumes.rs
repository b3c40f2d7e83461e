//! Network volumes: creating, marking for deletion.

use dstack_compute::Registry;
use dstack_model::ErrorCode;
use dstack_model::backends::BackendType;
use dstack_model::volumes::{AnyVolumeConfiguration, VolumeStatus};
use dstack_plan::names;
use dstack_store::queries::users::UserRow;
use dstack_store::queries::volumes::{self, VolumeRow};
use dstack_store::writes::Change;
use dstack_store::{Json, events};
use dstack_units::ProjectId;
use dstack_units::name::{RESOURCE_NAME_MESSAGE, is_resource_name};

use crate::core::{Actor, retry_on_conflict};
use crate::directory::Directory;
use crate::error::{ControlError, Result};
use crate::text::python_list;

const BUSY: &str = "The volume is being processed at the moment. Try again later.";

/// The verbs of volumes.
#[derive(Debug, Clone)]
pub struct Volumes {
    directory: Directory,
    registry: Registry,
}

impl Volumes {
    /// On this database, with the kinds of backends of this build.
    pub fn new(directory: Directory, registry: Registry) -> Self {
        Self { directory, registry }
    }

    /// Submits a volume; without a name it gets one.
    ///
    /// # Errors
    /// It cannot be had, or the name is taken.
    pub async fn create(
        &self,
        user: &UserRow,
        project: ProjectId,
        configuration: &AnyVolumeConfiguration,
    ) -> Result<VolumeRow> {
        check(&self.registry, configuration)?;
        retry_on_conflict(BUSY, || self.try_create(user, project, configuration.clone())).await
    }

    async fn try_create(
        &self,
        user: &UserRow,
        project: ProjectId,
        mut configuration: AnyVolumeConfiguration,
    ) -> Result<VolumeRow> {
        let existing = volumes::of_project(self.directory.database.reads(), project).await?;
        let is_taken = |name: &str| existing.iter().any(|listed| listed.row.name == name);
        let name = match configuration.name() {
            Some(name) if is_taken(name) => return Err(ControlError::exists()),
            Some(name) => name.to_owned(),
            None => names::numbered(&names::stem(&self.directory.random), is_taken),
        };
        configuration.set_name(Some(name.clone()));
        let now = self.directory.now();
        let row = VolumeRow {
            id: self.directory.random.uuid().into(),
            project_id: project,
            user_id: user.id,
            name,
            created_at: now,
            status: VolumeStatus::Submitted,
            status_message: None,
            auto_cleanup_enabled: is_cleaned_up(&configuration),
            configuration: Json::new(configuration),
            provisioning_data: None,
            to_be_deleted: false,
            deleted: false,
            deleted_at: None,
            last_job_processed_at: None,
            last_processed_at: now,
            version: 0,
        };
        let mut work = self.directory.work(user.into());
        work.event("Volume created. Status: SUBMITTED", vec![events::volume(&row)]);
        work.change(Change::PutVolume(Box::new(row.clone())));
        self.directory.finish(work).await?;
        Ok(row)
    }

    /// Marks volumes for deletion; unknown names are ignored.
    ///
    /// # Errors
    /// The store refuses, or cannot be reached.
    pub async fn delete(&self, actor: Actor, project: ProjectId, names: &[String]) -> Result<()> {
        retry_on_conflict(BUSY, || self.try_delete(actor, project, names)).await
    }

    async fn try_delete(&self, actor: Actor, project: ProjectId, names: &[String]) -> Result<()> {
        let existing = volumes::of_project(self.directory.database.reads(), project).await?;
        let mut work = self.directory.work(actor);
        for mut row in existing.into_iter().map(|listed| listed.row) {
            if names.contains(&row.name) && !row.to_be_deleted {
                row.to_be_deleted = true;
                work.event("Volume marked for deletion", vec![events::volume(&row)]);
                work.change(Change::PutVolume(Box::new(row)));
            }
        }
        self.directory.finish(work).await
    }
}

fn is_cleaned_up(configuration: &AnyVolumeConfiguration) -> bool {
    let after = configuration.auto_cleanup_duration();
    after.is_some_and(|duration| duration.0 > 0)
}

/// What a volume must look like (the messages are those of dstack 0.22.5).
fn check(registry: &Registry, configuration: &AnyVolumeConfiguration) -> Result<()> {
    if configuration.has_size() && !configuration.is_external() && configuration.size().is_none() {
        return Err(ControlError::refused(
            "Volume must specify either existing identifier or size",
        ));
    }
    let backend = configuration.backend();
    check_available(registry, backend)?;
    let supporting = registry.with(|capabilities| capabilities.volumes);
    if !supporting.contains(&backend) {
        return Err(ControlError::refused(format!(
            "Volumes are not supported for {backend} backend. Available backends with volumes support: {}.",
            types(&supporting)
        )));
    }
    if configuration.name().is_some_and(|name| !is_resource_name(name)) {
        return Err(ControlError::refused(RESOURCE_NAME_MESSAGE));
    }
    if configuration.is_external() && is_cleaned_up(configuration) {
        return Err(ControlError::refused(
            "External volumes do not support auto_cleanup_duration. Auto-cleanup only works for volumes created and \
             managed by dstack.",
        ));
    }
    Ok(())
}

/// Whether the build has this type of backend.
pub(crate) fn check_available(registry: &Registry, backend: BackendType) -> Result<()> {
    if registry.get(backend).is_some() {
        return Ok(());
    }
    Err(ControlError::with_code(
        ErrorCode::BackendNotAvailable,
        format!(
            "Backend {backend} not available. This version of the server does not have it. Available backends: {}.",
            types(&registry.types())
        ),
    ))
}

/// Types of backends in a message.
pub(crate) fn types(types: &[BackendType]) -> String {
    python_list(&types.iter().map(ToString::to_string).collect::<Vec<_>>())
}
