//! Output of jobs.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use dstack_api::routes;
use dstack_logs::{LogEntry, LogStream, PollQuery, Producer, Source};
use dstack_model::logs::{JobSubmissionLogs, LogEvent, LogEventSource};
use dstack_model::requests::PollLogsRequest;

use crate::api::{Api, Call};
use crate::error::Result;

pub(super) fn routes(api: Api) -> Api {
    api.on::<routes::LogsPoll, _, _>(poll)
}

async fn poll(call: Call, request: PollLogsRequest) -> Result<JobSubmissionLogs> {
    let project = &call.project()?.row;
    // Stores keep logs by the name of the project: one of the same name may have been there before.
    let owner = call.state.data.database.project_of_job(request.job_submission_id);
    if owner.await?.is_some_and(|owner| owner != project.id) {
        return Ok(JobSubmissionLogs::default());
    }
    let stream = LogStream {
        project: project.name.clone(),
        run: request.run_name,
        job: request.job_submission_id,
        producer: if request.diagnose {
            Producer::Runner
        } else {
            Producer::Job
        },
    };
    let query = PollQuery {
        start_time: request.start_time,
        end_time: request.end_time,
        descending: request.descending,
        // Python takes an empty token for none, reading forwards.
        next_token: request
            .next_token
            .filter(|token| request.descending || !token.is_empty()),
        limit: usize::try_from(request.limit).unwrap_or(0),
    };
    let page = call.state.data.logs.poll(&stream, &query).await?;
    Ok(JobSubmissionLogs {
        logs: page.entries.iter().map(event).collect(),
        external_url: page.external_url,
        next_token: page.next_token,
    })
}

fn event(entry: &LogEntry) -> LogEvent {
    LogEvent {
        timestamp: entry.timestamp,
        log_source: match entry.source {
            Source::Stdout => LogEventSource::Stdout,
            Source::Stderr => LogEventSource::Stderr,
        },
        message: STANDARD.encode(&entry.message),
    }
}
