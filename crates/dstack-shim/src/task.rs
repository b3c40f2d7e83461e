//! One task: its record and its state machine. Pure.

use std::path::PathBuf;

use dstack_agent_api::shim::{ImagePullProgress, PortMapping, TaskConfig, TaskInfo, TaskStatus};
use sha2::{Digest, Sha256};
use tokio::time::Instant;

/// A task of this host.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Task {
    /// As submitted; without registry credentials once restored.
    pub config: TaskConfig,
    /// Where it is.
    pub status: TaskStatus,
    /// Empty until over.
    pub reason: String,
    /// Why it ended, for people; empty until then.
    pub message: String,
    /// Known once running.
    pub ports: Option<Vec<PortMapping>>,
    /// Known once the first layer is.
    pub progress: Option<ImagePullProgress>,
    /// Container and directory are called so.
    pub container_name: String,
    /// The runtime's id; empty before it is created.
    pub container_id: String,
    /// Ids of the GPUs that are locked for it.
    pub gpus: Vec<String>,
    /// Its private directory.
    pub dir: Option<PathBuf>,
    /// GPUs, volumes and keys have been given back.
    pub cleaned_up: bool,
    /// Since when it is forgotten for whoever asks; its container and directory are still to be deleted.
    pub removed: Option<Instant>,
    /// When to try again to delete them, after a failure.
    pub retry_removal_at: Option<Instant>,
    /// The start procedure runs: it alone moves the task on and gives back what it took.
    pub starting: bool,
}

/// A step back, sideways, or out of the end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a task cannot go from {from} to {to}")]
pub struct BadTransition {
    /// The state it is in.
    pub from: TaskStatus,
    /// The state asked for.
    pub to: TaskStatus,
}

impl Task {
    /// A new task, pending.
    pub fn new(config: TaskConfig) -> Self {
        Self {
            container_name: container_name(&config.name, &config.id),
            config,
            ..Self::default()
        }
    }

    /// Moves to the next state of the start procedure.
    pub fn advance(&mut self, to: TaskStatus) -> Result<(), BadTransition> {
        use TaskStatus::{Creating, Pending, Preparing, Pulling, Running};
        let allowed = matches!(
            (self.status, to),
            (Pending, Preparing) | (Preparing, Pulling) | (Pulling, Creating) | (Creating, Running)
        );
        if !allowed {
            return Err(BadTransition {
                from: self.status,
                to,
            });
        }
        self.status = to;
        Ok(())
    }

    /// Ends the task. The first reason and message that say something are kept.
    pub fn terminate(&mut self, reason: &str, message: &str) {
        self.status = TaskStatus::Terminated;
        if self.reason.is_empty() {
            self.reason = reason.to_owned();
        }
        if self.message.is_empty() {
            self.message = message.to_owned();
        }
    }

    /// Whether it is over.
    pub fn is_terminated(&self) -> bool {
        self.status == TaskStatus::Terminated
    }

    /// Whether it holds GPUs, volumes and keys.
    pub fn holds_resources(&self) -> bool {
        !self.cleaned_up
    }

    /// As the API shows it.
    pub fn info(&self) -> TaskInfo {
        TaskInfo {
            id: self.config.id.clone(),
            status: self.status,
            termination_reason: self.reason.clone(),
            termination_message: self.message.clone(),
            ports: self.ports.clone(),
            image_pull_progress: self.progress,
            container_name: self.container_name.clone(),
            container_id: self.container_id.clone(),
            gpus_ids: (!self.gpus.is_empty()).then(|| self.gpus.clone()),
        }
    }
}

/// `<name>-<first 8 hex digits of sha256("<name>/<id>")>`: unique for the task, readable, and the same after a restart.
pub fn container_name(name: &str, id: &str) -> String {
    let digest = Sha256::digest(format!("{name}/{id}"));
    let mut hash = hex::encode(digest);
    hash.truncate(8);
    format!("{name}-{hash}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn task() -> Task {
        Task::new(TaskConfig {
            id: "1".into(),
            name: "run-0-0".into(),
            ..TaskConfig::default()
        })
    }

    #[test]
    fn names_are_the_original_ones() {
        // printf run-0-0/1 | sha256sum
        assert_eq!(container_name("run-0-0", "1"), "run-0-0-e2b1944b");
    }

    #[test]
    fn the_first_reason_stays() {
        let mut task = task();
        task.terminate("", "");
        task.terminate("done_by_runner", "");
        task.terminate("executor_error", "late");
        assert_eq!(
            (task.reason.as_str(), task.message.as_str()),
            ("done_by_runner", "late")
        );
        assert!(task.advance(TaskStatus::Running).is_err());
    }

    const ALL: [TaskStatus; 6] = [
        TaskStatus::Pending,
        TaskStatus::Preparing,
        TaskStatus::Pulling,
        TaskStatus::Creating,
        TaskStatus::Running,
        TaskStatus::Terminated,
    ];

    proptest! {
        /// A task only ever moves forward, one step at a time, and never leaves the end.
        #[test]
        fn only_forward(steps in proptest::collection::vec((0usize..6, any::<bool>()), 0..40)) {
            let mut task = task();
            for (to, end) in steps {
                let before = task.status;
                if end { task.terminate("done_by_runner", ""); } else { let _ = task.advance(ALL[to]); }
                prop_assert!(task.status >= before);
                prop_assert!(before != TaskStatus::Terminated || task.status == TaskStatus::Terminated);
                let step = ALL.iter().position(|s| *s == task.status).unwrap() - ALL.iter().position(|s| *s == before).unwrap();
                prop_assert!(step <= 1 || end);
            }
        }
    }
}
