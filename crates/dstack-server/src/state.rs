//! What handlers and workers share: handles, each made once when the server starts.

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

use crate::services::ServiceRoutes;

/// All handles. Functions take those that they need.
#[derive(Debug, Clone)]
pub struct AppState {
    /// What is stored, and how new things are dated, named and encrypted.
    pub data: Arc<Data>,
    /// Who may do what.
    pub auth: Arc<Auth>,
    /// What may be asked of the control plane.
    pub control: Arc<Control>,
    /// Where requests to services go.
    pub services: ServiceRoutes,
    /// What stands between clients and all this.
    pub edge: Arc<Edge>,
}
