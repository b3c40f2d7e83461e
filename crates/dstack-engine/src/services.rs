//! The way of requests to the jobs of services, behind a trait: in a server it leads to its proxy.

use std::fmt::Debug;
use std::sync::Weak;

use async_trait::async_trait;
use dstack_model::runs::ProbeSpec;
use dstack_plan::services::autoscaling::Load;
use dstack_plan::services::pages::Told;
use dstack_plan::services::rollout::judge::Answered;
use dstack_plan::services::signals::{Observed, Times};
use dstack_store::rows::JobRow;
use dstack_store::{Commit, JobSnapshot, Put};
use dstack_units::{GatewayId, GatewayReplicaId, InstanceId, JobId, RunId, Seconds};

/// Passes requests on to the jobs of services.
///
/// What a commit changes is told after it and before anybody is woken by it: first who gets no requests any more, then the rest.
#[async_trait]
pub trait Services: Send + Sync + Debug {
    /// Sends one probe to a job. The caller bounds it by the time limit of the probe, and drops it then.
    ///
    /// # Errors
    /// There is no answer, or another one than 2xx: what came instead, for people.
    async fn probe(&self, job: &JobSnapshot, probe: &ProbeSpec) -> Result<(), String>;

    /// A commit has left the job of this run without requests: it gets none from now on. Called for every job that is committed so,
    /// however often; and once for a job that ends and is driven here, since another server may have made that commit.
    fn unregistered(&self, job: JobId, run: RunId);

    /// A commit has left the job registered. Called for every job that is committed so, whatever of it has changed.
    fn registered(&self, job: &JobRow);

    /// A commit has written the run of a service: where its requests go is to be read anew.
    fn changed(&self, run: RunId);

    /// A commit has written the instance, whose agent may be reached in another way now, and so may be the jobs there.
    fn moved(&self, instance: InstanceId);

    /// A commit has written a replica of a gateway: which of them there are is to be read anew.
    fn gateways_changed(&self);

    /// Whether a replica of a gateway has not answered for long, though it should.
    fn is_gateway_silent(&self, replica: GatewayReplicaId) -> bool;

    /// Whether the job may still get requests, or requests are under way there; `gateway` is that of its run. Once it has none,
    /// [`RequestObserver::idle`] is told.
    fn serves(&self, job: JobId, gateway: Option<GatewayId>) -> bool;

    /// Whether requests reach a job that is registered. Without a gateway they do as soon as that is committed. Once they do,
    /// [`RequestObserver::published`] is told.
    fn is_published(&self, job: JobId, gateway: Option<GatewayId>) -> bool;

    /// What the router of a service has of a job that is to be its worker; [`RequestObserver::worker_changed`] tells of changes.
    fn worker(&self, run: RunId, job: JobId) -> Worker;

    /// Why the gateway of a run does not take the service, as all of its replicas say; `None`: it takes it, or they have yet to say.
    fn refusal(&self, run: RunId, gateway: GatewayId) -> Option<String>;

    /// Requests to the service that came within the last `window`, of 30, 60 or 300 s, or are still under way, also those that found
    /// no replica; those that came to its gateway, where it has one. `None`: not known, such as by a server that has not counted for
    /// so long.
    fn load(&self, run: RunId, gateway: Option<GatewayId>, window: Seconds) -> Option<Load>;

    /// What both sides of the roll-out of this deployment have answered since it began; those of its gateway, where it has one: partial
    /// where somebody who counts has not said so lately. `None`: nobody has, such as at a gateway that is silent, or cannot tell.
    fn answered(&self, run: RunId, deployment: i64, gateway: Option<GatewayId>) -> Option<Answered>;

    /// Whether requests can be split between two deployments; those of the gateway, where there is one: false once one of its replicas
    /// has said that it cannot. [`RequestObserver::published`] tells of changes.
    fn can_split(&self, gateway: Option<GatewayId>) -> bool;

    /// What was measured of the requests to the service within the last `window`, of 30, 60 or 300 s; at its gateway, where it has one.
    fn measured(&self, run: RunId, gateway: Option<GatewayId>, window: Seconds) -> Measured;

    /// What these jobs tell of themselves at this path of their service's port, as they did lately: whoever asks for it has it read from
    /// now on, for a while.
    fn told(&self, jobs: &[JobId], path: &str, window: Seconds) -> Told;

    /// Whether requests to the service wait for its first replica.
    fn is_awaited(&self, run: RunId) -> bool;

    /// Tells this one, from now on, what happens to requests.
    fn report_to(&self, observer: Weak<dyn RequestObserver>);
}

/// What was measured of the requests to a service.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Measured {
    /// Requests under way, on average.
    pub concurrency: Observed,
    /// Times until the first piece of an answer that is a stream of events; `None`: not known.
    pub first_pieces: Option<Times>,
}

/// Nothing is known.
impl Default for Measured {
    fn default() -> Self {
        Self {
            concurrency: Observed::UNKNOWN,
            first_pieces: None,
        }
    }
}

/// What the router of a service has of one of the jobs that are to be its workers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Worker {
    /// This server has not asked the router since it has started, or since the job runs.
    Unasked,
    /// It is among its workers.
    Added,
    /// It is not, for this reason if one is known.
    Missing(Option<String>),
    /// The router has not said for long, for this reason if one is known: nothing waits for it.
    Unknown(Option<String>),
}

/// Whoever acts on what happens to requests.
pub trait RequestObserver: Send + Sync + Debug {
    /// The job gets no requests any more, and none is under way.
    fn idle(&self, job: JobId);

    /// Something has changed about which jobs of the run get requests at its gateway, or whether that can split them.
    fn published(&self, run: RunId);

    /// A request to a service has begun to wait for its first replica.
    fn awaited(&self, run: RunId);

    /// Something has changed about whether the router of the run has the job as a worker.
    fn worker_changed(&self, run: RunId, job: JobId);
}

/// No requests are passed on: what is probed does not answer.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoServices;

#[async_trait]
impl Services for NoServices {
    async fn probe(&self, _job: &JobSnapshot, _probe: &ProbeSpec) -> Result<(), String> {
        Err("this server passes no requests on".to_owned())
    }
    fn unregistered(&self, _job: JobId, _run: RunId) {}
    fn registered(&self, _job: &JobRow) {}
    fn changed(&self, _run: RunId) {}
    fn moved(&self, _instance: InstanceId) {}
    fn gateways_changed(&self) {}
    fn is_gateway_silent(&self, _replica: GatewayReplicaId) -> bool {
        false
    }
    fn serves(&self, _job: JobId, _gateway: Option<GatewayId>) -> bool {
        false
    }
    fn is_published(&self, _job: JobId, gateway: Option<GatewayId>) -> bool {
        gateway.is_none()
    }
    fn worker(&self, _run: RunId, _job: JobId) -> Worker {
        Worker::Unknown(None)
    }
    fn refusal(&self, _run: RunId, _gateway: GatewayId) -> Option<String> {
        None
    }
    fn load(&self, _run: RunId, _gateway: Option<GatewayId>, _window: Seconds) -> Option<Load> {
        None
    }
    fn answered(&self, _run: RunId, _deployment: i64, _gateway: Option<GatewayId>) -> Option<Answered> {
        None
    }
    fn can_split(&self, _gateway: Option<GatewayId>) -> bool {
        true
    }
    fn measured(&self, _run: RunId, _gateway: Option<GatewayId>, _window: Seconds) -> Measured {
        Measured::default()
    }
    fn told(&self, _jobs: &[JobId], _path: &str, _window: Seconds) -> Told {
        Told::default()
    }
    fn is_awaited(&self, _run: RunId) -> bool {
        false
    }
    fn report_to(&self, _observer: Weak<dyn RequestObserver>) {}
}

/// What a commit changes of where requests go.
#[derive(Debug, Default)]
pub(crate) struct Rerouting {
    unregistered: Vec<(JobId, RunId)>,
    registered: Vec<JobRow>,
    changed: Vec<RunId>,
    moved: Vec<InstanceId>,
    gateways: bool,
}

impl Rerouting {
    pub(crate) fn of(commit: &Commit) -> Self {
        let mut found = Self::default();
        for put in commit.puts() {
            match put {
                Put::Job(job) if job.registered => found.registered.push(job.clone()),
                Put::Job(job) => found.unregistered.push((job.id, job.run_id)),
                Put::Run(run) if run.run_spec.configuration.service().is_some() => {
                    found.changed.push(run.id);
                }
                Put::GatewayReplica(_) => found.gateways = true,
                Put::Instance(instance) if instance.agent.is_some() => found.moved.push(instance.id),
                _ => {}
            }
        }
        found
    }

    pub(crate) fn tell(&self, services: &dyn Services) {
        for (job, run) in &self.unregistered {
            services.unregistered(*job, *run);
        }
        for job in &self.registered {
            services.registered(job);
        }
        for run in &self.changed {
            services.changed(*run);
        }
        for instance in &self.moved {
            services.moved(*instance);
        }
        if self.gateways {
            services.gateways_changed();
        }
    }
}
