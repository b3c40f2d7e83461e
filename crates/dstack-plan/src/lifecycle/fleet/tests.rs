use proptest::prelude::*;
use uuid::Uuid;

use super::*;

fn minutes(minutes: u64) -> Time {
    Time::EPOCH + Duration::from_secs(60 * minutes)
}

fn id(num: i64) -> InstanceId {
    Uuid::from_u128(u128::from(num.unsigned_abs()) + 1).into()
}

fn node(num: i64, status: InstanceStatus) -> Node {
    Node {
        id: id(num),
        num,
        status,
        reason: None,
        changed_at: Time::EPOCH,
        placed: !matches!(status, InstanceStatus::Pending | InstanceStatus::Terminated),
        taken: status == InstanceStatus::Busy,
        fits: true,
    }
}

fn no_offers(num: i64) -> Node {
    Node {
        reason: Some(Reason::NoOffers),
        ..node(num, InstanceStatus::Terminated)
    }
}

fn fleet(min: i64, max: Option<i64>, nodes: Vec<Node>) -> Facts {
    Facts {
        status: FleetStatus::Active,
        size: Some(FleetNodesSpec {
            min,
            target: min,
            max,
        }),
        cluster: false,
        created_at: Time::EPOCH,
        attempt: 0,
        consolidated_at: None,
        master: None,
        nodes,
        runs: 0,
    }
}

fn cluster(min: i64, nodes: Vec<Node>) -> Facts {
    Facts {
        cluster: true,
        ..fleet(min, None, nodes)
    }
}

fn reasons(decision: &Decision) -> Vec<(InstanceId, Reason)> {
    decision
        .end
        .iter()
        .map(|ending| (ending.id, ending.reason))
        .collect()
}

use InstanceStatus::{Busy, Idle, Pending, Provisioning, Terminating};

#[test]
fn a_fleet_of_its_size_is_left_alone() {
    let facts = fleet(1, Some(3), vec![node(0, Idle), node(1, Busy)]);
    let decision = decide(&facts, minutes(100));
    assert_eq!(
        (decision.consolidated, decision.create.len(), decision.wait),
        (false, 0, Wait::none())
    );
}

#[test]
fn what_is_missing_is_created_after_a_pause() {
    let facts = fleet(3, None, vec![node(1, Busy)]);
    let early = decide(&facts, Time::EPOCH);
    assert_eq!((early.create.len(), early.wait.wake_at), (0, Some(minutes(1))));
    assert_eq!(early.wait.reason, Some(WaitReason::FleetSize { attempt: 1 }));
    let now = decide(&facts, minutes(1));
    assert_eq!((now.create.as_slice(), now.attempt), ([0, 2].as_slice(), 1));
    assert!(now.consolidated && !now.gave_up);
    // Looked at again, to see whether that was all.
    assert_eq!(now.wait.wake_at, Some(minutes(3)));
}

#[test]
fn pauses_grow_until_it_is_given_up() {
    let mut facts = fleet(1, None, vec![]);
    let (mut now, mut pauses) = (Time::EPOCH, Vec::new());
    loop {
        let decision = decide(&facts, now);
        if let Some(at) = decision.wait.wake_at.filter(|_| !decision.consolidated) {
            pauses.push(at.since(now).as_secs() / 60);
            now = at;
            continue;
        }
        if !decision.consolidated {
            break;
        }
        facts.attempt = decision.attempt;
        facts.consolidated_at = Some(now);
        assert_eq!(decision.gave_up, decision.attempt == MAX_ATTEMPTS);
    }
    assert_eq!(pauses[..6], [1, 2, 5, 10, 30, 30]);
    assert_eq!(pauses.len(), 15);
    // Applied again, it goes on.
    facts.attempt = 0;
    assert_eq!(decide(&facts, now + Duration::from_secs(60)).create, [0]);
}

#[test]
fn attempts_are_forgotten_once_nothing_is_missing() {
    let mut facts = fleet(1, None, vec![node(0, Pending)]);
    facts.attempt = 3;
    facts.consolidated_at = Some(minutes(10));
    let early = decide(&facts, minutes(19));
    assert_eq!((early.attempt, early.wait.wake_at), (3, Some(minutes(20))));
    let decision = decide(&facts, minutes(20));
    assert_eq!((decision.attempt, decision.consolidated), (0, true));
}

#[test]
fn what_has_ended_is_shown_for_a_while() {
    let mut facts = fleet(0, None, vec![no_offers(0)]);
    facts.nodes[0].changed_at = minutes(60);
    let shown = decide(&facts, minutes(60));
    assert_eq!((shown.forget.len(), shown.wait.wake_at), (0, Some(minutes(61))));
    assert_eq!(decide(&facts, minutes(61)).forget, [id(0)]);
}

#[test]
fn those_that_end_count_until_they_have() {
    let facts = fleet(1, None, vec![node(0, Terminating)]);
    assert!(!decide(&facts, minutes(5)).consolidated);
}

#[test]
fn surplus_ends_if_it_is_idle() {
    let facts = fleet(0, Some(1), vec![node(0, Busy), node(1, Idle), node(2, Idle)]);
    let limit = Reason::MaxInstancesLimit;
    assert_eq!(
        reasons(&decide(&facts, minutes(1))),
        [(id(1), limit), (id(2), limit)]
    );
    // Nothing of it can be ended now: another attempt.
    let facts = fleet(0, Some(1), vec![node(0, Busy), node(1, Busy)]);
    let decision = decide(&facts, minutes(1));
    assert_eq!((decision.end.len(), decision.attempt), (0, 1));
}

#[test]
fn what_is_no_longer_asked_for_is_replaced() {
    let mut facts = fleet(2, None, vec![node(0, Idle), node(1, Busy), node(2, Provisioning)]);
    for node in &mut facts.nodes {
        node.fits = false;
    }
    let decision = decide(&facts, minutes(1));
    let mismatch = Reason::FleetSpecMismatch;
    assert_eq!(reasons(&decision), [(id(0), mismatch), (id(2), mismatch)]);
    // Under a number that is free.
    assert_eq!(decision.create, [3]);
}

#[test]
fn a_fleet_ends_when_nothing_is_left() {
    let ending = |nodes, runs| {
        let facts = Facts {
            status: FleetStatus::Terminating,
            runs,
            ..fleet(2, None, nodes)
        };
        decide(&facts, minutes(60))
    };
    assert!(!ending(vec![node(0, Terminating)], 0).gone);
    assert!(!ending(vec![], 1).gone);
    assert_eq!(ending(vec![node(0, Terminating)], 0).create, [0_i64; 0]);
    let gone = ending(vec![no_offers(0)], 0);
    assert_eq!((gone.gone, gone.forget), (true, vec![id(0)]));
}

#[test]
fn hosts_are_not_made() {
    let facts = Facts {
        size: None,
        ..fleet(0, None, vec![node(0, Pending)])
    };
    let decision = decide(&facts, minutes(60));
    assert_eq!((decision.consolidated, decision.wait), (false, Wait::none()));
}

#[test]
fn the_first_of_a_cluster_stays_it_as_long_as_it_is_there() {
    let master = |facts: &Facts| decide(facts, Time::EPOCH).master;
    let mut facts = cluster(0, vec![node(0, Pending), node(1, Pending)]);
    assert_eq!(master(&facts), Some(Master::There(id(0))));
    facts.master = Some(id(1));
    assert_eq!(master(&facts), Some(Master::There(id(1))));
    // Gone: one that was made comes before one that waits.
    facts.nodes[1].status = Terminating;
    facts.nodes.push(node(2, Idle));
    assert_eq!(master(&facts), Some(Master::There(id(2))));
    assert_eq!(master(&fleet(0, None, vec![node(0, Idle)])), None);
}

#[test]
fn one_that_is_being_made_for_a_job_is_not_the_first() {
    let mut facts = cluster(0, vec![node(0, Pending)]);
    facts.nodes[0].taken = true;
    assert_eq!(decide(&facts, Time::EPOCH).master, None);
    facts.nodes[0].placed = true;
    assert_eq!(decide(&facts, Time::EPOCH).master, Some(Master::There(id(0))));
}

#[test]
fn a_new_one_is_the_first_where_there_is_none() {
    let decision = decide(&cluster(2, vec![]), minutes(1));
    assert_eq!(
        (decision.create.len(), decision.master),
        (2, Some(Master::New(0)))
    );
}

#[test]
fn the_others_end_with_a_first_one_that_found_nothing() {
    let mut facts = cluster(0, vec![no_offers(0), node(1, Pending), node(2, Pending)]);
    facts.master = Some(id(0));
    let decision = decide(&facts, Time::EPOCH);
    let failed = Reason::MasterFailed;
    assert_eq!(reasons(&decision), [(id(1), failed), (id(2), failed)]);
    assert_eq!(decision.master, None);
    // A fleet that must have instances tries the next one.
    facts.size = Some(FleetNodesSpec {
        min: 1,
        target: 3,
        max: None,
    });
    let decision = decide(&facts, Time::EPOCH);
    assert_eq!(
        (decision.end.len(), decision.master),
        (0, Some(Master::There(id(1))))
    );
}

#[test]
fn no_fleet_gets_more_instances_than_it_can_have() {
    let decision = decide(&fleet(i64::MAX, None, vec![node(3, Idle)]), minutes(1));
    let most = usize::try_from(MAX_FLEET_INSTANCES).unwrap();
    assert_eq!(decision.create.len(), most - 1);
}

fn statuses() -> impl Strategy<Value = InstanceStatus> {
    use InstanceStatus::Terminated;
    prop::sample::select(vec![Pending, Provisioning, Idle, Busy, Terminating, Terminated])
}

proptest! {
    /// Whatever there is, one step later there are not fewer than `min`, nor more than `max` by what was created; no number is
    /// given twice, and nothing that a job has ends.
    #[test]
    fn sizes_are_kept(
        all in prop::collection::vec((statuses(), any::<bool>(), any::<bool>()), 0..8),
        min in 0_i64..5,
        more in prop::option::of(0_i64..4),
        attempt in 0_i64..MAX_ATTEMPTS,
    ) {
        let nodes: Vec<Node> = (0..).zip(&all).map(|(num, (status, taken, fits))| Node {
            taken: *taken || *status == Busy,
            fits: *fits,
            ..node(num, *status)
        }).collect();
        let mut facts = fleet(min, more.map(|more| min + more), nodes);
        facts.attempt = attempt;
        let decision = decide(&facts, minutes(10_000));
        let ends = |node: &Node| decision.end.iter().any(|ending| ending.id == node.id);
        let left = facts.nodes.iter().filter(|node| !node.is_over() && !ends(node));
        let kept: Vec<i64> = left.map(|node| node.num).collect();
        let all: BTreeSet<i64> = kept.iter().chain(&decision.create).copied().collect();
        prop_assert_eq!(all.len(), kept.len() + decision.create.len());
        let count = i64::try_from(all.len()).unwrap();
        prop_assert!(count >= min);
        if !decision.create.is_empty() {
            prop_assert_eq!(count, min);
        }
        for node in facts.nodes.iter().filter(|node| ends(node)) {
            prop_assert!(matches!(node.status, Idle | Provisioning));
            prop_assert!(!node.taken || node.status == Idle);
        }
        prop_assert!(decision.attempt <= MAX_ATTEMPTS);
    }
}
