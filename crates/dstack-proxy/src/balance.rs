//! Which replica gets a request. Pure: what is known of the replicas and the random numbers are handed in.

use crate::replica::{Replica, Standing};

/// What is known of a replica.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Candidate {
    /// Its place in the list of replicas.
    pub place: usize,
    /// Requests under way there.
    pub load: usize,
    /// Whether it gets requests.
    pub standing: Standing,
}

impl Candidate {
    /// The replica at this place, as it is now.
    pub(crate) fn of(place: usize, replica: &Replica) -> Self {
        Self {
            place,
            load: replica.in_flight(),
            standing: replica.standing(),
        }
    }
}

/// The place of the less loaded of two replicas that get requests. `below` makes a random number below its argument.
pub fn choose<C>(candidates: C, mut below: impl FnMut(u64) -> u64) -> Option<usize>
where
    C: Iterator<Item = Candidate> + Clone,
{
    let fit = candidates.filter(|candidate| !matches!(candidate.standing, Standing::Out { .. }));
    let count = fit.clone().count();
    let first = draw(&mut below, count);
    let one = fit.clone().nth(first)?;
    if count == 1 {
        return Some(one.place);
    }
    // Another one than the first.
    let second = draw(&mut below, count - 1);
    let other = fit.clone().nth(second + usize::from(second >= first));
    Some(match other {
        Some(other) if other.load < one.load => other.place,
        _ => one.place,
    })
}

/// The place of the replica that may be tried first, where none gets requests.
pub fn soonest(candidates: impl Iterator<Item = Candidate>) -> Option<usize> {
    candidates
        .filter_map(|candidate| match candidate.standing {
            Standing::Out { until } => Some((until, candidate.place)),
            Standing::Up | Standing::Due => None,
        })
        .min()
        .map(|(_, place)| place)
}

fn draw(below: &mut impl FnMut(u64) -> u64, count: usize) -> usize {
    usize::try_from(below(count as u64)).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use dstack_system::Random;
    use proptest::prelude::*;
    use tokio::time::Instant;

    use super::*;

    fn standings(start: Instant) -> impl Strategy<Value = Standing> {
        prop_oneof![
            Just(Standing::Up),
            Just(Standing::Due),
            (0_u64..10_000).prop_map(move |millis| Standing::Out {
                until: start + Duration::from_millis(millis)
            }),
        ]
    }

    fn candidates() -> impl Strategy<Value = Vec<Candidate>> {
        let one = (0_usize..100, standings(Instant::now()));
        prop::collection::vec(one, 0..12).prop_map(|all| {
            let candidate = |(place, (load, standing))| Candidate {
                place,
                load,
                standing,
            };
            all.into_iter().enumerate().map(candidate).collect()
        })
    }

    fn chosen(candidates: &[Candidate], random: &Random) -> Option<Candidate> {
        let place = choose(candidates.iter().copied(), |bound| random.below(bound))?;
        Some(candidates[place])
    }

    fn is_fit(candidate: &Candidate) -> bool {
        !matches!(candidate.standing, Standing::Out { .. })
    }

    proptest! {
        #[test]
        fn one_that_gets_requests_is_chosen_if_there_is_any(candidates in candidates(), seed: u64) {
            let chosen = chosen(&candidates, &Random::seeded(seed));
            prop_assert_eq!(chosen.is_some(), candidates.iter().any(is_fit));
            prop_assert!(chosen.iter().all(is_fit));
        }

        #[test]
        fn the_most_loaded_one_is_never_chosen(candidates in candidates(), seed: u64) {
            let loads = candidates.iter().filter(|one| is_fit(one)).map(|one| one.load);
            let most = loads.clone().max();
            let several = loads.clone().filter(|load| Some(*load) == most).count() > 1 || loads.count() < 2;
            let chosen = chosen(&candidates, &Random::seeded(seed));
            prop_assert!(several || chosen.map(|one| one.load) != most);
        }

        #[test]
        fn where_all_are_out_the_one_is_tried_whose_pause_ends_first(candidates in candidates()) {
            let out: Vec<Candidate> = candidates.into_iter().filter(|one| !is_fit(one)).collect();
            let until = |place: usize| out.iter().find(|one| one.place == place).map(|one| one.standing);
            let Some(Standing::Out { until: first }) = soonest(out.iter().copied()).and_then(until) else {
                prop_assert!(out.is_empty());
                return Ok(());
            };
            let later = |one: &Candidate| matches!(one.standing, Standing::Out { until } if until >= first);
            prop_assert!(out.iter().all(later));
        }
    }

    #[test]
    fn equal_replicas_get_equal_shares() {
        let random = Random::seeded(1);
        let all = [0, 1, 2, 3].map(|place| Candidate {
            place,
            load: 5,
            standing: Standing::Up,
        });
        let mut shares = [0_u32; 4];
        for _ in 0..4000 {
            shares[chosen(&all, &random).unwrap().place] += 1;
        }
        assert!(
            shares.iter().all(|share| (850..1150).contains(share)),
            "{shares:?}"
        );
    }
}
