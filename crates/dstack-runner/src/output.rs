//! From the job's terminal to its logs.

mod last_line;

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::time::Instant;

use crate::ansistrip::Filter;
use crate::history::{History, MAX_FRAME_BYTES};
use crate::pty::wait_ready;
use crate::spool::Spool;

use last_line::LastLine;

/// Bytes of log a job may write in an hour.
#[derive(Debug, Clone, Copy)]
pub struct Quota {
    limit: Option<u64>,
    since: Instant,
    hour: u64,
    used: u64,
}

impl Quota {
    /// `limit` per hour, counted from `since`; `None` or not positive: unlimited.
    pub fn new(limit: Option<i64>, since: Instant) -> Self {
        let limit = limit
            .and_then(|limit| u64::try_from(limit).ok())
            .filter(|&limit| limit > 0);
        Self {
            limit,
            since,
            hour: 0,
            used: 0,
        }
    }

    /// The limit, if there is one.
    pub const fn limit(&self) -> Option<u64> {
        self.limit
    }

    /// Whether so many bytes more fit into this hour; counts them if so.
    pub fn admit(&mut self, bytes: usize, now: Instant) -> bool {
        let hour = now.saturating_duration_since(self.since).as_secs() / 3600;
        if hour != self.hour {
            (self.hour, self.used) = (hour, 0);
        }
        let used = self.used.saturating_add(bytes as u64);
        if self.limit.is_some_and(|limit| used > limit) {
            return false;
        }
        self.used = used;
        true
    }
}

/// Where the output goes.
#[derive(Debug)]
pub struct Sinks {
    /// Filtered, for the server.
    pub spool: Spool,
    /// As it is, for `/logs_ws`.
    pub history: History,
    /// Of filtered bytes.
    pub quota: Quota,
    /// Set when the job is told to stop.
    pub stopping: Arc<AtomicBool>,
}

/// Why the pump stopped.
#[derive(Debug)]
pub enum PumpEnd {
    /// No process holds the terminal any more.
    Eof,
    /// Told to stop; what was there has been read.
    Told,
    /// The quota is used up; the event that exceeded it is not stored.
    Quota,
    /// The terminal cannot be read.
    Failed(io::Error),
}

/// Copies output until it ends. Blocking. `until`: read end of a pipe; closing the other end tells the pump to stop.
pub fn pump(master: &OwnedFd, until: &OwnedFd, mut sinks: Sinks) -> PumpEnd {
    let mut filter = Filter::new();
    let mut last_line = LastLine::default();
    let mut within_quota = true;
    let end = copy(
        master,
        until,
        &mut filter,
        &mut last_line,
        &mut sinks,
        &mut within_quota,
    );
    if within_quota {
        sinks.take(&last_line.finish(), &mut filter, &mut within_quota);
        filter.finish(|text| within_quota &= sinks.store(text));
    }
    if within_quota { end } else { PumpEnd::Quota }
}

fn copy(
    master: &OwnedFd,
    until: &OwnedFd,
    filter: &mut Filter,
    last_line: &mut LastLine,
    sinks: &mut Sinks,
    within_quota: &mut bool,
) -> PumpEnd {
    let mut buffer = vec![0; MAX_FRAME_BYTES];
    let mut told = false;
    while *within_quota {
        let timeout = if told {
            Some(Duration::ZERO)
        } else {
            filter.deadline().map(|at| at - Instant::now())
        };
        let wanted = [
            (master.as_raw_fd(), libc::POLLIN),
            (until.as_raw_fd(), libc::POLLIN),
        ];
        let ready = match wait_ready(&wanted, timeout.map_or(-1, to_ms)) {
            Ok(ready) => ready,
            Err(error) => return PumpEnd::Failed(error),
        };
        told = ready.get(1) == Some(&true);
        if ready.first() == Some(&true) {
            match rustix::io::read(master, &mut buffer) {
                // Linux answers EIO when the last process closed the terminal.
                Ok(0) | Err(rustix::io::Errno::IO) => return PumpEnd::Eof,
                Ok(length) => {
                    let bytes = buffer.get(..length).unwrap_or_default();
                    let stopping = sinks.stopping.load(Ordering::Relaxed);
                    sinks.take(&last_line.pass(bytes, stopping), filter, within_quota);
                }
                Err(rustix::io::Errno::INTR | rustix::io::Errno::AGAIN) => {}
                Err(error) => return PumpEnd::Failed(error.into()),
            }
        } else if told {
            return PumpEnd::Told;
        }
        filter.flush_due(Instant::now(), |text| {
            *within_quota = *within_quota && sinks.store(text);
        });
    }
    PumpEnd::Quota
}

/// Rounded up, so that a deadline has passed when the wait is over.
fn to_ms(timeout: Duration) -> i32 {
    i32::try_from(timeout.as_micros().div_ceil(1000)).unwrap_or(i32::MAX)
}

impl Sinks {
    fn take(&mut self, bytes: &[u8], filter: &mut Filter, within_quota: &mut bool) {
        if bytes.is_empty() {
            return;
        }
        self.history.append(bytes);
        filter.write(bytes, Instant::now(), |text| {
            *within_quota = *within_quota && self.store(text);
        });
    }

    fn store(&mut self, text: &[u8]) -> bool {
        let admitted = self.quota.admit(text.len(), Instant::now());
        if admitted {
            self.spool.log(text);
        }
        admitted
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quota_counts_by_the_hour() {
        let start = Instant::now();
        let mut quota = Quota::new(Some(10), start);
        assert!(quota.admit(10, start));
        assert!(!quota.admit(1, start + Duration::from_secs(3599)));
        assert!(quota.admit(9, start + Duration::from_secs(3600)));
        assert!(!quota.admit(2, start + Duration::from_secs(3601)));
        assert!(quota.admit(1, start + Duration::from_secs(3602)));
        for unlimited in [None, Some(0), Some(-1)] {
            assert!(Quota::new(unlimited, start).admit(usize::MAX, start));
        }
    }
}
