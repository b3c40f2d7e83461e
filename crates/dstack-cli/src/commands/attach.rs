//! `dstack attach`: ports, SSH and output of a run that another `apply` started.

use std::process::ExitCode;

use dstack_model::runs::{Job, Run, RunStatus};

use super::apply::session::{End, outcome, print_finished, until_end};
use super::apply::wait;
use super::logs::{Reader, find_job};
use super::run::get;
use super::since;
use crate::args::AttachArgs;
use crate::attach::{self, Attachment, ports};
use crate::context::{Context, Project};
use crate::error::{CliError, ErrorKind};
use crate::tables::{Dates, runs};
use crate::ui::Text;

/// Runs the command.
pub(crate) async fn run(context: &Context, args: &AttachArgs) -> Result<ExitCode, CliError> {
    let detached = || {
        context.ui.say("\nDetached");
        ExitCode::SUCCESS
    };
    super::unless_interrupted(attach(context, args), detached).await
}

async fn attach(context: &Context, args: &AttachArgs) -> Result<ExitCode, CliError> {
    let start = since(args.since.as_deref())?;
    let project = context.project(args.project.name.as_deref())?;
    let run = until_started(context, &project, get(&project, &args.run_name).await?).await?;
    if run.status.is_finished() {
        return Err(CliError::new(
            ErrorKind::NotRunning,
            format!("Run {} is {}", args.run_name, run.status),
        )
        .hint(format!("read its output with `dstack logs {}`", args.run_name)));
    }
    let job = find_job(&run, args.replica, args.job).ok_or_else(|| {
        let replica = args
            .replica
            .map_or_else(|| "<any running>".to_owned(), |replica| replica.to_string());
        CliError::new(
            ErrorKind::NotFound,
            format!("Failed to find replica={replica} job={}", args.job),
        )
    })?;
    let address = ports::bind_address(args.host.as_deref()).await?;
    let reserved = attach::reserve_for(job, &args.ports, address)
        .map_err(|error| error.into_cli("attach", "dstack attach"))?;
    let request = attach::Request {
        run: &run,
        job,
        identity: args.ssh_identity.clone(),
        reserved,
        overrides: &args.ports,
        address,
    };
    let attachment = Attachment::open(context, &project, request).await?;
    greet(
        context,
        &run,
        job,
        &attachment,
        args.host.as_deref().unwrap_or("localhost"),
    );
    if args.logs {
        let rewriter = attach::rewriter(&project, &run, job, &attachment.ports)?;
        let printed = attach::logs::print(attachment.tunnel(), start, &rewriter, &context.ui).await;
        if !printed.all
            && let Some(submission) = job.job_submissions.last()
        {
            let mut rest = Reader::new(&args.run_name, submission, start, false).skipping(printed.bytes);
            rest.follow(&project, &context.ui, args.replica, args.job).await?;
        }
    } else {
        attachment.tunnel().closed().await;
    }
    match until_end(&project, &run, None).await? {
        End::Finished(run) => {
            print_finished(&context.ui, &run);
            outcome(&run)
        }
        End::Resubmitted(_) | End::Unknown => Err(CliError::new(
            ErrorKind::ConnectionLost,
            "the connection to the run is lost",
        )
        .hint(format!("see `dstack ps`, then `dstack attach {}`", args.run_name))),
    }
}

/// Shows the run live while it starts.
async fn until_started(context: &Context, project: &Project, mut run: Run) -> Result<Run, CliError> {
    let starts = |run: &Run| {
        matches!(
            run.status,
            RunStatus::Submitted | RunStatus::Pending | RunStatus::Provisioning
        )
    };
    if !starts(&run) {
        return Ok(run);
    }
    let ui = &context.ui;
    let name = run.run_spec.run_name.clone().unwrap_or_default();
    let live = ui.spin(Text::from("Attaching to ").code(&name).push("..."));
    let mut attempt = 0;
    while starts(&run) {
        live.body(
            &runs::table(std::slice::from_ref(&run), false, Dates::Ago, ui.expands()),
            &[],
        );
        tokio::time::sleep(wait::pause(attempt)).await;
        attempt += 1;
        run = get(project, &name).await?;
    }
    drop(live);
    ui.table(&runs::table(
        std::slice::from_ref(&run),
        run.status == RunStatus::Failed,
        Dates::Ago,
        ui.expands(),
    ));
    ui.say(
        Text::from("\nProvisioning ")
            .code(name)
            .push(" completed ")
            .secondary(format!("({})", run.status)),
    );
    Ok(run)
}

fn greet(context: &Context, run: &Run, job: &Job, attachment: &Attachment, address: &str) {
    let ui = &context.ui;
    let name = run.run_spec.run_name.clone().unwrap_or_default();
    let spec = &job.job_spec;
    ui.say(
        Text::from("Attached to run ")
            .code(name)
            .push(format!(" (replica={} job={})", spec.replica_num, spec.job_num)),
    );
    if !attachment.ports.is_empty() {
        ui.say("Forwarded ports (local -> remote):");
        for (remote, local) in &attachment.ports {
            ui.say(format!("  - {address}:{local} -> {remote}"));
        }
    }
    if attachment.has_entries() {
        ui.say(format!(
            "To connect to the run via SSH, use `ssh {}`.",
            attachment.name
        ));
    }
    ui.say("Press Ctrl+C to detach...");
}
