//! `dstack ps`: runs.

use std::process::ExitCode;

use dstack_api::routes::RunsList;
use dstack_model::requests::ListRunsRequest;
use dstack_model::runs::Run;
use serde::Serialize;

use super::run::get;
use super::{REFRESH, print_line, unless_interrupted};
use crate::args::PsArgs;
use crate::context::{Context, Project};
use crate::error::{CliError, ErrorKind};
use crate::tables::{Dates, runs};
use crate::ui::Text;

/// Output of `--json`.
#[derive(Serialize)]
struct Output<'a> {
    project: &'a str,
    runs: &'a [Run],
}

/// Runs the command.
pub(crate) async fn run(context: &Context, args: &PsArgs) -> Result<ExitCode, CliError> {
    if args.list.watch && args.format.is_json() {
        return Err(CliError::new(
            ErrorKind::Argument,
            "JSON output is not supported together with --watch",
        ));
    }
    let project = context.project(args.project.name.as_deref())?;
    let found = list(&project, args).await?;
    if args.format.is_json() {
        print_line(
            &context.ui,
            &Output {
                project: &project.name,
                runs: &found,
            },
        )?;
        return Ok(ExitCode::SUCCESS);
    }
    if !args.list.watch {
        context.ui.table(&runs::table(
            &found,
            args.list.verbose,
            Dates::Ago,
            context.ui.expands(),
        ));
        for wait in waits(&found, args) {
            context.ui.say(wait);
        }
        return Ok(ExitCode::SUCCESS);
    }
    unless_interrupted(watch(context, &project, args, found), || ExitCode::SUCCESS).await
}

async fn watch(
    context: &Context,
    project: &Project,
    args: &PsArgs,
    mut found: Vec<Run>,
) -> Result<ExitCode, CliError> {
    let live = context.ui.watch();
    loop {
        live.body(
            &runs::table(&found, args.list.verbose, Dates::Ago, context.ui.expands()),
            &waits(&found, args),
        );
        tokio::time::sleep(REFRESH).await;
        found = list(project, args).await?;
    }
}

/// Why runs wait: details for `-v`.
fn waits(found: &[Run], args: &PsArgs) -> Vec<Text> {
    if !args.list.verbose {
        return Vec::new();
    }
    let mut lines = runs::waits(found);
    if !lines.is_empty() {
        lines.insert(0, Text::new());
    }
    lines
}

/// The runs of these names; unfinished runs; when there are none, the last one. With flags, the last ones of all.
async fn list(project: &Project, args: &PsArgs) -> Result<Vec<Run>, CliError> {
    if !args.names.is_empty() {
        let mut named = Vec::new();
        for name in &args.names {
            named.push(get(project, name).await?);
        }
        return Ok(named);
    }
    let only_active = !args.all && args.last.is_none();
    let mut request = ListRunsRequest {
        project_name: Some(project.name.clone()),
        only_active,
        limit: args.last.unwrap_or(100),
        job_submissions_limit: Some(1),
        ..ListRunsRequest::default()
    };
    let found = project.client.call::<RunsList>((), &request).await?;
    if !only_active || !found.is_empty() {
        return Ok(found);
    }
    request.only_active = false;
    request.limit = 1;
    Ok(project.client.call::<RunsList>((), &request).await?)
}
