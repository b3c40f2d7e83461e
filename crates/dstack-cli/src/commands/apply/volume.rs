//! Applying and deleting a volume.

use std::process::ExitCode;

use dstack_api::endpoint::Nothing;
use dstack_api::routes::{UsersGetMyUser, VolumesCreate, VolumesDelete, VolumesGet};
use dstack_model::requests::{CreateVolumeRequest, NameRequest, NamesRequest};
use dstack_model::volumes::{AnyVolumeConfiguration, Volume, VolumeStatus};

use super::provision::{self, Kind, until_gone};
use crate::args::ApplyArgs;
use crate::context::{Context, Project};
use crate::error::{CliError, ErrorKind};
use crate::tables::{Dates, volumes};
use crate::ui::{Role, Table, Text, Ui};

/// Applies a volume.
pub(crate) async fn apply(
    context: &Context,
    project: &Project,
    args: &ApplyArgs,
    configuration: AnyVolumeConfiguration,
    path: String,
) -> Result<ExitCode, CliError> {
    let volume = match provision::before(context, submit(context, project, args, configuration, path)).await?
    {
        Ok(volume) => volume,
        Err(code) => return Ok(code),
    };
    if args.detach {
        context.ui.say("Volume configuration submitted. Exiting...");
        return Ok(ExitCode::SUCCESS);
    }
    let name = volume.name.clone();
    let table = |volume: &Volume| volumes::table(std::slice::from_ref(volume), false, Dates::Ago);
    let kind = Kind {
        noun: "volume",
        is_done: |volume: &Volume| matches!(volume.status, VolumeStatus::Active | VolumeStatus::Failed),
    };
    let fetch = async || {
        find(project, &name)
            .await?
            .ok_or_else(|| CliError::new(ErrorKind::Vanished, format!("Volume {name} was deleted")))
    };
    let delete = async || call_delete(project, &name).await;
    let waited = provision::wait(context, args, &kind, &name, volume, table, fetch, delete).await?;
    Ok(waited.map_or(ExitCode::SUCCESS, |volume| finish(&context.ui, &volume)))
}

async fn submit(
    context: &Context,
    project: &Project,
    args: &ApplyArgs,
    mut configuration: AnyVolumeConfiguration,
    path: String,
) -> Result<Result<Volume, ExitCode>, CliError> {
    let ui = &context.ui;
    if let Some(name) = &args.name {
        configuration.set_name(Some(name.clone()));
    }
    let spinner = ui.spin("Getting apply plan...");
    let user = project
        .client
        .call::<UsersGetMyUser>((), &Nothing)
        .await?
        .user
        .username;
    let current = match configuration.name() {
        Some(name) => find(project, name).await?,
        None => None,
    };
    drop(spinner);
    ui.table(&properties(project, &user, &configuration, &path));
    ui.blank();
    let name = configuration.name().unwrap_or_default().to_owned();
    let question = match &current {
        None => {
            let message = Text::from("Volume ").code(&name).push(" does not exist yet.");
            ui.say(if name.is_empty() { Text::new() } else { message });
            "Create the volume?"
        }
        Some(current) if current.configuration == configuration => {
            if args.yes && !args.force {
                ui.say("No configuration changes detected. Use --force to apply anyway.");
                return Ok(Err(ExitCode::SUCCESS));
            }
            ui.say(
                Text::from("Found volume ")
                    .code(&name)
                    .push(". No configuration changes detected."),
            );
            "Re-create the volume?"
        }
        Some(_) => {
            ui.say(
                Text::from("Found volume ")
                    .code(&name)
                    .push(". Configuration changes detected."),
            );
            "Re-create the volume?"
        }
    };
    if let Some(code) = provision::confirm(context, args, question).await? {
        return Ok(Err(code));
    }
    if let Some(current) = current {
        let _spinner = ui.spin("Deleting existing volume...");
        call_delete(project, &current.name).await?;
        until_gone(async || Ok(find(project, &current.name).await?.is_some())).await?;
    }
    let _spinner = ui.spin("Creating volume...");
    Ok(Ok(project
        .client
        .call::<VolumesCreate>(&project.name, &CreateVolumeRequest { configuration })
        .await?))
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

fn finish(ui: &Ui, volume: &Volume) -> ExitCode {
    let failed = volume.status == VolumeStatus::Failed;
    ui.table(&volumes::table(
        std::slice::from_ref(volume),
        failed,
        Dates::Clock,
    ));
    if !failed {
        return ExitCode::SUCCESS;
    }
    let reason = volume.status_message.as_deref().unwrap_or("unknown");
    ui.say(Text::new().role(Role::Error, format!("\nProvisioning failed. Error: {reason}")));
    ExitCode::FAILURE
}

async fn find(project: &Project, name: &str) -> Result<Option<Volume>, CliError> {
    match project
        .client
        .call::<VolumesGet>(
            &project.name,
            &NameRequest {
                name: name.to_owned(),
            },
        )
        .await
    {
        Ok(volume) => Ok(Some(volume)),
        Err(error) if error.is_not_exists() => Ok(None),
        Err(error) => Err(error.into()),
    }
}

async fn call_delete(project: &Project, name: &str) -> Result<(), CliError> {
    Ok(project
        .client
        .call::<VolumesDelete>(&project.name, &NamesRequest::one(name))
        .await?)
}
