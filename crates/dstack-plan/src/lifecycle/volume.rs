//! A network volume, from the request to its end (dstack 0.22.5: pipelines §11).

use std::time::Duration;

use dstack_model::volumes::VolumeStatus;
use dstack_units::Time;

use super::job::Progress;
use super::{Wait, WaitReason};

/// All that is known of a volume.
#[derive(Debug, Clone)]
pub struct Facts {
    /// Its name, for reasons.
    pub name: String,
    /// Status of the volume before the decision.
    pub status: VolumeStatus,
    /// It was there before, and stays when it is deleted here.
    pub is_external: bool,
    /// Its deletion was asked for.
    pub to_be_deleted: bool,
    /// How far its creation (or, of an external one, its registration) is.
    pub create: Progress,
    /// How far its removal from the cloud is.
    pub remove: Progress,
    /// What the cloud made of it is known.
    pub is_made: bool,
    /// Whether instances have it, for jobs.
    pub is_attached: bool,
    /// What its creation has brought can be read by this version.
    pub is_readable: bool,
    /// Since when no job has used it.
    pub idle_since: Time,
    /// How long it may be unused; `None`: for ever.
    pub idle_for: Option<Duration>,
}

/// What to do next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Decision {
    /// Nothing but wait.
    Wait(Wait),
    /// Have the cloud make it, and wait for that.
    IntendCreation(Wait),
    /// The cloud has made it.
    Made,
    /// The cloud refuses to make it, and has not.
    NotMade(String),
    /// Ask for its deletion: it has not been used for too long.
    DeleteUnused,
    /// Have the cloud delete it, and wait for that.
    IntendRemoval(Wait),
    /// Nothing of it is left.
    Gone,
}

/// Decides about a volume.
pub fn decide(facts: &Facts, now: Time) -> Decision {
    match (&facts.create, facts.status) {
        // A call is under way: whatever is asked for meanwhile has to wait until it is known what came of it.
        (Progress::Intended(error), _) => Decision::Wait(creation(facts, error.as_ref())),
        // To be deleted it need not be read.
        (Progress::Done, VolumeStatus::Submitted) if facts.to_be_deleted && !facts.is_readable => {
            delete(facts)
        }
        (Progress::Done, VolumeStatus::Submitted) => Decision::Made,
        (Progress::Refused(error), VolumeStatus::Submitted) => Decision::NotMade(error.clone()),
        _ if facts.to_be_deleted => delete(facts),
        (Progress::None, VolumeStatus::Submitted) => Decision::IntendCreation(creation(facts, None)),
        (_, VolumeStatus::Active) => in_use(facts, now),
        _ => Decision::Wait(Wait::none()),
    }
}

fn creation(facts: &Facts, error: Option<&String>) -> Wait {
    let (name, error) = (facts.name.clone(), error.cloned());
    Wait::indefinite(match facts.to_be_deleted {
        false => WaitReason::Creation { name, error },
        true => WaitReason::CreationKnown { name, error },
    })
}

fn delete(facts: &Facts) -> Decision {
    let may_be_there = facts.is_made || facts.create == Progress::Done;
    if !may_be_there || facts.is_external {
        return Decision::Gone;
    }
    if facts.is_attached {
        let volume = facts.name.clone();
        return Decision::Wait(Wait::indefinite(WaitReason::VolumeUnused { volume }));
    }
    let wait = |error: Option<&String>| {
        Wait::indefinite(WaitReason::Termination {
            name: facts.name.clone(),
            error: error.cloned(),
        })
    };
    match &facts.remove {
        Progress::None => Decision::IntendRemoval(wait(None)),
        Progress::Done => Decision::Gone,
        // Never given up: what the cloud did not confirm may still cost money.
        Progress::Intended(error) => Decision::Wait(wait(error.as_ref())),
        Progress::Refused(error) => Decision::Wait(wait(Some(error))),
    }
}

fn in_use(facts: &Facts, now: Time) -> Decision {
    let Some(limit) = facts.idle_for.filter(|_| !facts.is_attached) else {
        return Decision::Wait(Wait::none());
    };
    let until = facts.idle_since + limit;
    if now < until {
        return Decision::Wait(Wait::until(until, WaitReason::JobBeforeCleanup));
    }
    Decision::DeleteUnused
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: i64) -> Time {
        Time::from_millis(seconds * 1000)
    }

    fn facts() -> Facts {
        Facts {
            name: "data".to_owned(),
            status: VolumeStatus::Submitted,
            is_external: false,
            to_be_deleted: false,
            create: Progress::None,
            remove: Progress::None,
            is_made: false,
            is_attached: false,
            is_readable: true,
            idle_since: at(0),
            idle_for: None,
        }
    }

    #[test]
    fn a_volume_that_is_deleted_while_it_is_made_waits_until_that_is_known() {
        let deleted = Facts {
            to_be_deleted: true,
            ..facts()
        };
        assert_eq!(decide(&deleted, at(1)), Decision::Gone, "nothing was asked for");
        let under_way = Facts {
            create: Progress::Intended(None),
            ..deleted.clone()
        };
        let Decision::Wait(wait) = decide(&under_way, at(1)) else {
            panic!("it may exist, and is not forgotten");
        };
        assert!(matches!(wait.reason, Some(WaitReason::CreationKnown { .. })));
        let made = Facts {
            create: Progress::Done,
            ..deleted.clone()
        };
        assert_eq!(decide(&made, at(1)), Decision::Made);
        let active = Facts {
            status: VolumeStatus::Active,
            is_made: true,
            ..made
        };
        assert!(matches!(decide(&active, at(1)), Decision::IntendRemoval(_)));
        let refused = Facts {
            status: VolumeStatus::Failed,
            create: Progress::Refused("no quota".to_owned()),
            ..deleted
        };
        assert_eq!(decide(&refused, at(1)), Decision::Gone);
    }

    #[test]
    fn a_volume_that_cannot_be_read_is_deleted_all_the_same_and_not_forgotten() {
        let unreadable = Facts {
            create: Progress::Done,
            is_readable: false,
            ..facts()
        };
        assert_eq!(decide(&unreadable, at(1)), Decision::Made, "it is waited for");
        let deleted = |remove| {
            let facts = Facts {
                to_be_deleted: true,
                remove,
                ..unreadable.clone()
            };
            decide(&facts, at(1))
        };
        assert!(matches!(deleted(Progress::None), Decision::IntendRemoval(_)));
        assert!(matches!(deleted(Progress::Intended(None)), Decision::Wait(_)));
        assert_eq!(deleted(Progress::Done), Decision::Gone);
    }

    #[test]
    fn a_removal_is_never_given_up_and_external_volumes_are_left_alone() {
        let active = Facts {
            status: VolumeStatus::Active,
            create: Progress::Done,
            is_made: true,
            to_be_deleted: true,
            ..facts()
        };
        let removed = |remove| {
            let facts = Facts {
                remove,
                ..active.clone()
            };
            decide(&facts, at(1))
        };
        assert!(matches!(
            removed(Progress::Refused("503".to_owned())),
            Decision::Wait(_)
        ));
        assert!(matches!(removed(Progress::Intended(None)), Decision::Wait(_)));
        assert_eq!(removed(Progress::Done), Decision::Gone);
        let used = Facts {
            is_attached: true,
            ..active.clone()
        };
        let Decision::Wait(wait) = decide(&used, at(1)) else {
            panic!("jobs still use it");
        };
        assert_eq!(
            wait.reason.unwrap().to_string(),
            "the jobs that use volume data to end"
        );
        let external = Facts {
            is_external: true,
            ..active.clone()
        };
        assert_eq!(decide(&external, at(1)), Decision::Gone);
    }

    #[test]
    fn an_unused_volume_is_deleted_after_its_time() {
        let active = Facts {
            status: VolumeStatus::Active,
            create: Progress::Done,
            is_made: true,
            idle_since: at(100),
            idle_for: Some(Duration::from_secs(60)),
            ..facts()
        };
        assert_eq!(
            decide(&active, at(159)),
            Decision::Wait(Wait::until(at(160), WaitReason::JobBeforeCleanup))
        );
        assert_eq!(decide(&active, at(160)), Decision::DeleteUnused);
        let used = Facts {
            is_attached: true,
            ..active.clone()
        };
        assert_eq!(decide(&used, at(9_999)), Decision::Wait(Wait::none()));
        let kept = Facts {
            idle_for: None,
            ..active
        };
        assert_eq!(decide(&kept, at(9_999)), Decision::Wait(Wait::none()));
    }
}
