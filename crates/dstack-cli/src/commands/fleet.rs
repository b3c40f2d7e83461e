//! `dstack fleet`: fleets of a project and those imported into it.

use std::process::ExitCode;

use dstack_api::routes::{
    FleetsDelete, FleetsDeleteInstances, FleetsGet, FleetsTrustHost, ProjectFleetsList,
};
use dstack_model::common::EntityReference;
use dstack_model::fleets::Fleet;
use dstack_model::requests::{
    DeleteFleetInstancesRequest, GetFleetRequest, ListImportedRequest, NamesRequest, TrustHostRequest,
};

use super::{REFRESH, exiting, parse_id, print_pretty, unless_interrupted};
use crate::args::{FleetAction, FleetArgs, ListArgs, NameOrId, reference};
use crate::context::{Context, Project};
use crate::error::{CliError, ErrorKind};
use crate::tables::{Dates, explanations, fleets};
use crate::ui::Text;

/// Runs the command.
pub(crate) async fn run(context: &Context, args: FleetArgs) -> Result<ExitCode, CliError> {
    let project = context.project(args.project.name.as_deref())?;
    match args.action {
        None => show(context, &project, args.list).await,
        Some(FleetAction::List(list_args)) => show(context, &project, args.list.or(list_args)).await,
        Some(FleetAction::Get { which, .. }) => get(context, &project, which).await,
        Some(FleetAction::Delete { name, instances, yes }) => {
            delete(context, &project, name, instances, yes).await
        }
        Some(FleetAction::Trust {
            name,
            instance,
            host_key,
            jump_host,
        }) => {
            let request = TrustHostRequest {
                name,
                instance_num: instance,
                host_key,
                jump_host,
            };
            trust(context, &project, &request).await
        }
    }
}

async fn trust(
    context: &Context,
    project: &Project,
    request: &TrustHostRequest,
) -> Result<ExitCode, CliError> {
    match project
        .client
        .call::<FleetsTrustHost>(&project.name, request)
        .await
    {
        Ok(()) => {}
        Err(error) if error.is_not_exists() => {
            let text = format!("Fleet {} has no instance {}", request.name, request.instance_num);
            return Err(CliError::new(ErrorKind::NotFound, text).hint("see `dstack fleet`"));
        }
        Err(error) => return Err(error.into()),
    }
    context
        .ui
        .say(Text::from("Host key accepted: the host is connected to again"));
    Ok(ExitCode::SUCCESS)
}

/// All fleets that runs of the project may use.
pub(crate) async fn list(project: &Project) -> Result<Vec<Fleet>, CliError> {
    let request = ListImportedRequest {
        include_imported: true,
    };
    Ok(project
        .client
        .call::<ProjectFleetsList>(&project.name, &request)
        .await?)
}

async fn show(context: &Context, project: &Project, args: ListArgs) -> Result<ExitCode, CliError> {
    let mut found = list(project).await?;
    if !args.watch {
        context
            .ui
            .table(&fleets::table(&found, &project.name, args.verbose, Dates::Ago));
        context.ui.blank();
        for line in fleets::waits(&found) {
            context.ui.say(line);
        }
        if found.is_empty() {
            explanations::no_fleets(&context.ui, &project.name);
        }
        return Ok(ExitCode::SUCCESS);
    }
    let watching = async {
        let live = context.ui.watch();
        loop {
            live.body(
                &fleets::table(&found, &project.name, args.verbose, Dates::Ago),
                &fleets::waits(&found),
            );
            tokio::time::sleep(REFRESH).await;
            found = list(project).await?;
        }
    };
    unless_interrupted(watching, || ExitCode::SUCCESS).await
}

async fn get(context: &Context, project: &Project, which: NameOrId) -> Result<ExitCode, CliError> {
    let NameOrId { name, id } = which;
    let shown = name.clone().or_else(|| id.clone()).unwrap_or_default();
    let named = name
        .as_deref()
        .map(reference)
        .transpose()
        .map_err(|text| CliError::new(ErrorKind::Argument, text))?;
    let host = named
        .as_ref()
        .and_then(|named| named.project.clone())
        .unwrap_or_else(|| project.name.clone());
    let request = GetFleetRequest {
        name: named.map(|named| named.name),
        id: id.as_deref().map(parse_id).transpose()?,
    };
    match project.client.call::<FleetsGet>(&host, &request).await {
        Ok(fleet) => print_pretty(&context.ui, &fleet)?,
        Err(error) if error.is_not_exists() => {
            return Err(
                CliError::new(ErrorKind::NotFound, format!("Fleet {shown} not found"))
                    .hint("see `dstack fleet`"),
            );
        }
        Err(error) => return Err(error.into()),
    }
    Ok(ExitCode::SUCCESS)
}

async fn delete(
    context: &Context,
    project: &Project,
    name: EntityReference,
    instances: Vec<i64>,
    yes: bool,
) -> Result<ExitCode, CliError> {
    if name.project.is_some() {
        return Err(CliError::new(ErrorKind::Argument, "The <project>/<fleet> format is not supported for fleet names")
            .hint("only fleets and instances owned by the current project can be deleted: choose it with `--project`"));
    }
    let name = name.name;
    if find(project, &name).await?.is_none() {
        return Err(
            CliError::new(ErrorKind::NotFound, format!("Fleet {name} does not exist"))
                .hint("see `dstack fleet`"),
        );
    }
    let fleet = Text::from("Fleet ").code(&name);
    if instances.is_empty() {
        if !yes
            && !context
                .ui
                .confirm(Text::from("Delete the fleet ").code(&name).push("?"))
                .await?
        {
            return Ok(exiting(&context.ui));
        }
        project
            .client
            .call::<FleetsDelete>(&project.name, &NamesRequest::one(name))
            .await?;
        context.ui.say(fleet.push(" deleted"));
        return Ok(ExitCode::SUCCESS);
    }
    let question = Text::from("Delete the fleet ")
        .code(&name)
        .push(" instances ")
        .code(format!("{instances:?}"))
        .push("?");
    if !yes && !context.ui.confirm(question).await? {
        return Ok(exiting(&context.ui));
    }
    let request = DeleteFleetInstancesRequest {
        name,
        instance_nums: instances,
    };
    project
        .client
        .call::<FleetsDeleteInstances>(&project.name, &request)
        .await?;
    context.ui.say(fleet.push(" instances deleted"));
    Ok(ExitCode::SUCCESS)
}

/// Returns the project's fleet of this name.
pub(crate) async fn find(project: &Project, name: &str) -> Result<Option<Fleet>, CliError> {
    let request = GetFleetRequest {
        name: Some(name.to_owned()),
        id: None,
    };
    match project.client.call::<FleetsGet>(&project.name, &request).await {
        Ok(fleet) => Ok(Some(fleet)),
        Err(error) if error.is_not_exists() => Ok(None),
        Err(error) => Err(error.into()),
    }
}
