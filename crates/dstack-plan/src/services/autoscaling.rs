//! How many replicas a group should have.

use std::time::Duration;

use dstack_model::configurations::ScalingSpec;
use dstack_units::{Range, Seconds, Time};

/// Requests of the last while.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Load {
    /// Requests within the window of the rules.
    pub requests: u64,
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
    /// Requests; `None` while some gateway has not counted yet.
    pub load: Option<Load>,
    /// When a replica of the service was last added or removed.
    pub last_scaled_at: Option<Time>,
}

/// Replicas wanted now.
pub fn desired(group: &Group<'_>, now: Time) -> i64 {
    let least = group.replicas.min.unwrap_or(0);
    let most = group.replicas.max.unwrap_or(i64::MAX).max(least);
    let current = group.wanted.unwrap_or(least).clamp(least, most);
    let (Some(rules), Some(load)) = (group.scaling, group.load) else {
        return current;
    };
    let target = needed(load, rules).clamp(least, most);
    let delay = match target.cmp(&current) {
        std::cmp::Ordering::Equal => return current,
        // Someone waits: nothing runs that could answer.
        std::cmp::Ordering::Greater if current == 0 => return target,
        std::cmp::Ordering::Greater => rules.scale_up_delay,
        std::cmp::Ordering::Less => rules.scale_down_delay,
    };
    let too_early = group
        .last_scaled_at
        .is_some_and(|last| now.since(last) < duration(delay));
    if too_early { current } else { target }
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
            last_scaled_at: None,
        };
        assert_eq!(desired(&group, at(0)), 3);
    }

    proptest! {
        #[test]
        fn never_outside_the_limits(
            min in 0i64..4, more in 0i64..4, current in proptest::option::of(-3i64..20),
            requests in proptest::option::of(any::<u64>()), scaled in proptest::option::of(0u64..1000), now in 1000u64..2000,
        ) {
            let replicas = Range::between(min, min + more);
            let rules = rules();
            let group = Group {
                replicas: &replicas, scaling: Some(&rules), wanted: current,
                load: requests.map(|requests| Load { requests }), last_scaled_at: scaled.map(at),
            };
            prop_assert!(replicas.contains(desired(&group, at(now))));
        }
    }
}
