//! Fleets: they end when nothing is left of them.

use std::sync::Arc;

use dstack_model::fleets::FleetStatus;
use dstack_model::instances::InstanceStatus;
use dstack_store::{Commit, Put};
use dstack_units::FleetId;

use crate::Result;
use crate::context::Context;
use crate::events::{self, Events, upper};

/// Ends a fleet that is to be ended once its instances and runs are gone.
pub async fn reconcile(ctx: &Arc<Context>, id: FleetId) -> Result<()> {
    let Some(snapshot) = ctx.deps.store.fleet(id).await? else {
        return Ok(());
    };
    let before = snapshot.fleet;
    let alive = snapshot
        .instances
        .iter()
        .any(|instance| instance.status != InstanceStatus::Terminated);
    if before.status != FleetStatus::Terminating || alive || !snapshot.active_runs.is_empty() {
        return Ok(());
    }
    let now = ctx.now();
    let maker = Events::system(now, ctx.deps.random.clone());
    let mut row = before.clone();
    row.status = FleetStatus::Terminated;
    row.deleted = true;
    row.deleted_at = Some(now);
    row.last_processed_at = now;
    let text = format!(
        "Fleet status changed {} -> {}",
        upper(&before.status),
        upper(&row.status)
    );
    let event = maker.event(text, vec![events::fleet(&row)]);
    let commit = Commit {
        puts: vec![Put::Fleet(row)],
        events: vec![event],
        owner: None,
    };
    ctx.commit(("fleet.commit.before", "fleet.commit.after"), commit)
        .await
}
