//! Which rows this server drives.
//!
//! The database decides; this is what it said last. Whoever acts on what is out of date is stopped by the versions of the
//! rows, and by agents that know jobs by their id.

use std::collections::HashSet;
use std::sync::{Mutex, MutexGuard, PoisonError};

use dstack_store::EntityRef;

/// The rows this server drives.
#[derive(Debug, Default)]
pub struct Owned {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    rows: HashSet<EntityRef>,
    /// What came while the database was being asked for all.
    meanwhile: Option<HashSet<EntityRef>>,
}

impl Owned {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether this server drives the row.
    pub fn has(&self, entity: EntityRef) -> bool {
        self.lock().rows.contains(&entity)
    }

    /// It does from now on.
    pub fn extend(&self, entities: impl IntoIterator<Item = EntityRef>) {
        let mut state = self.lock();
        for entity in entities {
            state.rows.insert(entity);
            if let Some(meanwhile) = &mut state.meanwhile {
                meanwhile.insert(entity);
            }
        }
    }

    /// Another server does, or nobody needs to.
    pub fn remove(&self, entity: EntityRef) {
        let mut state = self.lock();
        state.rows.remove(&entity);
        if let Some(meanwhile) = &mut state.meanwhile {
            meanwhile.remove(&entity);
        }
    }

    /// The database is going to be asked for all of them.
    pub fn asking(&self) {
        self.lock().meanwhile = Some(HashSet::new());
    }

    /// The answer.
    pub fn all(&self, entities: impl IntoIterator<Item = EntityRef>) {
        let mut state = self.lock();
        let meanwhile = state.meanwhile.take().unwrap_or_default();
        state.rows = entities.into_iter().chain(meanwhile).collect();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(n: u128) -> EntityRef {
        EntityRef::Run(uuid::Uuid::from_u128(n).into())
    }

    #[test]
    fn what_comes_while_the_database_is_asked_is_not_forgotten() {
        let owned = Owned::default();
        owned.extend([run(1), run(2)]);
        owned.asking();
        owned.extend([run(3), run(4)]);
        owned.remove(run(4));
        owned.all([run(2)]);
        let has: Vec<bool> = (1..=4).map(|n| owned.has(run(n))).collect();
        assert_eq!(has, [false, true, true, false]);
    }
}
