//! The engine's entities: one struct per table.

use dstack_model::fleets::{Blocks, FleetSpec, FleetStatus};
use dstack_model::health::HealthStatus;
use dstack_model::instances::{InstanceStatus, InstanceTerminationReason};
use dstack_model::offers::InstanceOfferWithAvailability;
use dstack_model::runs::{
    ImagePullProgress, JobProvisioningData, JobRuntimeData, JobSpec, JobStatus, JobTerminationReason,
    RunSpec, RunStatus, RunTerminationReason, ServiceSpec,
};
use dstack_units::{FleetId, InstanceId, JobId, OperationId, ProjectId, RepoRowId, RunId, Time, UserId};
use serde::{Deserialize, Serialize};

use crate::Json;
use crate::entity::entity;

crate::text_columns!(
    FleetStatus,
    HealthStatus,
    InstanceStatus,
    InstanceTerminationReason,
    JobStatus,
    JobTerminationReason,
    RunStatus,
    RunTerminationReason,
    OperationKind,
    OperationState,
);

entity! {
    /// A run.
    RunRow in "runs" {
        /// Id.
        key id: RunId,
        /// Project.
        project_id: ProjectId,
        /// Who submitted it.
        user_id: UserId,
        /// Its repo, for code and credentials.
        repo_id: Option<RepoRowId>,
        /// Fleet that its first job was placed in; later jobs are placed only there.
        fleet_id: Option<FleetId>,
        /// Unique among the project's runs that are not deleted.
        run_name: String,
        /// When it was submitted.
        submitted_at: Time,
        /// Status.
        status: RunStatus,
        /// Why it ends or ended.
        termination_reason: Option<RunTerminationReason>,
        /// How often it went back to `pending` in a row: chooses the back-off.
        resubmission_attempt: i64,
        /// What was asked for, after validation.
        run_spec: Json<RunSpec>,
        /// URL and model of a service.
        service_spec: Option<Json<ServiceSpec>>,
        /// 0..=100, higher first.
        priority: i64,
        /// Grows with every in-place update.
        deployment_num: i64,
        /// Replicas wanted.
        desired_replica_count: i64,
        /// Next time of the schedule.
        next_triggered_at: Option<Time>,
        /// Deleted by the user; kept for history.
        deleted: bool,
        /// Last change.
        last_processed_at: Time,
        /// When the engine looks again by itself.
        next_wake_at: Option<Time>,
        /// When the present wait ends badly.
        deadline_at: Option<Time>,
        /// What it waits for, in words.
        waiting_for: Option<String>,
    }
}

entity! {
    /// One submission of a job.
    JobRow in "jobs" {
        /// Id: also the shim's task id and the key of everything made for it.
        key id: JobId,
        /// Project.
        project_id: ProjectId,
        /// Run.
        run_id: RunId,
        /// The run's name.
        run_name: String,
        /// Node number within the replica.
        job_num: i64,
        /// Replica number.
        replica_num: i64,
        /// Attempt number of this node of this replica.
        submission_num: i64,
        /// `<run>-<job>-<replica>`.
        job_name: String,
        /// Deployment it belongs to.
        deployment_num: i64,
        /// When it was created.
        submitted_at: Time,
        /// When its commands were started.
        running_at: Option<Time>,
        /// When it reached a final status.
        finished_at: Option<Time>,
        /// Status.
        status: JobStatus,
        /// Why it ends or ended.
        termination_reason: Option<JobTerminationReason>,
        /// Details of the reason.
        termination_reason_message: Option<String>,
        /// Exit code of the commands.
        exit_status: Option<i64>,
        /// What to run.
        job_spec: Json<JobSpec>,
        /// Where it runs.
        job_provisioning_data: Option<Json<JobProvisioningData>>,
        /// Ports, share of the instance.
        job_runtime_data: Option<Json<JobRuntimeData>>,
        /// Fleet it was placed in.
        fleet_id: Option<FleetId>,
        /// Instance it occupies now.
        instance_id: Option<InstanceId>,
        /// Instance it occupied last: kept for history.
        used_instance_id: Option<InstanceId>,
        /// Everything the runner issued up to this time is stored (milliseconds).
        runner_timestamp: Option<i64>,
        /// Seconds without a connection.
        inactivity_secs: Option<i64>,
        /// Since when its agent cannot be reached.
        disconnected_at: Option<Time>,
        /// When the runner was asked to stop.
        stop_requested_at: Option<Time>,
        /// Until when the last output is waited for.
        remove_at: Option<Time>,
        /// Ready for requests.
        ready: bool,
        /// Registered for requests.
        registered: bool,
        /// Bytes pulled so far.
        image_pull_progress: Option<Json<ImagePullProgress>>,
        /// Last change.
        last_processed_at: Time,
        /// When the engine looks again by itself.
        next_wake_at: Option<Time>,
        /// When the present wait ends badly.
        deadline_at: Option<Time>,
        /// What it waits for, in words.
        waiting_for: Option<String>,
    }
}

/// How to reach the agents of an instance.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum AgentAddress {
    /// The shim that this server runs on its own machine.
    Local {
        /// How jobs are run there: `docker` or `process`.
        runtime: String,
        /// The machine, by the name of the server that runs on it: no other server reaches its agents.
        #[serde(default)]
        host: String,
    },
}

entity! {
    /// An instance.
    InstanceRow in "instances" {
        /// Id.
        key id: InstanceId,
        /// Project.
        project_id: ProjectId,
        /// Fleet.
        fleet_id: Option<FleetId>,
        /// `<fleet>-<num>`.
        name: String,
        /// Number within the fleet.
        instance_num: i64,
        /// When it was created.
        created_at: Time,
        /// When its creation was started.
        started_at: Option<Time>,
        /// When it ended.
        finished_at: Option<Time>,
        /// Status.
        status: InstanceStatus,
        /// Its agent cannot be reached.
        unreachable: bool,
        /// Health of its GPUs.
        health: HealthStatus,
        /// Why it ends or ended.
        termination_reason: Option<InstanceTerminationReason>,
        /// Details of the reason.
        termination_reason_message: Option<String>,
        /// Backend type.
        backend: Option<String>,
        /// Region.
        region: Option<String>,
        /// Dollars per hour.
        price: Option<f64>,
        /// What it offers.
        offer: Option<Json<InstanceOfferWithAvailability>>,
        /// Where it is.
        job_provisioning_data: Option<Json<JobProvisioningData>>,
        /// How its agents are reached.
        agent: Option<Json<AgentAddress>>,
        /// Blocks it is divided into.
        total_blocks: Option<i64>,
        /// Blocks taken by jobs.
        busy_blocks: i64,
        /// When a job left it last.
        last_job_processed_at: Option<Time>,
        /// Gone; kept for history.
        deleted: bool,
        /// When.
        deleted_at: Option<Time>,
        /// Last change.
        last_processed_at: Time,
        /// When the engine looks again by itself.
        next_wake_at: Option<Time>,
        /// When the present wait ends badly.
        deadline_at: Option<Time>,
        /// What it waits for, in words.
        waiting_for: Option<String>,
    }
}

entity! {
    /// A fleet.
    FleetRow in "fleets" {
        /// Id.
        key id: FleetId,
        /// Project.
        project_id: ProjectId,
        /// Unique among the project's fleets that are not deleted.
        name: String,
        /// When it was created.
        created_at: Time,
        /// Status.
        status: FleetStatus,
        /// Details of the status.
        status_message: Option<String>,
        /// What was asked for.
        spec: Json<FleetSpec>,
        /// The fleet of this very machine, kept by the server itself.
        local: bool,
        /// The first instance of a cluster: the others are made beside it.
        current_master_instance_id: Option<InstanceId>,
        /// Attempts in a row to get the fleet to its size.
        consolidation_attempt: i64,
        /// When the last of them was, or was found to be needless.
        last_consolidated_at: Option<Time>,
        /// Deleted; kept for history.
        deleted: bool,
        /// When.
        deleted_at: Option<Time>,
        /// Last change.
        last_processed_at: Time,
        /// When the engine looks again by itself.
        next_wake_at: Option<Time>,
        /// When the present wait ends badly.
        deadline_at: Option<Time>,
        /// What it waits for, in words.
        waiting_for: Option<String>,
    }
}

/// What an operation does. Every kind may be repeated: agents recognise the id of the job, clouds that of the instance.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum OperationKind {
    /// Hand the task to the shim.
    SubmitTask,
    /// Hand job, code and files to the runner and start the commands.
    StartJob,
    /// Ask the runner to end the commands.
    StopJob,
    /// End the container and remove everything of the task.
    RemoveTask,
    /// Have a cloud make the instance.
    CreateInstance,
    /// Have the cloud end it.
    TerminateInstance,
}

/// How far an operation is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum OperationState {
    /// Written down; the call may or may not have been made: it is made (again).
    Intended,
    /// The other side confirmed.
    Done,
    /// Refused for good.
    Failed,
}

entity! {
    /// A call to the outside, written down before it is made.
    OperationRow in "operations" {
        /// Id.
        key id: OperationId,
        /// Idempotency key: `<job or instance id>:<kind>`.
        key: String,
        /// What it does.
        kind: OperationKind,
        /// For which job; unset: for the instance itself.
        job_id: Option<JobId>,
        /// On which instance.
        instance_id: Option<InstanceId>,
        /// How far it is.
        state: OperationState,
        /// Calls that failed so far.
        attempt: i64,
        /// When it was intended.
        created_at: Time,
        /// When the next call may be made.
        next_attempt_at: Option<Time>,
        /// What the last failed call said.
        error: Option<String>,
        /// What the call brought back; of one that is made of several, how far they are.
        result: Option<Json<serde_json::Value>>,
    }
}

impl OperationRow {
    /// About to be written down; `subject` is the id of the job or instance that it is for.
    pub fn intended(id: OperationId, subject: &str, kind: OperationKind, now: Time) -> Self {
        Self {
            id,
            key: format!("{subject}:{}", crate::Column::to_raw(&kind)),
            kind,
            job_id: None,
            instance_id: None,
            state: OperationState::Intended,
            attempt: 0,
            created_at: now,
            next_attempt_at: None,
            error: None,
            result: None,
            version: 0,
        }
    }
}

impl FleetRow {
    /// A new fleet, ready for instances.
    pub fn active(id: FleetId, project: ProjectId, name: String, spec: FleetSpec, now: Time) -> Self {
        Self {
            id,
            project_id: project,
            name,
            created_at: now,
            status: FleetStatus::Active,
            status_message: None,
            spec: Json::new(spec),
            local: false,
            current_master_instance_id: None,
            consolidation_attempt: 0,
            last_consolidated_at: None,
            deleted: false,
            deleted_at: None,
            last_processed_at: now,
            next_wake_at: None,
            deadline_at: None,
            waiting_for: None,
            version: 0,
        }
    }
}

impl InstanceRow {
    /// A new instance of a fleet: nothing is known of it yet, and nothing waits for it.
    pub fn pending(id: InstanceId, fleet: &FleetRow, num: i64, now: Time) -> Self {
        Self {
            id,
            project_id: fleet.project_id,
            fleet_id: Some(fleet.id),
            name: format!("{}-{num}", fleet.name),
            instance_num: num,
            created_at: now,
            started_at: None,
            finished_at: None,
            status: InstanceStatus::Pending,
            unreachable: false,
            health: HealthStatus::Healthy,
            termination_reason: None,
            termination_reason_message: None,
            backend: None,
            region: None,
            price: None,
            offer: None,
            job_provisioning_data: None,
            agent: None,
            total_blocks: None,
            busy_blocks: 0,
            last_job_processed_at: None,
            deleted: false,
            deleted_at: None,
            last_processed_at: now,
            next_wake_at: None,
            deadline_at: None,
            waiting_for: None,
            version: 0,
        }
    }

    /// A new instance of a fleet in clouds, that the fleet wants for itself: offers are looked for.
    pub fn wanted(id: InstanceId, fleet: &FleetRow, num: i64, now: Time) -> Self {
        Self {
            total_blocks: match fleet.spec.configuration.blocks {
                // Depends on what is made.
                Blocks::Auto => None,
                Blocks::Count(blocks) => Some(blocks),
            },
            next_wake_at: Some(now),
            waiting_for: Some("the clouds to be asked".to_owned()),
            ..Self::pending(id, fleet, num, now)
        }
    }

    /// With what it offers, at its place and price.
    #[must_use]
    pub fn offering(self, offer: InstanceOfferWithAvailability, place: JobProvisioningData) -> Self {
        Self {
            backend: Some(offer.backend.to_string()),
            region: Some(offer.region.to_string()),
            price: Some(offer.price),
            offer: Some(Json::new(offer)),
            job_provisioning_data: Some(Json::new(place)),
            ..self
        }
    }
}

impl JobRow {
    /// A job's first submission, waiting for a place to run.
    pub fn submitted(id: JobId, run: &RunRow, spec: Json<JobSpec>, now: Time) -> Self {
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
            ready: false,
            registered: false,
            image_pull_progress: None,
            last_processed_at: now,
            next_wake_at: Some(now),
            deadline_at: None,
            waiting_for: Some("a place to run".to_owned()),
            version: 0,
        }
    }
}
