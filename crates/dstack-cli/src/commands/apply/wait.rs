//! Waiting until a run can be attached to.

use std::time::Duration;

use dstack_model::runs::{JobStatus, Run, RunStatus};

use crate::commands::run::get;
use crate::context::{Context, Project};
use crate::error::CliError;
use crate::format::{self, date};
use crate::tables::{Dates, runs};
use crate::ui::{Role, Text};

/// What a run waits for that the server does not name itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Waiting {
    Requests,
    Schedule,
}

/// Shows the run live until it can be attached to or has ended; its last state.
pub(crate) async fn until_ready(context: &Context, project: &Project, mut run: Run) -> Result<Run, CliError> {
    let name = run.run_spec.run_name.clone().unwrap_or_default();
    let live = context.ui.spin(status(&run));
    let mut attempt = 0;
    while !is_ready(&run) {
        live.status(status(&run));
        let expand = context.ui.expands();
        live.body(
            &runs::table(std::slice::from_ref(&run), false, Dates::Ago, expand),
            &below(project, &run),
        );
        tokio::time::sleep(pause(attempt)).await;
        attempt += 1;
        run = get(project, &name).await?;
    }
    Ok(run)
}

/// Short at first: a run on a machine at hand starts in well under a second.
pub(crate) const fn pause(attempt: u32) -> Duration {
    match attempt {
        0..25 => Duration::from_millis(200),
        25..60 => Duration::from_secs(1),
        _ => Duration::from_secs(5),
    }
}

fn is_ready(run: &Run) -> bool {
    let first = run.jobs.first().and_then(|job| job.job_submissions.last());
    let run_waits = matches!(
        run.status,
        RunStatus::Submitted | RunStatus::Pending | RunStatus::Provisioning | RunStatus::Terminating
    );
    let job_waits = first.is_some_and(|latest| {
        matches!(
            latest.status,
            JobStatus::Submitted | JobStatus::Provisioning | JobStatus::Pulling
        )
    });
    !(run_waits || job_waits || run.is_deployment_in_progress())
}

fn waiting(run: &Run) -> Option<Waiting> {
    if !run.status_message.is_empty() && run.status_message != run.status.as_str() {
        return None;
    }
    if run.status == RunStatus::Pending && run.next_triggered_at.is_some() {
        return Some(Waiting::Schedule);
    }
    let idle_service = run.run_spec.configuration.service().is_some()
        && run.service.is_some()
        && run.next_triggered_at.is_none()
        && matches!(run.status, RunStatus::Submitted | RunStatus::Pending);
    let active = run
        .jobs
        .iter()
        .filter_map(|job| job.job_submissions.last())
        .any(|latest| {
            matches!(
                latest.status,
                JobStatus::Submitted | JobStatus::Provisioning | JobStatus::Pulling | JobStatus::Running
            )
        });
    (idle_service && !active).then_some(Waiting::Requests)
}

fn status(run: &Run) -> Text {
    let name = run.run_spec.run_name.clone().unwrap_or_default();
    match waiting(run) {
        None => Text::from("Launching ").code(name).push("..."),
        Some(Waiting::Requests) => Text::new().code(name).push(" is waiting for requests..."),
        Some(Waiting::Schedule) => Text::new().code(name).push(" is waiting for schedule..."),
    }
}

fn below(project: &Project, run: &Run) -> Vec<Text> {
    match (waiting(run), run.next_triggered_at) {
        (Some(Waiting::Requests), _) => service_url(project, run).into_iter().collect(),
        (Some(Waiting::Schedule), Some(next)) => vec![format!("Next run: {}", date::with_zone(next)).into()],
        _ => Vec::new(),
    }
}

/// Where a service is published; or why nobody reaches it there.
pub(crate) fn service_url(project: &Project, run: &Run) -> Option<Text> {
    let service = run.service.as_ref()?;
    if let Some(notice) = &service.notice {
        return Some(Text::new().role(Role::Warning, format!("Note: {notice}")));
    }
    let url = format::service_url(project.client.base_url(), &service.url);
    Some(format!("Service is published at:\n  {url}").into())
}
