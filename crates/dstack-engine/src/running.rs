//! Calls and streams under way in this process: none is made twice at the same time.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use dstack_store::EntityRef;
use dstack_store::rows::OperationKind;
use dstack_units::{InstanceId, JobId};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use crate::context::Context;

/// What may be under way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Work {
    /// An operation of this kind for this subject.
    Operation(EntityRef, OperationKind),
    /// The runner of a job is followed.
    FollowRunner(JobId),
    /// The probes of a job are asked.
    Probe(JobId),
    /// The shim of an instance is followed.
    FollowShim(InstanceId),
}

/// How those are reached who do the work.
#[derive(Debug, Clone, Default)]
struct UnderWay {
    cut: CancellationToken,
    look_again: Arc<Notify>,
}

/// Everything under way.
#[derive(Debug, Default)]
pub struct Running(Mutex<HashMap<Work, UnderWay>>);

impl Running {
    fn lock(&self) -> MutexGuard<'_, HashMap<Work, UnderWay>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Cuts work off where it is, if it is under way here. What it has begun elsewhere may still happen.
    pub fn cut_off(&self, work: Work) {
        if let Some(under_way) = self.lock().get(&work) {
            under_way.cut.cancel();
        }
    }

    /// Whoever does the work, if it is under way here, looks again at what is to be done, also in a pause.
    pub fn look_again(&self, work: Work) {
        if let Some(under_way) = self.lock().get(&work) {
            under_way.look_again.notify_one();
        }
    }
}

/// Marks work as under way until it is dropped, also when the work panics or is given up.
#[derive(Debug)]
pub struct Begun {
    ctx: Arc<Context>,
    work: Work,
    under_way: UnderWay,
}

impl Begun {
    /// Marks the work as under way; `None` when it is already.
    pub fn new(ctx: &Arc<Context>, work: Work) -> Option<Self> {
        let mut running = ctx.running.lock();
        if running.contains_key(&work) {
            return None;
        }
        let under_way = UnderWay::default();
        running.insert(work, under_way.clone());
        Some(Self {
            ctx: Arc::clone(ctx),
            work,
            under_way,
        })
    }

    /// Does the work, unless it is cut off: see [`Running::cut_off`].
    pub async fn unless_cut_off<T>(&self, work: impl Future<Output = T>) -> Option<T> {
        self.under_way.cut.run_until_cancelled(work).await
    }

    /// Waits until somebody wants the work looked at: see [`Running::look_again`].
    pub async fn to_look_again(&self) {
        self.under_way.look_again.notified().await;
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
