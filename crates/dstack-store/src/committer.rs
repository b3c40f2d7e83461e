//! Commits that wait at the same time are written in one transaction, table by table.
//!
//! While a transaction is under way the next commits gather, so that the busier the server is, the more of them share the
//! statements and the flush to disk. PostgreSQL has two such lanes: what only adds rows has none in common with anybody, and
//! need not wait for changes of others, nor they for it. For the same reason additions have two writers: the database writes
//! those of one while the other gathers and binds the next.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

use dstack_system::task;
use futures_util::future::join_all;
use tokio::sync::{Mutex, mpsc, oneshot};

use crate::connection::{Extent, OwnConnection};
use crate::database::{Transactions, Tx, TxFuture};
use crate::encryption::RowKeys;
use crate::sql::add::{add_all, is_one_statement};
use crate::sql::write::{apply, apply_all};
use crate::{Commit, Result, StoreError, outage};

/// Most commits of one transaction.
const TOGETHER: usize = 64;

/// Writers of what only adds rows.
const ADDING: usize = 2;

/// Commits that may wait; more of them wait for a place.
const WAITING: usize = 1024;

struct Waiting {
    commit: Commit,
    done: oneshot::Sender<Result<()>>,
}

/// The ways to the tasks that write commits. They end with the last of these.
#[derive(Debug, Clone)]
pub(crate) struct Committer {
    changes: mpsc::Sender<Waiting>,
    additions: mpsc::Sender<Waiting>,
}

impl Committer {
    pub(crate) fn start(database: &Transactions) -> Self {
        let changes = lane(database, 1);
        let additions = match database.has_one_writer() {
            true => changes.clone(),
            false => lane(database, ADDING),
        };
        Self { changes, additions }
    }

    /// Whether the tasks that write are there.
    pub(crate) fn is_alive(&self) -> bool {
        !self.changes.is_closed() && !self.additions.is_closed()
    }

    /// Returns once the commit is durable, or refused as a whole.
    pub(crate) async fn commit(&self, commit: Commit) -> Result<()> {
        let (done, committed) = oneshot::channel();
        let lane = match commit.is_independent() {
            true => &self.additions,
            false => &self.changes,
        };
        lane.send(Waiting { commit, done })
            .await
            .map_err(|_| StoreError::Closed)?;
        committed.await.map_err(|_| StoreError::Closed)?
    }
}

fn lane(database: &Transactions, writers: usize) -> mpsc::Sender<Waiting> {
    let (sender, commits) = mpsc::channel(WAITING);
    let commits = Arc::new(Mutex::new(commits));
    for _ in 0..writers {
        let (database, commits) = (database.clone(), Arc::clone(&commits));
        task::spawn_restarted("commits", move || {
            write_all(database.clone(), Arc::clone(&commits))
        });
    }
    sender
}

async fn write_all(database: Transactions, commits: Arc<Mutex<mpsc::Receiver<Waiting>>>) {
    let mut queue = VecDeque::new();
    let mut own = database.own_connection();
    while gather(&mut queue, &commits).await {
        write(&database, &mut own, unrelated(&mut queue)).await;
    }
}

/// Takes what waits, and waits where nothing does; whether there is something to write.
async fn gather(queue: &mut VecDeque<Waiting>, commits: &Mutex<mpsc::Receiver<Waiting>>) -> bool {
    let mut commits = if queue.is_empty() {
        let mut commits = commits.lock().await;
        match commits.recv().await {
            Some(first) => queue.push_back(first),
            None => return false,
        }
        commits
    } else {
        match commits.try_lock() {
            Ok(commits) => commits,
            Err(_) => return true, // another writer waits there: what was left over need not
        }
    };
    while queue.len() < TOGETHER {
        match commits.try_recv() {
            Ok(next) => queue.push_back(next),
            Err(_) => break,
        }
    }
    true
}

/// Takes those that have no row in common with one before them: the others wait for its outcome.
fn unrelated(queue: &mut VecDeque<Waiting>) -> Vec<Waiting> {
    let mut rows = BTreeSet::new();
    let (mut taken, mut left) = (Vec::new(), VecDeque::new());
    for waiting in queue.drain(..) {
        let own = waiting.commit.rows();
        if rows.is_disjoint(&own) {
            taken.push(waiting);
        } else {
            left.push_back(waiting);
        }
        rows.extend(own);
    }
    *queue = left;
    taken
}

async fn write_together(own: &mut OwnConnection, keys: &RowKeys, commits: Arc<Vec<Commit>>) -> Result<()> {
    if !commits.iter().all(Commit::is_independent) {
        return own.write(Extent::Several, changing(keys, commits)).await;
    }
    let extent = match is_one_statement(&commits) {
        true => Extent::OneStatement,
        false => Extent::Several,
    };
    let keys = keys.clone();
    own.write(extent, move |tx| {
        Box::pin(async move { add_all(tx, &keys, &commits).await })
    })
    .await
}

fn changing(
    keys: &RowKeys,
    commits: Arc<Vec<Commit>>,
) -> impl for<'c> FnOnce(&'c mut Tx) -> TxFuture<'c, ()> + Send + use<> {
    let keys = keys.clone();
    move |tx| Box::pin(async move { apply_all(tx, &keys, &commits).await })
}

/// Writes them together; when one of them is refused, each by itself.
async fn write(database: &Transactions, own: &mut Option<OwnConnection>, group: Vec<Waiting>) {
    let (commits, done): (Vec<Commit>, Vec<_>) = group
        .into_iter()
        .map(|waiting| (waiting.commit, waiting.done))
        .unzip();
    let commits = Arc::new(commits);
    let together = match own {
        Some(own) => write_together(own, database.keys(), Arc::clone(&commits)).await,
        None => {
            database
                .write(changing(database.keys(), Arc::clone(&commits)))
                .await
        }
    };
    let outcomes: Vec<Result<()>> = match together {
        Ok(()) => commits.iter().map(|_| Ok(())).collect(),
        Err(error) if commits.len() == 1 => vec![Err(error)],
        // Not tried again: when the connection broke, nobody knows whether it is written already.
        Err(error) if error.unavailable().is_some() => {
            outage::copies(error, commits.len()).map(Err).collect()
        }
        Err(_) => {
            join_all((0..commits.len()).map(|at| {
                let (all, keys) = (Arc::clone(&commits), database.keys().clone());
                database.write(move |tx| {
                    Box::pin(async move {
                        match all.get(at) {
                            Some(commit) => apply(tx, &keys, commit).await,
                            None => Ok(()),
                        }
                    })
                })
            }))
            .await
        }
    };
    let observed = database.observed();
    if observed.is_observed() {
        for (commit, outcome) in commits.iter().zip(&outcomes) {
            observed.tell(commit.changed(), outcome);
        }
    }
    for (done, outcome) in done.into_iter().zip(outcomes) {
        done.send(outcome).ok(); // the caller may have gone away; its commit is made all the same
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn waiting() -> Waiting {
        Waiting {
            commit: Commit::default(),
            done: oneshot::channel().0,
        }
    }

    #[tokio::test]
    async fn what_a_writer_has_left_does_not_wait_for_another_writer_that_waits() {
        let (sender, commits) = mpsc::channel(WAITING);
        let commits = Mutex::new(commits);
        let (mut nothing, mut left) = (VecDeque::new(), VecDeque::from([waiting()]));
        {
            let mut idle = std::pin::pin!(gather(&mut nothing, &commits));
            assert!(futures_util::poll!(&mut idle).is_pending());
            let busy = std::pin::pin!(gather(&mut left, &commits));
            assert_eq!(futures_util::poll!(busy), std::task::Poll::Ready(true));
            sender.send(waiting()).await.ok().unwrap();
            assert!(idle.await);
        }
        assert_eq!((nothing.len(), left.len()), (1, 1));
        drop(sender);
        assert!(
            !gather(&mut VecDeque::new(), &commits).await,
            "nobody can commit any more"
        );
    }

    #[tokio::test]
    async fn as_many_as_wait_are_written_together_up_to_a_limit() {
        let (sender, commits) = mpsc::channel(WAITING);
        for _ in 0..TOGETHER + 5 {
            sender.send(waiting()).await.ok().unwrap();
        }
        let commits = Mutex::new(commits);
        let mut queue = VecDeque::new();
        for expected in [TOGETHER, 5] {
            assert!(gather(&mut queue, &commits).await);
            assert_eq!(queue.drain(..).count(), expected);
        }
    }
}
