//! `dstack volume`: volumes of a project.

use std::process::ExitCode;

use dstack_api::endpoint::Nothing;
use dstack_api::routes::{ProjectVolumesList, VolumesDelete, VolumesGet};
use dstack_model::requests::{NameRequest, NamesRequest};

use super::{REFRESH, exiting, print_pretty, unless_interrupted};
use crate::args::{ListArgs, VolumeAction, VolumeArgs};
use crate::context::{Context, Project};
use crate::error::{CliError, ErrorKind};
use crate::tables::{Dates, volumes};
use crate::ui::Text;

/// Runs the command.
pub(crate) async fn run(context: &Context, args: VolumeArgs) -> Result<ExitCode, CliError> {
    let project = context.project(args.project.name.as_deref())?;
    match args.action {
        None => list(context, &project, args.list).await,
        Some(VolumeAction::List(list_args)) => list(context, &project, args.list.or(list_args)).await,
        Some(VolumeAction::Get { name, .. }) => {
            let volume = project
                .client
                .call::<VolumesGet>(&project.name, &NameRequest { name: name.clone() })
                .await;
            match volume {
                Ok(volume) => print_pretty(&context.ui, &volume)?,
                Err(error) if error.is_not_exists() => {
                    return Err(
                        CliError::new(ErrorKind::NotFound, format!("Volume {name} not found"))
                            .hint("see `dstack volume`"),
                    );
                }
                Err(error) => return Err(error.into()),
            }
            Ok(ExitCode::SUCCESS)
        }
        Some(VolumeAction::Delete { name, yes }) => delete(context, &project, &name, yes).await,
    }
}

async fn list(context: &Context, project: &Project, args: ListArgs) -> Result<ExitCode, CliError> {
    let fetch = async || {
        project
            .client
            .call::<ProjectVolumesList>(&project.name, &Nothing)
            .await
    };
    let found = fetch().await?;
    if !args.watch {
        context
            .ui
            .table(&volumes::table(&found, args.verbose, Dates::Ago));
        context.ui.blank();
        return Ok(ExitCode::SUCCESS);
    }
    let watching = async {
        let live = context.ui.watch();
        let mut found = found;
        loop {
            live.body(&volumes::table(&found, args.verbose, Dates::Ago), &[]);
            tokio::time::sleep(REFRESH).await;
            found = fetch().await?;
        }
    };
    unless_interrupted(watching, || ExitCode::SUCCESS).await
}

/// Deletes a volume by name, after a question.
pub(crate) async fn delete(
    context: &Context,
    project: &Project,
    name: &str,
    yes: bool,
) -> Result<ExitCode, CliError> {
    let found = project
        .client
        .call::<VolumesGet>(
            &project.name,
            &NameRequest {
                name: name.to_owned(),
            },
        )
        .await;
    match found {
        Ok(_) => {}
        Err(error) if error.is_not_exists() => {
            return Err(
                CliError::new(ErrorKind::NotFound, format!("Volume {name} does not exist"))
                    .hint("see `dstack volume`"),
            );
        }
        Err(error) => return Err(error.into()),
    }
    if !yes
        && !context
            .ui
            .confirm(Text::from("Delete the volume ").code(name).push("?"))
            .await?
    {
        return Ok(exiting(&context.ui));
    }
    let spinner = context.ui.spin("Deleting volume...");
    project
        .client
        .call::<VolumesDelete>(&project.name, &NamesRequest::one(name))
        .await?;
    drop(spinner);
    context.ui.say(Text::from("Volume ").code(name).push(" deleted"));
    Ok(ExitCode::SUCCESS)
}
