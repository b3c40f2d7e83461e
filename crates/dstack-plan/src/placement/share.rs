//! How much of an instance a job gets.

use std::mem::discriminant;
use std::sync::Arc;

use dstack_model::instances::{InstanceAvailability, InstanceRuntime, InstanceStatus};
use dstack_model::offers::InstanceOfferWithAvailability;
use dstack_model::runs::Requirements;

use super::{Candidate, Unfit, Wants, defaults};
use crate::matching::{Defaults, Machine, Mismatch, check, mismatches};

/// A share of an instance.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Share {
    /// Blocks of it.
    pub blocks: i64,
    /// Blocks of the instance.
    pub total: i64,
    /// Whether it is free now; otherwise once other jobs have ended.
    pub idle: bool,
}

impl Share {
    /// As an offer; `None` for an instance that offers nothing yet.
    pub fn offer(self, candidate: &Candidate<'_>) -> Option<InstanceOfferWithAvailability> {
        let mut offer = candidate.offer?.clone();
        if self.total > 1 {
            let part = Machine::part(&offer.instance.resources, offer.price, self.blocks, self.total);
            let (cpus, memory_mib, gpus) = (part.cpus, part.memory_mib, part.gpus.len());
            let resources = &mut Arc::make_mut(&mut offer.instance).resources;
            resources.cpus = cpus;
            resources.memory_mib = memory_mib;
            resources.gpus.truncate(gpus);
        }
        offer.availability = if self.idle {
            InstanceAvailability::Idle
        } else {
            InstanceAvailability::Busy
        };
        offer.blocks = u32::try_from(self.blocks).unwrap_or(1);
        offer.total_blocks = u32::try_from(self.total).unwrap_or(1);
        Some(offer)
    }
}

/// The smallest share that satisfies the requirements; one of several nodes takes the whole. Defaults that do not count on the
/// server's own machine do count for a share of it as far as the whole machine satisfies them.
pub(super) fn smallest(wants: &Wants<'_>, candidate: &Candidate<'_>) -> Result<Share, Unfit> {
    let total = candidate.total_blocks.ok_or(Unfit::SettingUp)?.max(1);
    let offer = candidate.offer.ok_or(Unfit::SettingUp)?;
    let multinode = wants.request.multinode();
    if multinode && total > 1 && candidate.busy_blocks > 0 {
        return Err(Unfit::Shared);
    }
    let parts = Parts::new(wants, candidate, offer, total);
    let mut reason = Unfit::SettingUp;
    for blocks in if multinode { total } else { 1 }..=total {
        match parts.first_mismatch(blocks) {
            None => {
                return Ok(Share {
                    blocks,
                    total,
                    idle: is_idle(candidate, blocks, total),
                });
            }
            Some(mismatch) => reason = Unfit::Mismatch(mismatch),
        }
    }
    Err(reason)
}

/// The parts into which an instance is divided, as far as they satisfy requirements.
struct Parts<'a> {
    requirements: &'a Requirements,
    offer: &'a InstanceOfferWithAvailability,
    total: i64,
    defaults: Defaults,
    /// What the whole machine lacks of what was asked for; looked for only where that may not count.
    waived: Vec<Mismatch>,
}

impl<'a> Parts<'a> {
    fn new(
        wants: &Wants<'a>,
        candidate: &Candidate<'_>,
        offer: &'a InstanceOfferWithAvailability,
        total: i64,
    ) -> Self {
        let mut parts = Self {
            requirements: &wants.request.job_spec.requirements,
            offer,
            total,
            defaults: defaults(candidate),
            waived: Vec::new(),
        };
        if parts.defaults == Defaults::Relaxed {
            parts.waived = mismatches(parts.requirements, parts.part(total), Defaults::Enforced).collect();
        }
        parts
    }

    fn part(&self, blocks: i64) -> Machine<'a> {
        Machine::part(
            &self.offer.instance.resources,
            self.offer.price,
            blocks,
            self.total,
        )
    }

    fn first_mismatch(&self, blocks: i64) -> Option<Mismatch> {
        if self.defaults == Defaults::Enforced {
            return check(self.requirements, self.part(blocks), Defaults::Enforced).err();
        }
        self.mismatches(blocks).into_iter().next()
    }

    fn is_waived(&self, mismatch: &Mismatch) -> bool {
        self.waived
            .iter()
            .any(|waived| discriminant(waived) == discriminant(mismatch))
    }

    /// What so many blocks lack. A default that the whole machine does not satisfy is not asked of a part either; of what the
    /// machine has, the part must have as much as was asked for.
    fn mismatches(&self, blocks: i64) -> Vec<Mismatch> {
        let part = self.part(blocks);
        let mut found: Vec<Mismatch> = mismatches(self.requirements, part, self.defaults).collect();
        if self.defaults == Defaults::Relaxed {
            let asked = mismatches(self.requirements, part, Defaults::Enforced);
            let more: Vec<Mismatch> = asked
                .filter(|mismatch| !found.contains(mismatch) && !self.is_waived(mismatch))
                .collect();
            found.extend(more);
        }
        found
    }
}

/// The mismatches of the free share that comes nearest; `None`: none is free.
pub(super) fn nearest_free(
    wants: &Wants<'_>,
    candidate: &Candidate<'_>,
    distance: impl Fn(&Mismatch) -> f64,
) -> Option<Vec<Mismatch>> {
    let total = candidate.total_blocks?.max(1);
    let offer = candidate.offer?;
    let first = if wants.request.multinode() { total } else { 1 };
    let free = (first..=total).filter(|blocks| is_idle(candidate, *blocks, total));
    let parts = Parts::new(wants, candidate, offer, total);
    let shares = free.map(|blocks| {
        let found = parts.mismatches(blocks);
        let far: f64 = found.iter().map(&distance).sum();
        (found, far)
    });
    let nearest = shares.min_by(|(a, a_far), (b, b_far)| a.len().cmp(&b.len()).then(a_far.total_cmp(b_far)));
    nearest.map(|(found, _)| found)
}

/// A whole instance must be idle; of a divided one, enough blocks must be free.
fn is_idle(candidate: &Candidate<'_>, blocks: i64, total: i64) -> bool {
    // A container ends with the job that it was made for.
    if candidate
        .offer
        .is_some_and(|offer| offer.instance_runtime == InstanceRuntime::Runner)
    {
        return false;
    }
    let up = match candidate.status {
        InstanceStatus::Idle => true,
        InstanceStatus::Busy => total > 1,
        _ => false,
    };
    up && blocks <= total.saturating_sub(candidate.busy_blocks)
}
