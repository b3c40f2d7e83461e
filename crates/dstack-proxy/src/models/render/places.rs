//! Where prompts wait until they are made. So many are made at a time, one of them of a project, so that no project keeps others
//! waiting; how many wait, and how long, is bounded as well.

use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use dstack_system::Locked;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Prompts that are made at a time.
const MAX_AT_A_TIME: usize = 4;
/// Prompts that wait, at most.
const MAX_WAITING: usize = 64;
/// Of these, of one project.
const MAX_WAITING_OF_PROJECT: usize = 16;
/// As long as one waits.
const MAX_WAIT: Duration = Duration::from_secs(10);

/// Others are in the way, and stay there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Busy;

/// The places where prompts are made.
#[derive(Debug)]
pub(super) struct Places {
    free: Arc<Semaphore>,
    waiting: Semaphore,
    /// Those of which a prompt is made, or waits.
    projects: Locked<HashMap<String, Weak<Project>>>,
}

#[derive(Debug)]
struct Project {
    turn: Arc<Semaphore>,
    waiting: Semaphore,
}

/// A place; it is free again when this is dropped.
#[derive(Debug)]
pub(in crate::models) struct Place {
    _place: OwnedSemaphorePermit,
    _turn: OwnedSemaphorePermit,
    _project: Arc<Project>,
}

impl Default for Places {
    fn default() -> Self {
        Self {
            free: Arc::new(Semaphore::new(MAX_AT_A_TIME)),
            waiting: Semaphore::new(MAX_WAITING),
            projects: Locked::default(),
        }
    }
}

impl Places {
    /// A place for a prompt of this project, when it is its turn.
    ///
    /// # Errors
    /// Too many wait already, or its turn does not come.
    pub(super) async fn place(&self, project: &str) -> Result<Place, Busy> {
        let project = self.project(project);
        let _of_project = project.waiting.try_acquire().map_err(|_| Busy)?;
        let _of_all = self.waiting.try_acquire().map_err(|_| Busy)?;
        let turn = self.turn(Arc::clone(&project));
        tokio::time::timeout(MAX_WAIT, turn).await.unwrap_or(Err(Busy))
    }

    /// First among those of its project: of each project at most one waits for a place, and they get them in turn.
    async fn turn(&self, project: Arc<Project>) -> Result<Place, Busy> {
        let turn = Arc::clone(&project.turn).acquire_owned().await;
        let place = Arc::clone(&self.free).acquire_owned();
        Ok(Place {
            _turn: turn.map_err(|_| Busy)?,
            _place: place.await.map_err(|_| Busy)?,
            _project: project,
        })
    }

    fn project(&self, name: &str) -> Arc<Project> {
        let mut projects = self.projects.lock();
        projects.retain(|_, project| project.strong_count() > 0);
        let known = projects.get(name).and_then(Weak::upgrade);
        known.unwrap_or_else(|| {
            let project = Arc::new(Project {
                turn: Arc::new(Semaphore::new(1)),
                waiting: Semaphore::new(MAX_WAITING_OF_PROJECT),
            });
            projects.insert(name.to_owned(), Arc::downgrade(&project));
            project
        })
    }
}

#[cfg(test)]
mod tests {
    use futures_util::future::join_all;
    use tokio::time::Instant;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_project_has_one_place_and_others_have_theirs() {
        let places = Places::default();
        let held = places.place("a").await.unwrap();
        let _others = join_all(["b", "c", "d"].map(|project| places.place(project))).await;
        let started = Instant::now();
        assert_eq!(places.place("a").await.unwrap_err(), Busy, "its own is taken");
        assert_eq!(places.place("e").await.unwrap_err(), Busy, "all are taken");
        assert_eq!(started.elapsed(), 2 * MAX_WAIT);
        drop(held);
        places.place("a").await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn who_waits_for_its_own_keeps_no_place_from_others() {
        let places = Places::default();
        let _held = places.place("a").await.unwrap();
        let waiting = join_all((0..MAX_WAITING_OF_PROJECT).map(|_| places.place("a")));
        let others = async {
            let started = Instant::now();
            assert_eq!(places.place("a").await.unwrap_err(), Busy, "too many wait");
            let others = join_all(["b", "c", "d"].map(|project| places.place(project))).await;
            assert!(others.iter().all(Result::is_ok));
            assert_eq!(started.elapsed(), Duration::ZERO);
        };
        let (waited, ()) = tokio::join!(waiting, others);
        assert!(waited.iter().all(Result::is_err));
    }

    #[tokio::test(start_paused = true)]
    async fn no_more_wait_than_may() {
        let places = Places::default();
        let names: Vec<String> = (0..MAX_AT_A_TIME + MAX_WAITING)
            .map(|name| name.to_string())
            .collect();
        let (first, rest) = names.split_at(MAX_AT_A_TIME);
        let held = join_all(first.iter().map(|project| places.place(project))).await;
        let one_more = async {
            let started = Instant::now();
            assert_eq!(places.place("more").await.unwrap_err(), Busy);
            assert_eq!(started.elapsed(), Duration::ZERO);
        };
        let (waited, ()) = tokio::join!(
            join_all(rest.iter().map(|project| places.place(project))),
            one_more
        );
        assert_eq!(waited.len(), MAX_WAITING);
        places.place("0").await.unwrap_err();
        drop(held);
        places.place("0").await.unwrap();
        assert_eq!(places.projects.lock().len(), 1, "others are forgotten");
    }
}
