//! The rows this server drives, and how long it may.
//!
//! The database decides; this is what it said last. It holds as long as the server's own lease does: see [`Term`].

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use dstack_store::EntityRef;

use crate::term::Term;

/// The rows this server drives. Without a lease there are none.
#[derive(Debug, Default)]
pub struct LeaseSet {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    term: Option<Arc<Term>>,
    rows: HashSet<EntityRef>,
    /// What was added (true) and removed (false) while the database was being asked for all rows.
    changes: Option<HashMap<EntityRef, bool>>,
}

impl State {
    fn has_lease(&self) -> bool {
        self.term.as_ref().is_some_and(|term| term.is_current())
    }

    fn change(&mut self, entity: EntityRef, added: bool) {
        match added {
            true => self.rows.insert(entity),
            false => self.rows.remove(&entity),
        };
        if let Some(changes) = &mut self.changes {
            changes.insert(entity, added);
        }
    }
}

impl LeaseSet {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether this server drives the row now.
    pub fn contains(&self, entity: EntityRef) -> bool {
        let state = self.lock();
        state.has_lease() && state.rows.contains(&entity)
    }

    /// This server drives the rows from now on, if it has a lease.
    pub fn extend(&self, entities: impl IntoIterator<Item = EntityRef>) {
        let mut state = self.lock();
        if !state.has_lease() {
            return;
        }
        for entity in entities {
            state.change(entity, true);
        }
    }

    /// Another server drives the row, or nobody needs to.
    pub fn remove(&self, entity: EntityRef) {
        self.lock().change(entity, false);
    }

    /// The database is about to be asked for all rows: what changes until the answer comes is newer than the answer.
    pub fn begin_refresh(&self) {
        self.lock().changes = Some(HashMap::new());
    }

    /// Takes the database's answer.
    pub fn finish_refresh(&self, entities: impl IntoIterator<Item = EntityRef>) {
        let mut state = self.lock();
        let changes = state.changes.take().unwrap_or_default();
        let removed = |entity: &EntityRef| changes.get(entity) == Some(&false);
        let mut rows: HashSet<EntityRef> = entities.into_iter().filter(|entity| !removed(entity)).collect();
        rows.extend(
            changes
                .into_iter()
                .filter_map(|(entity, added)| added.then_some(entity)),
        );
        state.rows = rows;
    }

    /// The lease that this server has now.
    pub fn term(&self) -> Option<Arc<Term>> {
        self.lock().term.clone().filter(|term| term.is_current())
    }

    /// This server has a lease. Which rows it drives is asked for next.
    pub fn begin_term(&self, term: Arc<Term>) {
        *self.lock() = State {
            term: Some(term),
            ..State::default()
        };
    }

    /// The lease has run out: this server drives nothing. Returns when all work that was done under it has stopped.
    pub async fn end_term(&self) {
        let ended = std::mem::take(&mut *self.lock()).term;
        if let Some(term) = ended {
            term.end();
            term.stopped().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use dstack_store::Lease;
    use tokio::time::Instant;

    use super::*;

    fn run(n: u128) -> EntityRef {
        EntityRef::Run(uuid::Uuid::from_u128(n).into())
    }

    fn term(until: Option<Instant>) -> Arc<Term> {
        let lease = Lease {
            owner: "a".to_owned(),
            process: uuid::Uuid::nil(),
            generation: 1,
        };
        Arc::new(Term::new(lease, until))
    }

    fn held() -> LeaseSet {
        let leases = LeaseSet::default();
        leases.begin_term(term(None));
        leases
    }

    fn contained(leases: &LeaseSet) -> Vec<u128> {
        (1..=5).filter(|n| leases.contains(run(*n))).collect()
    }

    #[test]
    fn what_comes_while_the_database_is_asked_is_not_forgotten() {
        let leases = held();
        leases.extend([run(1), run(2)]);
        leases.begin_refresh();
        leases.extend([run(3), run(4)]);
        leases.remove(run(4));
        leases.finish_refresh([run(2)]);
        assert_eq!(contained(&leases), [2, 3]);
    }

    #[test]
    fn what_goes_while_the_database_is_asked_does_not_come_back_with_its_answer() {
        let leases = held();
        leases.extend([run(1), run(2), run(3)]);
        leases.begin_refresh();
        leases.remove(run(1));
        leases.remove(run(2));
        leases.extend([run(2)]);
        // As it was when the question was asked.
        leases.finish_refresh([run(1), run(2), run(3)]);
        assert_eq!(contained(&leases), [2, 3]);
    }

    #[tokio::test(start_paused = true)]
    async fn nothing_is_driven_after_the_lease_has_run_out() {
        let leases = LeaseSet::default();
        leases.extend([run(1)]);
        assert_eq!(contained(&leases), [], "no lease yet");
        leases.begin_term(term(Some(Instant::now() + Duration::from_secs(6))));
        leases.extend([run(1)]);
        tokio::time::advance(Duration::from_millis(5999)).await;
        assert_eq!(contained(&leases), [1]);
        tokio::time::advance(Duration::from_millis(1)).await;
        assert_eq!(contained(&leases), []);
        assert!(leases.term().is_none());
    }
}
