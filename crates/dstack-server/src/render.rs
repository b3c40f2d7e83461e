//! From rows to what clients see.

pub(crate) mod fleets;
pub(crate) mod projects;
pub mod run_lists;
pub mod runs;
pub(crate) mod users;
