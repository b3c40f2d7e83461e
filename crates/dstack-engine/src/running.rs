//! Calls and streams under way in this process: none is made twice at the same time.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use dstack_store::EntityRef;
use dstack_store::rows::OperationKind;
use dstack_units::{InstanceId, JobId};
use tokio_util::sync::CancellationToken;

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
pub struct Running(Mutex<HashMap<Work, CancellationToken>>);

impl Running {
    fn lock(&self) -> MutexGuard<'_, HashMap<Work, CancellationToken>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Cuts work off where it is, if it is under way here. What it has begun elsewhere may still happen.
    pub fn cut_off(&self, work: Work) {
        if let Some(cut) = self.lock().get(&work) {
            cut.cancel();
        }
    }
}

/// Marks work as under way until it is dropped, also when the work panics or is given up.
#[derive(Debug)]
pub struct Begun {
    ctx: Arc<Context>,
    work: Work,
    cut: CancellationToken,
}

impl Begun {
    /// Marks the work as under way; `None` when it is already.
    pub fn new(ctx: &Arc<Context>, work: Work) -> Option<Self> {
        let mut running = ctx.running.lock();
        if running.contains_key(&work) {
            return None;
        }
        let cut = CancellationToken::new();
        running.insert(work, cut.clone());
        Some(Self {
            ctx: Arc::clone(ctx),
            work,
            cut,
        })
    }

    /// Does the work, unless it is cut off: see [`Running::cut_off`].
    pub async fn unless_cut_off<T>(&self, work: impl Future<Output = T>) -> Option<T> {
        self.cut.run_until_cancelled(work).await
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
