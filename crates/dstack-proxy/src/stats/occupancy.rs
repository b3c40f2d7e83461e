//! How many requests are under way, second by second. Pure: the time is handed in, since some beginning.

use std::time::Duration;

use super::windows::{Frames, KEPT, Strain};

/// Requests under way.
#[derive(Debug, Default)]
pub(super) struct Occupancy {
    under_way: u32,
    /// Up to when they are accounted for.
    at: Duration,
    /// How long requests were under way until then, of all together.
    total: Duration,
}

impl Occupancy {
    /// One more is under way.
    pub(super) fn begin(&mut self, now: Duration, frames: &mut Frames) {
        self.account(now, frames);
        self.under_way = self.under_way.saturating_add(1);
    }

    /// One less is.
    pub(super) fn end(&mut self, now: Duration, frames: &mut Frames) {
        self.account(now, frames);
        self.under_way = self.under_way.saturating_sub(1);
    }

    /// Up to now; how long requests were under way since the beginning, of all together.
    pub(super) fn account(&mut self, now: Duration, frames: &mut Frames) -> Duration {
        let from = self.at;
        self.at = now.max(from);
        if self.under_way == 0 {
            return self.total;
        }
        self.total += self.at.saturating_sub(from).saturating_mul(self.under_way);
        // What is longer ago is in no frame any more: that of so many seconds ago is the one of now.
        let mut from = from.max(self.at.saturating_sub(Duration::from_secs(KEPT - 1)));
        while from < self.at {
            let second = from.as_secs();
            let until = self.at.min(Duration::from_secs(second + 1));
            let busy = until.saturating_sub(from).saturating_mul(self.under_way);
            frames.strain(
                second,
                Strain {
                    busy,
                    ..Strain::default()
                },
            );
            from = until;
        }
        self.total
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn busy(frames: &Frames, now: u64, seconds: u64) -> f64 {
        frames.strained(now, seconds).busy.as_secs_f64()
    }

    #[test]
    fn each_second_has_its_share_of_what_is_under_way() {
        let (mut occupancy, mut frames) = (Occupancy::default(), Frames::default());
        let at = Duration::from_secs_f64;
        occupancy.begin(at(1.5), &mut frames);
        occupancy.begin(at(2.5), &mut frames);
        occupancy.end(at(4.0), &mut frames);
        let total = occupancy.account(at(5.25), &mut frames);
        assert_eq!(total, at(1.0 + 3.0 + 1.25));
        let shares = [1, 2, 3, 4, 5].map(|second| busy(&frames, second, 1));
        assert_eq!(shares, [0.5, 1.5, 2.0, 1.0, 0.25]);
        assert_eq!(
            occupancy.account(at(3.0), &mut frames),
            total,
            "clocks do not go back"
        );
    }

    #[test]
    fn what_was_under_way_for_long_is_accounted_for_at_once() {
        let (mut occupancy, mut frames) = (Occupancy::default(), Frames::default());
        occupancy.begin(Duration::ZERO, &mut frames);
        let now = 1_000_000_u64;
        occupancy.account(Duration::from_secs(now), &mut frames);
        assert_eq!(busy(&frames, now - 1, 299), 299.0);
    }

    #[test]
    fn what_is_accounted_for_at_once_leaves_alone_what_else_is_known_of_now() {
        let (mut occupancy, mut frames) = (Occupancy::default(), Frames::default());
        occupancy.begin(Duration::ZERO, &mut frames);
        frames.arrive(1000, 7);
        occupancy.account(Duration::from_millis(1_000_500), &mut frames);
        assert_eq!(frames.arrived(1000, 1), 7);
    }

    proptest! {
        #[test]
        fn all_together_are_what_each_took(mut times in prop::collection::vec(0_u64..100_000, 2..20)) {
            times.sort_unstable();
            let (mut occupancy, mut frames) = (Occupancy::default(), Frames::default());
            let half = times.len() / 2;
            let (begins, ends) = times.split_at(half);
            let at = Duration::from_millis;
            begins.iter().for_each(|begin| occupancy.begin(at(*begin), &mut frames));
            ends.iter().for_each(|end| occupancy.end(at(*end), &mut frames));
            let took: u64 = ends.iter().take(half).sum::<u64>() - begins.iter().sum::<u64>();
            prop_assert_eq!(occupancy.account(at(100_000), &mut frames), at(took));
            prop_assert_eq!(frames.strained(100, 300).busy, at(took));
        }
    }
}
