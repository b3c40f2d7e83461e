//! What the agents' streams said last.
//!
//! Kept in memory only: after a restart the streams say all of it again.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Mutex, MutexGuard, PoisonError};

use dstack_agent_api::shim::{PortMapping, TaskInfo};
use dstack_compute::Sign;
use dstack_model::health::HealthStatus;
use dstack_model::runs::JobProvisioningData;
use dstack_plan::lifecycle::job::Ended;
use dstack_plan::probes::ProbeState;
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
    /// How its probes went last, by their place; the row follows.
    pub probes: BTreeMap<usize, ProbeState>,
    /// It ends, and whoever passes requests on here was told that it gets none any more.
    pub requests_withdrawn: bool,
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
    /// Since when its machine is reached and it does not answer, or takes no calls of this server.
    pub silent_since: Option<Time>,
    /// Since when its agent takes connections and answers nothing, however long it is waited for.
    pub mute_since: Option<Time>,
    /// What tells its machine from others, as that said last; `None`: it was not asked, or does not tell.
    pub machine: Option<String>,
    /// Its tasks by id.
    pub tasks: HashMap<String, TaskInfo>,
    /// How its GPUs were when it was asked last; `None`: it has not answered yet.
    pub health: Option<HealthStatus>,
    /// What its cloud said of it last; `None`: nothing yet.
    pub sign: Option<Sign<JobProvisioningData>>,
}

/// More tasks than a host has. What its agent names beyond is not remembered: it may not be what it was.
pub const MAX_TASKS: usize = 2048;
/// As much of a task is remembered, in bytes.
const MAX_TASK_BYTES: usize = 16 * 1024;
/// As much of the message of its end, which may be the end of a log.
const MAX_MESSAGE_BYTES: usize = 8 * 1024;

/// Why an agent is not listened to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Implausible {
    /// No host has so many.
    #[error("the agent names more than {MAX_TASKS} tasks")]
    TooManyTasks,
    /// No task has so much to tell.
    #[error("the agent tells more than {MAX_TASK_BYTES} bytes of a task")]
    TooLongTask,
}

impl InstanceSeen {
    /// Remembers a task.
    ///
    /// # Errors
    /// It is more than is remembered: all tasks are forgotten until the agent tells them again.
    pub fn keep_task(&mut self, mut task: TaskInfo) -> Result<(), Implausible> {
        cut(&mut task.termination_message, MAX_MESSAGE_BYTES);
        let problem = if bytes(&task) > MAX_TASK_BYTES {
            Implausible::TooLongTask
        } else if self.tasks.len() >= MAX_TASKS && !self.tasks.contains_key(&task.id) {
            Implausible::TooManyTasks
        } else {
            self.tasks.insert(task.id.clone(), task);
            return Ok(());
        };
        self.tasks.clear();
        self.unreachable_because = Some(problem.to_string());
        Err(problem)
    }
}

fn cut(text: &mut String, length: usize) {
    let end = (0..=length.min(text.len()))
        .rev()
        .find(|at| text.is_char_boundary(*at));
    text.truncate(end.unwrap_or_default());
}

/// What a task takes in memory, about.
fn bytes(task: &TaskInfo) -> usize {
    let texts = [
        &task.id,
        &task.termination_reason,
        &task.termination_message,
        &task.container_name,
        &task.container_id,
    ];
    let gpus = task.gpus_ids.iter().flatten();
    let ports = task.ports.as_ref().map_or(0, Vec::len) * size_of::<PortMapping>();
    texts.into_iter().map(String::len).sum::<usize>()
        + gpus.map(|id| size_of::<String>() + id.len()).sum::<usize>()
        + ports
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

    /// Since when the machine of an instance is reached, and its agent does not answer.
    pub fn silent_since(&self, id: InstanceId) -> Option<Time> {
        self.instances().get(&id)?.silent_since
    }

    /// Since when the agent of an instance takes connections and answers nothing.
    pub fn mute_since(&self, id: InstanceId) -> Option<Time> {
        self.instances().get(&id)?.mute_since
    }

    /// What the cloud of an instance said of it last; `None`: nothing since this server drives it.
    pub fn sign(&self, id: InstanceId) -> Option<Sign<JobProvisioningData>> {
        self.instances().get(&id)?.sign.clone()
    }

    /// What the machine of an instance said of itself last.
    pub fn machine(&self, id: InstanceId) -> Option<String> {
        self.instances().get(&id)?.machine.clone()
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

#[cfg(test)]
mod tests {
    use super::*;

    fn task(id: usize) -> TaskInfo {
        TaskInfo {
            id: id.to_string(),
            ..TaskInfo::default()
        }
    }

    #[test]
    fn an_agent_does_not_make_the_server_remember_more_than_a_host_has() {
        let mut seen = InstanceSeen::default();
        for id in 0..MAX_TASKS {
            seen.keep_task(task(id)).unwrap();
        }
        seen.keep_task(task(0)).unwrap();
        assert_eq!(seen.keep_task(task(MAX_TASKS)), Err(Implausible::TooManyTasks));
        assert!(seen.tasks.is_empty() && seen.unreachable_because.is_some());
        let long = TaskInfo {
            termination_message: "é".repeat(100_000),
            ..task(1)
        };
        seen.keep_task(long).unwrap();
        assert_eq!(seen.tasks["1"].termination_message.len(), MAX_MESSAGE_BYTES);
        let endless = TaskInfo {
            gpus_ids: Some(vec![String::new(); MAX_TASK_BYTES]),
            ..task(2)
        };
        assert_eq!(seen.keep_task(endless), Err(Implausible::TooLongTask));
    }
}
