//! The user's OpenSSH files: keys and host entries, so that `ssh RUN`, `scp` and editors work.

pub mod config;
pub mod hosts;
pub mod keys;
