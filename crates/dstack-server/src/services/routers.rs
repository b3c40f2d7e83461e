//! Keeps the workers of SMG routers: each router is told which replicas run, again and again, by all servers alike. What it has, it says
//! itself: nothing of it is stored here, and what two servers tell it is the same.
//!
//! * [`link`] — one service: what its router has, and telling it what it should have.
//! * [`expected`] — what it should have, as the database says.
//! * [`calls`] — the calls to a router.
//! * [`inspection`] — asking a replica what a router must know of it.
//! * [`grpc`] — the part of that over gRPC.

mod calls;
mod expected;
mod grpc;
mod inspection;
mod link;

use std::collections::HashMap;
use std::sync::{Arc, OnceLock};

use dstack_engine::services::Worker;
use dstack_store::Database;
use dstack_system::{Locked, task};
use dstack_units::{JobId, RunId};
use tokio_util::sync::CancellationToken;

use self::link::Link;
use super::ports::Reachable;
use super::waiting::Waiting;

/// The services whose routers are told of their workers.
#[derive(Debug)]
pub(super) struct Routers {
    database: Database,
    ports: Arc<Reachable>,
    /// Knows who acts on what happens to workers.
    waiting: Arc<Waiting>,
    links: Locked<HashMap<RunId, Arc<Link>>>,
    /// Until when they are told; unset: not yet.
    stop: OnceLock<CancellationToken>,
}

impl Routers {
    pub(super) fn new(database: Database, ports: Arc<Reachable>, waiting: Arc<Waiting>) -> Self {
        Self {
            database,
            ports,
            waiting,
            links: Locked::default(),
            stop: OnceLock::new(),
        }
    }

    /// Tells routers of their workers from now on, until the server stops.
    pub(super) fn follow(self: &Arc<Self>, stop: CancellationToken) {
        let links: Vec<Arc<Link>> = {
            // Under the lock: whoever comes later finds that it has begun.
            let links = self.links.lock();
            if self.stop.set(stop).is_err() {
                return;
            }
            links.values().cloned().collect()
        };
        for link in links {
            self.start(&link);
        }
    }

    /// Of these runs, those are the ones whose routers are to be told of their workers; what of them has changed is looked at.
    pub(super) fn note(self: &Arc<Self>, read: &[RunId], routed: impl Iterator<Item = RunId>) {
        let routed: Vec<RunId> = routed.collect();
        let (mut new, mut gone) = (Vec::new(), Vec::new());
        let mut links = self.links.lock();
        for run in read {
            match routed.contains(run) {
                false => gone.extend(links.remove(run)),
                true => {
                    let link = links.entry(*run).or_insert_with(|| {
                        let link = Arc::new(Link::new(*run));
                        new.push(Arc::clone(&link));
                        link
                    });
                    link.want();
                }
            }
        }
        let is_begun = self.stop.get().is_some();
        drop(links);
        for link in new.iter().filter(|_| is_begun) {
            self.start(link);
        }
        for link in gone {
            self.end(&link);
        }
    }

    /// The runs whose routers are told of their workers.
    pub(super) fn runs(&self) -> Vec<RunId> {
        self.links.lock().keys().copied().collect()
    }

    /// A job of the run was written.
    pub(super) fn changed(&self, run: RunId) {
        if let Some(link) = self.links.lock().get(&run) {
            link.want();
        }
    }

    /// What the router has of one of its jobs.
    pub(super) fn worker(&self, run: RunId, job: JobId) -> Worker {
        let link = self.links.lock().get(&run).cloned();
        link.map_or(Worker::Unasked, |link| link.worker(job))
    }

    /// Whether a router passes requests on to the job.
    pub(super) fn have(&self, job: JobId) -> bool {
        self.links.lock().values().any(|link| link.has(job))
    }

    fn start(self: &Arc<Self>, link: &Arc<Link>) {
        let Some(stop) = self.stop.get() else { return };
        let (routers, link, stop) = (Arc::clone(self), Arc::clone(link), stop.clone());
        task::spawn_restarted("tell a router its workers", move || {
            let (routers, link, stop) = (Arc::clone(&routers), Arc::clone(&link), stop.clone());
            async move {
                let ended = link.ended();
                tokio::select! {
                    () = stop.cancelled() => {}
                    () = ended.cancelled() => {}
                    () = link::tell(routers, link) => {}
                }
            }
        });
    }

    /// The service ends, with its router: nobody waits for that any more.
    fn end(&self, link: &Link) {
        for job in link.end() {
            self.waiting.report(|observer| observer.idle(job));
        }
    }
}
