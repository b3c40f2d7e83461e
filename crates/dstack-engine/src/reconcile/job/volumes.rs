//! The network volumes of a job: what it waits for, and what it gives back.

use dstack_model::runs::{JobStatus, JobTerminationReason};
use dstack_plan::lifecycle::WaitReason;
use dstack_plan::lifecycle::attachment::{AttachmentStatus, forced_from};
use dstack_plan::lifecycle::job::Volumes;
use dstack_store::rows::{AttachmentRow, JobRow};
use dstack_store::{Changes, JobSnapshot};
use dstack_units::Time;

use crate::Result;

/// How far they are. What a container was made with needs nothing.
pub(super) fn facts(snapshot: &JobSnapshot) -> Volumes {
    let rows: Vec<&AttachmentRow> = snapshot
        .attachments
        .iter()
        .filter(|row| !row.handed_over)
        .collect();
    let of_status = |status: AttachmentStatus| rows.iter().find(move |row| row.status() == status);
    let failed = rows.iter().find_map(|row| Some((row, row.status_message()?)));
    if let Some((row, message)) = failed {
        return Volumes::Failed(format!("{}: {message}", row.name));
    }
    if is_missing(snapshot) {
        return Volumes::Failed("it was not attached in time".to_owned());
    }
    if let Some(row) = of_status(AttachmentStatus::Attaching) {
        return Volumes::Attaching(awaited(
            row,
            WaitReason::VolumeAttached {
                volume: row.name.clone(),
                instance: row.instance_name.clone(),
                error: None,
            },
        ));
    }
    if of_status(AttachmentStatus::Attached).is_some() {
        return Volumes::Attached;
    }
    let detaching = of_status(AttachmentStatus::Detaching);
    match detaching.and_then(|row| Some((row, row.detaching_since?))) {
        Some((row, since)) => {
            let reason = WaitReason::VolumeDetached {
                volume: row.name.clone(),
                instance: row.instance_name.clone(),
                error: None,
            };
            Volumes::Detaching(awaited(row, reason), since)
        }
        None => Volumes::Settled,
    }
}

fn awaited(row: &AttachmentRow, otherwise: WaitReason) -> WaitReason {
    row.waiting_for().cloned().unwrap_or(otherwise)
}

/// Whether a job that is to start has lost one, of which nothing is left.
fn is_missing(snapshot: &JobSnapshot) -> bool {
    let names = snapshot
        .job
        .job_runtime_data
        .as_ref()
        .and_then(|data| data.volume_names.as_ref());
    let is_there = |name: &String| snapshot.attachments.iter().any(|row| row.name == *name);
    let is_starting = snapshot.job.status() == JobStatus::Provisioning;
    is_starting && names.is_some_and(|names| !names.iter().all(is_there))
}

/// Rows of attachments as they shall be.
#[derive(Debug, Default)]
pub(super) struct Change {
    /// Each as it was, and as it shall be.
    updated: Vec<(AttachmentRow, AttachmentRow)>,
    /// Of these the job has taken note.
    removed: Vec<AttachmentRow>,
}

impl Change {
    pub(super) fn add_to(self, changes: &mut Changes) {
        for (before, after) in self.updated {
            changes.update(&before, after);
        }
        for row in self.removed {
            changes.remove_silently(row);
        }
    }
}

/// Nothing of the job runs any more: its volumes are detached.
pub(super) fn detached(snapshot: &JobSnapshot, job: &JobRow, now: Time) -> Result<Change> {
    let stop_duration = job.job_spec.stop_duration;
    let stop_duration = stop_duration.and_then(|seconds| u64::try_from(seconds).ok());
    let is_aborted = job.termination_reason() == Some(JobTerminationReason::AbortedByUser);
    let forced_from = forced_from(now, stop_duration, is_aborted);
    let mut change = Change::default();
    for before in snapshot.attachments.iter().filter(|row| row.is_wanted()) {
        let mut row = before.clone();
        row.detach(forced_from, now)?;
        change.updated.push((before.clone(), row));
    }
    Ok(change)
}

/// The job is over: what it still has is detached, and nobody else takes note of what has failed.
pub(super) fn left(snapshot: &JobSnapshot, job: &JobRow, now: Time) -> Result<Change> {
    let mut change = detached(snapshot, job, now)?;
    let failed = |row: &&AttachmentRow| row.status() == AttachmentStatus::Failed;
    change.removed = snapshot.attachments.iter().filter(failed).cloned().collect();
    Ok(change)
}
