//! A fleet: kept at its size as long as it is wanted, ended when nothing is left of it (dstack 0.22.5: pipelines §9).

use std::collections::BTreeSet;
use std::time::Duration;

use dstack_model::fleets::{FleetNodesSpec, FleetStatus};
use dstack_model::instances::{InstanceStatus, InstanceTerminationReason as Reason};
use dstack_model::limits::MAX_FLEET_INSTANCES;
use dstack_units::{InstanceId, Time};

use super::{Wait, WaitReason};

/// After so many attempts in a row, a fleet is left as it is until it is applied again.
pub const MAX_ATTEMPTS: i64 = 15;

/// Pauses before attempts; the last one counts for all further ones. Without them, a cloud that has nothing would be asked
/// without end.
const MINUTES: [u64; 5] = [1, 2, 5, 10, 30];

/// An instance of the fleet that is not forgotten.
#[derive(Debug, Clone)]
pub struct Node {
    /// Id.
    pub id: InstanceId,
    /// Number within the fleet.
    pub num: i64,
    /// Status.
    pub status: InstanceStatus,
    /// Why it ends or ended.
    pub reason: Option<Reason>,
    /// Its last change.
    pub changed_at: Time,
    /// It was made: where it is is known.
    pub placed: bool,
    /// A job has it.
    pub taken: bool,
    /// It is what the fleet asks for now.
    pub fits: bool,
}

impl Node {
    const fn is_over(&self) -> bool {
        matches!(self.status, InstanceStatus::Terminated)
    }
}

/// All that is known of a fleet.
#[derive(Debug, Clone)]
pub struct Facts {
    /// Status of the fleet before the decision.
    pub status: FleetStatus,
    /// How many instances it has; unset: its hosts are named.
    pub size: Option<FleetNodesSpec>,
    /// Its instances are made beside the first.
    pub cluster: bool,
    /// When it was made.
    pub created_at: Time,
    /// Attempts in a row to get it to its size.
    pub attempt: i64,
    /// When the last of them was.
    pub consolidated_at: Option<Time>,
    /// The first instance of the cluster.
    pub master: Option<InstanceId>,
    /// Its instances, by number.
    pub nodes: Vec<Node>,
    /// Runs in it that are not over.
    pub runs: usize,
}

/// Which instance is the first of a cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Master {
    /// One that is there.
    There(InstanceId),
    /// One that is to be created, by its number.
    New(i64),
}

/// An instance that is to end, and why.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ending {
    /// The instance to end.
    pub id: InstanceId,
    /// Termination reason to store with the instance.
    pub reason: Reason,
    /// Details of the reason, stored with it as its message.
    pub message: &'static str,
}

/// What to do next, all at once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Decision {
    /// Instances that are to be ended.
    pub end: Vec<Ending>,
    /// Instances that are over, and are not shown any more.
    pub forget: Vec<InstanceId>,
    /// Numbers of instances that are to be created.
    pub create: Vec<i64>,
    /// Attempts from now on.
    pub attempt: i64,
    /// An attempt was made, or is no longer needed.
    pub consolidated: bool,
    /// That was the last attempt.
    pub gave_up: bool,
    /// The first instance of the cluster.
    pub master: Option<Master>,
    /// Nothing is left of it.
    pub gone: bool,
    /// What it waits for.
    pub wait: Wait,
}

/// Decides about a fleet.
pub fn decide(facts: &Facts, now: Time) -> Decision {
    let mut decision = Decision {
        end: Vec::new(),
        forget: Vec::new(),
        create: Vec::new(),
        attempt: facts.attempt,
        consolidated: false,
        gave_up: false,
        master: None,
        gone: false,
        wait: Wait::none(),
    };
    let ending = facts.status == FleetStatus::Terminating;
    if ending && facts.runs == 0 && facts.nodes.iter().all(Node::is_over) {
        decision.gone = true;
        decision.forget = facts.nodes.iter().map(|node| node.id).collect();
        return decision;
    }
    if let Some(size) = facts.size
        && !ending
        && facts.attempt < MAX_ATTEMPTS
    {
        consolidate(facts, size, now, &mut decision);
    }
    if facts.cluster {
        end_with_master(facts, &mut decision);
        decision.master = elect(facts, &decision);
    }
    decision
}

/// What is missing of the fleet's size, and what is too much.
#[derive(Debug, Default)]
struct Needed {
    end: Vec<Ending>,
    forget: Vec<InstanceId>,
    create: Vec<i64>,
    /// Too much is there, and none of it can be ended now.
    more: bool,
}

impl Needed {
    fn is_nothing(&self) -> bool {
        self.end.is_empty() && self.forget.is_empty() && self.create.is_empty() && !self.more
    }
}

fn consolidate(facts: &Facts, size: FleetNodesSpec, now: Time, decision: &mut Decision) {
    let needed = needed(facts, size);
    if needed.is_nothing() && facts.attempt == 0 {
        return;
    }
    let at = next_attempt_at(facts);
    if now < at {
        let attempt = facts.attempt + 1;
        decision.wait = Wait {
            deadline: Some(at),
            wake_at: Some(at),
            reason: (!needed.is_nothing()).then_some(WaitReason::FleetSize { attempt }),
        };
        return;
    }
    decision.consolidated = true;
    if needed.is_nothing() {
        decision.attempt = 0;
        return;
    }
    decision.attempt = facts.attempt + 1;
    decision.gave_up = decision.attempt >= MAX_ATTEMPTS;
    decision.end = needed.end;
    decision.forget = needed.forget;
    decision.create = needed.create;
    if !decision.gave_up {
        let next = now + pause(decision.attempt);
        decision.wait = Wait {
            deadline: Some(next),
            wake_at: Some(next),
            reason: None,
        };
    }
}

fn pause(attempt: i64) -> Duration {
    let place = usize::try_from(attempt).unwrap_or(0).min(MINUTES.len() - 1);
    Duration::from_secs(60 * MINUTES.get(place).copied().unwrap_or(30))
}

/// The pause counts from the last attempt, and from the end of what is still shown: users are to see why it ended.
fn next_attempt_at(facts: &Facts) -> Time {
    let over = facts.nodes.iter().filter(|node| node.is_over());
    let last = facts.consolidated_at.unwrap_or(facts.created_at);
    over.map(|node| node.changed_at).fold(last, Time::max) + pause(facts.attempt)
}

fn needed(facts: &Facts, size: FleetNodesSpec) -> Needed {
    let mut needed = Needed::default();
    // One that is nothing yet becomes what the fleet asks for now.
    let replaceable =
        |node: &&Node| matches!(node.status, InstanceStatus::Idle | InstanceStatus::Provisioning);
    for node in facts
        .nodes
        .iter()
        .filter(replaceable)
        .filter(|node| !node.fits && !node.taken)
    {
        needed.end.push(Ending {
            id: node.id,
            reason: Reason::FleetSpecMismatch,
            message: "Instance does not match fleet spec",
        });
    }
    needed.forget = facts
        .nodes
        .iter()
        .filter(|node| node.is_over())
        .map(|node| node.id)
        .collect();
    let ends = |node: &Node| needed.end.iter().any(|ending| ending.id == node.id);
    // Those that are being ended count: until a cloud has confirmed the end, they are there.
    let there: Vec<&Node> = facts
        .nodes
        .iter()
        .filter(|node| !node.is_over() && !ends(node))
        .collect();
    let count = i64::try_from(there.len()).unwrap_or(i64::MAX);
    // Requests for more are refused; fleets that were stored before they were ask for as many as they like.
    let least = size.min.min(MAX_FLEET_INSTANCES);
    if count < least {
        needed.create = free_numbers(facts, least - count);
        return needed;
    }
    let surplus = usize::try_from(size.max.map_or(0, |max| count - max)).unwrap_or(0);
    let idle = there.iter().filter(|node| node.status == InstanceStatus::Idle);
    let surplus_idle: Vec<Ending> = idle
        .take(surplus)
        .map(|node| Ending {
            id: node.id,
            reason: Reason::MaxInstancesLimit,
            message: "Fleet has too many instances",
        })
        .collect();
    needed.more = surplus > surplus_idle.len();
    needed.end.extend(surplus_idle);
    needed
}

/// The lowest numbers that no instance has.
fn free_numbers(facts: &Facts, count: i64) -> Vec<i64> {
    let taken: BTreeSet<i64> = facts
        .nodes
        .iter()
        .filter(|node| !node.is_over())
        .map(|node| node.num)
        .collect();
    (0..)
        .filter(|num| !taken.contains(num))
        .take(usize::try_from(count).unwrap_or(0))
        .collect()
}

/// Where there is nothing for the first instance of a cluster that may be empty, there is nothing for the others.
fn end_with_master(facts: &Facts, decision: &mut Decision) {
    let may_be_empty = facts.size.is_some_and(|size| size.min == 0);
    let found_nothing = |node: &&Node| {
        Some(node.id) == facts.master && node.is_over() && node.reason == Some(Reason::NoOffers)
    };
    let placed = |node: &Node| node.status.is_active() && node.placed;
    if !may_be_empty || !facts.nodes.iter().any(|node| found_nothing(&node)) || facts.nodes.iter().any(placed)
    {
        return;
    }
    let waits = |node: &&Node| node.status == InstanceStatus::Pending && !node.taken;
    let others = facts.nodes.iter().filter(waits).map(|node| Ending {
        id: node.id,
        reason: Reason::MasterFailed,
        message: "There was nothing for the first instance of the cluster",
    });
    decision.end.extend(others);
}

/// The first instance stays it as long as it is there; then one that was made, then one that waits, then a new one.
fn elect(facts: &Facts, decision: &Decision) -> Option<Master> {
    let ends = |node: &Node| decision.end.iter().any(|ending| ending.id == node.id);
    let alive: Vec<&Node> = facts
        .nodes
        .iter()
        .filter(|node| node.status.is_active() && !ends(node))
        .collect();
    // One that is being made for a job says nothing yet of where the others go.
    let for_fleet = |node: &&&Node| node.placed || !node.taken;
    let found = alive
        .iter()
        .find(|node| Some(node.id) == facts.master)
        .or_else(|| alive.iter().find(|node| node.placed))
        .or_else(|| alive.iter().find(for_fleet));
    match found {
        Some(node) => Some(Master::There(node.id)),
        None => decision.create.iter().min().copied().map(Master::New),
    }
}

#[cfg(test)]
mod tests;
