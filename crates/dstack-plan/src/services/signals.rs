//! What the number of replicas follows besides requests per second: how many replicas a signal needs.
//!
//! Concurrency is what clients ask for, whatever there are of replicas. Queues and times say how those fare that serve: a number
//! follows from them in proportion, as of the Horizontal Pod Autoscaler of Kubernetes, up to twice as many at a time, and down by one: where all
//! goes well neither says how many fewer would do.

use dstack_model::configurations::service::{ScalingSignal, SignalMetric};

/// A time that differs from its target by less than this share of it changes nothing.
const TOLERANCE: f64 = 0.1;

/// An average of fewer times says nothing.
pub const MIN_TIMES: u64 = 5;

/// A number that was observed, as far as it could be.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Observed {
    /// All of it.
    Is(f64),
    /// What is known of it: there may be more.
    AtLeast(f64),
}

impl Observed {
    /// Nothing is known.
    pub const UNKNOWN: Self = Self::AtLeast(0.0);

    /// With what was observed elsewhere.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        let value = self.value() + other.value();
        match (self, other) {
            (Self::Is(_), Self::Is(_)) => Self::Is(value),
            _ => Self::AtLeast(value),
        }
    }

    /// As much as is known.
    pub const fn value(self) -> f64 {
        match self {
            Self::Is(value) | Self::AtLeast(value) => value,
        }
    }
}

/// Times, of which the average counts.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Times {
    /// How many there were.
    pub count: u64,
    /// All together, in seconds.
    pub seconds: f64,
}

impl Times {
    /// With times that were taken elsewhere.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self {
            count: self.count.saturating_add(other.count),
            seconds: self.seconds + other.seconds,
        }
    }

    /// In seconds; `None`: there are too few.
    #[allow(clippy::cast_precision_loss)] // numbers of requests
    fn average(self) -> Option<f64> {
        (self.count >= MIN_TIMES).then(|| self.seconds / self.count as f64)
    }
}

/// What is known of a service's signals for one of its groups.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Signals {
    /// Replicas of the group that serve.
    pub serving: i64,
    /// Requests to the service under way, on average of the window.
    pub concurrency: Observed,
    /// Requests that wait in all replicas of the group that serve.
    pub queue: Observed,
    /// Times until the first token within the window; `None`: not known.
    pub first_tokens: Option<Times>,
}

/// Nothing is known.
impl Default for Signals {
    fn default() -> Self {
        Self {
            serving: 0,
            concurrency: Observed::UNKNOWN,
            queue: Observed::UNKNOWN,
            first_tokens: None,
        }
    }
}

impl Signals {
    /// Replicas that a signal needs, where `current` are wanted; what is unknown keeps that number from falling, and never makes it rise.
    /// `is_idle`: no request came to the service within the window, and none is under way.
    pub fn needed(&self, signal: ScalingSignal, current: i64, is_idle: bool) -> i64 {
        match signal.metric {
            SignalMetric::Concurrency => share(self.concurrency, signal.target, current),
            // Nobody waits, whether replicas say so or not.
            SignalMetric::QueueLength if is_idle && self.queue.value() == 0.0 => half_of(current),
            SignalMetric::QueueLength => self.step_to(share(self.queue, signal.target, current), current),
            SignalMetric::TimeToFirstToken if is_idle => half_of(current),
            SignalMetric::TimeToFirstToken => {
                let average = self.first_tokens.and_then(Times::average);
                average.map_or(current, |average| {
                    self.step_to(self.in_proportion(average / signal.target, current), current)
                })
            }
        }
    }

    /// As many times as many as serve; of those that are yet to serve it is not known what they will change.
    #[allow(clippy::cast_precision_loss, clippy::cast_possible_truncation)] // saturates
    fn in_proportion(&self, ratio: f64, current: i64) -> i64 {
        let of = |replicas: i64| (replicas as f64 * ratio).ceil() as i64;
        if (ratio - 1.0).abs() <= TOLERANCE {
            current
        } else if ratio > 1.0 {
            of(self.serving).max(current)
        } else if self.serving < current {
            current
        } else {
            of(current)
        }
    }

    /// At most twice as many as serve: those that are yet to serve are not to be doubled as well, however long they take. At most one
    /// fewer, and not the last one: some request may be under way.
    fn step_to(&self, needed: i64, current: i64) -> i64 {
        let least = (current - 1).max(current.min(1));
        let most = self
            .serving
            .saturating_mul(2)
            .clamp(current, current.saturating_mul(2));
        needed.clamp(least, most)
    }
}

/// So many that each has no more than its target.
#[allow(clippy::cast_possible_truncation)] // saturates
fn share(observed: Observed, target: f64, current: i64) -> i64 {
    let needed = (observed.value() / target).ceil() as i64;
    match observed {
        Observed::Is(_) => needed,
        Observed::AtLeast(_) => needed.max(current),
    }
}

/// Half as many; the last one goes as well.
const fn half_of(current: i64) -> i64 {
    match current {
        ..=1 => 0,
        current => current - current / 2,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const CONCURRENCY: ScalingSignal = ScalingSignal {
        metric: SignalMetric::Concurrency,
        target: 8.0,
    };
    const QUEUE: ScalingSignal = ScalingSignal {
        metric: SignalMetric::QueueLength,
        target: 2.0,
    };
    const FIRST_TOKEN: ScalingSignal = ScalingSignal {
        metric: SignalMetric::TimeToFirstToken,
        target: 2.0,
    };

    #[test]
    fn each_replica_has_its_share_of_what_is_under_way() {
        let needed = |concurrency, current| {
            let signals = Signals {
                concurrency,
                ..Signals::default()
            };
            signals.needed(CONCURRENCY, current, false)
        };
        assert_eq!(needed(Observed::Is(0.0), 3), 0);
        assert_eq!(needed(Observed::Is(0.1), 0), 1);
        assert_eq!(needed(Observed::Is(8.0), 1), 1);
        assert_eq!(
            needed(Observed::Is(41.0), 1),
            6,
            "what clients ask for is no step"
        );
        assert_eq!(needed(Observed::AtLeast(41.0), 1), 6, "more would need no fewer");
        assert_eq!(needed(Observed::AtLeast(8.0), 4), 4);
    }

    #[test]
    fn queues_grow_and_shrink_in_steps() {
        let needed = |queue, current| {
            let signals = Signals {
                queue,
                serving: current,
                ..Signals::default()
            };
            signals.needed(QUEUE, current, false)
        };
        assert_eq!(needed(Observed::Is(6.0), 2), 3);
        assert_eq!(needed(Observed::Is(600.0), 2), 4, "at most twice as many");
        assert_eq!(needed(Observed::Is(0.0), 5), 4, "one fewer");
        assert_eq!(
            [2, 1, 0].map(|current| needed(Observed::Is(0.0), current)),
            [1, 1, 0],
            "the last one may be busy"
        );
        assert_eq!(needed(Observed::UNKNOWN, 5), 5);
        assert_eq!(needed(Observed::AtLeast(12.0), 5), 6);
    }

    #[test]
    fn a_long_start_of_new_replicas_is_no_reason_for_more() {
        let needed = |serving, current| {
            let signals = Signals {
                queue: Observed::Is(1000.0),
                serving,
                ..waited(100.0, 10, serving)
            };
            [QUEUE, FIRST_TOKEN].map(|signal| signals.needed(signal, current, false))
        };
        assert_eq!(needed(1, 1), [2, 2]);
        assert_eq!(needed(1, 2), [2, 2], "the second one does not serve yet");
        assert_eq!(needed(3, 4), [6, 6]);
        assert_eq!(needed(0, 4), [4, 4]);
        assert_eq!(needed(4, 2), [4, 4], "others are on their way out");
    }

    #[test]
    fn a_queue_that_is_unknown_keeps_none_where_nobody_asks() {
        let needed = |queue, current, is_idle| {
            let signals = Signals {
                queue,
                serving: current,
                ..Signals::default()
            };
            signals.needed(QUEUE, current, is_idle)
        };
        assert_eq!(needed(Observed::UNKNOWN, 5, true), 3);
        assert_eq!(needed(Observed::UNKNOWN, 1, true), 0);
        assert_eq!(needed(Observed::UNKNOWN, 5, false), 5);
        assert_eq!(
            needed(Observed::Is(12.0), 5, true),
            6,
            "they are asked in another way"
        );
    }

    fn waited(seconds: f64, count: u64, serving: i64) -> Signals {
        Signals {
            first_tokens: Some(Times {
                count,
                seconds: seconds * 10.0,
            }),
            serving,
            ..Signals::default()
        }
    }

    #[test]
    fn times_count_in_proportion_to_those_that_serve() {
        let needed =
            |seconds, serving, current| waited(seconds, 10, serving).needed(FIRST_TOKEN, current, false);
        assert_eq!(needed(3.0, 4, 4), 6);
        assert_eq!(needed(100.0, 4, 4), 8, "at most twice as many");
        assert_eq!([needed(2.19, 4, 4), needed(1.81, 4, 4)], [4, 4], "about right");
        assert_eq!(needed(1.5, 4, 4), 3);
        assert_eq!(needed(0.01, 4, 4), 3, "one fewer");
        assert_eq!(needed(0.0, 1, 1), 1, "not the last one");
        assert_eq!(needed(3.0, 2, 4), 4, "two more are on their way");
        assert_eq!(needed(0.5, 2, 4), 4, "nobody knows what those two will change");
        assert_eq!(needed(8.0, 3, 4), 6, "twice as many as serve");
    }

    #[test]
    fn too_few_times_say_nothing_but_nobody_who_asks_says_something() {
        let few = waited(100.0, MIN_TIMES - 1, 4);
        assert_eq!(few.needed(FIRST_TOKEN, 4, false), 4);
        assert_eq!(Signals::default().needed(FIRST_TOKEN, 4, false), 4);
        assert_eq!(Signals::default().needed(FIRST_TOKEN, 4, true), 2);
        assert_eq!(Signals::default().needed(FIRST_TOKEN, 1, true), 0);
    }

    proptest! {
        #[test]
        fn what_is_unknown_changes_nothing(current in 0_i64..50, target in 0.01_f64..100.0, serving in 0_i64..50) {
            let signals = Signals { serving, ..Signals::default() };
            for metric in [SignalMetric::Concurrency, SignalMetric::QueueLength, SignalMetric::TimeToFirstToken] {
                prop_assert_eq!(signals.needed(ScalingSignal { metric, target }, current, false), current);
            }
        }

        #[test]
        fn steps_are_bounded(
            current in 0_i64..50, serving in 0_i64..50, target in 0.01_f64..100.0, queue in 0.0_f64..1e6, seconds in 0.0_f64..1e6,
            is_whole: bool, is_idle: bool,
        ) {
            let queue = if is_whole { Observed::Is(queue) } else { Observed::AtLeast(queue) };
            let signals = Signals { queue, ..waited(seconds, 10, serving) };
            for metric in [SignalMetric::QueueLength, SignalMetric::TimeToFirstToken] {
                let needed = signals.needed(ScalingSignal { metric, target }, current, is_idle);
                prop_assert!(needed <= current * 2 && needed >= current / 2, "{} {}", current, needed);
            }
        }

        #[test]
        fn more_load_never_needs_fewer(
            current in 1_i64..50, target in 0.01_f64..100.0, less in 0.0_f64..1e4, more in 0.0_f64..1e4,
        ) {
            let needed = |by: f64| {
                let observed = Observed::Is(less + by);
                let signals = Signals { concurrency: observed, queue: observed, ..waited(less + by, 10, current) };
                [SignalMetric::Concurrency, SignalMetric::QueueLength, SignalMetric::TimeToFirstToken]
                    .map(|metric| signals.needed(ScalingSignal { metric, target }, current, false))
            };
            for (few, many) in needed(0.0).into_iter().zip(needed(more)) {
                prop_assert!(few <= many, "{} {}", few, many);
            }
        }
    }
}
