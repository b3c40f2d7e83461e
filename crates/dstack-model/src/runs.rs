//! Runs, jobs, and plans.

mod job;
mod reasons;
mod spec;

use dstack_units::{FleetId, RunId, Time};
use serde::Serialize;
use serde_json::{Map, Value};

use crate::common::ApplyAction;
use crate::decode::scalars::id4;
use crate::explanations::JobExplanation;
use crate::offers::InstanceOfferWithAvailability;
use crate::{Decode, string_enum};

/// What a notice of a plan says of a backend whose offers may come in a moment.
pub const NOT_ANSWERED_YET: &str = "it has not answered yet";

pub use job::{
    AppSpec, ClusterInfo, ImagePullProgress, Job, JobConnectionInfo, JobProvisioningData, JobRuntimeData,
    JobSpec, JobSshKey, JobSubmission, Probe, ProbeSpec, Requirements, Retry, WAITING_FOR_COMMANDS,
};
pub use reasons::{JobTerminationReason, RunTerminationReason};
pub use spec::RunSpec;

string_enum! {
    /// State of a run.
    pub enum RunStatus {
        /// Waiting for its time, or for another try.
        Pending = "pending",
        /// Its jobs wait for instances.
        Submitted = "submitted",
        /// Its instances are being made.
        Provisioning = "provisioning",
        /// Its jobs run.
        Running = "running",
        /// Its jobs are being stopped.
        Terminating = "terminating",
        /// It was stopped.
        Terminated = "terminated",
        /// A job of it failed, and is not tried again.
        Failed = "failed",
        /// It ended well.
        Done = "done",
    }
}

impl RunStatus {
    /// Whether it stays so.
    pub const fn is_finished(self) -> bool {
        matches!(self, Self::Terminated | Self::Failed | Self::Done)
    }
}

string_enum! {
    /// State of a job.
    pub enum JobStatus {
        /// Waits for an instance.
        Submitted = "submitted",
        /// Its instance is being made.
        Provisioning = "provisioning",
        /// Its image is being pulled.
        Pulling = "pulling",
        /// The commands of its container run.
        Running = "running",
        /// Is being stopped.
        Terminating = "terminating",
        /// It was stopped by its user or by the server.
        Terminated = "terminated",
        /// Was stopped at once.
        Aborted = "aborted",
        /// Its commands, their container or their instance failed.
        Failed = "failed",
        /// Its commands ended with status 0.
        Done = "done",
    }
}

impl JobStatus {
    /// Whether it stays so.
    pub const fn is_finished(self) -> bool {
        matches!(self, Self::Terminated | Self::Aborted | Self::Failed | Self::Done)
    }
}

/// The fleet of a run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Decode)]
pub struct RunFleet {
    /// Id of the fleet.
    #[decode(with = id4)]
    pub id: FleetId,
    /// Name of the fleet.
    pub name: String,
}

/// The model that a service serves.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Decode)]
pub struct ServiceModelSpec {
    /// Name under which requests ask for the model.
    pub name: String,
    /// Full URL or path relative to the server's base URL.
    pub base_url: String,
    /// Its type, `chat`.
    #[serde(rename = "type")]
    pub kind: String,
}

/// Where a service is reached.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Decode)]
pub struct ServiceSpec {
    /// Full URL or path relative to the server's base URL.
    pub url: String,
    /// The model that it serves.
    pub model: Option<ServiceModelSpec>,
    /// More about the service.
    #[decode(default)]
    pub options: Map<String, Value>,
    /// Why requests to the URL do not reach the service, and what does; left out when they do.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub notice: Option<String>,
}

/// A run with its jobs, as the API answers it.
#[derive(Debug, Clone, PartialEq, Serialize, Decode)]
pub struct Run {
    /// Id of the run.
    #[decode(with = id4)]
    pub id: RunId,
    /// Name of the project that owns it.
    pub project_name: String,
    /// Who submitted it.
    pub user: String,
    /// Its fleet, once chosen.
    pub fleet: Option<RunFleet>,
    /// When it was submitted.
    pub submitted_at: Time,
    /// When the server last looked at it.
    pub last_processed_at: Time,
    /// How far it is.
    pub status: RunStatus,
    /// Its state for people's eyes.
    #[decode(default)]
    pub status_message: String,
    /// A [`RunTerminationReason`], or one that this version does not know.
    pub termination_reason: Option<String>,
    /// What it was made from.
    pub run_spec: RunSpec,
    /// Its jobs; empty when they were not asked for.
    pub jobs: Vec<Job>,
    /// The newest submission of any job.
    pub latest_job_submission: Option<JobSubmission>,
    /// Dollars so far.
    #[decode(default)]
    pub cost: f64,
    /// Where it is reached, if it is a service.
    pub service: Option<ServiceSpec>,
    /// How often it was updated in place.
    #[decode(default)]
    pub deployment_num: u32,
    /// What went wrong.
    pub error: Option<String>,
    /// Whether it is deleted.
    pub deleted: Option<bool>,
    /// When it starts next, if it has a schedule.
    pub next_triggered_at: Option<Time>,
    /// What it waits for, in words that follow "waits for". Not in dstack 0.22.5, whose clients ignore it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub waiting_for: Option<String>,
    /// When it stops waiting. Not in dstack 0.22.5, whose clients ignore it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub waits_until: Option<Time>,
}

impl Run {
    /// Whether some job still runs an older deployment.
    pub fn is_deployment_in_progress(&self) -> bool {
        self.jobs
            .iter()
            .filter_map(|job| job.job_submissions.last())
            .any(|submission| {
                !submission.status.is_finished() && submission.deployment_num != self.deployment_num
            })
    }
}

/// What submitting one job would do.
#[derive(Debug, Clone, PartialEq, Serialize, Decode)]
pub struct JobPlan {
    /// What the job is to do.
    pub job_spec: JobSpec,
    /// The first offers.
    pub offers: Vec<InstanceOfferWithAvailability>,
    /// How many offers there are in all.
    pub total_offers: u64,
    /// The highest price of all offers.
    pub max_price: Option<f64>,
}

/// What applying a run would do.
#[derive(Debug, Clone, PartialEq, Serialize, Decode)]
pub struct RunPlan {
    /// Name of the project that the plan is for.
    pub project_name: String,
    /// Name of the user who asked for the plan.
    pub user: String,
    /// The spec as it was sent.
    pub run_spec: RunSpec,
    /// With the server's defaults.
    pub effective_run_spec: Option<RunSpec>,
    /// One for each job.
    pub job_plans: Vec<JobPlan>,
    /// The run of that name.
    pub current_resource: Option<Run>,
    /// Create or update.
    pub action: ApplyAction,
    /// One for each job, if asked for; left out otherwise, as dstack 0.22.5 has no such thing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub explanations: Option<Vec<JobExplanation>>,
    /// What of the configuration will not be as it says, in sentences; left out when everything will.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[decode(default)]
    pub notices: Vec<String>,
}

impl RunPlan {
    /// The spec that counts.
    pub fn effective_run_spec(&self) -> &RunSpec {
        self.effective_run_spec.as_ref().unwrap_or(&self.run_spec)
    }
}

/// A plan as sent back to be applied.
#[derive(Debug, Clone, PartialEq, Serialize, Decode)]
pub struct ApplyRunPlanInput {
    /// What to apply.
    pub run_spec: RunSpec,
    /// The expected current resource. If the resource has changed, the apply fails unless `force: true`.
    pub current_resource: Option<Run>,
}
