//! Calls and streams under way in this process: none is made twice at the same time.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use dstack_store::EntityRef;
use dstack_store::rows::OperationKind;
use dstack_units::{InstanceId, JobId};

use crate::context::Context;

/// What may be under way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Work {
    /// An operation of this kind for this subject.
    Operation(EntityRef, OperationKind),
    /// The runner of a job is followed.
    FollowRunner(JobId),
    /// The shim of an instance is followed.
    FollowShim(InstanceId),
}

/// Everything under way.
#[derive(Debug, Default)]
pub struct Running(Mutex<HashSet<Work>>);

impl Running {
    fn lock(&self) -> MutexGuard<'_, HashSet<Work>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Marks work as under way until it is dropped, also when the work panics or is given up.
#[derive(Debug)]
pub struct Begun {
    ctx: Arc<Context>,
    work: Work,
}

impl Begun {
    /// Marks the work as under way; `None` when it is already.
    pub fn new(ctx: &Arc<Context>, work: Work) -> Option<Self> {
        let is_new = ctx.running.lock().insert(work);
        is_new.then(|| Self {
            ctx: Arc::clone(ctx),
            work,
        })
    }
}

impl Drop for Begun {
    fn drop(&mut self) {
        self.ctx.running.lock().remove(&self.work);
        if let Work::FollowRunner(job) = self.work {
            self.ctx.deps.output.release(job);
        }
    }
}
