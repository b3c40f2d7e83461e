//! The whole control plane in one process: virtual time, faults, invariants.
//!
//! The engine is the real one; store, agents, clouds, output, clock and randomness are the simulated ends of its traits. A
//! simulated host outlives the engine, as real hosts outlive the server: a test kills the engine at any failpoint,
//! starts another on the same store, and looks whether every run ends as it should, once, with all its output.

pub mod clouds;
pub mod databases;
pub mod hosts;
pub mod invariants;
pub mod inventory;
pub mod kills;
pub mod output;
mod records;
pub mod scenario;
pub mod servers;
pub mod services;
pub mod ssh_hosts;
mod verbs;
pub mod waits;
pub mod world;

pub use clouds::Clouds;
pub use hosts::{Faults, Hosts, Script};
pub use kills::{killed_everywhere, killed_where};
pub use servers::Server;
pub use services::Answer;
pub use waits::Unmet;
pub use world::World;
