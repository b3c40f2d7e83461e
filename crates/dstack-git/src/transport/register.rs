//! Telling libgit2 about our transports.
#![allow(unsafe_code)]

use git2::transport::{Transport, register as register_transport};

use super::{current, http, ssh};

/// Registers the transports and turns off the check of who owns a repo's directory. To be called once.
pub(super) fn register() -> Result<(), git2::Error> {
    for scheme in ["https", "http"] {
        let make = |remote: &git2::Remote<'_>| Transport::smart(remote, true, http::Http::new(current()?));
        // SAFETY: called once (through `OnceLock`) before any transport of this process is made.
        unsafe { register_transport(scheme, make)? };
    }
    let make = |remote: &git2::Remote<'_>| Transport::smart(remote, false, ssh::Ssh::new(current()?));
    // SAFETY: as above. libgit2 takes the transport of `ssh` for `user@host:path` too.
    unsafe { register_transport("ssh", make)? };
    // Whoever clones as root may do so into directories that belong to another user.
    // SAFETY: changes a global that is only read when a repo is opened, which happens after this.
    unsafe { git2::opts::set_verify_owner_validation(false) }
}
