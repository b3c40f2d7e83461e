//! What this process uses, as the kernel says.

use std::time::Duration;

use dstack_system::Locked;
use procfs::process::Process;
use tokio::time::Instant;

/// The unit of times in `/proc`: the same on every Linux, whatever the kernel counts by itself (`man 5 proc`, USER_HZ).
const MILLIS_PER_TICK: u64 = 10;

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
        let stat = Process::myself().ok()?.stat().ok()?;
        let seconds = |ticks: u64| Duration::from_millis(ticks.saturating_mul(MILLIS_PER_TICK)).as_secs_f64();
        Some(Self {
            user: seconds(stat.utime),
            system: seconds(stat.stime),
        })
    }
}

impl Status {
    pub(crate) fn read() -> Option<Self> {
        let status = Process::myself().ok()?.status().ok()?;
        let bytes = |kilobytes: Option<u64>| {
            i64::try_from(kilobytes.unwrap_or(0)).map_or(i64::MAX, |count| count.saturating_mul(1024))
        };
        Some(Self {
            resident: bytes(status.vmrss),
            virtual_memory: bytes(status.vmsize),
            threads: i64::try_from(status.threads).unwrap_or(i64::MAX),
            voluntary_switches: status.voluntary_ctxt_switches.unwrap_or(0),
            involuntary_switches: status.nonvoluntary_ctxt_switches.unwrap_or(0),
        })
    }
}

/// Open files, sockets and the like.
pub(crate) fn descriptors() -> Option<i64> {
    let count = Process::myself().ok()?.fd_count().ok()?;
    i64::try_from(count).ok()
}

/// How busy the processors were with this process since the last look.
#[derive(Debug)]
pub(crate) struct Utilization {
    processors: f64,
    last: Locked<Option<(Instant, CpuTime)>>,
}

impl Utilization {
    pub(crate) fn new() -> Self {
        let processors = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        Self {
            processors: f64::from(u32::try_from(processors).unwrap_or(1)),
            last: Locked::default(),
        }
    }

    /// Shares of all processors; `None` at the first look.
    pub(crate) fn look(&self, now: Instant, used: CpuTime) -> Option<CpuTime> {
        let mut last = self.last.lock();
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
    use super::*;

    #[test]
    fn this_process_uses_something() {
        let status = Status::read().unwrap();
        assert!(status.resident > 0 && status.virtual_memory >= status.resident && status.threads > 0);
        let files = [(); 64].map(|()| fs_err::File::open("/proc/self/stat").unwrap());
        assert!(descriptors().unwrap() >= 64);
        drop(files);
        let used = CpuTime::read().unwrap();
        assert!(
            (0.0..1e6).contains(&used.user) && (0.0..1e6).contains(&used.system),
            "{used:?}"
        );
    }

    #[test]
    fn utilization_is_of_all_processors_since_the_last_look() {
        let utilization = Utilization {
            processors: 4.0,
            last: Locked::default(),
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
