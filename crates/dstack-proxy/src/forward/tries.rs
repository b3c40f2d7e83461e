//! Which replica a request is sent to next, after those that failed.

use std::sync::Arc;

use dstack_system::Random;

use super::attempt::Failure;
use crate::balance::{Candidate, choose, soonest};
use crate::replica::Replica;
use crate::split::{Side, Split};

/// Most attempts of one request.
pub(crate) const MAX_ATTEMPTS: usize = 3;

/// Replicas that a request was sent to without an answer.
#[derive(Debug, Default)]
pub(crate) struct Tries {
    made: usize,
    failed: Vec<usize>,
    /// The replica whose used connection was closed: another one may do.
    closed: Option<usize>,
    may_have_arrived: bool,
    /// The replica that is to be tried first.
    preferred: Option<usize>,
}

/// What is to be tried.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Choice {
    pub(crate) place: usize,
    /// Over a new connection.
    pub(crate) fresh: bool,
    /// No further attempt follows.
    pub(crate) last: bool,
}

impl Tries {
    /// This replica, if any, is to be tried first.
    pub(crate) fn preferring(preferred: Option<usize>) -> Self {
        Self {
            preferred,
            ..Self::default()
        }
    }

    /// The next replica: one that gets requests and has not failed; otherwise, where only a used connection was closed, the same
    /// over a new one; otherwise one that is left out, unless it has failed this request.
    pub(crate) fn next(&self, replicas: &[Arc<Replica>], random: &Random) -> Option<Choice> {
        self.next_of(replicas, random, |_| true, true)
    }

    /// The same of a request that goes to a side of a roll-out: to the other one only if its own has no replica that gets requests.
    pub(crate) fn next_on(
        &self,
        replicas: &[Arc<Replica>],
        random: &Random,
        side: Option<(&Split, Side)>,
    ) -> Option<Choice> {
        let Some((split, side)) = side else {
            return self.next(replicas, random);
        };
        let is_own = |replica: &Replica| split.side_of(replica.id) == side;
        let may_be = |replica: &Replica| split.takes_over(side, split.side_of(replica.id), replicas);
        self.next_of(replicas, random, is_own, false)
            .or_else(|| self.next_of(replicas, random, may_be, true))
    }

    /// The next of those replicas that are `wanted`; `or_out`: one that is left out, if there is no other.
    fn next_of(
        &self,
        replicas: &[Arc<Replica>],
        random: &Random,
        wanted: impl Fn(&Replica) -> bool,
        or_out: bool,
    ) -> Option<Choice> {
        if self.made >= MAX_ATTEMPTS {
            return None;
        }
        let last = self.made + 1 == MAX_ATTEMPTS;
        let untried = replicas
            .iter()
            .enumerate()
            .filter(|(place, replica)| {
                !self.failed.contains(place) && self.closed != Some(*place) && wanted(replica)
            })
            .map(|(place, replica)| Candidate::of(place, replica));
        let closed = self
            .closed
            .filter(|place| replicas.get(*place).is_some_and(|replica| wanted(replica)));
        let choice = |place, fresh| Choice { place, fresh, last };
        let preferred = self
            .preferred
            .filter(|place| self.made == 0 && !self.failed.contains(place))
            .filter(|place| replicas.get(*place).is_some_and(|replica| wanted(replica)));
        if let Some(place) = preferred {
            return Some(choice(place, last));
        }
        // The last attempt takes no chances.
        choose(untried.clone(), |bound| random.below(bound))
            .map(|place| choice(place, last))
            .or_else(|| closed.map(|place| choice(place, true)))
            .or_else(|| {
                soonest(untried)
                    .filter(|_| or_out)
                    .map(|place| choice(place, last))
            })
    }

    /// This replica gets no more requests, and was not asked.
    pub(crate) fn leave_out(&mut self, place: usize) {
        self.closed = self.closed.filter(|closed| *closed != place);
        self.failed.push(place);
    }

    /// A replica may have got the request.
    pub(crate) const fn may_have_arrived(&self) -> bool {
        self.may_have_arrived
    }

    /// This replica has not answered.
    pub(crate) fn note(&mut self, place: usize, failure: Failure) {
        self.made += 1;
        self.may_have_arrived |= !failure.is_not_received();
        if let (Failure::NotSent | Failure::Closed, None) = (failure, self.closed) {
            self.closed = Some(place);
        } else {
            self.closed = self.closed.filter(|closed| *closed != place);
            self.failed.push(place);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use dstack_units::JobId;
    use uuid::Uuid;

    use super::*;
    use crate::nowhere::Nowhere;
    use crate::replica::Visit;

    fn replicas(count: u128) -> Vec<Arc<Replica>> {
        let replica = |id| Arc::new(Replica::new(JobId::new(Uuid::from_u128(id)), Arc::new(Nowhere)));
        (0..count).map(replica).collect()
    }

    /// Places and whether over a new connection, when each attempt ends so.
    fn tried(replicas: &[Arc<Replica>], failures: &[Failure]) -> Vec<(usize, bool)> {
        let random = Random::seeded(3);
        let mut tries = Tries::default();
        let mut tried = Vec::new();
        for failure in failures {
            let Some(choice) = tries.next(replicas, &random) else {
                break;
            };
            tried.push((choice.place, choice.fresh));
            tries.note(choice.place, *failure);
        }
        tried
    }

    #[test]
    fn the_preferred_replica_is_tried_first_unless_it_gets_no_more_requests() {
        let (all, random) = (replicas(5), Random::seeded(3));
        for place in 0..5 {
            let mut tries = Tries::preferring(Some(place));
            assert_eq!(tries.next(&all, &random).map(|choice| choice.place), Some(place));
            tries.leave_out(place);
            let other = tries.next(&all, &random).unwrap();
            assert_ne!(other.place, place);
            let mut tries = Tries::preferring(Some(place));
            tries.note(place, Failure::Unreachable);
            assert_ne!(tries.next(&all, &random).unwrap().place, place);
        }
    }

    #[test]
    fn each_attempt_goes_to_another_replica_and_the_third_is_the_last() {
        let all = replicas(5);
        let tried = tried(&all, &[Failure::Unreachable; 5]);
        let mut places: Vec<usize> = tried.iter().map(|(place, _)| *place).collect();
        places.sort_unstable();
        places.dedup();
        assert_eq!((places.len(), tried.len()), (3, 3), "{tried:?}");
        assert_eq!(
            tried.iter().map(|(_, fresh)| *fresh).collect::<Vec<_>>(),
            [false, false, true]
        );
    }

    #[test]
    fn the_only_replica_is_tried_again_over_a_new_connection_where_a_used_one_was_closed() {
        let one = replicas(1);
        assert_eq!(tried(&one, &[Failure::Closed; 5]), [(0, false), (0, true)]);
        assert_eq!(tried(&one, &[Failure::Broken; 5]), [(0, false)]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_replica_that_is_left_out_comes_last() {
        let two = replicas(2);
        Visit::begin(&two[0]).unwrap().failed();
        assert_eq!(
            tried(&two, &[Failure::Closed; 5]),
            [(1, false), (1, true), (0, true)]
        );
        assert_eq!(tried(&two, &[Failure::Broken; 5]), [(1, false), (0, false)]);
        tokio::time::advance(Duration::from_millis(1)).await;
        Visit::begin(&two[1]).unwrap().failed();
        assert_eq!(
            tried(&two, &[Failure::Unreachable; 5]),
            [(0, false), (1, false)],
            "its pause ends first"
        );
    }
}
