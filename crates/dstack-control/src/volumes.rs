//! Network volumes: creating, marking for deletion.

use dstack_compute::Registry;
use dstack_model::ErrorCode;
use dstack_model::backends::BackendType;
use dstack_model::volumes::AnyVolumeConfiguration;
use dstack_plan::names;
use dstack_store::rows::{NewVolume, VolumeRow};
use dstack_store::{AttachmentsOf, VolumeUse, events};
use dstack_units::name::{RESOURCE_NAME_MESSAGE, is_resource_name};
use dstack_units::{ProjectId, UserId};

use crate::core::{Actor, Core, retry_on_conflict};
use crate::error::{ControlError, Result};
use crate::text::python_list;

const BUSY: &str = "The volume is being processed at the moment. Try again later.";

/// The verbs of volumes.
#[derive(Debug, Clone)]
pub struct Volumes {
    core: Core,
    registry: Registry,
}

impl Volumes {
    /// On this installation, with the kinds of backends of this build.
    pub const fn new(core: Core, registry: Registry) -> Self {
        Self { core, registry }
    }

    /// Submits a volume; without a name it gets one.
    ///
    /// # Errors
    /// It is not available, or the name is taken.
    pub async fn create(
        &self,
        user: UserId,
        project: ProjectId,
        configuration: &AnyVolumeConfiguration,
    ) -> Result<VolumeRow> {
        check(&self.registry, configuration)?;
        retry_on_conflict(BUSY, || self.try_create(user, project, configuration.clone())).await
    }

    async fn try_create(
        &self,
        user: UserId,
        project: ProjectId,
        mut configuration: AnyVolumeConfiguration,
    ) -> Result<VolumeRow> {
        let existing = self.core.store.volumes(project).await?;
        let is_taken = |name: &str| existing.iter().any(|row| row.name == name);
        let name = match configuration.name() {
            Some(name) if is_taken(name) => return Err(ControlError::exists()),
            Some(name) => name.to_owned(),
            None => names::numbered(&names::stem(&self.core.random), is_taken),
        };
        configuration.set_name(Some(name.clone()));
        let new = NewVolume {
            id: self.core.random.uuid().into(),
            project,
            user,
            name,
            auto_cleanup_enabled: is_cleaned_up(&configuration),
            configuration,
        };
        let row = VolumeRow::submitted(new, self.core.now());
        let mut changes = self.core.changes(Actor::User(user));
        changes.insert(row.clone(), "Volume created. Status: SUBMITTED");
        self.core.commit(changes).await?;
        Ok(row)
    }

    /// Marks volumes for deletion; unknown names are ignored.
    ///
    /// # Errors
    /// An instance has one of them: none is marked. The store refuses, or cannot be reached.
    pub async fn delete(&self, actor: Actor, project: ProjectId, names: &[String]) -> Result<()> {
        retry_on_conflict(BUSY, || self.try_delete(actor, project, names)).await
    }

    async fn try_delete(&self, actor: Actor, project: ProjectId, names: &[String]) -> Result<()> {
        let existing = self.core.store.volumes(project).await?;
        let attached = self
            .core
            .store
            .attachments(AttachmentsOf::Project(project))
            .await?;
        let mut changes = self.core.changes(actor);
        let is_wanted = |row: &&VolumeRow| names.contains(&row.name) && !row.to_be_deleted;
        for before in existing.iter().filter(is_wanted) {
            // Whoever gets it meanwhile changes its row.
            let takes_it = |one: &VolumeUse| one.row.volume_id == before.id && one.row.takes_volume();
            if attached.iter().any(takes_it) {
                return Err(ControlError::refused(format!(
                    "Failed to delete volume {}. Volume is in use.",
                    before.name
                )));
            }
            let mut row = before.clone();
            row.mark_for_deletion(self.core.now());
            changes.note("Volume marked for deletion", vec![events::volume(&row)]);
            changes.update(before, row);
        }
        self.core.commit(changes).await
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
