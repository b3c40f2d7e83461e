//! A placement group, from the request to its end (dstack 0.22.5: pipelines §10). It costs nothing, and stays as long as its fleet.

use std::time::Duration;

use dstack_units::Time;
use serde::{Deserialize, Serialize};

use super::job::Progress;
use super::{Wait, WaitReason};

/// Where a placement group is in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PlacementGroupStatus {
    /// Its cloud has yet to make it.
    Submitted,
    /// Machines may be made in it.
    Active,
    /// Its cloud refuses to make it, and nothing was made.
    Failed,
    /// Nobody wants it any more: its cloud is to delete it.
    Unused,
    /// Its cloud says that it is gone.
    Deleted,
}

impl PlacementGroupStatus {
    /// Machines are, or will be, made in it.
    pub const fn is_wanted(self) -> bool {
        matches!(self, Self::Submitted | Self::Active)
    }

    /// Nothing of it is left.
    pub const fn is_over(self) -> bool {
        matches!(self, Self::Failed | Self::Deleted)
    }
}

/// Machines that are still in a group that nobody wants are looked for so often.
const MACHINES_INTERVAL: Duration = Duration::from_secs(15);

/// All that is known of a placement group.
#[derive(Debug, Clone)]
pub struct Facts {
    /// Its name, for reasons.
    pub name: String,
    /// Status of the group before the decision.
    pub status: PlacementGroupStatus,
    /// Its fleet is over.
    pub is_fleet_over: bool,
    /// Instances of which something may be in it.
    pub machines: usize,
    /// How far its creation is.
    pub create: Progress,
    /// What its creation has brought can be read by this version.
    pub is_readable: bool,
    /// How far its removal is.
    pub remove: Progress,
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
    /// Nobody wants it any more.
    SetAside,
    /// Have the cloud delete it, and wait for that.
    IntendRemoval(Wait),
    /// Nothing of it is left.
    Gone,
}

/// Decides about a placement group.
pub fn decide(facts: &Facts, now: Time) -> Decision {
    use PlacementGroupStatus as Status;
    match (&facts.create, facts.status) {
        (_, Status::Failed | Status::Deleted) => Decision::Wait(Wait::none()),
        // A call is under way: whatever is wanted meanwhile has to wait until it is known what came of it.
        (Progress::Intended(error), _) => Decision::Wait(creation(facts, error.as_ref())),
        // To be deleted it need not be read.
        (Progress::Done, Status::Submitted) if facts.is_fleet_over && !facts.is_readable => {
            Decision::SetAside
        }
        (Progress::Done, Status::Submitted) => Decision::Made,
        (Progress::Refused(error), Status::Submitted) => Decision::NotMade(error.clone()),
        (_, Status::Submitted | Status::Active) if facts.is_fleet_over => Decision::SetAside,
        (_, Status::Submitted) => Decision::IntendCreation(creation(facts, None)),
        (_, Status::Active) => Decision::Wait(Wait::none()),
        (Progress::Done, Status::Unused) => delete(facts, now),
        (Progress::None | Progress::Refused(_), Status::Unused) => Decision::Gone,
    }
}

fn creation(facts: &Facts, error: Option<&String>) -> Wait {
    let (name, error) = (facts.name.clone(), error.cloned());
    Wait::indefinite(match facts.status.is_wanted() {
        true => WaitReason::Creation { name, error },
        false => WaitReason::CreationKnown { name, error },
    })
}

fn delete(facts: &Facts, now: Time) -> Decision {
    let reason = |error: Option<&String>| WaitReason::Termination {
        name: facts.name.clone(),
        error: error.cloned(),
    };
    match &facts.remove {
        Progress::None if facts.machines > 0 => {
            let reason = WaitReason::MachinesGone {
                name: facts.name.clone(),
                machines: facts.machines,
            };
            Decision::Wait(Wait {
                deadline: None,
                wake_at: Some(now + MACHINES_INTERVAL),
                reason: Some(reason),
            })
        }
        Progress::None => Decision::IntendRemoval(Wait::indefinite(reason(None))),
        Progress::Done => Decision::Gone,
        // Never given up: what the cloud did not confirm counts against the limits of the account.
        Progress::Intended(error) => Decision::Wait(Wait::indefinite(reason(error.as_ref()))),
        Progress::Refused(error) => Decision::Wait(Wait::indefinite(reason(Some(error)))),
    }
}

#[cfg(test)]
mod tests {
    use PlacementGroupStatus as Status;

    use super::*;

    const NOW: Time = Time::EPOCH;

    fn facts(status: Status, create: Progress) -> Facts {
        Facts {
            name: "cloud-1".to_owned(),
            status,
            is_fleet_over: false,
            machines: 0,
            create,
            is_readable: true,
            remove: Progress::None,
        }
    }

    #[test]
    fn a_group_is_made_and_stays_while_its_fleet_is_there() {
        let new = facts(Status::Submitted, Progress::None);
        assert!(matches!(decide(&new, NOW), Decision::IntendCreation(_)));
        assert_eq!(
            decide(&facts(Status::Submitted, Progress::Done), NOW),
            Decision::Made
        );
        let refused = facts(Status::Submitted, Progress::Refused("no".to_owned()));
        assert_eq!(decide(&refused, NOW), Decision::NotMade("no".to_owned()));
        let made = facts(Status::Active, Progress::Done);
        assert_eq!(decide(&made, NOW), Decision::Wait(Wait::none()));
        let orphaned = Facts {
            is_fleet_over: true,
            ..made
        };
        assert_eq!(decide(&orphaned, NOW), Decision::SetAside);
    }

    #[test]
    fn a_group_that_nobody_wants_is_deleted_after_its_last_machine() {
        let unused = facts(Status::Unused, Progress::Done);
        let with_machine = Facts {
            machines: 1,
            ..unused.clone()
        };
        let Decision::Wait(wait) = decide(&with_machine, NOW) else {
            panic!("it is deleted while a machine is in it");
        };
        assert_eq!(wait.wake_at, Some(NOW + MACHINES_INTERVAL));
        assert!(matches!(decide(&unused, NOW), Decision::IntendRemoval(_)));
        let removed = |remove| {
            let facts = Facts {
                remove,
                ..unused.clone()
            };
            decide(&facts, NOW)
        };
        assert_eq!(removed(Progress::Done), Decision::Gone);
        for remove in [
            Progress::Intended(Some("in use".to_owned())),
            Progress::Refused("in use".to_owned()),
        ] {
            let Decision::Wait(wait) = removed(remove) else {
                panic!("it is given up");
            };
            assert!(wait.reason.unwrap().to_string().contains("in use"));
        }
    }

    #[test]
    fn a_group_that_cannot_be_read_goes_with_its_fleet_all_the_same() {
        let unreadable = Facts {
            is_readable: false,
            ..facts(Status::Submitted, Progress::Done)
        };
        assert_eq!(decide(&unreadable, NOW), Decision::Made, "it is waited for");
        let orphaned = Facts {
            is_fleet_over: true,
            ..unreadable
        };
        assert_eq!(decide(&orphaned, NOW), Decision::SetAside);
        let unused = Facts {
            status: Status::Unused,
            ..orphaned
        };
        assert!(matches!(decide(&unused, NOW), Decision::IntendRemoval(_)));
    }

    /// Nobody knows then whether it is there.
    #[test]
    fn a_group_that_is_not_wanted_while_it_is_made_waits_until_that_is_known() {
        let unknown = facts(Status::Unused, Progress::Intended(None));
        assert!(matches!(decide(&unknown, NOW), Decision::Wait(_)));
        let cleared = facts(Status::Unused, Progress::Refused("not wanted".to_owned()));
        assert_eq!(decide(&cleared, NOW), Decision::Gone);
        assert_eq!(
            decide(&facts(Status::Unused, Progress::None), NOW),
            Decision::Gone
        );
    }
}
