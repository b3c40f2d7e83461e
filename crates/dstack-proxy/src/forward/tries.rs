//! Which replica a request is sent to next, after those that failed.

use std::sync::Arc;

use dstack_system::Random;

use super::attempt::Failure;
use crate::balance::{Candidate, choose, soonest};
use crate::replica::{Replica, Standing};

/// Most attempts of one request.
pub(crate) const MAX_ATTEMPTS: usize = 3;

/// Replicas that a request was sent to without an answer.
#[derive(Debug, Default)]
pub(crate) struct Tries {
    made: usize,
    failed: Vec<usize>,
    /// The replica whose used connection was closed: another one may do.
    closed: Option<usize>,
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
    /// The next replica: one that gets requests and has not failed; otherwise, where only a used connection was closed, the same
    /// over a new one; otherwise one that is left out, unless it has failed this request.
    pub(crate) fn next(&self, replicas: &[Arc<Replica>], random: &Random) -> Option<Choice> {
        if self.made >= MAX_ATTEMPTS {
            return None;
        }
        let last = self.made + 1 == MAX_ATTEMPTS;
        let untried = replicas
            .iter()
            .enumerate()
            .filter(|(place, _)| !self.failed.contains(place) && self.closed != Some(*place))
            .map(|(place, replica)| candidate(place, replica));
        let choice = |place, fresh| Choice { place, fresh, last };
        // The last attempt takes no chances.
        choose(untried.clone(), |bound| random.below(bound))
            .map(|place| choice(place, last))
            .or_else(|| self.closed.map(|place| choice(place, true)))
            .or_else(|| soonest(untried).map(|place| choice(place, last)))
    }

    /// This replica has not answered.
    pub(crate) fn note(&mut self, place: usize, failure: Failure) {
        self.made += 1;
        if let (Failure::NotSent | Failure::Closed, None) = (failure, self.closed) {
            self.closed = Some(place);
        } else {
            self.closed = self.closed.filter(|closed| *closed != place);
            self.failed.push(place);
        }
    }
}

fn candidate(place: usize, replica: &Replica) -> Candidate {
    let standing = replica.standing();
    Candidate {
        place,
        // What is left out and has nothing to do is not to be preferred for that.
        load: match standing {
            Standing::Up => replica.in_flight(),
            Standing::Due | Standing::Out { .. } => replica.in_flight() + 1,
        },
        standing,
    }
}
