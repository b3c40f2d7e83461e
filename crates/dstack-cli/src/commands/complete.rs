//! The hidden command that completion scripts call: one name per line. Failures are silent: a shell is waiting.

use std::process::ExitCode;

use dstack_api::endpoint::Nothing;
use dstack_api::routes::{GatewaysList, ProjectVolumesList, RunsList, SecretsList};
use dstack_model::requests::{ListImportedRequest, ListRunsRequest};

use crate::args::{CompleteArgs, CompleteKind};
use crate::context::{Context, Project};
use crate::error::CliError;

/// Runs the command.
pub(crate) async fn run(context: &Context, args: &CompleteArgs) -> Result<ExitCode, CliError> {
    let names = match args.kind {
        CompleteKind::Projects => context.config().map(|config| {
            config
                .projects()
                .iter()
                .map(|project| project.name.clone())
                .collect()
        }),
        kind => match context.project(args.project.as_deref()) {
            Ok(project) => names(&project, kind).await,
            Err(error) => Err(error),
        },
    };
    for name in names.unwrap_or_default() {
        context.ui.say(name);
    }
    Ok(ExitCode::SUCCESS)
}

async fn names(project: &Project, kind: CompleteKind) -> Result<Vec<String>, CliError> {
    let client = &project.client;
    Ok(match kind {
        CompleteKind::Projects => Vec::new(),
        CompleteKind::Runs | CompleteKind::AllRuns => {
            let request = ListRunsRequest {
                project_name: Some(project.name.clone()),
                only_active: kind == CompleteKind::Runs,
                include_jobs: false,
                ..ListRunsRequest::default()
            };
            let runs = client.call::<RunsList>((), &request).await?;
            runs.into_iter().filter_map(|run| run.run_spec.run_name).collect()
        }
        CompleteKind::Fleets => super::fleet::list(project)
            .await?
            .into_iter()
            .map(|fleet| fleet.name)
            .collect(),
        CompleteKind::Volumes => {
            let volumes = client.call::<ProjectVolumesList>(&project.name, &Nothing).await?;
            volumes.into_iter().map(|volume| volume.name).collect()
        }
        CompleteKind::Gateways => {
            let request = ListImportedRequest {
                include_imported: true,
            };
            let gateways = client.call::<GatewaysList>(&project.name, &request).await?;
            gateways.into_iter().map(|gateway| gateway.name).collect()
        }
        CompleteKind::Secrets => {
            let secrets = client.call::<SecretsList>(&project.name, &Nothing).await?;
            secrets.into_iter().map(|secret| secret.name).collect()
        }
    })
}
