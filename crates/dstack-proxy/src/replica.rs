//! A place where a service answers.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use dstack_agent_api::http::Connector;
use dstack_units::JobId;

/// A replica of a service: how it is connected to, and how many requests are under way there.
#[derive(Debug)]
pub struct Replica {
    /// Its job.
    pub id: JobId,
    connector: Arc<dyn Connector>,
    in_flight: AtomicUsize,
}

impl Replica {
    /// Without connections yet.
    pub fn new(id: JobId, connector: Arc<dyn Connector>) -> Self {
        Self {
            id,
            connector,
            in_flight: AtomicUsize::new(0),
        }
    }

    /// Requests under way, upgraded connections among them.
    pub fn in_flight(&self) -> usize {
        self.in_flight.load(Ordering::Acquire)
    }

    /// Waits until no request is under way.
    pub async fn idle(&self) {
        while self.in_flight() > 0 {
            tokio::task::yield_now().await;
        }
    }

    /// Opens connections to it.
    pub fn connector(&self) -> &Arc<dyn Connector> {
        &self.connector
    }
}
