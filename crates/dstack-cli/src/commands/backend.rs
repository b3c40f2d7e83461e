//! `dstack backend`: backends of a project. What is checked of a file is up to the program.

use std::process::ExitCode;

use dstack_api::endpoint::Nothing;
use dstack_api::routes::{BackendsDelete, ProjectsGet};
use dstack_model::requests::DeleteBackendsRequest;

use super::exiting;
use crate::args::{BackendAction, BackendArgs, BackendDeleteArgs};
use crate::context::Context;
use crate::error::{CliError, ErrorKind};
use crate::ui::Text;

/// Runs the command.
pub(crate) async fn run(context: &Context, args: BackendArgs) -> Result<ExitCode, CliError> {
    match args.action {
        BackendAction::Check(_) => Err(CliError::new(
            ErrorKind::Internal,
            "this build checks no backends",
        )),
        BackendAction::Delete(args) => delete(context, args).await,
    }
}

async fn delete(context: &Context, args: BackendDeleteArgs) -> Result<ExitCode, CliError> {
    let project = context.project(args.project.name.as_deref())?;
    let (ui, name) = (&context.ui, args.name);
    let found = project
        .client
        .call::<ProjectsGet>(&project.name, &Nothing)
        .await?;
    let has = |kind: &str| found.backends.iter().any(|backend| backend.name == kind);
    if !has(name.as_str()) {
        let names: Vec<&str> = found
            .backends
            .iter()
            .map(|backend| backend.name.as_str())
            .collect();
        let error = CliError::new(
            ErrorKind::NotFound,
            format!("Project {} does not have the backend {name}", project.name),
        );
        return Err(match names.is_empty() {
            true => error.hint("it has none"),
            false => error.hint(format!("it has {}", names.join(", "))),
        });
    }
    let question = Text::from("Delete the backend ").code(name.as_str()).push("?");
    if !args.yes && !ui.confirm(question).await? {
        return Ok(exiting(ui));
    }
    let request = DeleteBackendsRequest {
        backends_names: vec![name.clone()],
    };
    project
        .client
        .call::<BackendsDelete>(&project.name, &request)
        .await?;
    ui.say(Text::from("Backend ").code(name.as_str()).push(" deleted"));
    Ok(ExitCode::SUCCESS)
}
