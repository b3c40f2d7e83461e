//! `dstack metrics`: what the jobs of a run use of their hosts.

use std::process::ExitCode;
use std::time::Duration;

use dstack_api::routes::MetricsJob;
use dstack_model::metrics::JobMetrics;
use dstack_model::requests::JobMetricsQuery;
use dstack_model::runs::{Job, Run};
use dstack_system::{Clock, SystemClock};

use super::run::get;
use super::unless_interrupted;
use crate::args::MetricsArgs;
use crate::context::{Context, Project};
use crate::error::{CliError, ErrorKind};
use crate::tables::metrics;
use crate::ui::Table;

/// Samples come every 10 s.
const REFRESH: Duration = Duration::from_secs(10);
/// More than the hour that the server keeps.
const MAX_SAMPLES: i64 = 1000;

/// Runs the command.
pub(crate) async fn run(context: &Context, args: &MetricsArgs) -> Result<ExitCode, CliError> {
    let project = context.project(args.project.name.as_deref())?;
    let first = fetch(context, &project, args).await?;
    if !args.watch {
        context.ui.table(&first);
        return Ok(ExitCode::SUCCESS);
    }
    let watching = async {
        let live = context.ui.watch();
        let mut table = first;
        loop {
            live.body(&table, &[]);
            tokio::time::sleep(REFRESH).await;
            table = fetch(context, &project, args).await?;
        }
    };
    unless_interrupted(watching, || ExitCode::SUCCESS).await
}

async fn fetch(context: &Context, project: &Project, args: &MetricsArgs) -> Result<Table, CliError> {
    let run = get(project, &args.run_name).await?;
    let mut measured = Vec::new();
    for job in selected(&run, args)? {
        measured.push((job, of_job(project, &args.run_name, job).await?));
    }
    Ok(metrics::table(&measured, context.ui.width(), SystemClock.now()))
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
