//! What this process uses, as the kernel says.

use std::sync::{Mutex, PoisonError};

use tokio::time::Instant;

/// Of times in `/proc`: the same on every Linux, whatever the kernel counts by itself (`man 5 proc`, USER_HZ).
const TICKS_PER_SECOND: f64 = 100.0;

/// Seconds on processors.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct CpuTime {
    pub(crate) user: f64,
    pub(crate) system: f64,
}

/// Memory in bytes, and counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Status {
    pub(crate) resident: i64,
    pub(crate) virtual_memory: i64,
    pub(crate) threads: i64,
    pub(crate) voluntary_switches: u64,
    pub(crate) involuntary_switches: u64,
}

impl CpuTime {
    pub(crate) fn read() -> Option<Self> {
        Self::parse(&fs_err::read_to_string("/proc/self/stat").ok()?)
    }

    fn parse(stat: &str) -> Option<Self> {
        // The name in parentheses may hold anything. The third field follows it, and these are the 14th and the 15th.
        let (_, rest) = stat.rsplit_once(')')?;
        let mut fields = rest.split_ascii_whitespace().skip(11);
        let mut seconds = || Some(fields.next()?.parse::<f64>().ok()? / TICKS_PER_SECOND);
        Some(Self {
            user: seconds()?,
            system: seconds()?,
        })
    }
}

impl Status {
    pub(crate) fn read() -> Option<Self> {
        Some(Self::parse(&fs_err::read_to_string("/proc/self/status").ok()?))
    }

    fn parse(status: &str) -> Self {
        let number = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name))?;
            line.trim_start_matches(':')
                .split_ascii_whitespace()
                .next()?
                .parse::<u64>()
                .ok()
        };
        let signed = |name| {
            number(name)
                .and_then(|number| i64::try_from(number).ok())
                .unwrap_or(0)
        };
        Self {
            resident: signed("VmRSS:") * 1024,
            virtual_memory: signed("VmSize:") * 1024,
            threads: signed("Threads:"),
            voluntary_switches: number("voluntary_ctxt_switches:").unwrap_or(0),
            involuntary_switches: number("nonvoluntary_ctxt_switches:").unwrap_or(0),
        }
    }
}

/// Open files, sockets and the like.
pub(crate) fn descriptors() -> Option<i64> {
    let count = fs_err::read_dir("/proc/self/fd").ok()?.count();
    // Without the one that reads.
    i64::try_from(count.saturating_sub(1)).ok()
}

/// How busy the processors were with this process since the last look.
#[derive(Debug)]
pub(crate) struct Utilization {
    processors: f64,
    last: Mutex<Option<(Instant, CpuTime)>>,
}

impl Utilization {
    pub(crate) fn new() -> Self {
        let processors = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        Self {
            processors: f64::from(u32::try_from(processors).unwrap_or(1)),
            last: Mutex::default(),
        }
    }

    /// Shares of all processors; `None` at the first look.
    pub(crate) fn look(&self, now: Instant, used: CpuTime) -> Option<CpuTime> {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let (then, before) = last.replace((now, used))?;
        let possible = now.duration_since(then).as_secs_f64() * self.processors;
        (possible > 0.0).then(|| CpuTime {
            user: (used.user - before.user) / possible,
            system: (used.system - before.system) / possible,
        })
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_process_may_have_any_name() {
        let stat = "12 (a) b (c)) S 1 12 12 0 -1 4194560 1 0 0 0 250 50 0 0 20 0 9 0 1 2 3";
        assert_eq!(
            CpuTime::parse(stat),
            Some(CpuTime {
                user: 2.5,
                system: 0.5
            })
        );
        assert_eq!(CpuTime::parse("12 (a) S 1"), None);
    }

    #[test]
    fn the_status_is_read() {
        let status = "Name:\tx\nVmPeak:\t 9 kB\nVmSize:\t 2048 kB\nVmRSS:\t  1024 kB\nThreads:\t7\n\
                      voluntary_ctxt_switches:\t3\nnonvoluntary_ctxt_switches:\t4\n";
        let expected = Status {
            resident: 1 << 20,
            virtual_memory: 2 << 20,
            threads: 7,
            voluntary_switches: 3,
            involuntary_switches: 4,
        };
        assert_eq!(Status::parse(status), expected);
    }

    #[test]
    fn this_process_uses_something() {
        let status = Status::read().unwrap();
        assert!(status.resident > 0 && status.virtual_memory >= status.resident && status.threads > 0);
        assert!(descriptors().unwrap() >= 3);
        assert!(CpuTime::read().is_some());
    }

    #[test]
    fn utilization_is_of_all_processors_since_the_last_look() {
        let utilization = Utilization {
            processors: 4.0,
            last: Mutex::default(),
        };
        let start = Instant::now();
        let used = |user| CpuTime { user, system: 1.0 };
        assert_eq!(utilization.look(start, used(10.0)), None);
        let share = utilization.look(start + Duration::from_secs(5), used(20.0));
        assert_eq!(
            share,
            Some(CpuTime {
                user: 0.5,
                system: 0.0
            })
        );
    }
}
