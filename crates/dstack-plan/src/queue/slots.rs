//! Existing instances, with what is left of them.

use std::cmp::Ordering;

use dstack_units::Time;

use crate::fleets::Fleet;
use crate::placement::{AWAY, Candidate, Choice, Share, Wants};

/// The instances of some fleets, cheapest first, fleets in order among equals.
#[derive(Debug)]
pub(super) struct Slots<'c> {
    slots: Vec<Slot<'c>>,
}

#[derive(Debug)]
pub(super) struct Slot<'c> {
    /// The instance; its busy blocks count what was given away of it.
    pub(super) candidate: Candidate<'c>,
    /// Place of its fleet.
    pub(super) fleet: usize,
}

/// How far the instances were searched for jobs that want the same: what is not free will not become free while jobs are
/// placed.
#[derive(Debug, Default)]
pub(super) struct Cursor {
    next: usize,
    /// Only the last resorts are left.
    last_resorts: bool,
    /// What such a job gets of the instance there, if that is known.
    share: Option<Share>,
}

/// A share that was taken.
pub(super) struct Taken {
    pub(super) choice: Choice,
    /// Place of the fleet.
    pub(super) fleet: usize,
    /// Whether the instance had no job before.
    pub(super) first_job: bool,
}

impl<'c> Slots<'c> {
    pub(super) fn new(fleets: &'c [Fleet<'c>]) -> Self {
        let of_fleet = |(fleet, one): (usize, &'c Fleet<'c>)| {
            let candidates = one.instances.iter();
            candidates.map(move |candidate| Slot {
                candidate: *candidate,
                fleet,
            })
        };
        let mut slots: Vec<Slot<'c>> = fleets.iter().enumerate().flat_map(of_fleet).collect();
        slots.sort_by(Slot::by_price);
        Self { slots }
    }

    /// Takes the cheapest free share that suits; of an instance that is the last resort, where there is no other.
    pub(super) fn take(&mut self, cursor: &mut Cursor, wants: &Wants<'_>) -> Option<Taken> {
        if !cursor.last_resorts {
            if let Some(taken) = self.take_next(cursor, wants) {
                return Some(taken);
            }
            *cursor = Cursor {
                last_resorts: true,
                ..Cursor::default()
            };
        }
        self.take_next(cursor, wants)
    }

    fn take_next(&mut self, cursor: &mut Cursor, wants: &Wants<'_>) -> Option<Taken> {
        while let Some(slot) = self.slots.get_mut(cursor.next) {
            let is_due = wants.is_last_resort(&slot.candidate) == cursor.last_resorts;
            let known = cursor.share.filter(|share| slot.has_free(*share));
            if is_due
                && let Some((share, choice)) = known
                    .or_else(|| slot.free_share(wants))
                    .and_then(|share| Some((share, slot.choice(share)?)))
            {
                let first_job = slot.candidate.busy_blocks == 0;
                slot.candidate.busy_blocks += share.blocks;
                cursor.share = Some(share);
                return Some(Taken {
                    choice,
                    fleet: slot.fleet,
                    first_job,
                });
            }
            *cursor = Cursor {
                next: cursor.next + 1,
                share: None,
                ..*cursor
            };
        }
        None
    }

    /// Until when an instance is waited for that is away for a moment, and would have a free share that suits.
    pub(super) fn away_until(&self, wants: &Wants<'_>, now: Time) -> Option<Time> {
        let until = |slot: &Slot<'c>| {
            let until = slot.candidate.unreachable_since? + AWAY;
            let back = Slot {
                candidate: Candidate {
                    unreachable: false,
                    ..slot.candidate
                },
                fleet: slot.fleet,
            };
            (now < until && back.free_share(wants).is_some()).then_some(until)
        };
        self.slots.iter().filter_map(until).min()
    }

    /// All of them, cheapest first.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Slot<'c>> {
        self.slots.iter()
    }
}

impl Slot<'_> {
    fn price(&self) -> f64 {
        self.candidate.offer.map_or(f64::INFINITY, |offer| offer.price)
    }

    fn by_price(a: &Self, b: &Self) -> Ordering {
        a.price().total_cmp(&b.price())
    }

    /// The share that the job would get now.
    pub(super) fn free_share(&self, wants: &Wants<'_>) -> Option<Share> {
        // Most instances of a large fleet are taken: that costs less to see than what suits.
        if self.candidate.busy_blocks >= self.candidate.total_blocks.unwrap_or(0) {
            return None;
        }
        let share = wants.share_of(&self.candidate).ok()?;
        (share.idle && self.has_free(share)).then_some(share)
    }

    const fn has_free(&self, share: Share) -> bool {
        share.blocks <= share.total.saturating_sub(self.candidate.busy_blocks)
    }

    fn choice(&self, share: Share) -> Option<Choice> {
        let candidate = &self.candidate;
        Some(Choice {
            fleet_id: candidate.fleet_id,
            instance_id: candidate.instance_id,
            offer: share.offer(candidate)?,
            whole: share.blocks >= share.total,
            local: candidate.local,
        })
    }
}
