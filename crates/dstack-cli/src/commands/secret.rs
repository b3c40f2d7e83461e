//! `dstack secret`: secrets of a project.

use std::process::ExitCode;

use dstack_api::endpoint::Nothing;
use dstack_api::routes::{SecretsCreateOrUpdate, SecretsDelete, SecretsGet, SecretsList};
use dstack_model::requests::{CreateOrUpdateSecretRequest, DeleteSecretsRequest, NameRequest};
use dstack_model::secrets::Secret;

use super::exiting;
use crate::args::{SecretAction, SecretArgs};
use crate::context::Context;
use crate::error::{CliError, ErrorKind};
use crate::ui::{Column, Table, Text};

/// Runs the command.
pub(crate) async fn run(context: &Context, args: SecretArgs) -> Result<ExitCode, CliError> {
    let project = context.project(args.project.name.as_deref())?;
    let ui = &context.ui;
    match args.action.unwrap_or(SecretAction::List) {
        SecretAction::List => print(
            context,
            &project
                .client
                .call::<SecretsList>(&project.name, &Nothing)
                .await?,
        ),
        SecretAction::Get { name } => {
            let request = NameRequest { name: name.clone() };
            let secret = project.client.call::<SecretsGet>(&project.name, &request).await;
            let secret = secret.map_err(|error| match error.is_not_exists() {
                true => CliError::new(ErrorKind::NotFound, format!("Secret {name} not found"))
                    .hint("see `dstack secret`"),
                false => error.into(),
            })?;
            print(context, &[secret]);
        }
        SecretAction::Set { name, value } => {
            let request = CreateOrUpdateSecretRequest { name, value };
            project
                .client
                .call::<SecretsCreateOrUpdate>(&project.name, &request)
                .await?;
            ui.say(Text::new().secondary("OK"));
        }
        SecretAction::Delete { name, yes } => {
            let question = Text::from("Delete the secret ").code(&name).push("?");
            if !yes && !ui.confirm(question).await? {
                return Ok(exiting(ui));
            }
            let request = DeleteSecretsRequest {
                secrets_names: vec![name],
            };
            project
                .client
                .call::<SecretsDelete>(&project.name, &request)
                .await?;
            ui.say(Text::new().secondary("OK"));
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn print(context: &Context, secrets: &[Secret]) {
    let mut table = Table::new(vec![Column::new("NAME").no_wrap(), Column::new("VALUE")]);
    for secret in secrets {
        let value = secret
            .value
            .clone()
            .filter(|value| !value.is_empty())
            .unwrap_or_else(|| "******".to_owned());
        table.row(vec![secret.name.clone().into(), value.into()]);
    }
    context.ui.table(&table);
    context.ui.blank();
}
