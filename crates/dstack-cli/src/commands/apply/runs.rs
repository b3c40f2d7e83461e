//! Applying a run: plan, confirmation, submission.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use dstack_api::routes::{ReposUploadCode, RunsApply, RunsDelete, RunsGet, RunsGetPlan, RunsStop};
use dstack_model::backends::BackendType;
use dstack_model::common::ApplyAction;
use dstack_model::configurations::AnyRunConfiguration;
use dstack_model::requests::{
    ApplyRunPlanRequest, DeleteRunsRequest, GetRunPlanRequest, GetRunRequest, StopRunsRequest,
};
use dstack_model::runs::{ApplyRunPlanInput, JobPlan, Run, RunPlan, RunSpec, RunStatus};

use super::session::{self, Session};
use super::{diff, files, ide, interrupted, plan, prepare, repo};
use crate::args::ApplyArgs;
use crate::attach::{self, ports::Reserved};
use crate::commands::{exiting, fleet};
use crate::context::{Context, Project};
use crate::error::{CliError, ErrorKind};
use crate::profiles;
use crate::ssh::keys;
use crate::tables::explanations;
use crate::ui::{Role, Text};
use dstack_units::quoting::shell_word;

/// How often a run that is being stopped is looked at.
const STOP_POLL: Duration = Duration::from_secs(1);

/// What submitting led to.
enum Submitted {
    /// The run; local ports of its first job.
    Run(Box<Run>, Option<Reserved>),
    /// Nothing more to do.
    End(ExitCode),
}

/// Applies a run.
pub(crate) async fn apply(
    context: &Context,
    project: &Project,
    args: &ApplyArgs,
    configuration: AnyRunConfiguration,
    path: String,
) -> Result<ExitCode, CliError> {
    let identity = args.kind.ssh_identity.as_deref().map(keys::read).transpose()?;
    let public = identity.as_ref().map(|key| key.public.clone());
    let submitted = tokio::select! {
        biased;
        submitted = submit(context, project, args, configuration, path, public) => submitted?,
        () = crate::interrupt::ctrl_c() => Submitted::End(interrupted(&context.ui)),
    };
    match submitted {
        Submitted::End(code) => Ok(code),
        Submitted::Run(run, reserved) => {
            let identity: Option<PathBuf> = identity.map(|key| key.path);
            let session = Session {
                context,
                project,
                yes: args.yes,
                identity,
                host: args.kind.host.clone(),
            };
            session::run(&session, *run, reserved).await
        }
    }
}

async fn submit(
    context: &Context,
    project: &Project,
    args: &ApplyArgs,
    configuration: AnyRunConfiguration,
    path: String,
    ssh_key_pub: Option<String>,
) -> Result<Submitted, CliError> {
    let ui = &context.ui;
    let (plan, diff) = get_plan(context, project, args, configuration, path, ssh_key_pub).await?;
    let job = first_job(&plan)?;
    let no_fleets = job.offers.is_empty() && fleet::list(project).await?.is_empty();
    plan::print(ui, &plan, job, args.kind.max_offers, no_fleets, args.verbose);
    if args.kind.explain {
        // Whoever asks why wants to know, and nothing to happen.
        explanations::print(ui, plan.explanations.as_deref());
        return Ok(Submitted::End(ExitCode::SUCCESS));
    }
    let replaces = plan
        .current_resource
        .as_ref()
        .is_some_and(|run| !run.status.is_finished());
    if job.offers.is_empty() && replaces {
        explanations::hint_with(
            ui,
            "the active run may hold the place that is missing, which it gives up to what replaces it",
        );
    } else if job.offers.is_empty() && !no_fleets {
        explanations::hint(ui, &explain_command(args));
    }
    let step = next_step(context, args, &plan);
    let Step::Confirm { question, stop } = step else {
        return Ok(Submitted::End(ExitCode::SUCCESS));
    };
    if !args.yes && !ui.confirm(question).await? {
        return Ok(Submitted::End(exiting(ui)));
    }
    if let Some(name) = stop {
        let _spinner = ui.spin("Stopping run...");
        stop_and_wait(project, &name).await?;
    }
    let reserved = reserve(args, job).await?;
    let action = plan.action;
    let run = {
        let _spinner = ui.spin("Applying plan...");
        upload_diff(project, plan.run_spec.repo_id.as_deref(), diff).await?;
        let input = ApplyRunPlanInput {
            run_spec: plan.run_spec,
            current_resource: plan.current_resource,
        };
        let request = ApplyRunPlanRequest {
            plan: input,
            force: false,
        };
        project.client.call::<RunsApply>(&project.name, &request).await?
    };
    if args.detach {
        let done = if action == ApplyAction::Update {
            "updated"
        } else {
            "submitted"
        };
        ui.say(
            Text::from("Run ")
                .code(run.run_spec.run_name.unwrap_or_default())
                .push(format!(" {done}, detaching...")),
        );
        return Ok(Submitted::End(ExitCode::SUCCESS));
    }
    Ok(Submitted::Run(Box::new(run), reserved))
}

/// A patch to upload: its hash and content.
type Diff = Option<(String, Vec<u8>)>;

async fn get_plan(
    context: &Context,
    project: &Project,
    args: &ApplyArgs,
    mut configuration: AnyRunConfiguration,
    path: String,
    ssh_key_pub: Option<String>,
) -> Result<(RunPlan, Diff), CliError> {
    prepare::prepare(&mut configuration, args, &context.env)?;
    if let AnyRunConfiguration::DevEnvironment(environment) = &mut configuration {
        ide::detect(environment, &context.ui).await;
    }
    files::resolve(context, &mut configuration.base_mut().files, &path)?;
    let repo = repo::choose(context, project, &args.repo, &configuration.base().repos, &path).await?;
    let profile = profiles::choose(context, &args.profile)?;
    let _spinner = context.ui.spin("Getting apply plan...");
    let file_archives = files::upload(project, &configuration.base().files).await?;
    let run_spec = RunSpec {
        run_name: configuration.base().name.clone(),
        repo_id: Some(repo.id),
        repo_data: Some(repo.data),
        repo_code_hash: repo.diff.as_ref().map(|(hash, _)| hash.clone()),
        repo_dir: configuration.base().repos.first().map(|spec| spec.path.clone()),
        file_archives,
        configuration_path: Some(path),
        profile: Some(profile),
        ssh_key_pub,
        ..RunSpec::new(configuration)
    };
    let request = GetRunPlanRequest {
        run_spec,
        max_offers: Some(args.kind.max_offers),
        reverse_offers: false,
        full_offers: args.kind.full_offers,
        unallocated_resources: args.kind.unallocated,
        for_offers_only: false,
        explain: args.kind.explain,
    };
    let plan = project
        .client
        .call::<RunsGetPlan>(&project.name, &request)
        .await?;
    Ok((plan, repo.diff))
}

/// How to have the same plan explained.
fn explain_command(args: &ApplyArgs) -> String {
    let file = args
        .file
        .as_deref()
        .map(|file| format!(" -f {}", shell_word(file)));
    format!("dstack apply{} --explain", file.unwrap_or_default())
}

fn first_job(plan: &RunPlan) -> Result<&JobPlan, CliError> {
    plan.job_plans
        .first()
        .ok_or_else(|| CliError::new(ErrorKind::VersionMismatch, "the server's plan has no jobs"))
}

/// What comes after the plan.
enum Step {
    /// Nothing: everything was said.
    Stop,
    /// A question; on yes, stop that run first.
    Confirm { question: Text, stop: Option<String> },
}

fn next_step(context: &Context, args: &ApplyArgs, plan: &RunPlan) -> Step {
    let ui = &context.ui;
    let name = plan.run_spec.run_name.clone().unwrap_or_default();
    let confirm = |question: Text, stop| Step::Confirm { question, stop };
    let submit = if name.is_empty() {
        "Submit a new run?".into()
    } else {
        Text::from("Submit the run ").code(&name).push("?")
    };
    let Some(current) = &plan.current_resource else {
        return confirm(submit, None);
    };
    let diff = diff::runs(plan.effective_run_spec(), &current.run_spec);
    let active = Text::from("Active run ").code(&name).push(" already exists.");
    let override_run = || {
        confirm(
            "Stop and override the run?".into(),
            current.run_spec.run_name.clone(),
        )
    };
    match (plan.action, diff) {
        (ApplyAction::Update, Some(diff)) => {
            let changes = active
                .push(" Detected changes that ")
                .code("can")
                .push(" be updated in-place:\n");
            ui.say(changes.push(diff));
            confirm("Update the run?".into(), None)
        }
        (ApplyAction::Update, None) => {
            ui.say(active.push(" Detected no changes."));
            if args.yes && !args.force {
                ui.say("Use --force to apply anyway.");
                return Step::Stop;
            }
            override_run()
        }
        (ApplyAction::Create, diff) if !current.status.is_finished() => {
            let changes = active
                .push(" Detected changes that ")
                .role(Role::Error, "cannot")
                .push(" be updated in-place:\n");
            ui.say(changes.push(diff.unwrap_or_default()));
            override_run()
        }
        (ApplyAction::Create, _) => confirm(submit, None),
    }
}

/// Local ports, held until the job runs. Where it may run on this very machine they are only looked at: held, they
/// would be taken away from the job.
async fn reserve(args: &ApplyArgs, job: &JobPlan) -> Result<Option<Reserved>, CliError> {
    if args.detach {
        return Ok(None);
    }
    let address = attach::ports::bind_address(args.kind.host.as_deref()).await?;
    let reserved =
        attach::reserve(&job.job_spec, address).map_err(|error| error.into_cli("submit", "dstack apply"))?;
    let backends = job.offers.iter().map(|offer| offer.backend);
    Ok((!may_run_here(backends)).then_some(reserved))
}

/// Whether a job may be placed on this machine, which may be the server's own whatever the server's URL is. Without offers
/// nobody knows yet where it will run.
fn may_run_here(offers: impl IntoIterator<Item = BackendType>) -> bool {
    let mut offers = offers.into_iter().peekable();
    offers.peek().is_none() || offers.any(|backend| backend == BackendType::Remote)
}

async fn upload_diff(project: &Project, repo_id: Option<&str>, diff: Diff) -> Result<(), CliError> {
    let (Some(repo_id), Some((hash, content))) = (repo_id, diff) else {
        return Ok(());
    };
    project
        .client
        .upload::<ReposUploadCode>(&project.name, &[("repo_id", repo_id)], &hash, content)
        .await?;
    Ok(())
}

async fn stop_and_wait(project: &Project, name: &str) -> Result<(), CliError> {
    let request = StopRunsRequest {
        runs_names: vec![name.to_owned()],
        abort: false,
    };
    project.client.call::<RunsStop>(&project.name, &request).await?;
    until_over(project, name).await
}

async fn until_over(project: &Project, name: &str) -> Result<(), CliError> {
    loop {
        let request = GetRunRequest {
            run_name: Some(name.to_owned()),
            id: None,
        };
        match project.client.call::<RunsGet>(&project.name, &request).await {
            Ok(run) if run.status.is_finished() => return Ok(()),
            Ok(_) => tokio::time::sleep(STOP_POLL).await,
            Err(error) if error.is_not_exists() => return Ok(()),
            Err(error) => return Err(error.into()),
        }
    }
}

/// `dstack delete -f` of a run.
pub(crate) async fn delete(
    context: &Context,
    project: &Project,
    configuration: &AnyRunConfiguration,
    yes: bool,
) -> Result<ExitCode, CliError> {
    let name = configuration.base().name.clone().ok_or_else(|| {
        CliError::new(ErrorKind::NameMissing, "Configuration specifies no run to delete")
            .hint("set `name` in the configuration")
    })?;
    let request = GetRunRequest {
        run_name: Some(name.clone()),
        id: None,
    };
    let run = match project.client.call::<RunsGet>(&project.name, &request).await {
        Ok(run) => run,
        Err(error) if error.is_not_exists() => {
            return Err(
                CliError::new(ErrorKind::NotFound, format!("Run {name} does not exist"))
                    .hint("see `dstack ps -a`"),
            );
        }
        Err(error) => return Err(error.into()),
    };
    if !yes
        && !context
            .ui
            .confirm(Text::from("Delete the run ").code(&name).push("?"))
            .await?
    {
        return Ok(exiting(&context.ui));
    }
    let spinner = context.ui.spin("Deleting run...");
    if run.status == RunStatus::Terminating {
        // It was stopped a moment ago: only what is over can be deleted.
        until_over(project, &name).await?;
    }
    project
        .client
        .call::<RunsDelete>(
            &project.name,
            &DeleteRunsRequest {
                runs_names: vec![name.clone()],
            },
        )
        .await?;
    drop(spinner);
    context.ui.say(Text::from("Run ").code(&name).push(" deleted"));
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_are_held_only_where_the_job_certainly_runs_elsewhere() {
        for (offers, here) in [
            (&[][..], true),
            (&[BackendType::Remote], true),
            (&[BackendType::Aws, BackendType::Remote], true),
            (&[BackendType::Aws, BackendType::Gcp], false),
        ] {
            assert_eq!(may_run_here(offers.iter().copied()), here, "{offers:?}");
        }
    }
}
