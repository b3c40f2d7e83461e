//! Ways to hosts that are being set up, as far as this server knows them: their rows do not have them yet.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use dstack_model::instances::InstanceStatus;
use dstack_model::reach::Reach;
use dstack_store::rows::InstanceRow;
use dstack_units::InstanceId;

/// The way to each host that is being set up, by the id of its instance.
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

#[cfg(test)]
mod tests {
    use dstack_model::fleets::FleetSpec;
    use dstack_model::instances::InstanceTerminationReason;
    use dstack_model::reach::Hop;
    use dstack_store::Json;
    use dstack_store::rows::{AgentAddress, FleetRow};
    use dstack_units::Time;
    use serde_json::json;
    use uuid::Uuid;

    use super::*;

    fn way(host: &str, key: &str) -> Reach {
        let host = Hop {
            host: host.to_owned(),
            port: 22,
            user: "me".to_owned(),
            keys: Vec::new(),
            host_keys: vec![key.to_owned()],
        };
        Reach {
            jumps: Vec::new(),
            host,
        }
    }

    fn instance(num: i64, set_up: Option<Reach>) -> InstanceRow {
        let now = Time::from_millis(0);
        let spec = json!({"configuration": {"type": "fleet", "name": "lab"}, "profile": {}});
        let spec: FleetSpec = serde_json::from_value(spec).unwrap();
        let id = |number: i64| Uuid::from_u128(u128::try_from(number).unwrap());
        let fleet = FleetRow::active(id(100).into(), id(101).into(), "lab".to_owned(), spec, now);
        let mut row = InstanceRow::pending(id(num).into(), &fleet, num, now);
        if let Some(reach) = set_up {
            row.make_ready(InstanceStatus::Idle).unwrap();
            row.agent = Some(Json::new(AgentAddress::Ssh {
                reach: Box::new(reach),
                shim_port: 10_998,
                runtime: "docker".to_owned(),
            }));
        }
        row
    }

    #[test]
    fn of_two_names_the_one_that_is_set_up_stays_or_else_the_first() {
        let ways = Ways::default();
        let twins = |own: &InstanceRow, others: &[InstanceRow]| {
            let found = ways.to_twins(own, &way("own", "key"), others);
            found.iter().map(|(row, _)| row.instance_num).collect::<Vec<_>>()
        };
        let (first, second) = (instance(0, None), instance(1, None));
        let both = [first.clone(), second.clone()];
        assert_eq!(
            twins(&second, &both),
            Vec::<i64>::new(),
            "the way to the first is not known yet"
        );
        ways.add(first.id, way("first", "key"));
        ways.add(second.id, way("second", "key"));
        assert_eq!(twins(&second, &both), [0]);
        assert_eq!(twins(&first, &both), Vec::<i64>::new());
        let ready = instance(1, Some(way("second", "key")));
        assert_eq!(twins(&first, &[first.clone(), ready.clone()]), [1]);
        let other = instance(1, Some(way("second", "other key")));
        assert_eq!(twins(&first, &[first.clone(), other]), Vec::<i64>::new());
        let mut ending = ready;
        let reason = InstanceTerminationReason::TerminatedByUser;
        ending.terminate(reason, None, Time::from_millis(1)).unwrap();
        assert_eq!(twins(&first, &[first.clone(), ending]), Vec::<i64>::new());
        ways.remove(first.id);
        assert_eq!(twins(&second, &both), Vec::<i64>::new());
    }
}
