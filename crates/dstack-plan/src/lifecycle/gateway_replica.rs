//! A replica of a gateway on a host of an SSH fleet, from the request to its end (dstack 0.22.5: pipelines §13).

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

/// All that is known of a replica.
#[derive(Debug, Clone)]
pub struct Facts {
    /// Its name, for reasons.
    pub name: String,
    /// Status of the replica before the decision.
    pub status: GatewayReplicaStatus,
    /// Its gateway is there, and has not failed.
    pub is_wanted: bool,
    /// Its host is one of a fleet that it can be set up on.
    pub has_host: bool,
    /// The host has another build of the agent than the one that the replica runs.
    pub is_outdated: bool,
    /// It has not answered for long.
    pub is_silent: bool,
    /// How far its setting up is.
    pub prepare: Progress,
    /// How far it is taken off its host.
    pub release: Progress,
    /// When its present wait ends badly.
    pub deadline: Option<Time>,
}

/// What to do next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Decision {
    /// Nothing but wait.
    Wait(Wait),
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
    match facts.status {
        Terminated => Decision::Wait(Wait::none()),
        Terminating => end(facts, now),
        Submitted | Provisioning | Running if !facts.is_wanted => Decision::End(None),
        Submitted | Provisioning | Running if !facts.has_host => {
            Decision::End(Some("its host is gone".to_owned()))
        }
        Submitted => Decision::SetUp(set_up(facts, None, now)),
        Provisioning => provision(facts, now),
        Running => run(facts, now),
    }
}

fn provision(facts: &Facts, now: Time) -> Decision {
    let error = match &facts.prepare {
        Progress::Done => return Decision::Ready,
        Progress::Refused(error) => return Decision::End(Some(error.clone())),
        Progress::None => return Decision::SetUp(set_up(facts, None, now)),
        Progress::Intended(error) => error,
    };
    let wait = set_up(facts, error.as_ref(), now);
    match wait.deadline {
        Some(deadline) if deadline <= now => {
            let why = error.as_deref().unwrap_or("it does not answer");
            Decision::End(Some(format!(
                "not set up within {} minutes: {why}",
                minutes(SET_UP_TIMEOUT)
            )))
        }
        _ => Decision::Wait(wait),
    }
}

/// What runs goes on while another build is brought there. What was refused once is refused again: it goes on as it is.
fn run(facts: &Facts, now: Time) -> Decision {
    match &facts.prepare {
        Progress::Intended(error) => Decision::Wait(Wait::indefinite(WaitReason::HostSetUpAgain {
            instance: facts.name.clone(),
            error: error.clone(),
        })),
        Progress::None | Progress::Done if facts.is_outdated || facts.is_silent => {
            Decision::SetUp(Wait::indefinite(WaitReason::HostSetUpAgain {
                instance: facts.name.clone(),
                error: None,
            }))
        }
        _ => Decision::Wait(Wait::none().or_at(now + LOOK_INTERVAL)),
    }
}

fn set_up(facts: &Facts, error: Option<&String>, now: Time) -> Wait {
    let reason = WaitReason::HostSetUp {
        instance: facts.name.clone(),
        error: error.cloned(),
    };
    Wait::until(facts.deadline.unwrap_or(now + SET_UP_TIMEOUT), reason)
}

fn end(facts: &Facts, now: Time) -> Decision {
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
        _ if !facts.has_host || is_late => Decision::Gone,
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
            has_host: true,
            is_outdated: false,
            is_silent: false,
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
        assert!(matches!(decide(&silent, NOW), Decision::SetUp(_)));
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
            has_host: false,
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
}
