//! A gateway, from the request to its end.

use dstack_model::gateways::GatewayStatus;

use super::{Wait, WaitReason};

/// All that is known of a gateway.
#[derive(Debug, Clone)]
pub struct Facts {
    /// Its name, for reasons.
    pub name: String,
    /// Status of the gateway before the decision.
    pub status: GatewayStatus,
    /// Its deletion was asked for.
    pub to_be_deleted: bool,
    /// Replicas that are not gone.
    pub replicas: usize,
}

/// What to do next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Decision {
    /// Nothing but wait.
    Wait(Wait),
    /// It cannot be made.
    Fail(&'static str),
    /// Nothing of it is left.
    Gone,
}

const NOT_MADE: &str = "This server version cannot create gateways yet";

/// Decides about a gateway: no cloud of this version makes one, so that a submitted one fails, and one without replicas is gone
/// as soon as its deletion is asked for.
pub fn decide(facts: &Facts) -> Decision {
    use GatewayStatus::{Failed, Provisioning, Running, Submitted};
    match (facts.to_be_deleted, facts.status) {
        (true, _) if facts.replicas == 0 => Decision::Gone,
        // They stay until their cloud says that they are gone.
        (true, _) => Decision::Wait(Wait::indefinite(WaitReason::Termination {
            name: facts.name.clone(),
            error: None,
        })),
        (false, Submitted | Provisioning) => Decision::Fail(NOT_MADE),
        (false, Running | Failed) => Decision::Wait(Wait::none()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gateways_fail_or_go() {
        let decided = |status, to_be_deleted, replicas| {
            decide(&Facts {
                name: "gate".to_owned(),
                status,
                to_be_deleted,
                replicas,
            })
        };
        assert_eq!(
            decided(GatewayStatus::Submitted, false, 0),
            Decision::Fail(NOT_MADE)
        );
        assert_eq!(decided(GatewayStatus::Submitted, true, 0), Decision::Gone);
        assert_eq!(decided(GatewayStatus::Failed, true, 0), Decision::Gone);
        let Decision::Wait(wait) = decided(GatewayStatus::Running, true, 2) else {
            panic!("its replicas cost money");
        };
        assert!(wait.reason.is_some());
        assert_eq!(
            decided(GatewayStatus::Failed, false, 0),
            Decision::Wait(Wait::none())
        );
    }
}
