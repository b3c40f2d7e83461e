//! Applying a volume.

use dstack_api::endpoint::Nothing;
use dstack_api::routes::{UsersGetMyUser, VolumesCreate, VolumesDelete, VolumesGet};
use dstack_model::requests::{CreateVolumeRequest, NameRequest, NamesRequest};
use dstack_model::volumes::{AnyVolumeConfiguration, Volume, VolumeStatus};

use super::resource::{ApplyResource, Change, Existing};
use crate::args::ApplyArgs;
use crate::context::Project;
use crate::error::CliError;
use crate::tables::{Dates, volumes};
use crate::ui::{Table, Ui};

/// A volume that is about to be applied.
pub(crate) struct VolumeApply {
    configuration: AnyVolumeConfiguration,
    path: String,
}

/// The server has no plans for volumes: what a plan would say.
pub(crate) struct VolumePlan {
    username: String,
    current: Option<Volume>,
}

impl VolumeApply {
    /// Fills in what the command line says.
    pub(crate) fn new(args: &ApplyArgs, mut configuration: AnyVolumeConfiguration, path: String) -> Self {
        if let Some(name) = &args.name {
            configuration.set_name(Some(name.clone()));
        }
        Self { configuration, path }
    }
}

impl ApplyResource for VolumeApply {
    type Resource = Volume;
    type Plan = VolumePlan;

    const NOUN: &'static str = "volume";
    // Volumes are never updated in place.
    const UPDATE_QUESTION: &'static str = "Update the volume?";
    const SUBMITTING: &'static str = "Creating volume...";

    async fn plan(&self, project: &Project) -> Result<VolumePlan, CliError> {
        let me = project.client.call::<UsersGetMyUser>((), &Nothing).await?;
        let current = match self.configuration.name() {
            Some(name) => Self::find(project, name).await?,
            None => None,
        };
        Ok(VolumePlan {
            username: me.user.username,
            current,
        })
    }

    fn print_plan(&self, ui: &Ui, project: &Project, plan: &VolumePlan) {
        ui.table(&properties(
            project,
            &plan.username,
            &self.configuration,
            &self.path,
        ));
        ui.blank();
    }

    fn configured_name(&self, _plan: &VolumePlan) -> Option<String> {
        self.configuration.name().map(str::to_owned)
    }

    fn existing(&self, plan: &VolumePlan) -> Option<Existing> {
        let current = plan.current.as_ref()?;
        let change = match current.configuration == self.configuration {
            true => Change::Nothing,
            false => Change::Unknown,
        };
        Some(Existing {
            name: current.name.clone(),
            change,
        })
    }

    async fn submit(self, project: &Project, _plan: VolumePlan) -> Result<Volume, CliError> {
        let request = CreateVolumeRequest {
            configuration: self.configuration,
        };
        Ok(project
            .client
            .call::<VolumesCreate>(&project.name, &request)
            .await?)
    }

    async fn find(project: &Project, name: &str) -> Result<Option<Volume>, CliError> {
        let request = NameRequest {
            name: name.to_owned(),
        };
        match project.client.call::<VolumesGet>(&project.name, &request).await {
            Ok(volume) => Ok(Some(volume)),
            Err(error) if error.is_not_exists() => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    async fn delete(project: &Project, name: &str) -> Result<(), CliError> {
        Ok(project
            .client
            .call::<VolumesDelete>(&project.name, &NamesRequest::one(name))
            .await?)
    }

    fn name(volume: &Volume) -> &str {
        &volume.name
    }

    fn is_done(volume: &Volume) -> bool {
        matches!(volume.status, VolumeStatus::Active | VolumeStatus::Failed)
    }

    fn failure(volume: &Volume) -> Option<String> {
        let reason = volume.status_message.as_deref().unwrap_or("unknown");
        (volume.status == VolumeStatus::Failed).then(|| format!("Provisioning failed. Error: {reason}"))
    }

    fn table(volume: &Volume, _project: &Project, verbose: bool, dates: Dates) -> Table {
        volumes::table(std::slice::from_ref(volume), verbose, dates)
    }
}

fn properties(project: &Project, user: &str, configuration: &AnyVolumeConfiguration, path: &str) -> Table {
    let mut table = Table::properties();
    table.property("Project", project.name.as_str());
    table.property("User", user);
    table.property("Configuration", path);
    table.property("Type", "volume");
    table.property(
        "Volume type",
        if configuration.is_external() {
            "external"
        } else {
            "managed"
        },
    );
    table.property("Backend", configuration.backend().as_str());
    if let Some(region) = configuration.region() {
        table.property("Region", region);
    }
    if configuration.has_size() {
        table.property(
            "Size",
            configuration
                .size()
                .map_or_else(|| "-".to_owned(), |size| size.to_string()),
        );
    }
    table
}
