//! `dstack token`: API tokens of the user.

use std::process::ExitCode;

use dstack_api::routes::{TokensCreate, TokensDelete, TokensList};
use dstack_model::requests::{CreateTokenRequest, DeleteTokensRequest, ListTokensRequest};
use dstack_model::users::UserToken;
use dstack_system::{Clock, SystemClock};
use dstack_units::Time;

use super::{exiting, print_pretty};
use crate::args::token::{TokenCreateArgs, TokenListArgs};
use crate::args::{TokenAction, TokenArgs};
use crate::context::Context;
use crate::error::{CliError, ErrorKind};
use crate::format::date;
use crate::ui::{Column, Style, Table, Text};

/// Runs the command.
pub(crate) async fn run(context: &Context, args: TokenArgs) -> Result<ExitCode, CliError> {
    match args.action {
        None => list(context, &TokenListArgs::default()).await,
        Some(TokenAction::List(args)) => list(context, &args).await,
        Some(TokenAction::Create(args)) => create(context, args).await,
        Some(TokenAction::Delete { project, name, yes }) => {
            delete(context, project.name.as_deref(), name, yes).await
        }
    }
}

async fn list(context: &Context, args: &TokenListArgs) -> Result<ExitCode, CliError> {
    let project = context.project(args.project.name.as_deref())?;
    let request = ListTokensRequest::default();
    let tokens = project.client.call::<TokensList>((), &request).await?;
    if args.format.is_json() {
        print_pretty(&context.ui, &tokens)?;
    } else {
        context.ui.table(&table(&tokens, SystemClock.now()));
        context.ui.blank();
    }
    Ok(ExitCode::SUCCESS)
}

fn table(tokens: &[UserToken], now: Time) -> Table {
    let mut table = Table::new(vec![
        Column::new("NAME").style(Style::BOLD).no_wrap(),
        Column::new("ACCESS"),
        Column::new("PROJECT"),
        Column::new("EXPIRES"),
        Column::new("CREATED").style(Style::SECONDARY),
    ]);
    for token in tokens {
        let expires = match token.expires_at {
            None => "never".to_owned(),
            Some(end) if end <= now => "expired".to_owned(),
            Some(end) => date::full(end),
        };
        table.row(vec![
            token.name.clone().into(),
            if token.read_only { "read-only" } else { "full" }.into(),
            token.project_name.as_deref().unwrap_or("*").into(),
            expires.into(),
            date::ago(now, token.created_at).into(),
        ]);
    }
    table
}

async fn create(context: &Context, args: TokenCreateArgs) -> Result<ExitCode, CliError> {
    // The project's own server if this machine knows it, else the usual one.
    let known = match &args.project {
        Some(name) => context.config()?.project(name).is_some(),
        None => false,
    };
    let project = context.project(args.project.as_deref().filter(|_| known))?;
    let request = CreateTokenRequest {
        name: args.name,
        read_only: args.read_only,
        project_name: args.project,
        expires_in: args.expires.map(|seconds| seconds.0),
    };
    let created = project.client.call::<TokensCreate>((), &request).await;
    let created = created.map_err(|error| match error.code() {
        Some(dstack_api::ErrorCode::ResourceExists) => {
            CliError::new(ErrorKind::AlreadyExists, format!("Token {} exists", request.name))
                .hint("choose another name, or delete it with `dstack token delete`")
        }
        _ => CliError::from(error),
    })?;
    if args.format.is_json() {
        print_pretty(&context.ui, &created)?;
        return Ok(ExitCode::SUCCESS);
    }
    // Alone on standard output, for scripts.
    context.ui.raw(format!("{}\n", created.token).as_bytes());
    context.ui.complain(Text::new().secondary(
        "The token is not shown again. Use it with `dstack project add --token`, or as DSTACK_TOKEN together with \
         DSTACK_SERVER_URL and DSTACK_PROJECT",
    ));
    Ok(ExitCode::SUCCESS)
}

async fn delete(
    context: &Context,
    project: Option<&str>,
    name: String,
    yes: bool,
) -> Result<ExitCode, CliError> {
    let project = context.project(project)?;
    let question = Text::from("Delete the token ").code(&name).push("?");
    if !yes && !context.ui.confirm(question).await? {
        return Ok(exiting(&context.ui));
    }
    let request = DeleteTokensRequest {
        username: None,
        names: vec![name.clone()],
    };
    let deleted = project.client.call::<TokensDelete>((), &request).await;
    deleted.map_err(|error| match error.is_not_exists() {
        true => CliError::new(ErrorKind::NotFound, format!("Token {name} not found"))
            .hint("see `dstack token list`"),
        false => error.into(),
    })?;
    context.ui.say(Text::new().secondary("OK"));
    Ok(ExitCode::SUCCESS)
}
