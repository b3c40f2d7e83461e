//! Ways to hosts that are being set up, as far as this server knows them: their rows do not have them yet.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use dstack_model::instances::InstanceStatus;
use dstack_model::reach::Reach;
use dstack_store::rows::InstanceRow;
use dstack_units::InstanceId;

/// By instance.
#[derive(Debug, Default)]
pub(super) struct Ways(Mutex<HashMap<InstanceId, Reach>>);

impl Ways {
    fn lock(&self) -> MutexGuard<'_, HashMap<InstanceId, Reach>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The host was reached on this way, with the host keys that were seen.
    pub(super) fn add(&self, instance: InstanceId, reach: Reach) {
        self.lock().insert(instance, reach);
    }

    /// The instance is over, or its row has the way.
    pub(super) fn remove(&self, instance: InstanceId) {
        self.lock().remove(&instance);
    }

    /// Ways to the other hosts of a fleet that show the same host key and have their machine before `own`: those that are set up,
    /// and of those that are not, the ones that are named before it.
    pub(super) fn to_twins<'a>(
        &self,
        own: &InstanceRow,
        reach: &Reach,
        others: &'a [InstanceRow],
    ) -> Vec<(&'a InstanceRow, Reach)> {
        let comes_before = |other: &&InstanceRow| {
            let is_set_up = other.status() != InstanceStatus::Pending;
            let is_other = other.id != own.id && other.status().is_active();
            is_other && (is_set_up || other.instance_num < own.instance_num)
        };
        let known = self.lock();
        let way = |other: &InstanceRow| {
            let stored = other.agent.as_deref().and_then(|agent| agent.reach());
            stored.or_else(|| known.get(&other.id)).cloned()
        };
        let before = others.iter().filter(comes_before);
        let ways = before.filter_map(|other| Some((other, way(other)?)));
        ways.filter(|(_, way)| shows_same_key(way, reach)).collect()
    }
}

fn shows_same_key(one: &Reach, other: &Reach) -> bool {
    let mut keys = one.host.host_keys.iter();
    keys.any(|key| other.host.host_keys.contains(key))
}
