//! How many replicas a group should have.

use std::collections::BTreeMap;
use std::time::Duration;

use dstack_model::configurations::ScalingSpec;
use dstack_units::{Range, Seconds, Time};

/// Requests are looked at again after this time, when the number of replicas may change.
pub const LOOK_INTERVAL: Duration = Duration::from_secs(15);

/// Requests of the last while.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Load {
    /// Requests within the window of the rules.
    pub requests: u64,
}

/// What is known of the requests to a service.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Demand {
    /// Replicas wanted so far of each group that scales; none before its first start.
    pub wanted: BTreeMap<String, i64>,
    /// Requests, for each group within the window of its rules; none while they are unknown.
    pub loads: BTreeMap<String, Load>,
    /// Requests wait for a replica.
    pub awaited: bool,
}

impl Demand {
    /// What is known of one group.
    pub fn of<'a>(
        &self,
        name: &str,
        replicas: &'a Range<i64>,
        scaling: Option<&'a ScalingSpec>,
        last_scaled_at: Option<Time>,
    ) -> Group<'a> {
        Group {
            replicas,
            scaling,
            wanted: self.wanted.get(name).copied(),
            load: self.loads.get(name).copied(),
            awaited: self.awaited,
            last_scaled_at,
        }
    }
}

/// What is known of a group.
#[derive(Debug, Clone, Copy)]
pub struct Group<'a> {
    /// The least and the most replicas.
    pub replicas: &'a Range<i64>,
    /// The rules; without any, the number only follows its limits.
    pub scaling: Option<&'a ScalingSpec>,
    /// Replicas wanted so far; `None` at the first start, which begins with the least.
    pub wanted: Option<i64>,
    /// Requests; `None` while they are unknown.
    pub load: Option<Load>,
    /// Requests wait for a replica.
    pub awaited: bool,
    /// When a replica of the group was last added or removed.
    pub last_scaled_at: Option<Time>,
}

impl Group<'_> {
    fn least(&self) -> i64 {
        self.replicas.min.unwrap_or(0)
    }

    fn most(&self) -> i64 {
        self.replicas.max.unwrap_or(i64::MAX).max(self.least())
    }

    /// Whether a change after this delay would come too early.
    fn is_resting(&self, delay: Seconds, now: Time) -> bool {
        self.last_scaled_at
            .is_some_and(|last| now.since(last) < duration(delay))
    }
}

/// Whether a group may have no replicas until requests come.
pub fn starts_on_request(replicas: &Range<i64>, scaling: Option<&ScalingSpec>) -> bool {
    scaling.is_some() && replicas.min.unwrap_or(0) == 0 && replicas.max != Some(0)
}

/// Replicas wanted now.
pub fn desired(group: &Group<'_>, now: Time) -> i64 {
    let (least, most) = (group.least(), group.most());
    let current = group.wanted.unwrap_or(least).clamp(least, most);
    let Some(rules) = group.scaling else {
        return current;
    };
    let needed = group.load.map_or(current, |load| needed(load, rules));
    let target = needed.max(i64::from(group.awaited)).clamp(least, most);
    let delay = match target.cmp(&current) {
        std::cmp::Ordering::Equal => return current,
        // Someone waits: nothing runs that could answer.
        std::cmp::Ordering::Greater if current == 0 => return target,
        std::cmp::Ordering::Greater => rules.scale_up_delay,
        std::cmp::Ordering::Less => rules.scale_down_delay,
    };
    match group.is_resting(delay, now) {
        true => current,
        false => target,
    }
}

/// When requests are to be looked at again, `wanted` replicas being wanted from now on: at the end of a delay before which nothing
/// can change, otherwise after a while. `None`: requests change nothing.
pub fn look_at(group: &Group<'_>, wanted: i64, now: Time) -> Option<Time> {
    let rules = group.scaling?;
    let is_changed = group.wanted.is_some_and(|before| before != wanted);
    let last = group.last_scaled_at.filter(|_| !is_changed).unwrap_or(now);
    let after = |delay| Some(last + duration(delay)).filter(|at| *at > now);
    let at = |delay| after(delay).unwrap_or(now + LOOK_INTERVAL);
    let grows = match wanted {
        0 => Some(now + LOOK_INTERVAL),
        _ => (wanted < group.most()).then(|| at(rules.scale_up_delay)),
    };
    let shrinks = (wanted > group.least()).then(|| at(rules.scale_down_delay));
    grows.into_iter().chain(shrinks).min()
}

/// So many that each gets no more than its target of requests per second.
#[allow(clippy::cast_precision_loss, clippy::cast_possible_truncation)] // saturates
fn needed(load: Load, rules: &ScalingSpec) -> i64 {
    let window = rules.effective_window().0.max(1);
    let per_second = load.requests as f64 / window as f64;
    (per_second / rules.target).ceil() as i64
}

fn duration(seconds: Seconds) -> Duration {
    Duration::from_secs(u64::try_from(seconds.0).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn rules() -> ScalingSpec {
        serde_json::from_value(json!({"metric": "rps", "target": 2})).unwrap()
    }

    const START: &str = "2026-01-01T00:00:00+00:00";

    fn at(seconds: u64) -> Time {
        START.parse::<Time>().unwrap() + Duration::from_secs(seconds)
    }

    fn wanted(current: Option<i64>, requests: Option<u64>, scaled: Option<u64>, now: u64) -> i64 {
        let group = Group {
            replicas: &Range::between(0, 5),
            scaling: Some(&rules()),
            wanted: current,
            load: requests.map(|requests| Load { requests }),
            awaited: false,
            last_scaled_at: scaled.map(at),
        };
        desired(&group, at(now))
    }

    #[test]
    fn load_decides_after_a_delay() {
        for (current, requests, scaled, now, expected) in [
            (None, None, None, 0, 0),
            (Some(2), None, None, 0, 2),
            (Some(9), None, None, 0, 5),
            (Some(0), Some(1), Some(0), 1, 1),
            (Some(1), Some(241), Some(0), 299, 1),
            (Some(1), Some(241), Some(0), 300, 3),
            (Some(1), Some(241), None, 0, 3),
            (Some(1), Some(100_000), None, 0, 5),
            (Some(3), Some(0), Some(0), 599, 3),
            (Some(3), Some(0), Some(0), 600, 0),
        ] {
            assert_eq!(
                wanted(current, requests, scaled, now),
                expected,
                "{current:?} {requests:?} {scaled:?} {now}"
            );
        }
    }

    #[test]
    fn without_rules_only_the_limits_count() {
        let group = Group {
            replicas: &Range::exactly(3),
            scaling: None,
            wanted: Some(1),
            load: Some(Load { requests: 1000 }),
            awaited: true,
            last_scaled_at: None,
        };
        assert_eq!(desired(&group, at(0)), 3);
    }

    /// One that may have up to three replicas, of which so many are wanted, since so many seconds after the start.
    fn known(rules: &ScalingSpec, wanted: i64, scaled: u64) -> Group<'_> {
        const UP_TO_3: Range<i64> = Range {
            min: Some(0),
            max: Some(3),
        };
        Group {
            replicas: &UP_TO_3,
            scaling: Some(rules),
            wanted: Some(wanted),
            load: None,
            awaited: false,
            last_scaled_at: Some(at(scaled)),
        }
    }

    #[test]
    fn who_waits_gets_a_replica_at_once_whatever_is_known_of_others() {
        let rules = rules();
        for (wanted, load, expected) in [
            (0, None, 1),
            (0, Some(0), 1),
            (0, Some(241), 3),
            (1, None, 1),
            (1, Some(0), 1),
        ] {
            let load = load.map(|requests| Load { requests });
            let group = Group {
                load,
                awaited: true,
                ..known(&rules, wanted, 0)
            };
            assert_eq!(desired(&group, at(1000)), expected, "{wanted} {load:?}");
            assert_eq!(desired(&group, at(1)).min(1), 1, "also while it rests");
        }
    }

    #[test]
    fn requests_are_looked_at_when_something_can_change() {
        let rules = rules();
        let look = |wanted, next, now| look_at(&known(&rules, wanted, 0), next, at(now));
        assert_eq!(look(1, 1, 10), Some(at(300)), "grows first");
        assert_eq!(look(3, 3, 10), Some(at(600)), "cannot grow");
        assert_eq!(look(1, 1, 299), Some(at(300)));
        assert_eq!(look(1, 1, 300), Some(at(315)), "may grow at any time");
        assert_eq!(look(0, 0, 10), Some(at(25)), "nothing runs that could answer");
        assert_eq!(look(1, 2, 300), Some(at(600)), "it has just grown");
        let fixed = Group {
            scaling: None,
            ..known(&rules, 1, 0)
        };
        assert_eq!(look_at(&fixed, 1, at(10)), None);
    }

    proptest! {
        #[test]
        fn never_outside_the_limits(
            min in 0i64..4, more in 0i64..4, current in proptest::option::of(-3i64..20),
            requests in proptest::option::of(any::<u64>()), scaled in proptest::option::of(0u64..1000), now in 1000u64..2000,
            awaited in any::<bool>(),
        ) {
            let replicas = Range::between(min, min + more);
            let rules = rules();
            let group = Group {
                replicas: &replicas, scaling: Some(&rules), wanted: current,
                load: requests.map(|requests| Load { requests }), awaited, last_scaled_at: scaled.map(at),
            };
            prop_assert!(replicas.contains(desired(&group, at(now))));
        }
    }
}
