//! The jobs of a run, as each of them is seen by the others.

use std::collections::{BTreeMap, HashSet};

use dstack_agent_api::runner::ClusterInfo;
use dstack_model::runs::JobSpec;
use dstack_plan::jobs::host_commands;
use dstack_plan::lifecycle::WaitReason;
use dstack_plan::nodes::Peer;
use dstack_store::JobSnapshot;
use dstack_store::rows::{AgentAddress, JobRow, RunRow};
use dstack_units::JobId;

pub use dstack_plan::nodes::Peers;

use crate::context::Context;
use crate::{InputsError, Result};

/// Jobs of a run, each in its present submission.
#[derive(Debug, Clone, Default)]
pub struct RunJobs(Vec<JobRow>);

impl RunJobs {
    /// The present submissions of all `jobs` of a run, which come by replica, number and submission.
    pub fn present(mut jobs: Vec<JobRow>) -> Self {
        let present: HashSet<JobId> = latest(&jobs).iter().map(|job| job.id).collect();
        jobs.retain(|job| present.contains(&job.id));
        Self(jobs)
    }

    /// What the others must know of each.
    pub fn peers(&self) -> Vec<Peer<'_>> {
        self.0.iter().map(peer).collect()
    }
}

/// What the runner of a job is told of the nodes of its replica.
pub fn cluster_info(job: &JobSnapshot, jobs: &RunJobs) -> ClusterInfo {
    let peers = jobs.peers();
    let cluster = Peers::new(&job.run.run_spec, &job.job.job_spec, &peers).cluster();
    ClusterInfo {
        master_job_ip: cluster.ips.first().cloned().unwrap_or_default(),
        job_ips: cluster.ips,
        gpus_per_job: peer(&job.job).gpus,
        gpus_per_node: cluster.gpus,
    }
}

/// The job as its runner gets it: with the commands for its place, which name the addresses of other nodes.
///
/// # Errors
/// A node that its commands refer to has no address yet, or does not exist. It is a process of its host and has no commands of
/// its own, or its run was updated since it was made.
pub fn placed_spec(job: &JobSnapshot, jobs: &RunJobs) -> Result<JobSpec, InputsError> {
    let (run, mut spec) = (&job.run.run_spec, JobSpec::clone(&job.job.job_spec));
    let agent = job
        .instance
        .as_ref()
        .and_then(|instance| instance.agent.as_deref());
    if agent.is_some_and(AgentAddress::runs_processes) {
        // What is stored of the job are its commands in a container; those of a process come from the run.
        if job.job.deployment_num < job.run.deployment_num {
            return Err(InputsError::transient(
                "the run was updated: it is decided first whether this job still belongs to it",
            ));
        }
        spec.commands = host_commands(run, &spec).map_err(|error| InputsError::Refused(error.to_string()))?;
    }
    let peers = jobs.peers();
    let commands = Peers::new(run, &spec, &peers).commands();
    spec.commands = commands.map_err(InputsError::transient)?;
    Ok(spec)
}

/// The latest submission of each job, by replica and number.
pub(crate) fn latest(jobs: &[JobRow]) -> Vec<&JobRow> {
    let mut latest: BTreeMap<(i64, i64), &JobRow> = BTreeMap::new();
    for job in jobs {
        let slot = latest.entry((job.replica_num, job.job_num)).or_insert(job);
        if job.submission_num > slot.submission_num {
            *slot = job;
        }
    }
    latest.into_values().collect()
}

/// Whether other nodes are waited for.
pub(crate) const fn is_for_nodes(reason: Option<&WaitReason>) -> bool {
    matches!(
        reason,
        Some(WaitReason::NodeRunning { .. } | WaitReason::NodeAddress { .. })
    )
}

/// Nodes that wait for others by what is stored of them, and need not any more.
pub(crate) fn free_nodes(run: &RunRow, jobs: &[&JobRow]) -> Vec<JobId> {
    let waits = |job: &&JobRow| is_for_nodes(job.waiting_for());
    if !jobs.iter().any(&waits) {
        return Vec::new();
    }
    let peers: Vec<Peer<'_>> = jobs.iter().map(|job| peer(job)).collect();
    let is_free = |job: &&&JobRow| {
        let peers = Peers::new(&run.run_spec, &job.job_spec, &peers);
        match job.waiting_for() {
            Some(WaitReason::NodeRunning { .. }) => peers.task_waits_for().is_none(),
            _ => peers.start_waits_for().is_none(),
        }
    };
    let waiting = jobs.iter().filter(|job| waits(job));
    waiting.filter(is_free).map(|job| job.id).collect()
}

fn peer(job: &JobRow) -> Peer<'_> {
    let offer = job.job_runtime_data.as_ref().and_then(|data| data.offer.as_ref());
    let gpus = offer.map_or(0, |offer| offer.instance.resources.gpus.len());
    Peer {
        spec: &job.job_spec,
        status: job.status(),
        place: job.job_provisioning_data.as_deref(),
        gpus: i64::try_from(gpus).unwrap_or(i64::MAX),
    }
}

/// The jobs of a job's run, read anew.
pub(crate) async fn peers_of(ctx: &Context, job: &JobRow) -> Result<RunJobs> {
    let run = ctx.deps.store.run(job.run_id).await?;
    Ok(RunJobs::present(run.map_or_else(Vec::new, |run| run.jobs)))
}
