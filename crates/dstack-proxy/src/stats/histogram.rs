//! How many requests took how long.

use std::time::Duration;

/// Upper bounds of the buckets in seconds. What takes longer is in no bucket, but in the count.
pub const BUCKETS: [f64; 15] = [
    0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0,
];

/// A histogram as Prometheus has them.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Histogram {
    /// How many took at most as long as the bucket says, those of the buckets before not among them.
    pub counts: [u64; BUCKETS.len()],
    /// How many there were.
    pub count: u64,
    /// How long all took, in seconds.
    pub sum: f64,
}

impl Histogram {
    pub(crate) fn add(&mut self, time: Duration) {
        let seconds = time.as_secs_f64();
        let bucket = BUCKETS.partition_point(|bound| *bound < seconds);
        if let Some(count) = self.counts.get_mut(bucket) {
            *count += 1;
        }
        self.count += 1;
        self.sum += seconds;
    }

    /// The buckets with their upper bounds in seconds, each with those of the buckets before.
    pub fn cumulative(&self) -> impl Iterator<Item = (f64, u64)> {
        let counts = self.counts.iter().scan(0, |sum, count| {
            *sum += count;
            Some(*sum)
        });
        BUCKETS.into_iter().zip(counts)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_counted_up_to_the_bound_of_their_bucket() {
        let mut histogram = Histogram::default();
        for millis in [5, 6, 10, 299_999, 300_000, 300_001] {
            histogram.add(Duration::from_millis(millis));
        }
        assert_eq!(histogram.counts[..3], [1, 2, 0]);
        assert_eq!(histogram.counts[14], 2);
        assert_eq!(histogram.count, 6);
        assert!((histogram.sum - 900.021).abs() < 1e-6);
        assert_eq!(histogram.cumulative().last(), Some((300.0, 5)));
    }
}
