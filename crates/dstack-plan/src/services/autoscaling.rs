//! How many replicas a group should have.

use std::collections::BTreeMap;
use std::time::Duration;

use dstack_model::configurations::ScalingSpec;
use dstack_model::configurations::service::{NO_RPS_TARGET, RpsTag, SignalMetric};
use dstack_units::{Range, Seconds, Time};
use serde::{Deserialize, Serialize};

use super::signals::{Observed, Signals};

/// Requests are looked at again after this time, when the number of replicas may change.
pub const LOOK_INTERVAL: Duration = Duration::from_secs(15);

/// Requests of the last while.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Load {
    /// Requests within the window of the rules.
    pub requests: u64,
}

/// How many replicas a group that scales should have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "Stored")]
pub struct Scale {
    /// Replicas wanted.
    pub wanted: i64,
    /// When that number changed last, or a deployment or a start made all anew; `None`: a version stored it that did not note that.
    pub at: Option<Time>,
    /// When the number fell last.
    pub fell_at: Option<Time>,
}

/// Whatever version stored it.
#[derive(Deserialize)]
#[serde(untagged)]
enum Stored {
    Wanted(i64),
    Scale {
        wanted: i64,
        at: Option<Time>,
        fell_at: Option<Time>,
    },
}

impl From<Stored> for Scale {
    fn from(stored: Stored) -> Self {
        let (wanted, at, fell_at) = match stored {
            Stored::Wanted(wanted) => (wanted, None, None),
            Stored::Scale { wanted, at, fell_at } => (wanted, at, fell_at),
        };
        Self { wanted, at, fell_at }
    }
}

impl Scale {
    /// So many are wanted from now on.
    pub fn next(before: Option<Self>, wanted: i64, now: Time) -> Self {
        match before {
            Some(before) if before.wanted == wanted => before,
            _ => Self {
                wanted,
                at: Some(now),
                fell_at: match before {
                    Some(before) if before.wanted > wanted => Some(now),
                    _ => before.and_then(|before| before.fell_at),
                },
            },
        }
    }

    /// As [`Scale::next`], of a group all of whose replicas are made anew.
    pub fn anew(before: Option<Self>, wanted: i64, now: Time) -> Self {
        let next = Self::next(before, wanted, now);
        match wanted {
            // Who rests goes on to do so.
            0 => next,
            _ => Self {
                at: Some(now),
                ..next
            },
        }
    }
}

/// What is known of the requests to a service.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Demand {
    /// Replicas wanted so far of each group that scales; none before its first start.
    pub scales: BTreeMap<String, Scale>,
    /// Requests, for each group within the window of its rules; none while they are unknown.
    pub loads: BTreeMap<String, Load>,
    /// What else is known, for each group whose rules have signals.
    pub signals: BTreeMap<String, Signals>,
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
    ) -> Group<'a> {
        let scale = self.scales.get(name);
        Group {
            replicas,
            scaling,
            wanted: scale.map(|scale| scale.wanted),
            load: self.loads.get(name).copied(),
            signals: self.signals.get(name).copied().unwrap_or_default(),
            awaited: self.awaited,
            last_scaled_at: scale.and_then(|scale| scale.at),
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
    /// What the rules by other signals follow.
    pub signals: Signals,
    /// Requests wait for a replica.
    pub awaited: bool,
    /// When the group was last scaled.
    pub last_scaled_at: Option<Time>,
}

impl Group<'_> {
    fn least(&self) -> i64 {
        self.replicas.min.unwrap_or(0)
    }

    fn most(&self) -> i64 {
        self.replicas.max.unwrap_or(i64::MAX).max(self.least())
    }

    /// As many as were wanted so far, within the limits.
    fn current(&self) -> i64 {
        let least = self.least();
        self.wanted.unwrap_or(least).clamp(least, self.most())
    }

    /// As many as any of the rules needs, and by which that is.
    fn needed(&self, rules: &ScalingSpec) -> (i64, Need) {
        let current = self.current();
        // Gateways count requests when they end, and older ones do not tell what is under way.
        let is_idle =
            self.load.is_some_and(|load| load.requests == 0) && self.signals.concurrency == Observed::Is(0.0);
        let by_requests = self.load.map_or(current, |load| needed(load, rules));
        let by_signals = rules.signals.iter().map(|signal| {
            let needed = self.signals.needed(*signal, current, is_idle);
            (needed, Need::Signal(signal.metric))
        });
        // Of equals the first one.
        by_signals.fold((by_requests, Need::Requests), |most, next| {
            match next.0 > most.0 {
                true => next,
                false => most,
            }
        })
    }

    /// Whether a change after this delay would come too early.
    fn is_resting(&self, delay: Seconds, now: Time) -> bool {
        self.last_scaled_at
            .is_some_and(|last| now.since(last) < duration(delay))
    }
}

/// By which rule a group has as many replicas as it has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Need {
    /// That of requests per second.
    Requests,
    /// That of another signal.
    Signal(SignalMetric),
}

/// Why a group whose rules have signals has another number of replicas from now on, for people; `None`: its rules have none, or the
/// number stays.
pub fn change_of(group: &Group<'_>, wanted: i64) -> Option<String> {
    let rules = group.scaling.filter(|rules| !rules.signals.is_empty())?;
    let before = group.wanted.filter(|before| *before != wanted)?;
    let (needed, need) = group.needed(rules);
    let why = match need {
        _ if group.awaited && needed < wanted => "a request waits",
        Need::Signal(metric) => metric.as_str(),
        Need::Requests if rules.target >= NO_RPS_TARGET => "requests",
        Need::Requests => RpsTag::TEXT,
    };
    Some(format!("{before} -> {wanted} ({why})"))
}

/// Whether a group may have no replicas until requests come.
pub fn starts_on_request(replicas: &Range<i64>, scaling: Option<&ScalingSpec>) -> bool {
    scaling.is_some() && replicas.min.unwrap_or(0) == 0 && replicas.max != Some(0)
}

/// Replicas with which a group starts of which none is left: no fewer than before, since nobody could ask those that are gone. One
/// that may have none rests if nobody asks for it.
pub fn desired_anew(group: &Group<'_>, now: Time) -> i64 {
    let unscaled = Group {
        last_scaled_at: None,
        ..*group
    };
    let needed = desired(&unscaled, now);
    if needed == 0 && starts_on_request(group.replicas, group.scaling) {
        return 0;
    }
    needed.max(group.current())
}

/// Replicas wanted now.
pub fn desired(group: &Group<'_>, now: Time) -> i64 {
    let (least, most, current) = (group.least(), group.most(), group.current());
    let Some(rules) = group.scaling else {
        return current;
    };
    let (needed, _) = group.needed(rules);
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
    // Pages of replicas are read as long as somebody looks.
    let is_read = rules.signals.iter().any(|signal| signal.metric.is_on_page());
    let after = |delay| Some(last + duration(delay)).filter(|at| *at > now && !is_read);
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
    use crate::services::signals::Times;

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
            signals: Signals::default(),
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
    fn who_starts_anew_has_no_fewer_than_before_unless_it_may_rest_and_nobody_asks() {
        let rules = rules();
        let start = |least, wanted, requests: Option<u64>, awaited| {
            let group = Group {
                replicas: &Range::between(least, 5),
                scaling: Some(&rules),
                wanted,
                load: requests.map(|requests| Load { requests }),
                signals: Signals::default(),
                awaited,
                last_scaled_at: Some(at(0)),
            };
            desired_anew(&group, at(1))
        };
        for requests in [None, Some(0), Some(121)] {
            assert_eq!(start(1, Some(4), requests, false), 4, "{requests:?}");
        }
        assert_eq!(start(1, Some(2), Some(361), false), 4, "more are needed");
        assert_eq!(start(1, None, Some(0), false), 1);
        assert_eq!(start(1, Some(9), Some(0), false), 5, "within the limits");
        assert_eq!(start(0, Some(4), Some(0), false), 0);
        assert_eq!(start(0, Some(4), Some(0), true), 4);
        assert_eq!(start(0, Some(0), Some(0), true), 1);
    }

    #[test]
    fn a_stored_number_without_its_time_is_read_as_well() {
        let read = |value| serde_json::from_value::<Scale>(value).unwrap();
        let untimed = Scale {
            wanted: 2,
            at: None,
            fell_at: None,
        };
        assert_eq!(read(json!(2)), untimed);
        let scale = Scale::next(Some(untimed), 1, at(7));
        assert_eq!((scale.at, scale.fell_at), (Some(at(7)), Some(at(7))));
        assert_eq!(read(serde_json::to_value(scale).unwrap()), scale);
    }

    #[test]
    fn a_group_is_scaled_when_its_number_changes_and_when_it_starts() {
        let one = Scale::next(None, 1, at(0));
        assert_eq!(Scale::next(Some(one), 1, at(5)), one);
        let grown = Scale::next(Some(one), 2, at(5));
        assert_eq!((grown.at, grown.fell_at), (Some(at(5)), None));
        assert_eq!(Scale::anew(Some(grown), 2, at(9)).at, Some(at(9)));
        let resting = Scale::next(Some(grown), 0, at(9));
        assert_eq!(Scale::anew(Some(resting), 0, at(10)), resting);
    }

    #[test]
    fn without_rules_only_the_limits_count() {
        let group = Group {
            replicas: &Range::exactly(3),
            scaling: None,
            wanted: Some(1),
            load: Some(Load { requests: 1000 }),
            signals: Signals::default(),
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
            signals: Signals::default(),
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

    fn with_signals(more: &serde_json::Value) -> ScalingSpec {
        let mut rules = json!({"signals": [
            {"metric": "concurrency", "target": 8},
            {"metric": "queue_length", "target": 2},
            {"metric": "time_to_first_token", "target": 2},
        ]});
        let more = more.as_object().unwrap().clone();
        rules.as_object_mut().unwrap().extend(more);
        dstack_model::decode::decode_strict(&rules).unwrap()
    }

    /// One that may have 1 to 10 replicas and has four, which serve, and to which this is known.
    fn of_four<'a>(rules: &'a ScalingSpec, load: Option<u64>, signals: Signals) -> Group<'a> {
        const UP_TO_10: Range<i64> = Range {
            min: Some(1),
            max: Some(10),
        };
        Group {
            replicas: &UP_TO_10,
            scaling: Some(rules),
            wanted: Some(4),
            load: load.map(|requests| Load { requests }),
            signals: Signals {
                serving: 4,
                ..signals
            },
            awaited: false,
            last_scaled_at: None,
        }
    }

    #[test]
    fn as_many_are_wanted_as_any_rule_needs() {
        let rules = with_signals(&json!({"metric": "rps", "target": 1}));
        let signals = |concurrency: f64, queue: f64, seconds: f64| Signals {
            concurrency: Observed::Is(concurrency),
            queue: Observed::Is(queue),
            first_tokens: Some(Times {
                count: 10,
                seconds: 10.0 * seconds,
            }),
            ..Signals::default()
        };
        for (requests, known, expected) in [
            (Some(360), signals(8.0, 0.0, 0.1), "4 -> 6 (rps)"),
            (Some(60), signals(56.0, 0.0, 0.1), "4 -> 7 (concurrency)"),
            (Some(60), signals(8.0, 10.0, 0.1), "4 -> 5 (queue_length)"),
            (Some(60), signals(8.0, 0.0, 4.0), "4 -> 8 (time_to_first_token)"),
            // Least by the signals, which fall by one, and by half where nobody asks.
            (Some(60), signals(8.0, 0.0, 0.1), "4 -> 3 (queue_length)"),
            (Some(0), signals(0.0, 0.0, 0.1), "4 -> 2 (queue_length)"),
        ] {
            let group = of_four(&rules, requests, known);
            let wanted = desired(&group, at(0));
            assert_eq!(change_of(&group, wanted).as_deref(), Some(expected), "{known:?}");
        }
    }

    #[test]
    fn one_rule_that_is_unknown_keeps_the_number_and_others_make_it_grow() {
        let rules = with_signals(&json!({"metric": "rps", "target": 1}));
        let known = Signals {
            concurrency: Observed::Is(0.0),
            queue: Observed::Is(0.0),
            first_tokens: Some(Times {
                count: 10,
                seconds: 1.0,
            }),
            ..Signals::default()
        };
        let wanted = |load, signals| desired(&of_four(&rules, load, signals), at(0));
        assert_eq!(wanted(Some(60), known), 3);
        for unknown in [
            Signals {
                concurrency: Observed::UNKNOWN,
                ..known
            },
            Signals {
                queue: Observed::UNKNOWN,
                ..known
            },
            Signals {
                first_tokens: None,
                ..known
            },
        ] {
            assert_eq!(wanted(Some(60), unknown), 4, "{unknown:?}");
            assert_eq!(wanted(Some(360), unknown), 6, "{unknown:?}");
        }
        assert_eq!(wanted(None, known), 4, "requests are unknown");
        let busy = Signals {
            concurrency: Observed::Is(56.0),
            ..known
        };
        assert_eq!(wanted(None, busy), 7);
    }

    #[test]
    fn without_a_target_of_requests_those_keep_one_replica() {
        let rules = with_signals(&json!({}));
        let idle = Signals {
            concurrency: Observed::Is(0.0),
            queue: Observed::Is(0.0),
            ..Signals::default()
        };
        let last = |requests| {
            let group = Group {
                replicas: &Range::between(0, 5),
                wanted: Some(1),
                ..of_four(&rules, Some(requests), Signals { serving: 1, ..idle })
            };
            let few = Signals {
                first_tokens: Some(Times {
                    count: 10,
                    seconds: 0.1,
                }),
                ..group.signals
            };
            desired(
                &Group {
                    signals: few,
                    ..group
                },
                at(0),
            )
        };
        assert_eq!([last(1_000_000_000), last(1), last(0)], [1, 1, 0]);
    }

    /// Gateways count requests when they end: a stream may be under way for longer than the window.
    #[test]
    fn the_last_replica_goes_only_where_it_is_known_that_nothing_is_under_way() {
        for metric in ["queue_length", "time_to_first_token"] {
            let rules = with_signals(&json!({"signals": [{"metric": metric, "target": 2}]}));
            let last = |concurrency, requests| {
                let group = Group {
                    replicas: &Range::between(0, 5),
                    wanted: Some(1),
                    ..of_four(&rules, Some(requests), Signals::default())
                };
                let signals = Signals {
                    serving: 1,
                    concurrency,
                    queue: Observed::Is(0.0),
                    ..group.signals
                };
                desired(&Group { signals, ..group }, at(0))
            };
            assert_eq!(last(Observed::Is(1.0), 0), 1, "{metric}");
            assert_eq!(last(Observed::UNKNOWN, 0), 1, "{metric}");
            assert_eq!(last(Observed::Is(0.0), 1), 1, "{metric}");
            assert_eq!(last(Observed::Is(0.0), 0), 0, "{metric}");
        }
    }

    #[test]
    fn pages_are_looked_at_also_while_it_rests() {
        let by_page = with_signals(&json!({}));
        let by_requests = rules();
        let look = |rules| {
            let group = Group {
                last_scaled_at: Some(at(0)),
                ..of_four(rules, None, Signals::default())
            };
            look_at(&group, 4, at(10))
        };
        assert_eq!(look(&by_requests), Some(at(300)));
        assert_eq!(look(&by_page), Some(at(25)));
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
                load: requests.map(|requests| Load { requests }), signals: Signals::default(), awaited, last_scaled_at: scaled.map(at),
            };
            prop_assert!(replicas.contains(desired(&group, at(now))));
        }
    }
}
