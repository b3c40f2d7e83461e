//! What was counted of the requests to a service, wherever that was.

use dstack_agent_api::gateway::{ServiceCounts, Times as GatewayTimes};
use dstack_model::metrics::{Percentiles, ServiceMetrics};
use dstack_proxy::stats::{BUCKETS, Histogram, Snapshot};

/// What was counted of one service.
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct Counts {
    /// Requests that are over, by the first digit of their status.
    pub(crate) by_class: [u64; 5],
    pub(crate) under_way: u64,
    /// Until the head of the answer.
    pub(crate) head: Times,
    /// Until its end.
    pub(crate) total: Times,
    /// Of what models were asked, and of what they answered.
    pub(crate) tokens: [u64; 2],
}

/// How many requests took how long.
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct Times {
    /// Upper bounds in seconds, each with how many took at most as long.
    pub(crate) buckets: Vec<(f64, u64)>,
    pub(crate) count: u64,
    pub(crate) sum: f64,
}

impl From<&Snapshot> for Counts {
    fn from(snapshot: &Snapshot) -> Self {
        Self {
            by_class: snapshot.by_class,
            under_way: snapshot.under_way,
            head: Times::from(&snapshot.head),
            total: Times::from(&snapshot.total),
            tokens: [snapshot.tokens.prompt, snapshot.tokens.completion],
        }
    }
}

impl From<ServiceCounts> for Counts {
    fn from(counts: ServiceCounts) -> Self {
        Self {
            by_class: counts.by_class,
            under_way: counts.under_way,
            head: Times::from(counts.head),
            total: Times::from(counts.total),
            tokens: [counts.prompt_tokens, counts.completion_tokens],
        }
    }
}

impl From<&Histogram> for Times {
    fn from(histogram: &Histogram) -> Self {
        Self {
            buckets: histogram.cumulative().collect(),
            count: histogram.count,
            sum: histogram.sum,
        }
    }
}

/// What a gateway says may be anything: only bounds that there are.
impl From<GatewayTimes> for Times {
    fn from(times: GatewayTimes) -> Self {
        let told = |bound: &f64| {
            let mut told = times.buckets.iter();
            told.find(|(told, _)| told.total_cmp(bound).is_eq()).copied()
        };
        Self {
            buckets: BUCKETS.iter().filter_map(told).collect(),
            count: times.count,
            sum: times.sum,
        }
    }
}

impl Counts {
    /// With what was counted elsewhere.
    fn plus(mut self, other: &Self) -> Self {
        for (own, more) in self.by_class.iter_mut().zip(other.by_class) {
            *own = own.saturating_add(more);
        }
        for (own, more) in self.tokens.iter_mut().zip(other.tokens) {
            *own = own.saturating_add(more);
        }
        self.under_way = self.under_way.saturating_add(other.under_way);
        self.head = self.head.plus(&other.head);
        self.total = self.total.plus(&other.total);
        self
    }
}

impl Times {
    /// With those of others. Of buckets that only one of them has, nobody knows how many of the other are in them: those are left out.
    pub(super) fn plus(mut self, other: &Self) -> Self {
        if self.count == 0 {
            return other.clone();
        }
        if other.count == 0 {
            return self;
        }
        self.buckets.retain_mut(|(bound, count)| {
            let more = other
                .buckets
                .iter()
                .find(|(other, _)| other.total_cmp(bound).is_eq());
            if let Some((_, more)) = more {
                *count = count.saturating_add(*more);
            }
            more.is_some()
        });
        self.count = self.count.saturating_add(other.count);
        self.sum += other.sum;
        self
    }

    fn percentiles(&self) -> Percentiles {
        Percentiles {
            p50: self.quantile(0.5),
            p95: self.quantile(0.95),
            p99: self.quantile(0.99),
        }
    }

    /// As Prometheus' `histogram_quantile`: times are spread evenly over their bucket, and what took longer than the last bound
    /// took as long as that.
    #[allow(clippy::cast_precision_loss)] // numbers of requests
    pub(super) fn quantile(&self, share: f64) -> Option<f64> {
        if self.count == 0 {
            return None;
        }
        let rank = share * self.count as f64;
        let (mut lower, mut before) = (0.0, 0);
        for (upper, count) in &self.buckets {
            if *count as f64 >= rank && *count > before {
                let part = (rank - before as f64) / (count - before) as f64;
                return Some(lower + (upper - lower) * part.clamp(0.0, 1.0));
            }
            (lower, before) = (*upper, *count);
        }
        self.buckets.last().map(|(bound, _)| *bound)
    }
}

impl Times {
    /// The greatest bound that surely fewer than this share took at most; 0 if there is none.
    #[allow(clippy::cast_precision_loss)] // numbers of requests
    pub(super) fn surely_over(&self, share: f64) -> f64 {
        let rank = share * self.count as f64;
        let below = self
            .buckets
            .iter()
            .take_while(|(_, count)| (*count as f64) < rank);
        below.last().map_or(0.0, |(bound, _)| *bound)
    }
}

/// All counts of one service together, with the number of requests of the last minute.
pub(crate) fn metrics(counted: &[Counts], requests_last_minute: Option<u64>) -> ServiceMetrics {
    let all = counted.iter().fold(Counts::default(), Counts::plus);
    let number = |count: u64| i64::try_from(count).unwrap_or(i64::MAX);
    let [one, two, three, four, five] = all.by_class.map(number);
    let [prompt_tokens, completion_tokens] = all.tokens.map(number);
    ServiceMetrics {
        requests_last_minute: requests_last_minute.map(number),
        requests_in_flight: number(all.under_way),
        responses_1xx: one,
        responses_2xx: two,
        responses_3xx: three,
        responses_4xx: four,
        responses_5xx: five,
        response_head_seconds: all.head.percentiles(),
        request_duration_seconds: all.total.percentiles(),
        prompt_tokens,
        completion_tokens,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn times(buckets: &[(f64, u64)], count: u64) -> Times {
        Times {
            buckets: buckets.to_vec(),
            count,
            sum: 0.0,
        }
    }

    #[test]
    fn percentiles_are_those_of_the_buckets() {
        let all = times(&[(0.1, 50), (0.2, 90), (1.0, 98)], 100).percentiles();
        assert_eq!(all.p50, Some(0.1));
        assert!((all.p95.unwrap() - 0.7).abs() < 1e-9, "{all:?}");
        assert_eq!(all.p99, Some(1.0), "it took longer than the last bound");
        let alike = times(&[(1.0, 0), (2.5, 100)], 100);
        assert!(
            alike.quantile(0.95).unwrap() > 2.0,
            "they may all have taken 1.2 s"
        );
        assert!((alike.surely_over(0.95) - 1.0).abs() < 1e-9);
        assert!(times(&[], 0).surely_over(0.95).abs() < 1e-9);
        assert_eq!(times(&[], 0).percentiles(), Percentiles::default());
        assert_eq!(times(&[], 5).percentiles().p50, None, "no bucket is known");
    }

    #[test]
    fn what_several_counted_is_added() {
        let one = Counts {
            by_class: [0, 3, 0, 1, 0],
            under_way: 1,
            total: times(&[(0.1, 4), (0.5, 4)], 4),
            tokens: [10, 20],
            ..Counts::default()
        };
        let other = Counts {
            by_class: [0, 1, 0, 0, 2],
            total: times(&[(0.1, 0), (1.0, 3)], 3),
            tokens: [1, 2],
            ..Counts::default()
        };
        let all = metrics(&[one, other], Some(7));
        assert_eq!(
            (all.responses_2xx, all.responses_4xx, all.responses_5xx),
            (4, 1, 2)
        );
        assert_eq!((all.requests_in_flight, all.requests_last_minute), (1, Some(7)));
        assert_eq!((all.prompt_tokens, all.completion_tokens), (11, 22));
        assert_eq!(
            all.request_duration_seconds.p99,
            Some(0.1),
            "the only bucket that both have"
        );
    }
}
