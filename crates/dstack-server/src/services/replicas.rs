//! The replicas that get requests, and those whose last requests are still under way.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use dstack_agent_api::http::Connector;
use dstack_proxy::Replica;
use dstack_store::rows::{AgentAddress, JobRow};
use dstack_system::Locked;
use dstack_units::{InstanceId, JobId, RunId};

/// Where a replica is. As long as that stays the same, so do its connections.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Place {
    pub(super) address: Option<AgentAddress>,
    pub(super) ports: Option<BTreeMap<u16, u16>>,
    pub(super) port: u16,
    pub(super) instance: Option<InstanceId>,
}

impl Place {
    pub(super) fn of(job: &JobRow, address: Option<&AgentAddress>, port: u16) -> Self {
        Self {
            address: address.cloned(),
            ports: job.job_runtime_data.as_ref().and_then(|data| data.ports.clone()),
            port,
            instance: job.instance_id,
        }
    }
}

#[derive(Debug)]
struct Known {
    run: RunId,
    place: Place,
    replica: Arc<Replica>,
    /// It gets no new requests.
    leaves: bool,
}

/// Replicas by their jobs.
#[derive(Debug, Default)]
pub(super) struct Replicas(Locked<HashMap<JobId, Known>>);

impl Replicas {
    /// The replica of a job at this place, with its connections if it was there before.
    pub(super) fn at(
        &self,
        job: &JobRow,
        place: Place,
        connect: impl FnOnce() -> Arc<dyn Connector>,
    ) -> Arc<Replica> {
        let mut known = self.0.lock();
        if let Some(before) = known.get_mut(&job.id).filter(|known| known.place == place) {
            before.leaves = false;
            before.replica.readmit();
            return Arc::clone(&before.replica);
        }
        let replica = Arc::new(Replica::new(job.id, connect()));
        let now = Known {
            run: job.run_id,
            place,
            replica: Arc::clone(&replica),
            leaves: false,
        };
        if let Some(elsewhere) = known.insert(job.id, now) {
            elsewhere.replica.retire();
        }
        replica
    }

    /// The job gets no new requests. `None`: it got none.
    pub(super) fn withdraw(&self, job: JobId) -> Option<Arc<Replica>> {
        let mut known = self.0.lock();
        let known = known.get_mut(&job).filter(|known| !known.leaves)?;
        known.leaves = true;
        known.replica.retire();
        Some(Arc::clone(&known.replica))
    }

    /// Its last request is answered; if it gets requests again by now, it stays. `false`: another request has come meanwhile, which is
    /// to be waited for.
    pub(super) fn forget(&self, job: JobId) -> bool {
        let mut all = self.0.lock();
        match all.get(&job) {
            Some(known) if known.leaves && known.replica.in_flight() > 0 => false,
            Some(known) if known.leaves => {
                all.remove(&job);
                true
            }
            _ => true,
        }
    }

    /// Whether the job gets requests where its row says that it is.
    pub(super) fn is_routed(&self, job: &JobRow) -> bool {
        self.0.lock().get(&job.id).is_some_and(|known| {
            let is_there = |port| Place::of(job, known.place.address.as_ref(), port) == known.place;
            !known.leaves && job.job_spec.service_port.is_some_and(is_there)
        })
    }

    /// The runs that have replicas on an instance.
    pub(super) fn on(&self, instance: InstanceId) -> BTreeSet<RunId> {
        let known = self.0.lock();
        let there = known
            .values()
            .filter(|known| known.place.instance == Some(instance));
        there.map(|known| known.run).collect()
    }

    /// Whether the job gets requests, or some are under way.
    pub(super) fn serves(&self, job: JobId) -> bool {
        self.0.lock().contains_key(&job)
    }

    /// The run of a job that gets requests, or has got some.
    pub(super) fn run_of(&self, job: JobId) -> Option<RunId> {
        self.0.lock().get(&job).map(|known| known.run)
    }

    /// The jobs of a run that get requests.
    pub(super) fn of_run(&self, run: RunId) -> Vec<JobId> {
        let known = self.0.lock();
        let routed = known
            .iter()
            .filter(|(_, known)| known.run == run && !known.leaves);
        routed.map(|(job, _)| *job).collect()
    }
}
