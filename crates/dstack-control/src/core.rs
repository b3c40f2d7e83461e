//! What all verbs work with.

use std::fmt::Debug;
use std::future::Future;
use std::sync::Arc;

use async_trait::async_trait;
use dstack_plan::lifecycle::job::ToldClient;
use dstack_store::queries::users::UserRow;
use dstack_store::{Changes, Commit, EngineStore, EventMaker, StoreError};
use dstack_system::Random;
use dstack_system::clock::SharedClock;
use dstack_units::{JobId, RunId, Time, UserId};

use crate::error::{ControlError, Result};

/// How often a change is decided anew when someone else was faster.
const MAX_ATTEMPTS: usize = 8;

/// The engine, as far as verbs see it.
#[async_trait]
pub trait EngineHandle: Send + Sync + Debug {
    /// Writes rows and events in one transaction and wakes whom they concern.
    ///
    /// # Errors
    /// The store, or a conflict; nothing is written.
    async fn commit(&self, commit: Commit) -> Result<(), StoreError>;

    /// A client that attaches to jobs over SSH is told something of a run: it may be waited for, although the job is over.
    fn client_told(&self, _run: RunId, _jobs: &[JobId], _what: ToldClient) {}
}

/// On whose behalf something is changed; events name it.
#[derive(Debug, Clone, Copy)]
pub enum Actor {
    /// Somebody who called the API, or logged in.
    User(UserId),
    /// The server, for a configuration file or by its own rules.
    System,
}

impl From<&UserRow> for Actor {
    fn from(user: &UserRow) -> Self {
        Self::User(user.id)
    }
}

/// Store, engine, time and randomness.
#[derive(Debug, Clone)]
pub struct Core {
    /// Where rows are read.
    pub store: Arc<dyn EngineStore>,
    /// Through which they are changed.
    pub engine: Arc<dyn EngineHandle>,
    /// Dates rows and events.
    pub clock: SharedClock,
    /// Makes ids, and names where none are given.
    pub random: Random,
    /// Whether events are kept at all.
    pub keep_events: bool,
}

impl Core {
    /// The clock's time, to the microsecond.
    pub fn now(&self) -> Time {
        self.clock.now()
    }

    /// Makes events of this actor that happen now.
    pub fn events(&self, actor: Actor) -> EventMaker {
        EventMaker {
            now: self.now(),
            actor: match actor {
                Actor::User(id) => Some(id),
                Actor::System => None,
            },
            random: self.random.clone(),
        }
    }

    /// No changes yet, by this actor.
    pub fn changes(&self, actor: Actor) -> Changes {
        Changes::new(self.events(actor))
    }

    /// Writes what was collected, and wakes whom it concerns.
    ///
    /// # Errors
    /// A conflict, when a row was changed since it was read; the store.
    pub async fn commit(&self, changes: Changes) -> Result<()> {
        if changes.is_empty() {
            return Ok(());
        }
        let commit = changes.into_commit();
        let commit = match self.keep_events {
            true => commit,
            false => commit.without_events(),
        };
        Ok(self.engine.commit(commit).await?)
    }

    /// As [`retry_on_conflict`].
    ///
    /// # Errors
    /// Those of `attempt`, or `busy`.
    pub async fn retry_on_conflict<T, F>(&self, busy: &str, attempt: impl FnMut() -> F) -> Result<T>
    where
        F: Future<Output = Result<T>>,
    {
        retry_on_conflict(busy, attempt).await
    }
}

/// Decides and commits, and begins anew as long as someone else was faster, eight times at most. Then the user is told
/// `busy`.
///
/// # Errors
/// Those of `attempt`, or `busy`.
pub(crate) async fn retry_on_conflict<T, F>(busy: &str, mut attempt: impl FnMut() -> F) -> Result<T>
where
    F: Future<Output = Result<T>>,
{
    for _ in 0..MAX_ATTEMPTS {
        match attempt().await {
            Err(error) if error.is_conflict() => {}
            done => return done,
        }
    }
    Err(ControlError::refused(busy))
}
