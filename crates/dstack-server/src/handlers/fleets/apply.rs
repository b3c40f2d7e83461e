//! Creating fleets and changing them in place.

use dstack_control::fleets::{ApplyFleet, SeenFleet};
use dstack_model::fleets::Fleet;
use dstack_model::requests::ApplyFleetPlanRequest;

use super::{rights, with_instances};
use crate::api::Call;
use crate::error::{ApiError, Result};

pub(super) async fn apply(call: Call, request: ApplyFleetPlanRequest) -> Result<Fleet> {
    let (state, project) = (&call.state, call.project()?.row.id);
    let seen = request.plan.current_resource;
    let id = state
        .control
        .fleets
        .apply(ApplyFleet {
            project,
            actor: call.user()?.into(),
            rights: rights(&call)?,
            spec: state.edge.plugins.on_apply(&call, request.plan.spec).await?,
            seen: seen.map(|seen| SeenFleet {
                id: seen.id,
                spec: seen.spec,
            }),
            force: request.force,
        })
        .await?;
    let made = state.data.database.views().fleet_by_id(project, id).await?;
    let shown = with_instances(&state.data, &[made.ok_or_else(ApiError::not_exists)?])
        .await?
        .pop();
    shown.ok_or_else(ApiError::not_exists)
}
