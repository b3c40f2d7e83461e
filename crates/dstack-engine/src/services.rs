//! The way of requests to the jobs of services, behind a trait: in a server it leads to its proxy.

use std::collections::BTreeSet;
use std::fmt::Debug;

use async_trait::async_trait;
use dstack_model::runs::ProbeSpec;
use dstack_store::{Commit, JobSnapshot, Put};
use dstack_units::{JobId, RunId};

/// Passes requests on to the jobs of services.
#[async_trait]
pub trait Services: Send + Sync + Debug {
    /// Sends one probe to a job, within the time limit of the probe.
    ///
    /// # Errors
    /// There is no answer, or another one than 2xx: what came instead, for people.
    async fn probe(&self, job: &JobSnapshot, probe: &ProbeSpec) -> Result<(), String>;

    /// A commit has left the job without requests: it gets none from now on. Called for every job that is committed so, and before
    /// anybody is woken by the commit.
    fn unregistered(&self, job: JobId);

    /// A commit has changed the run of a service, or registered one of its jobs: where its requests go is to be read anew.
    fn changed(&self, run: RunId);

    /// Whether the job may still get requests, or requests are under way there. Once it has none, [`Idle::idle`] is told.
    fn serves(&self, job: JobId) -> bool;

    /// Tells this one, from now on, of each job that has no requests any more.
    fn tell(&self, idle: std::sync::Weak<dyn Idle>);
}

/// Whoever waits for the end of requests.
pub trait Idle: Send + Sync + Debug {
    /// The job gets no requests any more, and none is under way.
    fn idle(&self, job: JobId);
}

/// No requests are passed on: what is probed does not answer.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoServices;

#[async_trait]
impl Services for NoServices {
    async fn probe(&self, _job: &JobSnapshot, _probe: &ProbeSpec) -> Result<(), String> {
        Err("this server passes no requests on".to_owned())
    }
    fn unregistered(&self, _job: JobId) {}
    fn changed(&self, _run: RunId) {}
    fn serves(&self, _job: JobId) -> bool {
        false
    }
    fn tell(&self, _idle: std::sync::Weak<dyn Idle>) {}
}

/// What a commit changes of where requests go.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Rerouting {
    unregistered: Vec<JobId>,
    changed: BTreeSet<RunId>,
}

impl Rerouting {
    pub(crate) fn of(commit: &Commit) -> Self {
        let mut found = Self::default();
        for put in commit.puts() {
            match put {
                Put::Job(job) if job.registered => {
                    found.changed.insert(job.run_id);
                }
                Put::Job(job) => found.unregistered.push(job.id),
                Put::Run(run) if run.run_spec.configuration.service().is_some() => {
                    found.changed.insert(run.id);
                }
                _ => {}
            }
        }
        found
    }

    pub(crate) fn tell(&self, services: &dyn Services) {
        for job in &self.unregistered {
            services.unregistered(*job);
        }
        for run in &self.changed {
            services.changed(*run);
        }
    }
}
