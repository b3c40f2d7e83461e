//! From an empty directory to a serving process.

mod announce;
mod assemble;
mod bootstrap;
pub(crate) mod directory;
mod error;
mod identity;
mod listening;
mod options;
mod reload;
mod serve;

pub(crate) use assemble::open_database;
pub use error::ServerError;
pub use options::{BoxFuture, EngineContext, EngineStart, ServerOptions, StartedEngine, StopEngine};
pub use reload::{Reloaded, Reloader};
pub use serve::serve;
