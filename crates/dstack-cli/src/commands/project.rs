//! `dstack project`: the configuration file.

use std::process::ExitCode;

use dstack_api::endpoint::Nothing;
use dstack_api::routes::{ProjectsGet, UsersGetMyUser};
use dstack_model::client_config::ClientProject;
use dstack_system::Secret;

use crate::args::{ProjectAction, ProjectArgs};
use crate::context::Context;
use crate::error::{CliError, ErrorKind};
use crate::ui::{Column, Style, Table, Text};

/// Runs the command.
pub(crate) async fn run(context: &Context, args: ProjectArgs) -> Result<ExitCode, CliError> {
    match args.action {
        None => list(context, args.verbose).await,
        Some(ProjectAction::List { verbose }) => list(context, verbose || args.verbose).await,
        Some(ProjectAction::Add {
            name,
            url,
            token,
            yes,
            no,
        }) => {
            let default = if no { Some(false) } else { yes.then_some(true) };
            add(context, &name, &url, token.into(), default).await
        }
        Some(ProjectAction::Delete { name, yes }) => delete(context, &name, yes).await,
        Some(ProjectAction::SetDefault { name }) => set_default(context, &name),
    }
}

/// Checks that the server knows the project and accepts the token, then stores them.
async fn add(
    context: &Context,
    name: &str,
    url: &str,
    token: Secret,
    default: Option<bool>,
) -> Result<ExitCode, CliError> {
    context
        .client(url, token.clone())?
        .call::<ProjectsGet>(name, &Nothing)
        .await?;
    let config = context.config()?;
    let wanted = |project: &ClientProject| {
        (
            project.name.as_str(),
            project.url.as_str(),
            project.token.as_str(),
        ) == (name, url, token.expose())
    };
    let current = config.default_project();
    if !current.is_some_and(wanted) {
        let default = match (default, current) {
            (Some(answer), _) => answer,
            (None, None) => true,
            (None, Some(_)) => {
                context
                    .ui
                    .confirm(format!("Set '{name}' as your default project?"))
                    .await?
            }
        };
        context.change_config(|config| config.set(name, url, token.expose(), default))?;
    }
    Ok(ExitCode::SUCCESS)
}

async fn delete(context: &Context, name: &str, yes: bool) -> Result<ExitCode, CliError> {
    if yes
        || context
            .ui
            .confirm(format!("Are you sure you want to delete project '{name}'?"))
            .await?
    {
        context.config()?;
        context.change_config(|config| config.remove(name))?;
        context.ui.say(Text::new().secondary("OK"));
    }
    Ok(ExitCode::SUCCESS)
}

fn set_default(context: &Context, name: &str) -> Result<ExitCode, CliError> {
    let config = context.config()?;
    let project = config.project(name).ok_or_else(|| {
        CliError::new(ErrorKind::NoProject, format!("Project '{name}' not found"))
            .hint("see `dstack project list`")
    })?;
    context.change_config(|config| config.set(name, &project.url, &project.token, true))?;
    context.ui.say(Text::new().secondary("OK"));
    Ok(ExitCode::SUCCESS)
}

async fn list(context: &Context, verbose: bool) -> Result<ExitCode, CliError> {
    let mut columns = vec![
        Column::new("PROJECT").style(Style::BOLD).no_wrap(),
        Column::new("URL").style(Style::SECONDARY),
    ];
    if verbose {
        columns.push(Column::new("USER").style(Style::SECONDARY));
    }
    columns.push(Column::new("DEFAULT").center());
    let mut table = Table::new(columns);
    for project in context.config()?.projects() {
        let user = if verbose {
            user_name(context, project).await
        } else {
            String::new()
        };
        let cells = [
            ("PROJECT", project.name.clone().into()),
            ("URL", project.url.clone().into()),
            ("USER", user.into()),
            ("DEFAULT", if project.default { "✓" } else { "" }.into()),
        ];
        table.row_named(
            &cells,
            if project.default {
                Style::BOLD
            } else {
                Style::PLAIN
            },
        );
    }
    context.ui.table(&table);
    Ok(ExitCode::SUCCESS)
}

async fn user_name(context: &Context, project: &ClientProject) -> String {
    let user = match context.client(&project.url, Secret::new(project.token.clone())) {
        Ok(client) => client
            .call::<UsersGetMyUser>((), &Nothing)
            .await
            .map_err(CliError::from),
        Err(error) => Err(error),
    };
    user.map_or_else(|_| "(invalid token)".to_owned(), |user| user.user.username)
}
