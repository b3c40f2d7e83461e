//! The jobs of a run, as each of them is seen by the others.

use std::collections::{BTreeMap, HashSet};

use dstack_agent_api::runner::ClusterInfo;
use dstack_model::runs::{JobSpec, RunSpec};
use dstack_plan::jobs::host_commands;
use dstack_plan::lifecycle::WaitReason;
use dstack_plan::lifecycle::retry::{Verdict, judge};
use dstack_plan::nodes::{Peer, ROUTER_VARIABLE};
use dstack_plan::services::rollout::state::Rollout;
use dstack_store::rows::{AgentAddress, JobRow, RunRow};
use dstack_store::{JobSnapshot, RunSnapshot};
use dstack_units::{JobId, Time};

pub use dstack_plan::nodes::Peers;

use crate::context::Context;
use crate::reconcile::run::retry_facts;
use crate::{InputsError, Result};

/// Jobs of a run, each in its present submission.
#[derive(Debug, Clone, Default)]
pub struct RunJobs {
    jobs: Vec<JobRow>,
    /// The run's deployment; 0 where it is not known.
    deployment: i64,
    /// Those that ended, and are submitted again by the retry policy.
    retried: HashSet<JobId>,
}

impl RunJobs {
    /// The present submissions of all `jobs` of a run, which come by replica, number and submission.
    pub fn present(mut jobs: Vec<JobRow>) -> Self {
        let present: HashSet<JobId> = latest(&jobs).iter().map(|job| job.id).collect();
        jobs.retain(|job| present.contains(&job.id));
        Self {
            jobs,
            ..Self::default()
        }
    }

    /// The jobs of a run, and what is to become of those that ended.
    fn of(snapshot: RunSnapshot, now: Time) -> Self {
        let RunSnapshot { run, jobs } = snapshot;
        let is_retried = |job: &&JobRow| judge(&retry_facts(&run, &jobs, job), now) == Verdict::Retry;
        let retried = jobs.iter().filter(is_retried).map(|job| job.id).collect();
        Self {
            deployment: run.deployment_num,
            retried,
            ..Self::present(jobs)
        }
    }

    /// What the others must know of each.
    pub fn peers(&self) -> Vec<Peer<'_>> {
        let mut peers: Vec<Peer<'_>> = Vec::with_capacity(self.jobs.len());
        for job in &self.jobs {
            peers.push(Peer {
                is_retried: self.retried.contains(&job.id),
                ..peer(job, self.deployment)
            });
        }
        peers
    }
}

/// What the runner of a job is told of the nodes of its replica.
pub fn cluster_info(job: &JobSnapshot, jobs: &RunJobs) -> ClusterInfo {
    let peers = jobs.peers();
    let cluster = Peers::new(&job.run.run_spec, &job.job.job_spec, &peers).cluster();
    ClusterInfo {
        master_job_ip: cluster.ips.first().cloned().unwrap_or_default(),
        job_ips: cluster.ips,
        gpus_per_job: peer(&job.job, job.run.deployment_num).gpus,
        gpus_per_node: cluster.gpus,
    }
}

/// The job as its runner gets it: with the commands for its place, which name the addresses of other nodes, and with the address of
/// its router, where it is to know that.
///
/// # Errors
/// A node that its commands refer to, or its router, has no address yet, or does not exist. It is a process of its host and has no commands of
/// its own, or its run was updated since it was made.
pub fn placed_spec(job: &JobSnapshot, jobs: &RunJobs) -> Result<JobSpec, InputsError> {
    let mut spec = JobSpec::clone(&job.job.job_spec);
    let asked_for = spec_of(&job.run, job.job.deployment_num);
    let run = asked_for.unwrap_or(&job.run.run_spec);
    let agent = job
        .instance
        .as_ref()
        .and_then(|instance| instance.agent.as_deref());
    if agent.is_some_and(AgentAddress::runs_processes) {
        // What is stored of the job are its commands in a container; those of a process come from the run.
        if asked_for.is_none() {
            return Err(InputsError::transient(
                "the run was updated: it is decided first whether this job still belongs to it",
            ));
        }
        spec.commands = host_commands(run, &spec).map_err(|error| InputsError::Refused(error.to_string()))?;
    }
    let peers = jobs.peers();
    let known = Peers::new(run, &spec, &peers);
    if known.lacks_router() {
        return Err(InputsError::transient(
            "the router of the service has no address any more",
        ));
    }
    let (commands, router) = (known.commands(), known.router_address().map(str::to_owned));
    spec.commands = commands.map_err(InputsError::transient)?;
    spec.env
        .extend(router.map(|address| (ROUTER_VARIABLE.to_owned(), address)));
    Ok(spec)
}

/// What a run asked for when it had this deployment; `None`: that is not known any more.
fn spec_of(run: &RunRow, deployment: i64) -> Option<&RunSpec> {
    if deployment == run.deployment_num {
        return Some(&run.run_spec);
    }
    let is_before = |rollout: &&Rollout| rollout.from_deployment == deployment;
    run.rollout_under_way().filter(is_before)?;
    run.rollout_from.as_deref()
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

/// Nodes that wait for others by what is stored of them, and need not any more.
pub(crate) fn free_nodes(run: &RunRow, jobs: &[&JobRow]) -> Vec<JobId> {
    let waits = |job: &&JobRow| job.waiting_for().is_some_and(WaitReason::is_for_nodes);
    if !jobs.iter().any(&waits) {
        return Vec::new();
    }
    let peers: Vec<Peer<'_>> = jobs.iter().map(|job| peer(job, run.deployment_num)).collect();
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

fn peer(job: &JobRow, deployment: i64) -> Peer<'_> {
    let offer = job.job_runtime_data.as_ref().and_then(|data| data.offer.as_ref());
    let gpus = offer.map_or(0, |offer| offer.instance.resources.gpus.len());
    Peer {
        spec: &job.job_spec,
        status: job.status(),
        reason: job.termination_reason(),
        out_of_date: job.deployment_num < deployment,
        is_retried: false,
        place: job.job_provisioning_data.as_deref(),
        gpus: i64::try_from(gpus).unwrap_or(i64::MAX),
    }
}

/// The jobs of a job's run, read anew.
pub(crate) async fn peers_of(ctx: &Context, job: &JobRow) -> Result<RunJobs> {
    let run = ctx.deps.store.run(job.run_id).await?;
    Ok(run.map_or_else(RunJobs::default, |run| RunJobs::of(run, ctx.now())))
}
