//! `dstack metrics`: what the jobs of a run use of their hosts, and of a service what was counted of its requests.

use std::process::ExitCode;
use std::time::Duration;

use dstack_api::routes::{MetricsJob, MetricsService};
use dstack_api::{ClientError, Nothing};
use dstack_model::metrics::{JobMetrics, ServiceMetrics};
use dstack_model::requests::JobMetricsQuery;
use dstack_model::runs::{Job, Run};
use dstack_system::{Clock, SystemClock};

use super::run::get;
use super::unless_interrupted;
use crate::args::MetricsArgs;
use crate::context::{Context, Project};
use crate::error::{CliError, ErrorKind};
use crate::tables::{metrics, requests};
use crate::ui::{Table, Text};

/// Samples come every 10 s.
const REFRESH: Duration = Duration::from_secs(10);
/// More than the hour that the server keeps.
const MAX_SAMPLES: i64 = 1000;

/// Runs the command.
pub(crate) async fn run(context: &Context, args: &MetricsArgs) -> Result<ExitCode, CliError> {
    let project = context.project(args.project.name.as_deref())?;
    let first = fetch(context, &project, args).await?;
    if !args.watch {
        context.ui.table(&first.jobs);
        for line in first.requests {
            context.ui.say(line);
        }
        return Ok(ExitCode::SUCCESS);
    }
    let watching = async {
        let live = context.ui.watch();
        let mut shown = first;
        loop {
            live.body(&shown.jobs, &shown.requests);
            tokio::time::sleep(REFRESH).await;
            shown = fetch(context, &project, args).await?;
        }
    };
    unless_interrupted(watching, || ExitCode::SUCCESS).await
}

/// What is shown of a run.
struct Shown {
    jobs: Table,
    /// Of services, below the jobs.
    requests: Vec<Text>,
}

async fn fetch(context: &Context, project: &Project, args: &MetricsArgs) -> Result<Shown, CliError> {
    let run = get(project, &args.run_name).await?;
    let mut measured = Vec::new();
    for job in selected(&run, args)? {
        measured.push((job, of_job(project, &args.run_name, job).await?));
    }
    let requests = match run.run_spec.configuration.service() {
        Some(_) => of_service(project, &args.run_name).await?,
        None => None,
    };
    Ok(Shown {
        jobs: metrics::table(&measured, context.ui.width(), SystemClock.now()),
        requests: requests.as_ref().map(requests::lines).unwrap_or_default(),
    })
}

/// `None`: the server is one that does not tell, such as dstack 0.22.5.
async fn of_service(project: &Project, run: &str) -> Result<Option<ServiceMetrics>, CliError> {
    let asked = project
        .client
        .call::<MetricsService>((project.name.as_str(), run), &Nothing);
    match asked.await {
        Ok(metrics) => Ok(Some(metrics)),
        Err(
            ClientError::NotFound { .. }
            | ClientError::MethodNotAllowed { .. }
            | ClientError::NotDstack { .. },
        ) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

fn selected<'a>(run: &'a Run, args: &MetricsArgs) -> Result<Vec<&'a Job>, CliError> {
    let is_wanted = |job: &&Job| {
        args.replica
            .is_none_or(|replica| job.job_spec.replica_num == replica)
            && args.job.is_none_or(|number| job.job_spec.job_num == number)
    };
    let jobs: Vec<&Job> = run.jobs.iter().filter(is_wanted).collect();
    if jobs.is_empty() {
        let mut wanted = Vec::new();
        wanted.extend(args.replica.map(|replica| format!("replica={replica}")));
        wanted.extend(args.job.map(|job| format!("job={job}")));
        let message = format!("Run {} has no job matching {}", args.run_name, wanted.join(" "));
        return Err(CliError::new(ErrorKind::NotFound, message).hint("see its jobs with `dstack ps -v`"));
    }
    Ok(jobs)
}

async fn of_job(project: &Project, run: &str, job: &Job) -> Result<JobMetrics, CliError> {
    let query = JobMetricsQuery {
        run_id: None,
        replica_num: job.job_spec.replica_num.into(),
        job_num: job.job_spec.job_num.into(),
        limit: MAX_SAMPLES,
        after: None,
        before: None,
    };
    Ok(project
        .client
        .call::<MetricsJob>((project.name.as_str(), run), &query)
        .await?)
}
