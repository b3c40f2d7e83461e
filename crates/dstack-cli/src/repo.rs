//! Git repositories that runs take along. Uses the `git` program of the user's machine, with its settings.

pub mod access;
pub mod git;
pub mod local;
pub mod url;
