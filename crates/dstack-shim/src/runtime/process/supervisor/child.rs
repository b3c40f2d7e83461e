//! One prctl between fork and exec.
#![allow(unsafe_code)]

use std::os::unix::process::CommandExt as _;
use std::process::Command;

/// The kernel kills the child when this process dies: a task never outlives its supervisor.
pub(super) fn die_with_parent(command: &mut Command) {
    const KILL: libc::c_ulong = 9;
    // SAFETY: the closure only calls prctl, which is async-signal-safe, and allocates nothing.
    unsafe {
        command.pre_exec(|| match libc::prctl(libc::PR_SET_PDEATHSIG, KILL) {
            0 => Ok(()),
            _ => Err(std::io::Error::last_os_error()),
        });
    }
}
