//! The project's fleets, as the planner sees them.

use dstack_engine::reconcile::schedule::candidates;
use dstack_plan::fleets::Fleet;
use dstack_store::PlacementSnapshot;

/// Fleets with instances first, as dstack 0.22.5 has them; oldest first otherwise.
pub(in crate::handlers) fn fleets<'a>(placement: &'a PlacementSnapshot, project: &'a str) -> Vec<Fleet<'a>> {
    let instances = candidates(placement);
    let mut fleets: Vec<Fleet<'a>> = placement
        .fleets
        .iter()
        .map(|row| Fleet {
            id: row.id,
            name: &row.name,
            project,
            own: true,
            spec: &row.spec,
            master: None,
            instances: instances
                .iter()
                .filter(|instance| instance.fleet_id == row.id)
                .copied()
                .collect(),
            placeholders: 0,
        })
        .collect();
    fleets.sort_by_key(|fleet| fleet.instances.is_empty());
    fleets
}
