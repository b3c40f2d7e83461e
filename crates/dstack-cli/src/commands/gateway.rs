//! `dstack gateway`: gateways of a project and those imported into it.

use std::process::ExitCode;

use dstack_api::client::ClientError;
use dstack_api::routes::{
    GatewaysDelete, GatewaysGet, GatewaysList, GatewaysSetDefault, GatewaysSetWildcardDomain,
};
use dstack_model::common::EntityReference;
use dstack_model::gateways::Gateway;
use dstack_model::requests::{
    ListImportedRequest, NameRequest, NamesRequest, SetDefaultGatewayRequest, SetWildcardDomainRequest,
};
use serde::Serialize;

use super::{REFRESH, exiting, print_line, print_pretty, unless_interrupted};
use crate::args::{GatewayAction, GatewayArgs, GatewayListArgs};
use crate::context::{Context, Project};
use crate::error::{CliError, ErrorKind};
use crate::tables::{Dates, gateways};
use crate::ui::Text;

/// Output of `--json`.
#[derive(Serialize)]
struct Output<'a> {
    project: &'a str,
    gateways: &'a [Gateway],
}

/// Runs the command.
pub(crate) async fn run(context: &Context, args: GatewayArgs) -> Result<ExitCode, CliError> {
    let project = context.project(args.project.name.as_deref())?;
    let before = args.list;
    match args.action {
        None => show(context, &project, before, before.format.is_json()).await,
        Some(GatewayAction::List(after)) => {
            let json = before.format.is_json() || after.format.is_json();
            show(
                context,
                &project,
                GatewayListArgs {
                    list: before.list.or(after.list),
                    ..after
                },
                json,
            )
            .await
        }
        Some(GatewayAction::Get { name, .. }) => {
            print_pretty(&context.ui, &relative(&project, &name).await?)?;
            Ok(ExitCode::SUCCESS)
        }
        Some(GatewayAction::Delete { name, yes }) => delete(context, &project, &name, yes, true).await,
        Some(GatewayAction::Update {
            name,
            set_default,
            domain,
        }) => update(context, &project, name, set_default, domain).await,
    }
}

async fn list(project: &Project) -> Result<Vec<Gateway>, CliError> {
    Ok(project
        .client
        .call::<GatewaysList>(
            &project.name,
            &ListImportedRequest {
                include_imported: true,
            },
        )
        .await?)
}

async fn show(
    context: &Context,
    project: &Project,
    args: GatewayListArgs,
    json: bool,
) -> Result<ExitCode, CliError> {
    let ui = &context.ui;
    if args.list.watch && json {
        return Err(CliError::new(
            ErrorKind::Argument,
            "JSON output is not supported together with --watch",
        ));
    }
    let mut found = list(project).await?;
    if json {
        print_line(
            ui,
            &Output {
                project: &project.name,
                gateways: &found,
            },
        )?;
        return Ok(ExitCode::SUCCESS);
    }
    if !args.list.watch {
        ui.table(&gateways::table(
            &found,
            &project.name,
            args.list.verbose,
            false,
            Dates::Ago,
        ));
        ui.blank();
        return Ok(ExitCode::SUCCESS);
    }
    let watching = async {
        let live = ui.watch();
        loop {
            live.body(
                &gateways::table(&found, &project.name, args.list.verbose, false, Dates::Ago),
                &[],
            );
            tokio::time::sleep(REFRESH).await;
            found = list(project).await?;
        }
    };
    unless_interrupted(watching, || ExitCode::SUCCESS).await
}

/// The gateway of this name in the project, if there is one.
pub(crate) async fn find(project: &Project, name: &str) -> Result<Option<Gateway>, CliError> {
    match project
        .client
        .call::<GatewaysGet>(
            &project.name,
            &NameRequest {
                name: name.to_owned(),
            },
        )
        .await
    {
        Ok(gateway) => Ok(Some(gateway)),
        Err(error) if error.is_not_exists() => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// A gateway as the current project sees it: an imported one may be its default.
async fn relative(project: &Project, name: &EntityReference) -> Result<Gateway, CliError> {
    let owner = name.project.as_deref().unwrap_or(&project.name);
    let found = if owner == project.name {
        find(project, &name.name).await?
    } else {
        list(project)
            .await?
            .into_iter()
            .find(|gateway| gateway.name == name.name && gateway.project_name == owner)
    };
    found.ok_or_else(|| {
        CliError::new(ErrorKind::NotFound, format!("Gateway {name} not found")).hint("see `dstack gateway`")
    })
}

/// Names the gateway that is not there.
fn missing(name: &EntityReference, error: ClientError) -> CliError {
    match error.is_not_exists() {
        true => CliError::new(ErrorKind::NotFound, format!("Gateway {name} not found"))
            .hint("see `dstack gateway`"),
        false => error.into(),
    }
}

pub(crate) async fn call_delete(project: &Project, name: &str) -> Result<(), CliError> {
    Ok(project
        .client
        .call::<GatewaysDelete>(&project.name, &NamesRequest::one(name))
        .await?)
}

/// Deletes a gateway by name, after a question; `shown` prints it first.
pub(crate) async fn delete(
    context: &Context,
    project: &Project,
    name: &str,
    yes: bool,
    shown: bool,
) -> Result<ExitCode, CliError> {
    let ui = &context.ui;
    let gateway = find(project, name).await?.ok_or_else(|| {
        CliError::new(ErrorKind::NotFound, format!("Gateway {name} does not exist"))
            .hint("see `dstack gateway`")
    })?;
    let question = if shown {
        ui.table(&gateways::table(
            std::slice::from_ref(&gateway),
            &project.name,
            false,
            false,
            Dates::Ago,
        ));
        ui.blank();
        Text::from("Do you want to delete the gateway?")
    } else {
        Text::from("Delete the gateway ").code(name).push("?")
    };
    if !yes && !ui.confirm(question).await? {
        return Ok(exiting(ui));
    }
    let spinner = ui.spin("Deleting gateway...");
    call_delete(project, name).await?;
    drop(spinner);
    ui.say(if shown {
        Text::from("Gateway deleted")
    } else {
        Text::from("Gateway ").code(name).push(" deleted")
    });
    Ok(ExitCode::SUCCESS)
}

async fn update(
    context: &Context,
    project: &Project,
    name: EntityReference,
    set_default: bool,
    domain: Option<String>,
) -> Result<ExitCode, CliError> {
    if let Some(domain) = domain {
        if name.project.is_some() {
            return Err(CliError::new(
                ErrorKind::Argument,
                "Can only update gateways owned by the current project when `--domain` is passed",
            ));
        }
        let request = SetWildcardDomainRequest {
            name: name.name.clone(),
            wildcard_domain: domain,
        };
        project
            .client
            .call::<GatewaysSetWildcardDomain>(&project.name, &request)
            .await
            .map_err(|error| missing(&name, error))?;
    }
    if set_default {
        let request = SetDefaultGatewayRequest {
            name: name.name.clone(),
            gateway_project: name.project.clone(),
        };
        project
            .client
            .call::<GatewaysSetDefault>(&project.name, &request)
            .await
            .map_err(|error| missing(&name, error))?;
    }
    let gateway = relative(project, &name).await?;
    context.ui.table(&gateways::table(
        &[gateway],
        &project.name,
        false,
        false,
        Dates::Ago,
    ));
    context.ui.blank();
    Ok(ExitCode::SUCCESS)
}
