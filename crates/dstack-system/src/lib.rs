//! Clock, randomness, tasks, environment and secrets: the only door to what `clippy.toml` bans. Besides, what every crate needs
//! of errors and locks.
//!
//! The whole control plane runs under simulation because nothing else in it reads the clock, rolls dice or
//! starts a task by itself.

pub mod accounts;
pub mod chain;
pub mod clock;
pub mod env;
pub mod file;
pub mod locked;
pub mod nss;
pub mod observe;
pub mod random;
pub mod secret;
pub mod task;

pub use chain::{causes, causes_of, chain, find_cause, root_cause};
pub use clock::{Clock, SystemClock, VirtualClock};
pub use locked::Locked;
pub use random::Random;
pub use secret::Secret;
