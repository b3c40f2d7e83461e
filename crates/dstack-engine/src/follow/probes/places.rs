//! How many probes are under way at the same time.

use std::collections::HashMap;
use std::sync::Arc;

use dstack_system::Locked;
use dstack_units::ProjectId;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, SemaphorePermit};

/// Probes under way at the same time, of all jobs that a server drives. Each is a connection that mostly waits; one that gets no
/// answer takes its place for as long as its timeout.
pub const MAX_PROBES: usize = 256;

/// As many of them are of one project: whoever gets no answers holds up no other project.
pub const MAX_PROBES_OF_PROJECT: usize = 16;

/// The places of probes.
#[derive(Debug)]
pub struct Places {
    all: Semaphore,
    of_projects: Locked<HashMap<ProjectId, Arc<Semaphore>>>,
}

impl Default for Places {
    fn default() -> Self {
        Self {
            all: Semaphore::new(MAX_PROBES),
            of_projects: Locked::default(),
        }
    }
}

/// A place, until it is dropped.
#[derive(Debug)]
pub struct Place<'a> {
    _of_all: SemaphorePermit<'a>,
    _of_project: OwnedSemaphorePermit,
}

impl Places {
    /// Waits for a place of the project, and then for one of the server. `None`: there will be none any more.
    pub async fn take(&self, project: ProjectId) -> Option<Place<'_>> {
        // In this order: whoever waits for another of its own project takes nothing from others.
        let of_project = self.of_project(project).acquire_owned().await.ok()?;
        let of_all = self.all.acquire().await.ok()?;
        Some(Place {
            _of_all: of_all,
            _of_project: of_project,
        })
    }

    fn of_project(&self, project: ProjectId) -> Arc<Semaphore> {
        let mut known = self.of_projects.lock();
        let of_project = known.entry(project);
        Arc::clone(of_project.or_insert_with(|| Arc::new(Semaphore::new(MAX_PROBES_OF_PROJECT))))
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;
    use uuid::Uuid;

    use super::*;

    #[test]
    fn a_project_takes_its_share_and_all_together_what_there_is() {
        let places = Places::default();
        let take = |project| places.take(Uuid::from_u128(project).into()).now_or_never();
        let mut taken: Vec<_> = (0..16).map(|_| take(1).unwrap()).collect();
        assert!(take(1).is_none(), "its share is taken");
        taken.extend(
            (2..=16)
                .flat_map(|project| (0..16).map(move |_| project))
                .map(|project| take(project).unwrap()),
        );
        assert_eq!(taken.len(), MAX_PROBES);
        assert!(take(17).is_none());
        taken.pop();
        assert!(take(1).is_none() && take(17).is_some());
    }
}
