//! Requests that wait for the first replica of their service, and who acts on what happens to requests.

use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use arc_swap::ArcSwap;
use async_trait::async_trait;
use dstack_engine::services::RequestObserver;
use dstack_proxy::{Routes, Service, Starter};
use dstack_system::Locked;
use dstack_units::RunId;
use tokio::sync::Notify;
use tokio::time::Instant;

/// Whoever acts on requests is told so often, at most, of those that wait for the same service: clients may come and go.
const REPORT_INTERVAL: Duration = Duration::from_secs(1);

/// Whom a service keeps waiting.
#[derive(Debug)]
pub(super) struct Waiting {
    routes: Arc<ArcSwap<Routes>>,
    rerouted: Notify,
    /// Requests to another service have begun to wait.
    begun: Notify,
    /// The services that requests wait for.
    awaited: Locked<HashMap<RunId, Awaited>>,
    /// When it was reported last that requests wait for a service, of the last while.
    reported: Locked<HashMap<RunId, Instant>>,
    observer: Locked<Option<Weak<dyn RequestObserver>>>,
}

/// Requests that wait for the same service.
#[derive(Debug, Default)]
struct Awaited {
    requests: usize,
    is_reported: bool,
}

impl Waiting {
    /// For replicas of these routes.
    pub(super) fn new(routes: Arc<ArcSwap<Routes>>) -> Self {
        Self {
            routes,
            rerouted: Notify::new(),
            begun: Notify::new(),
            awaited: Locked::default(),
            reported: Locked::default(),
            observer: Locked::default(),
        }
    }

    /// The routes have changed.
    pub(super) fn look_again(&self) {
        self.rerouted.notify_waiters();
    }

    /// Ends when requests to another service have begun to wait.
    pub(super) async fn begun(&self) {
        self.begun.notified().await;
    }

    /// Whether requests to the service wait.
    pub(super) fn is_awaited(&self, run: RunId) -> bool {
        self.awaited.lock().contains_key(&run)
    }

    /// Tells this one from now on.
    pub(super) fn report_to(&self, observer: Weak<dyn RequestObserver>) {
        *self.observer.lock() = Some(observer);
    }

    /// Tells whoever is told, if somebody is.
    pub(super) fn report(&self, tell: impl FnOnce(&dyn RequestObserver)) {
        let observer = self.observer.lock().clone();
        if let Some(observer) = observer.and_then(|observer| observer.upgrade()) {
            tell(observer.as_ref());
        }
    }

    /// One more request waits, until the answer is dropped.
    fn begin(&self, run: RunId) -> Place<'_> {
        self.awaited.lock().entry(run).or_default().requests += 1;
        Place { waiting: self, run }
    }

    /// Has it reported that requests to the service wait, if it was not since they do.
    async fn report_awaited(&self, run: RunId) {
        if self.is_reported(run) {
            return;
        }
        if let Some(at) = self.reportable_at(run) {
            tokio::time::sleep_until(at).await;
        }
        // Another one may have been first.
        if !self.is_reported(run) {
            self.note_reported(run);
            self.report(|observer| observer.awaited(run));
            self.begun.notify_one();
        }
    }

    fn is_reported(&self, run: RunId) -> bool {
        let awaited = self.awaited.lock();
        awaited.get(&run).is_none_or(|awaited| awaited.is_reported)
    }

    /// `None`: at once.
    fn reportable_at(&self, run: RunId) -> Option<Instant> {
        let reported = self.reported.lock().get(&run).copied();
        reported.map(|at| at + REPORT_INTERVAL)
    }

    fn note_reported(&self, run: RunId) {
        if let Some(awaited) = self.awaited.lock().get_mut(&run) {
            awaited.is_reported = true;
        }
        let now = Instant::now();
        let mut reported = self.reported.lock();
        reported.retain(|_, at| now < *at + REPORT_INTERVAL);
        reported.insert(run, now);
    }

    /// The same run once it has replicas; `None`: it is not routed any more.
    async fn with_replicas(&self, service: &Service) -> Option<Arc<Service>> {
        loop {
            let rerouted = self.rerouted.notified();
            let present = self.present(service)?;
            if present.has_replicas() {
                return Some(present);
            }
            rerouted.await;
        }
    }

    /// The same run as it is routed now.
    fn present(&self, service: &Service) -> Option<Arc<Service>> {
        let routes = self.routes.load();
        let found = routes.service(&service.project, &service.run)?;
        (found.run_id == service.run_id).then(|| Arc::clone(found))
    }
}

#[async_trait]
impl Starter for Waiting {
    async fn start(&self, service: &Service) -> Option<Arc<Service>> {
        let _place = self.begin(service.run_id);
        let report = async {
            self.report_awaited(service.run_id).await;
            std::future::pending().await
        };
        tokio::select! {
            biased;
            present = self.with_replicas(service) => present,
            never = report => never,
        }
    }
}

/// A request that waits.
struct Place<'w> {
    waiting: &'w Waiting,
    run: RunId,
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        let mut awaited = self.waiting.awaited.lock();
        if let Some(of_run) = awaited.get_mut(&self.run) {
            of_run.requests -= 1;
            if of_run.requests == 0 {
                awaited.remove(&self.run);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use dstack_units::JobId;
    use futures_util::FutureExt as _;

    use super::*;

    /// How often it was told of requests that wait.
    #[derive(Debug, Default)]
    struct Told(AtomicUsize);

    impl RequestObserver for Told {
        fn idle(&self, _: JobId) {}

        fn awaited(&self, _: RunId) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }

        fn published(&self, _: RunId) {}

        fn worker_changed(&self, _: RunId, _: JobId) {}
    }

    #[tokio::test(start_paused = true)]
    async fn clients_that_come_and_go_are_reported_once_a_second() {
        let told = Arc::new(Told::default());
        let weak: Weak<dyn RequestObserver> = Arc::<Told>::downgrade(&told);
        let times = || told.0.load(Ordering::Relaxed);
        let waiting = Waiting::new(Arc::default());
        waiting.report_to(weak);
        let run = RunId::new(uuid::Uuid::from_u128(1));
        let first = waiting.begin(run);
        waiting.report_awaited(run).await;
        assert_eq!(times(), 1);
        let second = waiting.begin(run);
        waiting.report_awaited(run).await;
        assert_eq!(times(), 1, "somebody waits already");
        drop((first, second));
        for _ in 0..100 {
            let _place = waiting.begin(run);
            assert!(waiting.report_awaited(run).now_or_never().is_none());
        }
        assert_eq!(times(), 1);
        // Who stays is reported.
        let _place = waiting.begin(run);
        let began = Instant::now();
        waiting.report_awaited(run).await;
        assert_eq!((times(), began.elapsed()), (2, REPORT_INTERVAL));
    }
}
