//! Replaying recorded exchanges of the reference against a server, and comparing what it answers.
//!
//! The rules are those of `tests/golden/README.md`: answers are equal up to UUIDs, times and keys, which must
//! be equal where they were equal in the recording.

pub mod case;
pub mod catalog;
pub mod compare;
pub mod pairs;
pub mod replay;
pub mod setup;

pub use case::{Case, load};
pub use compare::Difference;
pub use replay::{Outcome, replay};
