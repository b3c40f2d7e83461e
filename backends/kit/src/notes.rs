use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use dstack_compute::{Backend, Call, ComputeError, Journal, Removal, Resource, Step};
use serde_json::Value;

use crate::{Cloud, Subject};

/// What the calls for one thing have noted, for those that a test makes one by one: [`crate::Driver`] makes them as the engine does.
#[derive(Debug, Default)]
pub struct Notes(Mutex<Value>);

#[async_trait]
impl Journal for Notes {
    async fn keep(&self, notes: &Value) -> Result<(), String> {
        *self.0.lock().unwrap() = notes.clone();
        Ok(())
    }
}

impl Notes {
    /// What a server noted before.
    pub fn of(noted: Value) -> Self {
        Self(Mutex::new(noted))
    }

    /// The next call, which goes on where the last one was.
    pub fn call(&self, cloud: &Cloud) -> Call<'_> {
        let noted = self.0.lock().unwrap().clone();
        Call::new(Arc::clone(&cloud.env.clock), self, &noted).unwrap()
    }

    /// One call that makes.
    ///
    /// # Errors
    /// What the backend says.
    pub async fn ensure<R: Resource>(
        &self,
        cloud: &Cloud,
        backend: &dyn Backend,
        subject: &Subject<R>,
    ) -> Result<Step<R::Place>, ComputeError> {
        let lifecycle = (subject.lifecycle)(backend).unwrap();
        lifecycle.ensure(&subject.want, &self.call(cloud)).await
    }

    /// Calls until it is there, or one fails.
    ///
    /// # Errors
    /// What the backend says, passing troubles too.
    pub async fn make<R: Resource>(
        &self,
        cloud: &Cloud,
        backend: &dyn Backend,
        subject: &Subject<R>,
    ) -> Result<R::Place, ComputeError> {
        loop {
            match self.ensure(cloud, backend, subject).await? {
                Step::Ready(place) => return Ok(place),
                Step::Underway { again, .. } => tokio::time::sleep(again).await,
            }
        }
    }

    /// Calls of a server that has just started, until it is gone or one fails.
    ///
    /// # Errors
    /// What the backend says, passing troubles too.
    pub async fn remove<R: Resource>(
        &self,
        cloud: &Cloud,
        subject: &Subject<R>,
        place: Option<R::Place>,
    ) -> Result<(), ComputeError> {
        let (backend, known) = (cloud.open(), subject.known(place));
        let lifecycle = (subject.lifecycle)(backend.as_ref()).unwrap();
        while let Removal::Underway { again } = lifecycle.remove(&known, &self.call(cloud)).await? {
            tokio::time::sleep(again).await;
        }
        Ok(())
    }
}
