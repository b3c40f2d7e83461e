//! Connections to a replica that wait for the next request.

use std::sync::{Arc, Weak};
use std::time::Duration;

use dstack_system::{Locked, task};
use tokio::time::{Instant, sleep_until};

use super::connection::Sender;
use crate::later::later;

/// How many connections wait for requests, and for how long.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PoolSettings {
    /// Time to open a connection.
    pub connect_timeout: Duration,
    /// Most connections that wait.
    pub most_idle: usize,
    /// How long a connection waits before it is closed. Servers close theirs after 60 s or more mostly, and a request
    /// that meets a closing connection has to be sent again.
    pub idle_limit: Duration,
    /// How long a connection may have waited to be used for a request that is not sent twice. Some servers close theirs after
    /// 2 or 5 s.
    pub idle_limit_once: Duration,
}

impl Default for PoolSettings {
    fn default() -> Self {
        Self {
            connect_timeout: Duration::from_secs(10),
            most_idle: 64,
            idle_limit: Duration::from_secs(30),
            idle_limit_once: Duration::from_millis(1500),
        }
    }
}

/// Connections that wait, the one that was used last on top.
#[derive(Debug)]
pub(crate) struct Pool {
    pub(crate) settings: PoolSettings,
    waiting: Locked<Waiting>,
}

#[derive(Debug, Default)]
struct Waiting {
    /// In the order in which they were given back.
    connections: Vec<Idle>,
    /// A task closes those that wait for too long.
    watched: bool,
}

#[derive(Debug)]
struct Idle {
    sender: Sender,
    since: Instant,
    until: Instant,
}

impl Pool {
    pub(crate) fn new(settings: PoolSettings) -> Self {
        Self {
            settings,
            waiting: Locked::default(),
        }
    }

    /// A connection that is ready for a request. With `once`, one that is hardly about to be closed by the replica.
    pub(crate) fn take(&self, once: bool) -> Option<Sender> {
        let now = Instant::now();
        let mut waiting = self.waiting.lock();
        let usable = |idle: &Idle| {
            idle.sender.is_ready()
                && now < idle.until
                && !(once && now >= later(idle.since, self.settings.idle_limit_once))
        };
        let place = waiting.connections.iter().rposition(usable)?;
        Some(waiting.connections.remove(place).sender)
    }

    /// Keeps a connection for the next request. `promised` is how long the replica has said to keep it. Called within a
    /// tokio runtime.
    pub(crate) fn give(self: &Arc<Self>, sender: Sender, promised: Option<Duration>) {
        let limit = self.settings.idle_limit;
        let limit = promised.map_or(limit, |promised| limit.min(early(promised)));
        if limit.is_zero() || sender.is_closed() {
            return;
        }
        let now = Instant::now();
        let until = later(now, limit);
        let idle = Idle {
            sender,
            since: now,
            until,
        };
        if self.keep(idle) {
            watch(Arc::downgrade(self), until);
        }
    }

    /// Returns whether somebody has to be told to watch those that wait.
    fn keep(&self, idle: Idle) -> bool {
        let mut waiting = self.waiting.lock();
        if waiting.connections.len() >= self.settings.most_idle {
            waiting.connections.retain(|idle| !idle.sender.is_closed());
        }
        if waiting.connections.len() >= self.settings.most_idle {
            return false;
        }
        waiting.connections.push(idle);
        !std::mem::replace(&mut waiting.watched, true)
    }

    /// Closes all that wait: they break as one.
    pub(crate) fn clear(&self) {
        let closed = std::mem::take(&mut self.waiting.lock().connections);
        drop(closed);
    }

    /// Closes those that have waited for too long; returns when the next one will have.
    fn expire(&self, now: Instant) -> Option<Instant> {
        let mut waiting = self.waiting.lock();
        waiting
            .connections
            .retain(|idle| now < idle.until && !idle.sender.is_closed());
        let next = waiting.connections.iter().map(|idle| idle.until).min();
        waiting.watched = next.is_some();
        next
    }
}

/// A second before the replica closes it, or half of the time that it keeps it.
fn early(promised: Duration) -> Duration {
    let second = Duration::from_secs(1);
    promised.saturating_sub(second).max((promised / 2).min(second))
}

/// Closes connections that wait for too long, as long as any waits.
fn watch(pool: Weak<Pool>, first: Instant) {
    task::spawn("idle replica connections", async move {
        let mut next = first;
        loop {
            sleep_until(next).await;
            let Some(pool) = pool.upgrade() else { return };
            match pool.expire(Instant::now()) {
                Some(time) => next = time,
                None => return,
            }
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_is_given_up_before_the_replica_closes_it() {
        let seconds = |promised| early(Duration::from_secs_f32(promised)).as_secs_f32();
        assert_eq!(
            [0.0, 1.0, 1.5, 2.0, 5.0, 75.0].map(seconds),
            [0.0, 0.5, 0.75, 1.0, 4.0, 74.0]
        );
    }
}
