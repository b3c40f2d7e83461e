//! A gateway, from the request to its end (dstack 0.22.5: pipelines §12). Its replicas have lives of their own:
//! [`super::gateway_replica`].

use std::time::Duration;

use dstack_model::gateways::{GatewayReplicaStatus, GatewayStatus};
use dstack_units::Time;

use super::job::Progress;
use super::{Wait, WaitReason};

/// A new gateway fails when no host of its fleet can take it for so long.
const HOST_TIMEOUT: Duration = Duration::from_secs(10 * 60);

/// Hosts are looked for so often.
const HOST_INTERVAL: Duration = Duration::from_secs(15);

/// A load balancer that is not made by then is given up, and one that does not take the machines of a new gateway: AWS takes some
/// three minutes for both.
const LOAD_BALANCER_TIMEOUT: Duration = Duration::from_secs(15 * 60);

/// Pause after which a load balancer is told again what is behind it, when it has refused that.
const REFUSED_INTERVAL: Duration = Duration::from_secs(60);

/// Pauses before a replica that has failed is made again, by failures in a row (dstack 0.22.5); the last one for all further ones.
const PAUSES: [Duration; 5] = [
    Duration::from_secs(60),
    Duration::from_secs(2 * 60),
    Duration::from_secs(5 * 60),
    Duration::from_secs(10 * 60),
    Duration::from_secs(30 * 60),
];

/// A replica of the gateway.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Replica {
    /// Where it is in its life.
    pub status: GatewayReplicaStatus,
    /// Why it ends or has ended although it was wanted.
    pub failure: Option<String>,
    /// When its row was changed last.
    pub changed_at: Time,
}

impl Replica {
    fn is_active(&self) -> bool {
        use GatewayReplicaStatus::{Terminated, Terminating};
        !matches!(self.status, Terminating | Terminated)
    }
}

/// What its replicas may run on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Hosts {
    /// Machines that its backend makes, one for each.
    OfCloud,
    /// There is no SSH fleet of this name.
    NoFleet(String),
    /// Those of an SSH fleet.
    OfFleet {
        /// Name of the fleet.
        name: String,
        /// How many of them can be used, and have no gateway.
        free: usize,
    },
}

/// The load balancer before the replicas.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LoadBalancer {
    /// How far the making is.
    pub create: Progress,
    /// How far the removal is.
    pub remove: Progress,
    /// How far the last call is that says which machines are behind it.
    pub set_machines: Progress,
    /// The machines of all replicas that serve are behind it, and no others.
    pub is_set: bool,
}

/// All that is known of a gateway.
#[derive(Debug, Clone)]
pub struct Facts {
    /// Status of the gateway before the decision.
    pub status: GatewayStatus,
    /// Its deletion was asked for.
    pub to_be_deleted: bool,
    /// How many replicas it should have.
    pub wanted: usize,
    /// All its replicas, oldest first.
    pub replicas: Vec<Replica>,
    /// The hosts that they may run on.
    pub hosts: Hosts,
    /// The load balancer that it is to have.
    pub load_balancer: Option<LoadBalancer>,
    /// When its present wait ends badly.
    pub deadline: Option<Time>,
}

/// What to do next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Decision {
    /// Nothing but wait.
    Wait(Wait),
    /// Have its load balancer made, and wait for that.
    MakeLoadBalancer(Wait),
    /// Have the load balancer pass requests on to the machines of the replicas that serve.
    SetMachines,
    /// Have its load balancer removed, and wait for that.
    RemoveLoadBalancer(Wait),
    /// It cannot be made.
    Fail(String),
    /// So many replicas are made, each on a host of its own that is free, or on a new machine; the gateway is being provisioned if it was only submitted.
    Make(usize),
    /// The replicas at these places end.
    End(Vec<usize>),
    /// All of its replicas answer.
    Run,
    /// Nothing of it is left.
    Gone,
}

/// Decides about a gateway.
pub fn decide(facts: &Facts, now: Time) -> Decision {
    let active = active(facts);
    if facts.to_be_deleted || facts.status == GatewayStatus::Failed {
        return end(facts, active);
    }
    let is_new = facts.status != GatewayStatus::Running;
    if is_new && let Some(why) = refusal(facts) {
        return Decision::Fail(why);
    }
    if let Some(balancer) = &facts.load_balancer
        && let Some(decision) = balance(facts, balancer, now)
    {
        return decision;
    }
    let missing = facts.wanted.saturating_sub(active.len());
    if missing > 0 {
        return make(facts, missing, now);
    }
    if active.len() > facts.wanted {
        return Decision::End(surplus(active, facts.wanted));
    }
    let runs = |(_, replica): &(usize, &Replica)| replica.status == GatewayReplicaStatus::Running;
    if !active.iter().all(runs) {
        // Each replica is given up by itself when its time is over.
        return Decision::Wait(Wait::indefinite(WaitReason::GatewayReplicas));
    }
    match facts.load_balancer.as_ref().filter(|balancer| !balancer.is_set) {
        Some(balancer) => await_machines(facts, balancer, now),
        None if is_new => Decision::Run,
        None => Decision::Wait(Wait::none()),
    }
}

/// What is to be done about the load balancer before anything else; `None`: nothing.
fn balance(facts: &Facts, balancer: &LoadBalancer, now: Time) -> Option<Decision> {
    let error = match &balancer.create {
        Progress::Done => {
            let may_be_asked = matches!(balancer.set_machines, Progress::None | Progress::Done);
            return (!balancer.is_set && may_be_asked).then_some(Decision::SetMachines);
        }
        Progress::None => return Some(Decision::MakeLoadBalancer(made_by(facts, None, now))),
        Progress::Refused(error) => return Some(Decision::Fail(no_load_balancer(error))),
        Progress::Intended(error) => error.as_ref(),
    };
    let wait = made_by(facts, error, now);
    if wait.deadline.is_none_or(|deadline| deadline > now) {
        return Some(Decision::Wait(wait));
    }
    Some(Decision::Fail(no_load_balancer(
        error.map_or("its cloud has not made it in time", String::as_str),
    )))
}

fn no_load_balancer(error: &str) -> String {
    format!("Failed to create the load balancer: {error}")
}

fn made_by(facts: &Facts, error: Option<&String>, now: Time) -> Wait {
    Wait {
        deadline: Some(facts.deadline.unwrap_or(now + LOAD_BALANCER_TIMEOUT)),
        wake_at: None,
        reason: Some(WaitReason::GatewayLoadBalancer {
            error: error.cloned(),
        }),
    }
}

/// All replicas run, and the load balancer does not know yet.
fn await_machines(facts: &Facts, balancer: &LoadBalancer, now: Time) -> Decision {
    let is_new = facts.status != GatewayStatus::Running;
    let error = match &balancer.set_machines {
        Progress::Intended(error) => error.as_ref(),
        Progress::Refused(error) if is_new => return Decision::Fail(no_load_balancer(error)),
        Progress::Refused(error) => {
            let at = facts.deadline.unwrap_or(now + REFUSED_INTERVAL);
            let reason = WaitReason::GatewayLoadBalancer {
                error: Some(error.clone()),
            };
            return match at <= now {
                true => Decision::SetMachines,
                false => Decision::Wait(Wait::until(at, reason)),
            };
        }
        Progress::None | Progress::Done => None,
    };
    if !is_new {
        return Decision::Wait(Wait::indefinite(WaitReason::GatewayLoadBalancer {
            error: error.cloned(),
        }));
    }
    let wait = made_by(facts, error, now);
    match wait.deadline.is_none_or(|deadline| deadline > now) {
        true => Decision::Wait(wait),
        false => Decision::Fail(no_load_balancer(
            error.map_or("it does not take the machines", String::as_str),
        )),
    }
}

/// The replicas that are not to end, with their places.
fn active(facts: &Facts) -> Vec<(usize, &Replica)> {
    let all = facts.replicas.iter().enumerate();
    all.filter(|(_, replica)| replica.is_active()).collect()
}

fn places(replicas: Vec<(usize, &Replica)>) -> Vec<usize> {
    replicas.into_iter().map(|(place, _)| place).collect()
}

fn end(facts: &Facts, active: Vec<(usize, &Replica)>) -> Decision {
    let is_over = |replica: &Replica| replica.status == GatewayReplicaStatus::Terminated;
    if !active.is_empty() {
        return Decision::End(places(active));
    }
    if !facts.replicas.iter().all(is_over) {
        return Decision::Wait(Wait::indefinite(WaitReason::GatewayReplicasEnded));
    }
    let left = facts.load_balancer.as_ref().and_then(remove_load_balancer);
    match (left, facts.to_be_deleted) {
        (Some(decision), _) => decision,
        (None, true) => Decision::Gone,
        (None, false) => Decision::Wait(Wait::none()),
    }
}

/// What is to be done until nothing of a load balancer is left; `None`: nothing is.
fn remove_load_balancer(balancer: &LoadBalancer) -> Option<Decision> {
    let wait = |error: Option<&String>| {
        Wait::indefinite(WaitReason::GatewayLoadBalancerRemoved {
            error: error.cloned(),
        })
    };
    match (&balancer.create, &balancer.remove) {
        // What was refused is removed already.
        (Progress::None | Progress::Refused(_), _) | (_, Progress::Done) => None,
        // It sees that nobody wants it.
        (Progress::Intended(error), _) => Some(Decision::Wait(wait(error.as_ref()))),
        (Progress::Done, Progress::Intended(error)) => Some(Decision::Wait(wait(error.as_ref()))),
        (Progress::Done, Progress::None | Progress::Refused(_)) => {
            Some(Decision::RemoveLoadBalancer(wait(None)))
        }
    }
}

/// Why a new gateway cannot be made.
fn refusal(facts: &Facts) -> Option<String> {
    match &facts.hosts {
        Hosts::NoFleet(name) => {
            return Some(format!(
                "There is no SSH fleet {name} in the project: `region` names the fleet on whose hosts the gateway runs"
            ));
        }
        Hosts::OfCloud | Hosts::OfFleet { .. } => {}
    }
    let failed = facts.replicas.iter().find_map(|replica| replica.failure.as_ref());
    failed.map(|failure| format!("Failed to provision gateway replica: {failure}"))
}

fn make(facts: &Facts, missing: usize, now: Time) -> Decision {
    let at = next_attempt_at(&facts.replicas);
    if let Some(at) = at.filter(|at| now < *at) {
        return Decision::Wait(Wait {
            deadline: None,
            wake_at: Some(at),
            reason: Some(WaitReason::NextAttempt),
        });
    }
    let (fleet, free) = match &facts.hosts {
        Hosts::OfFleet { name, free } => (name.clone(), *free),
        Hosts::NoFleet(name) => (name.clone(), 0),
        Hosts::OfCloud => return Decision::Make(missing),
    };
    if free > 0 {
        return Decision::Make(missing.min(free));
    }
    // One that runs goes on with the replicas that it has.
    let is_new = facts.status != GatewayStatus::Running;
    let deadline = is_new.then(|| facts.deadline.unwrap_or(now + HOST_TIMEOUT));
    if deadline.is_some_and(|deadline| deadline <= now) {
        return Decision::Fail(format!(
            "No host of fleet {fleet} can take a replica of the gateway: each must be reached, and have no other gateway"
        ));
    }
    Decision::Wait(Wait {
        deadline,
        wake_at: Some(now + HOST_INTERVAL),
        reason: Some(WaitReason::GatewayHost { fleet }),
    })
}

/// When the next replica may be made, after those that have failed last.
fn next_attempt_at(replicas: &[Replica]) -> Option<Time> {
    let failed = |replica: &&Replica| !replica.is_active() && replica.failure.is_some();
    let in_a_row = replicas.iter().rev().take_while(failed).count();
    let last = replicas.last().filter(failed)?;
    let pause = PAUSES.get(in_a_row.saturating_sub(1)).or(PAUSES.last())?;
    Some(last.changed_at + *pause)
}

/// Those that are too many: first those that serve least, of these the oldest.
fn surplus(mut active: Vec<(usize, &Replica)>, wanted: usize) -> Vec<usize> {
    let rank = |status| match status {
        GatewayReplicaStatus::Submitted => 0,
        GatewayReplicaStatus::Provisioning => 1,
        _ => 2,
    };
    active.sort_by_key(|(_, replica)| rank(replica.status));
    active.truncate(active.len().saturating_sub(wanted));
    places(active)
}

#[cfg(test)]
mod tests {
    use GatewayReplicaStatus as Status;

    use super::*;

    const NOW: Time = Time::EPOCH;

    fn replica(status: Status) -> Replica {
        Replica {
            status,
            failure: None,
            changed_at: NOW,
        }
    }

    fn failed() -> Replica {
        Replica {
            failure: Some("port 80 is taken".to_owned()),
            ..replica(Status::Terminated)
        }
    }

    fn facts(status: GatewayStatus, replicas: &[Replica], free: usize) -> Facts {
        Facts {
            status,
            to_be_deleted: false,
            wanted: 2,
            replicas: replicas.to_vec(),
            hosts: Hosts::OfFleet {
                name: "f".to_owned(),
                free,
            },
            load_balancer: None,
            deadline: None,
        }
    }

    fn decided(status: GatewayStatus, replicas: &[Replica], free: usize) -> Decision {
        decide(&facts(status, replicas, free), NOW)
    }

    #[test]
    fn a_gateway_is_made_on_free_hosts_and_runs_with_all_its_replicas() {
        use GatewayStatus::{Provisioning, Running, Submitted};
        assert_eq!(decided(Submitted, &[], 3), Decision::Make(2));
        let one = [replica(Status::Running)];
        assert_eq!(decided(Provisioning, &one, 3), Decision::Make(1));
        let both = [replica(Status::Running), replica(Status::Provisioning)];
        assert!(matches!(decided(Provisioning, &both, 0), Decision::Wait(_)));
        let both = [replica(Status::Running), replica(Status::Running)];
        assert_eq!(decided(Provisioning, &both, 0), Decision::Run);
        assert_eq!(decided(Running, &both, 0), Decision::Wait(Wait::none()));
    }

    #[test]
    fn a_new_gateway_waits_for_a_host_for_a_while_and_one_that_runs_goes_on() {
        let new = facts(GatewayStatus::Submitted, &[], 0);
        let Decision::Wait(wait) = decide(&new, NOW) else {
            panic!("a host may come");
        };
        assert_eq!(wait.deadline, Some(NOW + HOST_TIMEOUT));
        let late = Facts {
            deadline: wait.deadline,
            ..new
        };
        let at = NOW + HOST_TIMEOUT;
        assert!(matches!(decide(&late, at), Decision::Fail(why) if why.contains("No host of fleet f")));
        let running = facts(GatewayStatus::Running, &[replica(Status::Running)], 0);
        let Decision::Wait(wait) = decide(&running, NOW) else {
            panic!("it serves");
        };
        assert_eq!((wait.deadline, wait.wake_at.is_some()), (None, true));
    }

    #[test]
    fn what_cannot_be_made_fails_and_leaves_nothing() {
        use GatewayStatus::{Failed, Provisioning};
        let replicas = [failed(), replica(Status::Running)];
        let Decision::Fail(why) = decided(Provisioning, &replicas, 1) else {
            panic!("one of them failed");
        };
        assert_eq!(why, "Failed to provision gateway replica: port 80 is taken");
        assert_eq!(decided(Failed, &replicas, 1), Decision::End(vec![1]));
        let ending = [failed(), replica(Status::Terminating)];
        assert!(matches!(decided(Failed, &ending, 1), Decision::Wait(_)));
        let homeless = Facts {
            hosts: Hosts::NoFleet("f".to_owned()),
            ..facts(GatewayStatus::Submitted, &[], 0)
        };
        assert!(matches!(decide(&homeless, NOW), Decision::Fail(_)));
    }

    #[test]
    fn a_cloud_makes_a_machine_for_each_replica_and_says_once_why_it_does_not() {
        let of_cloud = |status, replicas: &[Replica]| {
            let facts = Facts {
                hosts: Hosts::OfCloud,
                ..facts(status, replicas, 0)
            };
            decide(&facts, NOW + Duration::from_secs(1))
        };
        assert_eq!(of_cloud(GatewayStatus::Submitted, &[]), Decision::Make(2));
        let one = [replica(Status::Provisioning)];
        assert_eq!(of_cloud(GatewayStatus::Provisioning, &one), Decision::Make(1));
        let failed = [failed(), replica(Status::Provisioning)];
        let Decision::Fail(why) = of_cloud(GatewayStatus::Provisioning, &failed) else {
            panic!("a new gateway has all of its replicas");
        };
        assert_eq!(why, "Failed to provision gateway replica: port 80 is taken");
        let later = of_cloud(GatewayStatus::Running, &failed[..1]);
        assert!(
            matches!(later, Decision::Wait(wait) if wait.wake_at.is_some()),
            "after a pause"
        );
    }

    #[test]
    fn a_replica_that_fails_later_is_made_again_after_growing_pauses() {
        let running = |failures: usize| {
            let mut replicas = vec![replica(Status::Running)];
            replicas.extend(vec![failed(); failures]);
            facts(GatewayStatus::Running, &replicas, 1)
        };
        for (failures, pause) in [(1, 60), (2, 120), (5, 1800), (50, 1800)] {
            let facts = running(failures);
            let Decision::Wait(wait) = decide(&facts, NOW) else {
                panic!("it has just failed");
            };
            let at = NOW + Duration::from_secs(pause);
            assert_eq!(wait.wake_at, Some(at), "{failures}");
            assert_eq!(decide(&facts, at), Decision::Make(1));
        }
    }

    #[test]
    fn too_many_end_those_first_that_serve_least() {
        let all = [
            Status::Running,
            Status::Provisioning,
            Status::Running,
            Status::Submitted,
        ]
        .map(replica);
        let end = decided(GatewayStatus::Running, &all, 0);
        assert_eq!(end, Decision::End(vec![3, 1]));
    }

    #[test]
    fn a_deleted_gateway_is_gone_after_its_replicas() {
        let deleted = |replicas: &[Replica]| {
            let facts = Facts {
                to_be_deleted: true,
                ..facts(GatewayStatus::Running, replicas, 1)
            };
            decide(&facts, NOW)
        };
        assert_eq!(deleted(&[]), Decision::Gone);
        assert_eq!(deleted(&[replica(Status::Terminated)]), Decision::Gone);
        assert_eq!(deleted(&[replica(Status::Running)]), Decision::End(vec![0]));
        assert!(matches!(
            deleted(&[replica(Status::Terminating)]),
            Decision::Wait(_)
        ));
    }

    fn balancer() -> LoadBalancer {
        LoadBalancer {
            create: Progress::Done,
            remove: Progress::None,
            set_machines: Progress::None,
            is_set: true,
        }
    }

    fn balanced(status: GatewayStatus, replicas: &[Replica], balancer: LoadBalancer) -> Facts {
        Facts {
            hosts: Hosts::OfCloud,
            load_balancer: Some(balancer),
            ..facts(status, replicas, 0)
        }
    }

    #[test]
    fn the_load_balancer_is_made_first_and_knows_all_machines_before_the_gateway_runs() {
        use GatewayStatus::{Provisioning, Running, Submitted};
        let none = LoadBalancer {
            create: Progress::None,
            ..balancer()
        };
        let decision = decide(&balanced(Submitted, &[], none), NOW);
        assert!(matches!(decision, Decision::MakeLoadBalancer(wait) if wait.deadline.is_some()));
        assert_eq!(
            decide(&balanced(Submitted, &[], balancer()), NOW),
            Decision::Make(2)
        );
        let both = [replica(Status::Running), replica(Status::Running)];
        let unset = LoadBalancer {
            is_set: false,
            ..balancer()
        };
        let decision = decide(&balanced(Provisioning, &both, unset.clone()), NOW);
        assert_eq!(decision, Decision::SetMachines);
        let told = LoadBalancer {
            set_machines: Progress::Intended(None),
            ..unset
        };
        let waits = balanced(Provisioning, &both, told.clone());
        assert!(matches!(decide(&waits, NOW), Decision::Wait(wait) if wait.deadline.is_some()));
        assert_eq!(
            decide(&balanced(Provisioning, &both, balancer()), NOW),
            Decision::Run
        );
        // Replicas are made again meanwhile.
        let one = [replica(Status::Running)];
        assert_eq!(decide(&balanced(Running, &one, told), NOW), Decision::Make(1));
    }

    #[test]
    fn a_gateway_without_its_load_balancer_fails_and_says_why() {
        use GatewayStatus::{Provisioning, Submitted};
        let refused = LoadBalancer {
            create: Progress::Refused("two zones are needed".to_owned()),
            ..balancer()
        };
        let text = "Failed to create the load balancer: two zones are needed";
        let decision = decide(&balanced(Submitted, &[], refused.clone()), NOW);
        assert_eq!(decision, Decision::Fail(text.to_owned()));
        assert!(matches!(
            decide(&balanced(GatewayStatus::Failed, &[], refused), NOW),
            Decision::Wait(wait) if wait.reason.is_none()
        ));
        let slow = LoadBalancer {
            create: Progress::Intended(Some("no answer".to_owned())),
            ..balancer()
        };
        let late = Facts {
            deadline: Some(NOW),
            ..balanced(Submitted, &[], slow)
        };
        assert!(matches!(decide(&late, NOW), Decision::Fail(why) if why.ends_with("no answer")));
        let both = [replica(Status::Running), replica(Status::Running)];
        let unwilling = LoadBalancer {
            set_machines: Progress::Refused("another zone".to_owned()),
            is_set: false,
            ..balancer()
        };
        let decision = decide(&balanced(Provisioning, &both, unwilling.clone()), NOW);
        assert!(matches!(decision, Decision::Fail(why) if why.ends_with("another zone")));
        // One that runs goes on, and tells it again.
        let running = balanced(GatewayStatus::Running, &both, unwilling);
        let Decision::Wait(wait) = decide(&running, NOW) else {
            panic!("it has just refused");
        };
        let later = Facts {
            deadline: wait.deadline,
            ..running
        };
        let at = NOW + REFUSED_INTERVAL;
        assert_eq!(decide(&later, at), Decision::SetMachines);
    }

    #[test]
    fn the_load_balancer_goes_after_the_machines_and_before_the_gateway() {
        let deleted = |replicas: &[Replica], balancer: LoadBalancer| {
            let facts = Facts {
                to_be_deleted: true,
                ..balanced(GatewayStatus::Running, replicas, balancer)
            };
            decide(&facts, NOW)
        };
        let ending = [replica(Status::Terminating)];
        assert!(matches!(deleted(&ending, balancer()), Decision::Wait(_)));
        let over = [replica(Status::Terminated)];
        assert!(matches!(
            deleted(&over, balancer()),
            Decision::RemoveLoadBalancer(_)
        ));
        for (create, remove, is_gone) in [
            (Progress::Done, Progress::Intended(None), false),
            (Progress::Intended(None), Progress::None, false),
            (Progress::Done, Progress::Done, true),
            (Progress::None, Progress::None, true),
            (Progress::Refused(String::new()), Progress::None, true),
        ] {
            let left = LoadBalancer {
                create,
                remove,
                ..balancer()
            };
            assert_eq!(deleted(&over, left) == Decision::Gone, is_gone);
        }
    }
}
