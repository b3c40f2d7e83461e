//! Changes of tasks, to everybody who listens.

use dstack_agent_api::shim::{StreamEvent, TaskInfo};
use tokio::sync::broadcast;

/// A listener further behind than this is sent everything again.
const BACKLOG: usize = 1024;

/// The sender's side.
#[derive(Debug, Clone)]
pub struct Hub {
    sender: broadcast::Sender<StreamEvent>,
}

impl Default for Hub {
    fn default() -> Self {
        Self {
            sender: broadcast::Sender::new(BACKLOG),
        }
    }
}

impl Hub {
    /// A task is new or changed. Call with the task locked, so that changes keep their order.
    pub fn changed(&self, info: TaskInfo) {
        let _ = self.sender.send(StreamEvent::Task(info));
    }

    /// A task was removed.
    pub fn removed(&self, id: &str) {
        let _ = self.sender.send(StreamEvent::Removed { id: id.to_owned() });
    }

    /// From now on.
    pub fn listen(&self) -> broadcast::Receiver<StreamEvent> {
        self.sender.subscribe()
    }
}
