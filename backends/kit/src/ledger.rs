use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Something that was made in an emulated cloud, and costs money until it is removed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// What it is, such as `machine`.
    pub kind: &'static str,
    /// By what the cloud knows it.
    pub id: String,
    /// The name that it was asked for with.
    pub name: String,
}

/// All that was ever made in an emulated cloud: the cloud's own books, which no backend sees.
#[derive(Debug, Default)]
pub struct Ledger(Mutex<Books>);

#[derive(Debug, Default)]
struct Books {
    alive: Vec<Entry>,
    made: usize,
    /// The most that were alive at the same time, by kind and name.
    most: HashMap<(&'static str, String), usize>,
}

impl Ledger {
    fn lock(&self) -> MutexGuard<'_, Books> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// It was made.
    pub fn made(&self, kind: &'static str, id: impl Into<String>, name: impl Into<String>) {
        let mut books = self.lock();
        let entry = Entry {
            kind,
            id: id.into(),
            name: name.into(),
        };
        let key = (kind, entry.name.clone());
        books.alive.push(entry);
        books.made += 1;
        let alive = books
            .alive
            .iter()
            .filter(|one| one.kind == kind && one.name == key.1);
        let alive = alive.count();
        let most = books.most.entry(key).or_default();
        *most = alive.max(*most);
    }

    /// It costs nothing any more.
    pub fn removed(&self, id: &str) {
        self.lock().alive.retain(|entry| entry.id != id);
    }

    /// What costs money now.
    pub fn alive(&self) -> Vec<Entry> {
        self.lock().alive.clone()
    }

    /// How many were made altogether.
    pub fn count(&self) -> usize {
        self.lock().made
    }

    /// Names of which there were several at the same time.
    pub fn doubled(&self) -> Vec<String> {
        let books = self.lock();
        let several = books.most.iter().filter(|(_, most)| **most > 1);
        several
            .map(|((kind, name), most)| format!("{most} x {kind} {name}"))
            .collect()
    }
}
