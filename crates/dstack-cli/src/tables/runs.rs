//! The table of runs.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use dstack_model::runs::{
    ImagePullProgress, Job, JobStatus, JobSubmission, Run, RunStatus, WAITING_FOR_COMMANDS,
};

use dstack_system::{Clock, SystemClock};
use dstack_units::Time;

use super::Dates;
use crate::format::{self, date, resources};
use crate::ui::{Column, Role, Style, Table, Text};

/// Which parts of a job's name are shown.
#[derive(Debug, Clone, Copy)]
struct Shown {
    deployment: bool,
    replica: bool,
    job: bool,
}

/// The table of runs; `expand` stretches it to the full width.
pub fn table(runs: &[Run], verbose: bool, dates: Dates, expand: bool) -> Table {
    let mut table = Table::new(columns(verbose, runs)).expand(expand);
    for run in runs {
        add_run(&mut table, run, verbose, dates);
    }
    table
}

/// Why jobs wait and until when at most, one line each; nothing of jobs whose commands run.
pub fn waits(runs: &[Run]) -> Vec<Text> {
    runs.iter().flat_map(waits_of).collect()
}

fn waits_of(run: &Run) -> Vec<Text> {
    let name = run.run_spec.run_name.clone().unwrap_or_default();
    let shown = shown(run, false);
    let of_job = |job: &Job| {
        let latest = job.job_submissions.last()?;
        let reason = latest.waiting_for.as_deref()?;
        let runs_well = latest.waiting_kind.as_deref() == Some(WAITING_FOR_COMMANDS);
        if runs_well || latest.status.is_finished() {
            return None;
        }
        let mut who = vec![name.clone()];
        if shown.replica {
            who.push(format!("replica={}", job.job_spec.replica_num));
        }
        if shown.job {
            who.push(format!("job={}", job.job_spec.job_num));
        }
        Some(wait(&who.join(" "), reason, latest.waits_until))
    };
    let jobs: Vec<Text> = run.jobs.iter().filter_map(of_job).collect();
    // Between two attempts, and before its time comes, there is no job to say why.
    let of_run = run
        .waiting_for
        .as_deref()
        .filter(|_| run.status == RunStatus::Pending && jobs.is_empty());
    let of_run = of_run.map(|reason| wait(&name, reason, run.waits_until));
    of_run.into_iter().chain(jobs).collect()
}

pub(super) fn wait(who: &str, reason: &str, until: Option<Time>) -> Text {
    let text = Text::new().code(who).secondary(format!(" waits for {reason}"));
    match until {
        Some(until) => text.secondary(format!(", until {} at most", moment(until))),
        None => text,
    }
}

/// A time to come: with its date where the hour alone could be tomorrow's.
fn moment(time: Time) -> String {
    let is_near = time.since(SystemClock.now()) < Duration::from_secs(12 * 3600);
    if is_near {
        date::local(time, "%H:%M:%S")
    } else {
        date::full(time)
    }
}

fn columns(verbose: bool, runs: &[Run]) -> Vec<Column> {
    let grey = |title: &str| Column::new(title).style(Style::SECONDARY);
    let mut columns = vec![
        Column::new("NAME").style(Style::BOLD).no_wrap().ratio(2),
        grey("BACKEND").minor().ratio(2),
    ];
    if verbose {
        columns.push(grey("RESOURCES").minor().ratio(3));
        columns.push(grey("INSTANCE TYPE").minor().no_wrap().ratio(1));
    } else {
        columns.push(Column::new("GPU").ratio(2));
    }
    columns.push(grey("PRICE").ratio(1));
    columns.push(Column::new("STATUS").ratio(1));
    if verbose || runs.iter().any(has_moving_probes) {
        columns.push(Column::new("PROBES").ratio(1));
    }
    columns.push(grey("SUBMITTED").minor().no_wrap().ratio(1));
    if verbose {
        columns.push(Column::new("ERROR").no_wrap().ratio(2));
    }
    columns
}

fn has_moving_probes(run: &Run) -> bool {
    let latest = run.jobs.iter().filter_map(|job| job.job_submissions.last());
    run.is_deployment_in_progress() && latest.into_iter().any(|submission| !submission.probes.is_empty())
}

fn add_run(table: &mut Table, run: &Run, verbose: bool, dates: Dates) {
    let shown = shown(run, verbose);
    let merged = run.jobs.len() == 1 && !shown.deployment;
    let run_cells = vec![
        ("NAME", run_name(run, shown.deployment)),
        ("SUBMITTED", dates.show(run.submitted_at).into()),
        ("STATUS", run_status(run)),
        ("RESOURCES", "-".into()),
        ("GPU", "-".into()),
        ("PRICE", "-".into()),
        ("ERROR", run.error.clone().unwrap_or_default().into()),
    ];
    if !merged {
        table.row_named(&run_cells, Style::PLAIN);
    }
    let groups = groups(run);
    let mut jobs: Vec<&Job> = run.jobs.iter().collect();
    jobs.sort_by_key(|job| {
        (
            groups
                .get(job.job_spec.replica_group.as_str())
                .copied()
                .unwrap_or(usize::MAX),
            job.job_spec.replica_num,
        )
    });
    let mut last_group = None;
    for job in jobs {
        let Some(latest) = job.job_submissions.last() else {
            continue;
        };
        let group = groups.get(job.job_spec.replica_group.as_str()).copied();
        let mut cells = job_cells(job, latest, verbose, dates);
        cells.push(("NAME", job_name(job, latest, shown, group, last_group).into()));
        if merged && run.status == RunStatus::Pending && latest.status.is_finished() {
            // The last attempt is over, the run is not.
            cells.push(("STATUS", Text::new().role(Role::Moving, "retrying")));
        }
        last_group = group.or(last_group);
        if merged {
            let of_run = run_cells
                .iter()
                .filter(|(title, _)| ["NAME", "SUBMITTED"].contains(title));
            cells.extend(of_run.cloned());
            if let Some(error) = &run.error {
                cells.push(("ERROR", error.clone().into()));
            }
        }
        table.row_named(
            &cells,
            if run.jobs.len() == 1 {
                Style::PLAIN
            } else {
                Style::SECONDARY
            },
        );
    }
}

fn shown(run: &Run, verbose: bool) -> Shown {
    let mut replicas: BTreeMap<u32, BTreeSet<u32>> = BTreeMap::new();
    for job in &run.jobs {
        replicas
            .entry(job.job_spec.replica_num)
            .or_default()
            .insert(job.job_spec.job_num);
    }
    let is_service = run.run_spec.configuration.service().is_some();
    Shown {
        deployment: (verbose && is_service) || run.is_deployment_in_progress(),
        replica: replicas.len() > 1,
        job: replicas.values().any(|jobs| jobs.len() > 1),
    }
}

/// Numbers of a service's groups by name. A service without groups has one, named `0`.
fn groups(run: &Run) -> BTreeMap<&str, usize> {
    let Some(service) = run.run_spec.configuration.service() else {
        return BTreeMap::new();
    };
    match &service.groups {
        None => BTreeMap::from([("0", 0)]),
        Some(groups) => groups
            .iter()
            .enumerate()
            .map(|(index, group)| (group.name.as_deref().unwrap_or_default(), index))
            .collect(),
    }
}

fn run_name(run: &Run, deployment: bool) -> Text {
    let name = Text::from(run.run_spec.run_name.clone().unwrap_or_default());
    if deployment {
        name.secondary(format!(" deployment={}", run.deployment_num))
    } else {
        name
    }
}

fn job_name(
    job: &Job,
    latest: &JobSubmission,
    shown: Shown,
    group: Option<usize>,
    last_group: Option<usize>,
) -> String {
    let replica = format!("replica={}", job.job_spec.replica_num);
    let mut name = match group.filter(|_| shown.replica) {
        // Later replicas of a group stand under the first one's `replica=`.
        Some(group) if last_group == Some(group) => {
            format!("{}{replica}", " ".repeat(format!("   group={group} ").len()))
        }
        Some(group) => format!("   group={group} {replica}"),
        None if shown.replica => format!("   {replica}"),
        None => "   ".to_owned(),
    };
    if shown.job {
        let separator = if shown.replica { " " } else { "" };
        name.push_str(&format!("{separator}job={}", job.job_spec.job_num));
    }
    if shown.deployment {
        name.push_str(&format!(" deployment={}", latest.deployment_num));
    }
    name
}

fn job_cells(job: &Job, latest: &JobSubmission, verbose: bool, dates: Dates) -> Vec<(&'static str, Text)> {
    let mut cells = vec![
        ("STATUS", job_status(latest, verbose)),
        ("PROBES", probes(job, latest)),
        ("SUBMITTED", dates.show(latest.submitted_at).into()),
        ("ERROR", latest.error.clone().unwrap_or_default().into()),
        ("RESOURCES", "-".into()),
        ("GPU", "-".into()),
        ("PRICE", "-".into()),
    ];
    let Some(provisioning) = &latest.job_provisioning_data else {
        return cells;
    };
    // On a shared instance the job has a part of what the instance has.
    let offer = latest
        .job_runtime_data
        .as_ref()
        .and_then(|data| data.offer.as_ref())
        .filter(|offer| offer.total_blocks > 1);
    let (instance, price) = offer.map_or((&provisioning.instance_type, provisioning.price), |offer| {
        (&offer.instance, offer.price)
    });
    let mut kind = instance.name.clone();
    if let Some(offer) = offer {
        kind.push_str(&format!(" ({}/{})", offer.blocks, offer.total_blocks));
    }
    if let Some(reservation) = &provisioning.reservation {
        kind.push_str(&format!(" ({reservation})"));
    }
    let mut price = format::price(price);
    if instance.resources.spot {
        price.push_str(" (spot)");
    }
    cells.extend([
        (
            "BACKEND",
            format::backend(Some(provisioning.backend.as_str()), Some(&provisioning.region)).into(),
        ),
        ("RESOURCES", resources::instance(&instance.resources).into()),
        ("GPU", resources::gpu(&instance.resources).into()),
        ("INSTANCE TYPE", kind.into()),
        ("PRICE", price.into()),
    ]);
    cells
}

/// Style of statuses that say more than the state itself.
fn message_role(message: &str) -> Option<Role> {
    match message {
        "no capacity" | "busy" | "interrupted" => Some(Role::Interrupted),
        "no fleets" | "no match" => Some(Role::Failed),
        _ => None,
    }
}

/// The status of a job in a word or two. Where the server says `no fleets`, the words of dstack 0.22.5 for every run that no
/// existing instance could take, its message says which it was: all places are taken, or none is for such a job.
pub fn status_of_job(latest: &JobSubmission) -> &str {
    if latest.status_message != "no fleets" {
        return &latest.status_message;
    }
    let message = latest.termination_reason_message.as_deref().unwrap_or_default();
    let Some((_, reasons)) = message.split_once(". ") else {
        return &latest.status_message;
    };
    match reasons.split("; ").any(|reason| reason.ends_with(" is busy")) {
        true => "busy",
        false if reasons.contains("has no fleet") => "no fleets",
        false => "no match",
    }
}

fn status_text(message: &str, role: Role, finished: bool) -> Text {
    Text::styled(
        message,
        Style {
            role,
            bold: !finished,
        },
    )
}

fn run_status(run: &Run) -> Text {
    let latest = run
        .latest_job_submission
        .as_ref()
        .filter(|_| run.status.is_finished());
    let message = latest.map_or(run.status_message.as_str(), status_of_job);
    let role = message_role(message).unwrap_or(match (message, run.status) {
        ("pulling", _) | (_, RunStatus::Running) => Role::Running,
        (_, RunStatus::Pending) => Role::White,
        (_, RunStatus::Provisioning | RunStatus::Terminating) => Role::Moving,
        (_, RunStatus::Failed) => Role::Failed,
        (_, RunStatus::Submitted | RunStatus::Terminated | RunStatus::Done) => Role::Plain,
    });
    status_text(message, role, run.status.is_finished())
}

fn job_status(latest: &JobSubmission, verbose: bool) -> Text {
    let message = status_of_job(latest);
    let role = message_role(message).unwrap_or(match (message, latest.status) {
        ("stopped", _) | (_, JobStatus::Submitted | JobStatus::Terminated | JobStatus::Done) => Role::Plain,
        (_, JobStatus::Provisioning | JobStatus::Terminating) => Role::Moving,
        (_, JobStatus::Pulling | JobStatus::Running) => Role::Running,
        (_, JobStatus::Aborted) => Role::Interrupted,
        (_, JobStatus::Failed) => Role::Failed,
    });
    let mut text = status_text(message, role, latest.status.is_finished());
    if let Some(progress) = latest
        .image_pull_progress
        .filter(|_| latest.status == JobStatus::Pulling)
    {
        text = text.push(" ").secondary(pull_progress(progress));
    }
    if let Some(seconds) = latest.inactivity_secs.filter(|seconds| verbose && *seconds > 0) {
        text = text.push(format!(" (inactive for {})", format::duration_long(seconds)));
    }
    text
}

/// `extracted/downloaded/total`, in MB or GB.
#[allow(clippy::cast_precision_loss)] // shown with at most two decimals
fn pull_progress(progress: ImagePullProgress) -> String {
    const GB: i64 = 1 << 30;
    let large = progress.total_bytes >= GB;
    let show = |bytes: i64| {
        if large {
            format!("{:.2}", bytes as f64 / GB as f64)
        } else {
            format!("{:.0}", bytes as f64 / (1 << 20) as f64)
        }
    };
    let at_least = if progress.is_total_bytes_final { "" } else { "≥" };
    let unit = if large { "GB" } else { "MB" };
    format!(
        "{}/{}/{at_least}{}{unit}",
        show(progress.extracted_bytes),
        show(progress.downloaded_bytes),
        show(progress.total_bytes)
    )
}

/// A mark for each probe of a running job, in groups of five.
fn probes(job: &Job, latest: &JobSubmission) -> Text {
    let mut text = Text::new();
    if latest.status != JobStatus::Running {
        return text;
    }
    for (index, (spec, probe)) in job.job_spec.probes.iter().zip(&latest.probes).enumerate() {
        if index > 0 && index % 5 == 0 {
            text = text.push(" ");
        }
        text = match probe.success_streak {
            streak if streak >= spec.ready_after => text.code("✓"),
            streak if streak > 0 => text.role(Role::Warning, "~"),
            _ => text.role(Role::Error, "×"),
        };
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn waiting(status: &str, job: Option<(&str, &str)>, run: Option<&str>) -> Vec<String> {
        let golden = include_bytes!("../../tests/data/run.json");
        let mut value: serde_json::Value = serde_json::from_slice(golden).unwrap();
        value["status"] = status.into();
        value["waiting_for"] = run.into();
        if let Some((status, reason)) = job {
            let submission = &mut value["jobs"][0]["job_submissions"][0];
            submission["status"] = status.into();
            submission["waiting_for"] = reason.into();
            submission["waiting_kind"] = match reason {
                "the commands to end" => WAITING_FOR_COMMANDS.into(),
                _ => serde_json::Value::Null,
            };
        }
        let run: Run = serde_json::from_value(value).unwrap();
        waits(&[run]).iter().map(Text::plain).collect()
    }

    #[test]
    fn a_run_between_two_attempts_is_not_shown_as_over() {
        let golden = include_bytes!("../../tests/data/run.json");
        let mut value: serde_json::Value = serde_json::from_slice(golden).unwrap();
        value["status"] = "pending".into();
        for submission in [
            &["jobs", "0", "job_submissions", "0"][..],
            &["latest_job_submission"],
        ] {
            let submission = value.pointer_mut(&format!("/{}", submission.join("/"))).unwrap();
            submission["status"] = "failed".into();
            submission["status_message"] = "exited (3)".into();
        }
        let run: Run = serde_json::from_value(value).unwrap();
        let lines = table(&[run], false, Dates::Ago, false).render(200);
        let shown: String = lines.iter().map(|line| line.plain() + "\n").collect();
        assert!(shown.contains("retrying") && !shown.contains("exited"), "{shown}");
    }

    #[test]
    fn what_waits_says_why() {
        assert_eq!(
            waiting(
                "submitted",
                Some(("submitted", "a place to run")),
                Some("its jobs")
            ),
            ["cli-task waits for a place to run"]
        );
        assert_eq!(
            waiting("pending", Some(("failed", "nothing")), Some("the next attempt")),
            ["cli-task waits for the next attempt"]
        );
        let probe = "its probe GET /health to succeed (last attempt: status 503)";
        assert_eq!(
            waiting("running", Some(("running", probe)), None),
            [format!("cli-task waits for {probe}")]
        );
        assert!(
            waiting(
                "running",
                Some(("running", "the commands to end")),
                Some("its jobs")
            )
            .is_empty()
        );
    }

    #[test]
    fn pull_progress_has_two_units() {
        let progress = |total, is_total_bytes_final| {
            pull_progress(ImagePullProgress {
                downloaded_bytes: 3 << 29,
                extracted_bytes: 1 << 20,
                total_bytes: total,
                is_total_bytes_final,
            })
        };
        assert_eq!(progress(2 << 30, true), "0.00/1.50/2.00GB");
        assert_eq!(progress(100 << 20, false), "1/1536/≥100MB");
    }
}
