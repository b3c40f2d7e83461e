//! Requests that wait for the first replica of their service, and who acts on what happens to requests.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use arc_swap::ArcSwap;
use async_trait::async_trait;
use dstack_engine::services::RequestObserver;
use dstack_proxy::{Routes, Service, Starter};
use dstack_system::Locked;
use dstack_units::RunId;
use tokio::sync::Notify;

/// Whom a service keeps waiting.
#[derive(Debug)]
pub(super) struct Waiting {
    routes: Arc<ArcSwap<Routes>>,
    rerouted: Notify,
    /// Requests to another service have begun to wait.
    begun: Notify,
    /// How many requests to each service wait.
    requests: Locked<HashMap<RunId, usize>>,
    observer: Locked<Option<Weak<dyn RequestObserver>>>,
}

impl Waiting {
    /// For replicas of these routes.
    pub(super) fn new(routes: Arc<ArcSwap<Routes>>) -> Self {
        Self {
            routes,
            rerouted: Notify::new(),
            begun: Notify::new(),
            requests: Locked::default(),
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
        self.requests.lock().contains_key(&run)
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
        let first = {
            let mut requests = self.requests.lock();
            let waiting = requests.entry(run).or_default();
            *waiting += 1;
            *waiting == 1
        };
        if first {
            self.report(|observer| observer.awaited(run));
            self.begun.notify_one();
        }
        Place { waiting: self, run }
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
        loop {
            let rerouted = self.rerouted.notified();
            let present = self.present(service)?;
            if present.has_replicas() {
                return Some(present);
            }
            rerouted.await;
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
        let mut requests = self.waiting.requests.lock();
        if let Some(waiting) = requests.get_mut(&self.run) {
            *waiting -= 1;
            if *waiting == 0 {
                requests.remove(&self.run);
            }
        }
    }
}
