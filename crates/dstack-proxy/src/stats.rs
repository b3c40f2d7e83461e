//! What is counted of the requests of each service: for autoscaling and metrics. A request counts when it ends, if it reached a
//! replica, or should have; for autoscaling when it comes.

mod histogram;
mod occupancy;
mod strain;
mod windows;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use arc_swap::ArcSwap;
use dstack_system::Locked;
use dstack_units::{JobId, RunId};
use http::StatusCode;
use tokio::time::Instant;

pub use histogram::{BUCKETS, Histogram};
use occupancy::Occupancy;
use windows::Frames;
pub use windows::{Strain, Window};

use crate::access_log::Access;
use crate::models::{Accounting, TokenUsage};
use crate::routes::Service;
use crate::split::Tally;

/// Lengths of the windows, in seconds.
pub const WINDOWS: [u64; 3] = [30, 60, 300];

/// Most services that are remembered.
const MAX_SERVICES: usize = 10_000;

/// Status of a request whose client has gone before the answer began, as nginx has it.
const CLIENT_GONE: u16 = 499;

/// The counts of one service.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Snapshot {
    /// Requests of the last 30, 60 and 300 s.
    pub windows: [Window; WINDOWS.len()],
    /// Requests by the first digit of their status: 1 (upgraded connections) to 5. A client that goes before the answer begins
    /// counts as 4.
    pub by_class: [u64; 5],
    /// Time until the head of the answer.
    pub head: Histogram,
    /// Time until the end of the answer, of upgraded connections until they were closed.
    pub total: Histogram,
    /// Requests under way now.
    pub under_way: u64,
    /// What answers of its model took, as far as they said so.
    pub tokens: TokenUsage,
}

/// The counts of all services, 10,000 at most: of more, the one is forgotten whose last request came first.
#[derive(Debug)]
pub struct StatsRegistry {
    since: Instant,
    most: usize,
    services: ArcSwap<HashMap<RunId, Arc<ServiceStats>>>,
}

impl Default for StatsRegistry {
    fn default() -> Self {
        Self {
            since: Instant::now(),
            most: MAX_SERVICES,
            services: ArcSwap::default(),
        }
    }
}

impl StatsRegistry {
    /// The counts of a service now; `None` before its first request.
    pub fn snapshot(&self, run: RunId) -> Option<Snapshot> {
        let services = self.services.load();
        Some(services.get(&run)?.snapshot(Instant::now()))
    }

    /// Requests to a service that came within the last `seconds`, 300 at most, or are still under way, if those are more. `None`:
    /// nothing was counted yet for so long.
    pub fn load(&self, run: RunId, seconds: u64) -> Option<u64> {
        let now = Instant::now();
        if now.saturating_duration_since(self.since) < Duration::from_secs(seconds) {
            return None;
        }
        let services = self.services.load();
        Some(services.get(&run).map_or(0, |stats| stats.load(now, seconds)))
    }

    /// So many requests to a service have come elsewhere: they count for its load.
    pub fn add_arrived(&self, run: RunId, requests: u64) {
        if requests > 0 {
            let stats = self.of(run);
            let second = stats.second(Instant::now());
            stats.counts.lock().frames.arrive(second, requests);
        }
    }

    /// Requests to a service that have come here since the beginning.
    pub fn arrived(&self, run: RunId) -> u64 {
        let services = self.services.load();
        services.get(&run).map_or(0, |stats| stats.counts.lock().arrived)
    }

    /// Forgets a service. A request to it that comes later is counted from 0, until it is forgotten again.
    pub fn forget(&self, run: RunId) {
        self.retain(|one| one != run);
    }

    /// Forgets all services but these.
    pub fn retain(&self, keep: impl Fn(RunId) -> bool) {
        if self.services.load().keys().all(|run| keep(*run)) {
            return;
        }
        self.services.rcu(|services| {
            let kept = services.iter().filter(|(run, _)| keep(**run));
            kept.map(|(run, stats)| (*run, Arc::clone(stats)))
                .collect::<HashMap<_, _>>()
        });
    }

    /// A request to a service begins at this time.
    pub(crate) fn begin(&self, run: RunId, started: Instant) -> Record {
        let stats = self.of(run);
        stats.begin(started);
        Record {
            stats,
            started,
            head: None,
            status: CLIENT_GONE,
            awaits_piece: false,
            has_waited_for_start: false,
            access: None,
            tally: None,
        }
    }

    fn of(&self, run: RunId) -> Arc<ServiceStats> {
        if let Some(known) = self.services.load().get(&run) {
            return Arc::clone(known);
        }
        let new = Arc::new(ServiceStats {
            since: self.since,
            last: AtomicU64::new(0),
            under_way: AtomicU64::new(0),
            counts: Locked::default(),
        });
        new.asked(Instant::now());
        let before = self.services.rcu(|services| {
            let mut services = HashMap::clone(services);
            if services.len() >= self.most && !services.contains_key(&run) {
                forget_oldest(&mut services);
            }
            services.entry(run).or_insert_with(|| Arc::clone(&new));
            services
        });
        // Somebody else may have been first.
        before.get(&run).map_or(new, Arc::clone)
    }
}

fn forget_oldest(services: &mut HashMap<RunId, Arc<ServiceStats>>) {
    let last = |(_, stats): &(&RunId, &Arc<ServiceStats>)| stats.last.load(Ordering::Relaxed);
    let oldest = services.iter().min_by_key(last).map(|(run, _)| *run);
    if let Some(oldest) = oldest {
        services.remove(&oldest);
    }
}

#[derive(Debug)]
struct ServiceStats {
    /// Seconds of frames count from here.
    since: Instant,
    /// When the last request came, in milliseconds since then.
    last: AtomicU64,
    /// Requests under way.
    under_way: AtomicU64,
    counts: Locked<Counts>,
}

#[derive(Debug, Default)]
struct Counts {
    frames: Frames,
    occupancy: Occupancy,
    /// First pieces that have come, and how long they took.
    waited: Strain,
    /// Requests that have come.
    arrived: u64,
    by_class: [u64; 5],
    head: Histogram,
    total: Histogram,
    tokens: TokenUsage,
}

impl Accounting for StatsRegistry {
    fn used(&self, service: &Service, usage: TokenUsage) {
        let stats = self.of(service.run_id);
        let mut counts = stats.counts.lock();
        // What a model says may be anything.
        let TokenUsage { prompt, completion } = &mut counts.tokens;
        *prompt = prompt.saturating_add(usage.prompt);
        *completion = completion.saturating_add(usage.completion);
    }
}

impl ServiceStats {
    fn asked(&self, now: Instant) {
        let millis = now.saturating_duration_since(self.since).as_millis();
        self.last
            .fetch_max(u64::try_from(millis).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    fn begin(&self, now: Instant) {
        self.asked(now);
        self.under_way.fetch_add(1, Ordering::Relaxed);
        let since = self.since(now);
        let mut counts = self.counts.lock();
        let counts = &mut *counts;
        counts.arrived += 1;
        counts.frames.arrive(since.as_secs(), 1);
        counts.occupancy.begin(since, &mut counts.frames);
    }

    fn load(&self, now: Instant, seconds: u64) -> u64 {
        let arrived = self.counts.lock().frames.arrived(self.second(now), seconds);
        arrived.max(self.under_way.load(Ordering::Relaxed))
    }

    fn since(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.since)
    }

    fn second(&self, now: Instant) -> u64 {
        self.since(now).as_secs()
    }

    fn add(&self, now: Instant, status: u16, head: Duration, total: Duration) {
        let since = self.since(now);
        let class = usize::from(status / 100).saturating_sub(1);
        let mut counts = self.counts.lock();
        let counts = &mut *counts;
        counts.occupancy.end(since, &mut counts.frames);
        counts.frames.add(since.as_secs(), head, total);
        if let Some(count) = counts.by_class.get_mut(class) {
            *count += 1;
        }
        counts.head.add(head);
        counts.total.add(total);
    }

    fn snapshot(&self, now: Instant) -> Snapshot {
        let second = self.second(now);
        let counts = self.counts.lock();
        Snapshot {
            windows: WINDOWS.map(|seconds| counts.frames.window(second, seconds)),
            by_class: counts.by_class,
            head: counts.head.clone(),
            total: counts.total.clone(),
            under_way: self.under_way.load(Ordering::Relaxed),
            tokens: counts.tokens,
        }
    }
}

/// A request that is counted when this is dropped.
#[derive(Debug)]
pub(crate) struct Record {
    stats: Arc<ServiceStats>,
    started: Instant,
    head: Option<Duration>,
    status: u16,
    /// How long the first piece of the answer takes is yet to be counted.
    awaits_piece: bool,
    /// A replica had to be started for it.
    has_waited_for_start: bool,
    /// `None`: nobody wants to read of it.
    access: Option<Box<Access>>,
    /// `None`: its service has one deployment only.
    tally: Option<Tally>,
}

impl Record {
    /// A line is written of the request when it is over.
    pub(crate) fn log(&mut self, access: Option<Access>) {
        self.access = access.map(Box::new);
    }

    /// This replica answers.
    pub(crate) fn answered_by(&mut self, replica: JobId) {
        if let Some(access) = &mut self.access {
            access.replica = Some(replica);
        }
    }

    /// What becomes of it counts for its side of a roll-out as well.
    pub(crate) fn count_for(&mut self, tally: Option<Tally>) {
        self.tally = tally;
    }

    /// The answer has broken off.
    pub(crate) const fn broke(&mut self) {
        if let Some(tally) = &mut self.tally {
            tally.broke();
        }
    }

    /// The answer has begun.
    pub(crate) fn answered(&mut self, status: StatusCode) {
        self.status = status.as_u16();
        self.head = Some(self.started.elapsed());
    }
}

impl Drop for Record {
    fn drop(&mut self) {
        let now = Instant::now();
        let total = now.saturating_duration_since(self.started);
        self.stats.under_way.fetch_sub(1, Ordering::Relaxed);
        let head = self.head.unwrap_or(total);
        self.stats.add(now, self.status, head, total);
        if let Some(tally) = self.tally.take() {
            tally.ended(self.status, head);
        }
        if let Some(access) = &self.access {
            access.write(self.status, head, total);
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;
    use uuid::Uuid;

    use super::*;

    fn run(number: u128) -> RunId {
        RunId::new(Uuid::from_u128(number))
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_counts_when_it_ends() {
        let stats = StatsRegistry::default();
        let mut record = stats.begin(run(1), Instant::now());
        advance(Duration::from_secs(2)).await;
        record.answered(StatusCode::OK);
        advance(Duration::from_secs(4)).await;
        let under_way = Snapshot {
            under_way: 1,
            ..empty()
        };
        assert_eq!(stats.snapshot(run(1)).unwrap(), under_way);
        drop(record);
        let snapshot = stats.snapshot(run(1)).unwrap();
        let times = |window: Window| {
            (
                window.seconds,
                window.requests,
                window.head_time,
                window.request_time,
            )
        };
        assert_eq!(
            snapshot.windows.map(times),
            [(30, 1, 2.0, 6.0), (60, 1, 2.0, 6.0), (300, 1, 2.0, 6.0)]
        );
        assert_eq!((snapshot.by_class, snapshot.under_way), ([0, 1, 0, 0, 0], 0));
        advance(Duration::from_secs(30)).await;
        assert_eq!(
            stats
                .snapshot(run(1))
                .unwrap()
                .windows
                .map(|window| window.requests),
            [0, 1, 1]
        );
    }

    fn empty() -> Snapshot {
        Snapshot {
            windows: WINDOWS.map(|seconds| Window {
                seconds,
                ..Window::default()
            }),
            ..Snapshot::default()
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_goes_before_the_answer_counts_as_its_own_fault() {
        let stats = StatsRegistry::default();
        drop(stats.begin(run(1), Instant::now()));
        assert_eq!(stats.snapshot(run(1)).unwrap().by_class, [0, 0, 0, 1, 0]);
    }

    #[tokio::test(start_paused = true)]
    async fn for_scaling_a_request_counts_when_it_comes_and_as_long_as_it_is_under_way() {
        let stats = StatsRegistry::default();
        let long = stats.begin(run(1), Instant::now());
        drop(stats.begin(run(1), Instant::now()));
        assert_eq!(stats.load(run(1), 30), None, "it has not counted for so long");
        advance(Duration::from_secs(30)).await;
        assert_eq!((stats.load(run(1), 30), stats.load(run(1), 60)), (Some(1), None));
        drop(stats.begin(run(1), Instant::now()));
        drop(stats.begin(run(1), Instant::now()));
        assert_eq!(stats.load(run(1), 30), Some(2));
        advance(Duration::from_secs(30)).await;
        assert_eq!(
            (stats.load(run(1), 30), stats.load(run(1), 60)),
            (Some(1), Some(2))
        );
        drop(long);
        assert_eq!(
            (stats.load(run(1), 30), stats.load(run(2), 30)),
            (Some(0), Some(0))
        );
        stats.add_arrived(run(1), 7);
        assert_eq!(stats.load(run(1), 30), Some(7));
        assert_eq!(stats.arrived(run(1)), 4, "of those that came here");
    }

    #[tokio::test(start_paused = true)]
    async fn of_too_many_services_the_one_is_forgotten_that_was_asked_first() {
        let stats = StatsRegistry {
            most: 3,
            ..StatsRegistry::default()
        };
        for number in [1, 2, 3, 1, 4] {
            advance(Duration::from_secs(1)).await;
            drop(stats.begin(run(number), Instant::now()));
        }
        let known = |number: &u128| stats.snapshot(run(*number)).is_some();
        assert_eq!((1..5).filter(known).collect::<Vec<_>>(), [1, 3, 4]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_that_ends_after_its_service_is_forgotten_counts_nowhere() {
        let stats = StatsRegistry::default();
        let record = stats.begin(run(1), Instant::now());
        drop(stats.begin(run(2), Instant::now()));
        stats.forget(run(1));
        drop(record);
        assert_eq!(stats.snapshot(run(1)), None);
        assert!(stats.snapshot(run(2)).is_some());
    }
}
