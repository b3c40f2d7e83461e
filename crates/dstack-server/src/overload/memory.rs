//! Memory for the bodies that are held at one time: those being read, and those being worked on.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

use super::RETRY_AFTER;
use crate::error::{ApiError, Result};

/// Bodies of so few bytes are not counted: a connection takes as much without any.
const UNCOUNTED: usize = 4 * 1024;

/// How long a body waits for memory.
const WAIT_TIMEOUT: Duration = Duration::from_secs(5);

const KIB: usize = 1024;

/// What an upload gets at a time.
const GROWTH: usize = 1024 * KIB;

/// Memory for bodies, shared by all calls.
#[derive(Debug)]
pub(crate) struct BodyMemory {
    /// A permit is a KiB.
    free: Arc<Semaphore>,
    total: u32,
}

/// Memory that a body has for itself.
#[derive(Debug)]
pub(crate) struct Reserved {
    permits: OwnedSemaphorePermit,
}

impl Reserved {
    fn bytes(&self) -> usize {
        self.permits.num_permits().saturating_mul(KIB)
    }

    /// Gives back what is more than so many bytes.
    pub(crate) fn shrink(&mut self, bytes: usize) {
        let spare = self.permits.num_permits().saturating_sub(bytes.div_ceil(KIB));
        drop(self.permits.split(spare));
    }
}

impl BodyMemory {
    /// So many bytes.
    pub(crate) fn new(bytes: usize) -> Self {
        let kib = u32::try_from(bytes / KIB).unwrap_or(u32::MAX).max(1);
        let permits = usize::try_from(kib)
            .unwrap_or(usize::MAX)
            .min(Semaphore::MAX_PERMITS);
        Self {
            free: Arc::new(Semaphore::new(permits)),
            total: kib,
        }
    }

    /// The most bytes that one upload may have, however large uploads may be by the settings: a few slow ones are not to hold
    /// all of the memory.
    pub(crate) fn largest_upload(&self) -> usize {
        usize::try_from(self.total / 4)
            .unwrap_or(usize::MAX)
            .saturating_mul(KIB)
    }

    /// Has so many bytes for an upload that has grown to them, and some more for what comes next. An upload has no memory for
    /// what it has not sent yet.
    ///
    /// # Errors
    /// 429 when others had them for too long.
    pub(crate) async fn grow(&self, held: &mut Option<Reserved>, bytes: usize) -> Result<()> {
        let has = held.as_ref().map_or(UNCOUNTED, Reserved::bytes);
        if bytes <= has {
            return Ok(());
        }
        let next = self.largest_upload().saturating_sub(has).min(GROWTH);
        let more = self.reserve((bytes - has).max(next).max(UNCOUNTED + 1)).await?;
        match (held, more) {
            (Some(held), Some(more)) => held.permits.merge(more.permits),
            (held, more) => *held = more,
        }
        Ok(())
    }

    /// Waits for so many bytes, or for all there are when that is less. Returns `None` for a small body, which is not
    /// counted.
    ///
    /// # Errors
    /// 429 when others had them for too long.
    pub(crate) async fn reserve(&self, bytes: usize) -> Result<Option<Reserved>> {
        if bytes <= UNCOUNTED {
            return Ok(None);
        }
        let kib = u32::try_from(bytes.div_ceil(KIB)).map_or(self.total, |kib| kib.min(self.total));
        match timeout(WAIT_TIMEOUT, Arc::clone(&self.free).acquire_many_owned(kib)).await {
            Ok(Ok(permits)) => Ok(Some(Reserved { permits })),
            _ => Err(ApiError::TooMany {
                msg: "The server is busy with other large requests. Try again later",
                retry_after: RETRY_AFTER,
            }),
        }
    }

    #[cfg(test)]
    pub(crate) fn free_kib(&self) -> usize {
        self.free.available_permits()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn bodies_wait_for_memory_for_a_while() {
        let memory = BodyMemory::new(64 * KIB);
        let first = memory.reserve(40 * KIB).await.unwrap();
        let refused = memory.reserve(25 * KIB).await.unwrap_err();
        assert!(matches!(refused, ApiError::TooMany { .. }), "{refused}");
        let second = memory.reserve(24 * KIB).await.unwrap();
        assert!(second.is_some());
        let (third, ()) = tokio::join!(memory.reserve(30 * KIB), async { drop(first) });
        assert!(
            third.unwrap().is_some(),
            "whoever waits gets what others give back"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_larger_than_all_memory_takes_all_of_it() {
        let memory = BodyMemory::new(64 * KIB);
        let all = memory.reserve(usize::MAX).await.unwrap();
        assert!(memory.reserve(UNCOUNTED + 1).await.is_err());
        assert!(
            memory.reserve(UNCOUNTED).await.unwrap().is_none(),
            "small ones pass"
        );
        drop(all);
        assert!(memory.reserve(UNCOUNTED + 1).await.is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_that_was_shorter_than_it_could_be_gives_memory_back() {
        let memory = BodyMemory::new(64 * KIB);
        let mut first = memory.reserve(60 * KIB).await.unwrap().unwrap();
        first.shrink(9 * KIB + 1);
        let rest = memory.reserve(54 * KIB).await.unwrap();
        assert!(memory.reserve(5 * KIB).await.is_err());
        first.shrink(1_000_000);
        drop((first, rest));
        assert!(memory.reserve(64 * KIB).await.is_ok());
    }
}
