//! What may be asked of the control plane: submit, stop and delete runs; apply, change and delete fleets.
//!
//! Each verb checks what is asked for, decides, and writes rows and their events as one unit of work, in the store and to the
//! engine, so that nobody has to remember what belongs to a change. Verbs know no HTTP: they take values and return rows.
//! Handlers of the API, config.yml, the import, the first start and the simulation all call the same ones.

mod core;
mod error;
pub mod fleets;
pub mod runs;

pub use crate::core::{Actor, Core, EngineHandle};
pub use error::{ControlError, Result};
pub use fleets::Fleets;
pub use runs::Runs;
