//! Rows of runs, and the changes of status that they allow.

use std::collections::{BTreeMap, BTreeSet};

use dstack_model::runs::{JobStatus, RunSpec, RunStatus, RunTerminationReason, ServiceSpec};
use dstack_plan::lifecycle::transitions::run_allowed;
use dstack_plan::lifecycle::{Wait, WaitReason};
use dstack_plan::services::autoscaling::Scale;
use dstack_plan::services::rollout::state::{Phase, Rollout, same_groups};
use dstack_units::{FleetId, GatewayId, ProjectId, RepoRowId, RunId, Time, UserId};

use super::{JobRow, TransitionError, change_status, life};
use crate::entity::entity;
use crate::{Json, Sealed};

entity! {
    /// A run, as it is stored.
    RunRow in "runs" {
        /// Id.
        key id: RunId,
        /// Project.
        pub project_id: ProjectId,
        /// Who submitted it.
        pub user_id: UserId,
        /// Its repo, for code and credentials.
        pub repo_id: Option<RepoRowId>,
        /// Fleet that its first job was placed in; later jobs are placed only there.
        pub fleet_id: Option<FleetId>,
        /// Unique among the project's runs that are not deleted.
        pub run_name: String,
        /// When it was submitted.
        pub submitted_at: Time,
        /// Status.
        status: RunStatus,
        /// Why it ends or ended.
        termination_reason: Option<RunTerminationReason>,
        /// How often it went back to `pending` in a row: chooses the back-off.
        pub resubmission_attempt: i64,
        /// What was asked for, after validation.
        pub run_spec: Sealed<RunSpec>,
        /// URL and model of a service.
        pub service_spec: Option<Json<ServiceSpec>>,
        /// The gateway that it is published at; unset: requests go through the server.
        pub gateway_id: Option<GatewayId>,
        /// 0..=100, higher first.
        pub priority: i64,
        /// Grows with every in-place update.
        pub deployment_num: i64,
        /// Number of replicas that the run should have.
        pub desired_replica_count: i64,
        /// The same of each group that scales by its requests, and since when; `None`: no group does, or none has begun to.
        pub desired_replica_counts: Option<Json<BTreeMap<String, Scale>>>,
        /// A roll-out in which the new deployment stands beside the old one, or that was rolled back; `None`: there was none.
        pub rollout: Option<Json<Rollout>>,
        /// What was asked for before it.
        pub rollout_from: Option<Sealed<RunSpec>>,
        /// Next time of the schedule.
        pub next_triggered_at: Option<Time>,
        /// Deleted by the user; kept for history.
        pub deleted: bool,
        /// When the row was changed last.
        pub last_processed_at: Time,
        /// When the engine looks again by itself.
        next_wake_at: Option<Time>,
        /// When the present wait ends badly.
        deadline_at: Option<Time>,
        /// What it waits for, in words.
        waiting_for: Option<WaitReason>,
    }
}

/// What a new run is made of.
#[derive(Debug, Clone)]
pub struct NewRun {
    /// Id.
    pub id: RunId,
    /// Project.
    pub project_id: ProjectId,
    /// Who submits it.
    pub user_id: UserId,
    /// Repo of the run, for code and credentials.
    pub repo_id: Option<RepoRowId>,
    /// What is asked for, with a name.
    pub spec: RunSpec,
    /// First time of its schedule; unset: it starts at once.
    pub next_triggered_at: Option<Time>,
}

life!(RunRow, RunStatus);

impl RunRow {
    /// A new run. One with a schedule waits for its time, others for their jobs.
    pub fn new(new: NewRun, now: Time) -> Self {
        let scheduled = new.next_triggered_at.is_some();
        Self {
            id: new.id,
            project_id: new.project_id,
            user_id: new.user_id,
            repo_id: new.repo_id,
            fleet_id: None,
            run_name: new.spec.run_name.clone().unwrap_or_default(),
            submitted_at: now,
            status: if scheduled {
                RunStatus::Pending
            } else {
                RunStatus::Submitted
            },
            termination_reason: None,
            resubmission_attempt: 0,
            priority: new.spec.configuration.base().priority.unwrap_or(0),
            run_spec: Sealed::new(new.spec),
            service_spec: None,
            gateway_id: None,
            deployment_num: 0,
            desired_replica_count: 1,
            desired_replica_counts: None,
            rollout: None,
            rollout_from: None,
            next_triggered_at: new.next_triggered_at,
            deleted: false,
            last_processed_at: now,
            next_wake_at: Some(new.next_triggered_at.unwrap_or(now)),
            deadline_at: None,
            waiting_for: Some(if scheduled {
                WaitReason::Schedule
            } else {
                WaitReason::Jobs
            }),
            version: 0,
        }
    }

    /// Why it ends or ended.
    pub const fn termination_reason(&self) -> Option<RunTerminationReason> {
        self.termination_reason
    }

    fn go(&mut self, to: RunStatus) -> Result<(), TransitionError> {
        change_status(("run", &self.id), &mut self.status, to, run_allowed)
    }

    /// Another deployment follows: groups that scale are not scaled for a while.
    pub fn deploy(&mut self, now: Time) {
        self.deployment_num += 1;
        if let Some(scales) = self.desired_replica_counts.as_deref() {
            let deployed = |(group, scale): (&String, &Scale)| {
                let at = Some(now);
                (group.clone(), Scale { at, ..*scale })
            };
            self.desired_replica_counts = Some(Json::new(scales.iter().map(deployed).collect()));
        }
    }

    /// The roll-out that is under way.
    pub fn rollout_under_way(&self) -> Option<&Rollout> {
        self.rollout.as_deref().filter(|rollout| !rollout.phase.is_over())
    }

    /// Groups that the roll-out under way leaves as they are, as these jobs and the specifications tell: replicas that they get meanwhile
    /// are no part of what has yet to show what it is good for.
    pub fn kept_groups<'a>(&self, jobs: impl Iterator<Item = &'a JobRow> + Clone) -> BTreeSet<String> {
        let Some(rollout) = self.rollout_under_way() else {
            return BTreeSet::new();
        };
        let before = self.rollout_from.as_deref();
        let mut kept = before
            .map(|before| same_groups(before, &self.run_spec))
            .unwrap_or_default();
        let was_there = |job: &&JobRow| {
            job.deployment_num == rollout.deployment && !rollout.is_new(job.deployment_num, job.submitted_at)
        };
        kept.extend(
            jobs.clone()
                .filter(was_there)
                .map(|job| job.job_spec.replica_group.clone()),
        );
        kept.extend(rollout.kept.iter().cloned());
        let is_replaced = |job: &JobRow| {
            let lives = !job.status().is_finished() && job.status() != JobStatus::Terminating;
            lives && job.deployment_num < rollout.deployment
        };
        for job in jobs.filter(|job| is_replaced(job)) {
            kept.remove(&job.job_spec.replica_group);
        }
        kept
    }

    /// Remembers which groups the roll-out leaves as they are: once their replicas are made again, no job tells.
    pub fn keep_groups<'a>(&mut self, jobs: impl Iterator<Item = &'a JobRow> + Clone) {
        let kept = self.kept_groups(jobs);
        if let Some(rollout) = self.rollout_under_way().filter(|rollout| rollout.kept != kept) {
            let rollout = Rollout {
                kept,
                ..rollout.clone()
            };
            self.rollout = Some(Json::new(rollout));
        }
    }

    /// What replicas that are good for something were asked for by: beside those, a further deployment would stand.
    pub fn proven_spec(&self) -> &RunSpec {
        let unproven = self
            .rollout_under_way()
            .filter(|rollout| rollout.phase.is_unproven());
        let from = unproven.and(self.rollout_from.as_deref());
        from.unwrap_or(&self.run_spec)
    }

    /// The new deployment, which was just applied, stands beside the one of this specification from now on.
    pub fn begin_rollout(&mut self, rollout: Rollout, from: Sealed<RunSpec>) {
        self.rollout = Some(Json::new(rollout));
        self.rollout_from = Some(from);
    }

    /// The roll-out has come so far.
    pub fn enter_rollout(&mut self, phase: Phase, now: Time) {
        if let Some(rollout) = self.rollout.as_deref() {
            let mut rollout = rollout.clone();
            rollout.enter(phase, now);
            self.rollout = Some(Json::new(rollout));
        }
    }

    /// Nothing is left of the old deployment, or nothing is asked for but to replace it.
    pub fn end_rollout(&mut self) {
        self.rollout = None;
        self.rollout_from = None;
    }

    /// Asks for what was asked for before the roll-out, by a further deployment. `false`: there is nothing to go back to.
    pub fn roll_back(&mut self, reason: String, now: Time) -> bool {
        let (Some(rollout), Some(from)) = (self.rollout.clone(), self.rollout_from.take()) else {
            return false;
        };
        self.deploy(now);
        self.priority = from.configuration.base().priority.unwrap_or(0);
        // Made anew: what was read from another column would count as what stands in this one, and not be written.
        self.run_spec = Sealed::new(RunSpec::clone(&from));
        self.service_spec = rollout.service_spec.clone().map(Json::new);
        self.enter_rollout(Phase::RolledBack(reason), now);
        true
    }

    /// Follows its jobs.
    ///
    /// # Errors
    /// The status must not follow the present one; nothing is changed.
    pub fn follow_jobs(&mut self, status: RunStatus) -> Result<(), TransitionError> {
        self.go(status)?;
        self.wait(Wait::indefinite(WaitReason::Jobs));
        Ok(())
    }

    /// Goes back to waiting, for the next attempt.
    ///
    /// # Errors
    /// As [`RunRow::follow_jobs`].
    pub fn requeue(&mut self, attempt: i64) -> Result<(), TransitionError> {
        self.go(RunStatus::Pending)?;
        self.resubmission_attempt = attempt;
        self.fleet_id = None;
        self.wait(Wait::indefinite(WaitReason::LastAttemptEnded));
        Ok(())
    }

    /// Waits for the next time of its schedule, after an execution that has ended.
    ///
    /// # Errors
    /// As [`RunRow::follow_jobs`].
    pub fn reschedule(&mut self, next_triggered_at: Option<Time>) -> Result<(), TransitionError> {
        self.go(RunStatus::Pending)?;
        self.termination_reason = None;
        self.resubmission_attempt = 0;
        self.fleet_id = None;
        self.next_triggered_at = next_triggered_at;
        self.desired_replica_counts = None;
        self.end_rollout();
        self.wait(Wait::none());
        Ok(())
    }

    /// Begins to end: its jobs are ended next. The reason of one that is ending already may still change.
    ///
    /// # Errors
    /// As [`RunRow::follow_jobs`].
    pub fn terminate(&mut self, reason: RunTerminationReason, now: Time) -> Result<(), TransitionError> {
        self.go(RunStatus::Terminating)?;
        self.termination_reason = Some(reason);
        self.wait(Wait::briefly(now, WaitReason::JobsEnded));
        Ok(())
    }

    /// Sets the final status; nothing is waited for any more.
    ///
    /// # Errors
    /// As [`RunRow::follow_jobs`].
    pub fn finish(&mut self, status: RunStatus) -> Result<(), TransitionError> {
        self.go(status)?;
        self.wait(Wait::none());
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use dstack_model::decode::decode_strict;
    use serde_json::json;
    use uuid::Uuid;

    use super::*;
    use crate::RowKeys;
    use crate::entity::{RowColumn as _, Update};

    fn spec(command: &str) -> RunSpec {
        let service = json!({"type": "service", "port": 80, "commands": [command]});
        decode_strict(&json!({"run_name": "web", "repo_id": "r", "configuration": service})).unwrap()
    }

    /// As it comes out of the database.
    #[allow(clippy::disallowed_methods)] // nothing is stored
    fn read(command: &str) -> Sealed<RunSpec> {
        let keys = RowKeys::none();
        Sealed::from_stored(Sealed::new(spec(command)).to_stored(&keys), &keys).unwrap()
    }

    #[test]
    fn what_a_roll_out_goes_back_to_is_written() {
        let now = Time::from_millis(1_790_000_000_000);
        let new = NewRun {
            id: Uuid::from_u128(1).into(),
            project_id: Uuid::from_u128(2).into(),
            user_id: Uuid::from_u128(3).into(),
            repo_id: None,
            next_triggered_at: None,
            spec: spec("new"),
        };
        let mut run = RunRow::new(new, now);
        run.run_spec = read("new");
        run.begin_rollout(Rollout::begin((1, 0), now, now), read("old"));
        assert_eq!(Update::of(&run), Update::Small);
        assert!(run.roll_back("it fails".to_owned(), now));
        assert_eq!(*run.run_spec, spec("old"));
        assert_eq!(Update::of(&run), Update::All);
    }
}
