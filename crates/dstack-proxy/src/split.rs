//! Which side of a roll-out gets a request, the new replicas or the old ones, and what both have answered.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use dstack_system::{Locked, Random};
use dstack_units::JobId;
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};

use crate::replica::Replica;
use crate::stats::Histogram;

/// All requests, as a share.
pub const ALL: u16 = 10_000;

/// How the requests to a service are split.
#[derive(Debug, Clone)]
pub struct Split {
    /// Number of the new deployment.
    pub deployment: i64,
    /// The jobs of the new replicas.
    pub new: HashSet<JobId>,
    /// Of ten thousand requests, so many go to the new replicas.
    pub share: u16,
    /// Requests with this header go to the new replicas.
    pub header: Option<(HeaderName, HeaderValue)>,
    /// What both sides have answered.
    pub answered: Arc<Answered>,
}

/// A side of a roll-out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// The replicas of the new deployment.
    New,
    /// All others.
    Old,
}

impl Split {
    /// The side that a request with these headers goes to.
    pub(crate) fn side(&self, headers: &HeaderMap, random: &Random) -> Side {
        let is_meant =
            |(name, value): &(HeaderName, HeaderValue)| headers.get_all(name).iter().any(|own| own == value);
        let is_drawn = || random.below(u64::from(ALL)) < u64::from(self.share);
        match self.header.as_ref().is_some_and(is_meant) || is_drawn() {
            true => Side::New,
            false => Side::Old,
        }
    }

    /// The side of a job.
    pub fn side_of(&self, job: JobId) -> Side {
        match self.new.contains(&job) {
            true => Side::New,
            false => Side::Old,
        }
    }

    /// Whether a request for a side may go to this one if its own has no replica for it. New replicas that are to get no requests get
    /// none in the place of old ones, as long as there are any.
    pub(crate) fn takes_over(&self, from: Side, to: Side, replicas: &[Arc<Replica>]) -> bool {
        let has_old = || {
            replicas
                .iter()
                .any(|replica| self.side_of(replica.id) == Side::Old)
        };
        from == to || to == Side::Old || self.share > 0 || !has_old()
    }

    /// A request that a job answers from now on, or has not answered.
    pub(crate) fn tally(&self, job: JobId) -> Tally {
        Tally {
            answered: Arc::clone(&self.answered),
            side: self.side_of(job),
            is_broken: false,
        }
    }
}

/// What both sides have answered.
#[derive(Debug, Default)]
pub struct Answered {
    new: Locked<Answers>,
    old: Locked<Answers>,
}

/// What a side has answered: requests that are over, attempts without an answer among them.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Answers {
    /// How many there were.
    pub requests: u64,
    /// Those of status 5xx, those that broke off, and those that never began, or not before the client had gone.
    pub failed: u64,
    /// Time until the head of the answer, of those that began, or until nobody waited for it any more.
    pub head: Histogram,
}

impl Answered {
    /// What a side has answered so far.
    pub fn of(&self, side: Side) -> Answers {
        self.side(side).lock().clone()
    }

    const fn side(&self, side: Side) -> &Locked<Answers> {
        match side {
            Side::New => &self.new,
            Side::Old => &self.old,
        }
    }
}

/// Counts what becomes of a request at a side.
#[derive(Debug)]
pub(crate) struct Tally {
    answered: Arc<Answered>,
    side: Side,
    is_broken: bool,
}

impl Tally {
    /// The answer has broken off.
    pub(crate) const fn broke(&mut self) {
        self.is_broken = true;
    }

    /// There is no answer.
    pub(crate) fn failed(self) {
        let mut answers = self.answered.side(self.side).lock();
        answers.requests += 1;
        answers.failed += 1;
    }

    /// There was no answer for so long, and nobody waits for one any more.
    pub(crate) fn abandoned(self, waited: Duration) {
        let mut answers = self.answered.side(self.side).lock();
        answers.requests += 1;
        answers.failed += 1;
        answers.head.add(waited);
    }

    /// The answer is over.
    pub(crate) fn ended(self, status: u16, head: Duration) {
        let is_failed = self.is_broken || status >= StatusCode::INTERNAL_SERVER_ERROR.as_u16();
        let mut answers = self.answered.side(self.side).lock();
        answers.requests += 1;
        answers.failed += u64::from(is_failed);
        answers.head.add(head);
    }
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;
    use crate::nowhere::Nowhere;

    fn job(number: u128) -> JobId {
        JobId::new(Uuid::from_u128(number))
    }

    /// Job 1 is new.
    fn split(share: u16) -> Split {
        Split {
            deployment: 2,
            new: HashSet::from([job(1)]),
            share,
            header: Some((HeaderName::from_static("x-canary"), HeaderValue::from_static("1"))),
            answered: Arc::default(),
        }
    }

    #[test]
    fn requests_are_split_by_their_share_and_by_the_header() {
        let random = Random::seeded(5);
        let drawn = |share: u16, headers: &HeaderMap| {
            let split = split(share);
            let sides = (0..10_000).filter(|_| split.side(headers, &random) == Side::New);
            sides.count()
        };
        let none = HeaderMap::new();
        assert_eq!((drawn(0, &none), drawn(ALL, &none)), (0, 10_000));
        assert!((900..1100).contains(&drawn(1000, &none)));
        let with = |value: &'static str| {
            HeaderMap::from_iter([(
                HeaderName::from_static("x-canary"),
                HeaderValue::from_static(value),
            )])
        };
        assert_eq!((drawn(0, &with("1")), drawn(0, &with("2"))), (10_000, 0));
    }

    #[test]
    fn new_replicas_without_a_share_take_over_only_where_there_are_no_old_ones() {
        let replica = |number| Arc::new(Replica::new(job(number), Arc::new(Nowhere)));
        let (both, new) = ([replica(1), replica(2)], [replica(1)]);
        let takes =
            |share, replicas: &[Arc<Replica>]| split(share).takes_over(Side::Old, Side::New, replicas);
        assert_eq!(
            (takes(0, &both), takes(1, &both), takes(0, &new)),
            (false, true, true)
        );
        assert!(split(0).takes_over(Side::New, Side::Old, &both));
    }

    #[test]
    fn what_breaks_off_and_what_never_begins_has_failed() {
        let split = split(ALL);
        let second = Duration::from_secs(1);
        split.tally(job(1)).ended(200, second);
        split.tally(job(1)).ended(404, second);
        split.tally(job(1)).ended(503, second);
        let mut broken = split.tally(job(1));
        broken.broke();
        broken.ended(200, second);
        split.tally(job(1)).failed();
        split.tally(job(2)).ended(200, second);
        let (new, old) = (split.answered.of(Side::New), split.answered.of(Side::Old));
        assert_eq!((new.requests, new.failed, new.head.count), (5, 3, 4));
        assert_eq!((old.requests, old.failed), (1, 0));
    }
}
