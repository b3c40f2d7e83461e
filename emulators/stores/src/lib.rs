//! Stores of other people, as far as we use them: in memory, on a port of this machine, refusing what they refuse.
//!
//! Each can be told to fail ([`Faults`]).

// Doubles are part of tests, which may panic.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

pub mod cloudwatch;
pub mod elasticsearch;
pub mod fluent_bit;
pub mod gcp_logging;
pub mod objects;

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use axum::Router;

/// How a call fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// There were too many; nothing is done.
    Throttled,
    /// 503; nothing is done.
    Unavailable,
    /// It is done, but the answer says 500, or does not come.
    AnswerLost,
    /// 403; nothing is done.
    Denied,
}

/// The next calls' faults, in order.
#[derive(Debug, Clone, Default)]
pub struct Faults(Arc<Mutex<VecDeque<Fault>>>);

impl Faults {
    /// Adds faults for the calls to come.
    pub fn add(&self, faults: impl IntoIterator<Item = Fault>) {
        self.0.lock().unwrap().extend(faults);
    }

    /// How many are still to come.
    pub fn left(&self) -> usize {
        self.0.lock().unwrap().len()
    }

    /// No more of them.
    pub fn clear(&self) {
        self.0.lock().unwrap().clear();
    }

    pub(crate) fn next(&self) -> Option<Fault> {
        self.0.lock().unwrap().pop_front()
    }
}

/// Serves on a port of its own for as long as the test runs; gives the address.
pub(crate) async fn serve(router: Router) -> SocketAddr {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    dstack_system::task::spawn("double", async move {
        axum::serve(listener, router).await.unwrap();
    });
    address
}
