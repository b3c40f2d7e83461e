//! Users, projects and what projects have: rows outside of the engine, changed in one unit of work for each verb.

use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use dstack_store::encryption::Encryption;
use dstack_store::writes::{Affected, Change};
use dstack_store::{Database, EventMaker, EventTarget, NewEvent, StoreError};
use dstack_system::clock::SharedClock;
use dstack_system::{Random, task};
use dstack_units::Time;

use crate::core::Actor;
use crate::error::Result;
use crate::keys::Keys;

/// Told of changes: whoever remembers something, or waits for it.
pub trait Watcher: Send + Sync + Debug {
    /// This was changed, and is written.
    fn changed(&self, affected: Affected);
}

/// What verbs outside of the engine work with.
#[derive(Debug, Clone)]
pub struct Directory {
    /// Where rows are read and changed.
    pub database: Database,
    /// Secrets at rest.
    pub encryption: Encryption,
    /// Key pairs of users and projects.
    pub keys: Arc<Keys>,
    /// Dates rows and events.
    pub clock: SharedClock,
    /// Ids, tokens and names.
    pub random: Random,
    /// Whether events are kept at all.
    pub keep_events: bool,
    /// Who hears of changes.
    pub watcher: Arc<dyn Watcher>,
}

/// What one verb writes: changes and the events that tell of them.
#[derive(Debug)]
pub struct Work {
    changes: Vec<Change>,
    events: Vec<NewEvent>,
    maker: EventMaker,
}

impl Work {
    /// Adds a change.
    pub fn change(&mut self, change: Change) {
        self.changes.push(change);
    }

    /// Adds an event by the actor.
    pub fn event(&mut self, message: impl Into<String>, targets: Vec<EventTarget>) {
        self.record(self.maker.event(message, targets));
    }

    /// Adds an event that only those see who govern the project: of changes for which dstack 0.22.5 writes none. Its users,
    /// who list events as they always did, see what they always saw.
    pub fn event_for_managers(&mut self, message: impl Into<String>, targets: Vec<EventTarget>) {
        self.record(NewEvent {
            for_managers: true,
            ..self.maker.event(message, targets)
        });
    }

    /// Lists are sorted by time: what comes later in a unit of work is later, however quick it was.
    fn record(&mut self, mut event: NewEvent) {
        if let Some(last) = self.events.last() {
            event.recorded_at = event.recorded_at.max(last.recorded_at + Duration::from_micros(1));
        }
        self.events.push(event);
    }
}

impl Directory {
    /// The clock's time, to the microsecond.
    pub fn now(&self) -> Time {
        self.clock.now()
    }

    /// A unit of work by this actor, still empty.
    pub fn work(&self, actor: Actor) -> Work {
        Work {
            changes: Vec::new(),
            events: Vec::new(),
            maker: EventMaker {
                now: self.now(),
                actor: match actor {
                    Actor::User(id) => Some(id),
                    Actor::System => None,
                },
                random: self.random.clone(),
            },
        }
    }

    /// Writes all of it in one transaction, and tells those who remember what was changed.
    ///
    /// # Errors
    /// A change is refused, a row was changed since it was read, a name is taken, or the store: nothing is written.
    pub async fn finish(&self, work: Work) -> Result<()> {
        if work.changes.is_empty() && work.events.is_empty() {
            return Ok(());
        }
        let affected = work.changes.iter().map(Change::affected);
        let affected = affected.fold(Affected::default(), |all, one| all | one);
        let events = match self.keep_events {
            true => work.events,
            false => Vec::new(),
        };
        let (database, watcher) = (self.database.clone(), Arc::clone(&self.watcher));
        // The database writes it also when the caller has gone away: then those who remember have to hear of it as well.
        let written = task::uncancelled("change of the directory", async move {
            let written = database.change(work.changes, events).await;
            // Also after an error: when the connection broke, nobody knows whether it was written.
            watcher.changed(affected);
            written
        });
        Ok(written.await.map_err(StoreError::from)??)
    }

    /// The name that a deleted user or project gets, so that its own is free again.
    pub(crate) fn deleted_name(&self) -> String {
        let suffix = hex::encode(self.random.bytes::<8>());
        format!("_deleted_{}_{suffix}", self.now().as_millis() / 1000)
    }
}
