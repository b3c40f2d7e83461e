//! Registering a descriptor with the event loop.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::OwnedFd;

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// Wakes when the descriptor is readable.
pub(super) fn readable(fd: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    // SAFETY: an OwnedFd always names the same open descriptor until it is dropped, which AsyncFd does only after
    // taking it out of the event loop.
    Ok(unsafe { AsyncFd::register_with_interest(fd, Interest::READABLE) }?)
}
