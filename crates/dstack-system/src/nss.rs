//! Name service: files and DNS only.
//!
//! A static glibc still loads the name service plugins that the machine's nsswitch.conf names, which were built for
//! another glibc, and crashes. Told its sources before the first lookup, it loads none.
#![allow(unsafe_code)]

/// Must be the first statement of `main` of a program that may be linked statically. Does nothing in one that is not.
#[cfg(all(target_os = "linux", target_env = "gnu", target_feature = "crt-static"))]
pub fn use_files_only() {
    use std::ffi::{CStr, c_char, c_int};

    unsafe extern "C" {
        fn __nss_configure_lookup(database: *const c_char, sources: *const c_char) -> c_int;
    }

    const DATABASES: [(&CStr, &CStr); 8] = [
        (c"passwd", c"files"),
        (c"group", c"files"),
        (c"shadow", c"files"),
        (c"initgroups", c"files"),
        (c"hosts", c"files dns"),
        (c"services", c"files"),
        (c"protocols", c"files"),
        (c"networks", c"files"),
    ];
    for (database, sources) in DATABASES {
        // SAFETY: both are NUL-terminated and live for ever; no other thread runs yet. A failure (an unknown database)
        // leaves the default, which is no worse than not asking.
        unsafe { __nss_configure_lookup(database.as_ptr(), sources.as_ptr()) };
    }
}

/// A dynamic glibc loads the plugins that were built for it, other C libraries load none.
#[cfg(not(all(target_os = "linux", target_env = "gnu", target_feature = "crt-static")))]
pub const fn use_files_only() {}
