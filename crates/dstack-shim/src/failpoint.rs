//! Places where tests kill the agent, as a power cut would. Only in debug builds.

/// Kills this process at once if `DSTACK_SHIM_FAILPOINT` names this point.
#[cfg(debug_assertions)]
pub(crate) fn hit(point: &str) {
    if dstack_system::env::var("DSTACK_SHIM_FAILPOINT").as_deref() == Some(point) {
        let _ = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
    }
}

/// Nothing in release builds.
#[cfg(not(debug_assertions))]
pub(crate) fn hit(_point: &str) {}
