//! A run: its status follows from its jobs (dstack 0.22.5: pipelines §3).

use dstack_model::runs::{JobStatus, JobTerminationReason, RunStatus, RunTerminationReason};
use dstack_units::Time;

use super::WaitReason;
use super::retry::{RetryFacts, Verdict, backoff, judge};

/// The latest submission of one job of a replica.
#[derive(Debug, Clone)]
pub struct JobFacts<'a> {
    /// Number of the replica within the run.
    pub replica_num: i64,
    /// Number of the node within its replica.
    pub job_num: i64,
    /// Status.
    pub status: JobStatus,
    /// Why it ends or ended.
    pub reason: Option<JobTerminationReason>,
    /// It ended or ends, and what becomes of it does not matter any more: a later deployment is wanted, or others were started since.
    pub superseded: bool,
    /// When it changed last.
    pub changed_at: Time,
    /// Submissions in a row, this one included, that ended as this one did.
    pub in_a_row: i64,
    /// What its retry depends on.
    pub retry: RetryFacts<'a>,
}

/// All that is known of a run.
#[derive(Debug, Clone)]
pub struct Facts<'a> {
    /// Status of the run before the decision.
    pub status: RunStatus,
    /// Why it ends.
    pub termination_reason: Option<RunTerminationReason>,
    /// Attempts in a row that got no capacity.
    pub resubmission_attempt: i64,
    /// When its jobs changed last.
    pub jobs_changed_at: Time,
    /// `stop_criteria: master-done`.
    pub master_done_ends: bool,
    /// Its replicas serve independently of each other.
    pub service: bool,
    /// It is a service that may have no replicas until requests come.
    pub may_rest: bool,
    /// It has a schedule.
    pub scheduled: bool,
    /// Next time of the schedule.
    pub next_triggered_at: Option<Time>,
    /// The latest submission of each job of the run.
    pub jobs: Vec<JobFacts<'a>>,
}

/// What to do next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Decision {
    /// Nothing changes; look again at this time.
    Stay {
        /// For a retry back-off or a schedule.
        wake_at: Option<Time>,
        /// What is waited for.
        waiting_for: Option<WaitReason>,
    },
    /// The run follows its jobs.
    Follow {
        /// New status (may be the present one).
        status: RunStatus,
        /// Replicas that get a new submission for each of their jobs.
        retry_replicas: Vec<i64>,
        /// When a replica of a service that got no capacity is due for its next submission.
        retry_at: Option<Time>,
    },
    /// Go back to waiting: every living job of these replicas ends, and the run is tried again later.
    Requeue {
        /// Number of this attempt.
        attempt: i64,
    },
    /// The back-off or the schedule is over: new submissions for all replicas.
    Resubmit,
    /// Begin to end.
    Terminate(RunTerminationReason),
    /// Every job that is not ending yet must end for this reason.
    EndJobs(JobTerminationReason),
    /// All jobs are final.
    Finish(RunStatus),
    /// All jobs are final, and the schedule brings the next execution.
    Reschedule,
}

/// Decides about a run.
pub fn decide(facts: &Facts<'_>, now: Time) -> Decision {
    match facts.status {
        RunStatus::Pending => pending(facts, now),
        RunStatus::Submitted | RunStatus::Provisioning | RunStatus::Running => active(facts, now),
        RunStatus::Terminating => terminating(facts),
        RunStatus::Terminated | RunStatus::Failed | RunStatus::Done => Decision::Stay {
            wake_at: None,
            waiting_for: None,
        },
    }
}

fn pending(facts: &Facts<'_>, now: Time) -> Decision {
    let (at, waiting_for) = if facts.resubmission_attempt > 0 {
        (
            facts.jobs_changed_at + backoff(facts.resubmission_attempt),
            WaitReason::NextAttempt,
        )
    } else {
        match facts.next_triggered_at {
            Some(at) => (at, WaitReason::Schedule),
            None => return Decision::Resubmit,
        }
    };
    // Jobs of the attempt before must be gone first.
    if facts.jobs.iter().any(|job| !job.status.is_finished()) {
        return Decision::Stay {
            wake_at: None,
            waiting_for: Some(WaitReason::LastAttemptEnded),
        };
    }
    if now >= at {
        Decision::Resubmit
    } else {
        Decision::Stay {
            wake_at: Some(at),
            waiting_for: Some(waiting_for),
        }
    }
}

/// Whether a job is not wanted any more.
fn is_scaled_down(job: &JobFacts<'_>) -> bool {
    job.reason == Some(JobTerminationReason::ScaledDown)
}

/// Whether a job had ended by itself when another one was not wanted any more: the service went on without it.
fn ended_before(job: &JobFacts<'_>, scaled_down_at: Option<Time>) -> bool {
    job.status.is_finished() && scaled_down_at.is_some_and(|at| job.changed_at <= at)
}

/// A service that is to have no replicas at the moment. It waits until it is to have some, which is at once if it is so already.
fn without_replicas(facts: &Facts<'_>) -> Decision {
    match facts.jobs.iter().all(|job| job.status.is_finished()) {
        true => Decision::Requeue { attempt: 0 },
        // Others may be started meanwhile.
        false => Decision::Follow {
            status: facts.status,
            retry_replicas: Vec::new(),
            retry_at: None,
        },
    }
}

/// A service that may rest, whose replicas find no place while nothing serves: it is tried again later, if it is still wanted then.
fn without_place(facts: &Facts<'_>) -> Decision {
    match facts.jobs.iter().all(|job| job.status.is_finished()) {
        true => Decision::Requeue {
            attempt: facts.resubmission_attempt + 1,
        },
        // The place of one that ends may be the one that is missing; it may also take long to end.
        false => Decision::Follow {
            status: facts.status,
            retry_replicas: Vec::new(),
            retry_at: None,
        },
    }
}

/// What the jobs of a run add up to.
#[derive(Debug, Default)]
struct Tally {
    job_failed: bool,
    retries_exhausted: bool,
    running: bool,
    provisioning: bool,
    submitted: bool,
    done: bool,
    /// Some found no place, which is no failure.
    no_place: bool,
    retry_replicas: Vec<i64>,
    /// When the first of the replicas is due that are to be retried, but not yet.
    retry_at: Option<Time>,
}

fn active(facts: &Facts<'_>, now: Time) -> Decision {
    let scaled_down = facts.jobs.iter().filter(|job| is_scaled_down(job));
    let scaled_down_at = scaled_down.map(|job| job.changed_at).max();
    let is_unwanted =
        |job: &JobFacts<'_>| job.superseded || is_scaled_down(job) || ended_before(job, scaled_down_at);
    if facts.service && facts.jobs.iter().all(is_unwanted) {
        return without_replicas(facts);
    }
    let tally = tally(facts, now);
    let master_done = || {
        facts
            .jobs
            .iter()
            .any(|job| job.job_num == 0 && job.replica_num == 0 && job.status == JobStatus::Done)
    };
    // A replica that failed costs no other one: dstack 0.22.5 ends the whole service.
    let others_serve = facts.service && tally.running;
    if tally.job_failed && !others_serve {
        return Decision::Terminate(RunTerminationReason::JobFailed);
    }
    if tally.retries_exhausted && !others_serve {
        return Decision::Terminate(RunTerminationReason::RetryLimitExceeded);
    }
    if facts.master_done_ends && master_done() {
        return Decision::Terminate(RunTerminationReason::AllJobsDone);
    }
    let lives = tally.running || tally.provisioning || tally.submitted;
    if tally.no_place && !lives && tally.retry_replicas.is_empty() && tally.retry_at.is_none() {
        return without_place(facts);
    }
    let status = if tally.running {
        RunStatus::Running
    } else if tally.provisioning {
        RunStatus::Provisioning
    } else if tally.submitted {
        RunStatus::Submitted
    } else if tally.done && tally.retry_replicas.is_empty() && tally.retry_at.is_none() {
        return Decision::Terminate(RunTerminationReason::AllJobsDone);
    } else {
        return Decision::Requeue {
            attempt: facts.resubmission_attempt + 1,
        };
    };
    Decision::Follow {
        status,
        retry_replicas: tally.retry_replicas,
        retry_at: tally.retry_at,
    }
}

fn tally(facts: &Facts<'_>, now: Time) -> Tally {
    let mut total = Tally::default();
    let mut replicas: Vec<i64> = facts.jobs.iter().map(|job| job.replica_num).collect();
    replicas.sort_unstable();
    replicas.dedup();
    for replica in replicas {
        let mut own = Tally::default();
        for job in facts.jobs.iter().filter(|job| job.replica_num == replica) {
            count(&mut own, facts, job, now);
        }
        // A failed replica counts only as failed, one to be retried only as that.
        if own.job_failed || own.retries_exhausted {
            total.job_failed |= own.job_failed;
            total.retries_exhausted |= own.retries_exhausted;
        } else if !own.retry_replicas.is_empty() {
            let of_replica = facts.jobs.iter().filter(|job| job.replica_num == replica);
            match of_replica.filter_map(|job| held_until(facts, job, now)).max() {
                Some(at) => total.retry_at = Some(total.retry_at.map_or(at, |first| first.min(at))),
                None => total.retry_replicas.push(replica),
            }
        } else {
            total.running |= own.running;
            total.provisioning |= own.provisioning;
            total.submitted |= own.submitted;
            total.done |= own.done;
            total.no_place |= own.no_place;
        }
    }
    total
}

/// Until when a job of a service is not submitted again that got no capacity: the others serve meanwhile, so that the run does
/// not go back to waiting as a whole.
fn held_until(facts: &Facts<'_>, job: &JobFacts<'_>, now: Time) -> Option<Time> {
    let until = job.changed_at + backoff(job.in_a_row);
    (facts.service && found_no_place(job) && now < until).then_some(until)
}

fn found_no_place(job: &JobFacts<'_>) -> bool {
    job.reason == Some(JobTerminationReason::FailedToStartDueToNoCapacity)
}

fn count(tally: &mut Tally, facts: &Facts<'_>, job: &JobFacts<'_>, now: Time) {
    let ending = job.status == JobStatus::Terminating;
    match job.status {
        _ if job.superseded => {}
        JobStatus::Done => tally.done = true,
        _ if ending && job.reason == Some(JobTerminationReason::DoneByRunner) => tally.done = true,
        _ if job.reason == Some(JobTerminationReason::ScaledDown) => {}
        JobStatus::Running => tally.running = true,
        JobStatus::Provisioning | JobStatus::Pulling => tally.provisioning = true,
        JobStatus::Submitted => tally.submitted = true,
        _ if facts.may_rest && found_no_place(job) => tally.no_place = true,
        JobStatus::Terminating | JobStatus::Terminated | JobStatus::Aborted | JobStatus::Failed => {
            match judge(&job.retry, now) {
                Verdict::NotRetryable => tally.job_failed = true,
                Verdict::Exhausted => tally.retries_exhausted = true,
                Verdict::Retry => tally.retry_replicas.push(job.replica_num),
            }
        }
    }
}

fn terminating(facts: &Facts<'_>) -> Decision {
    let reason = facts
        .termination_reason
        .unwrap_or(RunTerminationReason::ServerError);
    let alive = |job: &JobFacts<'_>| !job.status.is_finished() && job.status != JobStatus::Terminating;
    if facts.jobs.iter().any(alive) {
        return Decision::EndJobs(reason.job_reason());
    }
    if facts.jobs.iter().any(|job| !job.status.is_finished()) {
        return Decision::Stay {
            wake_at: None,
            waiting_for: Some(WaitReason::JobsEnded),
        };
    }
    let by_user = matches!(
        reason,
        RunTerminationReason::StoppedByUser | RunTerminationReason::AbortedByUser
    );
    if facts.scheduled && !by_user {
        Decision::Reschedule
    } else {
        Decision::Finish(reason.status())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const NOW: Time = Time::from_millis(1_790_000_000_000);

    fn job(status: JobStatus, reason: JobTerminationReason) -> JobFacts<'static> {
        JobFacts {
            replica_num: 0,
            job_num: 0,
            status,
            reason: Some(reason),
            superseded: false,
            changed_at: NOW,
            in_a_row: 1,
            retry: RetryFacts {
                retry: None,
                reason: Some(reason),
                run_started_at: NOW,
                last_provisioned_at: None,
            },
        }
    }

    fn facts(jobs: Vec<JobFacts<'_>>) -> Facts<'_> {
        Facts {
            status: RunStatus::Running,
            termination_reason: None,
            resubmission_attempt: 3,
            jobs_changed_at: NOW,
            master_done_ends: false,
            service: true,
            may_rest: false,
            scheduled: false,
            next_triggered_at: None,
            jobs,
        }
    }

    fn decided(jobs: Vec<JobFacts<'_>>) -> Decision {
        decide(&facts(jobs), NOW)
    }

    #[test]
    fn a_service_whose_replicas_are_not_wanted_waits_for_new_ones_and_has_not_failed() {
        let scaled_down = |status| job(status, JobTerminationReason::ScaledDown);
        let ended = Decision::Requeue { attempt: 0 };
        assert_eq!(decided(vec![]), ended);
        assert_eq!(decided(vec![scaled_down(JobStatus::Terminated)]), ended);
        // New ones may start before the last one has ended.
        let ending = Decision::Follow {
            status: RunStatus::Running,
            retry_replicas: vec![],
            retry_at: None,
        };
        assert_eq!(decided(vec![scaled_down(JobStatus::Terminating)]), ending);
        // One that failed while others served does not matter, the last one does.
        let failed = job(JobStatus::Failed, JobTerminationReason::ContainerExitedWithError);
        let before = JobFacts {
            changed_at: NOW - Duration::from_secs(1),
            ..failed.clone()
        };
        assert_eq!(decided(vec![scaled_down(JobStatus::Terminated), before]), ended);
        let after = JobFacts {
            changed_at: NOW + Duration::from_secs(1),
            ..failed
        };
        assert_eq!(
            decided(vec![scaled_down(JobStatus::Terminated), after]),
            Decision::Terminate(RunTerminationReason::JobFailed)
        );
    }

    #[test]
    fn a_service_that_may_rest_finds_no_place_and_has_not_failed() {
        let refused = |status| job(status, JobTerminationReason::FailedToStartDueToNoCapacity);
        let decide = |may_rest, jobs: Vec<JobFacts<'_>>| {
            let facts = Facts {
                may_rest,
                ..facts(jobs)
            };
            decide(&facts, NOW)
        };
        let later = Decision::Requeue { attempt: 4 };
        assert_eq!(decide(true, vec![refused(JobStatus::Failed)]), later);
        assert_eq!(
            decide(false, vec![refused(JobStatus::Failed)]),
            Decision::Terminate(RunTerminationReason::JobFailed)
        );
        let goes_on = Decision::Follow {
            status: RunStatus::Running,
            retry_replicas: vec![],
            retry_at: None,
        };
        assert_eq!(decide(true, vec![refused(JobStatus::Terminating)]), goes_on);
        // The last one still has requests.
        let ending = JobFacts {
            changed_at: NOW - Duration::from_secs(1),
            ..job(JobStatus::Terminating, JobTerminationReason::ScaledDown)
        };
        assert_eq!(decide(true, vec![refused(JobStatus::Failed), ending]), goes_on);
        let failed = job(JobStatus::Failed, JobTerminationReason::ContainerExitedWithError);
        assert_eq!(
            decide(true, vec![refused(JobStatus::Failed), failed]),
            Decision::Terminate(RunTerminationReason::JobFailed)
        );
    }
}
