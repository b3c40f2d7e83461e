//! Ctrl-C and SIGTERM: remembered, so that commands can clean up before they end.

use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result};

static INTERRUPTED: AtomicBool = AtomicBool::new(false);

/// From now on Ctrl-C and SIGTERM no longer end this process; programs we started in our own process group
/// still get them from the terminal.
pub(crate) fn catch() -> Result<()> {
    ctrlc::set_handler(|| INTERRUPTED.store(true, Ordering::SeqCst)).context("cannot catch Ctrl-C")
}

/// Whether a signal has arrived since [`catch`].
pub(crate) fn happened() -> bool {
    INTERRUPTED.load(Ordering::SeqCst)
}
