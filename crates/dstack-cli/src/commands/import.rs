//! `dstack import`: fleets and gateways that other projects share with this one.

use std::process::ExitCode;

use dstack_api::endpoint::Nothing;
use dstack_api::responses::ImportsAnswer;
use dstack_api::routes::{ImportsDelete, ImportsList};
use dstack_model::requests::DeleteImportRequest;

use super::exiting;
use crate::args::{ImportAction, ImportArgs};
use crate::context::Context;
use crate::error::CliError;
use crate::tables::sharing;
use crate::ui::Text;

/// Runs the command.
pub(crate) async fn run(context: &Context, args: ImportArgs) -> Result<ExitCode, CliError> {
    let project = context.project(args.project.name.as_deref())?;
    let ui = &context.ui;
    match args.action.unwrap_or(ImportAction::List) {
        ImportAction::List => {
            let answer = project
                .client
                .call::<ImportsList>(&project.name, &Nothing)
                .await?;
            let (imports, warnings) = match answer {
                ImportsAnswer::Full(answer) => (answer.imports, answer.warnings),
                ImportsAnswer::Plain(imports) => (imports, Vec::new()),
            };
            sharing::warn(ui, &warnings);
            ui.table(&sharing::imports(&imports));
            ui.blank();
        }
        ImportAction::Delete { name, yes } => {
            let shown = format!("{}/{}", name.project, name.export);
            let question = Text::from("Delete the import ").code(&shown).push("?");
            if !yes && !ui.confirm(question).await? {
                return Ok(exiting(ui));
            }
            let spinner = ui.spin("Deleting import...");
            let request = DeleteImportRequest {
                export_name: name.export,
                export_project_name: name.project,
            };
            project
                .client
                .call::<ImportsDelete>(&project.name, &request)
                .await?;
            drop(spinner);
            ui.say(Text::from("Import ").code(shown).push(" deleted"));
        }
    }
    Ok(ExitCode::SUCCESS)
}
