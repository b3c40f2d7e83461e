//! What has changed, told to clients that show it: a stream of server-sent events for each.
//!
//! What is written is gathered for a moment and told together, so that a busy server wakes its clients ten times a second and
//! not a thousand times. What was told last is kept, so that a client that was away for a moment goes on where it was. Clients
//! are told what is to be read again, and not what it is now: what they may see of it, the routes decide that they read.

mod follower;
mod interest;
mod others;
mod recent;

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use dstack_model::changes::{Changed, ChangedKind};
use dstack_store::{ChangeObserver, Database};
use dstack_system::{Locked, Random, task};
use dstack_units::{ProjectId, RunId, UserId};
use tokio::sync::{Notify, Semaphore};
use tokio_util::sync::CancellationToken;

use crate::access::Access;
use crate::error::{ApiError, Result};
use crate::state::Data;
pub(crate) use follower::follow;
use interest::Interest;
use recent::{Recent, Since};

/// How long what is written is gathered before it is told.
const GATHERED_FOR: Duration = Duration::from_millis(20);

/// Pause after that.
const PAUSE: Duration = Duration::from_millis(80);

/// Followers at a time, unless the number of connections says otherwise.
const MAX_FOLLOWERS: usize = 5_000;

/// One user has a part of them at most: a client that begins anew without end does not take the places of all others.
const SHARE_OF_USER: usize = 4;

/// Rights that are looked up at the same time, when those of all followers may have changed.
const LOOK_UPS: usize = 8;

/// Tells followers what has changed. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Live(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    state: Locked<State>,
    /// Something was gathered.
    gathered: Notify,
    /// What was gathered has been told here, and may be told to others.
    for_others: Notify,
    /// Whether other servers write as well.
    is_shared: bool,
    max_followers: AtomicUsize,
    look_ups: Semaphore,
    stopped: CancellationToken,
}

#[derive(Debug)]
struct State {
    recent: Recent,
    followers: HashMap<u64, Following>,
    by_user: HashMap<UserId, usize>,
    /// How many follow the output of a run.
    by_run: HashMap<RunId, usize>,
    next: u64,
}

/// A follower as those see it who tell.
#[derive(Debug)]
struct Following {
    interest: Interest,
    wake: Arc<Notify>,
}

impl ChangeObserver for Inner {
    fn changed(&self, changed: BTreeSet<Changed>) {
        self.state.lock().recent.add(changed);
        self.gathered.notify_one();
    }
}

impl Live {
    /// Hears of what is written to this database. Nobody is told before [`Live::start`].
    pub(crate) fn of(database: &Database, random: &Random) -> Self {
        let recent = Recent::new(random.uuid(), database.is_shared());
        let inner = Arc::new(Inner {
            state: Locked::new(State {
                recent,
                followers: HashMap::new(),
                by_user: HashMap::new(),
                by_run: HashMap::new(),
                next: 0,
            }),
            gathered: Notify::new(),
            for_others: Notify::new(),
            is_shared: database.is_shared(),
            max_followers: AtomicUsize::new(MAX_FOLLOWERS),
            look_ups: Semaphore::new(LOOK_UPS),
            stopped: CancellationToken::new(),
        });
        database.observe(Arc::clone(&inner) as _);
        Self(inner)
    }

    /// Half of the connections may be those of followers.
    pub fn limit(&self, connections: usize) {
        self.0
            .max_followers
            .store((connections / 2).max(SHARE_OF_USER), Ordering::Relaxed);
    }

    /// Tells followers until the server stops.
    pub fn start(&self, data: &Data, access: &Arc<Access>, stop: CancellationToken) {
        let (database, me) = (&data.database, data.random.uuid().to_string());
        let (live, until) = (self.clone(), stop.clone());
        task::spawn_restarted("tell of changes", move || {
            let (live, stop) = (live.clone(), until.clone());
            async move {
                tokio::select! {
                    () = stop.cancelled() => live.end(),
                    () = live.tell() => {}
                }
            }
        });
        let (live, access, until) = (self.clone(), Arc::clone(access), stop.clone());
        task::spawn_restarted("follow rights", move || {
            let (live, access, stop) = (live.clone(), Arc::clone(&access), until.clone());
            async move {
                tokio::select! {
                    () = stop.cancelled() => {}
                    () = live.heed_rights(&access) => {}
                }
            }
        });
        if self.0.is_shared {
            others::start(self.clone(), database.clone(), me, stop);
        }
    }

    /// Output of a run was stored: told to those who follow it.
    pub(crate) fn output_stored(&self, project: ProjectId, run: RunId) {
        let mut state = self.0.state.lock();
        let is_followed = state.by_run.contains_key(&run);
        if self.0.is_shared || is_followed {
            let stored = Changed::of(ChangedKind::Logs, project, run.uuid());
            state.recent.add_output(stored, is_followed);
            drop(state);
            self.0.gathered.notify_one();
        }
    }

    async fn tell(&self) {
        loop {
            self.0.gathered.notified().await;
            tokio::time::sleep(GATHERED_FOR).await;
            self.tell_followers();
            self.0.for_others.notify_one();
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// Takes what is to be told to servers that share the database, once there is something; an inner `None`: anything may have
    /// changed.
    async fn for_others(&self) -> Option<BTreeSet<Changed>> {
        loop {
            self.0.for_others.notified().await;
            let taken = self.0.state.lock().recent.take_for_others();
            if let Some(changed) = taken {
                return changed;
            }
        }
    }

    /// Tells what was gathered.
    fn tell_followers(&self) {
        let mut state = self.0.state.lock();
        if let Some(batch) = state.recent.close_batch() {
            for following in state.followers.values() {
                if following.interest.may_concern(&batch) {
                    following.wake.notify_one();
                }
            }
        }
    }

    /// Wakes all followers when somebody's rights may have changed: they look whether it is theirs.
    async fn heed_rights(&self, access: &Access) {
        let mut epoch = access.epoch();
        loop {
            let news = access.news();
            let now = access.epoch();
            if now != epoch {
                epoch = now;
                self.wake_all();
            }
            news.await;
        }
    }

    fn wake_all(&self) {
        for following in self.0.state.lock().followers.values() {
            following.wake.notify_one();
        }
    }

    fn end(&self) {
        self.0.stopped.cancel();
        self.wake_all();
    }

    /// Adds what another server has told; `None`: anything may have changed.
    fn hear(&self, changed: Option<BTreeSet<Changed>>) {
        let mut state = self.0.state.lock();
        match changed {
            Some(mut changed) => {
                changed.retain(|one| match (one.kind, one.id) {
                    (ChangedKind::Logs, Some(run)) => state.by_run.contains_key(&RunId::from(run)),
                    _ => true,
                });
                state.recent.hear(changed);
            }
            None => state.recent.lose_track(),
        }
        drop(state);
        self.0.gathered.notify_one();
    }

    /// Number of the last batch.
    fn last(&self) -> u64 {
        self.0.state.lock().recent.last()
    }

    /// The batch that a client names; `None`: it is of another process, or nothing.
    fn number(&self, name: &str) -> Option<u64> {
        self.0.state.lock().recent.number(name)
    }

    /// How clients name a batch.
    fn name(&self, number: u64) -> String {
        self.0.state.lock().recent.name(number)
    }

    fn is_stopped(&self) -> bool {
        self.0.stopped.is_cancelled()
    }

    /// Looks up what somebody may see, together with few others.
    async fn look_up<T>(&self, work: impl Future<Output = T>) -> T {
        // Never closed: an error cannot come.
        let _turn = self.0.look_ups.acquire().await.ok();
        work.await
    }

    /// A place among the followers.
    ///
    /// # Errors
    /// 429 when there is none.
    fn enter(&self, interest: Interest) -> Result<Place> {
        let mut state = self.0.state.lock();
        let most = self.0.max_followers.load(Ordering::Relaxed);
        let own = state.by_user.get(&interest.user).copied().unwrap_or_default();
        if state.followers.len() >= most || own >= most.div_ceil(SHARE_OF_USER) {
            return Err(ApiError::TooMany {
                msg: "Too many clients follow changes. Ask for what is shown now and then instead",
                retry_after: Duration::from_secs(60),
            });
        }
        *state.by_user.entry(interest.user).or_default() += 1;
        if let Some(run) = interest.run {
            *state.by_run.entry(run).or_default() += 1;
        }
        let (id, wake) = (state.next, Arc::new(Notify::new()));
        state.next += 1;
        let place = Place {
            inner: Arc::clone(&self.0),
            id,
            wake: Arc::clone(&wake),
        };
        state.followers.insert(id, Following { interest, wake });
        Ok(place)
    }
}

/// A follower's place, given back when it is dropped.
#[derive(Debug)]
struct Place {
    inner: Arc<Inner>,
    id: u64,
    wake: Arc<Notify>,
}

impl Place {
    /// What was told after that batch; the number is of the last one that there is.
    fn since(&self, number: u64) -> Since {
        self.inner.state.lock().recent.since(number)
    }

    /// The follower may see something else from now on.
    fn see(&self, interest: Interest) {
        let mut state = self.inner.state.lock();
        if let Some(following) = state.followers.get_mut(&self.id) {
            following.interest = interest;
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut state = self.inner.state.lock();
        let Some(Following { interest, .. }) = state.followers.remove(&self.id) else {
            return;
        };
        count_down(&mut state.by_user, interest.user);
        if let Some(run) = interest.run {
            count_down(&mut state.by_run, run);
        }
    }
}

/// One less; nothing is kept of what there is none of.
fn count_down<K: std::hash::Hash + Eq>(counts: &mut HashMap<K, usize>, key: K) {
    if let std::collections::hash_map::Entry::Occupied(mut count) = counts.entry(key) {
        *count.get_mut() -= 1;
        if *count.get() == 0 {
            count.remove();
        }
    }
}
