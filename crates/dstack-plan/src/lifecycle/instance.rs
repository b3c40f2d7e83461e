//! An instance that is made for a job or for its fleet, from the request to its end (dstack 0.22.5: pipelines §8).

use std::fmt;
use std::time::Duration;

use dstack_model::instances::{InstanceStatus, InstanceTerminationReason};
use dstack_units::Time;

use super::job::Progress;
use super::{Wait, WaitReason};

/// How long offers are begun with, one after the other: each that is not made within the time of its backend makes way for the
/// next.
pub const CREATION_TIMEOUT: Duration = Duration::from_secs(30 * 60);

/// How long the agent of an instance may be out of reach; then nobody gets it back, and it is ended.
pub const UNREACHABLE_TIMEOUT: Duration = Duration::from_secs(20 * 60);

/// How long a host of an SSH fleet may take to be set up (dstack 0.22.5: backends/remote). A host that gets on has longer.
pub const PREPARATION_TIMEOUT: Duration = Duration::from_secs(10 * 60);

/// After each step that succeeded there is so much time for the next one, as the agent's file may take long on a slow line.
const NEXT_STEP_TIMEOUT: Duration = Duration::from_secs(5 * 60);

/// However well it gets on.
const LONGEST_PREPARATION: Duration = Duration::from_secs(2 * 60 * 60);

/// How long a step of a preparation that is not wanted any more is waited for: as long as scripts on hosts may take.
pub const PREPARATION_END_TIMEOUT: Duration = Duration::from_secs(150);

/// How long it is tried to take the agent off a host; a host that cannot be reached any more keeps it.
/// Longer than one attempt may take: none is under way any more when the host counts as free.
pub const RELEASE_TIMEOUT: Duration = Duration::from_secs(240);

/// How long the agent of a host that SSH reaches may be silent before the host is set up again. What keeps it running there starts
/// it again sooner.
pub const SILENCE_TIMEOUT: Duration = Duration::from_secs(10);

/// How long the agent of a host may take connections and answer nothing before it is started again. It is asked with patience
/// meanwhile ([`MUTE_PATIENCE`]): one on a host under load answers late, and is left alone.
pub const MUTE_TIMEOUT: Duration = Duration::from_secs(150);

/// How long an answer is waited for of an agent that has not answered a call in time. So often as it is asked within
/// [`MUTE_TIMEOUT`], it has been silent.
pub const MUTE_PATIENCE: Duration = Duration::from_secs(60);

/// How long jobs may take to end on an instance that its cloud takes away without saying when.
pub const NOTICE: Duration = Duration::from_secs(60);

/// How long they may take at most, however late the cloud takes it away.
const LONGEST_NOTICE: Duration = Duration::from_secs(5 * 60);

/// When a host whose preparation ends now may be set up again, after so many calls: there are some four to a preparation, and
/// they count on while one follows the other.
pub fn next_preparation_at(now: Time, calls: i64) -> Time {
    const FOR_EACH_CALL: Duration = Duration::from_secs(15);
    const SHORTEST: Duration = Duration::from_secs(60);
    const LONGEST: Duration = Duration::from_secs(15 * 60);
    let calls = u32::try_from(calls.max(0)).unwrap_or(u32::MAX);
    now + FOR_EACH_CALL.saturating_mul(calls).clamp(SHORTEST, LONGEST)
}

/// Whom an instance is there for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// A job wanted it: without that job it is not made.
    Job,
    /// Its fleet wants it.
    Fleet,
    /// It is not of a cloud: nobody makes it.
    Host,
}

/// What is wrong with the agent of a host that SSH reaches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AgentTrouble {
    /// It does not answer, or takes no calls of this server, since then.
    Silent(Time),
    /// It takes connections and answers nothing, however long it is waited for, since then.
    Mute(Time),
    /// This server brings another build of it than stands there.
    OtherBuild,
}

/// Why a host that is in use is set up again. As text it follows the words "Host is set up again: ".
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Repair {
    /// Its agent is silent.
    Silent,
    /// Its agent takes connections, and is silent.
    Mute,
    /// Its agent is of another build.
    OtherBuild,
}

impl fmt::Display for Repair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Silent => "its agent does not answer",
            Self::Mute => "its agent takes connections and does not answer",
            Self::OtherBuild => "the server brings another build of its agent",
        })
    }
}

/// All that is known of an instance.
#[derive(Debug, Clone)]
pub struct Facts {
    /// Its name, for reasons.
    pub name: String,
    /// Status of the instance before the decision.
    pub status: InstanceStatus,
    /// Whom it is there for.
    pub purpose: Purpose,
    /// Its fleet is being ended.
    pub fleet_ends: bool,
    /// How far its creation is; [`Progress::None`]: it was not asked for yet, or is not of our making.
    pub create: Progress,
    /// How far its termination is.
    pub terminate: Progress,
    /// How far the setting up of a host is.
    pub prepare: Progress,
    /// When a step of that succeeded last, while it is under way.
    pub prepared_step_at: Option<Time>,
    /// Before that time a host is not set up again.
    pub prepare_again_at: Option<Time>,
    /// A host that is in use was set up again, and what that brought is not taken over yet.
    pub prepared_anew: bool,
    /// What is wrong with the agent of a host that SSH reaches.
    pub trouble: Option<AgentTrouble>,
    /// How far it is to take the agent off a host.
    pub release: Progress,
    /// What it waits for by its row.
    pub stored: Wait,
    /// The host was reached over SSH, and setting it up has begun: something of us may be there.
    pub has_agent: bool,
    /// A cloud has made the machine, and its agent is still to be brought there over SSH.
    pub lacks_agent: bool,
    /// Jobs that occupy it.
    pub jobs: usize,
    /// Its agent has told all its tasks.
    pub in_reach: bool,
    /// When it was asked for.
    pub asked_at: Time,
    /// When it was made.
    pub started_at: Option<Time>,
    /// How long it may take from its creation until its agent answers, as its backend says.
    pub timeout: Duration,
    /// It ends with its job: a container rather than a machine.
    pub one_job: bool,
    /// Since when no job has occupied it, if none does.
    pub idle_since: Time,
    /// How long it may be idle; `None`: for ever.
    pub idle_for: Option<Duration>,
    /// Until when its agent, which is out of reach, is waited for.
    pub unreachable_until: Option<Time>,
    /// Why it is out of reach.
    pub unreachable_because: Option<String>,
    /// What its cloud says of it; `None`: it is well, as far as is known.
    pub sign: Option<CloudSign>,
}

/// What a cloud says of an instance that it has made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CloudSign {
    /// It will be taken away.
    Ending {
        /// When, if the cloud says so.
        at: Option<Time>,
        /// What the cloud says of the reason, for people.
        why: String,
    },
    /// It is gone, or will never work again; why.
    Lost(String),
}

/// What to do next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Decision {
    /// Nothing is to be done, and there is nothing to wait for.
    Stay,
    /// Nothing but wait.
    Wait(Wait),
    /// Have it made: look for offers.
    BringUp,
    /// Have the host set up, and wait for that.
    IntendPreparation(Wait),
    /// The host is set up: it can take jobs.
    Prepared,
    /// Have the host, which is in use, set up again for this reason, and wait for that.
    PrepareAgain(Repair, Wait),
    /// The host, which is in use, was set up again.
    PreparedAgain,
    /// The step of setting up the host that is under way is given up, and no other follows.
    GiveUpPreparation,
    /// Have the agent taken off the host, and wait for that.
    IntendRelease(Wait),
    /// The agent was not taken off the host in time, for this reason; whatever is left there stays.
    LeftBehind(String),
    /// The cloud has made it: it and its jobs are being provisioned.
    Made,
    /// No offer worked: it ends, and its jobs with it.
    NotMade(String),
    /// Its agent answers.
    Ready(InstanceStatus),
    /// Begin to end it.
    End(InstanceTerminationReason, String),
    /// Have the cloud end it, and wait for that.
    IntendTermination(Wait),
    /// Nothing of it is left.
    Gone,
}

/// Decides about an instance.
pub fn decide(facts: &Facts, now: Time) -> Decision {
    match facts.status {
        InstanceStatus::Pending if facts.purpose == Purpose::Host => pending_host(facts, now),
        InstanceStatus::Pending => pending(facts),
        InstanceStatus::Provisioning | InstanceStatus::Idle | InstanceStatus::Busy
            if let Some(end) = taken_away(facts, now) =>
        {
            end
        }
        InstanceStatus::Provisioning => provisioning(facts, now),
        InstanceStatus::Idle | InstanceStatus::Busy if facts.purpose == Purpose::Host => {
            host_in_use(facts, now)
        }
        InstanceStatus::Idle | InstanceStatus::Busy => in_use(facts, now),
        InstanceStatus::Terminating if facts.purpose == Purpose::Host => terminating_host(facts, now),
        InstanceStatus::Terminating => terminating(facts),
        InstanceStatus::Terminated => Decision::Stay,
    }
}

fn pending_host(facts: &Facts, now: Time) -> Decision {
    let deadline = preparation_deadline(facts);
    let wait = |error: Option<String>| Wait {
        deadline: Some(deadline),
        wake_at: Some(deadline),
        reason: Some(WaitReason::HostSetUp {
            instance: facts.name.clone(),
            error,
        }),
    };
    match &facts.prepare {
        Progress::None => Decision::IntendPreparation(wait(None)),
        Progress::Done => Decision::Prepared,
        Progress::Refused(error) => Decision::End(InstanceTerminationReason::Error, error.clone()),
        Progress::Intended(error) if now >= deadline => {
            let limit = deadline.since(facts.asked_at).as_secs();
            let cause = error
                .as_ref()
                .map(|error| format!(": {error}"))
                .unwrap_or_default();
            let message = format!("Failed to add SSH instance in {limit}s{cause}");
            Decision::End(InstanceTerminationReason::ProvisioningTimeout, message)
        }
        Progress::Intended(error) => Decision::Wait(wait(error.clone())),
    }
}

fn preparation_deadline(facts: &Facts) -> Time {
    let first = facts.asked_at + PREPARATION_TIMEOUT;
    let extended = facts.prepared_step_at.map(|at| at + NEXT_STEP_TIMEOUT);
    let last = facts.asked_at + LONGEST_PREPARATION;
    extended.map_or(first, |extended| extended.max(first).min(last))
}

/// A host that is in use keeps its status whatever becomes of its agent: jobs may run there. It is set up again where that may
/// help, with pauses that grow.
fn host_in_use(facts: &Facts, now: Time) -> Decision {
    let reason = |error: Option<String>| WaitReason::HostSetUpAgain {
        instance: facts.name.clone(),
        error,
    };
    if let Progress::Intended(error) = &facts.prepare {
        return Decision::Wait(Wait::indefinite(reason(error.clone())));
    }
    if facts.prepared_anew {
        return Decision::PreparedAgain;
    }
    let (repair, due) = match facts.trouble {
        None => return Decision::Stay,
        Some(AgentTrouble::Silent(since)) => (Repair::Silent, since + SILENCE_TIMEOUT),
        Some(AgentTrouble::Mute(since)) => (Repair::Mute, since + MUTE_TIMEOUT),
        Some(AgentTrouble::OtherBuild) => (Repair::OtherBuild, now),
    };
    let at = facts.prepare_again_at.map_or(due, |again| again.max(due));
    if now >= at {
        return Decision::PrepareAgain(repair, Wait::indefinite(reason(None)));
    }
    let failed = match &facts.prepare {
        Progress::Refused(error) => Some(reason(Some(error.clone()))),
        _ => None,
    };
    Decision::Wait(Wait {
        deadline: None,
        wake_at: Some(at),
        reason: failed,
    })
}

fn terminating_host(facts: &Facts, now: Time) -> Decision {
    let stored = facts.stored.deadline;
    if matches!(facts.prepare, Progress::Intended(_)) {
        // It ends at its next step, as it is not wanted any more; a step that hangs does not come to that.
        let is_awaited = facts.stored.reason == Some(WaitReason::InstanceEnded);
        let deadline = stored.filter(|_| is_awaited);
        let deadline = deadline.unwrap_or(now + PREPARATION_END_TIMEOUT);
        return match now >= deadline {
            true => Decision::GiveUpPreparation,
            false => Decision::Wait(Wait::until(deadline, WaitReason::InstanceEnded)),
        };
    }
    if !facts.has_agent {
        return Decision::Gone;
    }
    let is_awaited = matches!(facts.stored.reason, Some(WaitReason::HostReleased { .. }));
    let deadline = stored.filter(|_| is_awaited);
    let deadline = deadline.unwrap_or(now + RELEASE_TIMEOUT);
    let wait = |error: Option<String>| {
        let instance = facts.name.clone();
        Wait::until(deadline, WaitReason::HostReleased { instance, error })
    };
    match &facts.release {
        Progress::None => Decision::IntendRelease(wait(None)),
        Progress::Done => Decision::Gone,
        Progress::Refused(error) => Decision::LeftBehind(error.clone()),
        Progress::Intended(error) if now >= deadline => {
            let unknown = || "the host did not answer in time".to_owned();
            Decision::LeftBehind(error.clone().unwrap_or_else(unknown))
        }
        Progress::Intended(error) => Decision::Wait(wait(error.clone())),
    }
}

fn pending(facts: &Facts) -> Decision {
    if let Some(end) = unwanted(facts) {
        return end;
    }
    match &facts.create {
        Progress::None if facts.purpose == Purpose::Fleet => Decision::BringUp,
        Progress::None => Decision::Stay,
        Progress::Done => Decision::Made,
        Progress::Refused(error) => Decision::NotMade(error.clone()),
        // Only the cloud ends this wait: it is asked again and again.
        Progress::Intended(error) => Decision::Wait(Wait {
            deadline: Some(facts.asked_at + CREATION_TIMEOUT),
            ..Wait::indefinite(WaitReason::Creation {
                name: facts.name.clone(),
                error: error.clone(),
            })
        }),
    }
}

/// Nobody is there any more for whom it would be made. What has already been made, or refused, is taken note of first.
fn unwanted(facts: &Facts) -> Option<Decision> {
    let settled = facts.status == InstanceStatus::Pending
        && matches!(facts.create, Progress::Done | Progress::Refused(_));
    if facts.jobs > 0 || settled {
        return None;
    }
    match facts.purpose {
        Purpose::Host => None,
        _ if facts.fleet_ends => Some(fleet_ends()),
        Purpose::Job if facts.create != Progress::None => Some(Decision::End(
            InstanceTerminationReason::JobFinished,
            "The job that it was made for has ended".to_owned(),
        )),
        Purpose::Job | Purpose::Fleet => None,
    }
}

/// The cloud takes it away, or has lost it. An agent that answers proves a cloud wrong that does not know its machine.
fn taken_away(facts: &Facts, now: Time) -> Option<Decision> {
    let why = match facts.sign.as_ref()? {
        CloudSign::Ending { at, why } => match jobs_may_end(facts, *at, now) {
            Some(wait) => return Some(Decision::Wait(wait)),
            None => why,
        },
        CloudSign::Lost(why) if !facts.in_reach => why,
        CloudSign::Lost(_) => return None,
    };
    Some(Decision::End(InstanceTerminationReason::Unreachable, why.clone()))
}

/// Its jobs are told to stop, and have until then; `None`: nothing is to be waited for (any more).
fn jobs_may_end(facts: &Facts, at: Option<Time>, now: Time) -> Option<Wait> {
    let reason = WaitReason::JobsEndedBefore {
        instance: facts.name.clone(),
    };
    let is_awaited = facts.stored.reason.as_ref() == Some(&reason);
    let until = facts.stored.deadline.filter(|_| is_awaited);
    let until = until.unwrap_or_else(|| at.unwrap_or(now + NOTICE).min(now + LONGEST_NOTICE));
    (facts.jobs > 0 && now < until).then(|| Wait::until(until, reason))
}

fn fleet_ends() -> Decision {
    let message = "Its fleet is deleted".to_owned();
    Decision::End(InstanceTerminationReason::TerminatedByUser, message)
}

fn provisioning(facts: &Facts, now: Time) -> Decision {
    if let Some(end) = unwanted(facts) {
        return end;
    }
    let ours = facts.create != Progress::None;
    if facts.in_reach {
        return Decision::Ready(match facts.jobs {
            0 => InstanceStatus::Idle,
            _ => InstanceStatus::Busy,
        });
    }
    if !ours {
        return Decision::Stay;
    }
    let deadline = facts.started_at.unwrap_or(facts.asked_at) + facts.timeout;
    if now >= deadline {
        return Decision::End(
            InstanceTerminationReason::ProvisioningTimeout,
            not_reachable(facts),
        );
    }
    match facts.lacks_agent {
        true => agent_brought(facts, deadline),
        false => {
            let instance = facts.name.clone();
            Decision::Wait(Wait::until(deadline, WaitReason::AgentReachable { instance }))
        }
    }
}

fn not_reachable(facts: &Facts) -> String {
    let cause = match &facts.prepare {
        Progress::Intended(Some(error)) if facts.lacks_agent => format!(": {error}"),
        _ => String::new(),
    };
    format!("Instance did not become reachable in time{cause}")
}

/// The machine starts, lets us in after a while, and gets its agent.
fn agent_brought(facts: &Facts, deadline: Time) -> Decision {
    let wait = |error: Option<String>| {
        let instance = facts.name.clone();
        Wait::until(deadline, WaitReason::HostSetUp { instance, error })
    };
    match &facts.prepare {
        Progress::None => Decision::IntendPreparation(wait(None)),
        Progress::Done => Decision::Prepared,
        Progress::Refused(error) => Decision::End(InstanceTerminationReason::Error, error.clone()),
        Progress::Intended(error) => Decision::Wait(wait(error.clone())),
    }
}

fn in_use(facts: &Facts, now: Time) -> Decision {
    if facts.create == Progress::None {
        return Decision::Stay;
    }
    let idle = match idle(facts, now) {
        Decision::End(reason, message) => return Decision::End(reason, message),
        Decision::Wait(wait) => wait,
        _ => Wait::none(),
    };
    let Some(until) = facts.unreachable_until else {
        return Decision::Wait(idle);
    };
    if now >= until {
        return Decision::End(InstanceTerminationReason::Unreachable, String::new());
    }
    let reason = WaitReason::AgentReachableAgain {
        instance: facts.name.clone(),
        error: facts.unreachable_because.clone(),
    };
    Decision::Wait(Wait {
        deadline: Some(until),
        reason: Some(reason),
        ..idle.or_at(until)
    })
}

fn idle(facts: &Facts, now: Time) -> Decision {
    if facts.jobs > 0 {
        return Decision::Stay;
    }
    if facts.fleet_ends {
        return fleet_ends();
    }
    if facts.one_job {
        return Decision::End(InstanceTerminationReason::JobFinished, String::new());
    }
    let Some(limit) = facts.idle_for else {
        return Decision::Stay;
    };
    let until = facts.idle_since + limit;
    if now >= until {
        let idle = now.since(facts.idle_since).as_secs();
        return Decision::End(
            InstanceTerminationReason::IdleTimeout,
            format!("Instance idle for {idle}s"),
        );
    }
    Decision::Wait(Wait::until(until, WaitReason::JobBeforeIdleTimeout))
}

fn terminating(facts: &Facts) -> Decision {
    match &facts.create {
        Progress::None | Progress::Refused(_) => return Decision::Gone,
        Progress::Intended(error) => {
            return Decision::Wait(Wait::indefinite(WaitReason::CreationKnown {
                name: facts.name.clone(),
                error: error.clone(),
            }));
        }
        Progress::Done => {}
    }
    let wait = |error: Option<&String>| {
        Wait::indefinite(WaitReason::Termination {
            name: facts.name.clone(),
            error: error.cloned(),
        })
    };
    match &facts.terminate {
        Progress::None => Decision::IntendTermination(wait(None)),
        Progress::Done => Decision::Gone,
        // Never given up: what the cloud did not confirm may still cost money.
        Progress::Intended(error) => Decision::Wait(wait(error.as_ref())),
        Progress::Refused(error) => Decision::Wait(wait(Some(error))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: i64) -> Time {
        Time::from_millis(seconds * 1000)
    }

    fn facts(status: InstanceStatus, create: Progress) -> Facts {
        Facts {
            name: "cloud-0".to_owned(),
            status,
            purpose: Purpose::Job,
            fleet_ends: false,
            create,
            terminate: Progress::None,
            prepare: Progress::None,
            prepared_step_at: None,
            prepare_again_at: None,
            prepared_anew: false,
            trouble: None,
            release: Progress::None,
            stored: Wait::none(),
            has_agent: false,
            lacks_agent: false,
            jobs: 1,
            in_reach: false,
            asked_at: at(0),
            started_at: Some(at(10)),
            timeout: Duration::from_secs(600),
            one_job: false,
            idle_since: at(100),
            idle_for: Some(Duration::from_secs(300)),
            unreachable_until: None,
            unreachable_because: None,
            sign: None,
        }
    }

    fn ends(decision: &Decision) -> Option<InstanceTerminationReason> {
        match decision {
            Decision::End(reason, _) => Some(*reason),
            _ => None,
        }
    }

    #[test]
    fn what_came_of_the_request_is_followed() {
        let pending = |create| decide(&facts(InstanceStatus::Pending, create), at(1));
        assert_eq!(pending(Progress::None), Decision::Stay);
        assert_eq!(pending(Progress::Done), Decision::Made);
        let refused = pending(Progress::Refused("all failed".to_owned()));
        assert_eq!(refused, Decision::NotMade("all failed".to_owned()));
        let Decision::Wait(wait) = pending(Progress::Intended(Some("503".to_owned()))) else {
            panic!("it waits");
        };
        assert_eq!(
            wait.reason.unwrap().to_string(),
            "the cloud to make cloud-0 (last attempt: 503)"
        );
        assert_eq!(wait.deadline, Some(at(1800)));
    }

    #[test]
    fn a_machine_without_an_agent_gets_one_within_its_time() {
        let refused_key = || Some("the key is refused".to_owned());
        let decide_at = |prepare, seconds| {
            let facts = Facts {
                lacks_agent: true,
                prepare,
                ..facts(InstanceStatus::Provisioning, Progress::Done)
            };
            decide(&facts, at(seconds))
        };
        let Decision::IntendPreparation(wait) = decide_at(Progress::None, 20) else {
            panic!("it is set up");
        };
        assert_eq!(wait.deadline, Some(at(610)));
        let Decision::Wait(wait) = decide_at(Progress::Intended(refused_key()), 20) else {
            panic!("it is waited for");
        };
        assert_eq!(
            wait.reason.unwrap().to_string(),
            "the host of cloud-0 to be set up (last attempt: the key is refused)"
        );
        let Decision::End(reason, message) = decide_at(Progress::Intended(refused_key()), 610) else {
            panic!("it ends");
        };
        assert_eq!(reason, InstanceTerminationReason::ProvisioningTimeout);
        assert_eq!(
            message,
            "Instance did not become reachable in time: the key is refused"
        );
        assert_eq!(decide_at(Progress::Done, 20), Decision::Prepared);
        let refused = decide_at(Progress::Refused("no agent for riscv64".to_owned()), 20);
        assert_eq!(ends(&refused), Some(InstanceTerminationReason::Error));
    }

    #[test]
    fn what_a_cloud_takes_away_ends_and_what_it_does_not_know_as_well_unless_it_answers() {
        let why = || "the price went up".to_owned();
        let ending = || CloudSign::Ending { at: None, why: why() };
        let decide_on = |status, sign: CloudSign, in_reach| {
            let facts = Facts {
                // Jobs have time where the cloud says it beforehand.
                jobs: usize::from(matches!(sign, CloudSign::Lost(_))),
                sign: Some(sign),
                in_reach,
                ..facts(status, Progress::Done)
            };
            ends(&decide(&facts, at(20)))
        };
        let taken = Some(InstanceTerminationReason::Unreachable);
        for status in [
            InstanceStatus::Provisioning,
            InstanceStatus::Idle,
            InstanceStatus::Busy,
        ] {
            assert_eq!(decide_on(status, ending(), true), taken);
            assert_eq!(decide_on(status, CloudSign::Lost(why()), false), taken);
            assert_eq!(decide_on(status, CloudSign::Lost(why()), true), None);
        }
        assert_eq!(decide_on(InstanceStatus::Pending, ending(), true), None);
    }

    #[test]
    fn jobs_have_until_the_cloud_takes_the_instance_away_and_never_for_long() {
        let busy = |at: Option<Time>, jobs, stored: Wait| Facts {
            sign: Some(CloudSign::Ending {
                at,
                why: "the price went up".to_owned(),
            }),
            in_reach: true,
            jobs,
            stored,
            ..facts(InstanceStatus::Busy, Progress::Done)
        };
        for (notice, until) in [(None, 80), (Some(at(140)), 140), (Some(at(90_000)), 320)] {
            let Decision::Wait(wait) = decide(&busy(notice, 1, Wait::none()), at(20)) else {
                panic!("its jobs may end");
            };
            assert_eq!((wait.deadline, wait.wake_at), (Some(at(until)), Some(at(until))));
            // The time does not begin anew at each look.
            let later = busy(notice, 1, wait.clone());
            assert_eq!(decide(&later, at(until - 1)), Decision::Wait(wait.clone()));
            let taken = Some(InstanceTerminationReason::Unreachable);
            assert_eq!(ends(&decide(&later, at(until))), taken);
            assert_eq!(ends(&decide(&busy(notice, 0, wait), at(30))), taken);
        }
    }

    #[test]
    fn an_agent_that_answers_nothing_is_started_again_after_it_was_asked_with_patience() {
        let mute = Facts {
            trouble: Some(AgentTrouble::Mute(at(1000))),
            ..host(InstanceStatus::Busy, Progress::Done)
        };
        assert!(MUTE_TIMEOUT > MUTE_PATIENCE * 2);
        let Decision::Wait(wait) = decide(&mute, at(1149)) else {
            panic!("it waits");
        };
        assert_eq!(wait.wake_at, Some(at(1150)));
        let again = decide(&mute, at(1150));
        assert!(
            matches!(again, Decision::PrepareAgain(Repair::Mute, _)),
            "{again:?}"
        );
    }

    #[test]
    fn nothing_is_made_for_a_job_that_has_ended() {
        let gone = |status, create| {
            let facts = Facts {
                jobs: 0,
                ..facts(status, create)
            };
            ends(&decide(&facts, at(20)))
        };
        let finished = Some(InstanceTerminationReason::JobFinished);
        assert_eq!(gone(InstanceStatus::Pending, Progress::Intended(None)), finished);
        assert_eq!(gone(InstanceStatus::Provisioning, Progress::Done), finished);
    }

    #[test]
    fn what_a_fleet_wants_is_made_without_a_job() {
        let of_fleet = |status, create| Facts {
            purpose: Purpose::Fleet,
            jobs: 0,
            ..facts(status, create)
        };
        let pending = |create| decide(&of_fleet(InstanceStatus::Pending, create), at(1));
        assert_eq!(pending(Progress::None), Decision::BringUp);
        assert!(matches!(pending(Progress::Intended(None)), Decision::Wait(_)));
        let made = of_fleet(InstanceStatus::Provisioning, Progress::Done);
        assert!(matches!(decide(&made, at(20)), Decision::Wait(_)));
        let answers = Facts {
            in_reach: true,
            ..made
        };
        assert_eq!(decide(&answers, at(20)), Decision::Ready(InstanceStatus::Idle));
    }

    #[test]
    fn all_that_no_job_has_ends_with_its_fleet() {
        let by_user = Some(InstanceTerminationReason::TerminatedByUser);
        for purpose in [Purpose::Job, Purpose::Fleet] {
            let of_fleet = |status, create, jobs| {
                let facts = Facts {
                    purpose,
                    jobs,
                    fleet_ends: true,
                    ..facts(status, create)
                };
                decide(&facts, at(20))
            };
            for (status, create) in [
                (InstanceStatus::Pending, Progress::None),
                (InstanceStatus::Pending, Progress::Intended(None)),
                (InstanceStatus::Provisioning, Progress::Done),
                (InstanceStatus::Idle, Progress::Done),
            ] {
                assert_eq!(
                    ends(&of_fleet(status, create.clone(), 0)),
                    by_user,
                    "{status:?} {create:?}"
                );
            }
            // What was made is taken note of first: then it can be ended.
            assert_eq!(
                of_fleet(InstanceStatus::Pending, Progress::Done, 0),
                Decision::Made
            );
            assert_eq!(ends(&of_fleet(InstanceStatus::Busy, Progress::Done, 1)), None);
        }
    }

    #[test]
    fn a_machine_that_is_out_of_reach_for_too_long_ends() {
        for (status, jobs) in [(InstanceStatus::Idle, 0), (InstanceStatus::Busy, 1)] {
            let lost = Facts {
                jobs,
                unreachable_until: Some(at(5000)),
                idle_for: Some(Duration::from_secs(9000)),
                ..facts(status, Progress::Done)
            };
            let Decision::Wait(wait) = decide(&lost, at(4999)) else {
                panic!("it waits");
            };
            assert_eq!((wait.deadline, wait.wake_at), (Some(at(5000)), Some(at(5000))));
            assert_eq!(
                wait.reason.unwrap().to_string(),
                "the agent of cloud-0 to be reachable again"
            );
            let ended = decide(&lost, at(5000));
            assert_eq!(ends(&ended), Some(InstanceTerminationReason::Unreachable));
        }
    }

    #[test]
    fn an_agent_that_never_answers_ends_the_instance() {
        let made = facts(InstanceStatus::Provisioning, Progress::Done);
        assert!(matches!(decide(&made, at(609)), Decision::Wait(_)));
        let late = decide(&made, at(610));
        assert_eq!(ends(&late), Some(InstanceTerminationReason::ProvisioningTimeout));
        let answers = Facts {
            in_reach: true,
            ..made
        };
        assert_eq!(decide(&answers, at(700)), Decision::Ready(InstanceStatus::Busy));
    }

    #[test]
    fn idle_instances_end_unless_they_are_not_ours_or_wanted() {
        let idle = Facts {
            jobs: 0,
            ..facts(InstanceStatus::Idle, Progress::Done)
        };
        assert!(matches!(decide(&idle, at(399)), Decision::Wait(_)));
        let text = "Instance idle for 300s".to_owned();
        let timeout = Decision::End(InstanceTerminationReason::IdleTimeout, text);
        assert_eq!(decide(&idle, at(400)), timeout);
        let kept = Facts {
            idle_for: None,
            ..idle.clone()
        };
        assert_eq!(decide(&kept, at(9999)), Decision::Wait(Wait::none()));
        let not_ours = Facts {
            create: Progress::None,
            ..idle.clone()
        };
        assert_eq!(decide(&not_ours, at(9999)), Decision::Stay);
        let container = Facts {
            one_job: true,
            ..idle
        };
        let finished = Some(InstanceTerminationReason::JobFinished);
        assert_eq!(ends(&decide(&container, at(101))), finished);
    }

    #[test]
    fn an_end_is_confirmed_by_the_cloud_or_there_was_nothing() {
        let ending = |create, terminate| {
            let facts = Facts {
                terminate,
                ..facts(InstanceStatus::Terminating, create)
            };
            decide(&facts, at(1_000_000))
        };
        let refused = || Progress::Refused(String::new());
        assert_eq!(ending(refused(), Progress::None), Decision::Gone);
        // Nobody knows yet whether there is something to end.
        assert!(matches!(
            ending(Progress::Intended(None), Progress::None),
            Decision::Wait(_)
        ));
        assert!(matches!(
            ending(Progress::Done, Progress::None),
            Decision::IntendTermination(_)
        ));
        assert!(matches!(
            ending(Progress::Done, Progress::Intended(None)),
            Decision::Wait(_)
        ));
        assert!(matches!(ending(Progress::Done, refused()), Decision::Wait(_)));
        assert_eq!(ending(Progress::Done, Progress::Done), Decision::Gone);
    }

    fn host(status: InstanceStatus, prepare: Progress) -> Facts {
        Facts {
            purpose: Purpose::Host,
            prepare,
            ..facts(status, Progress::None)
        }
    }

    fn text(decision: &Decision) -> String {
        match decision {
            Decision::Wait(wait) | Decision::PrepareAgain(_, wait) => {
                wait.reason.as_ref().map(ToString::to_string).unwrap_or_default()
            }
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_host_whose_agent_is_silent_is_set_up_again_after_a_moment() {
        for status in [InstanceStatus::Idle, InstanceStatus::Busy] {
            let well = host(status, Progress::Done);
            assert_eq!(decide(&well, at(1000)), Decision::Stay);
            let silent = Facts {
                trouble: Some(AgentTrouble::Silent(at(1000))),
                ..well
            };
            let Decision::Wait(wait) = decide(&silent, at(1009)) else {
                panic!("it waits");
            };
            assert_eq!(wait.wake_at, Some(at(1010)));
            let again = decide(&silent, at(1010));
            assert!(
                matches!(again, Decision::PrepareAgain(Repair::Silent, _)),
                "{again:?}"
            );
            assert_eq!(text(&again), "the host of cloud-0 to be set up again");
            // Not at once after the last time.
            let soon = Facts {
                prepare_again_at: Some(at(1060)),
                ..silent.clone()
            };
            assert!(matches!(decide(&soon, at(1059)), Decision::Wait(_)));
            assert!(matches!(decide(&soon, at(1060)), Decision::PrepareAgain(..)));
            let refused = Facts {
                prepare: Progress::Refused("no such key".to_owned()),
                ..soon
            };
            assert_eq!(
                text(&decide(&refused, at(1059))),
                "the host of cloud-0 to be set up again (last attempt: no such key)"
            );
            let under_way = Facts {
                prepare: Progress::Intended(Some("no sudo".to_owned())),
                ..silent
            };
            assert_eq!(
                text(&decide(&under_way, at(9000))),
                "the host of cloud-0 to be set up again (last attempt: no sudo)"
            );
        }
    }

    #[test]
    fn an_agent_of_another_build_is_replaced_and_what_came_of_it_taken_over() {
        let other = Facts {
            trouble: Some(AgentTrouble::OtherBuild),
            ..host(InstanceStatus::Busy, Progress::Done)
        };
        assert!(matches!(
            decide(&other, at(1000)),
            Decision::PrepareAgain(Repair::OtherBuild, _)
        ));
        let anew = Facts {
            prepared_anew: true,
            ..other
        };
        assert_eq!(decide(&anew, at(1000)), Decision::PreparedAgain);
    }

    #[test]
    fn a_host_that_gets_on_has_more_time_but_not_for_ever() {
        let since = |step: Option<i64>, now: i64| {
            let facts = Facts {
                prepared_step_at: step.map(at),
                ..host(InstanceStatus::Pending, Progress::Intended(None))
            };
            ends(&decide(&facts, at(now))).is_some()
        };
        assert!(!since(None, 599) && since(None, 600));
        assert!(!since(Some(10), 599) && since(Some(10), 600));
        assert!(!since(Some(590), 889) && since(Some(590), 890));
        assert!(!since(Some(7199), 7199) && since(Some(7199), 7200));
    }

    #[test]
    fn a_host_ends_in_bounded_time_whatever_hangs() {
        let ending = |prepare: Progress, stored: Wait, release: Progress| Facts {
            stored,
            release,
            has_agent: true,
            ..host(InstanceStatus::Terminating, prepare)
        };
        let hangs = || Progress::Intended(None);
        let first = ending(
            hangs(),
            Wait::briefly(at(0), WaitReason::InstanceEnded),
            Progress::None,
        );
        let Decision::Wait(wait) = decide(&first, at(100)) else {
            panic!("it waits");
        };
        assert_eq!((wait.deadline, wait.wake_at), (Some(at(250)), Some(at(250))));
        let later = ending(hangs(), wait, Progress::None);
        assert!(matches!(decide(&later, at(249)), Decision::Wait(_)));
        assert_eq!(decide(&later, at(250)), Decision::GiveUpPreparation);
        let given_up = ending(
            Progress::Refused(String::new()),
            later.stored.clone(),
            Progress::None,
        );
        let Decision::IntendRelease(wait) = decide(&given_up, at(251)) else {
            panic!("it is released");
        };
        assert_eq!(wait.deadline, Some(at(491)));
        let released = ending(Progress::Refused(String::new()), wait, hangs());
        assert!(matches!(decide(&released, at(490)), Decision::Wait(_)));
        assert!(matches!(decide(&released, at(491)), Decision::LeftBehind(_)));
    }

    #[test]
    fn pauses_between_preparations_grow_up_to_a_limit() {
        let pause = |calls| next_preparation_at(at(0), calls).since(at(0)).as_secs();
        assert_eq!([4, 8, 40, 60, i64::MAX].map(pause), [60, 120, 600, 900, 900]);
        assert_eq!(pause(-1), 60);
    }
}
