//! What an API token is good for.

use dstack_api::{Effect, Guard, RouteInfo};
use dstack_store::queries::tokens::TokenRow;

use super::Project;
use crate::error::{ApiError, Result};

/// Whether the token is good for the route; `project` is that of the path.
///
/// What may be seen of other projects through routes without a project is up to their handlers
/// ([`crate::api::Call::only_project`]).
pub fn permit(token: &TokenRow, route: &RouteInfo, project: Option<&Project>) -> Result<()> {
    let refuse = |why: &str| Err(ApiError::OutOfScope(format!("The token {} {why}", token.name)));
    if route.effect == Effect::Account {
        return refuse("cannot be used for tokens, keys and credentials of users: use the user's own token");
    }
    if token.read_only && route.effect != Effect::Reads {
        return refuse("is for reading only");
    }
    if let Some(only) = token.project_id {
        let elsewhere = project.is_some_and(|project| project.row.id != only);
        // What only admins of the server may call is about all projects.
        if elsewhere || route.effect == Effect::Governs || route.guard == Guard::GlobalAdmin {
            return refuse("is for another project");
        }
    }
    Ok(())
}
