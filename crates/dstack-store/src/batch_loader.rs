//! Reads that come at the same time are made in one statement.
//!
//! The first is made at once. While it is under way the next gather, so that the busier the server is, the more of them
//! share what a statement costs.

use std::collections::{BTreeMap, BTreeSet};
use std::pin::Pin;
use std::sync::Arc;

use dstack_system::task;
use tokio::sync::{Mutex, mpsc, oneshot};

use crate::{Result, StoreError, outage};

/// Most keys of one statement.
const MAX_KEYS: usize = 64;

/// Statements under way at a time: one that hangs does not hold up all others.
const UNDER_WAY: usize = 2;

/// Reads that may wait; more of them wait for a place.
const WAITING: usize = 1024;

/// What a statement found, by key.
type Found<K, V> = Pin<Box<dyn Future<Output = Result<BTreeMap<K, V>>> + Send>>;

struct Waiting<K, V> {
    key: K,
    answer: oneshot::Sender<Result<Option<V>>>,
}

/// The way to the tasks that read. They end with the last of these.
#[derive(Debug)]
pub(crate) struct BatchLoader<K, V>(mpsc::Sender<Waiting<K, V>>);

impl<K, V> Clone for BatchLoader<K, V> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<K: Ord + Clone + Send + 'static, V: Clone + Send + 'static> BatchLoader<K, V> {
    /// Reads with `read`, which gets each key once.
    pub(crate) fn start(
        name: &'static str,
        read: impl Fn(Vec<K>) -> Found<K, V> + Send + Sync + 'static,
    ) -> Self {
        let (sender, waiting) = mpsc::channel(WAITING);
        let (waiting, read) = (Arc::new(Mutex::new(waiting)), Arc::new(read));
        for _ in 0..UNDER_WAY {
            let (waiting, read) = (Arc::clone(&waiting), Arc::clone(&read));
            task::spawn_restarted(name, move || answer_all(Arc::clone(&waiting), Arc::clone(&read)));
        }
        Self(sender)
    }

    /// What is stored under the key now.
    pub(crate) async fn get(&self, key: K) -> Result<Option<V>> {
        let (answer, answered) = oneshot::channel();
        self.0
            .send(Waiting { key, answer })
            .await
            .map_err(|_| StoreError::Closed)?;
        answered.await.map_err(|_| StoreError::Closed)?
    }
}

async fn answer_all<K: Ord + Clone, V: Clone>(
    waiting: Arc<Mutex<mpsc::Receiver<Waiting<K, V>>>>,
    read: Arc<impl Fn(Vec<K>) -> Found<K, V>>,
) {
    loop {
        let mut group = Vec::new();
        if waiting.lock().await.recv_many(&mut group, MAX_KEYS).await == 0 {
            return;
        }
        match read(keys(&group)).await {
            Ok(found) => {
                for Waiting { key, answer } in group {
                    answer.send(Ok(found.get(&key).cloned())).ok(); // the caller may have gone away
                }
            }
            Err(error) if error.unavailable().is_some() => {
                let errors = outage::copies(error, group.len());
                for (Waiting { answer, .. }, error) in group.into_iter().zip(errors) {
                    answer.send(Err(error)).ok();
                }
            }
            // One of them cannot be read: the others can.
            Err(_) => {
                for Waiting { key, answer } in group {
                    let alone = read(vec![key.clone()]).await;
                    answer.send(alone.map(|mut found| found.remove(&key))).ok();
                }
            }
        }
    }
}

/// Returns the keys of the group, each once.
fn keys<K: Ord + Clone, V>(group: &[Waiting<K, V>]) -> Vec<K> {
    let keys: BTreeSet<&K> = group.iter().map(|waiting| &waiting.key).collect();
    keys.into_iter().cloned().collect()
}

#[cfg(test)]
mod tests {
    use futures_util::future::join_all;
    use tokio::sync::Semaphore;

    use super::*;

    type Statements = Arc<std::sync::Mutex<Vec<Vec<u32>>>>;

    /// Doubles even numbers, and cannot read 13. Each statement is noted, then waits for a permit.
    fn doubling(permits: &Arc<Semaphore>, statements: &Statements) -> BatchLoader<u32, u32> {
        let (permits, statements) = (Arc::clone(permits), Arc::clone(statements));
        BatchLoader::start("doubling", move |keys| {
            let permits = Arc::clone(&permits);
            statements.lock().unwrap().push(keys.clone());
            Box::pin(async move {
                permits.acquire().await.unwrap().forget();
                if keys.contains(&13) {
                    return Err(StoreError::Undecryptable);
                }
                let even = keys.into_iter().filter(|key| key % 2 == 0);
                Ok(even.map(|key| (key, key * 2)).collect())
            })
        })
    }

    #[tokio::test]
    async fn what_comes_while_others_are_read_shares_the_next_statement() {
        let (permits, statements) = (Arc::new(Semaphore::new(0)), Statements::default());
        let reads = doubling(&permits, &statements);
        let ask = |keys: Vec<u32>| {
            let reads = reads.clone();
            task::spawn("ask", async move {
                join_all(keys.into_iter().map(|key| reads.get(key))).await
            })
        };
        let mut asked = Vec::new();
        for first in 0..2 {
            asked.push(ask(vec![first]));
            while statements.lock().unwrap().len() <= first as usize {
                tokio::task::yield_now().await;
            }
        }
        asked.push(ask(vec![6, 4, 5, 4]));
        tokio::task::yield_now().await;
        permits.add_permits(3);
        let mut answers = Vec::new();
        for asked in asked {
            answers.extend(asked.await.unwrap().unwrap().into_iter().map(Result::unwrap));
        }
        assert_eq!(answers, [Some(0), None, Some(12), Some(8), None, Some(8)]);
        assert_eq!(*statements.lock().unwrap(), [vec![0], vec![1], vec![4, 5, 6]]);
    }

    #[tokio::test]
    async fn what_cannot_be_read_does_not_keep_others_from_being_read() {
        let reads = doubling(&Arc::new(Semaphore::new(8)), &Statements::default());
        let answers = join_all([12, 13, 14].map(|key| reads.get(key))).await;
        assert_eq!(answers[0].as_ref().unwrap(), &Some(24));
        assert!(matches!(answers[1], Err(StoreError::Undecryptable)));
        assert_eq!(answers[2].as_ref().unwrap(), &Some(28));
    }
}
