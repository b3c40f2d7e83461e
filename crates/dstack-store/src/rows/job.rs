//! Submissions of jobs.

use dstack_model::configurations::MountPoint;
use dstack_model::runs::{
    ImagePullProgress, JobProvisioningData, JobRuntimeData, JobSpec, JobStatus, JobTerminationReason,
};
use dstack_plan::lifecycle::transitions::job_allowed;
use dstack_plan::lifecycle::{Wait, WaitReason};
use dstack_plan::probes::ProbeStates;
use dstack_plan::services::registration::{Standing, gets_requests};
use dstack_units::{FleetId, InstanceId, JobId, ProjectId, RunId, Time};

use super::{InstanceRow, RunRow, TransitionError, change_status, life};
use crate::entity::entity;
use crate::{Json, Sealed};

entity! {
    /// One submission of a job.
    JobRow in "jobs" {
        /// Id: also the shim's task id and the key of everything made for it.
        key id: JobId,
        /// Project.
        pub project_id: ProjectId,
        /// Run.
        pub run_id: RunId,
        /// The run's name.
        pub run_name: String,
        /// Node number within the replica.
        pub job_num: i64,
        /// Number of the replica within the run.
        pub replica_num: i64,
        /// Attempt number of this node of this replica.
        pub submission_num: i64,
        /// `<run>-<job>-<replica>`.
        pub job_name: String,
        /// Deployment it belongs to.
        pub deployment_num: i64,
        /// When it was created.
        pub submitted_at: Time,
        /// When its commands were started.
        pub running_at: Option<Time>,
        /// When it reached a final status.
        pub finished_at: Option<Time>,
        /// Status.
        status: JobStatus,
        /// Why it ends or ended.
        termination_reason: Option<JobTerminationReason>,
        /// Details of the reason.
        termination_reason_message: Option<String>,
        /// Exit code of the commands.
        pub exit_status: Option<i64>,
        /// What to run.
        pub job_spec: Sealed<JobSpec>,
        /// Where it runs.
        pub job_provisioning_data: Option<Sealed<JobProvisioningData>>,
        /// Ports, share of the instance.
        pub job_runtime_data: Option<Json<JobRuntimeData>>,
        /// Fleet it was placed in.
        pub fleet_id: Option<FleetId>,
        /// Instance it occupies now.
        pub instance_id: Option<InstanceId>,
        /// Instance it occupied last: kept for history.
        pub used_instance_id: Option<InstanceId>,
        /// Everything the runner issued up to this time is stored (milliseconds).
        pub runner_timestamp: Option<i64>,
        /// Seconds without a connection.
        pub inactivity_secs: Option<i64>,
        /// Since when its agent cannot be reached.
        pub disconnected_at: Option<Time>,
        /// When the runner was asked to stop.
        pub stop_requested_at: Option<Time>,
        /// Until when the last output is waited for.
        pub remove_at: Option<Time>,
        /// When it began to end.
        pub ending_since: Option<Time>,
        /// Its probes have succeeded once, if it has any: it is ready for requests.
        pub ready: bool,
        /// It gets requests.
        pub registered: bool,
        /// How its probes went last; `None`: it does not run yet, or began to under a version that asked none.
        pub probes: Option<ProbeStates>,
        /// Bytes pulled so far.
        pub image_pull_progress: Option<Json<ImagePullProgress>>,
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

life!(JobRow, JobStatus);

impl JobRow {
    /// A job's first submission, waiting for a place to run.
    pub fn submitted(id: JobId, run: &RunRow, spec: Sealed<JobSpec>, now: Time) -> Self {
        Self {
            id,
            project_id: run.project_id,
            run_id: run.id,
            run_name: run.run_name.clone(),
            job_num: i64::from(spec.job_num),
            replica_num: i64::from(spec.replica_num),
            submission_num: 0,
            job_name: spec.job_name.clone(),
            deployment_num: run.deployment_num,
            submitted_at: now,
            running_at: None,
            finished_at: None,
            status: JobStatus::Submitted,
            termination_reason: None,
            termination_reason_message: None,
            exit_status: None,
            job_spec: spec,
            job_provisioning_data: None,
            job_runtime_data: None,
            fleet_id: None,
            instance_id: None,
            used_instance_id: None,
            runner_timestamp: None,
            inactivity_secs: None,
            disconnected_at: None,
            stop_requested_at: None,
            remove_at: None,
            ending_since: None,
            ready: false,
            registered: false,
            probes: None,
            image_pull_progress: None,
            last_processed_at: now,
            next_wake_at: Some(now),
            deadline_at: None,
            waiting_for: Some(WaitReason::Placement),
            version: 0,
        }
    }

    /// Why it ends or ended.
    pub const fn termination_reason(&self) -> Option<JobTerminationReason> {
        self.termination_reason
    }

    /// Details of the reason.
    pub fn termination_reason_message(&self) -> Option<&str> {
        self.termination_reason_message.as_deref()
    }

    fn go(&mut self, to: JobStatus) -> Result<(), TransitionError> {
        change_status(("job", &self.id), &mut self.status, to, job_allowed)
    }

    /// Whether it mounts network volumes.
    pub fn mounts_volumes(&self) -> bool {
        let mut mounts = self.job_spec.volumes.iter().flatten();
        mounts.any(|mount| matches!(mount, MountPoint::Volume(_)))
    }

    /// Mounts these network volumes, by name: one for each of its mount points, in their order.
    pub fn mount(&mut self, volumes: Vec<String>) {
        if let Some(runtime) = &self.job_runtime_data {
            self.job_runtime_data = Some(Json::new(JobRuntimeData {
                volume_names: Some(volumes).filter(|names| !names.is_empty()),
                ..JobRuntimeData::clone(runtime)
            }));
        }
    }

    /// Gets an instance that is still to be made. It stays `submitted` until then.
    pub fn reserve(&mut self, instance: &InstanceRow) {
        self.instance_id = Some(instance.id);
        self.waiting_for = Some(WaitReason::NewInstance {
            instance: instance.name.clone(),
        });
    }

    /// Gets a share of an instance: its agent is called next.
    ///
    /// # Errors
    /// The status must not follow the present one; nothing is changed.
    pub fn assign(
        &mut self,
        instance: &InstanceRow,
        fleet: FleetId,
        runtime: JobRuntimeData,
        now: Time,
    ) -> Result<(), TransitionError> {
        self.go(JobStatus::Provisioning)?;
        self.instance_id = Some(instance.id);
        self.used_instance_id = Some(instance.id);
        self.fleet_id = Some(fleet);
        self.job_provisioning_data
            .clone_from(&instance.job_provisioning_data);
        self.job_runtime_data = Some(Json::new(runtime));
        self.last_processed_at = now;
        self.wait(Wait::briefly(
            now,
            WaitReason::TaskAccepted {
                instance: instance.name.clone(),
                error: None,
            },
        ));
        Ok(())
    }

    /// Goes on to the next status of a job that is well.
    ///
    /// # Errors
    /// As [`JobRow::assign`].
    pub fn advance(&mut self, to: JobStatus, now: Time) -> Result<(), TransitionError> {
        self.go(to)?;
        if to == JobStatus::Running {
            self.running_at = Some(now);
        }
        self.wait(Wait::none().or_at(now));
        Ok(())
    }

    /// Begins to end.
    ///
    /// # Errors
    /// As [`JobRow::assign`].
    pub fn terminate(
        &mut self,
        reason: JobTerminationReason,
        message: Option<String>,
        now: Time,
    ) -> Result<(), TransitionError> {
        self.go(JobStatus::Terminating)?;
        self.termination_reason = Some(reason);
        self.termination_reason_message = message;
        self.ending_since = Some(now);
        self.registered = false;
        self.wait(Wait::briefly(now, WaitReason::JobEnded));
        Ok(())
    }

    /// Is over: its share of the instance is free.
    ///
    /// # Errors
    /// As [`JobRow::assign`].
    pub fn finish(&mut self, status: JobStatus, now: Time) -> Result<(), TransitionError> {
        self.go(status)?;
        self.finished_at = Some(now);
        self.registered = false;
        self.instance_id = None;
        self.wait(Wait::none());
        Ok(())
    }

    /// Is over for the user. Its share of the instance stays taken, since something of it may still run there.
    ///
    /// # Errors
    /// As [`JobRow::assign`].
    pub fn abandon(&mut self, status: JobStatus, now: Time) -> Result<(), TransitionError> {
        let instance = self.instance_id;
        self.finish(status, now)?;
        self.instance_id = instance;
        Ok(())
    }

    /// Gives back its share of the instance, if it was abandoned there.
    pub fn leave_instance(&mut self) {
        if self.status.is_finished() {
            self.instance_id = None;
        }
    }

    /// How it stands with the requests to its service; `None`: none go to it, whatever its probes say.
    pub fn standing(&self, run: &RunRow) -> Option<Standing> {
        let service = run.run_spec.configuration.service()?;
        let is_asked = gets_requests(service, &self.job_spec.replica_group, self.job_num);
        (is_asked && self.status == JobStatus::Running).then(|| Standing {
            ready: self.ready,
            registered: self.registered,
            failing: self.probes.as_ref().is_some_and(ProbeStates::are_failing),
        })
    }

    /// Whether it may begin to end.
    pub const fn may_terminate(&self) -> bool {
        job_allowed(self.status, JobStatus::Terminating)
    }
}
