//! What handlers and workers share: four handles, each made once when the server starts.

mod auth;
mod control;
mod data;
mod edge;
mod permissions;

use std::sync::Arc;

pub use auth::Auth;
pub use control::{Control, EngineParts, Verbs};
pub use data::Data;
pub use edge::Edge;
pub use permissions::{DefaultPermissions, SharedPermissions};

/// All four handles. Functions take those that they need.
#[derive(Debug, Clone)]
pub struct AppState {
    /// What is stored, and how new things are dated, named and encrypted.
    pub data: Arc<Data>,
    /// Who may do what.
    pub auth: Arc<Auth>,
    /// What may be asked of the control plane.
    pub control: Arc<Control>,
    /// What stands between clients and all this.
    pub edge: Arc<Edge>,
}
