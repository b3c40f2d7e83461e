//! Backends that have not told their offers in time for a plan. They are waited for beside it, so that the next plan has what they
//! told: each keeps its answers for a while.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError};

use dstack_model::backends::BackendType;
use dstack_system::task;
use dstack_units::ProjectId;

/// A backend of a project.
type BackendOf = (ProjectId, BackendType);

/// The backends that are waited for. For each there is one question at most, however many plans are made meanwhile.
#[derive(Debug, Clone, Default)]
pub struct LateOffers(Arc<Mutex<HashSet<BackendOf>>>);

impl LateOffers {
    /// Goes on waiting for an answer, of which nobody here makes anything; not if this backend is waited for already.
    pub(crate) fn await_answer<F>(&self, backend: BackendOf, answer: F)
    where
        F: Future<Output: Send> + Send + 'static,
    {
        let Some(waits) = Waits::begin(self, backend) else {
            return;
        };
        task::spawn("late-offers", async move {
            answer.await;
            drop(waits);
        });
    }

    /// Whether a backend is waited for.
    pub(crate) fn is_awaited(&self, backend: BackendOf) -> bool {
        let waiting = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        waiting.contains(&backend)
    }
}

/// A backend is waited for while this exists.
struct Waits {
    all: LateOffers,
    backend: BackendOf,
}

impl Waits {
    fn begin(all: &LateOffers, backend: BackendOf) -> Option<Self> {
        let mut waiting = all.0.lock().unwrap_or_else(PoisonError::into_inner);
        waiting.insert(backend).then(|| Self {
            all: all.clone(),
            backend,
        })
    }
}

impl Drop for Waits {
    fn drop(&mut self) {
        let mut waiting = self.all.0.lock().unwrap_or_else(PoisonError::into_inner);
        waiting.remove(&self.backend);
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::oneshot;
    use uuid::Uuid;

    use super::*;

    const BACKEND: BackendOf = (ProjectId::new(Uuid::nil()), BackendType::Lambda);

    /// Whether somebody waits for the answer that is yet to come.
    fn is_awaited(late: &LateOffers, backend: BackendOf) -> (oneshot::Sender<()>, bool) {
        let (answer, told) = oneshot::channel::<()>();
        late.await_answer(backend, told);
        let awaited = !answer.is_closed();
        (answer, awaited)
    }

    #[tokio::test]
    async fn a_backend_is_waited_for_once_at_a_time() {
        let late = LateOffers::default();
        let (answer, first) = is_awaited(&late, BACKEND);
        let (_, second) = is_awaited(&late, BACKEND);
        let (_other, another) = is_awaited(&late, (BACKEND.0, BackendType::VastAi));
        assert_eq!((first, second, another), (true, false, true));
        answer.send(()).unwrap();
        // Until the first answer is noticed.
        while !is_awaited(&late, BACKEND).1 {
            tokio::task::yield_now().await;
        }
    }
}
