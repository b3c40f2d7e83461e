//! A git client in process: clones over https and ssh without `git` or `ssh` in the image, and applies binary-safe patches.
//!
//! [`GitClone`] clones what a [`CloneRequest`] names, and applies the output of `git diff --binary` to it. Credentials are shown
//! to the server of the repo only, and are not written into the clone.

#![warn(missing_docs)]

mod clone;
mod error;
mod patch;
mod remote;
mod transport;

pub use clone::{CloneRequest, GitClone};
pub use error::GitError;
pub use patch::PatchError;
pub use remote::RemoteError;
pub use transport::TransportError;
