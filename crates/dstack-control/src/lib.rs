//! What may be asked of the control plane: every verb that changes something, from runs and fleets to members and secrets.
//!
//! Each verb checks what is asked for, decides, and writes rows and their events as one unit of work, so that nobody has to
//! remember what belongs to a change: rows of the engine through [`Core`], which wakes whom they concern, all others
//! through [`Directory`], which tells those who remember them. Verbs know no HTTP: they take values and return rows. Handlers
//! of the API, config.yml, logins, the first start and the simulation all call the same ones.

#![warn(missing_docs)]

pub mod access;
pub mod backends;
mod core;
mod directory;
mod error;
pub mod exports;
pub mod fleets;
pub mod gateways;
pub mod keys;
pub mod login;
mod members;
pub mod own_machine;
pub mod projects;
mod public_key;
pub mod repos;
pub mod runs;
pub mod secrets;
pub mod text;
pub mod tokens;
pub mod users;
pub mod volumes;

pub use crate::core::{Actor, Core, EngineHandle};
pub use directory::{Directory, Watcher, Work};
pub use error::{ControlError, Result};
pub use fleets::Fleets;
pub use runs::Runs;
