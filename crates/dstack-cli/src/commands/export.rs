//! `dstack export`: fleets and gateways that a project shares with others.

use std::process::ExitCode;

use dstack_api::endpoint::Nothing;
use dstack_api::responses::ExportsAnswer;
use dstack_api::routes::{ExportsCreate, ExportsDelete, ExportsList, ExportsUpdate};
use dstack_model::exports::Export;
use dstack_model::requests::{CreateExportRequest, NameRequest, UpdateExportRequest};

use super::exiting;
use crate::args::{ExportAction, ExportArgs, ExportUpdateArgs};
use crate::context::{Context, Project};
use crate::error::CliError;
use crate::tables::sharing;
use crate::ui::{Text, Ui};

/// Runs the command.
pub(crate) async fn run(context: &Context, args: ExportArgs) -> Result<ExitCode, CliError> {
    let project = context.project(args.project.name.as_deref())?;
    let ui = &context.ui;
    match args.action.unwrap_or(ExportAction::List) {
        ExportAction::List => list(ui, &project).await?,
        ExportAction::Create {
            name,
            importers,
            fleets,
            gateways,
            is_global,
        } => {
            let request = CreateExportRequest {
                name,
                is_global,
                importer_projects: importers,
                exported_fleets: fleets,
                exported_gateways: gateways,
            };
            let spinner = ui.spin("Creating export...");
            let export = project
                .client
                .call::<ExportsCreate>(&project.name, &request)
                .await?;
            drop(spinner);
            print(ui, &[export]);
        }
        ExportAction::Update(args) => {
            let spinner = ui.spin("Updating export...");
            let request = update(*args);
            let export = project
                .client
                .call::<ExportsUpdate>(&project.name, &request)
                .await?;
            drop(spinner);
            print(ui, &[export]);
        }
        ExportAction::Delete { name, yes } => {
            let question = Text::from("Delete the export ").code(&name).push("?");
            if !yes && !ui.confirm(question).await? {
                return Ok(exiting(ui));
            }
            let spinner = ui.spin("Deleting export...");
            let request = NameRequest { name: name.clone() };
            project
                .client
                .call::<ExportsDelete>(&project.name, &request)
                .await?;
            drop(spinner);
            ui.say(Text::from("Export ").code(name).push(" deleted"));
        }
    }
    Ok(ExitCode::SUCCESS)
}

async fn list(ui: &Ui, project: &Project) -> Result<(), CliError> {
    let (exports, warnings) = match project
        .client
        .call::<ExportsList>(&project.name, &Nothing)
        .await?
    {
        ExportsAnswer::Full(answer) => (answer.exports, answer.warnings),
        ExportsAnswer::Plain(exports) => (exports, Vec::new()),
    };
    sharing::warn(ui, &warnings);
    print(ui, &exports);
    Ok(())
}

fn print(ui: &Ui, exports: &[Export]) {
    ui.table(&sharing::exports(exports));
    ui.blank();
}

fn update(args: ExportUpdateArgs) -> UpdateExportRequest {
    UpdateExportRequest {
        name: args.name,
        set_global: args.set_global,
        unset_global: args.unset_global,
        add_importer_projects: args.add_importers,
        remove_importer_projects: args.remove_importers,
        add_exported_fleets: args.add_fleets,
        remove_exported_fleets: args.remove_fleets,
        add_exported_gateways: args.add_gateways,
        remove_exported_gateways: args.remove_gateways,
    }
}
