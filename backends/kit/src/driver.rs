use std::sync::{Arc, Mutex};
use std::time::Duration;

use dstack_compute::{Backend, CALL_LIMIT, Call, ComputeError, Known, Removal, Resource, Step};
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::faults::mortal;
use crate::{Cloud, Notes, Subject};

/// Longest time for anything: the clouds of the kit are never away for long.
const LIMIT: Duration = Duration::from_secs(3 * 60 * 60);

/// Pause before a call that failed is made again.
const PAUSE: Duration = Duration::from_secs(5);

/// A small control plane: makes and removes one thing as the engine does, keeps what is noted, goes on after it was killed.
#[derive(Debug)]
pub struct Driver<'a> {
    cloud: &'a Cloud,
    notes: Notes,
    /// What a server has open; another one after it was killed.
    backend: Mutex<Arc<dyn Backend>>,
    /// All errors, for a look at what they show.
    pub errors: Mutex<Vec<String>>,
    /// The longest that a call took.
    longest: Mutex<Duration>,
    /// The server is killed.
    killed: Arc<Notify>,
    /// Tells, after that, who makes something until then.
    died: Notify,
}

impl<'a> Driver<'a> {
    /// Nothing is noted yet.
    pub fn new(cloud: &'a Cloud) -> Self {
        Self::with_backend(cloud, cloud.open())
    }

    /// By a backend that others use too.
    pub fn with_backend(cloud: &'a Cloud, backend: Arc<dyn Backend>) -> Self {
        Self {
            cloud,
            notes: Notes::default(),
            backend: Mutex::new(backend),
            errors: Mutex::default(),
            longest: Mutex::default(),
            killed: Arc::default(),
            died: Notify::new(),
        }
    }

    /// Returns the longest that a call took.
    pub(crate) fn longest_call(&self) -> Duration {
        *self.longest.lock().unwrap()
    }

    fn backend(&self) -> Arc<dyn Backend> {
        Arc::clone(&self.backend.lock().unwrap())
    }

    fn call(&self) -> Call<'_> {
        self.notes.call(self.cloud)
    }

    /// The answer to a call, or that the server was killed in it: then another one has begun.
    async fn within_limit<T>(
        &self,
        call: impl Future<Output = Result<T, ComputeError>>,
    ) -> Result<T, ComputeError> {
        let asked = Instant::now();
        let answer = tokio::select! {
            answer = tokio::time::timeout(CALL_LIMIT, mortal(&self.killed, call)) => answer,
            () = self.killed.notified() => {
                *self.backend.lock().unwrap() = self.cloud.open();
                self.died.notify_one();
                return Err(ComputeError::Unclear("killed".to_owned()));
            }
        };
        let mut longest = self.longest.lock().unwrap();
        *longest = asked.elapsed().max(*longest);
        drop(longest);
        let answer = answer.unwrap_or_else(|_| Err(ComputeError::Unclear("no answer in time".to_owned())));
        if let Err(error) = &answer {
            self.errors.lock().unwrap().push(format!("{error} {error:?}"));
        }
        answer
    }

    /// Makes it; after a definite error, what was begun is removed.
    ///
    /// # Errors
    /// The definite one.
    pub async fn make<R: Resource>(&self, subject: &Subject<R>) -> Result<R::Place, ComputeError> {
        let made = tokio::time::timeout(LIMIT, self.try_to_make(subject)).await;
        let made = made.unwrap_or_else(|_| panic!("never made: {:?}", self.errors.lock().unwrap()));
        if made.is_err() {
            self.remove(&subject.known(None), subject).await;
        }
        made
    }

    /// As [`Driver::make`], by a control plane that does not come back when it was killed; `None`: it was.
    pub async fn make_until_killed<R: Resource>(
        &self,
        subject: &Subject<R>,
    ) -> Option<Result<R::Place, ComputeError>> {
        tokio::select! {
            biased;
            () = self.died.notified() => None,
            made = self.make(subject) => Some(made),
        }
    }

    async fn try_to_make<R: Resource>(&self, subject: &Subject<R>) -> Result<R::Place, ComputeError> {
        loop {
            let (backend, call) = (self.backend(), self.call());
            let lifecycle = (subject.lifecycle)(backend.as_ref()).expect("the backend makes such things");
            let pause = match self.within_limit(lifecycle.ensure(&subject.want, &call)).await {
                Ok(Step::Ready(place)) => return Ok(place),
                Ok(Step::Underway { again, .. }) => again,
                Err(ComputeError::Throttled { after, .. }) => after,
                Err(error) if error.is_transient() => PAUSE,
                Err(error) => return Err(error),
            };
            assert!(pause > Duration::ZERO, "a pause of nothing");
            tokio::time::sleep(pause).await;
        }
    }

    /// Removes it, however often that has to be asked for.
    pub async fn remove<R: Resource>(&self, known: &Known<R>, subject: &Subject<R>) {
        let removed = tokio::time::timeout(LIMIT, async {
            loop {
                let (backend, call) = (self.backend(), self.call());
                let lifecycle =
                    (subject.lifecycle)(backend.as_ref()).expect("the backend removes such things");
                let pause = match self.within_limit(lifecycle.remove(known, &call)).await {
                    Ok(Removal::Gone) => return,
                    Ok(Removal::Underway { again }) => again,
                    Err(ComputeError::Throttled { after, .. }) => after,
                    Err(_) => PAUSE,
                };
                assert!(pause > Duration::ZERO, "a pause of nothing");
                tokio::time::sleep(pause).await;
            }
        });
        removed
            .await
            .unwrap_or_else(|_| panic!("never removed: {:?}", self.errors.lock().unwrap()));
    }
}
