//! A replica of a gateway, on a host of an SSH fleet or on a machine of its own, from the request to its end (dstack 0.22.5: pipelines §13).

use std::time::Duration;

use dstack_model::gateways::GatewayReplicaStatus;
use dstack_units::Time;

use super::instance::RELEASE_TIMEOUT;
use super::job::Progress;
use super::{Wait, WaitReason};

/// Whether the host is still there, and which build of the agent it has, is looked at so often.
const LOOK_INTERVAL: Duration = Duration::from_secs(60);

/// A replica that does not answer by then is given up.
const SET_UP_TIMEOUT: Duration = Duration::from_secs(10 * 60);

/// A machine that is not made by then is given up: small ones take a minute.
const MACHINE_TIMEOUT: Duration = Duration::from_secs(10 * 60);

/// A machine to which a load balancer still sends requests by then ends all the same: AWS takes five minutes to let go of one.
const TARGET_TIMEOUT: Duration = Duration::from_secs(6 * 60);

/// All that is known of a replica.
#[derive(Debug, Clone)]
pub struct Facts {
    /// Its name, for reasons.
    pub name: String,
    /// Status of the replica before the decision.
    pub status: GatewayReplicaStatus,
    /// Its gateway is there, and has not failed.
    pub is_wanted: bool,
    /// What it runs on.
    pub site: Site,
    /// The server has another build of the agent for it than the one that the replica runs.
    pub is_outdated: bool,
    /// It has not answered for long.
    pub is_silent: bool,
    /// Its cloud says that its machine is gone, or will never work again.
    pub is_lost: bool,
    /// The load balancer before the gateway, which goes on, may still send it requests.
    pub is_balanced: bool,
    /// How far its setting up is.
    pub prepare: Progress,
    /// How far it is taken off its host.
    pub release: Progress,
    /// When its present wait ends badly.
    pub deadline: Option<Time>,
}

/// What a replica runs on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Site {
    /// A host of an SSH fleet.
    Host {
        /// It is there, and is one that the replica can be set up on.
        is_there: bool,
    },
    /// A machine of its own, in a cloud.
    Machine {
        /// How far the making is.
        create: Progress,
        /// How far the removal is.
        remove: Progress,
    },
}

/// What to do next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Decision {
    /// Nothing but wait.
    Wait(Wait),
    /// Have its machine made, and wait for that.
    MakeMachine(Wait),
    /// Have its machine removed, and wait for that.
    RemoveMachine(Wait),
    /// Have it set up, for the first time or with another build, and wait for that.
    SetUp(Wait),
    /// It answers.
    Ready,
    /// It is to end; why, if somebody still wants it.
    End(Option<String>),
    /// Have it taken off its host, and wait for that.
    TakeOff(Wait),
    /// Nothing of it is left, as far as anybody can tell.
    Gone,
}

/// Decides about a replica.
pub fn decide(facts: &Facts, now: Time) -> Decision {
    use GatewayReplicaStatus::{Provisioning, Running, Submitted, Terminated, Terminating};
    match (facts.status, &facts.site) {
        (Terminated, _) => Decision::Wait(Wait::none()),
        (Terminating, Site::Host { is_there }) => leave_host(facts, *is_there, now),
        (
            Terminating,
            Site::Machine {
                remove: Progress::None,
                ..
            },
        ) if awaits_balancer(facts, now) => {
            let deadline = facts.deadline.unwrap_or(now + TARGET_TIMEOUT);
            Decision::Wait(Wait::until(deadline, WaitReason::GatewayTargetReleased))
        }
        (Terminating, Site::Machine { create, remove }) => end_machine(facts, create, remove),
        (Submitted | Provisioning | Running, _) if !facts.is_wanted => Decision::End(None),
        (Submitted | Provisioning | Running, Site::Host { is_there: false }) => {
            Decision::End(Some("its host is gone".to_owned()))
        }
        (Submitted, Site::Host { .. }) => Decision::SetUp(set_up(facts, None, now)),
        (Submitted, Site::Machine { .. }) => Decision::MakeMachine(making(facts, None, now)),
        (Provisioning, Site::Host { .. }) => provision(facts, now),
        (Provisioning, Site::Machine { create, .. }) => make_machine(facts, create, now),
        (Running, _) => run(facts, now),
    }
}

/// The machine first, and then what runs there.
fn make_machine(facts: &Facts, create: &Progress, now: Time) -> Decision {
    let error = match (create, &facts.prepare) {
        (Progress::Done, Progress::None) => {
            let wait = set_up(facts, None, now);
            // The time for the machine is over, and that for the rest begins.
            return Decision::SetUp(Wait {
                deadline: Some(now + SET_UP_TIMEOUT),
                ..wait
            });
        }
        (Progress::Done, _) => return provision(facts, now),
        (Progress::Refused(error), _) => return Decision::End(Some(error.clone())),
        (Progress::None, _) => return Decision::MakeMachine(making(facts, None, now)),
        (Progress::Intended(error), _) => error.as_ref(),
    };
    until_late(
        facts,
        making(facts, error, now),
        "not made",
        MACHINE_TIMEOUT,
        error,
        now,
    )
}

fn provision(facts: &Facts, now: Time) -> Decision {
    let error = match &facts.prepare {
        Progress::Done => return Decision::Ready,
        Progress::Refused(error) => return Decision::End(Some(error.clone())),
        Progress::None => return Decision::SetUp(set_up(facts, None, now)),
        Progress::Intended(error) => error.as_ref(),
    };
    until_late(
        facts,
        set_up(facts, error, now),
        "not set up",
        SET_UP_TIMEOUT,
        error,
        now,
    )
}

/// Waits, and gives up when the time is over; `what` does not get done then.
fn until_late(
    facts: &Facts,
    wait: Wait,
    what: &str,
    limit: Duration,
    error: Option<&String>,
    now: Time,
) -> Decision {
    if facts.deadline.is_none_or(|deadline| deadline > now) {
        return Decision::Wait(wait);
    }
    let why = error.map_or("it does not answer", String::as_str);
    Decision::End(Some(format!("{what} within {} minutes: {why}", minutes(limit))))
}

/// What runs goes on while another build is brought there. What was refused once is refused again: it goes on as it is; what is not
/// reached any more is tried again all the same, on a machine that is there.
fn run(facts: &Facts, now: Time) -> Decision {
    let again = |error: Option<&String>| WaitReason::HostSetUpAgain {
        instance: facts.name.clone(),
        error: error.cloned(),
    };
    match &facts.prepare {
        Progress::Intended(error) => Decision::Wait(Wait::indefinite(again(error.as_ref()))),
        Progress::Refused(error) if facts.is_lost => Decision::End(Some(error.clone())),
        Progress::Refused(error) if facts.is_silent && facts.is_on_machine() => {
            after_a_pause(facts, again(Some(error)), now)
        }
        Progress::None | Progress::Done if facts.is_outdated => {
            Decision::SetUp(Wait::indefinite(again(None)))
        }
        Progress::None | Progress::Done if facts.is_silent => after_a_pause(facts, again(None), now),
        _ => Decision::Wait(Wait::none().or_at(now + LOOK_INTERVAL)),
    }
}

/// Sets up what is silent, and not in circles: it may answer and yet not be of use.
fn after_a_pause(facts: &Facts, reason: WaitReason, now: Time) -> Decision {
    match facts.deadline {
        Some(deadline) if deadline <= now => Decision::SetUp(Wait::indefinite(reason)),
        deadline => Decision::Wait(Wait::until(deadline.unwrap_or(now + LOOK_INTERVAL), reason)),
    }
}

impl Facts {
    const fn is_on_machine(&self) -> bool {
        matches!(self.site, Site::Machine { .. })
    }
}

fn making(facts: &Facts, error: Option<&String>, now: Time) -> Wait {
    let reason = WaitReason::Creation {
        name: facts.name.clone(),
        error: error.cloned(),
    };
    Wait::until(facts.deadline.unwrap_or(now + MACHINE_TIMEOUT), reason)
}

fn set_up(facts: &Facts, error: Option<&String>, now: Time) -> Wait {
    let reason = WaitReason::HostSetUp {
        instance: facts.name.clone(),
        error: error.cloned(),
    };
    Wait::until(facts.deadline.unwrap_or(now + SET_UP_TIMEOUT), reason)
}

/// Whether its machine stays until the load balancer has let go of it. One that is lost answers nobody.
fn awaits_balancer(facts: &Facts, now: Time) -> bool {
    let is_late = facts.deadline.is_some_and(|deadline| deadline <= now);
    facts.is_balanced && facts.is_wanted && !facts.is_lost && !is_late
}

/// A machine costs money until its cloud says that it is gone, however long that takes.
fn end_machine(facts: &Facts, create: &Progress, remove: &Progress) -> Decision {
    let ending = |error: Option<&String>| {
        Wait::indefinite(WaitReason::Termination {
            name: facts.name.clone(),
            error: error.cloned(),
        })
    };
    match (create, remove) {
        // Its call sees that nobody wants it, and removes what was made so far.
        (Progress::Intended(error), _) => Decision::Wait(ending(error.as_ref())),
        (Progress::Done, Progress::None | Progress::Refused(_)) => Decision::RemoveMachine(ending(None)),
        (Progress::Done, Progress::Intended(error)) => Decision::Wait(ending(error.as_ref())),
        (Progress::None | Progress::Refused(_), _) | (Progress::Done, Progress::Done) => match &facts.prepare
        {
            // As above.
            Progress::Intended(_) => Decision::Wait(ending(None)),
            _ => Decision::Gone,
        },
    }
}

fn leave_host(facts: &Facts, is_there: bool, now: Time) -> Decision {
    let wait = |error: Option<&String>| {
        let reason = WaitReason::HostReleased {
            instance: facts.name.clone(),
            error: error.cloned(),
        };
        Wait::until(facts.deadline.unwrap_or(now + RELEASE_TIMEOUT), reason)
    };
    let is_late = facts.deadline.is_some_and(|deadline| deadline <= now);
    match (&facts.prepare, &facts.release) {
        // Nothing was ever done on the host.
        (Progress::None, _) => Decision::Gone,
        _ if !is_there || is_late => Decision::Gone,
        // Its call ends by itself once nobody wants it any more.
        (Progress::Intended(_), _) => Decision::Wait(wait(None)),
        (_, Progress::None) => Decision::TakeOff(wait(None)),
        (_, Progress::Intended(error)) => Decision::Wait(wait(error.as_ref())),
        (_, Progress::Done | Progress::Refused(_)) => Decision::Gone,
    }
}

const fn minutes(duration: Duration) -> u64 {
    duration.as_secs() / 60
}

#[cfg(test)]
mod tests {
    use GatewayReplicaStatus as Status;

    use super::*;

    const NOW: Time = Time::EPOCH;

    fn facts(status: Status, prepare: Progress) -> Facts {
        Facts {
            name: "gate-0".to_owned(),
            status,
            is_wanted: true,
            site: Site::Host { is_there: true },
            is_outdated: false,
            is_silent: false,
            is_lost: false,
            is_balanced: false,
            prepare,
            release: Progress::None,
            deadline: None,
        }
    }

    fn refused() -> Progress {
        Progress::Refused("port 80 is taken".to_owned())
    }

    #[test]
    fn a_replica_is_set_up_and_runs() {
        let new = facts(Status::Submitted, Progress::None);
        assert!(matches!(decide(&new, NOW), Decision::SetUp(wait) if wait.deadline.is_some()));
        let under_way = facts(Status::Provisioning, Progress::Intended(None));
        assert!(matches!(decide(&under_way, NOW), Decision::Wait(_)));
        let done = facts(Status::Provisioning, Progress::Done);
        assert_eq!(decide(&done, NOW), Decision::Ready);
        let runs = facts(Status::Running, Progress::Done);
        assert!(matches!(decide(&runs, NOW), Decision::Wait(wait) if wait.reason.is_none()));
        let outdated = Facts {
            is_outdated: true,
            ..runs
        };
        assert!(matches!(decide(&outdated, NOW), Decision::SetUp(_)));
        let silent = Facts {
            is_silent: true,
            ..facts(Status::Running, Progress::Done)
        };
        let Decision::Wait(wait) = decide(&silent, NOW) else {
            panic!("it was set up just now, perhaps");
        };
        let later = Facts {
            deadline: wait.deadline,
            ..silent
        };
        assert!(matches!(decide(&later, NOW + LOOK_INTERVAL), Decision::SetUp(_)));
        let refused = Facts {
            prepare: refused(),
            ..outdated
        };
        assert!(matches!(decide(&refused, NOW), Decision::Wait(wait) if wait.wake_at > Some(NOW)));
    }

    #[test]
    fn what_does_not_come_up_ends_with_the_reason() {
        let failed = facts(Status::Provisioning, refused());
        assert_eq!(
            decide(&failed, NOW),
            Decision::End(Some("port 80 is taken".to_owned()))
        );
        let late = Facts {
            deadline: Some(NOW),
            ..facts(
                Status::Provisioning,
                Progress::Intended(Some("no answer".to_owned())),
            )
        };
        let Decision::End(Some(why)) = decide(&late, NOW) else {
            panic!("nobody waits for ever");
        };
        assert_eq!(why, "not set up within 10 minutes: no answer");
        let homeless = Facts {
            site: Site::Host { is_there: false },
            ..facts(Status::Running, Progress::Done)
        };
        assert_eq!(
            decide(&homeless, NOW),
            Decision::End(Some("its host is gone".to_owned()))
        );
    }

    #[test]
    fn what_nobody_wants_is_taken_off_its_host() {
        for status in [Status::Submitted, Status::Provisioning, Status::Running] {
            let unwanted = Facts {
                is_wanted: false,
                ..facts(status, Progress::Intended(None))
            };
            assert_eq!(decide(&unwanted, NOW), Decision::End(None), "{status:?}");
        }
        let ending = |prepare, release| {
            let facts = Facts {
                is_wanted: false,
                release,
                ..facts(Status::Terminating, prepare)
            };
            decide(&facts, NOW)
        };
        assert_eq!(ending(Progress::None, Progress::None), Decision::Gone);
        let busy = ending(Progress::Intended(None), Progress::None);
        assert!(matches!(busy, Decision::Wait(_)), "it is set up still");
        assert!(matches!(
            ending(Progress::Done, Progress::None),
            Decision::TakeOff(_)
        ));
        assert!(
            matches!(ending(refused(), Progress::None), Decision::TakeOff(_)),
            "half of it may be there"
        );
        assert_eq!(ending(Progress::Done, Progress::Done), Decision::Gone);
        assert_eq!(ending(Progress::Done, refused()), Decision::Gone);
        let late = Facts {
            deadline: Some(NOW),
            release: Progress::Intended(None),
            ..facts(Status::Terminating, Progress::Done)
        };
        assert_eq!(
            decide(&late, NOW),
            Decision::Gone,
            "a host that is away holds nobody up for ever"
        );
    }

    fn on_machine(status: Status, create: Progress, remove: Progress, prepare: Progress) -> Facts {
        Facts {
            site: Site::Machine { create, remove },
            ..facts(status, prepare)
        }
    }

    #[test]
    fn a_machine_is_made_and_then_set_up() {
        use Progress::{Done, Intended, None};
        let decided = |status, create, prepare| decide(&on_machine(status, create, None, prepare), NOW);
        assert!(
            matches!(decided(Status::Submitted, None, None), Decision::MakeMachine(wait) if wait.deadline.is_some())
        );
        assert!(matches!(
            decided(Status::Provisioning, Intended(Option::None), None),
            Decision::Wait(_)
        ));
        let made = Facts {
            deadline: Some(NOW + Duration::from_secs(1)),
            ..on_machine(Status::Provisioning, Done, None, None)
        };
        let Decision::SetUp(wait) = decide(&made, NOW) else {
            panic!("the machine is there");
        };
        assert_eq!(
            wait.deadline,
            Some(NOW + SET_UP_TIMEOUT),
            "it has a time of its own"
        );
        assert_eq!(decided(Status::Provisioning, Done, Done), Decision::Ready);
        let sold_out = decided(
            Status::Provisioning,
            Progress::Refused("none left".to_owned()),
            None,
        );
        assert_eq!(sold_out, Decision::End(Some("none left".to_owned())));
        let late = Facts {
            deadline: Some(NOW),
            ..on_machine(
                Status::Provisioning,
                Intended(Some("no answer".to_owned())),
                None,
                None,
            )
        };
        assert_eq!(
            decide(&late, NOW),
            Decision::End(Some("not made within 10 minutes: no answer".to_owned()))
        );
    }

    #[test]
    fn a_machine_that_is_lost_ends_the_replica_and_one_that_only_refuses_a_new_build_does_not() {
        let refused = on_machine(Status::Running, Progress::Done, Progress::None, refused());
        assert!(matches!(decide(&refused, NOW), Decision::Wait(_)));
        let silent = Facts {
            is_silent: true,
            ..refused.clone()
        };
        let Decision::Wait(wait) = decide(&silent, NOW) else {
            panic!("it was refused just now");
        };
        let later = Facts {
            deadline: wait.deadline,
            ..silent
        };
        assert!(matches!(decide(&later, NOW + LOOK_INTERVAL), Decision::SetUp(_)));
        let lost = Facts {
            is_lost: true,
            ..refused
        };
        assert!(matches!(decide(&lost, NOW), Decision::End(Some(_))));
    }

    #[test]
    fn a_machine_that_may_be_there_is_removed_however_long_that_takes() {
        use Progress::{Done, Intended, None};
        let ending = |create, remove, prepare| {
            let facts = Facts {
                deadline: Some(NOW),
                ..on_machine(Status::Terminating, create, remove, prepare)
            };
            decide(&facts, NOW)
        };
        assert_eq!(ending(None, None, None), Decision::Gone);
        assert_eq!(ending(refused(), None, None), Decision::Gone);
        assert!(matches!(
            ending(Intended(Option::None), None, None),
            Decision::Wait(_)
        ));
        assert!(matches!(ending(Done, None, Done), Decision::RemoveMachine(_)));
        assert!(matches!(
            ending(Done, Intended(Option::None), Done),
            Decision::Wait(_)
        ));
        assert!(matches!(
            ending(Done, Done, Intended(Option::None)),
            Decision::Wait(_)
        ));
        assert_eq!(ending(Done, Done, Done), Decision::Gone);
    }

    #[test]
    fn a_machine_stays_until_the_load_balancer_has_let_go_of_it() {
        let ending = Facts {
            site: Site::Machine {
                create: Progress::Done,
                remove: Progress::None,
            },
            is_balanced: true,
            ..facts(Status::Terminating, Progress::Done)
        };
        let Decision::Wait(wait) = decide(&ending, NOW) else {
            panic!("requests are under way");
        };
        assert_eq!(wait.reason, Some(WaitReason::GatewayTargetReleased));
        let removes = |facts: Facts, now| matches!(decide(&facts, now), Decision::RemoveMachine(_));
        let free = Facts {
            is_balanced: false,
            ..ending.clone()
        };
        assert!(removes(free, NOW));
        let late = Facts {
            deadline: wait.deadline,
            ..ending.clone()
        };
        assert!(removes(late, NOW + TARGET_TIMEOUT));
        // The whole gateway ends, or nobody is there to answer.
        let unwanted = Facts {
            is_wanted: false,
            ..ending.clone()
        };
        assert!(removes(unwanted, NOW));
        let lost = Facts {
            is_lost: true,
            ..ending
        };
        assert!(removes(lost, NOW));
    }
}
