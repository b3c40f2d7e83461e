//! `dstack logs`: what a job printed.

use std::process::ExitCode;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use dstack_api::routes::LogsPoll;
use dstack_model::requests::PollLogsRequest;
use dstack_model::runs::{Job, JobStatus, JobSubmission, Run};
use dstack_units::Time;

use super::run::get;
use super::{since, unless_interrupted};
use crate::args::LogsArgs;
use crate::context::{Context, Project};
use crate::error::CliError;
use crate::ui::Ui;

const PAGE: i64 = 1000;
/// How long a follower waits when there was nothing new.
const PAUSE: Duration = Duration::from_millis(200);
/// A follower asks for the run's state after so many empty answers.
const STATE_EVERY: u32 = 5;

/// Runs the command.
pub(crate) async fn run(context: &Context, args: &LogsArgs) -> Result<ExitCode, CliError> {
    let start = since(args.since.as_deref())?;
    let project = context.project(args.project.name.as_deref())?;
    let run = get(&project, &args.run_name).await?;
    let Some(submission) = find_job(&run, args.replica, args.job).and_then(|job| job.job_submissions.last())
    else {
        return Ok(ExitCode::SUCCESS);
    };
    let mut reader = Reader::new(&args.run_name, submission, start, args.diagnose);
    let printing = async {
        if let Some(lines) = args.tail {
            reader.print_tail(&project, &context.ui, lines).await?;
        }
        if args.follow {
            reader
                .follow(&project, &context.ui, args.replica, args.job)
                .await?;
        } else if args.tail.is_none() {
            while reader.print_page(&project, &context.ui).await? == Page::Full {}
        }
        Ok(ExitCode::SUCCESS)
    };
    unless_interrupted(printing, || ExitCode::SUCCESS).await
}

/// The job asked for. Without a replica: a running one, otherwise the lowest-numbered.
pub(crate) fn find_job(run: &Run, replica: Option<u32>, job: u32) -> Option<&Job> {
    let candidates = run
        .jobs
        .iter()
        .filter(|candidate| candidate.job_spec.job_num == job);
    if let Some(replica) = replica {
        return candidates
            .into_iter()
            .find(|candidate| candidate.job_spec.replica_num == replica);
    }
    let is_running = |job: &&Job| {
        job.job_submissions
            .last()
            .is_some_and(|latest| latest.status == JobStatus::Running)
    };
    let lowest = |job: &&Job| job.job_spec.replica_num;
    candidates
        .clone()
        .filter(is_running)
        .min_by_key(lowest)
        .or_else(|| candidates.min_by_key(lowest))
}

/// The end of an output: so many lines, of which the last may be unfinished.
fn last_lines(output: &[u8], lines: usize) -> &[u8] {
    let body = output.strip_suffix(b"\n").unwrap_or(output);
    let ends = body.iter().enumerate().rev().filter(|(_, byte)| **byte == b'\n');
    let start = match lines.checked_sub(1) {
        None => output.len(),
        Some(before) => ends.map(|(at, _)| at.saturating_add(1)).nth(before).unwrap_or(0),
    };
    output.get(start..).unwrap_or_default()
}

/// What a page of logs had.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Page {
    /// There is more at once.
    Full,
    /// These were the last lines for now.
    Last,
    /// The job has printed nothing since the last page.
    Empty,
}

/// Reads a job's logs from the server, page by page.
#[derive(Debug)]
pub(crate) struct Reader {
    request: PollLogsRequest,
    last: Option<Time>,
    at_last: usize,
    /// Bytes at the beginning that are not printed.
    skip: usize,
}

impl Reader {
    pub(crate) fn new(run: &str, submission: &JobSubmission, start: Option<Time>, diagnose: bool) -> Self {
        let request = PollLogsRequest {
            run_name: run.to_owned(),
            job_submission_id: submission.id,
            start_time: start,
            end_time: None,
            descending: false,
            next_token: None,
            limit: PAGE,
            diagnose,
        };
        Self {
            request,
            last: None,
            at_last: 0,
            skip: 0,
        }
    }

    /// Leaves out what was printed already: so many bytes from the beginning.
    pub(crate) fn skipping(mut self, bytes: usize) -> Self {
        self.skip = bytes;
        self
    }

    /// Prints the next page.
    pub(crate) async fn print_page(&mut self, project: &Project, ui: &Ui) -> Result<Page, CliError> {
        let (output, page) = self.next_page(project).await?;
        ui.raw(&output);
        Ok(page)
    }

    /// Prints the last lines of all that is there.
    async fn print_tail(&mut self, project: &Project, ui: &Ui, lines: usize) -> Result<(), CliError> {
        let mut end = Vec::new();
        loop {
            let (output, page) = self.next_page(project).await?;
            end.extend(output);
            end = last_lines(&end, lines).to_vec();
            if page != Page::Full {
                ui.raw(&end);
                return Ok(());
            }
        }
    }

    /// The next page: what was printed, and what is to be expected after it.
    async fn next_page(&mut self, project: &Project) -> Result<(Vec<u8>, Page), CliError> {
        let page = project
            .client
            .call::<LogsPoll>(&project.name, &self.request)
            .await?;
        // A follower asks again from the last line's time on: lines of that very time were printed already.
        let mut known = if self.request.next_token.is_none() {
            self.at_last
        } else {
            0
        };
        let mut output = Vec::new();
        for event in &page.logs {
            if self.last == Some(event.timestamp) && known > 0 {
                known -= 1;
                continue;
            }
            if self.last != Some(event.timestamp) {
                self.at_last = 0;
            }
            self.last = Some(event.timestamp);
            self.at_last += 1;
            output.extend(
                STANDARD
                    .decode(&event.message)
                    .unwrap_or_else(|_| event.message.clone().into_bytes()),
            );
        }
        let skipped = self.skip.min(output.len());
        self.skip -= skipped;
        self.request.next_token = page.next_token;
        let kind = match (&self.request.next_token, output.is_empty()) {
            (Some(_), _) => Page::Full,
            (None, false) => Page::Last,
            (None, true) => Page::Empty,
        };
        Ok((output.split_off(skipped), kind))
    }

    /// Prints lines as they come until the job has ended and everything is printed. The run's last state.
    pub(crate) async fn follow(
        &mut self,
        project: &Project,
        ui: &Ui,
        replica: Option<u32>,
        job: u32,
    ) -> Result<Run, CliError> {
        let mut quiet = 0;
        loop {
            match self.print_page(project, ui).await? {
                Page::Full => continue,
                Page::Last => quiet = 0,
                Page::Empty => quiet += 1,
            }
            if quiet % STATE_EVERY == 0 && quiet > 0 {
                let run = get(project, &self.request.run_name).await?;
                if has_ended(&run, replica, job) {
                    // Lines written between the last page and the end.
                    self.rewind();
                    while self.print_page(project, ui).await? == Page::Full {}
                    return Ok(run);
                }
            }
            self.rewind();
            tokio::time::sleep(PAUSE).await;
        }
    }

    fn rewind(&mut self) {
        if self.request.next_token.is_none() && self.last.is_some() {
            // Times are compared strictly or not depending on the server: ask a little earlier.
            self.request.start_time = self.last.map(|last| last - Duration::from_millis(1));
        }
    }
}

fn has_ended(run: &Run, replica: Option<u32>, job: u32) -> bool {
    let latest = find_job(run, replica, job).and_then(|job| job.job_submissions.last());
    run.status.is_finished() || latest.is_none_or(|latest| latest.status.is_finished())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_an_output() {
        for (output, lines, end) in [
            ("a\nb\nc\n", 2, "b\nc\n"),
            ("a\nb\nc", 2, "b\nc"),
            ("a\nb\n", 5, "a\nb\n"),
            ("a\n\n", 1, "\n"),
            ("a\n", 0, ""),
            ("", 3, ""),
        ] {
            assert_eq!(last_lines(output.as_bytes(), lines), end.as_bytes(), "{output:?}");
        }
    }
}
