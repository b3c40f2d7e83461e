//! The first process of a container, watched through the kernel.
//!
//! The engine says that a container has ended only after it has taken down its network and its file system, which takes
//! longer than the end itself. The kernel says it at once, and for all processes: when the first process of a PID
//! namespace ends, it kills all others and lets it count as ended only when they are gone.

use std::os::fd::OwnedFd;

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use tokio::io::unix::AsyncFd;

use crate::runtime::pollable;

/// A container's first process.
pub(super) struct Init {
    fd: AsyncFd<OwnedFd>,
}

impl Init {
    /// `None`: it has ended, or cannot be seen from here, because the engine is on another machine.
    pub(super) fn open(pid: i32, container: &str) -> Option<Self> {
        let fd = pidfd_open(Pid::from_raw(pid)?, PidfdFlags::NONBLOCK).ok()?;
        // Looked at after opening: from here on the descriptor holds on to whoever this is.
        let read = |name: &str| fs_err::read_to_string(format!("/proc/{pid}/{name}")).ok();
        if !is_of(&read("cgroup")?, container) || !is_first(&read("status")?) {
            return None;
        }
        Some(Self {
            fd: pollable::readable(fd).ok()?,
        })
    }

    /// Kills the container's processes; false: that is not ours to do.
    pub(super) fn kill(&self) -> bool {
        let killed = pidfd_send_signal(self.fd.get_ref(), Signal::KILL);
        matches!(killed, Ok(()) | Err(rustix::io::Errno::SRCH))
    }

    /// Until none of them lives.
    pub(super) async fn exited(&self) {
        // Readable for ever from then on; an error means the same.
        let _ = self.fd.readable().await;
    }
}

/// Whether a process of these control groups is in the container: they are named after it.
fn is_of(cgroups: &str, container: &str) -> bool {
    container.len() >= 12 && cgroups.contains(container)
}

/// Whether it is the first of a PID namespace below ours.
fn is_first(status: &str) -> bool {
    let pids = status.lines().find_map(|line| line.strip_prefix("NSpid:"));
    let pids: Vec<&str> = pids.unwrap_or_default().split_whitespace().collect();
    pids.len() > 1 && pids.last() == Some(&"1")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_first_process_of_the_container() {
        let id = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08";
        assert!(is_of(&format!("0::/system.slice/docker-{id}.scope\n"), id));
        assert!(is_of(&format!("4:memory:/docker/{id}\n"), id));
        assert!(!is_of("0::/init.scope\n", id));
        assert!(!is_of("0::/docker/\n", ""));
        assert!(is_first("Name:\tx\nNSpid:\t4711\t1\n"));
        for other in [
            "NSpid:\t1\n",
            "NSpid:\t4711\n",
            "NSpid:\t4711\t17\n",
            "Name:\tx\n",
        ] {
            assert!(!is_first(other), "{other}");
        }
    }

    #[tokio::test]
    async fn no_process_of_ours_is_taken_for_a_container() {
        let own = i32::try_from(std::process::id()).unwrap();
        assert!(Init::open(own, "9f86d081884c7d659a2feaa0").is_none());
        assert!(Init::open(0, "9f86d081884c7d659a2feaa0").is_none());
    }
}
