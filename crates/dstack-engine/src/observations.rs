//! What the agents' streams said last.
//!
//! Kept in memory only: after a restart the streams say all of it again.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use dstack_agent_api::shim::TaskInfo;
use dstack_model::health::HealthStatus;
use dstack_plan::lifecycle::job::Ended;
use dstack_units::{InstanceId, JobId, Time};

/// What is known of a job from its streams.
#[derive(Debug, Clone, Default)]
pub struct JobSeen {
    /// The last state that ended the commands.
    pub ended: Option<Ended>,
    /// Until when those may read the rest of the output who were reading it at the runner when the commands ended.
    pub watched_until: Option<Time>,
    /// They have read everything.
    pub left: bool,
    /// Everything the runner had to say is stored.
    pub drained: bool,
    /// Everything up to this time is stored (milliseconds); the row follows.
    pub cursor: i64,
    /// Seconds without a connection.
    pub no_connections_secs: Option<i64>,
    /// Since when the runner cannot be reached.
    pub disconnected_at: Option<Time>,
    /// Its GPUs do too little: what to tell.
    pub unused_gpus: Option<String>,
}

/// What is known of an instance from its shim.
#[derive(Debug, Clone, Default)]
pub struct InstanceSeen {
    /// The shim has told all its tasks since the connection was made.
    pub synced: bool,
    /// Since when the shim cannot be reached.
    pub unreachable_since: Option<Time>,
    /// What the last attempt to reach it said.
    pub unreachable_because: Option<String>,
    /// Its tasks by id.
    pub tasks: HashMap<String, TaskInfo>,
    /// How its GPUs were when it was asked last; `None`: it has not answered yet.
    pub health: Option<HealthStatus>,
}

/// What the agents' streams said last of each job and instance.
#[derive(Debug, Default)]
pub struct Observations {
    jobs: Mutex<HashMap<JobId, JobSeen>>,
    instances: Mutex<HashMap<InstanceId, InstanceSeen>>,
}

impl Observations {
    fn jobs(&self) -> MutexGuard<'_, HashMap<JobId, JobSeen>> {
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn instances(&self) -> MutexGuard<'_, HashMap<InstanceId, InstanceSeen>> {
        self.instances.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Forgets everything: while others may have driven it, much may have changed.
    pub fn clear(&self) {
        self.jobs().clear();
        self.instances().clear();
    }

    /// What is known of a job.
    pub fn job(&self, id: JobId) -> JobSeen {
        self.jobs().get(&id).cloned().unwrap_or_default()
    }

    /// Changes what is known of a job.
    pub fn update_job<T>(&self, id: JobId, change: impl FnOnce(&mut JobSeen) -> T) -> T {
        change(self.jobs().entry(id).or_default())
    }

    /// The job is final.
    pub fn forget_job(&self, id: JobId) {
        self.jobs().remove(&id);
    }

    /// The instance is another server's.
    pub fn forget_instance(&self, id: InstanceId) {
        self.instances().remove(&id);
    }

    /// What is known of an instance, without its tasks.
    pub fn instance(&self, id: InstanceId) -> (bool, Option<Time>) {
        self.instances()
            .get(&id)
            .map_or((false, None), |seen| (seen.synced, seen.unreachable_since))
    }

    /// Why the agent of an instance was not reached last.
    pub fn unreachable_because(&self, id: InstanceId) -> Option<String> {
        self.instances().get(&id)?.unreachable_because.clone()
    }

    /// How the GPUs of an instance were last, if that is known.
    pub fn health(&self, id: InstanceId) -> Option<HealthStatus> {
        self.instances().get(&id)?.health
    }

    /// What the shim of an instance said of a task: outer `None` = not heard since we connected.
    pub fn task(&self, instance: InstanceId, job: JobId) -> Option<Option<TaskInfo>> {
        let instances = self.instances();
        let seen = instances.get(&instance)?;
        match seen.tasks.get(&job.to_string()) {
            Some(info) => Some(Some(info.clone())),
            None => seen.synced.then_some(None),
        }
    }

    /// Changes what is known of an instance.
    pub fn update_instance<T>(&self, id: InstanceId, change: impl FnOnce(&mut InstanceSeen) -> T) -> T {
        change(self.instances().entry(id).or_default())
    }
}
