//! Requests of the last seconds. Pure: the time is handed in, in whole seconds since some beginning.

use std::time::Duration;

/// The longest window, in seconds; older requests are forgotten.
pub(super) const KEPT: u64 = 300;

/// Requests of one second.
#[derive(Debug, Clone, Copy, Default)]
struct Frame {
    second: u64,
    /// That came.
    arrived: u64,
    /// That ended.
    requests: u64,
    /// Until the head of the answer, of all together.
    head: Duration,
    /// Until the end of the answer, of all together.
    total: Duration,
    strain: Strain,
}

/// How busy a service was.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Strain {
    /// How long requests were under way, of all together.
    pub busy: Duration,
    /// Answers that are streams of events whose first piece came.
    pub first_pieces: u64,
    /// How long their clients had waited for it, all together.
    pub waited: Duration,
}

impl Strain {
    /// With what was measured elsewhere.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self {
            busy: self.busy.saturating_add(other.busy),
            first_pieces: self.first_pieces.saturating_add(other.first_pieces),
            waited: self.waited.saturating_add(other.waited),
        }
    }
}

/// Requests within a window of time.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Window {
    /// Its length in seconds.
    pub seconds: u64,
    /// Requests that have ended in it.
    pub requests: u64,
    /// How long they took until the head of their answer, in seconds on average; 0 if there were none.
    pub head_time: f64,
    /// How long they took until the end of their answer, in seconds on average; 0 if there were none.
    pub request_time: f64,
}

/// One frame per second, the oldest overwritten.
#[derive(Debug)]
pub(super) struct Frames(Box<[Frame]>);

impl Default for Frames {
    fn default() -> Self {
        Self((0..KEPT).map(|_| Frame::default()).collect())
    }
}

impl Frames {
    /// So many requests have come.
    pub(super) fn arrive(&mut self, second: u64, requests: u64) {
        if let Some(frame) = self.frame(second) {
            frame.arrived += requests;
        }
    }

    /// A request has ended.
    pub(super) fn add(&mut self, second: u64, head: Duration, total: Duration) {
        if let Some(frame) = self.frame(second) {
            frame.requests += 1;
            frame.head += head;
            frame.total += total;
        }
    }

    /// Requests were under way for so long in it, and so many first pieces came.
    pub(super) fn strain(&mut self, second: u64, strain: Strain) {
        if let Some(frame) = self.frame(second) {
            frame.strain = frame.strain.plus(strain);
        }
    }

    /// That of the last `seconds` at this time, as [`Frames::window`] has them.
    pub(super) fn strained(&self, now: u64, seconds: u64) -> Strain {
        let strains = self.within(now, seconds).map(|frame| frame.strain);
        strains.fold(Strain::default(), Strain::plus)
    }

    fn frame(&mut self, second: u64) -> Option<&mut Frame> {
        let place = usize::try_from(second % KEPT).unwrap_or(0);
        let frame = self.0.get_mut(place)?;
        if frame.second != second {
            *frame = Frame {
                second,
                ..Frame::default()
            };
        }
        Some(frame)
    }

    fn within(&self, now: u64, seconds: u64) -> impl Iterator<Item = &Frame> {
        self.0
            .iter()
            .filter(move |frame| frame.second <= now && frame.second + seconds > now)
    }

    /// Requests that came in the last `seconds` at this time, as [`Frames::window`] has them.
    pub(super) fn arrived(&self, now: u64, seconds: u64) -> u64 {
        self.within(now, seconds).map(|frame| frame.arrived).sum()
    }

    /// The last `seconds` at this time, the present second among them; 300 at most.
    pub(super) fn window(&self, now: u64, seconds: u64) -> Window {
        let (mut requests, mut head, mut total) = (0, Duration::ZERO, Duration::ZERO);
        for frame in self.within(now, seconds) {
            requests += frame.requests;
            head += frame.head;
            total += frame.total;
        }
        Window {
            seconds,
            requests,
            head_time: average(head, requests),
            request_time: average(total, requests),
        }
    }
}

fn average(sum: Duration, count: u64) -> f64 {
    match count {
        0 => 0.0,
        count => sum.as_secs_f64() / count as f64,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn times_are_averages_of_the_window() {
        let mut frames = Frames::default();
        let seconds = Duration::from_secs;
        frames.add(100, seconds(1), seconds(2));
        frames.add(129, seconds(3), seconds(6));
        let window = |requests, head_time, request_time| Window {
            seconds: 30,
            requests,
            head_time,
            request_time,
        };
        assert_eq!(frames.window(129, 30), window(2, 2.0, 4.0));
        assert_eq!(frames.window(130, 30), window(1, 3.0, 6.0));
        assert_eq!(frames.window(159, 30), window(0, 0.0, 0.0));
    }

    proptest! {
        #[test]
        fn a_window_has_the_requests_of_its_seconds(
            mut at in prop::collection::vec(0_u64..2000, 0..50),
            seconds in prop::sample::select(vec![1_u64, 30, 60, 300]),
            later in 0_u64..400,
        ) {
            at.sort_unstable();
            let now = at.last().copied().unwrap_or(0) + later;
            let mut frames = Frames::default();
            at.iter().for_each(|second| frames.add(*second, Duration::ZERO, Duration::ZERO));
            let expected = at.iter().filter(|second| *second + seconds > now).count() as u64;
            prop_assert_eq!(frames.window(now, seconds).requests, expected);
        }
    }
}
