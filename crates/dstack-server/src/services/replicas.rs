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
    /// Where it was before, as long as requests are under way there.
    earlier: Vec<Arc<Replica>>,
    /// It gets no new requests.
    leaves: bool,
}

impl Known {
    /// Somewhere where a request is under way.
    fn busy(&self) -> Option<&Arc<Replica>> {
        let all = std::iter::once(&self.replica).chain(&self.earlier);
        all.into_iter().find(|replica| replica.in_flight() > 0)
    }

    /// It is elsewhere now: those places where requests are still under way.
    fn left(mut self) -> Vec<Arc<Replica>> {
        self.replica.retire();
        self.earlier.push(self.replica);
        self.earlier.retain(|replica| replica.in_flight() > 0);
        self.earlier
    }
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
            earlier: known.remove(&job.id).map(Known::left).unwrap_or_default(),
            leaves: false,
        };
        known.insert(job.id, now);
        replica
    }

    /// The job gets no new requests. `false`: it got none.
    pub(super) fn withdraw(&self, job: JobId) -> bool {
        let mut all = self.0.lock();
        let Some(known) = all.get_mut(&job).filter(|known| !known.leaves) else {
            return false;
        };
        known.leaves = true;
        known.replica.retire();
        true
    }

    /// Waits until the last request to a job that gets no new ones is over, and forgets it. Returns as well when it gets some again.
    pub(super) async fn ended(&self, job: JobId) {
        while let Some(busy) = self.busy_or_forgotten(job) {
            busy.idle().await;
        }
    }

    /// Under one lock, so that whoever is let in again before is waited for.
    fn busy_or_forgotten(&self, job: JobId) -> Option<Arc<Replica>> {
        let mut all = self.0.lock();
        let known = all.get(&job).filter(|known| known.leaves)?;
        let busy = known.busy().cloned();
        if busy.is_none() {
            all.remove(&job);
        }
        busy
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
