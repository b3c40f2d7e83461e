//! So much is done at a time, by kind of call. What comes on top is answered 429 at once instead of waiting in memory:
//! whoever is let in is served soon, and reads are not behind writes.

use std::sync::Arc;
use std::time::Duration;

use dstack_api::{Body, Effect, RouteInfo};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::error::{ApiError, Result};

/// When to come back: the calls under way are done by then.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// What calls compete for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// The database's pool of readers.
    Read,
    /// The processor: plans look at every offer.
    Plan,
    /// The database's writer.
    Write,
    /// Memory: files are held until they are stored.
    Upload,
}

impl Kind {
    fn of(route: &RouteInfo) -> Self {
        match route.effect {
            _ if route.body == Body::Upload => Self::Upload,
            _ if route.path.ends_with("/get_plan") || route.path.ends_with("/gpus/list") => Self::Plan,
            Effect::Reads | Effect::Reveals => Self::Read,
            Effect::Changes | Effect::Governs | Effect::Account => Self::Write,
        }
    }
}

/// How many calls of each kind there may be at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Calls that only read.
    pub reads: usize,
    /// Plans and lists of offers.
    pub plans: usize,
    /// Calls that change something.
    pub writes: usize,
    /// Uploads.
    pub uploads: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            reads: 4096,
            plans: 256,
            writes: 512,
            uploads: 64,
        }
    }
}

/// Lets calls in.
#[derive(Debug)]
pub struct Overload {
    reads: Arc<Semaphore>,
    plans: Arc<Semaphore>,
    writes: Arc<Semaphore>,
    uploads: Arc<Semaphore>,
}

impl Default for Overload {
    fn default() -> Self {
        Limits::default().into()
    }
}

impl From<Limits> for Overload {
    fn from(limits: Limits) -> Self {
        let semaphore = |permits: usize| Arc::new(Semaphore::new(permits.clamp(1, Semaphore::MAX_PERMITS)));
        Self {
            reads: semaphore(limits.reads),
            plans: semaphore(limits.plans),
            writes: semaphore(limits.writes),
            uploads: semaphore(limits.uploads),
        }
    }
}

impl Overload {
    /// A place for a call, held until it is answered.
    ///
    /// # Errors
    /// 429 when there is none.
    pub fn enter(&self, route: &RouteInfo) -> Result<OwnedSemaphorePermit> {
        let semaphore = match Kind::of(route) {
            Kind::Read => &self.reads,
            Kind::Plan => &self.plans,
            Kind::Write => &self.writes,
            Kind::Upload => &self.uploads,
        };
        Arc::clone(semaphore)
            .try_acquire_owned()
            .map_err(|_| ApiError::TooMany {
                msg: "The server is busy. Try again later",
                retry_after: RETRY_AFTER,
            })
    }
}

#[cfg(test)]
mod tests {
    use dstack_api::ROUTES;

    use super::*;

    fn kind(name: &str) -> Kind {
        Kind::of(ROUTES.iter().find(|route| route.name == name).unwrap())
    }

    #[test]
    fn kinds() {
        assert_eq!(kind("RunsList"), Kind::Read);
        assert_eq!(kind("SecretsGet"), Kind::Read);
        assert_eq!(kind("RunsGetPlan"), Kind::Plan);
        assert_eq!(kind("GpusList"), Kind::Plan);
        assert_eq!(kind("RunsApply"), Kind::Write);
        assert_eq!(kind("UsersCreate"), Kind::Write);
        assert_eq!(kind("ReposUploadCode"), Kind::Upload);
    }

    #[test]
    fn a_place_is_free_again_after_the_call() {
        let overload = Overload::from(Limits {
            writes: 1,
            ..Limits::default()
        });
        let route = |name: &str| ROUTES.iter().find(|route| route.name == name).unwrap();
        let first = overload.enter(route("RunsApply")).unwrap();
        assert!(overload.enter(route("RunsStop")).is_err());
        assert!(overload.enter(route("RunsList")).is_ok());
        drop(first);
        assert!(overload.enter(route("RunsStop")).is_ok());
    }
}
