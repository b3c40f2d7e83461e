//! From what an agent says of its GPUs to what users see.
//!
//! The agent passes on what NVIDIA's DCGM says: a result for all GPUs together, and one for each incident. The codes are those of
//! `dcgmHealthWatchResult_enum`.

use dstack_agent_api::shim::InstanceHealth;
use dstack_model::health::{HealthCheck, HealthEvent, HealthStatus};
use dstack_store::queries::health::StoredCheck;

const PASS: i64 = 0;
const WARN: i64 = 10;
const FAIL: i64 = 20;

/// The status that a code of DCGM stands for; `None`: DCGM has no such code.
pub const fn status_of(code: i64) -> Option<HealthStatus> {
    match code {
        PASS => Some(HealthStatus::Healthy),
        WARN => Some(HealthStatus::Warning),
        FAIL => Some(HealthStatus::Failure),
        _ => None,
    }
}

/// The status that an answer stands for; `None`: it has a code that DCGM has not, and says nothing.
///
/// An agent without DCGM has nothing to complain about: its instance is healthy, as for dstack 0.22.5.
pub fn status(answer: &InstanceHealth) -> Option<HealthStatus> {
    let Some(dcgm) = &answer.dcgm else {
        return Some(HealthStatus::Healthy);
    };
    let known = |code| status_of(code).is_some();
    let all_known = dcgm.incidents.iter().all(|incident| known(incident.health));
    status_of(dcgm.overall_health).filter(|_| all_known)
}

/// A check as users see it: one event for each incident, in the agent's order.
pub fn shown(check: &StoredCheck) -> HealthCheck {
    // Answers are understood before they are stored.
    let answer: InstanceHealth = serde_json::from_str(&check.response).unwrap_or_default();
    let incidents = answer.dcgm.map(|dcgm| dcgm.incidents).unwrap_or_default();
    let event = |(code, message)| {
        Some(HealthEvent {
            timestamp: check.collected_at,
            status: status_of(code)?,
            message,
        })
    };
    HealthCheck {
        collected_at: check.collected_at,
        status: check.status,
        events: incidents
            .into_iter()
            .map(|incident| (incident.health, incident.error_message))
            .filter_map(event)
            .collect(),
    }
}

#[cfg(test)]
mod tests {
    use dstack_agent_api::shim::{DcgmHealth, DcgmIncident};
    use dstack_units::Time;

    use super::*;

    fn answer(overall: i64, incidents: &[(i64, &str)]) -> InstanceHealth {
        let incident = |(health, message): &(i64, &str)| DcgmIncident {
            health: *health,
            error_message: (*message).to_owned(),
            ..DcgmIncident::default()
        };
        InstanceHealth {
            dcgm: Some(DcgmHealth {
                overall_health: overall,
                incidents: incidents.iter().map(incident).collect(),
            }),
        }
    }

    #[test]
    fn the_overall_result_is_the_status() {
        assert_eq!(status(&InstanceHealth::default()), Some(HealthStatus::Healthy));
        assert_eq!(status(&answer(0, &[])), Some(HealthStatus::Healthy));
        assert_eq!(status(&answer(10, &[(10, "x")])), Some(HealthStatus::Warning));
        assert_eq!(status(&answer(20, &[(10, "x")])), Some(HealthStatus::Failure));
    }

    #[test]
    fn codes_that_dcgm_does_not_have_say_nothing() {
        for code in [-1, 1, 5, 19, 21, 30, i64::MAX] {
            assert_eq!(status_of(code), None, "{code}");
            assert_eq!(status(&answer(code, &[])), None, "{code}");
            assert_eq!(status(&answer(0, &[(code, "x")])), None, "{code}");
        }
    }

    #[test]
    fn each_incident_is_an_event() {
        let collected_at = Time::from_millis(1_790_000_000_000);
        let said = answer(20, &[(10, "PCIe replay rate too high"), (20, "XID 79")]);
        let check = StoredCheck {
            collected_at,
            status: HealthStatus::Failure,
            response: serde_json::to_string(&said).unwrap(),
        };
        let event = |status, message: &str| HealthEvent {
            timestamp: collected_at,
            status,
            message: message.to_owned(),
        };
        let expected = HealthCheck {
            collected_at,
            status: HealthStatus::Failure,
            events: vec![
                event(HealthStatus::Warning, "PCIe replay rate too high"),
                event(HealthStatus::Failure, "XID 79"),
            ],
        };
        assert_eq!(shown(&check), expected);
    }
}
