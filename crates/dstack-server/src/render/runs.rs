//! Runs, and a cache of rendered ones.

use std::collections::{HashMap, VecDeque};
use std::sync::{Mutex, PoisonError};

use axum::body::Bytes;
use dstack_model::configurations::AnyRunConfiguration;
use dstack_model::profiles::RetryEvent;
use dstack_model::runs::{
    Job, JobConnectionInfo, JobStatus, JobSubmission, JobTerminationReason, Probe, Run, RunFleet, RunStatus,
    RunTerminationReason,
};
use dstack_plan::lifecycle::WaitReason;
use dstack_plan::schedule::next_trigger;
use dstack_store::queries::views::{ListedRun, RunKey};
use dstack_store::rows::{JobRow, RunRow};
use dstack_units::Time;

/// What of a run is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct View {
    /// With its jobs.
    pub(crate) jobs: bool,
    /// Newest submissions of each job; all when unset.
    pub(crate) submissions: Option<usize>,
    /// With how to connect to running jobs.
    pub(crate) connections: bool,
}

impl View {
    /// As single runs are shown.
    pub(crate) const fn single() -> Self {
        Self {
            jobs: true,
            submissions: None,
            connections: true,
        }
    }
}

/// A run as clients see it.
pub(crate) fn run(listed: &ListedRun, jobs: &[&JobRow], view: View, now: Time) -> Run {
    let row = &listed.run;
    let groups = group(jobs);
    let shown: Vec<Job> = match view.jobs {
        true => groups
            .iter()
            .filter_map(|group| job(listed, group, view))
            .collect(),
        false => Vec::new(),
    };
    let cost = shown
        .iter()
        .flat_map(|job| &job.job_submissions)
        .map(|submission| cost(submission, now))
        .sum::<f64>();
    Run {
        id: row.id,
        project_name: listed.project_name.clone(),
        user: listed.user_name.clone(),
        fleet: row
            .fleet_id
            .zip(listed.fleet_name.clone())
            .map(|(id, name)| RunFleet { id, name }),
        submitted_at: row.submitted_at,
        last_processed_at: row.last_processed_at,
        status: row.status(),
        status_message: status_message(row.status(), &groups),
        termination_reason: row.termination_reason().map(|reason| reason.as_str().to_owned()),
        run_spec: dstack_model::runs::RunSpec::clone(&row.run_spec),
        latest_job_submission: shown.first().and_then(|job| job.job_submissions.last().cloned()),
        jobs: shown,
        cost: (cost * 10_000.0).round() / 10_000.0,
        service: row.service_spec.as_deref().cloned(),
        deployment_num: number(row.deployment_num),
        error: row
            .termination_reason()
            .and_then(RunTerminationReason::error)
            .map(str::to_owned),
        deleted: Some(row.deleted),
        next_triggered_at: next_time(row, now),
        waiting_for: row.waiting_for().map(ToString::to_string),
        waits_until: row.deadline_at().filter(|_| row.waiting_for().is_some()),
    }
}

/// When the schedule starts the run the next time, also while it runs.
fn next_time(row: &RunRow, now: Time) -> Option<Time> {
    let stored = row.next_triggered_at.filter(|_| !row.status().is_finished())?;
    match stored > now {
        true => Some(stored),
        false => next_trigger(&row.run_spec, now),
    }
}

fn number(value: i64) -> u32 {
    u32::try_from(value).unwrap_or(0)
}

/// Submissions of the same job together; they come sorted.
fn group<'a>(jobs: &[&'a JobRow]) -> Vec<Vec<&'a JobRow>> {
    let mut groups: Vec<Vec<&JobRow>> = Vec::new();
    for row in jobs {
        match groups.last_mut() {
            Some(group)
                if group.last().is_some_and(|last| {
                    (last.replica_num, last.job_num) == (row.replica_num, row.job_num)
                }) =>
            {
                group.push(row);
            }
            _ => groups.push(vec![row]),
        }
    }
    groups
}

fn job(listed: &ListedRun, group: &[&JobRow], view: View) -> Option<Job> {
    let last = group.last()?;
    let shown = view.submissions.unwrap_or(group.len()).min(group.len());
    let mut spec = dstack_model::runs::JobSpec::clone(&last.job_spec);
    spec.ssh_key = None;
    let connected = view.connections && last.status() == JobStatus::Running;
    Some(Job {
        job_spec: spec,
        job_submissions: group
            .iter()
            .skip(group.len() - shown)
            .map(|row| submission(row))
            .collect(),
        job_connection_info: connected.then(|| connection_info(listed, last)),
    })
}

/// A submission as clients see it.
pub(crate) fn submission(row: &JobRow) -> JobSubmission {
    let mut place = row.job_provisioning_data.as_deref().cloned();
    if let Some(place) = &mut place {
        // Clients before 0.19 need values here.
        place.hostname.get_or_insert_default();
        place.ssh_port.get_or_insert(22);
    }
    JobSubmission {
        id: row.id,
        submission_num: number(row.submission_num),
        deployment_num: number(row.deployment_num),
        submitted_at: row.submitted_at,
        last_processed_at: row.last_processed_at,
        finished_at: row
            .status()
            .is_finished()
            .then_some(row.finished_at.unwrap_or(row.last_processed_at)),
        inactivity_secs: row.inactivity_secs,
        status: row.status(),
        status_message: job_status_message(row),
        termination_reason: row.termination_reason().map(|reason| reason.as_str().to_owned()),
        termination_reason_message: row.termination_reason_message().map(str::to_owned),
        exit_status: row.exit_status,
        job_provisioning_data: place,
        job_runtime_data: row.job_runtime_data.as_deref().cloned(),
        error: row
            .termination_reason()
            .and_then(JobTerminationReason::error)
            .map(str::to_owned),
        probes: probes(row),
        image_pull_progress: row.image_pull_progress.as_deref().copied(),
        waiting_for: row.waiting_for().map(ToString::to_string),
        waiting_kind: row
            .waiting_for()
            .and_then(WaitReason::client_kind)
            .map(str::to_owned),
        waits_until: row.deadline_at().filter(|_| row.waiting_for().is_some()),
    }
}

/// Of a job that runs, or did: before, no probe is asked.
fn probes(row: &JobRow) -> Vec<Probe> {
    let states = row.probes.as_ref();
    let streaks = states.map(|states| states.streaks(&row.job_spec.probes));
    let streaks = streaks.unwrap_or_default().into_iter();
    streaks.map(|success_streak| Probe { success_streak }).collect()
}

fn job_status_message(row: &JobRow) -> String {
    use JobTerminationReason as Reason;
    let text = match (row.status(), row.termination_reason()) {
        (JobStatus::Done, _) => "exited (0)",
        (JobStatus::Failed, Some(Reason::ContainerExitedWithError)) => {
            // Python prints a missing status like this.
            let status = row
                .exit_status
                .map_or_else(|| "None".to_owned(), |status| status.to_string());
            return format!("exited ({status})");
        }
        (JobStatus::Failed, Some(Reason::FailedToStartDueToNoCapacity)) => {
            let message = row.termination_reason_message().unwrap_or_default();
            if message.contains("No matching fleet found") {
                "no fleets"
            } else {
                "no capacity"
            }
        }
        (JobStatus::Failed, Some(Reason::InterruptedByNoCapacity)) => "interrupted",
        (JobStatus::Failed, _) => "error",
        (JobStatus::Terminated, Some(Reason::TerminatedByUser)) => "stopped",
        (JobStatus::Terminated, Some(Reason::AbortedByUser)) => "aborted",
        (status, _) => status.as_str(),
    };
    text.to_owned()
}

fn status_message(status: RunStatus, groups: &[Vec<&JobRow>]) -> String {
    let last_status = |group: &Vec<&JobRow>| group.last().map(|last| last.status());
    if !groups.is_empty()
        && groups
            .iter()
            .all(|group| last_status(group) == Some(JobStatus::Pulling))
    {
        return "pulling".to_owned();
    }
    if matches!(status, RunStatus::Submitted | RunStatus::Pending)
        && groups.iter().any(|group| waits_for_capacity(group))
    {
        return "retrying".to_owned();
    }
    status.as_str().to_owned()
}

fn waits_for_capacity(group: &[&JobRow]) -> bool {
    let reason = group.iter().rev().find_map(|row| row.termination_reason());
    let retry = group.last().and_then(|last| last.job_spec.retry.as_ref());
    reason == Some(JobTerminationReason::FailedToStartDueToNoCapacity)
        && retry.is_some_and(|retry| retry.on_events.contains(&RetryEvent::NoCapacity))
}

fn cost(submission: &JobSubmission, now: Time) -> f64 {
    let Some(place) = &submission.job_provisioning_data else {
        return 0.0;
    };
    let hours = submission
        .finished_at
        .unwrap_or(now)
        .since(submission.submitted_at)
        .as_secs_f64()
        / 3600.0;
    place.price * hours
}

fn connection_info(listed: &ListedRun, row: &JobRow) -> JobConnectionInfo {
    let host = match (row.job_num, row.replica_num) {
        (0, 0) => listed.run.run_name.clone(),
        _ => row.job_name.clone(),
    };
    let mut info = JobConnectionInfo {
        attached_ssh_command: Some(vec!["ssh".to_owned(), host.clone()]),
        ..JobConnectionInfo::default()
    };
    let AnyRunConfiguration::DevEnvironment(dev) = &listed.run.run_spec.configuration else {
        return info;
    };
    let Some((name, scheme)) = dev.ide.and_then(|ide| ide_of(&serde_json::to_value(ide).ok()?)) else {
        return info;
    };
    info.ide_name = Some(name.to_owned());
    let dir = row
        .job_runtime_data
        .as_deref()
        .and_then(|data| data.working_dir.clone());
    info.attached_ide_url = dir.map(|dir| match scheme {
        "zed" => format!("zed://ssh/{host}{dir}"),
        scheme => format!("{scheme}://vscode-remote/ssh-remote+{host}{dir}"),
    });
    info
}

/// Name for people, and URL scheme.
fn ide_of(ide: &serde_json::Value) -> Option<(&'static str, &'static str)> {
    match ide.as_str()? {
        "vscode" => Some(("VS Code", "vscode")),
        "cursor" => Some(("Cursor", "cursor")),
        "windsurf" => Some(("Windsurf", "windsurf")),
        "zed" => Some(("Zed", "zed")),
        _ => None,
    }
}

/// Whether the run looks the same until its version changes: the cost of something running grows by itself, and a schedule
/// goes on while the run that it has started runs.
pub(crate) fn is_stable(listed: &ListedRun, jobs: &[&JobRow], now: Time) -> bool {
    let is_over = listed.run.status().is_finished();
    (is_over || listed.run.next_triggered_at.is_none_or(|at| at > now))
        && jobs.iter().all(|row| {
            row.status().is_finished()
                || row
                    .job_provisioning_data
                    .as_deref()
                    .is_none_or(|place| place.price == 0.0)
        })
}

/// Bytes of rendered runs that are kept.
const CACHED_BYTES: usize = 64 * 1024 * 1024;

type CacheKey = (RunKey, View);

#[derive(Debug, Default)]
struct Cached {
    runs: HashMap<CacheKey, Bytes>,
    order: VecDeque<CacheKey>,
    bytes: usize,
}

/// Rendered runs by id, version and view. Bounded by size; the oldest go first.
#[derive(Debug, Default)]
pub struct RunCache {
    cached: Mutex<Cached>,
}

impl RunCache {
    /// What is known of these runs.
    pub(crate) fn find(&self, keys: &[RunKey], view: View) -> Vec<Option<Bytes>> {
        let cached = self.cached.lock().unwrap_or_else(PoisonError::into_inner);
        keys.iter()
            .map(|key| cached.runs.get(&(*key, view)).cloned())
            .collect()
    }

    /// Remembers a rendered run.
    pub(crate) fn put(&self, key: RunKey, view: View, rendered: Bytes) {
        let mut cached = self.cached.lock().unwrap_or_else(PoisonError::into_inner);
        cached.bytes += rendered.len();
        if let Some(old) = cached.runs.insert((key, view), rendered) {
            cached.bytes -= old.len();
        } else {
            cached.order.push_back((key, view));
        }
        while cached.bytes > CACHED_BYTES {
            let Some(oldest) = cached.order.pop_front() else {
                break;
            };
            if let Some(old) = cached.runs.remove(&oldest) {
                cached.bytes -= old.len();
            }
        }
    }

    /// Forgets everything: a name around the runs changed.
    pub fn clear(&self) {
        *self.cached.lock().unwrap_or_else(PoisonError::into_inner) = Cached::default();
    }
}
