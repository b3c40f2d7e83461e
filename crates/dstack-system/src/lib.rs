//! Clock, randomness, tasks, environment and secrets: the only door to what `clippy.toml` bans.
//!
//! The whole control plane runs under simulation because nothing else in it reads the clock, rolls dice or
//! starts a task by itself.

pub mod clock;
pub mod env;
pub mod nss;
pub mod observe;
pub mod random;
pub mod secret;
pub mod task;

pub use clock::{Clock, SystemClock, VirtualClock};
pub use random::Random;
pub use secret::Secret;
