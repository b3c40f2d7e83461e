//! From a submitted run to its end: live state, output, final message. Ctrl-C asks whether to stop the run.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use dstack_api::routes::RunsStop;
use dstack_model::requests::StopRunsRequest;
use dstack_model::runs::{Job, JobStatus, JobSubmission, JobTerminationReason, Run, RunStatus};

use super::wait;
use crate::attach::ports::{self, Reserved};
use crate::attach::{self, Attachment};
use crate::commands::logs::{Page, Reader, find_job};
use crate::commands::run::get;
use crate::context::{Context, Project};
use crate::error::{CliError, ErrorKind, plain_words};
use crate::format::capitalize;
use crate::settings;
use crate::tables::{Dates, explanations, runs};
use crate::ui::{Role, Text, Ui};

/// How often the run's end is looked for once its output has ended, and how often it may be found neither running nor over.
const END_POLL: Duration = Duration::from_millis(200);
const END_TRIES: u32 = 150;
const STOP_POLL: Duration = Duration::from_secs(1);

/// What attaching needs.
#[derive(Debug)]
pub(crate) struct Session<'a> {
    pub(crate) context: &'a Context,
    pub(crate) project: &'a Project,
    pub(crate) yes: bool,
    pub(crate) identity: Option<PathBuf>,
    pub(crate) host: Option<String>,
}

/// Follows a run to its end.
pub(crate) async fn run(
    session: &Session<'_>,
    run: Run,
    reserved: Option<Reserved>,
) -> Result<ExitCode, CliError> {
    let name = run.run_spec.run_name.clone().unwrap_or_default();
    let ended = tokio::select! {
        ended = follow(session, run, reserved) => Some(ended),
        () = crate::interrupt::ctrl_c() => None,
    };
    match ended {
        Some(ended) => ended,
        None => leave(session, &name).await,
    }
}

async fn follow(
    session: &Session<'_>,
    mut run: Run,
    mut reserved: Option<Reserved>,
) -> Result<ExitCode, CliError> {
    // A run that is retried goes back to waiting and is attached to again.
    loop {
        run = wait::until_ready(session.context, session.project, run).await?;
        announce(session, &run);
        let before = run.latest_job_submission.clone();
        // Of a run that is over already, however it ended, the server has the output.
        if run.status == RunStatus::Running || run.status.is_finished() {
            print_output(session, &run, reserved.take()).await?;
        }
        match until_end(session.project, &run, before.as_ref()).await? {
            End::Resubmitted(again) => run = *again,
            End::Finished(finished) => {
                print_finished(&session.context.ui, &finished);
                return outcome(&finished);
            }
            End::Unknown => return Err(lost()),
        }
    }
}

fn announce(session: &Session<'_>, run: &Run) {
    let ui = &session.context.ui;
    let failed = run.status == RunStatus::Failed;
    ui.table(&runs::table(
        std::slice::from_ref(run),
        failed,
        Dates::Clock,
        ui.expands(),
    ));
    let name = run.run_spec.run_name.clone().unwrap_or_default();
    ui.say(
        Text::from("\n")
            .code(name)
            .push(" provisioning completed ")
            .secondary(format!("({})", run.status)),
    );
    if !matches!(run.status, RunStatus::Running | RunStatus::Done) {
        return;
    }
    if let Some(url) =
        wait::service_url(session.project, run).filter(|_| run.run_spec.configuration.service().is_some())
    {
        ui.say(url);
        let reached = run.service.as_ref().filter(|service| service.notice.is_none());
        if let Some(model) = reached.and_then(|service| service.model.as_ref()) {
            let url = crate::format::service_url(session.project.client.base_url(), &model.base_url);
            ui.say(
                Text::from("Model ")
                    .code(&model.name)
                    .push(format!(" is published at:\n  {url}")),
            );
        }
        ui.blank();
    }
    if session.context.env.get(settings::PRINT_CONNECTION_INFO).is_some() {
        print_connection(ui, run);
    }
}

/// How to open a development environment.
fn print_connection(ui: &Ui, run: &Run) {
    let info = run.jobs.first().and_then(|job| job.job_connection_info.as_ref());
    let Some(info) = info.filter(|_| run.run_spec.configuration.dev_environment().is_some()) else {
        return;
    };
    let urls: Vec<&String> = info
        .attached_ide_url
        .iter()
        .chain(&info.proxied_ide_url)
        .collect();
    if let Some(ide) = info.ide_name.as_ref().filter(|_| !urls.is_empty()) {
        ui.say(format!(
            "To open in {ide}, use link{} below:\n",
            if urls.len() > 1 { "s" } else { "" }
        ));
        for url in urls {
            ui.say(format!("  {url}\n"));
        }
    }
    let commands = info
        .attached_ssh_command
        .iter()
        .chain(&info.proxied_ssh_command)
        .map(|words| words.join(" "));
    let commands: Vec<String> = commands.collect();
    if !commands.is_empty() {
        ui.say(format!("To connect via SSH, use: {}\n", commands.join(" or ")));
    }
    ui.blank();
}

/// Prints the output of the first job until it ends: from the job itself, or through the server where it cannot be
/// reached or has ended already.
async fn print_output(session: &Session<'_>, run: &Run, reserved: Option<Reserved>) -> Result<(), CliError> {
    let (context, project) = (session.context, session.project);
    let Some(job) = find_job(run, None, 0) else {
        return Ok(());
    };
    let Some(latest) = job.job_submissions.last() else {
        return Ok(());
    };
    let name = run.run_spec.run_name.as_deref().unwrap_or_default();
    let mut reader = Reader::new(name, latest, None, false);
    if run.status.is_finished() {
        if has_never_started(latest) {
            return Ok(());
        }
        while reader.print_page(project, &context.ui).await? == Page::Full {}
        return Ok(());
    }
    let attachment = match attach(session, run, job, reserved).await {
        Ok(attachment) => attachment,
        Err(error) if error.kind() != ErrorKind::Interrupted => {
            let reason = error.message().unwrap_or_default();
            // A job that ended meanwhile has nothing left to attach to.
            if !get(project, name).await?.status.is_finished() {
                context.ui.complain(Text::new().role(
                    Role::Warning,
                    format!("Cannot attach to the run: {reason}. Its ports are not forwarded; following its logs through the server."),
                ));
            }
            reader.follow(project, &context.ui, None, 0).await?;
            return Ok(());
        }
        Err(error) => return Err(error),
    };
    let rewriter = attach::rewriter(project, run, job, &attachment.ports)?;
    let printed = attach::logs::print(attachment.tunnel(), None, &rewriter, &context.ui).await;
    if !printed.all {
        let mut rest = reader.skipping(printed.bytes);
        rest.follow(project, &context.ui, None, 0).await?;
    }
    Ok(())
}

async fn attach(
    session: &Session<'_>,
    run: &Run,
    job: &Job,
    reserved: Option<Reserved>,
) -> Result<Attachment, CliError> {
    let address = ports::bind_address(session.host.as_deref()).await?;
    // Of a job that came to this machine after all, what is held now would be forwarded to itself.
    let reserved = match reserved.filter(|_| !attach::may_share_network(job)) {
        Some(reserved) => Some(reserved),
        None => attach::reserve_for(job, &[], address)
            .map_err(|error| error.into_cli("attach", "dstack attach"))?,
    };
    let request = attach::Request {
        run,
        job,
        identity: session.identity.clone(),
        reserved,
        overrides: &[],
        address,
    };
    Attachment::open(session.context, session.project, request).await
}

/// How a run went on once its output had ended.
pub(crate) enum End {
    /// It is tried again.
    Resubmitted(Box<Run>),
    /// It ended, well or not.
    Finished(Box<Run>),
    /// Neither, nor does it run, for half a minute.
    Unknown,
}

/// Waits for the run's end, or for its next try. Of several jobs the first may end long before the others.
pub(crate) async fn until_end(
    project: &Project,
    run: &Run,
    before: Option<&JobSubmission>,
) -> Result<End, CliError> {
    let name = run.run_spec.run_name.clone().unwrap_or_default();
    let mut tries = 0;
    while tries < END_TRIES {
        let run = get(project, &name).await?;
        if is_resubmitted(&run, before) {
            return Ok(End::Resubmitted(Box::new(run)));
        }
        if run.status.is_finished() {
            return Ok(End::Finished(Box::new(run)));
        }
        let pause = if others_run(&run) {
            STOP_POLL
        } else {
            tries += 1;
            END_POLL
        };
        tokio::time::sleep(pause).await;
    }
    Ok(End::Unknown)
}

/// Whether a job has ended, as the one whose output was shown, and another runs.
fn others_run(run: &Run) -> bool {
    let status = |job: &Job| job.job_submissions.last().map(|latest| latest.status);
    let statuses: Vec<JobStatus> = run.jobs.iter().filter_map(status).collect();
    let has_ended = statuses.iter().any(|status| status.is_finished());
    run.status == RunStatus::Running && has_ended && statuses.contains(&JobStatus::Running)
}

fn is_resubmitted(run: &Run, before: Option<&JobSubmission>) -> bool {
    let (Some(before), Some(latest)) = (before, &run.latest_job_submission) else {
        return false;
    };
    run.status == RunStatus::Pending
        || (!run.status.is_finished() && latest.submitted_at > before.submitted_at)
}

/// The run's end was not seen.
fn lost() -> CliError {
    CliError::new(
        ErrorKind::ConnectionLost,
        "Lost run connection. Timed out waiting for run final status.",
    )
    .hint("see `dstack ps` for whether it is done or failed")
}

/// Whether a job had no place, so that there are no logs to look at.
fn has_never_started(latest: &JobSubmission) -> bool {
    latest.termination_reason.as_deref() == Some(JobTerminationReason::FailedToStartDueToNoCapacity.as_str())
}

/// Returns how the command ends whose run has ended, and about which [`print_finished`] said everything.
pub(crate) fn outcome(run: &Run) -> Result<ExitCode, CliError> {
    match run.status {
        RunStatus::Done => Ok(ExitCode::SUCCESS),
        _ => Err(CliError::printed(ErrorKind::RunFailed)),
    }
}

/// Says how the run ended.
pub(crate) fn print_finished(ui: &Ui, run: &Run) {
    let latest = run.latest_job_submission.as_ref();
    let message = latest.map_or(run.status_message.as_str(), runs::status_of_job);
    if run.status == RunStatus::Done {
        ui.say(Text::new().code(capitalize(message)));
        return;
    }
    let error = latest
        .map_or(run.error.as_ref(), |latest| latest.error.as_ref())
        .filter(|error| !error.is_empty());
    let mut text = Text::new().role(Role::Error, capitalize(message));
    let details = latest.and_then(|latest| latest.termination_reason_message.as_deref());
    let is_told = |error: &&String| details.is_some_and(|details| details.eq_ignore_ascii_case(error));
    if let Some(error) = error.filter(|error| !is_told(error)) {
        text = text.push(" (").role(Role::Error, capitalize(error)).push(")");
    }
    ui.say(text);
    let Some(latest) = latest else { return };
    if let Some(message) = latest
        .termination_reason_message
        .as_ref()
        .filter(|message| !message.is_empty())
    {
        ui.say(Text::new().role(Role::Error, termination_message(latest, message)));
    }
    if message == "no fleets" {
        explanations::no_fleets(ui, &run.project_name);
    }
    if message == "busy" {
        let wait = "hint: `retry: {on_events: [no-capacity], duration: 1h}` in the configuration lets a run wait for its place";
        ui.say(Text::new().secondary(wait));
    }
    if latest.termination_reason.is_some() && !has_never_started(latest) {
        let name = run.run_spec.run_name.clone().unwrap_or_default();
        ui.say(
            Text::from("Check ")
                .code(format!("dstack logs -d {name}"))
                .push(" for more details."),
        );
    }
}

/// What is said of a job's end. The container's own last words are shown as they are; the server's in plain words.
fn termination_message(latest: &JobSubmission, message: &str) -> String {
    let by_container = [
        JobTerminationReason::CreatingContainerError,
        JobTerminationReason::ContainerExitedWithError,
        JobTerminationReason::ExecutorError,
    ];
    let reason = latest.termination_reason.as_deref();
    match by_container.iter().any(|one| reason == Some(one.as_str())) {
        true => message.to_owned(),
        false => plain_words(message),
    }
}

/// Ctrl-C: leaves the run running, or stops it. A second Ctrl-C aborts it.
async fn leave(session: &Session<'_>, name: &str) -> Result<ExitCode, CliError> {
    let ui = &session.context.ui;
    let stopping = async {
        let question = Text::from("\nStop the run ")
            .code(name)
            .push(" before detaching?");
        if session.yes || !ui.confirm_plainly(question).await? {
            ui.say("Detached");
            return Ok(ExitCode::SUCCESS);
        }
        let spinner = ui.spin("Stopping...");
        stop(session.project, name, false).await?;
        while !get(session.project, name).await?.status.is_finished() {
            tokio::time::sleep(STOP_POLL).await;
        }
        drop(spinner);
        ui.say("Stopped");
        Ok(ExitCode::SUCCESS)
    };
    tokio::select! {
        stopped = stopping => return stopped,
        () = crate::interrupt::ctrl_c() => {}
    }
    let spinner = ui.spin("Aborting...");
    stop(session.project, name, true).await?;
    drop(spinner);
    ui.say(Text::new().role(Role::Error, "Aborted"));
    Ok(ExitCode::SUCCESS)
}

async fn stop(project: &Project, name: &str, abort: bool) -> Result<(), CliError> {
    let request = StopRunsRequest {
        runs_names: vec![name.to_owned()],
        abort,
    };
    Ok(project.client.call::<RunsStop>(&project.name, &request).await?)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn run(statuses: &[&str]) -> Run {
        let jobs: Vec<serde_json::Value> = statuses
            .iter()
            .map(|status| {
                json!({
                    "job_spec": {"job_num": 0, "job_name": "run-0-0", "commands": [], "env": {}, "image_name": "i",
                                 "requirements": {"resources": {}}},
                    "job_submissions": [submission(status)],
                })
            })
            .collect();
        serde_json::from_value(json!({
            "id": "ce7ec14d-2e3d-48b1-a07d-3f3258d5c7f2", "project_name": "main", "user": "ann", "status": "running",
            "submitted_at": "2026-01-01T00:00:00Z", "last_processed_at": "2026-01-01T00:00:00Z", "jobs": jobs,
            "run_spec": {"run_name": "run", "configuration": {"type": "task", "commands": ["x"]}, "profile": {"name": "x"}},
        }))
        .unwrap()
    }

    fn submission(status: &str) -> serde_json::Value {
        json!({
            "id": "ce7ec14d-2e3d-48b1-a07d-3f3258d5c7f2", "submission_num": 0, "submitted_at": "2026-01-01T00:00:00Z",
            "last_processed_at": "2026-01-01T00:00:00Z", "status": status,
        })
    }

    #[test]
    fn a_run_whose_other_jobs_go_on_is_not_lost() {
        assert!(others_run(&run(&["done", "running"])));
        assert!(!others_run(&run(&["running"])), "the connection broke");
        assert!(!others_run(&run(&["running", "running"])), "the connection broke");
        assert!(!others_run(&run(&["done", "terminating"])));
    }

    #[test]
    fn the_last_words_of_a_container_are_shown_as_they_are() {
        let message = |reason: &str, message: &str| {
            let mut latest: JobSubmission = serde_json::from_value(submission("failed")).unwrap();
            latest.termination_reason = Some(reason.to_owned());
            termination_message(&latest, message)
        };
        let words = "KeyError: \"['a'] not in index\"";
        assert_eq!(message("creating_container_error", words), words);
        assert_eq!(
            message("volume_error", "Volume ['v'] not found"),
            "Volume v not found"
        );
    }
}
