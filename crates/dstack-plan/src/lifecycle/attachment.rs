//! A volume on its way to an instance, there, and back (dstack 0.22.5: pipelines §5.3 and §7).
//!
//! An attachment is made for one job, when that gets its place, or when an instance is asked for on its behalf. A volume is with
//! one instance at a time: the next attachment begins when the cloud has confirmed that the one before is gone.

use std::time::Duration;

use dstack_units::Time;
use serde::{Deserialize, Serialize};

use super::job::Progress;
use super::{Wait, WaitReason};

/// How long the cloud may take to attach a volume, from when it is asked to.
const ATTACH_TIMEOUT: Duration = Duration::from_secs(10 * 60);

/// After how long a volume is taken from an instance that does not let go of it, at the earliest (dstack 0.22.5).
const FORCE_DETACH_AFTER: Duration = Duration::from_secs(60);

/// How long a job stays for its volumes to be detached, and how long the next one waits for them from when the job began to end. They
/// are detached all the same afterwards, and nobody gets them before.
pub const DETACH_TIMEOUT: Duration = Duration::from_secs(10 * 60);

/// How long a cloud may take to take a volume from a machine by force.
const FORCED_WITHIN: Duration = Duration::from_secs(2 * 60);

/// What is said of an attached volume whose device nobody knows.
const UNREADABLE: &str = "what the cloud said is stored in a form that this version cannot read";

/// How far an attachment is. One that is gone has no row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum AttachmentStatus {
    /// The volume is to come to the instance.
    Attaching,
    /// The instance has it.
    Attached,
    /// The instance is to be without it.
    Detaching,
    /// The volume could not be attached, and the instance does not have it. The job that wanted it takes note, and ends.
    Failed,
}

/// All that is known of an attachment.
#[derive(Debug, Clone)]
pub struct Facts {
    /// Name of the volume, for reasons.
    pub volume: String,
    /// Name of the instance, for reasons.
    pub instance: String,
    /// How far it is by its row.
    pub status: AttachmentStatus,
    /// The instance was made with the volume, and has it as long as it exists: there are no calls.
    pub handed_over: bool,
    /// Its job is not over.
    pub has_job: bool,
    /// How far the call that attaches it is.
    pub attach: Progress,
    /// What the cloud said when it had attached it is stored in a form that this version can read.
    pub readable: bool,
    /// How far the call that detaches it is.
    pub detach: Progress,
    /// What it waits for by its row: the deadline of that goes on when what is waited for changes.
    pub stored: Wait,
    /// How far the instance is, as far as its volumes are concerned.
    pub machine: Machine,
    /// When the present wait of the instance ends badly.
    pub machine_deadline: Option<Time>,
    /// Another instance that has the volume, or may have it: it is waited for.
    pub holder: Option<Holder>,
    /// Why the volume cannot be attached to anything any more.
    pub unusable: Option<String>,
}

/// How an instance is, as far as its volumes are concerned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Machine {
    /// Its agent has not answered yet.
    Starting,
    /// It can be used.
    Ready,
    /// It is being ended.
    Ending,
    /// Nothing of it is left.
    Over,
}

/// Another instance that has a volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Holder {
    /// Its name.
    pub instance: String,
    /// The job that uses the volume there; `None`: that ends, and so does the attachment.
    pub job: Option<String>,
    /// Since when the volume is on its way back; `None`: it is not, or nobody knows.
    pub leaving_since: Option<Time>,
    /// From when on it is taken by force; `None`: never, or nobody knows yet.
    pub forced_from: Option<Time>,
}

/// Until when others wait for a volume that is on its way back since then: longer, where it is about to be taken by force.
pub fn awaited_until(since: Time, forced_from: Option<Time>) -> Time {
    let usual = since + DETACH_TIMEOUT;
    let forced = forced_from.map(|from| from + FORCED_WITHIN);
    forced
        .filter(|forced| *forced <= usual + DETACH_TIMEOUT)
        .map_or(usual, |forced| forced.max(usual))
}

/// What to do next with an attachment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Decision {
    /// Nothing but wait for this; it is decided again at `wake_at`, or when somebody wakes it.
    Wait(Wait),
    /// Have the cloud attach the volume, unless another instance has got it meanwhile, and wait for that.
    IntendAttach(Wait),
    /// The cloud has attached it.
    Attached,
    /// It is not attached, for this reason, and nothing is left of the attempt.
    Failed(String),
    /// It takes too long, for this reason: what has come of it is undone.
    GiveUp(String),
    /// The job has ended without giving it back: the instance is to be without it.
    Leave,
    /// Have the cloud detach it, and wait for that.
    IntendDetach(Wait),
    /// The instance does not have it any more.
    Gone,
}

/// Decides what is next for an attachment. Nothing is decided while a call to the cloud is under way but to give it up.
pub fn decide(facts: &Facts, now: Time) -> Decision {
    match facts.status {
        AttachmentStatus::Attaching | AttachmentStatus::Attached if !facts.has_job => Decision::Leave,
        AttachmentStatus::Attaching => attaching(facts, now),
        AttachmentStatus::Attached | AttachmentStatus::Detaching if facts.handed_over => handed_over(facts),
        AttachmentStatus::Attached | AttachmentStatus::Failed => Decision::Wait(Wait::none()),
        AttachmentStatus::Detaching => detaching(facts),
    }
}

fn attaching(facts: &Facts, now: Time) -> Decision {
    match &facts.attach {
        Progress::Done if facts.readable => return Decision::Attached,
        // A later version may take over in time.
        Progress::Done => return under_way(facts, Some(&UNREADABLE.to_owned()), now),
        Progress::Refused(error) => return Decision::Failed(error.clone()),
        Progress::Intended(error) => return under_way(facts, error.as_ref(), now),
        Progress::None => {}
    }
    if let Some(why) = &facts.unusable {
        return Decision::Failed(why.clone());
    }
    match facts.machine {
        Machine::Ready => {}
        // It wakes those that wait for it, and has a deadline of its own.
        Machine::Starting => {
            let instance = facts.instance.clone();
            let mut wait = Wait::indefinite(WaitReason::AgentReachable { instance });
            if let Some(deadline) = facts.machine_deadline.filter(|deadline| *deadline > now) {
                wait = wait.or_at(deadline);
            }
            return Decision::Wait(wait);
        }
        Machine::Ending | Machine::Over => {
            return Decision::Failed(format!("{} is being terminated", facts.instance));
        }
    }
    match &facts.holder {
        None => Decision::IntendAttach(attach_wait(facts, None, now)),
        Some(Holder {
            instance,
            job: Some(job),
            ..
        }) => Decision::Failed(format!("it is attached to {instance}, where {job} uses it")),
        Some(holder) => wait_for(holder, facts, now),
    }
}

/// The job that has the volume ends: it is waited for as long as that may take. Whoever has it wakes the others when it is free.
fn wait_for(holder: &Holder, facts: &Facts, now: Time) -> Decision {
    let reason = WaitReason::VolumeFree {
        volume: facts.volume.clone(),
        instance: holder.instance.clone(),
    };
    let stored = facts.stored.deadline;
    let is_awaited = facts.stored.reason.as_ref() == Some(&reason);
    let deadline = match holder.leaving_since {
        Some(since) => awaited_until(since, holder.forced_from),
        None => stored.filter(|_| is_awaited).unwrap_or(now + DETACH_TIMEOUT),
    };
    if now >= deadline {
        let waited = holder
            .leaving_since
            .map_or(DETACH_TIMEOUT, |since| deadline.since(since));
        let minutes = waited.as_secs() / 60;
        let instance = &holder.instance;
        return Decision::Failed(format!(
            "{instance} did not let go of it within {minutes} minutes"
        ));
    }
    Decision::Wait(Wait::until(deadline, reason))
}

/// A call is under way: only the cloud ends that, or too long a time.
fn under_way(facts: &Facts, error: Option<&String>, now: Time) -> Decision {
    let wait = attach_wait(facts, error, now);
    if wait.deadline.is_some_and(|deadline| now >= deadline) {
        let said = error.map(|error| format!(": {error}")).unwrap_or_default();
        let minutes = ATTACH_TIMEOUT.as_secs() / 60;
        return Decision::GiveUp(format!("not attached within {minutes} minutes{said}"));
    }
    Decision::Wait(wait)
}

fn attach_wait(facts: &Facts, error: Option<&String>, now: Time) -> Wait {
    let reason = WaitReason::VolumeAttached {
        volume: facts.volume.clone(),
        instance: facts.instance.clone(),
        error: error.cloned(),
    };
    Wait::until(deadline(facts, now), reason)
}

/// The time counts from when the cloud was asked.
fn deadline(facts: &Facts, now: Time) -> Time {
    let is_asked = matches!(facts.stored.reason, Some(WaitReason::VolumeAttached { .. }));
    let stored = facts.stored.deadline.filter(|_| is_asked);
    stored.unwrap_or(now + ATTACH_TIMEOUT)
}

fn handed_over(facts: &Facts) -> Decision {
    if facts.machine == Machine::Over {
        return Decision::Gone;
    }
    if facts.status == AttachmentStatus::Attached {
        return Decision::Wait(Wait::none());
    }
    let reason = WaitReason::VolumeReleased {
        volume: facts.volume.clone(),
        instance: facts.instance.clone(),
    };
    // It is woken when the instance is gone.
    Decision::Wait(Wait::indefinite(reason))
}

fn detaching(facts: &Facts) -> Decision {
    let wait = |error: Option<&String>| {
        Wait::indefinite(WaitReason::VolumeDetached {
            volume: facts.volume.clone(),
            instance: facts.instance.clone(),
            error: error.cloned(),
        })
    };
    match &facts.attach {
        // Whatever the cloud has made of it is undone by the same operation.
        Progress::Intended(error) => return Decision::Wait(wait(error.as_ref())),
        Progress::None | Progress::Refused(_) => return Decision::Gone,
        Progress::Done => {}
    }
    match &facts.detach {
        Progress::None => Decision::IntendDetach(wait(None)),
        Progress::Done => Decision::Gone,
        // Never given up: another instance must not get it before the cloud has confirmed.
        Progress::Intended(error) => Decision::Wait(wait(error.as_ref())),
        Progress::Refused(error) => Decision::Wait(wait(Some(error))),
    }
}

/// From when on a volume that is detached from `now` on is taken from an instance that does not let go of it; `None`: never. After the
/// `stop_duration` of its job in seconds (`None`: off), at least a minute; after a minute if the job was aborted.
pub fn forced_from(now: Time, stop_duration: Option<u64>, aborted: bool) -> Option<Time> {
    let patience = match (aborted, stop_duration) {
        (true, _) => Duration::ZERO,
        (false, Some(seconds)) => Duration::from_secs(seconds),
        (false, None) => return None,
    };
    Some(now + patience.max(FORCE_DETACH_AFTER))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: i64) -> Time {
        Time::from_millis(seconds * 1000)
    }

    fn facts(status: AttachmentStatus) -> Facts {
        Facts {
            volume: "data".to_owned(),
            instance: "cloud-0".to_owned(),
            status,
            handed_over: false,
            has_job: true,
            attach: Progress::None,
            readable: true,
            detach: Progress::None,
            stored: Wait::none(),
            machine: Machine::Ready,
            machine_deadline: None,
            holder: None,
            unusable: None,
        }
    }

    fn failure(decision: Decision) -> String {
        match decision {
            Decision::Failed(why) | Decision::GiveUp(why) => why,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_volume_comes_to_one_instance_after_the_other() {
        let first = facts(AttachmentStatus::Attaching);
        assert!(matches!(decide(&first, at(0)), Decision::IntendAttach(_)));
        let leaving = |job: Option<&str>, since| Facts {
            holder: Some(Holder {
                instance: "cloud-1".to_owned(),
                job: job.map(str::to_owned),
                leaving_since: since,
                forced_from: None,
            }),
            ..first.clone()
        };
        let held = |job| leaving(job, None);
        let used = failure(decide(&held(Some("train-0-0")), at(0)));
        assert_eq!(used, "it is attached to cloud-1, where train-0-0 uses it");
        let Decision::Wait(wait) = decide(&held(None), at(0)) else {
            panic!("it will be free soon");
        };
        assert_eq!((wait.deadline, wait.wake_at), (Some(at(600)), Some(at(600))));
        let late = Facts {
            stored: wait.clone(),
            ..held(None)
        };
        assert!(failure(decide(&late, at(600))).contains("did not let go"));
        // From when its job began to end, where that is known.
        let ending = Facts {
            stored: wait.clone(),
            ..leaving(None, Some(at(100)))
        };
        let Decision::Wait(Wait { deadline, .. }) = decide(&ending, at(650)) else {
            panic!("there is time left");
        };
        assert_eq!(deadline, Some(at(700)));
        assert!(failure(decide(&ending, at(700))).contains("did not let go"));
        // The cloud has its own time.
        let free = Facts {
            stored: wait,
            ..first.clone()
        };
        let Decision::IntendAttach(Wait { deadline, .. }) = decide(&free, at(590)) else {
            panic!("it is free");
        };
        assert_eq!(deadline, Some(at(1190)));
        let starting = Facts {
            machine: Machine::Starting,
            machine_deadline: Some(at(900)),
            ..first.clone()
        };
        let looks_at = |now| match decide(&starting, now) {
            Decision::Wait(Wait {
                deadline: None,
                wake_at,
                ..
            }) => wake_at,
            other => panic!("{other:?}"),
        };
        assert_eq!((looks_at(at(0)), looks_at(at(900))), (Some(at(900)), None));
        let ending = Facts {
            machine: Machine::Ending,
            ..first
        };
        assert!(matches!(decide(&ending, at(0)), Decision::Failed(_)));
    }

    #[test]
    fn a_volume_that_is_about_to_be_taken_by_force_is_waited_for() {
        let since = at(0);
        assert_eq!(awaited_until(since, None), at(600));
        assert_eq!(awaited_until(since, Some(at(300))), at(600));
        assert_eq!(awaited_until(since, Some(at(780))), at(900));
        // Nobody pays for a machine that waits for hours.
        assert_eq!(awaited_until(since, Some(at(3600))), at(600));
    }

    #[test]
    fn what_a_job_did_not_give_back_is_given_back_for_it() {
        for status in [AttachmentStatus::Attaching, AttachmentStatus::Attached] {
            let left = Facts {
                has_job: false,
                machine: Machine::Starting,
                ..facts(status)
            };
            assert_eq!(decide(&left, at(0)), Decision::Leave);
            let handed_over = Facts {
                handed_over: true,
                ..left
            };
            assert_eq!(decide(&handed_over, at(0)), Decision::Leave);
        }
        let failed = Facts {
            has_job: false,
            ..facts(AttachmentStatus::Failed)
        };
        assert_eq!(decide(&failed, at(0)), Decision::Wait(Wait::none()));
    }

    #[test]
    fn what_a_cloud_does_not_do_in_time_is_undone_and_nothing_is_forgotten() {
        let asked = Facts {
            attach: Progress::Intended(Some("503".to_owned())),
            ..facts(AttachmentStatus::Attaching)
        };
        let Decision::Wait(stored) = decide(&asked, at(0)) else {
            panic!("there is time left");
        };
        let asked = Facts { stored, ..asked };
        assert!(matches!(decide(&asked, at(599)), Decision::Wait(_)));
        assert_eq!(
            failure(decide(&asked, at(600))),
            "not attached within 10 minutes: 503"
        );
        let given_up = Facts {
            status: AttachmentStatus::Detaching,
            ..asked.clone()
        };
        assert!(matches!(decide(&given_up, at(700)), Decision::Wait(_)));
        let cleared = Facts {
            attach: Progress::Refused("undone".to_owned()),
            ..given_up.clone()
        };
        assert_eq!(decide(&cleared, at(700)), Decision::Gone);
        let made = Facts {
            attach: Progress::Done,
            ..given_up
        };
        assert!(matches!(decide(&made, at(700)), Decision::IntendDetach(_)));
        let refused = Facts {
            detach: Progress::Refused("no".to_owned()),
            ..made.clone()
        };
        assert!(
            matches!(decide(&refused, at(9_000)), Decision::Wait(_)),
            "never given up"
        );
        let detached = Facts {
            detach: Progress::Done,
            ..made
        };
        assert_eq!(decide(&detached, at(700)), Decision::Gone);
    }

    #[test]
    fn what_this_version_cannot_read_is_waited_for_as_long_as_a_call() {
        let attached = Facts {
            attach: Progress::Done,
            ..facts(AttachmentStatus::Attaching)
        };
        assert_eq!(decide(&attached, at(0)), Decision::Attached);
        let unreadable = Facts {
            readable: false,
            ..attached
        };
        let Decision::Wait(stored) = decide(&unreadable, at(0)) else {
            panic!("a later version may take over");
        };
        assert_eq!(stored.deadline, Some(at(600)));
        let late = Facts { stored, ..unreadable };
        let told = failure(decide(&late, at(600)));
        assert!(told.ends_with("that this version cannot read"), "{told}");
    }

    #[test]
    fn what_an_instance_was_made_with_it_has_until_its_end() {
        let handed = Facts {
            handed_over: true,
            ..facts(AttachmentStatus::Detaching)
        };
        assert!(matches!(
            decide(&handed, at(0)),
            Decision::Wait(Wait { reason: Some(_), .. })
        ));
        for status in [AttachmentStatus::Attached, AttachmentStatus::Detaching] {
            let over = Facts {
                status,
                machine: Machine::Over,
                ..handed.clone()
            };
            assert_eq!(decide(&over, at(0)), Decision::Gone);
        }
    }

    #[test]
    fn force_comes_after_a_minute_and_after_the_stop_duration() {
        assert_eq!(forced_from(at(0), Some(300), false), Some(at(300)));
        assert_eq!(forced_from(at(0), Some(5), false), Some(at(60)));
        assert_eq!(forced_from(at(0), None, false), None);
        assert_eq!(forced_from(at(0), None, true), Some(at(60)));
    }
}
