//! Containers that a cloud makes and removes as one, from the request to their end (dstack 0.22.5: pipelines §10).

use dstack_model::instances::InstanceStatus;
use serde::{Deserialize, Serialize};

use super::job::Progress;
use super::{Wait, WaitReason};

/// Where a compute group is in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ComputeGroupState {
    /// Its cloud has yet to make it.
    Submitted,
    /// All its members are there.
    Running,
    /// Its cloud is to remove all of it.
    Terminating,
    /// Nothing of it is left.
    Terminated,
}

/// All that is known of a compute group.
#[derive(Debug, Clone)]
pub struct Facts {
    /// Its name, for reasons.
    pub name: String,
    /// State of the group before the decision.
    pub state: ComputeGroupState,
    /// Of its instances, one for each node.
    pub members: Vec<InstanceStatus>,
    /// How far its creation is.
    pub create: Progress,
    /// How far its removal is.
    pub remove: Progress,
}

/// What to do next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Decision {
    /// Nothing but wait.
    Wait(Wait),
    /// The cloud has made all of it.
    Made,
    /// Have the cloud remove all of it, and wait for that.
    IntendRemoval(Wait),
    /// Nothing of it is left.
    Gone,
}

/// Whether all its members still want to be made: it is made whole, or not at all.
pub fn is_wanted(members: &[InstanceStatus]) -> bool {
    !members.is_empty() && members.iter().all(|status| *status == InstanceStatus::Pending)
}

/// Decides about a compute group.
pub fn decide(facts: &Facts) -> Decision {
    let wait = |reason| Decision::Wait(Wait::indefinite(reason));
    let name = facts.name.clone();
    match (facts.state, &facts.create) {
        (ComputeGroupState::Terminated, _) => Decision::Wait(Wait::none()),
        (ComputeGroupState::Submitted, Progress::Intended(error)) => wait(match is_wanted(&facts.members) {
            true => WaitReason::Creation {
                name,
                error: error.clone(),
            },
            false => WaitReason::CreationKnown {
                name,
                error: error.clone(),
            },
        }),
        // Nothing was made, or all that was is removed again.
        (ComputeGroupState::Submitted, Progress::None | Progress::Refused(_)) => Decision::Gone,
        (ComputeGroupState::Submitted, Progress::Done) => Decision::Made,
        // A member that has ended stays in the cloud until the others have.
        (ComputeGroupState::Running, _) if facts.members.iter().any(|status| status.is_active()) => {
            Decision::Wait(Wait::none())
        }
        (ComputeGroupState::Running | ComputeGroupState::Terminating, _) => remove(facts),
    }
}

fn remove(facts: &Facts) -> Decision {
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

#[cfg(test)]
mod tests {
    use InstanceStatus::{Busy, Pending, Terminated, Terminating};

    use super::*;

    fn facts(state: ComputeGroupState, create: Progress, members: &[InstanceStatus]) -> Facts {
        Facts {
            name: "train".to_owned(),
            state,
            members: members.to_vec(),
            create,
            remove: Progress::None,
        }
    }

    #[test]
    fn a_group_is_made_whole_or_not_at_all() {
        use ComputeGroupState::Submitted;
        assert!(is_wanted(&[Pending, Pending]) && !is_wanted(&[Pending, Terminating]) && !is_wanted(&[]));
        assert_eq!(
            decide(&facts(Submitted, Progress::Done, &[Pending])),
            Decision::Made
        );
        let refused = Progress::Refused("no capacity".to_owned());
        assert_eq!(decide(&facts(Submitted, refused, &[Pending])), Decision::Gone);
        let made = facts(Submitted, Progress::Intended(None), &[Terminating]);
        let Decision::Wait(wait) = decide(&made) else {
            panic!("what a cloud makes is forgotten");
        };
        assert!(matches!(wait.reason, Some(WaitReason::CreationKnown { .. })));
    }

    #[test]
    fn a_group_is_removed_once_and_with_its_last_member() {
        use ComputeGroupState::{Running, Terminating as Ending};
        let running = facts(Running, Progress::Done, &[Terminating, Busy]);
        assert_eq!(decide(&running), Decision::Wait(Wait::none()));
        let ended = facts(Running, Progress::Done, &[Terminating, Terminated]);
        assert!(matches!(decide(&ended), Decision::IntendRemoval(_)));
        let removed = |remove| {
            decide(&Facts {
                remove,
                ..facts(Ending, Progress::Done, &[Terminating, Terminating])
            })
        };
        assert_eq!(removed(Progress::Done), Decision::Gone);
        assert!(matches!(
            removed(Progress::Intended(Some("503".to_owned()))),
            Decision::Wait(_)
        ));
    }
}
