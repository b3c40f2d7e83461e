//! Whose turn it is, where more hosts are to be set up than can be at the same time.

use std::collections::HashSet;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use dstack_engine::HostError;
use dstack_units::InstanceId;
use tokio::sync::{Semaphore, SemaphorePermit};

/// Steps at the same time: jump hosts refuse more logins at once than a few, and lines carry so much.
const FIRST: usize = 24;
/// Beside them, of hosts whose last step failed: they may hang again, and hold up nobody else.
const AGAIN: usize = 8;
/// A step that does not begin within so long is tried again later: nothing is wrong with its host.
const PATIENCE: Duration = Duration::from_secs(60);

/// Turns of hosts.
#[derive(Debug)]
pub(super) struct Slots {
    first: Semaphore,
    again: Semaphore,
    failed: Mutex<HashSet<InstanceId>>,
}

impl Default for Slots {
    fn default() -> Self {
        Self {
            first: Semaphore::const_new(FIRST),
            again: Semaphore::const_new(AGAIN),
            failed: Mutex::default(),
        }
    }
}

impl Slots {
    fn failed(&self) -> MutexGuard<'_, HashSet<InstanceId>> {
        self.failed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes a step when it is the host's turn.
    ///
    /// # Errors
    /// That of the step; or it is not the host's turn yet.
    pub(super) async fn step<T>(
        &self,
        instance: InstanceId,
        step: impl Future<Output = Result<T, HostError>>,
    ) -> Result<T, HostError> {
        let _turn = self.turn(instance).await?;
        // Until it has succeeded: one that hangs is cut off.
        self.failed().insert(instance);
        let done = step.await;
        if done.is_ok() {
            self.forget(instance);
        }
        done
    }

    /// The instance is over.
    pub(super) fn forget(&self, instance: InstanceId) {
        self.failed().remove(&instance);
    }

    async fn turn(&self, instance: InstanceId) -> Result<SemaphorePermit<'_>, HostError> {
        let slots = match self.failed().contains(&instance) {
            true => &self.again,
            false => &self.first,
        };
        let turn = tokio::time::timeout(PATIENCE, slots.acquire()).await;
        turn.ok().and_then(Result::ok).ok_or_else(|| {
            HostError::Transient("it waits for its turn: many hosts are set up at the same time".to_owned())
        })
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;
    use std::sync::Arc;

    use dstack_system::task;

    use super::*;

    fn id(n: u128) -> InstanceId {
        uuid::Uuid::from_u128(n).into()
    }

    #[tokio::test(start_paused = true)]
    async fn hosts_that_hang_hold_up_nobody_and_who_waits_is_not_accused() {
        let slots = Arc::new(Slots::default());
        let hang = |n: u128| {
            let slots = Arc::clone(&slots);
            task::spawn("a step that hangs", async move {
                slots.step(id(n), pending::<Result<(), _>>()).await
            })
        };
        let hanging: Vec<_> = (0..24).map(hang).collect();
        tokio::time::sleep(Duration::from_secs(1)).await;
        let waits = slots.step(id(100), async { Ok(()) }).await.unwrap_err();
        assert!(waits.to_string().contains("waits for its turn"), "{waits}");
        hanging.iter().for_each(tokio::task::JoinHandle::abort);
        tokio::task::yield_now().await;
        // Those that hang again have slots of their own.
        let _again: Vec<_> = (0..24).map(hang).collect();
        tokio::time::sleep(Duration::from_secs(1)).await;
        slots.step(id(100), async { Ok(()) }).await.unwrap();
        // Who has failed, and works again, is first again.
        let failed = async { Err::<(), _>(HostError::Transient("no".to_owned())) };
        slots.step(id(101), failed).await.unwrap_err();
        slots.step(id(101), async { Ok(()) }).await.unwrap_err();
        slots.forget(id(101));
        slots.step(id(101), async { Ok(()) }).await.unwrap();
    }
}
